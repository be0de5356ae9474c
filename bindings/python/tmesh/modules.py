# SPDX-License-Identifier: MIT
"""The weights of a PyTorch model as an artifact (tmesh.artifacts), for the loaders of engines.

mapped() creates a model without memory and lets it use an artifact. If there is none, obtain() loads the model and keeps its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
import hashlib
import importlib
import json
import os
import time
from typing import Any

from . import artifacts
from .errors import BusyError, Error, InvalidError, ProtocolError

__all__ = ["Cannot", "Sharing", "digest", "identity"]

Tell = Callable[[int, int], None]

_torch: Any = importlib.import_module("torch")

_PLAIN = (bool, int, float, str, type(None))


def digest(value: object) -> str:
    """Return a hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def identity(path: str) -> list[object]:
    """Return what differs if a file was changed or replaced."""
    about = os.stat(path)
    return [os.path.basename(path), about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


class Cannot(Exception):
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
    """Return the plain attributes that a load has set. Cannot: it has changed others, which no artifact has."""
    flags: dict[str, dict[str, Any]] = {}
    for name, mine in after.items():
        for key, value in mine.items():
            if name in before and key in before[name] and before[name][key] == value:
                continue
            if not isinstance(value, _PLAIN):
                raise Cannot(f"loading changes the attribute {name or 'model'}.{key}, which is no plain value")
            flags.setdefault(name, {})[key] = value
    return flags


def _state(model: Any) -> dict[str, Any]:
    """Return the tensors that a load fills, each once. Cannot: something else refers to their memory."""
    named = {"p:" + name: parameter.data for name, parameter in model.named_parameters()}
    named.update({"b:" + name: buffer for name, buffer in model.named_buffers()})
    places = {tensor.untyped_storage().data_ptr() for tensor in named.values() if tensor.numel()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, _torch.Tensor) and value.numel() and value.untyped_storage().data_ptr() in places:
                raise Cannot(f"the attribute {name or 'model'}.{key} is a view of a parameter")
    return named


def _become(parameter: Any, tensor: Any) -> None:
    """Give a parameter this memory. It stays the same object, which other modules may have too."""
    if not parameter.is_meta:
        parameter.data = tensor
        return
    other = tensor.detach()
    other.__class__, other.__dict__ = parameter.__class__, dict(parameter.__dict__)
    _torch.utils.swap_tensors(parameter, other)


def without_memory(model: Any, empty: bool = True) -> str:
    """Return where a model has a tensor without memory beside its parameters and buffers. "": nowhere. empty: count those without elements too."""
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [(name or "model", module) for name, module in model.named_modules()]
    while left:
        place, value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _torch.Tensor):
            if value.is_meta and (empty or value.numel()):
                return place
        elif isinstance(value, dict):
            left += [(f"{place}.{key}", one) for key, one in value.items()]
        elif isinstance(value, (list, tuple, set)):
            left += [(place, one) for one in value]
        elif isinstance(value, _torch.nn.Module) or type(value).__module__.startswith("vllm"):
            left += [(f"{place}.{key}", one) for key, one in getattr(value, "__dict__", {}).items()]
    return ""


def replace(model: Any, artifact: artifacts.Artifact) -> None:
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
        _become(parameter, found[name])
    places = {id(buffer): found[name] for name, buffer in buffers.items()}
    for module in modules.values():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = places[id(buffer)]
    for name, mine in flags.items():
        for key, value in mine.items():
            setattr(modules[name], key, value)


def _shown(log: Any) -> Callable[[int, int, bool], None]:
    """Return a function that logs the progress of another engine, at its begin and then every ten seconds."""
    last = [-float("inf")]

    def show(done: int, total: int, other: bool) -> None:
        if other and time.monotonic() - last[0] >= 10:
            last[0] = time.monotonic()
            log.info("tmesh: another engine loads the same weights, and has %d of %d bytes: waiting for it", done, total)

    return show


def storages(model: Any) -> set[int]:
    """Return the places of all storages that a model's tensors have."""
    return {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()] if tensor.numel()}


def shared_bytes(model: Any, artifact: artifacts.Artifact, places: set[int]) -> int:
    """Return how many bytes of the model's weights still are views of the artifact."""
    seen: dict[int, int] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.numel() and tensor.untyped_storage().data_ptr() in places:
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return min(sum(seen.values()), artifact.nbytes)


class _Unallocated(_torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """In this context empty tensors have no memory. Others do: code of models computes with them."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (_torch.empty, _torch.empty_strided):
            return function(*args, **{**(kwargs or {}), "device": "meta"})
        return function(*args, **(kwargs or {}))


class Sharing:
    """A loader's choices, and what they do. extra loses the keys fallback, timeout and keep. InvalidError: one of them is no such value."""

    def __init__(self, extra: dict[str, Any], log: Any, words: str) -> None:
        self.fallback, self.timeout, self.keep = extra.pop("fallback", True), extra.pop("timeout", 60), extra.pop("keep", True)
        for key, value in (("fallback", self.fallback), ("keep", self.keep)):
            if type(value) is not bool:
                raise InvalidError(22, f"{words}: {key} is {value!r}: true or false")
        if type(self.timeout) not in (int, float) or not 0 <= self.timeout < 1e9:
            raise InvalidError(22, f"{words}: timeout is {self.timeout!r}: a number of seconds")
        self._log, self._words = log, words

    def identify(self, fingerprint: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
        """Return the fingerprint. None: it cannot be had, and the reason."""
        try:
            return fingerprint(), ""
        except Error as problem:
            return None, f"{problem.strerror or problem}"
        except Exception as problem:  # code of the engine
            return None, f"the fingerprint cannot be had: {type(problem).__name__}: {problem}"

    def mapped(self, fingerprint: dict[str, Any] | None, create: Callable[[], Any]) -> tuple[Any, artifacts.Artifact | None]:
        """Create the model without memory, and let it use an artifact's. None: there is no artifact, or the model needs memory of its own."""
        artifact = artifacts.find(fingerprint) if fingerprint else None
        if not artifact:
            return None, None
        try:
            with _Unallocated():
                model = create()
            replace(model, artifact)
            place = without_memory(model)
            if place:
                raise Cannot(f"{place} would have no memory")
            return model, artifact
        except Exception as problem:  # code of any model
            self._log.info("tmesh: creating the model without memory: %s; creating it with memory that is then released", str(problem))
            artifact.release()
            return None, None

    def turn(self, fingerprint: dict[str, Any], make: Callable[[Tell], artifacts.Artifact | None], *,
             gpu: artifacts.Gpu | None = None) -> artifacts.Obtained:
        """Find an artifact, or let one process make it while the others wait, with this configuration."""
        return artifacts.obtain(fingerprint, make, timeout=self.timeout, progress=_shown(self._log), gpu=gpu)

    def wait(self, fingerprint: dict[str, Any], *, gpu: artifacts.Gpu | None = None) -> artifacts.Artifact | None:
        """Find an artifact, and wait for a process that makes it, with this configuration."""
        return artifacts.wait(fingerprint, timeout=self.timeout, progress=_shown(self._log), gpu=gpu)

    def obtain(self, model: Any, fingerprint: dict[str, Any] | None, why: str, load: Callable[[Tell | None], None]) -> artifacts.Obtained:
        """Fill the model's parameters: with views of an artifact if there is one, else by load(), whose argument takes its progress.
        why: the reason for having no fingerprint."""
        loaded = False

        def make(tell: Tell) -> artifacts.Artifact | None:
            nonlocal loaded, why
            before = _attributes(model)
            load(tell)
            loaded = True
            if not self.keep:
                why = "the configuration says that nothing is to be kept"
                return None
            try:
                flags = _changed(before, _attributes(model))
                return artifacts.keep(fingerprint or {}, _state(model), extra=flags, progress=tell)
            except (Cannot, Error) as problem:
                why = f"{getattr(problem, 'strerror', None) or problem}"
                return None

        obtained = artifacts.Obtained(None, False, 0.0, "")
        try:
            if fingerprint:
                obtained = self.turn(fingerprint, make)
            if obtained.artifact:
                replace(model, obtained.artifact)
                return obtained
        except Error as problem:
            why = f"{problem.strerror or problem}"
            obtained = artifacts.Obtained(None, False, 0.0, why)
        why = why or obtained.reason
        if not self.fallback:
            raise BusyError(16, f"{self._words}: nothing can be shared: {why}; set fallback, or use the load format auto")
        if not loaded:
            load(None)
        return artifacts.Obtained(None, obtained.made, obtained.waited, why)


def counted(weights: Iterable[tuple[str, Any]], total: int, tell: Tell | None) -> Iterator[tuple[str, Any]]:
    """Pass weights on, and report how many of all bytes have passed."""
    done = 0
    for name, tensor in weights:
        yield name, tensor
        done += tensor.numel() * tensor.element_size()
        if tell:
            tell(min(done, total), total)
