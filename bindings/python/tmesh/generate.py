# SPDX-License-Identifier: MIT
"""Text generation from a GGUF model, by the engine "ggml".

    python -m tmesh.generate model.gguf --prompt "Once upon a time"

    model = tmesh.load_model("model.gguf")                    # read once for all processes
    sequence = tmesh.generate.Sequence(model, rows=512)       # its own cache; the weights in place
    logits = sequence.run(tokens)                             # for the next token, a NumPy array
    tmesh.generate.choose(logits, temperature=.8)             # one of them

docs/reference/engines.md lists the architectures and tokenizers that were tried.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import operator
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence as _Listed
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _tmesh, adapters, engine, errors, graphs
from .model import describe_model, load_model
from .pages import PagePool
from .slots import Slot
from .tokens import of_model as _tokens_of

if TYPE_CHECKING:
    from .model import Model
    from .pages import Pages
    from .pages import Sequence as _Table

__all__ = ["Sequence", "choose", "main", "page_pool"]

_PART = 32  # tokens of a prompt in one run


def page_pool(model: Model, pages: int, *, page_tokens: int = 16, cache: str = "float16") -> PagePool:
    """Make a pool for keys and values of this model. Processes that share pages use a token of its tenant()."""
    if pages < 1:
        raise errors.InvalidError(errno.EINVAL, "a pool has at least one page")
    layers, width, item = graphs._widths(model, cache)
    return PagePool(page_bytes=graphs.Pages.least(layers, width, item, page_tokens), page_tokens=page_tokens, slab_pages=pages,
                    max_pages=pages)


class _Step(NamedTuple):
    """A bound run of a number of tokens, with its inputs and output. With pages it knows the rows of keys and values
    too."""

    binding: engine.Binding
    inputs: dict[str, Any]
    logits: _tmesh.Tensor
    adapter: adapters.Adapter | None
    shape: graphs.Pages | None


class Sequence:
    """Tokens, with their keys and values in a cache of a number of rows. For one thread at a time.

    model: a GGUF model of an architecture that tmesh.graphs.of_model() supports. context: the engine, by default "ggml"
    in this process. A served one needs folder, one of its folders of models, for the graphs. lora: layers and their highest
    rank, as in of_model(). slot: the token of the slot with their adapter (tmesh.adapters); each run uses the newest. pages: a
    part in a pool of one slab (page_pool()) for keys and values, which fork() then shares."""

    def __init__(self, model: Model, *, rows: int, context: engine.Context | None = None,
                 folder: str | os.PathLike[str] | None = None, cache: str = "float16",
                 lora: Mapping[str, int] | None = None, slot: str | None = None, pages: Pages | None = None) -> None:
        if (lora is None) != (slot is None):
            raise errors.InvalidError(errno.EINVAL, "lora and slot are given together")
        self.rows = rows
        #: The number of its tokens, which is the position of the next one.
        self.position = 0
        self._model, self._cache, self._lora, self._slot = model, cache, lora, slot
        self._context = context or engine.Context("ggml")
        if self._context.backend != "ggml":
            raise errors.InvalidError(errno.EINVAL, f"a Sequence runs on the engine \"ggml\", not on {self._context!r}")
        self._own = tempfile.TemporaryDirectory() if folder is None else None
        self._folder = Path(self._own.name if self._own else folder or ".")
        self._past: dict[str, _tmesh.Tensor] = {}
        self._steps: dict[int, _Step] = {}
        self._pages = pages
        self._table: _Table | None = None
        if pages:
            self._table = pages.sequence()
            # The slab exists once it has a page.
            self._table.append(1)
            self._table.truncate(0)
            self._context.lifeline(pages)
        self._step(1)

    def _step(self, count: int) -> _Step:
        if count in self._steps:
            return self._steps[count]
        shape = None
        if self._pages:
            info = self._pages.info()
            shape = graphs.Pages(info, 1, -(-self.rows // info["page_tokens"]))
            g = graphs.of_pages(self._model, shape, tokens=count, cache=self._cache, lora=self._lora)
        else:
            g = graphs.of_model(self._model, rows=self.rows, tokens=count, cache=self._cache, lora=self._lora)
        graph = self._context.graph(g._save_once(self._folder), weights={name: self._model[name] for name in g.weights})

        def place(operand: engine.Operand) -> _tmesh.Tensor:
            return _tmesh.zeros([int(dim or 0) for dim in operand.shape], operand.dtype)

        for name in g.inputs:
            if name.startswith("past_") and name not in self._past:
                self._past[name] = place(graph.inputs[name])
        logits = place(graph.outputs["logits"])
        if shape and self._pages:
            now = {name: place(graph.inputs[name]) for name in ("token", "position")}
            # An input must begin at a multiple of 16 bytes.
            now["rows"] = _tmesh.zeros((2 * shape.layers, count + count % 2), "int64")
            now["tables"] = _tmesh.zeros((2 * shape.layers, -(-shape.blocks // 4) * 4), "int32")
            width = graph.inputs["pages"].shape[1]
            self._past["pages"] = self._pages.slab().view(self._cache).reshape(-1, int(width or 0))
            given = {name: now[name] for name in ("token", "position")}
            given |= {name: now["rows"][i, :count] for i, name in enumerate(shape.names("row"))}
            given |= {name: now["tables"][i, :shape.blocks].reshape(1, shape.blocks) for i, name in enumerate(shape.names("table"))}
        else:
            now = {name: place(graph.inputs[name]) for name in ("token", "position", "row")}
            given = now
        adapter = adapters.Adapter(g, self._slot) if self._slot else None
        binding = graph.bind({**given, **self._past, **(adapter.inputs() if adapter else {})}, {"logits": logits, **{
            name: self._past[past] for name, past in g.in_place.items()}}, in_place=g.in_place)
        made = _Step(binding, {name: tensor.numpy() for name, tensor in now.items()}, logits, adapter, shape)
        self._steps[count] = made
        return made

    @property
    def logits(self) -> _tmesh.Tensor:
        """The output of a run of one token, [1, vocabulary], which other processes may read."""
        return self._step(1).logits

    def fork(self, *, context: engine.Context | None = None) -> Sequence:
        """Make another sequence of the same tokens, on this engine or another one with the same folder. Both share the
        pages, and each copies the last one before it writes there. InvalidError: keys and values are not in pages."""
        if self._table is None:
            raise errors.InvalidError(errno.EINVAL, "a sequence in rows of its own cannot be forked: give it pages")
        other = Sequence(self._model, rows=self.rows, context=context or self._context, folder=self._folder, cache=self._cache,
                         lora=self._lora, slot=self._slot, pages=self._pages)
        other._own = self._own
        other._table, other.position = self._table.fork(), self.position
        return other

    def release(self) -> None:
        """Free its keys and values, pages at once. It cannot run any more."""
        self._steps.clear()
        self._past.clear()
        self.rows = self.position = 0
        if self._table:
            self._table.release()
        self._table = None

    @property
    def block_table(self) -> list[int]:
        """Return the numbers of its pages; none if it has rows of its own."""
        return [] if self._table is None else self._table.block_table().tolist()

    def run(self, tokens: _Listed[int]) -> Any:
        """Append tokens. Return the logits for the token after the last one: a NumPy array, which the next run
        overwrites. LimitError: the cache has too few rows."""
        try:
            tokens = [operator.index(token) for token in tokens]
        except TypeError:
            raise TypeError("run() takes a list of tokens' numbers: tmesh.tokens makes them of a text") from None
        if not tokens:
            raise errors.InvalidError(errno.EINVAL, "run() takes at least one token")
        if self.position + len(tokens) > self.rows:
            raise errors.LimitError(errno.ENOSPC, f"{self.position + len(tokens)} tokens, and the cache has {self.rows} rows")
        for at in range(0, len(tokens), _PART):
            logits = self._run(tokens[at:at + _PART])
        return logits

    def __reduce__(self) -> Any:
        raise TypeError("a Sequence belongs to its process: send its tokens, and run() them there")

    def _run(self, tokens: _Listed[int]) -> Any:
        step = self._step(len(tokens))
        if step.adapter:
            step.adapter.apply(step.binding)
        step.inputs["token"][:] = tokens
        step.inputs["position"][:] = range(self.position, self.position + len(tokens))
        if step.shape and self._table and self._pages:
            # A lost run has already allocated its rows.
            self._table.append(self.position + len(tokens) - self._table.tokens)
            step.inputs["rows"][:, :len(tokens)] = step.shape.rows(self._table.slot_mapping(self.position, len(tokens)))
            tables, _ = self._pages.tables([self._table], step.shape.blocks)
            step.inputs["tables"][:, :step.shape.blocks] = step.shape.tables(tables)[:, 0]
        else:
            step.inputs["row"][:] = step.inputs["position"]
        step.binding.dispatch()
        self.position += len(tokens)
        return step.logits.numpy()[-1]


def choose(logits: Any, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, random: Any = None) -> int:
    """Choose a token: the likeliest with temperature 0, else a random one of the top_k likeliest (0: all) that together
    have the probability top_p. random: a numpy.random.Generator."""
    import numpy

    if not temperature >= 0 or top_k < 0 or not 0 < top_p <= 1:
        raise errors.InvalidError(errno.EINVAL, "temperature and top_k are at least 0, and top_p is more than 0 and at most 1")
    if not logits.size or numpy.isnan(logits).any():
        raise errors.InvalidError(errno.EINVAL, "there are no logits to choose from, or not all are numbers")
    if temperature == 0:
        return int(logits.argmax())
    scores = logits.astype("float64") / temperature
    order = numpy.argsort(-scores)[:top_k or None]
    chance = numpy.exp(scores[order] - scores[order[0]])
    chance /= chance.sum()
    if top_p < 1:
        chance = chance[:int((chance.cumsum() < top_p).sum()) + 1]
        chance /= chance.sum()
    return int(order[(random or numpy.random.default_rng()).choice(len(chance), p=chance)])


def _stream(tokenizer: Any, given: _Listed[int], numbers: Iterable[int]) -> Iterator[str]:
    """Return a function that makes text of tokens as they arrive. A character may be several tokens, and a word's
    leading space depends on the text before it."""
    stream = importlib.import_module("tokenizers.decoders").DecodeStream(skip_special_tokens=True)
    for number in given:
        stream.step(tokenizer, number)
    for number in numbers:
        text = stream.step(tokenizer, number)
        if text:
            yield text


def _tokens(sequence: Sequence, logits: Any, count: int, ends: set[int], options: dict[str, Any]) -> Iterator[int]:
    for _ in range(count):
        token = choose(logits, **options)
        if token in ends:
            return
        yield token
        if sequence.position == sequence.rows:
            return
        logits = sequence.run([token])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tmesh.generate", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="Continue a text by a GGUF model, on the CPU, by the engine \"ggml\".",
                                     epilog="Architectures: llama, qwen2, qwen3. Tokenizers: \"gpt2\", \"llama\" and \"gemma4\" of GGUF. Nothing is "
                                            "put around the\nprompt: a chat model's format has to be in it. Needs the packages "
                                            "numpy, tokenizers and libggml-python.\nThe weights are in memory once for all processes "
                                            "that load the file.")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--prompt", required=True, help="the text to continue; - reads the standard input")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="at most so many new ones (%(default)s)")
    parser.add_argument("--rows", type=int, metavar="N", help="of the cache: prompt and new tokens "
                        "(what the model was trained for, at most 2048)")
    parser.add_argument("--temperature", type=float, default=.8, metavar="T", help="0: the likeliest token (%(default)s)")
    parser.add_argument("--top-k", type=int, default=40, metavar="N", help="of the N likeliest alone; 0: of all (%(default)s)")
    parser.add_argument("--top-p", type=float, default=.95, metavar="P", help="and those that make up P (%(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", help="the same text each time")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) // 2), metavar="N", help="(%(default)s)")
    parser.add_argument("--adapter", metavar="FILE", help="a LoRA adapter as GGUF has it")
    parser.add_argument("--process", action="store_true", help="the engine in a process of its own (tmesh-engine)")
    parser.add_argument("--keep", action="store_true", help="the weights stay in memory afterwards (tmeshctl drop)")
    parser.add_argument("--quiet", action="store_true", help="no numbers on the standard error")
    return parser


def _ends(model: Model) -> set[int]:
    said = model.metadata
    return {value for name in ("eos", "eot", "eom") if isinstance(value := said.get(f"tokenizer.ggml.{name}_token_id"), int)}


def _publish(slot: Slot, path: str, model: Model) -> dict[str, int]:
    """Publish an adapter, and return its layers with their highest rank once the slot has it."""
    ranks: dict[str, int] = {}
    with load_model(path) as adapter:
        for name, entry in adapter.entries.items():
            module, end, _ = name.rpartition(".weight.lora_a")
            if end:
                part = module.rpartition(".")[2]
                ranks[part] = max(ranks.get(part, 1), entry.shape[0])
        adapters.publish(slot, adapter, graphs.of_model(model, rows=1, lora=ranks))
    return ranks


def _generate(said: argparse.Namespace) -> None:
    import numpy

    prompt = sys.stdin.read() if said.prompt == "-" else said.prompt
    began = time.perf_counter()
    header = describe_model(said.model)
    tokenizer = _tokens_of(header)
    rows = said.rows or min(int(header.metadata.get(f"{header.metadata.get('general.architecture')}.context_length", 2048)), 2048)
    with tempfile.TemporaryDirectory() as folder, Slot() as slot:
        context = (engine.serve("ggml", models=folder, threads=said.threads).connect() if said.process else
                   engine.Context("ggml", threads=said.threads))
        graphs.check(header, rows=rows, context=context, folder=folder)
        model = load_model(said.model, keep=said.keep)
        lora = _publish(slot, said.adapter, model) if said.adapter else None
        sequence = Sequence(model, rows=rows, context=context, folder=folder, lora=lora, slot=slot.token if lora else None)
        there = time.perf_counter()
        given = tokenizer.encode(prompt).ids
        logits = sequence.run(given)
        read = time.perf_counter()
        options = {"temperature": said.temperature, "top_k": said.top_k, "top_p": said.top_p,
                   "random": numpy.random.default_rng(said.seed)}
        sys.stdout.write(prompt)
        for text in _stream(tokenizer, given, _tokens(sequence, logits, said.tokens, _ends(model), options)):
            sys.stdout.write(text)
            sys.stdout.flush()
        print()
    ended, new = time.perf_counter(), sequence.position - len(given)
    if not said.quiet:
        print(f"{model.nbytes / 1e6:.1f} MB of weights, {model.report['bytes_read'] / 1e6:.1f} MB read from the file, ready after "
              f"{there - began:.2f} s; {len(given)} tokens of prompt in {read - there:.2f} s; {new} new in {ended - read:.2f} s, "
              f"{new / max(ended - read, 1e-9):.1f} a second", file=sys.stderr)


def main(words: _Listed[str] | None = None) -> int:
    """Run the command."""
    parser = _parser()
    said = parser.parse_args(words)
    for name in ("tokens", "rows", "threads"):
        if getattr(said, name) is not None and getattr(said, name) < 1:
            parser.error(f"--{name} is at least 1")
    if not said.temperature >= 0 or said.top_k < 0 or not 0 < said.top_p <= 1:
        parser.error("--temperature and --top-k are at least 0, --top-p above 0 and at most 1")
    try:
        _generate(said)
    except errors.Error as error:
        print(f"tmesh.generate: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
