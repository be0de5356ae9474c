# SPDX-License-Identifier: MIT
"""tmesh.ray in real Ray: its actors, its driver, its collection, on one machine and on CPUs."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import time

import pytest

import tmesh
from conftest import EMULATED, assert_refused

if EMULATED:
    pytest.skip("Ray takes minutes to start in an emulated machine", allow_module_level=True)
# Ray's limits for a transfer, a new worker and a node's answer: a slow machine may need more than a minute.
os.environ.update(RAY_rdt_fetch_fail_timeout_milliseconds="600000", RAY_worker_register_timeout_seconds="600",
                  RAY_health_check_timeout_ms="600000")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
ray = pytest.importorskip("ray", reason="Ray is not installed: make python-ray-check")

import tmesh.ray  # noqa: E402

# A wait that is longer than this has failed.
PATIENCE = 600


def start(**environment):
    """Start Ray in a folder of its own. A socket's path must be short."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folder = tempfile.mkdtemp(prefix="tmesh-ray-", dir="/tmp")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False,
             logging_level="ERROR", _temp_dir=folder,
             runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}, **environment})
    return folder


def stop(folder):
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster():
    tmesh.ray.register()
    folder = start()
    yield
    stop(folder)


def actors():
    """Defined in a function, so that Ray pickles the classes themselves: its workers cannot import from this folder."""

    class Base:
        def pid(self):
            return os.getpid()

        def drop(self):
            self.made = self.value = None

        def begin(self):
            self.drop()
            gc.collect()
            self.before = tmesh.stats()

        def stats(self):
            gc.collect()
            return {name: now - self.before[name] for name, now in tmesh.stats().items()}

        def call(self, function, *args):
            return function(self, *args)

    class Source(Base):
        @ray.method(tensor_transport="tmesh")
        def make(self, function):
            self.made = function()
            return self.made

        @ray.method(tensor_transport="tmesh")
        def forget(self, function):
            return function()

        @ray.method(tensor_transport="tmesh_tensor")
        def native(self, function):
            return function()

    class Sink(Base):
        def see(self, value, function):
            return function(value)

        def hold(self, value):
            self.value = value

        def held(self, function):
            return function(self.value)

    options = {"num_cpus": 0, "enable_tensor_transport": True}
    return ray.remote(**options)(Source), ray.remote(**options)(Sink)


@pytest.fixture(scope="module")
def actors_of_all(cluster):
    Source, Sink = actors()
    return Source.remote(), Sink.remote()


@pytest.fixture
def fresh(actors_of_all):
    """All tests share these actors, since processes with PyTorch start slowly. Counters are reset. Ray keeps returned
    objects and refused ones, so tests of wrong transports do not wait for memory."""
    for actor in actors_of_all:
        get(actor.begin.remote())
    return actors_of_all


@pytest.fixture
def pair(fresh):
    """Wait until Ray, which takes its own time, has dropped the test's objects, before the next one counts."""
    yield fresh
    source, sink = fresh
    get(source.drop.remote()), get(sink.drop.remote())
    for actor in fresh:
        until(lambda: get(actor.stats.remote())["regions_live"] <= 0)


def get(ref):
    return ray.get(ref, timeout=PATIENCE)


def until(true):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def by_value(function):
    """Let Ray pickle it with its code: see actors()."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    return function


@by_value
def file_of(address):
    """Return device, inode and name of the file mapped at that address, and 'p' for a private mapping."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(text, 16) for text in line.split()[0].split("-"))
            if first <= address < last:
                _, rights, _, device, inode, *name = line.split()
                return device, inode, rights[3], "tmesh:" in "".join(name)
    return None


def sealed():
    return torch.from_dlpack(tmesh.put(torch.arange(100_000, dtype=torch.float32)).dlpack(allow_readonly=True))


def test_sealed_memory_is_not_copied(pair):
    source, sink = pair
    ref = source.make.remote(sealed)
    where = get(sink.see.remote(ref, lambda x: (file_of(x.data_ptr()), float(x.sum()))))
    theirs = get(source.call.remote(lambda self: file_of(self.made.data_ptr())))
    assert where[0][:2] == theirs[:2] and where[0][2:] == ("p", True)
    assert where[1] == float(torch.arange(100_000, dtype=torch.float32).sum())
    # put() has copied them, and nothing else has.
    assert get(source.stats.remote())["bytes_copied"] == 400_000
    assert get(sink.stats.remote())["bytes_copied"] == 0


def test_a_storage_inside_of_sealed_memory_is_not_copied(pair):
    source, sink = pair
    ref = source.make.remote(lambda: torch.from_numpy(sealed().numpy()[1000:])[5:])
    where, first = get(sink.see.remote(ref, lambda x: (file_of(x.data_ptr()), float(x[0]))))
    assert where[2:] == ("p", True) and first == 1005
    assert get(source.stats.remote())["bytes_copied"] == 400_000


def test_other_memory_is_copied_once_where_it_comes_from(pair):
    source, sink = pair
    ref = source.make.remote(lambda: {"a": torch.full((1000,), 3.0), "b": [torch.ones(7), "text"]})
    for _ in range(2):
        seen = get(sink.see.remote(ref, lambda d: (
            [file_of(x.data_ptr()) for x in (d["a"], d["b"][0])], float(d["a"].sum()), d["b"][0].tolist(), d["b"][1])))
        assert seen[1:] == (3000.0, [1.0] * 7, "text")
        assert seen[0][0] == seen[0][1] and seen[0][0][2:] == ("p", True)
    stats = get(source.stats.remote())
    assert (stats["bytes_copied"], stats["regions_live"]) == (4000 + 28, 1)
    assert get(sink.stats.remote())["bytes_copied"] == 0
    # The value when it was returned.
    get(source.call.remote(lambda self: self.made["a"].zero_().shape))
    assert get(sink.see.remote(ref, lambda d: float(d["a"].sum()))) == 3000.0


def test_memory_is_given_back(pair):
    """This test counts, so it runs before those after which Ray frees memory in its own time."""
    source, sink = pair
    ref = source.forget.remote(lambda: torch.ones(100_000))
    get(sink.hold.remote(ref))
    assert get(source.stats.remote())["regions_live"] == 1
    del ref
    until(lambda: not get(source.stats.remote())["regions_live"])
    assert get(sink.held.remote(lambda x: float(x.sum()))) == 100_000.0
    get(sink.hold.remote(None))
    until(lambda: not get(sink.stats.remote())["regions_live"])


def kinds():
    x = torch.arange(24.0).reshape(4, 6)
    return [x, x.t(), x[1:3], x.reshape(2, 2, 6).permute(2, 0, 1), torch.tensor(3.5), torch.empty(0),
            torch.empty(2, 0, 3), torch.ones(1).expand(5), x > 7, x.to(torch.bfloat16), x.to(torch.float16),
            x.to(torch.complex64), x.to(torch.int64), x.to(torch.uint8)[0]]


def test_types_and_strides(pair):
    source, sink = pair
    described = get(sink.see.remote(source.make.remote(kinds), lambda many: [
        (str(x.dtype), tuple(x.shape), x.stride(), x.tolist()) for x in many]))
    assert described == [(str(x.dtype), tuple(x.shape), x.stride(), x.tolist()) for x in kinds()]


def parameters():
    weight = torch.nn.Parameter(torch.ones(300))
    weight.mark = "mine"
    return {"weight": weight, "tied": weight, "over": weight.detach(), "frozen": torch.nn.Parameter(torch.ones(2), False),
            "leaf": torch.ones(4, requires_grad=True), "sealed": torch.nn.Parameter(sealed())}


def test_parameters_and_gradients(pair):
    source, sink = pair

    def see(d):
        d["weight"].data[0] = 7
        (d["weight"].sum() * 2).backward()
        return ({name: (type(x).__name__, x.requires_grad, x.is_leaf) for name, x in d.items()}, d["weight"].mark,
                d["tied"] is d["weight"], float(d["over"][0]), d["weight"].grad.tolist()[:2],
                all(file_of(x.data_ptr())[3] for x in d.values()))

    seen, mark, tied, over, grad, ours = get(sink.see.remote(source.make.remote(parameters), see))
    assert seen == {"weight": ("Parameter", True, True), "tied": ("Parameter", True, True),
                    "over": ("Tensor", False, True), "frozen": ("Parameter", False, True),
                    "leaf": ("Tensor", True, True), "sealed": ("Parameter", True, True)}
    assert (mark, tied, over, grad, ours) == ("mine", True, 7.0, [2.0, 2.0], True)
    # 300 and 2 and 4 elements, and those that put() copied: each once.
    assert get(source.stats.remote())["bytes_copied"] == 1200 + 8 + 16 + 400_000


@pytest.mark.parametrize("make, words", [
    (lambda: torch.ones(3, requires_grad=True) * 2, "send tensor.detach()"),
    (lambda: torch.ones(4, 4)[:, 0], "send tensor.contiguous()"),
    (lambda: torch.ones(3).to_sparse(), "no plain memory"),
    (lambda: torch.ones(3, dtype=torch.complex64).conj(), "resolve_conj()"),
    (lambda: torch.empty(3, device="meta"), "send tensor.cpu()"),
])
def test_what_is_refused(pair, make, words):
    source, sink = pair
    pid = get(source.pid.remote())
    with pytest.raises(Exception, match=words.replace("(", r"\(").replace(")", r"\)")):
        get(sink.see.remote(source.forget.remote(make), lambda x: float(x.sum())))
    assert get(source.pid.remote()) == pid
    assert get(sink.see.remote(source.forget.remote(sealed), lambda x: float(x[1]))) == 1.0


def test_other_classes_are_refused(pair):
    """Ray would send them through its object store without a warning. Without a transport this still works."""
    source, sink = pair

    def subclass():
        import torch

        class Mine(torch.Tensor):
            pass

        return torch.ones(3).as_subclass(Mine)

    with pytest.raises(Exception, match=r"class Mine.*as_subclass\(torch.Tensor\)"):
        get(sink.see.remote(source.forget.remote(subclass), float))
    with pytest.raises(Exception, match=r"class Mine.*as_subclass\(torch.Tensor\)"):
        get(sink.see.remote(source.forget.remote(lambda: {"x": [subclass()]}), float))
    assert get(source.call.remote(lambda self: type(subclass()).__name__)) == "Mine"
    assert get(sink.see.remote(source.forget.remote(sealed), lambda x: float(x[1]))) == 1.0


def test_tensors_of_the_other_kind_are_refused(fresh):
    source, sink = fresh
    get(source.forget.remote(sealed))
    with pytest.raises(Exception, match='tensor_transport="tmesh"'):
        get(source.native.remote(lambda: {"t": tmesh.put(b"x"), "x": torch.ones(3)}))
    with pytest.raises(Exception, match='by itself with the transport "tmesh_tensor"'):
        get(source.forget.remote(lambda: {"t": tmesh.put(b"x"), "x": torch.ones(3)}))


@pytest.mark.parametrize("put", [False, True])
def test_an_actor_without_the_transport_is_refused(pair, put):
    """Also for an object that is not made yet, for which the actor would wait forever."""
    class Plain:
        def see(self, value):
            return float(value.sum())

    def late():
        time.sleep(1)
        return torch.ones(3)

    plain = ray.remote(num_cpus=0)(Plain).remote()
    for _ in range(2):
        ref = ray.put(torch.ones(3), _tensor_transport="tmesh") if put else pair[0].forget.remote(late)
        with pytest.raises(tmesh.UnsupportedError, match=r"Actor\(.*Plain.*enable_tensor_transport=True"):
            plain.see.remote(ref)
        # Objects of other kinds still arrive.
        assert get(plain.see.remote(torch.ones(2))) == 2.0


@pytest.mark.parametrize("transport, value, words", [
    ("tmesh", lambda: tmesh.put(b"x"), 'with the transport "tmesh_tensor"'),
    ("tmesh", lambda: [torch.ones(1), tmesh.put(b"x")], 'with the transport "tmesh_tensor"'),
    ("tmesh", lambda: torch.ones(3).numpy(), "no torch.Tensor in the ndarray"), ("tmesh", dict, "no torch.Tensor in the dict"),
    ("tmesh_tensor", lambda: torch.ones(3), 'tensor_transport="tmesh"'), ("tmesh_tensor", lambda: None, "no tmesh.Tensor in the NoneType"),
])
def test_what_may_not_be_put(pair, transport, value, words):
    """Ray would report it after a minute, or never."""
    assert_refused(lambda: ray.put(value(), _tensor_transport=transport), tmesh.UnsupportedError, words)
    # A method may return an object without a tensor.
    assert get(pair[0].forget.remote(lambda: None)) is None


def test_gaps_in_sealed_memory_cost_nothing(pair):
    source, sink = pair
    assert get(sink.see.remote(source.forget.remote(lambda: sealed()[1::3]), lambda x: (x.stride(), x[:3].tolist()))) == (
        (3,), [1.0, 4.0, 7.0])


def test_writes_are_the_receivers_own(pair):
    source, sink = pair
    ref = source.make.remote(sealed)

    def write(x):
        x[:] = 42
        return float(x[99])

    pid = get(sink.pid.remote())
    assert get(sink.see.remote(ref, write)) == 42.0
    assert get(sink.see.remote(ref, lambda x: float(x[99]))) == 99.0
    assert get(source.call.remote(lambda self: float(self.made[99]))) == 99.0
    assert get(sink.pid.remote()) == pid
    # A received tensor that was written to is copied when it is sent on.
    mine = get(ref)
    mine[0] = 5
    again = ray.put(mine, _tensor_transport="tmesh")
    assert get(sink.see.remote(again, lambda x: (float(x[0]), float(x[99])))) == (5.0, 99.0)
    assert float(get(ref)[0]) in (0.0, 5.0)
    del mine, again, ref
    gone()


def gone():
    """Wait until Ray's threads have dropped the objects of this process."""
    def true():
        gc.collect()
        return not tmesh.stats()["regions_live"] - BEFORE[0]
    until(true)


BEFORE = [0]


@pytest.fixture(autouse=True)
def before(warm):
    gc.collect()
    BEFORE[0] = tmesh.stats()["regions_live"]
    yield
    gone()


def test_the_driver_puts_and_gets(pair):
    source, sink = pair
    got = get(source.make.remote(lambda: {"x": torch.arange(5.0), "n": 1}))
    got["x"].mul_(2)
    assert got["x"].tolist() == [0, 2, 4, 6, 8] and file_of(got["x"].data_ptr())[2:] == ("p", True)
    put = ray.put([torch.ones(10), torch.nn.Parameter(torch.ones(2))], _tensor_transport="tmesh")
    assert get(sink.see.remote(put, lambda many: [type(x).__name__ for x in many])) == ["Tensor", "Parameter"]
    many = [source.forget.remote(lambda: torch.ones(3)) for _ in range(20)]
    assert sum(float(x.sum()) for x in get(many)) == 60.0
    # Ray's object store, on request.
    assert ray.get(source.forget.remote(sealed), timeout=PATIENCE, _use_object_store=True).shape == (100_000,)


def test_who_has_the_memory_keeps_it(pair):
    source, sink = actors()[0].remote(), pair[1]
    ref = source.make.remote(sealed)
    get(sink.hold.remote(ref))
    os.kill(get(source.pid.remote()), signal.SIGKILL)
    pid = get(sink.pid.remote())
    assert_refused(lambda: get(source.pid.remote()), Exception)

    def write(x):
        x[0] = 1
        return x[:3].tolist(), float(x[-1])

    assert get(sink.held.remote(write)) == ([1, 1, 2], 99_999.0)
    # An actor without it gets an error, and stays alive.
    assert_refused(lambda: get(ref), Exception, "died|dead|gone|GONE")
    assert_refused(lambda: get(sink.see.remote(ref, lambda x: float(x.sum()))), Exception, "died|dead|gone|GONE")
    assert get(sink.pid.remote()) == pid


def test_tensors_of_tmesh(fresh):
    source, sink = fresh
    ref = source.native.remote(lambda: {"t": tmesh.put(torch.arange(6.0)), "n": 1})

    def see(d):
        try:
            d["t"].torch()
        except tmesh.AccessError as error:
            refused = str(error)
        mine = d["t"].torch(private=True)
        mine += 1
        return type(d["t"]).__name__, d["t"].sealed, d["t"].id, refused, mine.tolist(), d["t"].tolist()

    name, is_sealed, region, refused, written, read = get(sink.see.remote(ref, see))
    mine = get(ref)["t"]
    assert (name, is_sealed, region) == ("Tensor", True, mine.id)
    assert "private=True" in refused and written == [1, 2, 3, 4, 5, 6] and read == [0, 1, 2, 3, 4, 5]
    assert get(sink.stats.remote())["bytes_copied"] == 0
    with pytest.raises(Exception, match="put its contents into a new region"):
        get(source.native.remote(lambda: tmesh.put(b"x").private()))
    del mine


def test_by_rays_object_store(fresh):
    """Its elements, as docs/howto/integrations.md describes: each receiver has a copy."""
    source, sink = fresh
    returned = source.call.remote(by_value(lambda self: tmesh.put(torch.arange(4))))
    assert get(sink.see.remote(returned, by_value(lambda value: value.numpy().tolist()))) == [0, 1, 2, 3]
    assert get(sink.see.remote(returned, by_value(lambda value: (value.lost, value.tolist())))) == (False, [0, 1, 2, 3])
    assert get(returned).tolist() == [0, 1, 2, 3]


def test_another_machine_is_refused(pair):
    """The other machine is a fake: this one, with another boot id."""
    source, sink = pair

    def move(self, name):
        import tmesh.ray
        tmesh.ray._boot, self.boot = (lambda: name) if name else self.boot, tmesh.ray._boot

    get(source.call.remote(move, "another"))
    ref = source.make.remote(sealed)
    words = "memory of another machine.*nixl.*_use_object_store"
    assert_refused(lambda: get(ref), Exception, words)
    assert_refused(lambda: get(sink.see.remote(ref, lambda x: 1)), Exception, words)
    get(source.call.remote(move, None))
    assert get(sink.see.remote(source.make.remote(sealed), lambda x: float(x[1]))) == 1.0


@pytest.mark.parametrize("engine", ["fetcher", "nixl", "mooncake"])
def test_another_machine_by_a_mover(cluster, engine):
    """The source has another boot id, as if it were another machine. The mover that both ends name fetches the bytes
    into the receiver's own memory. They stay there after the source has died."""
    if engine == "fetcher" and not os.environ.get("TMESH_NET_LIBRARY"):
        pytest.skip("TMESH_NET_LIBRARY names no libtmesh-net: make python-ray-check")
    if engine != "fetcher":
        pytest.importorskip({"nixl": "nixl_cu12", "mooncake": "mooncake"}[engine], reason=f"{engine} is not installed: make python-ray-check")
    Source, Sink = actors()
    environment = {"env_vars": {"OMP_NUM_THREADS": "1", "TMESH_RAY_MOVER": engine, "UCX_TLS": "tcp", "UCX_LOG_LEVEL": "error",
                                "NIXL_LOG_LEVEL": "FATAL"}}
    source, sink = (kind.options(runtime_env=environment).remote() for kind in (Source, Sink))
    plain = Sink.remote()

    def elsewhere(self):
        import tmesh.ray
        tmesh.ray._boot = lambda: "another"

    def tensors():
        return {"a": torch.arange(100_000, dtype=torch.int64).reshape(400, 250).t(), "b": torch.ones(3), "none": torch.empty(0, 5)}

    def seen(value):
        return (value["a"].tolist() == torch.arange(100_000).reshape(400, 250).t().tolist() and value["a"].stride() == (1, 250) and
                value["b"].tolist() == [1, 1, 1] and value["none"].shape == (0, 5))

    def registered(self):
        from tmesh import movers
        from tmesh.offers import _registered
        return len(movers._known["fetcher"]._offered if "fetcher" in movers._known else _registered)

    get(source.call.remote(elsewhere))
    ref = source.make.remote(tensors)
    assert_refused(lambda: get(plain.see.remote(ref, seen)), Exception, "memory of another machine.*TMESH_RAY_MOVER")
    assert get(sink.see.remote(ref, seen))
    get(sink.hold.remote(ref))
    native = source.native.remote(lambda: tmesh.put(torch.arange(12, dtype=torch.float32).reshape(3, 4).numpy()))
    assert get(sink.see.remote(native, lambda t: (t.numpy().tolist(), t.dtype, t.sealed))) == \
        (torch.arange(12.0).reshape(3, 4).tolist(), "float32", True)
    # Memory of objects that Ray has freed is no longer registered.
    del ref, native
    until(lambda: not get(source.call.remote(registered)))
    ray.kill(source)
    assert get(sink.held.remote(seen))
    for actor in sink, plain:
        ray.kill(actor)


def test_a_fetch_that_ray_gives_up():
    """As Ray does after a minute; nothing of it is kept."""
    transport, came = tmesh.ray.TensorTransport(), []

    class Stuck:
        name = "fetcher"

        def fetch(self, offer, sizes, stop):
            came.append(sizes)
            transport.abort_transport("another", None)
            assert not stop.is_set()
            transport.abort_transport("1", None)
            assert stop.wait(PATIENCE)
            raise tmesh.CancelledError(125, "the fetch was given up")

    metadata = tmesh.ray.Metadata(tensor_meta=[], tensor_device="cpu", boot="another", refs=[tmesh.put(b"x").ref()], mover="fetcher", offer=b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tmesh.ray.movers, "mover", Stuck)
        with pytest.raises(tmesh.CancelledError, match="object 1: the fetch was given up; by fetcher, from another machine"):
            transport.recv_multiple_tensors("1", metadata, None)
    assert came == [[1]] and not transport._stops
    transport.abort_transport("1", None)


def test_buffers_are_refused(pair):
    source, _ = pair
    ref = source.make.remote(lambda: [torch.ones(3)])
    buffer = torch.zeros(3)
    ray.experimental.set_target_for_ref(ref, [buffer])
    assert_refused(lambda: get(ref), tmesh.UnsupportedError, r"buffer\.copy_\(tensor\) copies")
    assert not buffer.any()


def test_an_object_described_again_has_the_same_refs():
    transport = tmesh.ray.TorchTransport()
    tensors = [torch.ones(3)]
    first = transport.extract_tensor_transport_metadata("1", tensors)
    assert transport.extract_tensor_transport_metadata("1", tensors) is first
    received = transport.recv_multiple_tensors("1", first, None)
    transport.garbage_collect("1", first, tensors)
    transport.garbage_collect("1", first, tensors)
    assert received[0].tolist() == [1, 1, 1]
    with pytest.raises(tmesh.NotFoundError, match="its source has died or freed it"):
        transport.recv_multiple_tensors("1", first, None)


@pytest.mark.parametrize("make, words", [
    (lambda: torch.ones(3, dtype=torch.complex64).conj().imag, "resolve_neg"),
    (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "no plain memory"),
    (lambda: tmesh.put(b"x"), 'tensors of PyTorch alone, and a tmesh.Tensor was returned or put.*the transport "tmesh_tensor"'),
])
def test_what_else_is_refused(make, words):
    with pytest.raises(tmesh.UnsupportedError, match=words):
        tmesh.ray.TorchTransport().extract_tensor_transport_metadata("1", [make()])


@pytest.mark.parametrize("turned", [False, True])
def test_a_part_that_begins_where_the_whole_does(turned):
    ours = tmesh.put(torch.arange(6.0))
    both = [torch.from_dlpack(one.dlpack(allow_readonly=True)) for one in ((ours, ours[:3]) if turned else (ours[:3], ours))]
    part, whole = reversed(both) if turned else both
    transport = tmesh.ray.TorchTransport()
    metadata = transport.extract_tensor_transport_metadata("1", [part, whole, whole[2:], part[1:]])
    received = transport.recv_multiple_tensors("1", metadata, None)
    assert [x.tolist() for x in received] == [[0, 1, 2], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5], [1, 2]]
    transport.garbage_collect("1", metadata, [])


def test_what_is_received_fits_the_memory():
    transport = tmesh.ray.TorchTransport()
    metadata = transport.extract_tensor_transport_metadata("1", [torch.ones(3)])
    for start, end, strides in (0, 12, (2,)), (0, 8, (1,)), (100, 112, (1,)):
        place = metadata.places[0]
        place.start, place.end, place.strides = start, end, strides
        assert_refused(lambda: transport.recv_multiple_tensors("1", metadata, None), RuntimeError)
    transport.garbage_collect("1", metadata, [])


def test_registered_twice(pair):
    source, sink = pair
    tmesh.ray.register()

    def again(self):
        import tmesh.ray
        tmesh.ray.register()

    get(source.call.remote(again))
    assert get(sink.see.remote(source.forget.remote(lambda: torch.ones(3)), lambda x: float(x.sum()))) == 3.0


def test_restarted_actors():
    """This runs last, because it starts another Ray, in which each worker registers the transports."""
    ray.shutdown()
    folder = start(worker_process_setup_hook="tmesh.ray.register")
    try:
        Source, Sink = actors()
        source, sink = Source.options(max_restarts=1, max_task_retries=-1).remote(), Sink.remote()
        assert get(sink.see.remote(source.forget.remote(sealed), lambda x: float(x[1]))) == 1.0
        pid = get(source.pid.remote())
        os.kill(pid, signal.SIGKILL)
        until(lambda: get(source.pid.remote()) != pid)
        assert get(sink.see.remote(source.forget.remote(lambda: torch.nn.Parameter(torch.ones(3))),
                                   lambda x: (type(x).__name__, file_of(x.data_ptr())[3]))) == ("Parameter", True)
        del source, sink
    finally:
        stop(folder)
