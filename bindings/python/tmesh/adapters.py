# SPDX-License-Identifier: MIT
"""LoRA adapters of an engine's graph, that a slot swaps between two runs.

    g = tmesh.graphs.of_model(model, rows=512, lora={"attn_q": 8, "attn_v": 8})      # nodes "lora" of rank 8

    slot = tmesh.Slot()                                          # one process publishes
    tmesh.adapters.publish(slot, {"blk.0.attn_q": (a, b, 2.0)}, g)      # W x + 2 * B (A x)
    tmesh.adapters.publish(slot, None, g)                        # the base alone again

    adapter = tmesh.adapters.Adapter(g, slot.token)              # any number run, each with the same weights
    step = graph.bind({**inputs, **adapter.inputs()}, outputs, in_place=g.in_place)
    adapter.apply(step)                                          # what is newest, from the next dispatch on
    step.dispatch()

What is published has the form of tmesh.lora.publish().
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
    """As llama.cpp writes adapters: NAME.weight.lora_a, .lora_b, and one alpha."""
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
    """From now on those who run the graph use this adapter: {name: (A [rank, in], B [out, rank], scale)} of arrays or
    Tensors, where scale may be left out (1); or a GGUF adapter that was loaded; None: the base alone. Names are those of the
    graph's lora nodes ("blk.0.attn_q"). InvalidError: it does not fit, and nobody sees it. The generation."""
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
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ProtocolError(71, "the slot's value is no adapter that tmesh.adapters or tmesh.lora published") from None


class Adapter:
    """What a slot has for a graph's lora nodes. An empty slot is the base alone. For one thread at a time.

    Matrices of the graph's own rank, of float32, are used where the publisher has them. Others are copied once for each
    generation, filled up with zeros; what the adapter does not change is zeros."""

    def __init__(self, g: Graph, token: str) -> None:
        if not g.lora:
            raise InvalidError(22, "the graph has no lora nodes: build it with lora=")
        self._lora = dict(g.lora)
        self._reader: SlotReader = Slot.open(token)
        self._zeros = {shape: _tmesh.zeros(shape, "float32") for shape in
                       {(1,)}.union(*({(rank, width), (out, rank)} for out, rank, width in self._lora.values()))}
        self._inputs: dict[str, _tmesh.Tensor] = {}
        #: Of the adapter that inputs() gave, or apply() bound, last; 0: none was published yet.
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
        """The newest adapter as inputs of the graph, to bind. InvalidError, ProtocolError: it is for another graph."""
        self.generation, self._inputs = self._take()
        return dict(self._inputs)

    def apply(self, binding: Binding) -> int:
        """The newest adapter, all of one generation, from the next dispatch() of the binding on; while there is no newer one
        this is a look at memory. After an error the binding has what it had. The generation."""
        generation, inputs = self._take()
        if generation != self.generation:
            binding.rebind({name: tensor for name, tensor in inputs.items() if self._inputs.get(name) is not tensor})
            self.generation, self._inputs = generation, inputs
        return generation

    def close(self) -> None:
        """Leave the slot; what is bound stays."""
        self._reader.close()

    def __repr__(self) -> str:
        return f"<tmesh.adapters.Adapter of {len(self._lora)} nodes, generation {self.generation}>"
