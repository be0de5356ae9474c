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

from collections.abc import Iterator
import contextlib
import copy
import functools
from importlib import metadata
import os
import time
from typing import Any

from .. import artifacts
from ..errors import Error, InvalidError, UnsupportedError
from ..interop import load
from ..modules import Cannot, Sharing, Tell, counted, digest, identity, shared_bytes, storages
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
    "vllm.model_executor.model_loader.utils": "get_draft_load_config process_weights_after_loading",
    "vllm.model_executor.layers.utils": "check_cpu_sgl_kernel dispatch_cpu_unquantized_gemm ops",
    "vllm.distributed": "get_dcp_group get_dp_group get_pcp_group get_pp_group get_tensor_model_parallel_rank get_tensor_model_parallel_world_size",
    "vllm.envs": "compile_factors", "vllm.utils.torch_utils": "set_default_torch_dtype", "vllm.logger": "init_logger",
    "vllm": "__version__"})
_torch, = load("torch", "2.13.0", {"torch": "compile"})

_log = _logger.init_logger("vllm.tmesh.loader")

# Variables of vLLM that change neither the loaded weights nor their form.
_NEUTRAL = {"VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_ENABLE_V1_MULTIPROCESSING",
            "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_PLUGINS", "VLLM_HOST_IP", "LOCAL_RANK", "VLLM_ENGINE_READY_TIMEOUT_S",
            "VLLM_CONFIGURE_LOGGING", "VLLM_ENGINE_ITERATION_TIMEOUT_S", "VLLM_LOOPBACK_IP", "CUDA_VISIBLE_DEVICES"}

# Packages of kernels whose versions may differ with the same vLLM.
_KERNELS = "flashinfer-python", "deep-gemm"


def _version(package: str) -> str | None:
    """Return an installed package's version. None: it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def _in_place() -> Iterator[None]:
    """Let linear layers compute on their weights as they are. vLLM packs them into private memory otherwise."""
    packs = _layers.check_cpu_sgl_kernel, _layers.ops._supports_onednn
    _layers.check_cpu_sgl_kernel, _layers.ops._supports_onednn = lambda *_: False, False
    try:
        yield
    finally:
        _layers.check_cpu_sgl_kernel, _layers.ops._supports_onednn = packs


def _check_writable(model: Any, *_: Any) -> None:
    """Raise UnsupportedError if a model's weights are mapped for reading. A write to them would end the process."""
    if getattr(model, "tmesh_read_only", False):
        raise UnsupportedError(95, "load format tmesh: this model's weights are mapped from GPU memory of all engines, for reading: start the "
                                   "engine with the mode \"copy\" to load into them")


def _drafts(vllm_config: Any) -> Iterator[tuple[Any, Any, str]]:
    """Yield the configuration, the model and the prefix with which vLLM loads the draft: each of its two runners makes a configuration of its own."""
    spec = vllm_config.speculative_config
    alone = spec.method == "draft_model"
    for first in True, False:
        config = copy.copy(spec.apply_draft_overrides(vllm_config))
        if first:
            config.attention_config = copy.copy(config.attention_config)
            config.attention_config.backend = spec.attention_backend
        if alone:
            config.parallel_config = copy.copy(spec.draft_parallel_config)
            if first:
                for name in "decode_context_parallel_size", "dcp_q_replicate":
                    setattr(config.parallel_config, name, getattr(vllm_config.parallel_config, name))
        yield config, spec.draft_model_config, "draft_model" if alone else ""


class _Layers:
    """The layers that a configuration lists. Creating a model adds its layers, and a second one of the same names would be refused."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._before = dict(config.static_forward_context), list(config.static_all_moe_layers)

    def forget(self) -> None:
        """Forget the layers of models that were created since."""
        self._config.static_forward_context.clear()
        self._config.static_forward_context.update(self._before[0])
        self._config.static_all_moe_layers[:] = self._before[1]


class Loader(_default.DefaultModelLoader):  # type: ignore[misc]
    """The loader. report has what the last load_model() did: made, waited, shared_bytes, bytes, reason, artifact."""

    def __init__(self, load_config: Any) -> None:
        extra = dict(load_config.model_loader_extra_config or {})
        self._mode = extra.pop("mode", "view")
        self._sharing = Sharing(extra, _log, "load format tmesh")
        if self._mode not in ("view", "copy"):
            raise InvalidError(22, f"load format tmesh: mode is {self._mode!r}: \"view\" or \"copy\"")
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
        identities = [identity(path) for path in sorted(files)]
        self._total = sum(int(one[3]) for one in identities if isinstance(one[3], int))
        parallel = vllm_config.parallel_config
        factors = _envs.compile_factors()
        spec = vllm_config.speculative_config
        lora = vllm_config.lora_config
        return {
            "engine": "vllm", "form": 1, "vllm": _vllm.__version__, "torch": _torch.__version__,
            "files": identities, "configs": [identity(path) for path in sorted(configs)],
            "hf_config": digest(model_config.hf_config.to_dict()), "model_config": model_config.compute_hash(),
            "dtype": str(model_config.dtype), "quantization": model_config.quantization,
            "runtime_quantization": digest(model_config.quantization_config),
            "revision": model_config.revision, "prefix": prefix,
            "draft": spec is not None and model_config is spec.draft_model_config,
            "tensor_parallel": [_distributed.get_tensor_model_parallel_rank(), _distributed.get_tensor_model_parallel_world_size()],
            "pipeline_parallel": [_distributed.get_pp_group().rank_in_group, parallel.pipeline_parallel_size],
            "data_parallel": [_distributed.get_dp_group().rank_in_group, parallel.data_parallel_size],
            "expert_parallel": [bool(parallel.enable_expert_parallel), bool(parallel.enable_eplb), str(parallel.expert_placement_strategy)],
            "lora": lora.compute_hash() if lora else None,
            "environment": digest({key: value for key, value in factors.items() if key not in _NEUTRAL}),
            "processor": [os.uname().machine, _torch.backends.cpu.get_cpu_capability()],
        }

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        _check_writable(model)
        return counted(super().get_all_weights(model_config, model), self._total, self._tell)

    def _load(self, model: Any, model_config: Any, tell: Tell | None) -> None:
        self._tell = tell
        try:
            self.load_weights(model, model_config)
        finally:
            self._tell = None

    def load_weights(self, model: Any, model_config: Any) -> None:
        _check_writable(model)
        super().load_weights(model, model_config)

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Return the bytes of GPU memory that loads of the model and of its draft would map. vLLM asks before it divides a GPU's memory. If another
        engine loads the model, wait for it: its memory would count as this engine's own later."""
        total = self._kept_bytes(vllm_config, vllm_config.model_config, "")
        draft = vllm_config.speculative_config and vllm_config.speculative_config.draft_model_config
        # Methods without a draft of their own name the model itself.
        if draft is None or draft is vllm_config.model_config:
            return total
        load_config = _utils.get_draft_load_config(vllm_config)
        if load_config.load_format != "tmesh":
            return total
        loader = Loader(load_config)
        return total + next(filter(None, (loader._kept_bytes(*one) for one in _drafts(vllm_config))), 0)

    def _kept_bytes(self, vllm_config: Any, model_config: Any, prefix: str) -> int:
        """Return the bytes of GPU memory that a load would map."""
        device = self._device(vllm_config)
        if self._mode == "copy" or not self._on_gpu(device) or self._refusal(vllm_config):
            return 0
        from . import gpu

        if gpu.refusal(model_config):
            return 0
        memory = gpu.Memory(device)
        fingerprint, _ = self._sharing.identify(lambda: self._fingerprint_on(memory, vllm_config, model_config, prefix))
        artifact = self._sharing.wait(fingerprint, gpu=memory) if fingerprint else None
        if artifact is None:
            return 0
        artifact.release()
        return artifact.gpu_bytes

    def _refusal(self, vllm_config: Any) -> str:
        """Return why an engine of this configuration cannot use parameters that are mapped for reading. "": it can."""
        if self._mode == "copy":
            return ""
        model, transfer = vllm_config.model_config, vllm_config.weight_transfer_config
        if vllm_config.parallel_config.enable_eplb:
            cause = "EPLB writes to the experts' weights"
        elif transfer is not None and transfer.backend != "tmesh":
            cause = f"the weight transfer {transfer.backend!r} writes to the weights"
        elif model.enable_sleep_mode or model.enable_cumem_allocator:
            cause = "sleep mode and the cumem allocator do not free weights that are mapped"
        else:
            return ""
        return f"{cause}, and the mode \"view\" maps them for reading: use the mode \"copy\""

    def _device(self, vllm_config: Any) -> Any:
        return _torch.device(self.load_config.device or vllm_config.device_config.device)

    @staticmethod
    def _on_gpu(device: Any) -> bool:
        return bool(device.type == "cuda")

    def _fingerprint_on(self, memory: Any, vllm_config: Any, model_config: Any, prefix: str) -> dict[str, Any]:
        """Return everything that shapes finished weights: also the choice of kernels, each of which has a form of its own."""
        parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
        return {
            **self._fingerprint(vllm_config, model_config, prefix), "gpu": memory.identity(), "cuda": _torch.version.cuda,
            "kernels": vllm_config.kernel_config.compute_hash(), "attention": vllm_config.attention_config.compute_hash(),
            "cache": [str(cache.cache_dtype), [*cache.kv_cache_dtype_skip_layers]],
            "experts": [str(parallel.all2all_backend), parallel.eplb_config.num_redundant_experts],
            "context_parallel": [_distributed.get_pcp_group().rank_in_group, parallel.prefill_context_parallel_size,
                                 _distributed.get_dcp_group().rank_in_group, parallel.decode_context_parallel_size, parallel.dcp_q_replicate],
            "packages": {name: _version(name) for name in _KERNELS},
        }

    def _load_on_gpu(self, vllm_config: Any, model_config: Any, prefix: str, device: Any) -> Any:
        """Load finished weights, or make them (gpu.py)."""
        from . import gpu

        refused = gpu.refusal(model_config) or self._refusal(vllm_config)
        if refused:
            return self._without(vllm_config, model_config, prefix, refused)
        memory = gpu.Memory(device)
        fingerprint, why = self._sharing.identify(lambda: self._fingerprint_on(memory, vllm_config, model_config, prefix))
        made: Any = None

        def make(tell: Tell) -> artifacts.Artifact | None:
            nonlocal made, why
            self._tell = tell
            try:
                made = super(Loader, self).load_model(vllm_config, model_config, prefix)
            finally:
                self._tell = None
            if not self._sharing.keep:
                why = "the configuration says that nothing is to be kept"
                return None
            try:
                return gpu.keep(fingerprint or {}, made, memory, tell)
            except Error as problem:
                why = f"{problem.strerror or problem}"
                return None

        obtained = artifacts.Obtained(None, False, 0.0, "")
        layers = _Layers(vllm_config.compilation_config)
        try:
            if fingerprint:
                obtained = self._sharing.turn(fingerprint, make, gpu=memory)
            artifact = obtained.artifact
            if artifact and made is not None and self._mode == "view":
                gpu.apply(self.load_config, made, artifact)
            elif artifact and made is None:
                made = gpu.build(self.load_config, vllm_config, model_config, prefix, artifact, self._mode == "copy")
        except Exception as problem:  # code of any model
            if made is None and not obtained.artifact and not isinstance(problem, Error):
                raise  # from vLLM's own load
            artifact, why = None, f"{getattr(problem, 'strerror', None) or problem}"
        if artifact is None:
            why = why or obtained.reason
            if made is None:
                layers.forget()
                return self._without(vllm_config, model_config, prefix, why)
            if not self._sharing.fallback:
                raise UnsupportedError(95, f"load format tmesh: nothing can be shared: {why}; set fallback, or use --load-format auto")
            _log.warning("tmesh: nothing is shared: %s", why)
        size = artifact.gpu_bytes if artifact else 0
        made.tmesh_read_only = obtained.artifact is not None and self._mode == "view"
        if made.tmesh_read_only:
            made.load_weights = functools.partial(_check_writable, made)
        self.report = {"artifact": artifact.name if artifact else None, "made": obtained.made, "bytes": size,
                       "shared_bytes": size if made.tmesh_read_only else 0, "reason": "" if artifact else why}
        _log.info("tmesh: %s", self.report)
        return made

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        device = self._device(vllm_config)
        if self._on_gpu(device):
            return self._load_on_gpu(vllm_config, model_config, prefix, device)
        if device.type != "cpu":
            raise UnsupportedError(95, f"load format tmesh: it is for CPUs and for GPUs of CUDA, and this engine computes on {device}: use --load-format auto")
        began = time.perf_counter()
        with _torch_utils.set_default_torch_dtype(model_config.dtype):
            fingerprint, why = self._sharing.identify(lambda: self._fingerprint(vllm_config, model_config, prefix))
            layers = _Layers(vllm_config.compilation_config)

            def create() -> Any:
                with device:
                    model = self.create_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
                if _base._has_online_quant(model):
                    raise Cannot("the quantisation happens while the weights are loaded")
                return model

            model, artifact = self._sharing.mapped(fingerprint, create)
            meta = artifact is not None
            if not meta:
                layers.forget()
                try:
                    model = create()
                except Cannot as problem:
                    layers.forget()
                    return self._without(vllm_config, model_config, prefix, str(problem))
            created = time.perf_counter()
            obtained = artifacts.Obtained(artifact, False, 0.0, "") if artifact else \
                self._sharing.obtain(model, fingerprint, why, lambda tell: self._load(model, model_config, tell))
            mapped = time.perf_counter()
            artifact = obtained.artifact
            places = storages(model) if artifact else set()
            in_place = _in_place if self._mode == "view" and artifact else contextlib.nullcontext
            with in_place():
                _utils.process_weights_after_loading(model, model_config, device)
            model.tmesh_processes_in = in_place  # an update processes weights again, in the same form
        shared = shared_bytes(model, artifact, places) if artifact else 0
        self.report = {"artifact": artifact.name if artifact else None, "made": obtained.made, "waited": obtained.waited,
                       "bytes": artifact.nbytes if artifact else 0, "shared_bytes": shared, "reason": obtained.reason, "meta": meta}
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
        if not self._sharing.fallback:
            raise UnsupportedError(95, f"load format tmesh: nothing can be shared: {reason}; set fallback, or use --load-format auto")
        _log.warning("tmesh: nothing is shared: %s", reason)
        self.report = {"artifact": None, "made": False, "bytes": 0, "shared_bytes": 0, "reason": reason}
        return super().load_model(vllm_config, model_config, prefix)
