# SPDX-License-Identifier: MIT
"""Finished weights in GPU memory, for the load format "tmesh". This has never run on a GPU: its tests have memory of the host in its place.

The first engine loads the weights as with --load-format auto, copies what vLLM has made of them into GPU memory of tmesh, and uses that. The
memory stays when all engines are gone. A later engine maps it for reading and transforms nothing. It builds the model as vLLM's load format
ipc_cache does, so it shares the same methods of quantisation."""

from __future__ import annotations

from collections.abc import Mapping
import copy
from typing import Any, NamedTuple

from .. import artifacts, cuda
from ..errors import ProtocolError
from ..interop import load
from ..modules import Cannot, Tell, without_memory
from . import _PACKAGE, VERSION

__all__ = ["Memory", "apply", "build", "keep"]

_ipc: Any
_protocol: Any
_utils: Any
_torch: Any
_ipc, _protocol, _utils = load(_PACKAGE, VERSION, {
    "vllm.model_executor.model_loader.weight_cache.ipc_loader": "IpcModelLoader",
    "vllm.model_executor.model_loader.weight_cache.protocol": "UnsupportedQuantForIPCError WeightCacheState check_ipc_quant_support",
    "vllm.model_executor.model_loader.weight_cache.utils": "export_model_attrs"})
_torch, = load("torch", "2.13.0", {"torch": "from_dlpack"})


class Memory:
    """The memory of one GPU, for tmesh.artifacts."""

    def __init__(self, device: Any) -> None:
        self._index: int = _torch.accelerator.current_device_index() if device.index is None else device.index

    def identity(self) -> str:
        """Return the name of the physical GPU. vLLM's own function counts GPUs otherwise than PyTorch if it was started with --device-ids."""
        return str(_torch.cuda.get_device_properties(self._index).uuid)

    def has(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda and tensor.device.index == self._index)

    def make(self, nbytes: int) -> tuple[Any, Any]:
        array = cuda.empty((nbytes,), "uint8", self._index, alone=True)
        return array, _torch.from_dlpack(array)

    def keep(self, memory: Any, name: str) -> None:
        _torch.accelerator.synchronize()
        cuda.keep(memory, name, replace=True)

    def open(self, name: str) -> Any:
        array = cuda.open_kept(name, device=self._index)
        if array.device != f"cuda:{self._index}":
            there = array.device
            array.release()
            raise ProtocolError(71, f"its GPU memory, {name}, is on {there}, and this engine computes on cuda:{self._index}")
        return _torch.from_dlpack(array)


class _Entry(NamedTuple):
    """A tensor in the form of vLLM's loader."""

    kind: str  # "param" or "buffer"
    tensor: Any
    copied: bool

    def rebuild(self, device_index: int) -> Any:
        return self.tensor.clone() if self.copied else self.tensor


def keep(fingerprint: Mapping[str, Any], model: Any, memory: Memory, tell: Tell) -> artifacts.Artifact:
    """Keep a model's finished weights as an artifact. ProtocolError: a method of quantisation of the model cannot be shared so."""
    try:
        _protocol.check_ipc_quant_support(model)
    except _protocol.UnsupportedQuantForIPCError as problem:
        raise ProtocolError(71, str(problem)) from None
    found = {"p:" + name: tensor.detach() for name, tensor in model.named_parameters(remove_duplicate=False)}
    found.update({"b:" + name: tensor for name, tensor in model.named_buffers(remove_duplicate=False)})
    return artifacts.keep(fingerprint, found, extra=_utils.export_model_attrs(model), progress=tell, gpu=memory)


def _state(artifact: artifacts.Artifact, copied: bool) -> Any:
    """Return an artifact's tensors in the form of vLLM's loader. ProtocolError: they have no such names or flags."""
    kinds, tensors = {"p:": "param", "b:": "buffer"}, artifact.tensors()
    if not all(name[:2] in kinds for name in tensors):
        raise ProtocolError(71, f"the artifact {artifact.name} has tensors that are neither parameters nor buffers")
    if not isinstance(artifact.extra, dict) or not all(type(value) is bool for value in artifact.extra.values()):
        raise ProtocolError(71, f"the artifact {artifact.name} has flags that are not true or false")
    # vLLM writes to some buffers, such as the scales of a KV cache.
    return _protocol.WeightCacheState(
        {name[2:]: _Entry(kinds[name[:2]], tensor, copied or name[:2] == "b:") for name, tensor in tensors.items() if name not in artifact.aliases},
        {name[2:]: canonical[2:] for name, canonical in artifact.aliases.items()}, artifact.extra)


def _builder(load_config: Any) -> Any:
    plain = copy.copy(load_config)
    plain.model_loader_extra_config = {}
    return _ipc.IpcModelLoader(plain)


def build(load_config: Any, vllm_config: Any, model_config: Any, prefix: str, artifact: artifacts.Artifact, copied: bool) -> Any:
    """Return a model that has an artifact's tensors, or copies of them, and was never loaded. Cannot: vLLM leaves some of it without memory, because
    it registers other parameters in place of those that objects refer to which are no modules."""
    model = _builder(load_config)._build_model(vllm_config, model_config, prefix, _state(artifact, copied))
    place = without_memory(model, empty=False)
    if place:
        raise Cannot(f"{place} would have no memory")
    return model


def refusal(model_config: Any) -> str:
    """Return why an engine on a GPU cannot use another one's finished weights of this model. "": it can."""
    if model_config.is_moe:
        return "a mixture of experts sets its kernels up while it is loaded, which an engine that maps finished weights does not"
    if model_config.use_mla:
        return "MLA computes weights from others while it is loaded, and would write to those that are mapped"
    return ""


def apply(load_config: Any, model: Any, artifact: artifacts.Artifact) -> None:
    """Give a loaded model an artifact's tensors in place of its own, whose memory is free when nothing else refers to it."""
    _builder(load_config)._apply_entries(model, _state(artifact, False), 0)
    _torch.accelerator.empty_cache()
