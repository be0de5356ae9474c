# SPDX-License-Identifier: MIT
"""Moves tensors out of and into a running JAX program through channels, by libtmesh-xla.

    inbox = tmesh.Channel("recv")                        # here or in any process, in any language
    tmesh.xla.bind("loss", inbox, "send")                # what the name means to programs of this process

    @jax.jit
    def step(sequence, weights, batch):
        loss, weights = ...
        sequence = tmesh.xla.push(sequence, loss, channel="loss")
        return sequence, weights

    sequence, weights = step(tmesh.xla.sequence(), weights, batch)
    inbox.recv()                                         # a tmesh.Tensor

The sequence defines the order. Each `push` and `pop` takes one and returns the next, as JAX's functions do with keys.
Calls on one sequence happen in that order, and each as often as the program says. Calls on other sequences happen in
any order. An XLA computation only has the channel's name: `bind` can change its channel while the program runs, without
compiling again.

Each tensor is one message and is copied once. Waits are limited: without a message or room within `timeout` seconds the
program gets a JaxRuntimeError, as for every other error. Its text begins with the code: DEADLINE_EXCEEDED, UNAVAILABLE
(the other end is gone), CANCELLED, INVALID_ARGUMENT (a message of another shape), NOT_FOUND (nothing is bound),
FAILED_PRECONDITION (bound for the other direction), DATA_LOSS, RESOURCE_EXHAUSTED. The next call works.

`vmap` makes one call after the other; a call that does not depend on mapped values is made once. Before JAX 0.9 each of
them starts with the same sequence and returns one of its own. No gradient passes through `push` or `pop`. If a program
differentiates a pushed value, or the value of `like`, a RuntimeWarning says so; call jax.lax.stop_gradient on it to
avoid this. On several devices use them inside jax.shard_map or jax.pmap. XLA refuses them in a program that it shards
by itself ("Side-effect HLO must have sharding"). This module works on the CPU.

This module needs JAX 0.7 or newer.
"""

from __future__ import annotations

import errno
import importlib
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

from . import _tmesh
from ._tmesh import Channel

__all__ = ["bind", "cancel", "flush", "limit", "pop", "push", "scan", "sequence", "stats", "unbind", "while_loop"]

try:
    # Imported by name, since mypy would otherwise read all of JAX if it is installed.
    jax: Any = importlib.import_module("jax")
except ModuleNotFoundError as problem:
    if problem.name != "jax":
        raise
    raise ModuleNotFoundError("tmesh.xla needs JAX: pip install jax", name="jax") from None
numpy: Any = importlib.import_module("numpy")

# The longest wait: an endless one would look like a program that hangs.
_LONGEST = 7 * 24 * 3600

_lock = threading.Lock()
_loaded = False


def _load() -> None:
    """Load this process's libtmesh-xla, and register its handlers with JAX."""
    global _loaded
    with _lock:
        if not _loaded:
            for name, handler in zip(("tmesh_push", "tmesh_pop"), _tmesh.xla_load(threading.main_thread().ident)):
                jax.ffi.register_ffi_target(name, handler, platform="cpu")
            _loaded = True


def bind(name: str, channel: Channel | str, role: str) -> None:
    """Bind `name` to a channel for programs of this process, from now on.

    channel: a token, or a Channel that this process made.
    role: the programs' use of it: "send" for push, "recv" for pop.

    The channel bound before is left; calls that wait in it end with CANCELLED. Binding the same channel again has no
    effect if this process has all of its producers' lanes."""
    if role not in ("send", "recv"):
        raise ValueError(f'a channel\'s role is "send" or "recv", not {role!r}')
    token = channel if isinstance(channel, str) else channel.token
    _load()
    _tmesh.xla_bind(name, token, role == "send")


def unbind(name: str, timeout: float = 5.0) -> None:
    """Leave the channel. First wait, at most `timeout` seconds, until all pushed tensors have been received.
    PeerTimeoutError: they have not, and the name is still bound. 0: leave at once, and lose tensors that no process has
    received."""
    if timeout > 0:
        try:
            flush(name, timeout)
        except OSError as problem:
            # No receiver is left, or there is nothing to wait for.
            if problem.errno not in (errno.EPIPE, errno.EBADF):
                raise
    _load()
    _tmesh.xla_unbind(name)


def cancel(name: str) -> None:
    """End the calls that wait at this moment, with CANCELLED."""
    _load()
    _tmesh.xla_cancel(name)


def flush(name: str, timeout: float | None = None) -> None:
    """Wait until all pushed tensors have been received; PeerTimeoutError after `timeout` seconds. Tensors that no
    process has received are lost when this process ends."""
    _load()
    _tmesh.xla_flush(name, timeout)


def limit(max_bytes: int) -> None:
    """Limit the bytes of pushed tensors that are not received yet, of all names together; 0: no limit. A push beyond it
    gets RESOURCE_EXHAUSTED."""
    if not 0 <= max_bytes < 1 << 64:
        raise ValueError(f"max_bytes is 0 to 2**64 - 1, not {max_bytes}")
    _load()
    _tmesh.xla_limit(max_bytes)


def stats() -> dict[str, int]:
    """Return libtmesh-xla's counters, as tmesh.stats(). It has a context of its own while names are bound."""
    _load()
    return _tmesh.xla_stats()


def sequence() -> Any:
    """Start a new order: return the sequence for the first call."""
    return jax.numpy.zeros((), "uint32")


def push(sequence: Any, tensors: Any, channel: str, timeout: float | None = 60.0, seal: bool = False) -> Any:
    """Send arrays, one message each; return the next sequence.

    tensors: an array or a tree of arrays, sent in the order of jax.tree.leaves(). timeout: seconds; None: a week. seal:
    each in a sealed region of its own, with fresh pages. Otherwise receivers can only read, and a later push reuses the
    memory once no receiver has it any more."""
    leaves = [_ended(leaf, f'push(channel="{channel}")') for leaf in jax.tree.leaves(tensors)]
    if not leaves:
        raise ValueError("there is no array to push")
    return _handler("tmesh_push", [], channel, timeout, seal=bool(seal))(_check(sequence), leaves)[0]


def pop(sequence: Any, like: Any, channel: str, timeout: float | None = 60.0) -> tuple[Any, Any]:
    """Receive arrays, one message each; return the next sequence and the arrays.

    like: their shapes and dtypes, by an array, a jax.ShapeDtypeStruct, or a tree of these. timeout: seconds; None: a
    week."""
    leaves, tree = jax.tree.flatten(like)
    if not leaves:
        raise ValueError("there is no array to pop")
    for leaf in leaves:
        if isinstance(leaf, jax.core.Tracer):
            _ended(leaf, f'pop(channel="{channel}")')
    after, arrays = _handler("tmesh_pop", [_template(leaf) for leaf in leaves], channel, timeout)(_check(sequence), [])
    return after, jax.tree.unflatten(tree, arrays)


def scan(body: Callable[..., Any], sequence: Any, carry: Any, xs: Any = None, length: int | None = None) -> Any:
    """jax.lax.scan with a sequence: body(sequence, carry, x) returns (sequence, carry, y), and this (sequence, carry,
    ys)."""
    def step(both: Any, x: Any) -> Any:
        now, carry, y = body(*both, x)
        return (now, carry), y

    (after, carry), ys = jax.lax.scan(step, (_check(sequence), carry), xs, length)
    return after, carry, ys


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], sequence: Any, value: Any) -> tuple[Any, Any]:
    """jax.lax.while_loop with a sequence: body(sequence, value) returns (sequence, value), and so does this.
    condition(value) returns whether to continue."""
    after, value = jax.lax.while_loop(lambda both: condition(both[1]), lambda both: tuple(body(*both)),
                                      (_check(sequence), value))
    return after, value


def _ended(leaf: Any, where: str) -> Any:
    """Return the array without a gradient. JAX calls this rule when a program differentiates by the array."""
    array = jax.numpy.asarray(leaf)
    if not jax.numpy.issubdtype(array.dtype, jax.numpy.inexact):
        return array

    def rule(primals: Any, tangents: Any) -> Any:
        if type(tangents[0]) is not jax.custom_derivatives.SymbolicZero:
            warnings.warn(f"tmesh.xla: the gradient ends at {where}: a tensor from a channel counts as a constant. "
                          "Call jax.lax.stop_gradient first to say so, or jax.custom_vjp to send a gradient",
                          RuntimeWarning, stacklevel=2)
        return primals[0], jax.numpy.zeros_like(primals[0])

    end = jax.custom_jvp(lambda same: same)
    end.defjvp(rule, symbolic_zeros=True)
    return jax.lax.stop_gradient(end(array))


def _check(sequence: Any) -> Any:
    if getattr(sequence, "shape", None) != () or sequence.dtype != "uint32":
        raise TypeError("the first argument is a sequence: tmesh.xla.sequence(), or what the last push() or pop() gave")
    return sequence


def _template(like: Any) -> Any:
    dtype = getattr(like, "dtype", None) or jax.numpy.result_type(like)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f'JAX has no {dtype} here: jax.config.update("jax_enable_x64", True)')
    return jax.ShapeDtypeStruct(numpy.shape(like), dtype)


def _handler(target: str, results: list[Any], channel: str, timeout: float | None, **more: Any) -> Callable[..., Any]:
    """Make a function of a sequence and operands that returns the next sequence and results of these shapes."""
    _load()
    if timeout is None:
        timeout = _LONGEST
    if not 0 <= timeout <= _LONGEST:
        raise ValueError(f"timeout is 0 to {_LONGEST} seconds (a week), or None for that, not {timeout}")
    attributes = {"channel": channel, "timeout_ms": numpy.int64(math.ceil(timeout * 1000)), **more}

    def once(sequence: Any, operands: Any) -> Any:
        given = jax.ffi.ffi_call(target, (jax.ShapeDtypeStruct((), "uint32"), *results), has_side_effect=True,
                                 input_output_aliases={0: 0}, vmap_method="sequential")(
                                     sequence, *operands, **attributes)
        return given[0], list(given[1:])

    # Its custom_vmap forgets side effects: a push whose sequence is not used would be dropped.
    if jax.__version_info__ < (0, 9):
        return once

    def each(size: int, batched: Any, sequence: Any, operands: Any) -> Any:
        """Make the calls one after the other, along one sequence, or along each call's own."""
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
