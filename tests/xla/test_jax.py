# SPDX-License-Identifier: MIT
"""tmesh.xla and tmesh.jax in JAX itself."""

import gc
import os
import re
import threading
import time

# Before JAX looks at it.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed, and cannot be had from the package index")

import jax.export
import jax.numpy as jnp
import tmesh
import tmesh.jax
import tmesh.xla as xla

LONG = os.environ.get("TMESH_TEST_LENGTH") == "full"
VECTOR = jax.ShapeDtypeStruct((3,), "float32")
SCALAR = jax.ShapeDtypeStruct((), "float32")


class Ends:
    """This side's ends of the channels "out" and "in"."""

    def __init__(self):
        self.outbox = tmesh.Channel("recv", capacity=1024, regions=64, layouts=64, producers=4)
        self.inbox = tmesh.Channel("send", capacity=1024, regions=64, layouts=64)
        xla.bind("out", self.outbox, "send")
        xla.bind("in", self.inbox, "recv")

    def put(self, *values, dtype="float32"):
        for value in values:
            self.inbox.send(tmesh.put(np.array(value, dtype)))

    def all(self, count=0):
        """Return the sent messages. JAX does not wait for a push whose sequence goes nowhere: wait for `count` of
        them."""
        got = [np.asarray(self.outbox.recv(timeout=600)).tolist() for _ in range(count)]
        try:
            while True:
                got.append(np.asarray(self.outbox.recv(timeout=0)).tolist())
        except tmesh.PeerTimeoutError:
            return got


def eventually(happens):
    """Wait for a thread of the library or of XLA to act by itself."""
    end = time.monotonic() + 600
    while not happens():
        assert time.monotonic() < end
        gc.collect()
        time.sleep(0.001)


@pytest.fixture
def ends():
    made = Ends()
    yield made
    xla.unbind("out", timeout=0)
    xla.unbind("in")
    made.outbox.close()
    made.inbox.close()
    eventually(lambda: not xla.stats()["regions_live"])


# JAX 0.7 raises a ValueError with the same text where it waits for an array.
FAILURE = (jax.errors.JaxRuntimeError, ValueError) if jax.__version_info__ < (0, 8) else jax.errors.JaxRuntimeError


def refused(code, *words):
    return pytest.raises(FAILURE, match=".*".join(map(re.escape, (code, *words))))


def run(function, *args):
    return jax.block_until_ready(jax.jit(function)(*args))


def test_version():
    print(f"# jax {jax.__version__}")


def test_push_and_pop(ends):
    def twice(sequence):
        sequence, got = xla.pop(sequence, {"a": VECTOR, "b": [SCALAR]}, channel="in")
        return xla.push(sequence, (got["a"] * 2, got["b"][0] + 1), channel="out")

    ends.put([1, 2, 3], 4)
    assert int(run(twice, xla.sequence())) == 2
    assert ends.all() == [[2, 4, 6], 5]


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32",
                                   "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"])
def test_types(ends, dtype):
    sequence = xla.push(xla.sequence(), jnp.array([0, 1, 1], dtype), channel="out")
    tensor = ends.outbox.recv(timeout=600)
    assert tensor.dtype == dtype
    ends.inbox.send(tensor)
    _, back = xla.pop(sequence, jax.ShapeDtypeStruct((3,), dtype), channel="in")
    assert back.dtype == dtype and back.astype("complex64").tolist() == [0, 1, 1]


def test_order_along_a_sequence(ends):
    """The cheap call is written after the expensive one; without the sequence it goes first."""
    def mixed(sequence, x, big):
        for step in range(5):
            slow = big
            for _ in range(3):
                slow = jnp.sin(slow @ big)
            sequence = xla.push(sequence, slow[0, 0] * 0 + 2 * step, channel="out")
            sequence = xla.push(sequence, x + 2 * step + 1, channel="out")
        return sequence

    program = jax.jit(mixed)
    for _ in range(1000 if LONG else 20):
        sequence = jax.block_until_ready(program(xla.sequence(), jnp.float32(0), jnp.ones((100, 100))))
        assert int(sequence) == 10
        assert ends.all() == list(range(10))


def test_nothing_is_merged_hoisted_or_dropped(ends):
    def program(sequence, x):
        xla.push(sequence, x, channel="out")
        one, a = xla.pop(sequence, SCALAR, channel="in")
        two, b = xla.pop(sequence, SCALAR, channel="in")
        jax.lax.fori_loop(0, 5, lambda i, s: xla.push(s, x, channel="out"), sequence)
        return one + two, a, b

    ends.put(10, 20)
    _, a, b = run(program, xla.sequence(), 7.0)
    assert sorted([float(a), float(b)]) == [10, 20]
    assert ends.all(6) == [7] * 6


def test_forms_without_side_effect(ends):
    """Calls as EXLA writes them: no side effect, no alias. A call that hands the sequence on stays, in its order.
    Without that XLA drops a push whose result no operation needs, which Python's calls cannot ask for."""
    def call(target, results, *operands):
        return jax.ffi.ffi_call(target, results)(*operands, channel="out" if "push" in target else "in",
                                                 timeout_ms=np.int64(600_000))

    sequence = jax.ShapeDtypeStruct((), "uint32")

    def kept(now, x):
        now = jax.lax.fori_loop(0, 5, lambda i, s: call("tmesh_push", sequence, s, x), now)
        now, a = call("tmesh_pop", (sequence, SCALAR), now)
        now, b = call("tmesh_pop", (sequence, SCALAR), now)
        return now, a, b

    ends.put(1, 2)
    now, a, b = run(kept, xla.sequence(), 7.0)
    assert (int(now), float(a), float(b)) == (7, 1, 2)
    assert ends.all() == [7] * 5

    def dropped(now, x):
        call("tmesh_push", sequence, now, x)
        return x

    run(dropped, xla.sequence(), 7.0)
    assert ends.all() == []


def test_scan_and_while(ends):
    def steps(sequence):
        return xla.scan(lambda s, c, x: (xla.push(s, c + x, channel="out"), c + x, x * 2), sequence, jnp.float32(0),
                        jnp.arange(5.0))

    sequence, carry, ys = run(steps, xla.sequence())
    assert (int(sequence), float(carry), ys.tolist()) == (5, 10, [0, 2, 4, 6, 8])
    assert ends.all() == [0, 1, 3, 6, 10]

    def until_negative(sequence):
        def body(sequence, value):
            sequence, new = xla.pop(sequence, SCALAR, channel="in")
            return sequence, (new, value[1] + new)

        return xla.while_loop(lambda value: value[0] >= 0, body, sequence, (jnp.float32(0), jnp.float32(0)))

    ends.put(1, 2, 3, -1)
    sequence, (_, total) = run(until_negative, xla.sequence())
    assert (int(sequence), float(total)) == (4, 5)


def test_cond(ends):
    def maybe(sequence, yes):
        return jax.lax.cond(yes, lambda s: xla.push(s, 1.0, channel="out"), lambda s: s, sequence)

    program = jax.jit(maybe)
    assert [int(program(xla.sequence(), yes)) for yes in (True, False, True)] == [1, 0, 1]
    assert ends.all() == [1, 1]


def test_vmap_is_one_after_the_other(ends):
    def own(sequences, xs):
        return jax.vmap(lambda s, x: xla.push(s, x, channel="out"))(sequences, xs)

    assert run(own, jnp.zeros(3, "uint32"), jnp.arange(3.0)).tolist() == [1, 1, 1]
    assert ends.all() == [0, 1, 2]

    def pops(sequences):
        return jax.vmap(lambda s: xla.pop(s, SCALAR, channel="in")[1])(sequences)

    ends.put(10, 20, 30)
    assert run(pops, jnp.zeros(3, "uint32")).tolist() == [10, 20, 30]
    # A computation that depends on no mapped value is done once, as JAX has it.
    ends.put(10)
    assert run(jax.vmap(lambda x: xla.pop(xla.sequence(), SCALAR, channel="in")[1] + x), jnp.arange(3.0)).tolist() == [
        10, 11, 12]


@pytest.mark.skipif(jax.__version_info__ < (0, 9), reason="before JAX 0.9 each call of a vmap has a sequence of its own")
def test_vmap_along_one_sequence(ends):
    def shared(sequence, xs):
        return jax.vmap(lambda x: xla.push(sequence, (x, -x), channel="out"), out_axes=None)(xs)

    assert int(run(shared, xla.sequence(), jnp.arange(1.0, 4.0))) == 3
    assert ends.all() == [1, -1, 2, -2, 3, -3]
    nested = jax.vmap(jax.vmap(lambda x: xla.push(xla.sequence(), x, channel="out"), out_axes=None), out_axes=None)
    # JAX maps the innermost first, so the outermost varies fastest.
    assert int(run(nested, jnp.arange(4.0).reshape(2, 2))) == 4
    assert ends.all() == [0, 2, 1, 3]


stopped = jax.lax.stop_gradient


@pytest.mark.filterwarnings("error")
def test_gradients(ends):
    """None passes, and those of the rest of the program are as without it."""
    def loss(x):
        _, y = xla.pop(xla.push(xla.sequence(), stopped(x), channel="out"), SCALAR, channel="in")
        return x * x * y

    ends.put(5)
    assert float(run(jax.grad(loss), 3.0)) == 30
    assert ends.all(1) == [3]
    ends.put(5)
    assert [float(v) for v in jax.jvp(loss, (3.0,), (1.0,))] == [45, 30]
    assert ends.all(1) == [3]
    in_scan = jax.grad(lambda x: xla.scan(lambda s, c, _: (xla.push(s, stopped(c), channel="out"), c * x, None),
                                          xla.sequence(), jnp.float32(1), length=3)[1])
    assert float(run(in_scan, 2.0)) == 12
    assert ends.all(3) == [1, 2, 4]
    assert run(jax.vmap(jax.grad(lambda x: (xla.push(xla.sequence(), stopped(x), channel="out"), x * x)[1])),
               jnp.arange(3.0)).tolist() == [0, 2, 4]
    assert ends.all(3) == [0, 1, 2]


@pytest.mark.parametrize("jit", [False, True])
def test_a_gradient_that_ends_is_told(ends, jit):
    """It is zero beyond a channel, and no other check would show it."""
    def pushed(x):
        _, y = xla.pop(xla.push(xla.sequence(), {"x": x, "n": jnp.int32(1)}, channel="out"), SCALAR, channel="in")
        return x * y

    def like(x):
        return x * xla.pop(xla.sequence(), x, channel="in")[1]

    def scanned(x):
        return xla.scan(lambda s, c, _: (xla.push(s, c, channel="out"), c * x, None), xla.sequence(), x, length=2)[1]

    wrap = jax.jit if jit else lambda function: function
    for loss, where, gradient in ((pushed, r'push\(channel="out"\)', 5), (like, r'pop\(channel="in"\)', 5), (scanned, "push", 27)):
        ends.put(5)
        with pytest.warns(RuntimeWarning, match=f"gradient ends at {where}.*stop_gradient"):
            assert float(run(wrap(jax.grad(loss)), 3.0)) == gradient
        ends.all(1 if loss is pushed else 2 if loss is scanned else 0)
        if loss is scanned:
            assert float(run(wrap(lambda: xla.pop(xla.sequence(), SCALAR, channel="in")[1]))) == 5


def test_bound_again(ends):
    """To the same channel, whose only place for a sender the name has."""
    xla.bind("out", ends.outbox, "send")
    run(lambda: xla.push(xla.sequence(), jnp.float32(2), channel="out"))
    assert ends.all(1) == [2]
    xla.bind("in", ends.inbox, "recv")
    ends.put(3)
    assert float(run(lambda: xla.pop(xla.sequence(), SCALAR, channel="in")[1])) == 3
    alone = tmesh.Channel("recv")
    xla.bind("alone", alone, "send")
    xla.bind("alone", alone.token, "send")
    run(lambda: xla.push(xla.sequence(), jnp.float32(4), channel="alone"))
    assert np.asarray(alone.recv(timeout=600)) == 4
    # Another name takes a place of its own.
    with pytest.raises(tmesh.BusyError):
        xla.bind("other", alone, "send")
    xla.unbind("alone", timeout=0)
    alone.close()
    # A name without its object is not the object that was bound.
    with pytest.raises((tmesh.NotFoundError, tmesh.ReleasedError, ValueError)):
        xla.bind("alone", alone, "send")


def test_no_timeout(ends):
    ends.put(5)
    run(lambda: xla.push(xla.sequence(), jnp.float32(2), channel="out", timeout=None))
    assert float(run(lambda: xla.pop(xla.sequence(), SCALAR, channel="in", timeout=None)[1])) == 5
    assert ends.all(1) == [2]
    with pytest.raises(ValueError, match="None for that"):
        xla.pop(xla.sequence(), SCALAR, channel="in", timeout=-1)


def test_custom_vjp_sends_the_cotangent(ends):
    @jax.custom_vjp
    def seen(x):
        xla.push(xla.sequence(), x, channel="out")
        return x

    def backward(_, cotangent):
        xla.push(xla.sequence(), cotangent, channel="out")
        return cotangent,

    seen.defvjp(lambda x: (seen(x), None), backward)
    assert float(run(jax.grad(lambda x: seen(x * x) * 7), 3.0)) == 42
    assert sorted(ends.all(2)) == [7, 9]


def test_devices(ends):
    each = jax.pmap(lambda x: xla.push(xla.sequence(), x, channel="out"))
    assert np.asarray(jax.block_until_ready(each(jnp.arange(4.0)))).tolist() == [1] * 4
    assert sorted(ends.all()) == [0, 1, 2, 3]

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def local(x):
        sequence, y = xla.pop(xla.push(xla.sequence(), x, channel="out"), SCALAR, channel="in")
        return x + y * 0, jnp.reshape(sequence, 1)

    ends.put(1, 2, 3, 4)
    x, sequences = run(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=(spec, spec), check_vma=False),
                       jnp.arange(4.0))
    assert sequences.tolist() == [2] * 4 and x.tolist() == [0, 1, 2, 3]
    assert sorted(ends.all()) == [[0], [1], [2], [3]]

    # XLA's own refusal, which docs/reference/xla.md explains.
    sharded = jax.device_put(jnp.arange(4.0), jax.sharding.NamedSharding(mesh, spec))
    with pytest.raises(Exception, match="[Ss]harding"):
        run(lambda x: xla.push(xla.sequence(), x, channel="out"), sharded)


def test_sealed_memory():
    """JAX 0.10 refuses such a tensor, and the refusal names the calls that share."""
    tensor = tmesh.put(np.arange(64, dtype="float32"))
    try:
        direct = jnp.from_dlpack(tensor)
    except tmesh.AccessError as refusal:
        assert "jax.device_put(t.numpy())" in str(refusal)
    else:
        assert direct.unsafe_buffer_pointer() == tensor.numpy().ctypes.data
    shared = jax.device_put(tensor.numpy())
    assert shared.unsafe_buffer_pointer() == tensor.numpy().ctypes.data
    assert float(shared.sum()) == 64 * 63 / 2


def test_errors(ends):
    begin = xla.sequence()
    with refused("NOT_FOUND", '"nobody"'):
        run(lambda s: xla.push(s, 1.0, channel="nobody"), begin)
    with refused("FAILED_PRECONDITION", "bound for receiving"):
        run(lambda s: xla.push(s, 1.0, channel="in"), begin)
    pop = jax.jit(lambda s: xla.pop(s, VECTOR, channel="in", timeout=0.05))
    with refused("DEADLINE_EXCEEDED", "no message came"):
        jax.block_until_ready(pop(begin))
    ends.put([1, 2, 3], dtype="float64")
    with refused("INVALID_ARGUMENT", "expects float32[3], and float64[3] came"):
        jax.block_until_ready(pop(begin))
    ends.inbox.send(b"hello")
    with refused("INVALID_ARGUMENT", "5 bytes without a tensor"):
        jax.block_until_ready(pop(begin))
    with refused("INVALID_ARGUMENT", "int4"):
        run(lambda s: xla.push(s, jnp.ones(4, "int4"), channel="out"), begin)
    with refused("INVALID_ARGUMENT", "at most 8 dimensions, not 9"):
        run(lambda s: xla.push(s, jnp.ones((1,) * 9), channel="out"), begin)
    # The next call works.
    ends.put([1, 2, 3])
    assert jax.block_until_ready(pop(begin))[1].tolist() == [1, 2, 3]
    run(lambda s: xla.push(s, jnp.ones((2, 0)), channel="out"), begin)
    assert ends.all() == [[[], []]]


def test_what_python_refuses(ends):
    begin = xla.sequence()
    with pytest.raises(TypeError, match="sequence"):
        xla.push(1.0, 1.0, channel="out")
    with pytest.raises(TypeError, match="sequence"):
        xla.pop(jnp.float32(0), SCALAR, channel="in")
    with pytest.raises(ValueError, match="no array"):
        xla.push(begin, [], channel="out")
    with pytest.raises(ValueError, match="no array"):
        xla.pop(begin, [], channel="in")
    with pytest.raises(ValueError, match="week"):
        xla.push(begin, 1.0, channel="out", timeout=float("inf"))
    with pytest.raises(ValueError, match="jax_enable_x64"):
        xla.pop(begin, np.zeros(3), channel="in")
    with pytest.raises(ValueError, match='"send" or "recv"'):
        xla.bind("out", ends.outbox, "both")
    with pytest.raises(tmesh.ProtocolError):
        xla.bind("out", "nonsense", "send")
    with pytest.raises(tmesh.InvalidError, match="1 to 127 bytes"):
        xla.bind("x" * 128, ends.outbox, "send")
    for call in (xla.unbind, xla.cancel, xla.flush):
        with pytest.raises(tmesh.NotFoundError, match="nobody"):
            call("nobody")
    assert ends.all() == []


def test_full_channel(ends):
    """Its receiver never reads: an error, and the memory is back."""
    small = tmesh.Channel("recv", capacity=2)
    xla.bind("out", small, "send")
    push = jax.jit(lambda s: xla.push(s, jnp.ones(100_000), channel="out", timeout=0.05))
    jax.block_until_ready([push(xla.sequence()) for _ in range(2)])
    before = xla.stats()["regions_live"]
    with refused("DEADLINE_EXCEEDED", "stayed full"):
        jax.block_until_ready(push(xla.sequence()))
    assert xla.stats()["regions_live"] == before
    with pytest.raises(tmesh.PeerTimeoutError):
        xla.unbind("out", timeout=0.05)
    small.recv(), small.recv()
    xla.flush("out", timeout=600)


def test_memory_of_pushes(ends):
    """It is used again after the receiver's release, unless it is sealed; there is a limit."""
    def times(count, **how):
        program = jax.jit(lambda s, x: xla.push(s, x, channel="out", timeout=600, **how))
        before = xla.stats()["regions_created"]
        for step in range(count):
            program(xla.sequence(), jnp.full(100_000, step, "float32")).block_until_ready()
            got = ends.outbox.recv(timeout=600)
            assert got.sealed == how.get("seal", False)
            assert np.asarray(got)[[0, -1]].tolist() == [step, step]
            got.release()
            xla.flush("out", timeout=600)
            eventually(lambda: how.get("seal") or xla.stats()["region_pool_bytes"])  # a thread of the sender's gives it back
        return xla.stats()["regions_created"] - before

    assert times(5, seal=True) == 5
    assert times(20) <= 4
    xla.limit(1_000_000)
    try:
        pushes = jax.jit(lambda s: xla.push(s, [jnp.zeros(100_000)] * 3, channel="out"))
        with refused("RESOURCE_EXHAUSTED", "max_bytes"):
            jax.block_until_ready(pushes(xla.sequence()))
    finally:
        xla.limit(0)
    with pytest.raises(ValueError, match="max_bytes"):
        xla.limit(-1)
    assert ends.all() == []


def test_bind_anew_without_compiling(ends):
    program = jax.jit(lambda s, x: xla.push(s, x, channel="out"))
    program(xla.sequence(), 1.0).block_until_ready()
    assert ends.all() == [1]
    other = tmesh.Channel("recv")
    xla.bind("out", other.token, "send")
    program(xla.sequence(), 2.0).block_until_ready()
    assert np.asarray(other.recv(timeout=600)).tolist() == 2
    other.close()
    # A thread of the library notices it.
    with refused("UNAVAILABLE"):
        while True:
            program(xla.sequence(), 3.0).block_until_ready()
            time.sleep(0.01)
    xla.unbind("out")
    with refused("NOT_FOUND"):
        program(xla.sequence(), 3.0).block_until_ready()
    xla.bind("out", ends.outbox, "send")
    program(xla.sequence(), 4.0).block_until_ready()
    assert ends.all() == [4]
    assert program._cache_size() == 1


def waiting(ends, act, again=False):
    """Return the result of a pop of ten minutes that act() ends. again: repeat act(), which ends nothing before the wait."""
    program = jax.jit(lambda s: xla.pop(s, VECTOR, channel="in", timeout=600))
    ends.put([0, 0, 0])
    jax.block_until_ready(program(xla.sequence()))
    over = threading.Event()

    def end():
        over.wait(0.3)
        act()
        while again and not over.wait(0.3):
            act()

    thread = threading.Thread(target=end)
    thread.start()
    try:
        return jax.block_until_ready(program(xla.sequence()))
    finally:
        over.set()
        thread.join()


def test_waits_end(ends):
    with refused("CANCELLED"):
        waiting(ends, lambda: xla.cancel("in"), again=True)
    with refused("CANCELLED"):
        waiting(ends, lambda: xla.bind("in", ends.inbox, "recv"), again=True)
    assert waiting(ends, lambda: ends.put([1, 2, 3]))[1].tolist() == [1, 2, 3]
    with refused("UNAVAILABLE"):
        waiting(ends, ends.inbox.close)


def test_other_threads_go_on(ends):
    turns = []
    ended = threading.Event()

    def count():
        while not ended.wait(0.01):
            turns.append(1)
        ends.put([1, 2, 3])

    thread = threading.Thread(target=count)
    thread.start()
    waiting(ends, ended.set)
    thread.join()
    assert turns


def test_devices_do_not_wait_for_each_other(ends):
    """All but one wait for a message, in any thread that XLA has; the last one computes and sends."""
    devices = jax.devices()
    pop = jax.jit(lambda s: xla.pop(s, SCALAR, channel="in", timeout=600))
    push = jax.jit(lambda s, x: xla.push(s, (x @ x).sum(), channel="out"))
    got = []

    def wait(device):
        got.append(float(pop(jax.device_put(xla.sequence(), device))[1]))

    threads = [threading.Thread(target=wait, args=(device,)) for device in devices[:-1]]
    for thread in threads:
        thread.start()
    for _ in range(3):
        x = jax.device_put(jnp.ones((8, 8)), devices[-1])
        push(jax.device_put(xla.sequence(), devices[-1]), x).block_until_ready()
    assert ends.all() == [512] * 3 and not got
    ends.put(*range(len(threads)))
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(len(threads)))


def test_zero_size_and_dynamic_shapes(ends):
    """Nothing of no bytes is lost on its way; a shape that is not known has no place in a program."""
    ends.inbox.send(tmesh.put(np.zeros((0, 3), "float32")))
    _, got = run(lambda s: xla.pop(s, jax.ShapeDtypeStruct((0, 3), "float32"), channel="in"), xla.sequence())
    assert got.shape == (0, 3)
    rows = jax.export.symbolic_shape("rows")[0]
    with pytest.raises(Exception, match="rows|symbolic|dimension"):
        xla.pop(xla.sequence(), jax.ShapeDtypeStruct((rows,), "float32"), channel="in")


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32", "float16", "bfloat16", "float8_e5m2", "complex64"])
def test_array_is_the_region(dtype):
    tensor = tmesh.put(np.zeros(4096, "uint8")).view(dtype)
    array = tmesh.jax.array(tensor)
    assert array.dtype == dtype and array.unsafe_buffer_pointer() == tensor.view("uint8").numpy().ctypes.data
    # Donated or not, a computed result lies elsewhere, and the memory stays as it is.
    result = jax.jit(lambda x: x ^ True if dtype == "bool" else x + 1, donate_argnums=0)(array)
    assert result.unsafe_buffer_pointer() != tensor.view("uint8").numpy().ctypes.data
    assert not tensor.view("uint8").numpy().any()


def test_array_keeps_the_memory():
    gc.collect()
    live = tmesh.stats()["regions_live"]
    array = tmesh.jax.array(tmesh.put(np.arange(1000, dtype="float32")))
    assert tmesh.stats()["regions_live"] == live + 1
    assert float(array.sum()) == 499500
    del array
    # XLA's own threads may have it a moment longer than the program that read it.
    eventually(lambda: tmesh.stats()["regions_live"] == live)


def test_array_is_never_a_copy():
    with pytest.raises(tmesh.UnsupportedError, match="seal"):
        tmesh.jax.array(tmesh.zeros(4, "float32"))
    sealed = tmesh.put(np.zeros((64, 64), "float32"))
    for part in (sealed[:, 1:], sealed[0, 1:9], sealed.T if hasattr(sealed, "T") else sealed[::2, ::2]):
        with pytest.raises(tmesh.UnsupportedError, match="not contiguous|multiple of 64"):
            tmesh.jax.array(part)
    with pytest.raises(tmesh.UnsupportedError, match="jax_enable_x64"):
        tmesh.jax.array(tmesh.put(np.zeros(4)))
