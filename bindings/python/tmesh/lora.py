# SPDX-License-Identifier: MIT
"""LoRA adapters that a slot swaps while a model serves.

    slot = tmesh.Slot()                                   # one process publishes
    tmesh.lora.publish(slot, "adapters/mine", net)        # a folder in PEFT's format; checked first
    tmesh.lora.publish(slot, None, net)                   # the base alone again

    served = tmesh.lora.Adapted(net, slot.token)          # many may serve, with the same base
    y = served(x)                                         # W x + scale * B (A x): one generation for all layers
    served.generation                                     # which one it was

Folders have adapter_config.json and adapter_model.safetensors, in the format of PEFT's LoRA:
https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from . import _tmesh
from .bundles import Bundle, bundle
from .errors import InvalidError, ProtocolError, ReleasedError, UnsupportedError
from .model import load_model
from .slots import Slot, SlotValue

__all__ = ["Adapted", "Adapter", "publish", "read"]

_CONFIG_BYTES = 1 << 20
_RANK_MAX = 1 << 16
_KIND = "tmesh.lora"
_NAME = re.compile(r"\^?[\w.]+", re.ASCII)
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight", re.DOTALL)
_TYPES = ("float16", "bfloat16", "float32", "float64")


class Adapter(NamedTuple):
    """An adapter: A [rank, in], B [out, rank] and the scale for each module of the base that it changes."""

    bundle: Bundle
    scales: dict[str, float]

    def check(self, base: torch.nn.Module | Mapping[str, tuple[int, int]]) -> None:
        """Check that the adapter fits the base, which may also be a dict of {name: (out, in)}. InvalidError: one of its
        modules is no Linear of the base, or has another size."""
        shapes = _shapes(base)
        for name in self.scales:
            if name not in shapes:
                raise InvalidError(22, f"the adapter changes {name!r}, which is no linear layer of the base")
            changes = self.bundle[f"{name}.B"].shape[0], self.bundle[f"{name}.A"].shape[1]
            if changes != tuple(shapes[name]):
                raise InvalidError(22, f"the adapter's {name!r} is for a weight of {list(changes)}; the base has "
                                       f"{list(shapes[name])}")


def _shapes(base: torch.nn.Module | Mapping[str, tuple[int, int]]) -> Mapping[str, Any]:
    if isinstance(base, torch.nn.Module):
        return {name: tuple(module.weight.shape) for name, module in _linears(base)}
    if isinstance(base, Mapping):
        return base
    raise TypeError(f"a base is a torch.nn.Module or a dict of names and shapes, not {type(base).__name__}")


def _linears(base: torch.nn.Module) -> list[tuple[str, torch.nn.Linear]]:
    return [(name, module) for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)]


def _number(config: Mapping[str, Any], name: str, value: object, whole: bool) -> Any:
    # JSON has integers that no double holds.
    right = (isinstance(value, int) and 0 < value <= _RANK_MAX if whole else
             isinstance(value, (int, float)) and abs(value) <= sys.float_info.max) and not isinstance(value, bool)
    if not right:
        raise ProtocolError(71, f"adapter_config.json: {name} is {value!r}, "
                                f"not {'an integer from 1 to 65536' if whole else 'a number'}")
    return value


class _Config:
    """The ranks and scales of adapter_config.json."""

    def __init__(self, text: bytes) -> None:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(71, f"adapter_config.json: {error}") from None
        if not isinstance(said, dict):
            raise ProtocolError(71, "adapter_config.json is not an object")
        if said.get("peft_type") != "LORA":
            raise UnsupportedError(95, f"adapter_config.json: peft_type is {said.get('peft_type')!r}, not 'LORA'")
        for name, plain in (("bias", "none"), ("use_dora", False), ("fan_in_fan_out", False), ("modules_to_save", None),
                            ("lora_bias", False), ("layer_replication", None), ("trainable_token_indices", None),
                            ("target_parameters", None), ("use_qalora", False), ("use_bdlora", None),
                            ("alora_invocation_tokens", None), ("arrow_config", None), ("kasa_config", None),
                            ("monteclora_config", None)):
            if said.get(name) not in (plain, None, [], {}):
                raise UnsupportedError(95, f"adapter_config.json: {name} is {said[name]!r}; adapters with it are not "
                                           f"taken, only with {plain!r}")
        self.rank = _number(said, "r", said.get("r"), True)
        self.alpha = _number(said, "lora_alpha", said.get("lora_alpha"), False)
        self.ranks = self._pattern(said, "rank_pattern", True)
        self.alphas = self._pattern(said, "alpha_pattern", False)
        self.rslora = said.get("use_rslora") or False
        if not isinstance(self.rslora, bool):
            raise ProtocolError(71, f"adapter_config.json: use_rslora is {self.rslora!r}, not true or false")

    @staticmethod
    def _pattern(said: dict[str, Any], name: str, whole: bool) -> dict[str, Any]:
        """Accept names of modules or their ends. Other regular expressions could run forever."""
        pattern = said.get(name) or {}
        if not isinstance(pattern, dict):
            raise ProtocolError(71, f"adapter_config.json: {name} is not an object")
        for key, value in pattern.items():
            if not _NAME.fullmatch(key):
                raise UnsupportedError(95, f"adapter_config.json: {name} has {key!r}: only names of modules are taken")
            _number(said, f"{name}[{key!r}]", value, whole)
        return pattern

    @staticmethod
    def _of(pattern: dict[str, Any], module: str, default: Any) -> Any:
        """Return the value of the first pattern that is the module's name or, without ^, its end behind a dot, as PEFT
        does."""
        for key, value in pattern.items():
            if module == key.removeprefix("^") or (key[0] != "^" and module.endswith(f".{key}")):
                return value
        return default

    def rank_of(self, module: str) -> int:
        return int(self._of(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        rank = self.rank_of(module)
        return float(self._of(self.alphas, module, self.alpha)) / (math.sqrt(rank) if self.rslora else rank)


def _config_of(folder: str) -> _Config:
    with open(os.path.join(folder, "adapter_config.json"), "rb") as file:
        text = file.read(_CONFIG_BYTES + 1)
    if len(text) > _CONFIG_BYTES:
        raise ProtocolError(71, "adapter_config.json is longer than 1 MiB")
    return _Config(text)


def _check_pair(module: str, pair: dict[str, _tmesh.Tensor], rank: int) -> None:
    for side, at in (("A", 0), ("B", 1)):
        if side not in pair:
            raise ProtocolError(71, f"the adapter has no lora_{side} for {module!r}")
        tensor = pair[side]
        if tensor.ndim != 2 or tensor.dtype not in _TYPES:
            raise ProtocolError(71, f"lora_{side} of {module!r} is {tensor.dtype}{list(tensor.shape)}, not a matrix of "
                                    "floating-point numbers")
        if tensor.shape[at] != rank:
            raise ProtocolError(71, f"lora_{side} of {module!r} is {list(tensor.shape)}, but its rank is {rank}")
    if pair["A"].dtype != pair["B"].dtype:
        raise ProtocolError(71, f"lora_A of {module!r} is {pair['A'].dtype}, lora_B {pair['B'].dtype}")


def read(folder: str | os.PathLike[str]) -> Adapter:
    """Read an adapter that PEFT has saved. Its tensors are read once for all processes and not copied. ProtocolError:
    it is malformed, or the tensors do not match the configuration. UnsupportedError: it is of another kind (DoRA,
    biases, other trained modules)."""
    folder = os.fspath(folder)
    config = _config_of(folder)
    pairs: dict[str, dict[str, _tmesh.Tensor]] = {}
    with load_model(os.path.join(folder, "adapter_model.safetensors")) as model:
        for name, tensor in model.items():
            found = _TENSOR.fullmatch(name)
            if not found:
                raise UnsupportedError(95, f"adapter_model.safetensors has {name!r}, which is no lora_A or lora_B of a "
                                           "linear layer")
            pairs.setdefault(found[1], {})[found[2]] = tensor
        if not pairs:
            raise ProtocolError(71, "adapter_model.safetensors has no tensors")
        for module, pair in pairs.items():
            _check_pair(module, pair, config.rank_of(module))
        return _adapter({module: (pair["A"], pair["B"]) for module, pair in pairs.items()},
                        {module: config.scale_of(module) for module in pairs})


def _adapter(pairs: dict[str, tuple[_tmesh.Tensor, _tmesh.Tensor]], scales: dict[str, float]) -> Adapter:
    tensors = {f"{module}.{side}": tensor for module, pair in pairs.items() for side, tensor in zip("AB", pair)}
    return Adapter(bundle(tensors, metadata=json.dumps({"kind": _KIND, "scales": scales})), scales)


def publish(slot: Slot, adapter: Adapter | str | os.PathLike[str] | None,
            base: torch.nn.Module | Mapping[str, tuple[int, int]]) -> int:
    """Publish an adapter for all processes that serve the slot, and return its generation. It is one from read(), a
    folder, or None for the base alone. It is first checked against the base; an adapter that does not fit is refused,
    and not published."""
    if adapter is None:
        adapter = _adapter({}, {})
    elif not isinstance(adapter, Adapter):
        adapter = read(adapter)
    adapter.check(base)
    return slot.publish(adapter.bundle)


_Changes = dict[str, tuple[torch.Tensor, torch.Tensor, float]]


def _changes(value: SlotValue, base: torch.nn.Module) -> _Changes:
    try:
        said = json.loads(value.metadata)
        if said["kind"] != _KIND:
            raise ValueError
        items = [(str(name), float(scale)) for name, scale in said["scales"].items()]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise ProtocolError(71, "the slot's value is no adapter that tmesh.lora.publish() published") from None
    # The publisher may have another base. Modules that this one lacks would be ignored silently.
    Adapter(value, dict(items)).check(base)
    tensors = value.state_dict(private=False)  # they are only read
    return {name: (tensors[f"{name}.A"], tensors[f"{name}.B"], scale) for name, scale in items}


def _nothing(*_: object) -> None:
    """Replace a hook in a copied or pickled base: the adapter is only for calls of the original."""


def _no_hook() -> Any:
    return _nothing


class _Hook:
    """A hook on a linear layer of the base."""

    def __init__(self, call: threading.local, name: str) -> None:
        self._call, self._name = call, name

    def __call__(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
        change = getattr(self._call, "changes", {}).get(self._name)
        if change is None:
            return output
        a, b, scale = change
        linear = torch.nn.functional.linear
        return output + (scale * linear(linear(inputs[0].to(a.dtype), a), b)).to(output.dtype)

    def __reduce__(self) -> Any:
        return _no_hook, ()


class Adapted(torch.nn.Module):
    """A base in CPU memory, with the adapter of a slot. Each call takes the newest generation and uses it in all
    layers. The base itself is not changed: it gets hooks, which close() removes, and which do nothing in other calls of
    it. Calls may come from several threads. A base that runs its layers in other threads than the caller's has no
    adapter there. NotFoundError: no adapter was published yet. InvalidError: the adapter does not fit this base.
    ProtocolError: the value is no adapter."""

    def __init__(self, base: torch.nn.Module, token: str) -> None:
        super().__init__()
        if any(tensor.device.type != "cpu" for tensor in base.parameters()):
            raise UnsupportedError(95, "adapters are used where slots are, in CPU memory; the base is elsewhere")
        self._reader = Slot.open(token)
        self._lock = threading.Lock()
        self._newest: tuple[int, _Changes] = 0, {}
        self._running, self._closed = 0, False
        self._call = threading.local()
        self.base = base
        self._hooks = [module.register_forward_hook(_Hook(self._call, name)) for name, module in _linears(base)]

    def __reduce__(self) -> Any:
        raise TypeError("an Adapted cannot be pickled or copied: make one there, of the base and the slot's token")

    def _take(self) -> tuple[int, _Changes]:
        with self._lock:
            if self._closed:
                raise ReleasedError(9, "this adapted model was closed")
            value = self._reader.read()
            if value.generation != self._newest[0]:
                self._newest = value.generation, _changes(value, self.base)
            self._running += 1
            return self._newest

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._call.generation, self._call.changes = self._take()
        try:
            return self.base(*args, **kwargs)
        finally:
            del self._call.changes
            with self._lock:
                self._running -= 1
                self._leave()

    @property
    def generation(self) -> int:
        """The generation of this thread's last call; 0: there was none."""
        return getattr(self._call, "generation", 0)

    def close(self) -> None:
        """Leave the slot and remove the hooks when the running calls have ended. Later calls raise ReleasedError."""
        with self._lock:
            self._closed = True
            self._leave()

    def _leave(self) -> None:
        # Wait for running calls: each has its adapter in all layers or in none.
        if self._closed and not self._running:
            for hook in self._hooks:
                hook.remove()
            self._newest = 0, {}
            self._reader.close()
