# SPDX-License-Identifier: MIT
"""The load format "tmesh" of vLLM: weights in memory that no process owns.

    vllm serve MODEL --load-format tmesh --model-loader-extra-config '{"mode": "view"}'

The first engine loads the model as with --load-format auto and keeps its weights (tmesh.artifacts). Every later engine with the
same model, configuration and versions gets them as copy-on-write views, and reads nothing. The keys of the extra configuration:

mode      With "view" layers compute on the shared weights in place. With "copy" vLLM packs them into each engine's own memory.

fallback  If nothing can be shared, true loads as "auto" and logs the reason, and false raises an error.

timeout   The wait for an engine that loads the same weights ends after so many seconds without progress, by default 60.

keep      With false the engine uses weights that are kept, and keeps none.

Other keys are those of --load-format auto."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
import copy
import hashlib
import json
import os
import time
from typing import Any

from .. import artifacts
from ..errors import BusyError, Error, InvalidError, ProtocolError, UnsupportedError
from ..interop import load
from . import _PACKAGE, VERSION

__all__ = ["Loader"]

_default: Any
_base: Any
_utils: Any
_layers: Any
_distributed: Any
_envs: Any
_torch_utils: Any
_logger: Any
_vllm: Any
_torch: Any
_default, _base, _utils, _layers, _distributed, _envs, _torch_utils, _logger, _vllm = load(_PACKAGE, VERSION, {
    "vllm.model_executor.model_loader.default_loader": "DefaultModelLoader",
    "vllm.model_executor.model_loader.base_loader": "BaseModelLoader _has_online_quant",
    "vllm.model_executor.model_loader.utils": "process_weights_after_loading",
    "vllm.model_executor.layers.utils": "check_cpu_sgl_kernel dispatch_cpu_unquantized_gemm ops",
    "vllm.distributed": "get_dp_group get_pp_group get_tensor_model_parallel_rank get_tensor_model_parallel_world_size",
    "vllm.envs": "compile_factors", "vllm.utils.torch_utils": "set_default_torch_dtype", "vllm.logger": "init_logger",
    "vllm": "__version__"})
_torch, = load("torch", "2.13.0", {"torch": "compile"})

_log = _logger.init_logger("vllm.tmesh.loader")

# Variables of vLLM that change neither the loaded weights nor their form.
_NEUTRAL = {"VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_ENABLE_V1_MULTIPROCESSING",
            "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_PLUGINS", "VLLM_HOST_IP", "LOCAL_RANK", "VLLM_ENGINE_READY_TIMEOUT_S",
            "VLLM_CONFIGURE_LOGGING", "VLLM_ENGINE_ITERATION_TIMEOUT_S", "VLLM_LOOPBACK_IP", "CUDA_VISIBLE_DEVICES"}
_PLAIN = (bool, int, float, str, type(None))

Tell = Callable[[int, int], None]


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _identity(path: str) -> list[object]:
    about = os.stat(path)
    return [os.path.basename(path), about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


class _Cannot(Exception):
    """The weights of this model cannot be shared."""


def _attributes(model: Any) -> dict[str, dict[str, Any]]:
    """Return all that modules have beside parameters and buffers: plain values, and marks of everything else."""
    found: dict[str, dict[str, Any]] = {}
    for name, module in model.named_modules():
        mine: dict[str, Any] = {}
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            if isinstance(value, _PLAIN):
                mine[key] = value
            elif isinstance(value, _torch.Tensor):
                mine[key] = (id(value), value._version)
            else:
                mine[key] = (id(value),)
        found[name] = mine
    return found


def _changed(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the plain attributes that a load has set. _Cannot: it has changed others, which no artifact has."""
    flags: dict[str, dict[str, Any]] = {}
    for name, mine in after.items():
        for key, value in mine.items():
            if name in before and key in before[name] and before[name][key] == value:
                continue
            if not isinstance(value, _PLAIN):
                raise _Cannot(f"loading changes the attribute {name or 'model'}.{key}, which is no plain value")
            flags.setdefault(name, {})[key] = value
    return flags


def _state(model: Any) -> dict[str, Any]:
    """Return the tensors that a load fills, each once. _Cannot: something else refers to their memory."""
    named = {"p:" + name: parameter.data for name, parameter in model.named_parameters()}
    named.update({"b:" + name: buffer for name, buffer in model.named_buffers()})
    places = {tensor.untyped_storage().data_ptr() for tensor in named.values() if tensor.numel()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, _torch.Tensor) and value.numel() and value.untyped_storage().data_ptr() in places:
                raise _Cannot(f"the attribute {name or 'model'}.{key} is a view of a parameter")
    return named


def _replace(model: Any, artifact: artifacts.Artifact) -> None:
    """Make the model's parameters and buffers views of the artifact. ProtocolError: it does not fit; nothing has changed."""
    parameters = {"p:" + name: parameter for name, parameter in model.named_parameters()}
    buffers = {"b:" + name: buffer for name, buffer in model.named_buffers()}
    found = artifact.tensors()
    wanted: dict[str, Any] = {**parameters, **buffers}
    if found.keys() != wanted.keys():
        raise ProtocolError(71, f"the artifact and the model differ in {sorted(found.keys() ^ wanted.keys())[:3]}")
    for name, tensor in wanted.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            raise ProtocolError(71, f"{name[2:]} is {tensor.dtype} {tuple(tensor.shape)}, and {found[name].dtype} {tuple(found[name].shape)} in the artifact")
    modules = dict(model.named_modules())
    flags = artifact.extra
    if not isinstance(flags, dict) or not flags.keys() <= modules.keys() or not all(
            isinstance(mine, dict) and all(key.isidentifier() and not key.startswith("__") and isinstance(value, _PLAIN) for key, value in mine.items())
            for mine in flags.values()):
        raise ProtocolError(71, "the artifact has flags that are no plain attributes of the model's modules")
    for name, parameter in parameters.items():
        parameter.data = found[name]
    places = {id(buffer): found[name] for name, buffer in buffers.items()}
    for module in modules.values():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = places[id(buffer)]
    for name, mine in flags.items():
        for key, value in mine.items():
            setattr(modules[name], key, value)


def _shown() -> Callable[[int, int, bool], None]:
    """Return a function that logs the progress of another engine, at its begin and then every ten seconds."""
    last = [-float("inf")]

    def show(done: int, total: int, other: bool) -> None:
        if other and time.monotonic() - last[0] >= 10:
            last[0] = time.monotonic()
            _log.info("tmesh: another engine loads the same weights, and has %d of %d bytes: waiting for it", done, total)

    return show


@contextlib.contextmanager
def _in_place() -> Iterator[None]:
    """Let linear layers compute on their weights as they are. vLLM packs them into private memory otherwise."""
    packs = _layers.check_cpu_sgl_kernel, _layers.ops._supports_onednn
    _layers.check_cpu_sgl_kernel, _layers.ops._supports_onednn = lambda *_: False, False
    try:
        yield
    finally:
        _layers.check_cpu_sgl_kernel, _layers.ops._supports_onednn = packs


def _shared_bytes(model: Any, artifact: artifacts.Artifact, views: Mapping[int, int]) -> int:
    """Return how many bytes of the model's weights still are views of the artifact."""
    seen: dict[int, int] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.numel() and tensor.untyped_storage().data_ptr() in views:
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return min(sum(seen.values()), artifact.nbytes)


class Loader(_default.DefaultModelLoader):  # type: ignore[misc]
    """The loader. report has what the last load_model() did: made, waited, shared_bytes, bytes, reason, artifact."""

    def __init__(self, load_config: Any) -> None:
        extra = dict(load_config.model_loader_extra_config or {})
        self._mode = extra.pop("mode", "view")
        self._fallback = extra.pop("fallback", True)
        self._timeout = extra.pop("timeout", 60)
        self._keep = extra.pop("keep", True)
        if self._mode not in ("view", "copy"):
            raise InvalidError(22, f"load format tmesh: mode is {self._mode!r}: \"view\" or \"copy\"")
        for key, value in (("fallback", self._fallback), ("keep", self._keep)):
            if type(value) is not bool:
                raise InvalidError(22, f"load format tmesh: {key} is {value!r}: true or false")
        if type(self._timeout) not in (int, float) or not 0 <= self._timeout < 1e9:
            raise InvalidError(22, f"load format tmesh: timeout is {self._timeout!r}: a number of seconds")
        plain = copy.copy(load_config)
        plain.load_format, plain.model_loader_extra_config = "auto", extra
        super().__init__(plain)
        self._tell: Tell | None = None
        self._total = 0
        self.report: dict[str, Any] = {}

    def _fingerprint(self, vllm_config: Any, model_config: Any, prefix: str) -> dict[str, Any]:
        """Return everything that shapes the weights of this rank. It is taken before the load, which may change the
        configuration."""
        folder, files, _, _ = self._prepare_weights(model_config.model, None, model_config.revision, True, None)
        configs = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")]
        identities = [_identity(path) for path in sorted(files)]
        self._total = sum(int(one[3]) for one in identities if isinstance(one[3], int))
        parallel = vllm_config.parallel_config
        factors = _envs.compile_factors()
        spec = vllm_config.speculative_config
        lora = vllm_config.lora_config
        return {
            "engine": "vllm", "form": 1, "vllm": _vllm.__version__, "torch": _torch.__version__,
            "files": identities, "configs": [_identity(path) for path in sorted(configs)],
            "hf_config": _hash(model_config.hf_config.to_dict()), "model_config": model_config.compute_hash(),
            "dtype": str(model_config.dtype), "quantization": model_config.quantization,
            "runtime_quantization": _hash(model_config.quantization_config),
            "revision": model_config.revision, "prefix": prefix,
            "draft": spec is not None and model_config is spec.draft_model_config,
            "tensor_parallel": [_distributed.get_tensor_model_parallel_rank(), _distributed.get_tensor_model_parallel_world_size()],
            "pipeline_parallel": [_distributed.get_pp_group().rank_in_group, parallel.pipeline_parallel_size],
            "data_parallel": [_distributed.get_dp_group().rank_in_group, parallel.data_parallel_size],
            "expert_parallel": [bool(parallel.enable_expert_parallel), bool(parallel.enable_eplb), str(parallel.expert_placement_strategy)],
            "lora": lora.compute_hash() if lora else None,
            "environment": _hash({key: value for key, value in factors.items() if key not in _NEUTRAL}),
            "processor": [os.uname().machine, _torch.backends.cpu.get_cpu_capability()],
        }

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        done = 0
        for name, tensor in super().get_all_weights(model_config, model):
            yield name, tensor
            done += tensor.numel() * tensor.element_size()
            if self._tell:
                self._tell(min(done, self._total), self._total)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        device = _torch.device(self.load_config.device or vllm_config.device_config.device)
        if device.type != "cpu":
            raise UnsupportedError(95, f"load format tmesh: it has run on CPUs only, and this engine computes on {device}: use --load-format auto")
        began = time.perf_counter()
        with _torch_utils.set_default_torch_dtype(model_config.dtype):
            with device:
                # Memory of new parameters is not touched before the load, so it costs address space alone.
                model = self.create_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            if _base._has_online_quant(model):
                return self._without(vllm_config, model_config, prefix, "the quantisation happens while the weights are loaded")
            created = time.perf_counter()
            obtained = self._obtain(vllm_config, model_config, prefix, model)
            mapped = time.perf_counter()
            artifact = obtained.artifact
            places = {tensor.untyped_storage().data_ptr(): 1 for tensor in [*model.parameters(), *model.buffers()]
                      if tensor.numel()} if artifact else {}
            with _in_place() if self._mode == "view" and artifact else contextlib.nullcontext():
                _utils.process_weights_after_loading(model, model_config, device)
        shared = _shared_bytes(model, artifact, places) if artifact else 0
        self.report = {"artifact": artifact.name if artifact else None, "made": obtained.made, "waited": obtained.waited,
                       "bytes": artifact.nbytes if artifact else 0, "shared_bytes": shared, "reason": obtained.reason}
        if artifact:
            _log.info("tmesh: %s %s: %d of %d bytes are shared in place (mode %s), %d bytes were read",
                      "kept" if obtained.made else "mapped", artifact.name, shared, artifact.nbytes, self._mode,
                      self._total if obtained.made else 0)
            _log.info("tmesh: seconds to create the model: %.3f, to get weights: %.3f (%.3f of it waited for another engine), to process them: %.3f",
                      created - began, mapped - created, obtained.waited, time.perf_counter() - mapped)
        else:
            _log.warning("tmesh: nothing is shared: %s", obtained.reason)
        return model.eval()

    def _without(self, vllm_config: Any, model_config: Any, prefix: str, reason: str) -> Any:
        if not self._fallback:
            raise UnsupportedError(95, f"load format tmesh: nothing can be shared: {reason}; set fallback, or use --load-format auto")
        _log.warning("tmesh: nothing is shared: %s", reason)
        return super().load_model(vllm_config, model_config, prefix)

    def _obtain(self, vllm_config: Any, model_config: Any, prefix: str, model: Any) -> artifacts.Obtained:
        """Fill the model's parameters: with views of an artifact if there is one, else by loading them."""
        loaded = False
        why = ""

        def make(tell: Tell) -> artifacts.Artifact | None:
            nonlocal loaded, why
            before = _attributes(model)
            self._tell = tell
            try:
                self.load_weights(model, model_config)
            finally:
                self._tell = None
            loaded = True
            if not self._keep:
                why = "the configuration says that nothing is to be kept"
                return None
            try:
                flags = _changed(before, _attributes(model))
                return artifacts.keep(fingerprint, _state(model), extra=flags, progress=tell)
            except (_Cannot, Error) as problem:
                why = f"{getattr(problem, 'strerror', None) or problem}"
                return None

        obtained = artifacts.Obtained(None, False, 0.0, "")
        try:
            fingerprint = self._fingerprint(vllm_config, model_config, prefix)
            obtained = artifacts.obtain(fingerprint, make, timeout=self._timeout, progress=_shown())
            if obtained.artifact:
                _replace(model, obtained.artifact)
                return obtained
        except Error as problem:
            why = f"{problem.strerror or problem}"
            obtained = artifacts.Obtained(None, False, 0.0, why)
        why = why or obtained.reason
        if not self._fallback:
            raise BusyError(16, f"load format tmesh: nothing can be shared: {why}; set fallback, or use --load-format auto")
        if not loaded:
            self.load_weights(model, model_config)
        return artifacts.Obtained(None, obtained.made, obtained.waited, why)
