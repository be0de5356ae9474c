# SPDX-License-Identifier: MIT
"""Graphs for engines, node by node or from a GGUF model of a llama-like architecture.

    g = tmesh.graphs.Graph("g")
    x, w = g.input("x", "float32", (1, 64)), g.weight("w", "float16", (32, 64))
    g.output("y", g.add("matmul", x, w))
    g.save("g.graph")

    model = tmesh.load_model("model.gguf")
    g = tmesh.graphs.of_model(model, rows=512)              # a step of one token, with a cache of 512 rows
    g.save("step.graph")
    step = tmesh.engine.Context("ggml").graph("step.graph", weights={name: model[name] for name in g.weights})

The engine that opens the file checks it. docs/reference/engines.md has the operators, and include/tmesh/graph.h their
operands.
"""

from __future__ import annotations

import errno
import hashlib
import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _tmesh, errors

if TYPE_CHECKING:
    from .engine import Context
    from .elements import Entry
    from .model import Description, Model

__all__ = ["Graph", "Pages", "check", "of_model", "of_pages"]


class Graph:
    """A computation for an engine. Each call that makes a node returns the node's name."""

    def __init__(self, name: str) -> None:
        self._lines = [f"graph {name}"]
        self._nodes: dict[str, tuple[str, tuple[str, ...], str]] = {}
        self.name = name
        self._made = 0
        self.inputs: list[str] = []
        self.weights: list[str] = []
        self.outputs: dict[str, str] = {}
        #: For each output in an input's memory, that input: pass it as in_place to Graph.bind() of tmesh.engine.
        self.in_place: dict[str, str] = {}
        #: The lora nodes, whose matrices are the inputs NAME.A, NAME.B and NAME.scale: (out, rank, in).
        self.lora: dict[str, tuple[int, int, int]] = {}

    def input(self, name: str, dtype: str, shape: Sequence[int], *, cache: str | None = None) -> str:
        """Add an input, which each run gets anew. cache: "reuse" (later runs read it again) or "stream", a hint."""
        self.inputs.append(name)
        return self._node(name, "input", (), {"cache": cache}, dtype, shape)

    def weight(self, name: str, dtype: str, shape: Sequence[int], *, quant: str | None = None) -> str:
        """Add a weight, which is bound when the graph is opened. quant: blocks of that type of GGUF, of dtype
        "float32"."""
        self.weights.append(name)
        return self._node(name, "weight", (), {"quant": quant}, dtype, shape)

    def add(self, op: str, *inputs: str, name: str | None = None, dtype: str | None = None,
            shape: Sequence[int] | None = None, **attributes: Any) -> str:
        """Add a node with an operator. dtype and shape are inferred by default; "reshape" requires both. Attributes:
        eps, scale, base, dims, halves, axis, axes, cache."""
        self._made += 1
        return self._node(name or f"{op}.{self._made}", op, inputs, attributes, dtype, shape)

    def adapted(self, x: str, weight: str, shape: tuple[int, int], name: str, rank: int) -> str:
        """Add a node "lora": a matmul of x and the weight of that shape (out, in), and an adapter of at most that rank. The
        inputs NAME.A, NAME.B and NAME.scale take the adapter, which tmesh.adapters binds."""
        out, width = shape
        a, b = self.input(f"{name}.A", "float32", (rank, width)), self.input(f"{name}.B", "float32", (out, rank))
        self.lora[name] = out, rank, width
        return self.add("lora", x, weight, a, b, self.input(f"{name}.scale", "float32", (1,)))

    def output(self, name: str, node: str, *, in_place: str | None = None) -> None:
        """Make the value of a node an output. in_place: the input whose memory it uses, for "set_rows"."""
        self.outputs[name] = node
        if in_place is not None:
            self.in_place[name] = in_place

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes with an operator, in the order in which they were added."""
        return tuple(name for name, (op, _, _) in self._nodes.items() if op not in ("input", "weight"))

    def text(self) -> str:
        """The graph as text."""
        return "\n".join([*self._lines, *(f"output {name} = {node}" for name, node in self.outputs.items()), ""])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the text to a file, for an engine to open."""
        Path(path).write_text(self.text(), encoding="ascii")

    def _save_once(self, folder: Path) -> Path:
        """Save it in a folder, whole or not at all. The name is a hash of the text: others use the same file, and an engine
        that is restarted reads it again."""
        path = folder / f"{hashlib.sha256(self.text().encode()).hexdigest()[:24]}.graph"
        if not path.exists():
            new = path.with_suffix(f".{os.getpid()}-{id(self)}")
            try:
                self.save(new)
                new.replace(path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
        return path

    def _node(self, name: str, op: str, inputs: Sequence[str], attributes: dict[str, Any], dtype: str | None,
              shape: Sequence[int] | None) -> str:
        if (dtype is None) != (shape is None):
            raise errors.InvalidError(errno.EINVAL, f"node {name!r}: dtype and shape are given together")
        words = [f"{name} = {op}" + (f"({', '.join(inputs)})" if inputs else "")]
        for key, value in attributes.items():
            if isinstance(value, bool):
                value = str(value).lower()
            elif isinstance(value, (list, tuple)):
                value = ",".join(map(str, value))
            if value is not None:
                words.append(f"{key}={value}")
        if shape is not None:
            words.append(f": {dtype}[{','.join(str(int(n)) for n in shape)}]")
        line = " ".join(words)
        if set("\r\n#") & set(line):
            raise errors.InvalidError(errno.EINVAL, f"node {name!r}: neither line ends nor \"#\" in a node")
        self._lines.append(line)
        self._nodes[name] = op, tuple(inputs), line
        return name

    def __repr__(self) -> str:
        return f"<tmesh.graphs.Graph of {', '.join(self.inputs)} to {', '.join(self.outputs)}>"


# Architectures of GGUF that compute like llama. The value says whether RoPE rotates halves of a row, or neighbours.
_HALVES = {"llama": False, "qwen2": True, "qwen3": True}
_LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Pages:
    """The layout of keys and values in a pool of pages (tmesh.PagePool), and the number of sequences in a run.

    For each layer a page has the keys of its tokens, and then their values. For a graph of of_pages(), the methods
    rows() and tables() compute the inputs from the pages of sequences."""

    def __init__(self, info: Mapping[str, int], sequences: int, blocks: int) -> None:
        self.page_bytes, self.page_tokens, self.max_pages = info["page_bytes"], info["page_tokens"], info["max_pages"]
        self.sequences, self.blocks = sequences, blocks
        self.layers = self.parts = 0

    def fit(self, layers: int, width: int, item: int) -> None:
        """Compute the layout for a pool. InvalidError: its pages are too small for that many layers, or rows do not
        divide them."""
        part = self.page_tokens * width * item
        if self.page_bytes % part or self.page_bytes // part < 2 * layers:
            raise errors.InvalidError(errno.EINVAL, f"pages of {self.page_bytes} bytes do not fit: {2 * layers} parts of {part} "
                                      f"bytes ({self.page_tokens} tokens) go into a page, and whole ones only; page_pool() of "
                                      f"tmesh.generate makes pages of {self.least(layers, width, item, self.page_tokens)} bytes")
        self.layers, self.parts = layers, self.page_bytes // part

    @staticmethod
    def least(layers: int, width: int, item: int, page_tokens: int) -> int:
        """Return page_bytes of a pool for such a model: a multiple of the machine's pages, in whole parts."""
        part = page_tokens * width * item
        step = math.lcm(part, mmap.PAGESIZE)
        return -(-2 * layers * part // step) * step

    def names(self, kind: str) -> list[str]:
        """Return the names of inputs "row" or "table", in the order of the parts of a page."""
        return [f"{kind}_{side}.{layer}" for layer in range(self.layers) for side in "kv"]

    def rows(self, slots: Any) -> Any:
        """Convert slots (int64 [tokens], of Sequence.slot_mapping()) to int64 [2 * layers, tokens], a row for each
        name."""
        import numpy

        slots = numpy.asarray(slots, "int64")
        page, place = numpy.divmod(slots, self.page_tokens)
        part = numpy.arange(2 * self.layers)[:, None]
        return (page * self.parts + part) * self.page_tokens + place

    def tables(self, tables: Any) -> Any:
        """Convert block tables (int32 [sequences, blocks], of tmesh.Pages.tables()) to int32 [2 * layers, sequences,
        blocks]."""
        import numpy

        part = numpy.arange(2 * self.layers, dtype="int32")[:, None, None]
        return numpy.asarray(tables, "int32") * numpy.int32(self.parts) + part


class _Decoder:
    """One graph of one model, while it is built."""

    def __init__(self, model: Model | Description, tokens: int, rows: int, cache: str, lora: Mapping[str, int],
                 pages: Pages | None = None) -> None:
        self.lora, self.pages, self.present = lora, pages, ""
        self.model, self.tokens, self.rows, self.cache = model, tokens, rows, cache
        self.entries, self.values = model.entries, model.metadata
        self.architecture = self.values.get("general.architecture")
        if self.architecture not in _HALVES:
            raise self.unsupported(f"the architecture {self.architecture!r} is none of {', '.join(_HALVES)}, which graphs can be built "
                                   "for")
        self.graph = Graph(str(self.architecture))
        self.width = self.whole("embedding_length")
        self.heads = self.whole("attention.head_count")
        self.groups = self.whole("attention.head_count_kv", self.heads)
        self.head = self.whole("attention.key_length", self.width // self.heads)
        self.eps = self.number("attention.layer_norm_rms_epsilon")
        self.refuse()

    def unsupported(self, why: str) -> errors.UnsupportedError:
        return errors.UnsupportedError(errno.EOPNOTSUPP, f"{self.model.path}: {why}")

    def value(self, key: str, otherwise: Any = None) -> Any:
        found = self.values.get(f"{self.architecture}.{key}", otherwise)
        if found is None or isinstance(found, (list, dict)):
            raise self.unsupported(f"the model does not say {self.architecture}.{key}, or not as one number")
        return found

    def number(self, key: str, otherwise: float | None = None) -> float:
        found = self.value(key, otherwise)
        if isinstance(found, (str, bool)) or not math.isfinite(found):
            raise self.unsupported(f"the model says that {self.architecture}.{key} is {found!r}")
        return float(found)

    def whole(self, key: str, otherwise: int | None = None, least: int = 1) -> int:
        found = self.value(key, otherwise)
        if int(self.number(key, otherwise)) != found or not least <= found < 1 << 31:
            raise self.unsupported(f"the model says that {self.architecture}.{key} is {found!r}")
        return int(found)

    def refuse(self) -> None:
        """Refuse a model with a part that would be computed wrongly."""
        window = self.whole("attention.sliding_window", 0, 0)
        reasons = {
            "it has experts": self.whole("expert_count", 0, 0) > 0,
            "its positions are scaled (rope.scaling)": self.value("rope.scaling.type", "none") not in ("none", ""),
            f"its window of {window} rows is shorter than the cache": 0 < window < self.rows,
            "its values are of another width than its keys": self.value("attention.value_length", self.head) != self.head,
        }
        for reason, true in reasons.items():
            if true:
                raise self.unsupported(f"no graph can be built for this model: {reason}")

    def weight(self, name: str) -> str:
        if name not in self.entries:
            raise errors.NotFoundError(errno.ENOENT, f"{self.model.path}: the model has no tensor {name!r}")
        if name not in self.graph.weights:
            entry = self.entries[name]
            quant = None if entry.type in _DTYPES else entry.type
            if quant is not None and quant not in (known := _tmesh.engine_quants()):
                raise self.unsupported(f"the tensor {name!r} has the type {quant}, and no graph has weights of it; they have "
                                       f"{', '.join([*_DTYPES, *known])}")
            self.graph.weight(name, _DTYPES.get(entry.type, "float32"), entry.shape, quant=quant)
        return name

    def linear(self, x: str, name: str) -> str:
        weight, part = self.weight(f"{name}.weight"), name.rpartition(".")[2]
        if part in self.lora:
            out, width = self.entries[weight].shape
            y = self.graph.adapted(x, weight, (out, width), name, self.lora[part])
        else:
            y = self.graph.add("matmul", x, weight)
        return self.graph.add("add", y, self.weight(f"{name}.bias")) if f"{name}.bias" in self.entries else y

    def norm(self, x: str, name: str) -> str:
        return self.graph.add("rms_norm", x, self.weight(f"{name}.weight"), eps=self.eps)

    def turned(self, x: str, heads: int, norm: str) -> str:
        g = self.graph
        x = g.add("reshape", x, dtype="float32", shape=(self.tokens, heads, self.head))
        if f"{norm}.weight" in self.entries:
            x = self.norm(x, norm)
        factors = [self.weight("rope_freqs.weight")] if "rope_freqs.weight" in self.entries else []
        return g.add("rope", x, "position", *factors, base=self.number("rope.freq_base", 10000.0),
                     dims=self.whole("rope.dimension_count", self.head), halves=_HALVES[str(self.architecture)])

    def attention(self, x: str, layer: int) -> str:
        g, b, width = self.graph, f"blk.{layer}.", self.groups * self.head
        h = self.norm(x, b + "attn_norm")
        q = self.turned(self.linear(h, b + "attn_q"), self.heads, b + "attn_q_norm")
        k = self.turned(self.linear(h, b + "attn_k"), self.groups, b + "attn_k_norm")
        if self.pages:
            y = self.paged(q, g.add("reshape", k, dtype="float32", shape=(self.tokens, width)),
                           self.linear(h, b + "attn_v"), layer)
            y = g.add("reshape", y, dtype="float32", shape=(self.tokens, self.heads * self.head))
            return g.add("add", x, self.linear(y, b + "attn_output"))
        new = {"k": g.add("reshape", k, dtype="float32", shape=(self.tokens, width)), "v": self.linear(h, b + "attn_v")}
        seen = []
        for kind, value in new.items():
            past = g.input(f"past_{kind}.{layer}", self.cache, (self.rows, width), cache="reuse")
            present = g.add("set_rows", past, value, "row", name=f"present_{kind}.{layer}")
            g.output(present, present, in_place=past)
            seen.append(g.add("reshape", present, dtype=self.cache, shape=(self.rows, self.groups, self.head)))
        y = g.add("attention", q, *seen, "position")
        y = g.add("reshape", y, dtype="float32", shape=(self.tokens, self.heads * self.head))
        return g.add("add", x, self.linear(y, b + "attn_output"))

    def paged(self, q: str, k: str, v: str, layer: int) -> str:
        g, p, tables = self.graph, self.pages, []
        assert p is not None
        for kind, value in (("k", k), ("v", v)):
            row = g.input(f"row_{kind}.{layer}", "int64", (self.tokens,))
            self.present = g.add("set_rows", self.present, value, row, name=f"present_{kind}.{layer}")
            tables.append(g.input(f"table_{kind}.{layer}", "int32", (p.sequences, p.blocks)))
        blocks = g.add("reshape", self.present, dtype=self.cache,
                       shape=(p.max_pages * p.parts, p.page_tokens, self.groups, self.head))
        return g.add("attention", q, blocks, blocks, "position", *tables)

    def build(self) -> Graph:
        g = self.graph
        if self.pages:
            p = self.pages
            p.fit(self.whole("block_count"), self.groups * self.head, 2 if self.cache == "float16" else 4)
            self.present = g.input("pages", self.cache, (p.max_pages * p.parts * p.page_tokens, self.groups * self.head),
                                   cache="reuse")
        for name, dtype in (("token", "int32"), ("position", "int32"), *((("row", "int64"),) if not self.pages else ())):
            g.input(name, dtype, (self.tokens,))
        x = g.add("get_rows", self.weight("token_embd.weight"), "token")
        for layer in range(self.whole("block_count")):
            b = f"blk.{layer}."
            x = self.attention(x, layer)
            f = self.norm(x, b + "ffn_norm")
            gate = g.add("silu", self.linear(f, b + "ffn_gate"))
            x = g.add("add", x, self.linear(g.add("mul", gate, self.linear(f, b + "ffn_up")), b + "ffn_down"))
        x = self.norm(x, "output_norm")
        output = "output.weight" if "output.weight" in self.entries else "token_embd.weight"
        if self.pages:
            g.output("pages", self.present, in_place="pages")
        g.output("logits", g.add("matmul", x, self.weight(output)))
        return g


def _widths(model: Model | Description, cache: str) -> tuple[int, int, int]:
    """Return the layers, the elements of a row and the bytes of an element, of keys or values."""
    decoder = _Decoder(model, 1, 1, cache, {})
    return decoder.whole("block_count"), decoder.groups * decoder.head, 2 if cache == "float16" else 4


def _check_lora(lora: Mapping[str, int] | None) -> None:
    unknown = set(lora or {}) - set(_LINEARS)
    if unknown or any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 1 for rank in (lora or {}).values()):
        raise errors.InvalidError(errno.EINVAL, f"lora is a dict of ranks, at least 1, by {', '.join(_LINEARS)}")


def check(model: Model | Description, *, rows: int = 1, context: Context | None = None,
          folder: str | os.PathLike[str] | None = None) -> None:
    """Refuse a model that cannot run before it is loaded, by the header of its file alone (tmesh.describe_model()).
    This finds errors of of_model() and of the engine. context: an engine, whose own table of types is checked too. A
    served one needs folder, one of its folders of models. UnsupportedError: the message names the file, and the tensor
    and its type."""
    g = of_model(model, rows=rows)
    try:
        _tmesh.engine_graph_check(g.text())
    except (errors.InvalidError, errors.ProtocolError) as error:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, f"{model.path}: {error}") from None
    first = {entry.type: entry for entry in map(model.entries.__getitem__, reversed(g.weights)) if entry.type not in _DTYPES}
    for entry in first.values() if context else ():
        assert context is not None
        _probe(context, Path(folder or tempfile.gettempdir()), entry, model.path)


def _probe(context: Context, folder: Path, entry: Entry, path: str) -> None:
    """Make one row of zeros of the tensor's type, so that the engine compares the type with its own ggml."""
    rows = math.prod(entry.shape[:-1])
    g = Graph("probe")
    x, w = g.input("x", "float32", (1, entry.shape[-1])), g.weight(entry.name, "float32", (1, entry.shape[-1]), quant=entry.type)
    g.output("y", g.add("matmul", x, w))
    file, name = tempfile.mkstemp(".graph", dir=folder)
    try:
        os.close(file)
        g.save(name)
        context.graph(name, weights={entry.name: _tmesh.put(bytes(entry.nbytes // rows), seal=True)})
    except errors.UnsupportedError as error:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, f"{path}: {error}") from None
    finally:
        os.unlink(name)


def of_model(model: Model | Description, *, rows: int, tokens: int = 1, cache: str = "float16",
             lora: Mapping[str, int] | None = None) -> Graph:
    """Make a graph of a GGUF model of the architecture llama, qwen2 or qwen3: a run of a number of tokens that returns
    their logits.

    Inputs: token int32[tokens], position int32[tokens], row int64[tokens] (the place in the cache of each token's keys
    and values), past_k.N and past_v.N [rows, ...]. Outputs: logits float32[tokens, ...], present_k.N and present_v.N,
    each in its past's memory (in_place). A token attends to rows 0 to its position, so row is the position by default.
    lora: layers that tmesh.adapters may adapt, by the end of their names, and the highest rank: {"attn_q": 8}. They are
    attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down. UnsupportedError: the architecture, or a part of
    the model, would be computed wrongly."""
    if rows < 1 or tokens < 1 or cache not in ("float16", "float32"):
        raise errors.InvalidError(errno.EINVAL, 'rows and tokens are at least 1, cache is "float16" or "float32"')
    _check_lora(lora)
    return _Decoder(model, tokens, rows, cache, lora or {}).build()


def of_pages(model: Model | Description, pages: Pages, *, tokens: int = 1, cache: str = "float16",
             lora: Mapping[str, int] | None = None) -> Graph:
    """Like of_model(), with keys and values in pages: a run of a number of tokens for each of pages.sequences
    sequences.

    Inputs: token, position int32[sequences * tokens], one sequence behind the other. pages, the pool's memory. row_k.N,
    row_v.N and table_k.N, table_v.N of each layer, from pages.rows() and pages.tables(). Outputs: logits, and pages in
    its own memory (in_place). A token attends to the rows 0 to its position in its sequence's blocks."""
    if tokens < 1 or pages.sequences < 1 or pages.blocks < 1 or cache not in ("float16", "float32"):
        raise errors.InvalidError(errno.EINVAL, 'tokens, sequences and blocks are at least 1, cache is "float16" or "float32"')
    _check_lora(lora)
    return _Decoder(model, tokens * pages.sequences, pages.blocks * pages.page_tokens, cache, lora or {}, pages).build()
