# SPDX-License-Identifier: MIT
"""LoRA adapters of an engine's graph, which a slot swaps between two runs.

    g = tmesh.graphs.of_model(model, rows=512, lora={"attn_q": 8, "attn_v": 8})      # nodes "lora" of rank 8

    slot = tmesh.Slot()                                          # one process publishes
    tmesh.adapters.publish(slot, {"blk.0.attn_q": (a, b, 2.0)}, g)      # W x + 2 * B (A x)
    tmesh.adapters.publish(slot, None, g)                        # the base alone again

    adapter = tmesh.adapters.Adapter(g, slot.token)              # many may run, with the same weights
    step = graph.bind({**inputs, **adapter.inputs()}, outputs, in_place=g.in_place)
    adapter.apply(step)                                          # the newest one, from the next dispatch on
    step.dispatch()

tmesh.lora.publish() publishes values of the same form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _tmesh
from .bundles import bundle
from .errors import InvalidError, NotFoundError, ProtocolError
from .model import Model
from .slots import Slot, SlotReader, SlotValue

if TYPE_CHECKING:
    from .engine import Binding
    from .graphs import Graph

__all__ = ["Adapter", "publish"]

_KIND = "tmesh.lora"


def _fit(name: str, a: Any, b: Any, scale: Any, lora: Mapping[str, tuple[int, int, int]]) -> None:
    if name not in lora:
        raise InvalidError(22, f"the adapter changes {name!r}, and the graph has no lora node of it; it has "
                               f"{', '.join(sorted(lora)[:4]) or 'none'}")
    out, rank, width = lora[name]
    shapes = tuple(a.shape), tuple(b.shape)
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][0] != shapes[1][1] or shapes[0][1] != width or shapes[1][0] != out:
        raise InvalidError(22, f"the adapter's {name!r} is A{list(shapes[0])}, B{list(shapes[1])}; the graph takes A[R, {width}], "
                               f"B[{out}, R]")
    if shapes[0][0] > rank:
        raise InvalidError(22, f"the adapter's {name!r} has rank {shapes[0][0]}, and the graph was built for {rank} at most")
    if str(a.dtype) not in ("float16", "float32") or str(b.dtype) != str(a.dtype):
        raise InvalidError(22, f"the adapter's {name!r} is {a.dtype} and {b.dtype}: float32 or float16 is taken, of both")
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise InvalidError(22, f"the adapter's {name!r} has the scale {scale!r}, which is no number")


def _of_file(model: Model) -> dict[str, tuple[Any, Any, float]]:
    """Read an adapter in llama.cpp's form: NAME.weight.lora_a, .lora_b, and one alpha."""
    alpha = model.metadata.get("adapter.lora.alpha")
    if model.metadata.get("adapter.type") != "lora" or not isinstance(alpha, (int, float)) or isinstance(alpha, bool):
        raise ProtocolError(71, "the model is no LoRA adapter: it does not say adapter.type and adapter.lora.alpha")
    out = {}
    for name in model:
        module, end, side = name.rpartition(".weight.lora_")
        if not end or side not in ("a", "b") or f"{module}{end}a" not in model or f"{module}{end}b" not in model:
            raise ProtocolError(71, f"the adapter has {name!r}, which is no lora_a or lora_b of a pair")
        a, b = model[f"{module}{end}a"], model[f"{module}{end}b"]
        out[module] = a, b, float(alpha) / (a.shape[0] or 1)
    return out


def publish(slot: Slot, adapter: Mapping[str, tuple[Any, ...]] | Model | None, g: Graph) -> int:
    """Publish an adapter for all processes that run the graph, and return its generation. The adapter is {name: (A
    [rank, in], B [out, rank], scale)} of arrays or Tensors, or a GGUF adapter that was loaded. scale defaults to 1.
    None means the base alone. Names are those of the graph's lora nodes ("blk.0.attn_q"). InvalidError: it does not
    fit, and is not published."""
    pairs = _of_file(adapter) if isinstance(adapter, Model) else dict(adapter or {})
    tensors, scales = {}, {}
    for name, (a, b, *rest) in pairs.items():
        scales[name] = rest[0] if rest else 1.0
        _fit(name, a, b, scales[name], g.lora)
        if a.shape[0]:
            tensors[f"{name}.A"], tensors[f"{name}.B"] = a, b
        else:
            del scales[name]
    return slot.publish(bundle(tensors, metadata=json.dumps({"kind": _KIND, "scales": scales})))


def _pairs(value: SlotValue) -> dict[str, tuple[_tmesh.Tensor, _tmesh.Tensor, float]]:
    try:
        said = json.loads(value.metadata)
        if said["kind"] != _KIND:
            raise ValueError
        return {str(name): (value[f"{name}.A"], value[f"{name}.B"], float(scale)) for name, scale in said["scales"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise ProtocolError(71, "the slot's value is no adapter that tmesh.adapters or tmesh.lora published") from None


class Adapter:
    """The matrices of a slot for a graph's lora nodes. An empty slot means the base alone. For one thread at a time.

    Matrices of float32 with the graph's own rank are used in the publisher's memory. Others are copied once for each
    generation and padded with zeros. Nodes that the adapter does not change get zeros."""

    def __init__(self, g: Graph, token: str) -> None:
        if not g.lora:
            raise InvalidError(22, "the graph has no lora nodes: build it with lora=")
        self._lora = dict(g.lora)
        self._reader: SlotReader = Slot.open(token)
        self._zeros = {shape: _tmesh.zeros(shape, "float32") for shape in
                       {(1,)}.union(*({(rank, width), (out, rank)} for out, rank, width in self._lora.values()))}
        self._inputs: dict[str, _tmesh.Tensor] = {}
        #: The generation of the adapter that inputs() returned or apply() bound last; 0: none was published yet.
        self.generation = -1

    def _filled(self, tensor: _tmesh.Tensor, shape: tuple[int, int]) -> _tmesh.Tensor:
        if tuple(tensor.shape) == shape and str(tensor.dtype) == "float32" and tensor.numpy().ctypes.data % 32 == 0:
            return tensor
        filled = _tmesh.zeros(shape, "float32")
        filled.numpy()[:tensor.shape[0], :tensor.shape[1]] = tensor.numpy()
        return filled

    def _take(self) -> tuple[int, dict[str, _tmesh.Tensor]]:
        try:
            value = self._reader.read()
        except NotFoundError:
            generation, pairs = 0, {}  # the base alone
        else:
            generation = value.generation
            if generation == self.generation:
                return generation, self._inputs
            pairs = _pairs(value)
        for name, (a, b, scale) in pairs.items():
            _fit(name, a, b, scale, self._lora)
        inputs: dict[str, _tmesh.Tensor] = {}
        for name, (out, rank, width) in self._lora.items():
            if name in pairs:
                a, b, scale = pairs[name]
                factor = _tmesh.zeros((1,), "float32")
                factor.numpy()[0] = scale
                made = self._filled(a, (rank, width)), self._filled(b, (out, rank)), factor
            else:
                made = self._zeros[rank, width], self._zeros[out, rank], self._zeros[1,]
            inputs.update(zip((f"{name}.A", f"{name}.B", f"{name}.scale"), made))
        return generation, inputs

    def inputs(self) -> dict[str, _tmesh.Tensor]:
        """Return the newest adapter as inputs of the graph, to bind. InvalidError, ProtocolError: it is for another
        graph."""
        self.generation, self._inputs = self._take()
        return dict(self._inputs)

    def apply(self, binding: Binding) -> int:
        """Bind the newest adapter, all of one generation, from the binding's next dispatch() on, and return its
        generation. If there is no newer one, this only reads memory. After an error the binding keeps its inputs."""
        generation, inputs = self._take()
        if generation != self.generation:
            binding.rebind({name: tensor for name, tensor in inputs.items() if self._inputs.get(name) is not tensor})
            self.generation, self._inputs = generation, inputs
        return generation

    def close(self) -> None:
        """Leave the slot. Bindings keep their inputs."""
        self._reader.close()

    def __repr__(self) -> str:
        return f"<tmesh.adapters.Adapter of {len(self._lora)} nodes, generation {self.generation}>"
