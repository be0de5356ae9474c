# SPDX-License-Identifier: MIT
"""A loader of SGLang: weights in memory that no process owns.

    from tmesh.sglang_loader import Loader
    engine = sglang.Engine(model_path=..., device="cpu", load_format=Loader)

The first engine loads the model as the load format "auto" does and keeps its weights. Every later engine with the same model,
configuration and versions gets them as copy-on-write views. The keys fallback, timeout and keep of model_loader_extra_config are those
of tmesh.vllm.loader.

It has never run in an engine. It was tested against SGLang's own loader with small models on a CPU."""

from __future__ import annotations

import copy
import logging
import os
from typing import Any

from . import artifacts
from .errors import UnsupportedError
from .interop import load, warn_of_another
from .modules import Sharing, Tell, counted, digest, identity, shared_bytes, storages

__all__ = ["Loader"]

VERSION = "0.5.23"

_log = logging.getLogger("tmesh.sglang")

_loader: Any
_config: Any
_context: Any
_utils: Any
_torch: Any
try:
    _loader, _config, _context, _utils, _torch = load("sglang", VERSION, {
        "sglang.srt.model_loader.loader": "DefaultModelLoader _initialize_model _get_quantization_config",
        "sglang.srt.configs.load_config": "LoadFormat", "sglang.srt.runtime_context": "get_parallel get_exec",
        "sglang.srt.model_loader.utils": "set_default_torch_dtype", "torch": "device"})
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(f"tmesh.sglang_loader needs SGLang ({problem}): pip install sglang=={VERSION}", name=problem.name) from None
warn_of_another("sglang", VERSION)

# The sizes and ranks that shape a worker's weights.
_PARALLEL = ("tp_size", "tp_rank", "pp_size", "pp_rank", "dp_size", "moe_ep_size", "moe_ep_rank", "moe_dp_size", "moe_dp_rank", "attn_dp_size",
             "attn_cp_size", "enable_dp_lm_head", "moe_dense_tp_size")


class Loader(_loader.DefaultModelLoader):  # type: ignore[misc]
    """The loader. report has what the last load_model() did: artifact, made, waited, shared_bytes, bytes, reason, meta."""

    def __init__(self, load_config: Any) -> None:
        extra = dict(load_config.model_loader_extra_config or {})
        self._sharing = Sharing(extra, _log, "tmesh.sglang_loader")
        plain = copy.copy(load_config)
        plain.load_format, plain.model_loader_extra_config = _config.LoadFormat.AUTO, extra
        super().__init__(plain)
        self._total = 0
        self.report: dict[str, Any] = {}

    def _fingerprint(self, model_config: Any) -> dict[str, Any]:
        """Return everything that shapes the weights of this worker."""
        folder, files, _ = self._prepare_weights(model_config.model_path, model_config.revision, True)
        configs = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")]
        identities = [identity(path) for path in sorted(files)]
        self._total = sum(int(one[3]) for one in identities if isinstance(one[3], int))
        parallel = _context.get_parallel()
        return {
            "engine": "sglang", "form": 1, "sglang": VERSION, "torch": _torch.__version__, "files": identities,
            "configs": [identity(path) for path in sorted(configs)], "hf_config": digest(model_config.hf_config.to_dict()),
            "dtype": str(model_config.dtype), "quantization": str(model_config.quantization), "revision": model_config.revision,
            "draft": [self.load_config.draft_model_idx, getattr(model_config, "is_draft_model", False)],
            "parallel": [getattr(parallel, name) for name in _PARALLEL], "moe": _context.get_exec().moe.moe_a2a_backend,
            "environment": digest({key: value for key, value in os.environ.items() if key.startswith("SGLANG_")}),
            "processor": [os.uname().machine, _torch.backends.cpu.get_cpu_capability()],
        }

    def load_model(self, *, model_config: Any, device_config: Any) -> Any:
        device = _torch.device(device_config.device)
        if device.type != "cpu":
            raise UnsupportedError(95, f"tmesh.sglang_loader: it has run on CPUs only, and this engine computes on {device}: leave load_format away")
        quantisation = _loader._get_quantization_config(model_config, self.load_config)

        def create() -> Any:
            with device:
                return _loader._initialize_model(model_config, self.load_config, quantisation)

        def fill(model: Any, tell: Tell | None) -> None:
            self.load_weights_only(model, counted(self._get_all_weights(model_config, model), self._total, tell), device)

        with _utils.set_default_torch_dtype(model_config.dtype):
            fingerprint, why = self._sharing.identify(lambda: self._fingerprint(model_config))
            model, artifact = self._sharing.mapped(fingerprint, create)
            meta = artifact is not None
            obtained = artifacts.Obtained(artifact, False, 0.0, "")
            if not meta:
                model = create()
                obtained = self._sharing.obtain(model, fingerprint, why, lambda tell: fill(model, tell))
            artifact = obtained.artifact
            places = storages(model) if artifact else set()
            self.postprocess_weights(model, device)
        shared = shared_bytes(model, artifact, places) if artifact else 0
        self.report = {"artifact": artifact.name if artifact else None, "made": obtained.made, "waited": obtained.waited,
                       "bytes": artifact.nbytes if artifact else 0, "shared_bytes": shared, "reason": obtained.reason, "meta": meta}
        if artifact:
            _log.info("%s %s: %d of %d bytes are shared in place", "kept" if obtained.made else "mapped", artifact.name, shared, artifact.nbytes)
        else:
            _log.warning("nothing is shared: %s", obtained.reason)
        return model.eval()
