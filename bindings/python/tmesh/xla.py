# SPDX-License-Identifier: MIT
"""Tensors leave and enter a running JAX program through channels, by libtmesh-xla.

    inbox = tmesh.Channel("recv")                        # here or in any process, in any language
    tmesh.xla.bind("loss", inbox, "send")                # what the name means to programs of this process

    @jax.jit
    def step(sequence, weights, batch):
        loss, weights = ...
        sequence = tmesh.xla.push(sequence, loss, channel="loss")
        return sequence, weights

    sequence, weights = step(tmesh.xla.sequence(), weights, batch)
    inbox.recv()                                         # a tmesh.Tensor

The sequence is the order. Each `push` and `pop` takes one and gives the next, as JAX's functions do with
keys; calls that hand it on happen in that order, and each as often as the program says. Calls with
sequences of their own happen in any order. An XLA computation knows the name of the channel only: `bind` can
change what the name means while the program runs, and nothing is compiled anew.

Each tensor is one message and is copied once. Waits end: a program that finds no message or no room in
`timeout` seconds gets a JaxRuntimeError, and so it does with every other error. Its text begins with the code:
DEADLINE_EXCEEDED, UNAVAILABLE (nobody is at the other end), CANCELLED, INVALID_ARGUMENT (a message of another
shape), NOT_FOUND (nothing is bound), FAILED_PRECONDITION (bound for the other direction), DATA_LOSS,
RESOURCE_EXHAUSTED. The next call works.

`vmap` makes one call after the other; a call that depends on nothing that is mapped is made once. Before JAX 0.9 each
of them starts with the same sequence and gives one of its own. No gradient passes through `push` or `pop`. On several devices use them
inside jax.shard_map or jax.pmap. XLA refuses them in a program that it shards by itself ("Side-effect HLO
must have sharding"). This module works on the CPU.

This module needs JAX 0.7 or newer.
"""

from __future__ import annotations

import errno
import importlib
import math
import threading
from collections.abc import Callable
from typing import Any

from . import _tmesh
from ._tmesh import Channel

__all__ = ["bind", "cancel", "flush", "limit", "pop", "push", "scan", "sequence", "stats", "unbind", "while_loop"]

try:
    # Not by their names: mypy would read all of JAX, where that is installed.
    jax: Any = importlib.import_module("jax")
except ModuleNotFoundError as problem:
    if problem.name != "jax":
        raise
    raise ModuleNotFoundError("tmesh.xla needs JAX: pip install jax", name="jax") from None
numpy: Any = importlib.import_module("numpy")

_lock = threading.Lock()
_loaded = False


def _load() -> None:
    """This process's libtmesh-xla, with its handlers known to JAX."""
    global _loaded
    with _lock:
        if not _loaded:
            for name, handler in zip(("tmesh_push", "tmesh_pop"), _tmesh.xla_load(threading.main_thread().ident)):
                jax.ffi.register_ffi_target(name, handler, platform="cpu")
            _loaded = True


def bind(name: str, channel: Channel | str, role: str) -> None:
    """Let programs of this process mean this channel by `name`, from now on.

    channel: a token, or a Channel that this process made.
    role: what programs do with it: "send" for push, "recv" for pop.

    What was bound to the name before is left; calls that wait there end with CANCELLED."""
    if role not in ("send", "recv"):
        raise ValueError(f'a channel\'s role is "send" or "recv", not {role!r}')
    token = channel if isinstance(channel, str) else channel.token
    _load()
    _tmesh.xla_bind(name, token, role == "send")


def unbind(name: str, timeout: float = 5.0) -> None:
    """Leave the channel. First wait, at most `timeout` seconds, until what was pushed has been received;
    PeerTimeoutError: it has not, and the name is still bound. 0: leave at once, and lose what nobody
    received."""
    if timeout > 0:
        try:
            flush(name, timeout)
        except OSError as problem:
            # Nobody will receive it any more, or there is nothing to wait for.
            if problem.errno not in (errno.EPIPE, errno.EBADF):
                raise
    _load()
    _tmesh.xla_unbind(name)


def cancel(name: str) -> None:
    """End the calls that wait at this moment, with CANCELLED."""
    _load()
    _tmesh.xla_cancel(name)


def flush(name: str, timeout: float | None = None) -> None:
    """Wait until all that was pushed has been received; PeerTimeoutError after `timeout` seconds. A process that
    ends takes with it what nobody received yet."""
    _load()
    _tmesh.xla_flush(name, timeout)


def limit(max_bytes: int) -> None:
    """Let pushes have at most so many bytes under way, of all names together; 0: no limit. One beyond it gets
    RESOURCE_EXHAUSTED."""
    if not 0 <= max_bytes < 1 << 64:
        raise ValueError(f"max_bytes is 0 to 2**64 - 1, not {max_bytes}")
    _load()
    _tmesh.xla_limit(max_bytes)


def stats() -> dict[str, int]:
    """What libtmesh-xla counted, as tmesh.stats(): it has a context of its own, while names are bound."""
    _load()
    return _tmesh.xla_stats()


def sequence() -> Any:
    """A new order: the sequence for the first call."""
    return jax.numpy.zeros((), "uint32")


def push(sequence: Any, tensors: Any, channel: str, timeout: float = 60.0, seal: bool = False) -> Any:
    """Send arrays, one message each; gives the next sequence.

    tensors: an array or a tree of arrays, sent in the order of jax.tree.leaves().
    seal: each in a sealed region of its own, with fresh pages. Otherwise receivers only read, and the memory
    serves a later push once none of them has it any more."""
    leaves = [jax.lax.stop_gradient(jax.numpy.asarray(leaf)) for leaf in jax.tree.leaves(tensors)]
    if not leaves:
        raise ValueError("there is no array to push")
    return _handler("tmesh_push", [], channel, timeout, seal=bool(seal))(_check(sequence), leaves)[0]


def pop(sequence: Any, like: Any, channel: str, timeout: float = 60.0) -> tuple[Any, Any]:
    """Receive arrays, one message each; gives the next sequence and the arrays.

    like: what they look like: an array, a jax.ShapeDtypeStruct, or a tree of these."""
    leaves, tree = jax.tree.flatten(like)
    if not leaves:
        raise ValueError("there is no array to pop")
    after, arrays = _handler("tmesh_pop", [_template(leaf) for leaf in leaves], channel, timeout)(_check(sequence), [])
    return after, jax.tree.unflatten(tree, arrays)


def scan(body: Callable[..., Any], sequence: Any, carry: Any, xs: Any = None, length: int | None = None) -> Any:
    """jax.lax.scan with a sequence: body(sequence, carry, x) gives (sequence, carry, y), and this
    (sequence, carry, ys)."""
    def step(both: Any, x: Any) -> Any:
        now, carry, y = body(*both, x)
        return (now, carry), y

    (after, carry), ys = jax.lax.scan(step, (_check(sequence), carry), xs, length)
    return after, carry, ys


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], sequence: Any, value: Any) -> tuple[Any, Any]:
    """jax.lax.while_loop with a sequence: body(sequence, value) gives (sequence, value), and so does this;
    condition(value) says whether to go on."""
    after, value = jax.lax.while_loop(lambda both: condition(both[1]), lambda both: tuple(body(*both)),
                                      (_check(sequence), value))
    return after, value


def _check(sequence: Any) -> Any:
    if getattr(sequence, "shape", None) != () or sequence.dtype != "uint32":
        raise TypeError("the first argument is a sequence: tmesh.xla.sequence(), or what the last push() or pop() gave")
    return sequence


def _template(like: Any) -> Any:
    dtype = getattr(like, "dtype", None) or jax.numpy.result_type(like)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f'JAX has no {dtype} here: jax.config.update("jax_enable_x64", True)')
    return jax.ShapeDtypeStruct(numpy.shape(like), dtype)


def _handler(target: str, results: list[Any], channel: str, timeout: float, **more: Any) -> Callable[..., Any]:
    """A function of a sequence and operands that gives the next sequence and results of these shapes."""
    _load()
    if not 0 <= timeout <= 7 * 24 * 3600:
        raise ValueError(f"timeout is 0 to 604800 seconds (a week), not {timeout}")
    attributes = {"channel": channel, "timeout_ms": numpy.int64(math.ceil(timeout * 1000)), **more}

    def once(sequence: Any, operands: Any) -> Any:
        given = jax.ffi.ffi_call(target, (jax.ShapeDtypeStruct((), "uint32"), *results), has_side_effect=True,
                                 input_output_aliases={0: 0}, vmap_method="sequential")(
                                     sequence, *operands, **attributes)
        return given[0], list(given[1:])

    # Its custom_vmap forgets side effects: a push whose sequence goes nowhere would be dropped.
    if jax.__version_info__ < (0, 9):
        return once

    def each(size: int, batched: Any, sequence: Any, operands: Any) -> Any:
        """One after the other: along one sequence, or where each has its own along that."""
        own, varies = batched

        def step(sequence: Any, x: Any) -> Any:
            mine, varying = x
            rest = iter(varying)
            now, got = call(mine if own else sequence, [next(rest) if v else o for v, o in zip(varies, operands)])
            return (sequence, (now, got)) if own else (now, (None, got))

        xs = (sequence if own else None, [o for v, o in zip(varies, operands) if v])
        last, (sequences, got) = jax.lax.scan(step, None if own else sequence, xs, length=size)
        return (sequences if own else last, got), (own, [True] * len(results))

    call: Any = jax.custom_batching.custom_vmap(once)
    call.def_vmap(each)
    return call  # type: ignore[no-any-return]
