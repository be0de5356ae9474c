# SPDX-License-Identifier: MIT
"""Continuous batching on the engine "ggml": decode steps of requests from many processes, as one run of a graph.

    model = tmesh.load_model("model.gguf")
    with tmesh.batching.Generator(model, lanes=8, max_tokens=512) as generator:
        request = generator.submit([1, 15043], 32)            # tokens in; requests join and leave between steps
        while not request.done:
            generator.step()
        request.tokens

    python -m tmesh.batching model.gguf --socket=/run/user/1000/generate       # serves it; from any process of this user:
    with tmesh.batching.Client("/run/user/1000/generate") as client:
        for token in client.generate([1, 15043], 32):
            ...

Keys and values are in pages of a tmesh.PagePool, and requests with a common beginning share its pages. Generators of
several processes share them too if they use one pool (page_pool()). This module handles tokens, not texts; tmesh.tokens
converts between them.
"""

from __future__ import annotations

import argparse
import collections
import errno
import hashlib
import json
import operator
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from . import engine, errors, graphs, listening
from ._tmesh import zeros
from .model import Model, describe_model, load_model
from .generate import page_pool
from .pages import PagePool, Pages, Sequence

__all__ = ["Client", "Generator", "Request", "Server", "page_pool"]

_LINE = 1 << 20
_WAITING = 256  # requests of one client that have not ended


class Request:
    """A request of Generator.submit(): its prompt, its options and its tokens so far."""

    def __init__(self, prompt: list[int], max_tokens: int, stop: frozenset[int], sample: Callable[[Any], int] | None,
                 client: object) -> None:
        self.prompt, self.max_tokens, self.stop, self.client = prompt, max_tokens, stop, client
        self._sample = sample
        self._sequence: Sequence | None = None
        self._pages = 0
        self._at = 0  # tokens whose keys and values are in the pages
        #: The tokens generated so far.
        self.tokens: list[int] = []
        #: "stop" (the last token is one of stop), "length" or "cancelled"; None: not done yet.
        self.done: str | None = None
        #: The prompt's tokens that were found in shared pages, and not computed.
        self.shared = 0

    def _next(self, position: int) -> int:
        return self.prompt[position] if position < len(self.prompt) else self.tokens[position - len(self.prompt)]

    def __repr__(self) -> str:
        return f"<tmesh.batching.Request, {len(self.tokens)} of {self.max_tokens} tokens, {self.done or 'not done'}>"


class _Run:
    """A graph for a number of sequences with a number of tokens each, bound once."""

    def __init__(self, context: engine.Context, folder: Path, model: Model, handle: Pages, memory: Any, cache: str, sequences: int,
                 tokens: int, blocks: int) -> None:
        import numpy

        self.shape = shape = graphs.Pages(handle.info(), sequences, blocks)
        g = graphs.of_pages(model, shape, tokens=tokens, cache=cache)
        graph = context.graph(g._save_once(folder), weights={name: model[name] for name in g.weights})
        self._served = context.pid is not None
        #: Runs that ended with the engine's process and were repeated by the next one.
        self.lost = 0
        many = sequences * tokens
        self._handle, self._many, self._page_tokens = handle, many, shape.page_tokens
        self._lanes = numpy.repeat(numpy.arange(sequences), tokens)
        self._seen: list[Sequence] = []  # the sequences whose pages are in _pages and in the tables
        token, position = zeros((many,), "int32"), zeros((many,), "int32")
        rows = zeros((2 * shape.layers, many + many % 2), "int64")
        tables = zeros((2 * shape.layers, -(-sequences * blocks // 4) * 4), "int32")
        logits = zeros([int(dim or 0) for dim in graph.outputs["logits"].shape], "float32")
        inputs = {"token": token, "position": position, "pages": memory,
                  **{name: rows[i, :many] for i, name in enumerate(shape.names("row"))},
                  **{name: tables[i, :sequences * blocks].reshape(sequences, blocks)
                     for i, name in enumerate(shape.names("table"))}}
        self._binding = graph.bind(inputs, {"logits": logits, "pages": memory}, in_place=g.in_place)
        self._token, self._position, self._rows, self._tables, self.logits = (
            each.numpy() for each in (token, position, rows, tables, logits))

    def __call__(self, token: list[int], position: list[int], sequences: list[Sequence]) -> None:
        """Run one step. The sequences have pages for these positions, and must keep their pages during the call."""
        self._token[:], self._position[:] = token, position
        if sequences != self._seen:
            shape = self.shape
            tables, _ = self._handle.tables(sequences, shape.blocks)
            self._tables[:, :tables.size] = shape.tables(tables).reshape(2 * shape.layers, -1)
            self._pages, self._seen = tables.astype("int64"), sequences
        block, place = divmod(self._position, self._page_tokens)
        self._rows[:, :self._many] = self.shape.rows(self._pages[self._lanes, block] * self._page_tokens + place)
        try:
            self._binding.dispatch()
        except errors.GoneError:
            if not self._served:
                raise
            # The repeated run writes the same rows, so it does not matter how far the first one came.
            self.lost += 1
            self._binding.dispatch()


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise errors.InvalidError(errno.EINVAL, f"{name} is a number from {least} to {most}, not {value!r}")
    return int(value)


class Generator:
    """Runs a GGUF model for up to `lanes` requests at once. Use it from one thread.

    max_tokens: the limit of one request, prompt included. pages: the limit of all its requests together; by default
    every lane has room for a request of max_tokens. A request waits until a lane and all pages that it may need are
    free, and then stays in its lane until it is done. Waiting requests are taken from their clients in turn.

    context: the engine "ggml", by default in this process. A served engine needs folder, one of its folders of models,
    for the graphs. If its process dies, the next one repeats the lost run. tenant: a token of a pool (page_pool()) that
    several generators share. Each finds the pages of prompts that another one has read by the same loaded model.
    page_tokens is then the pool's."""

    def __init__(self, model: Model, *, lanes: int = 8, max_tokens: int = 512, page_tokens: int = 16, pages: int | None = None,
                 cache: str = "float16", threads: int = 1, library: str | None = None, context: engine.Context | None = None,
                 folder: str | os.PathLike[str] | None = None, tenant: str | None = None) -> None:
        for name, value in (("lanes", lanes), ("max_tokens", max_tokens), ("page_tokens", page_tokens)):
            _whole(name, value, 1, 1 << 20)
        if context is not None and context.pid is not None and folder is None:
            raise errors.InvalidError(errno.EINVAL, "a served engine reads graphs in its own folders of models: folder is one of them")
        self._pool: PagePool | None = None
        joined = Pages.open(tenant) if tenant is not None else None
        if joined:
            page_tokens = joined.info()["page_tokens"]
        self._blocks = -(-max_tokens // page_tokens)
        count = lanes * self._blocks if pages is None else pages
        if count < self._blocks:
            raise errors.InvalidError(errno.EINVAL, f"a request of {max_tokens} tokens needs {self._blocks} pages, there are {count}")
        if joined is None:
            self._pool = page_pool(model, count + 1, page_tokens=page_tokens, cache=cache)
            joined = Pages.open(self._pool.tenant())
        self._handle = joined
        info = self._handle.info()
        if info["slab_pages"] < info["max_pages"] or info["max_pages"] <= count:
            raise errors.InvalidError(errno.EINVAL, f"the pool has {info['max_pages']} pages in slabs of {info['slab_pages']}: it is to "
                                      f"have one slab, and more than {count} pages")
        self._page_tokens, self._max_tokens, self._free_pages = page_tokens, max_tokens, count
        layers, width, item = graphs._widths(model, cache)
        graphs.Pages(info, 1, 1).fit(layers, width, item)
        self._idle = self._handle.sequence()  # lanes without a request write there
        self._idle.append(1)
        memory = self._handle.slab().view("float16" if item == 2 else "float32").reshape(-1, width)
        self._own = tempfile.TemporaryDirectory() if folder is None else None
        where = Path(self._own.name if self._own else folder or ".")
        context = context or engine.Context("ggml", threads=threads, library=library)
        context.lifeline(self._handle)
        self._decode = _Run(context, where, model, self._handle, memory, cache, lanes, 1, self._blocks)
        self._prompt = _Run(context, where, model, self._handle, memory, cache, 1, page_tokens, self._blocks)
        self._handle.trim()
        # The hash names the model and the form of the pages, so pages of other models are not found. All processes that
        # load the same file have the same regions.
        regions = sorted({model[name].id for name in model})
        said = hashlib.sha256(f"{regions} {cache} {layers} {width}".encode()).digest()
        self._root = self._handle.hash(memoryview(said).cast("i"))
        self._vocabulary = int(self._decode.logits.shape[1])
        self._lanes: list[Request | None] = [None] * lanes
        self._waiting: collections.OrderedDict[object, collections.deque[Request]] = collections.OrderedDict()
        self._turn = 0
        #: Runs, their tokens, and the number of requests in each step's run, added up.
        self.counts = {"steps": 0, "prompt_pages": 0, "tokens": 0, "together": 0}

    def submit(self, prompt: Iterable[int], max_tokens: int, *, stop: Iterable[int] = (), client: object = None,
               sample: Callable[[Any], int] | None = None) -> Request:
        """Submit a request for at most max_tokens tokens after the prompt. stop: tokens that end it. sample: a function
        that gets the logits, a NumPy array that is valid during the call, and returns a token; by default the likeliest
        is taken. client: any object; clients take turns. InvalidError: the model does not have a token, or the total
        exceeds max_tokens."""
        tokens = [_whole("a token of the prompt", token, 0, self._vocabulary - 1) for token in prompt]
        if not tokens:
            raise errors.InvalidError(errno.EINVAL, "a prompt has at least one token")
        _whole("max_tokens", max_tokens, 1, 1 << 20)
        if len(tokens) + max_tokens > self._max_tokens:
            raise errors.InvalidError(errno.EINVAL, f"{len(tokens)} tokens and {max_tokens} more are above the generator's "
                                      f"max_tokens, {self._max_tokens}")
        ends = frozenset(_whole("a token of stop", token, 0, self._vocabulary - 1) for token in stop)
        request = Request(tokens, max_tokens, ends, sample, client)
        self._waiting.setdefault(client, collections.deque()).append(request)
        return request

    def cancel(self, request: Request) -> None:
        """Remove a request at once and free its pages."""
        if request.done:
            return
        if request in self._lanes:
            self._leave(request, "cancelled")
            return
        queue = self._waiting.get(request.client)
        if queue is None or request not in queue:
            raise errors.NotFoundError(errno.ENOENT, "the request is not this generator's")
        queue.remove(request)
        if not queue:
            del self._waiting[request.client]
        request.done = "cancelled"

    @property
    def busy(self) -> bool:
        """Whether a request has not ended."""
        return bool(self._waiting) or any(self._lanes)

    @property
    def stuck(self) -> bool:
        """Whether no request runs, and all waiting requests wait for pages that others of the pool have."""
        return bool(self._waiting) and not any(self._lanes)

    def info(self) -> dict[str, int]:
        """Return counts: lanes, running, waiting, pages that its requests may still take, pages held, runs that were
        lost with the engine's process and repeated, and those of counts."""
        return {"lanes": len(self._lanes), "running": sum(lane is not None for lane in self._lanes),
                "waiting": sum(map(len, self._waiting.values())), "pages_free": self._free_pages,
                "pages_held": self._handle.info()["held"] - 1, "lost": self._decode.lost + self._prompt.lost, **self.counts}

    def _leave(self, request: Request, why: str) -> None:
        self._lanes[self._lanes.index(request)] = None
        assert request._sequence is not None
        request._sequence.release()
        request._sequence, request.done = None, why
        self._free_pages += request._pages
        self._handle.trim()

    def _hashes(self, request: Request) -> list[bytes]:
        """Return the hashes of the pages that the prompt fills. The last token is left out, since its logits are
        needed."""
        size, out = self._page_tokens, list[bytes]()
        for end in range(size, len(request.prompt), size):
            out.append(self._handle.hash(request.prompt[end - size:end], out[-1] if out else self._root))
        return out

    def _join(self) -> None:
        while self._waiting and None in self._lanes:
            client, queue = next(iter(self._waiting.items()))
            need = -(-(len(queue[0].prompt) + queue[0].max_tokens) // self._page_tokens)
            if need > self._free_pages:
                return  # no request overtakes another, so a large one gets its turn
            sequence = self._handle.find(self._hashes(queue[0]))
            found = sequence.tokens
            try:
                sequence.append(len(queue[0].prompt) + queue[0].max_tokens - found)
            except errors.LimitError:
                sequence.release()
                return  # others of the pool have them; the next step tries again
            finally:
                self._handle.trim()
            request = queue.popleft()
            del self._waiting[client]
            if queue:
                self._waiting[client] = queue  # behind the other clients
            request._pages = need
            self._free_pages -= need
            request._sequence, request._at, request.shared = sequence, found, found
            self._lanes[self._lanes.index(None)] = request

    def _page(self, request: Request) -> None:
        """Compute one page of a request's prompt in one run."""
        sequence, size = request._sequence, self._page_tokens
        assert sequence is not None
        first = request._at
        self._prompt(request.prompt[first:first + size], list(range(first, first + size)), [sequence])
        request._at += size
        self.counts["prompt_pages"] += 1
        sequence.cache(self._hashes(request)[:request._at // size])

    def step(self) -> list[Request]:
        """Let waiting requests join, compute at most one page of one prompt, and run all requests once. Return those
        that got a token; some are done by it."""
        self._join()
        size, lanes = self._page_tokens, self._lanes
        reading = [r for r in lanes if r and r._at + size < len(r.prompt)]
        if reading:
            self._turn += 1
            self._page(reading[self._turn % len(reading)])
        now = [r if r and r not in reading else None for r in lanes]
        if not any(now):
            return []
        token, position, sequences = [], [], []
        for request in now:
            sequence = self._idle if request is None else request._sequence
            assert sequence is not None
            at = 0 if request is None else request._at
            token.append(0 if request is None else request._next(at))
            position.append(at)
            sequences.append(sequence)
        self._decode(token, position, sequences)
        for request in now:
            if request:
                request._at += 1
        self.counts["steps"] += 1
        self.counts["together"] += sum(r is not None for r in now)
        out, likeliest = [], self._decode.logits.argmax(1).tolist()
        for lane, request in enumerate(now):
            if request is None or position[lane] + 1 < len(request.prompt):
                continue
            chosen = likeliest[lane]
            if request._sample:
                chosen = _whole("a sampled token", int(request._sample(self._decode.logits[lane])), 0, self._vocabulary - 1)
            request.tokens.append(chosen)
            self.counts["tokens"] += 1
            out.append(request)
            if chosen in request.stop:
                self._leave(request, "stop")
            elif len(request.tokens) == request.max_tokens:
                self._leave(request, "length")
        return out

    def close(self) -> None:
        """End the generator and all its requests."""
        for request in [r for r in self._lanes if r] + [r for queue in self._waiting.values() for r in queue]:
            self.cancel(request)
        del self._decode, self._prompt
        self._idle.release()
        self._handle.close()
        if self._pool:
            self._pool.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, error: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        self.close()


def _sampler(temperature: Any, seed: Any) -> Callable[[Any], int] | None:
    """Return a function that samples by the logits divided by the temperature; 0: the likeliest token."""
    import numpy

    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature <= 100:
        raise errors.InvalidError(errno.EINVAL, f"temperature is a number from 0 to 100, not {temperature!r}")
    dice = numpy.random.default_rng(_whole("seed", seed, 0, (1 << 63) - 1))
    if not temperature:
        return None

    def sample(logits: Any) -> int:
        odds = numpy.exp((logits - logits.max()).astype("float64") / temperature)
        return int(dice.choice(len(odds), p=odds / odds.sum()))

    return sample


class _Peer:
    """The connection of a client, and its requests by number."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.read, self.unsent = b"", b""
        self.requests: dict[int, Request] = {}

    def say(self, words: Mapping[str, Any]) -> None:
        self.unsent += json.dumps(words).encode() + b"\n"


class Server:
    """Serves a generator at a Unix socket to processes of this user. A request is a line of JSON: {"id", "prompt",
    "max_tokens", "stop", "temperature", "seed"}, where the last three are optional. {"id", "cancel": true} cancels one.
    Answers are {"id", "token"} for each token, then {"id", "done"} with "stop", "length" or "cancelled"; or {"id",
    "error"}. A client that disconnects, for any reason, is removed before the next run. A client that sends an invalid
    request, or does not read, is disconnected."""

    def __init__(self, generator: Generator, path: str | os.PathLike[str]) -> None:
        self._generator, self._path = generator, os.fspath(path)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peers: dict[socket.socket, _Peer] = {}
        self._full = False  # no descriptor was free for a client, which waits
        self._wake, self._woken = socket.socketpair()
        before = os.umask(0o177)
        try:
            self._bound = listening.listen(self._listener, self._path, 64)
        except OSError as error:
            for each in (self._listener, self._wake, self._woken):
                each.close()
            if isinstance(error, errors.Error):
                raise
            more = ": another server is there, or a file; stop it, or use another path" if error.errno == errno.EADDRINUSE else ""
            raise OSError(error.errno or errno.ENAMETOOLONG, f"{self._path}: {error.strerror or error}{more}") from None
        finally:
            os.umask(before)
        for each in (self._listener, self._woken):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until stop()."""
        while True:
            ready = self._selector.select(.005 if self._generator.stuck else 0 if self._generator.busy else .1 if self._full else None)
            if self._full:
                self._selector.register(self._listener, selectors.EVENT_READ)
                self._full = False
            for key, _ in ready:
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._hear(self._peers[key.fileobj])  # type: ignore[index]
            if self._generator.busy:
                for request in self._generator.step():
                    self._tell(request)
            for peer in list(self._peers.values()):
                self._send(peer)

    def stop(self) -> None:
        """Let run() return. Any thread and any signal handler may call this."""
        self._wake.send(b"\0")

    def close(self) -> None:
        """End the socket and all connections. The generator continues."""
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()
        listening.forget(self._path, self._bound)
        for each in (self._listener, self._wake, self._woken):
            each.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # the client has gone
            return
        except OSError:
            self._selector.unregister(self._listener)
            self._full = True
            return
        uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        self._peers[connection] = _Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, peer: _Peer) -> None:
        if self._peers.pop(peer.socket, None) is None:
            return
        self._selector.unregister(peer.socket)
        peer.socket.close()
        for request in peer.requests.values():
            self._generator.cancel(request)
        peer.requests.clear()

    def _hear(self, peer: _Peer) -> None:
        try:
            got = peer.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        *lines, peer.read = (peer.read + got).split(b"\n")
        if not got or len(peer.read) > _LINE:
            self._drop(peer)
            return
        for line in lines:
            if not self._take(peer, line):
                self._drop(peer)
                return

    def _take(self, peer: _Peer, line: bytes) -> bool:
        """Process one line. Return whether it is a valid request."""
        try:
            said = json.loads(line)
            number = _whole("id", said["id"], 0, (1 << 53) - 1)
        except (ValueError, TypeError, KeyError, RecursionError, errors.InvalidError):
            return False
        if said.get("cancel") is True:
            request = peer.requests.pop(number, None)
            if request:
                self._generator.cancel(request)
                peer.say({"id": number, "done": "cancelled"})
            return True
        try:
            if number in peer.requests or len(peer.requests) >= _WAITING:
                raise errors.BusyError(errno.EBUSY, f"the id is in use, or {_WAITING} requests have not ended")
            unknown = set(said) - {"id", "prompt", "max_tokens", "stop", "temperature", "seed"}
            lists = [said.get("prompt"), said.get("stop", [])]
            if unknown or not all(isinstance(each, list) for each in lists):
                raise errors.InvalidError(errno.EINVAL, f"unknown: {sorted(unknown)}" if unknown else "prompt and stop are lists")
            sample = _sampler(said.get("temperature", 0), said.get("seed", 0))
            peer.requests[number] = self._generator.submit(lists[0], said.get("max_tokens"), stop=lists[1],
                                                           client=peer, sample=sample)
        except errors.Error as error:
            peer.say({"id": number, "error": str(error.strerror)})
        return True

    def _tell(self, request: Request) -> None:
        peer = request.client
        assert isinstance(peer, _Peer)
        number = next(number for number, each in peer.requests.items() if each is request)
        peer.say({"id": number, "token": request.tokens[-1]})
        if request.done:
            peer.say({"id": number, "done": request.done})
            del peer.requests[number]

    def _send(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                peer.unsent = peer.unsent[peer.socket.send(peer.unsent):]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        if len(peer.unsent) > _LINE:
            self._drop(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if self._selector.get_key(peer.socket).events != wanted:
            self._selector.modify(peer.socket, wanted)


def _deadline(timeout: float | None) -> float | None:
    if timeout is not None and not 0 <= timeout < 1 << 32:
        raise errors.InvalidError(errno.EINVAL, f"a timeout of {timeout} seconds")
    return None if timeout is None else time.monotonic() + timeout


class Client:
    """A connection to a Server, for one thread and one generate() at a time.

    timeout: seconds until the server's socket has accepted the connection; None: no limit. NotFoundError: there is no
    socket at path. GoneError: no server listens there. AccessError: it is another user's. PeerTimeoutError: it accepts
    no connections. If a server accepts the connection and does not answer, the timeout of generate() applies."""

    def __init__(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> None:
        deadline = _deadline(timeout)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(os.fspath(path), deadline)
        except BaseException:
            self._socket.close()
            raise
        self._unsent = b""  # the rest of a line whose sending has begun, and later lines
        self._read = b""
        self._number = 0

    def _connect(self, path: str, deadline: float | None) -> None:
        start = "start python -m tmesh.batching MODEL --socket=PATH"
        while True:
            left = 0.0 if deadline is None else deadline - time.monotonic()
            if deadline is not None and left <= 0:
                raise errors.PeerTimeoutError(errno.ETIMEDOUT, f"the generator at {path} took no connection before the deadline: "
                                              "it is stopped, or has more clients than it takes")
            # Python's own timeout would turn a full socket queue into an error at once, so set the kernel's.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(left), int(left % 1 * 1e6) + 1)
                                    if deadline is not None else bytes(16))
            try:
                self._socket.connect(path)
                self._socket.getpeername()
            except BlockingIOError:
                continue
            except FileNotFoundError:
                raise errors.NotFoundError(errno.ENOENT, f"there is no socket at {path}: {start}") from None
            except ConnectionRefusedError:
                raise errors.GoneError(errno.EPIPE, f"no process listens at {path}: {start}") from None
            except PermissionError:
                raise errors.AccessError(errno.EACCES, f"{path} is another user's: generators serve their own user alone") from None
            except OSError as error:
                if error.errno == errno.ENOTCONN:
                    continue  # a signal's handler ended the wait
                raise errors.InvalidError(errno.EINVAL, f"{path} is no socket of a generator's: {error}") from None
            break
        uid = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid != os.geteuid():
            raise errors.AccessError(errno.EACCES, f"{path} is served by user {uid}: generators serve their own user alone")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))

    def generate(self, prompt: Iterable[int], max_tokens: int, *, stop: Iterable[int] = (), temperature: float = 0,
                 seed: int = 0, timeout: float | None = None) -> Iterator[int]:
        """Yield tokens as they arrive. Leaving the loop early cancels the rest. temperature 0: the likeliest. timeout:
        seconds from the loop's beginning to the last token, None: no limit. InvalidError: the server refused the
        request, with its reason. PeerTimeoutError: the time is over, and the request is cancelled. GoneError: the
        server ended."""
        deadline = _deadline(timeout)
        if self._socket.fileno() < 0:
            raise errors.ReleasedError(errno.EBADF, "this client was closed")
        self._number += 1
        number, over = self._number, False
        try:
            numbers = [[operator.index(token) for token in tokens] for tokens in (prompt, stop)]
        except TypeError:
            raise TypeError("prompt and stop are tokens' numbers: tmesh.tokens makes them of a text") from None
        request = self._line({"id": number, "prompt": numbers[0], "max_tokens": max_tokens, "stop": numbers[1],
                              "temperature": temperature, "seed": seed})
        self._unsent += request
        try:
            self._send(deadline)
            while True:
                said = json.loads(self._hear(deadline))
                if said["id"] != number:
                    continue
                over = "token" not in said
                if "error" in said:
                    raise errors.InvalidError(errno.EINVAL, said["error"])
                if over:
                    return
                yield said["token"]
        except errors.GoneError:
            over = True
            raise
        finally:
            if self._unsent.endswith(request):
                self._unsent = self._unsent[:-len(request)]  # the server has not read any of it
            elif not over:
                self._unsent += self._line({"id": number, "cancel": True})
                try:
                    self._send(deadline)
                except errors.PeerTimeoutError:
                    self._send_now()  # else it is sent before the next request

    @staticmethod
    def _line(words: Mapping[str, Any]) -> bytes:
        return json.dumps(words).encode() + b"\n"

    def _until(self, deadline: float | None) -> None:
        """Limit the socket's next call to the rest of the time."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise errors.PeerTimeoutError(errno.ETIMEDOUT, "the request was not done at its deadline, and is cancelled")
        self._socket.settimeout(left)

    def _send(self, deadline: float | None) -> None:
        while self._unsent:
            self._until(deadline)
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent):]
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                raise self._gone() from None

    def _send_now(self) -> None:
        self._socket.settimeout(0)
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent):]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            raise self._gone() from None

    def _hear(self, deadline: float | None) -> bytes:
        while True:
            self._until(deadline)
            line, end, rest = self._read.partition(b"\n")
            if end:
                self._read = rest
                return line
            try:
                got = self._socket.recv(65536)
            except TimeoutError:
                continue
            except ConnectionResetError:
                got = b""
            if not got:
                raise self._gone()
            self._read += got

    @staticmethod
    def _gone() -> errors.GoneError:
        return errors.GoneError(errno.EPIPE, "the generator's server ended, or dropped this client")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, error: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        self.close()


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tmesh.batching", description="Serve a GGUF model's tokens at a Unix socket.")
    parser.add_argument("model")
    parser.add_argument("--socket", required=True, help="path of the socket; what a killed server left there is replaced")
    parser.add_argument("--lanes", type=int, default=8, help="requests at once (8)")
    parser.add_argument("--max-tokens", type=int, default=512, help="of a request, its prompt included (512)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--process", action="store_true", help="the engine in a process of its own (tmesh-engine)")
    parser.add_argument("--tenant", metavar="TOKEN", help="of a pool of pages that others have too (tmesh.batching.page_pool)")
    parser.add_argument("--cache", choices=("float16", "float32"), default="float16")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            context = (engine.serve("ggml", models=folder, threads=given.threads).connect() if given.process else
                       engine.Context("ggml", threads=given.threads))
            graphs.check(describe_model(given.model), rows=given.max_tokens, context=context, folder=folder)
            with load_model(given.model) as model:
                generator = Generator(model, lanes=given.lanes, max_tokens=given.max_tokens, cache=given.cache, context=context,
                                      folder=folder, tenant=given.tenant)
                server = Server(generator, given.socket)
                for number in (signal.SIGINT, signal.SIGTERM):
                    if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:  # a shell starts
                                                                                                # background jobs with
                                                                                                # SIGINT ignored
                        signal.signal(number, lambda *_: server.stop())
                print("ready", flush=True)
                server.run()
                server.close()
                generator.close()
    except (errors.Error, OSError) as error:
        sys.exit(f"tmesh.batching: {error}")


if __name__ == "__main__":
    _main()
