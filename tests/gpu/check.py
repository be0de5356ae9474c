#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The checks that need an NVIDIA GPU, with PyTorch, CuPy and JAX where they can be imported. steps.py runs them.

usage: check.py --one NAME     that one, in this process; status 77: it says why it was skipped"""

import ctypes
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import weakref

import gpu
from gpu import Peer, Skip

LIMIT_S = 50
FRAMEWORK_S = 90  # in up to three processes, whose first use of a framework takes long
SANITIZER_S = 240
VLLM_S = 300  # two engines, whose first start compiles and measures
SKIPPED = 77

# The processes that run one test import it; the starting process needs no context.
tmesh = None
tests = {}


def test(row, limit=LIMIT_S):
    """@row: of the table in docs/reference/cuda.md that it is about. @limit: in seconds."""
    def add(function):
        tests[function.__name__] = (function, row, limit)
        return function
    return add


def note(text):
    print(f"# {text}", flush=True)


def raises(kind, function, *args, word="CUDA_ERROR_", **kwargs):
    """Check that the call is refused with the CUDA error's name, and note it."""
    try:
        function(*args, **kwargs)
    except kind as error:
        note(f"{function.__name__}: {error}")
        assert word in str(error), f"does not say {word}: {error}"
    else:
        raise AssertionError(f"{function.__name__} raised nothing")


def eventually(condition, what):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"in 10 s it never was so: {what}")


def call(function, *args):
    """A function whose last argument is a struct tmesh_error."""
    report = ctypes.create_string_buffer(tmesh._tmesh.ERROR_BYTES)
    if function(*args, report):
        tmesh._tmesh.raise_error(report)


def library():
    """libtmesh-cuda, for the calls that tmesh.cuda does not show, and tmesh.cuda's object of it."""
    found, handle = ctypes.CDLL("libtmesh-cuda.so.0"), ctypes.c_void_p()
    found.tmesh_cuda_trim.restype = None
    call(found.tmesh_cuda_default, ctypes.byref(handle))
    return found, handle


class Stats(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in (
        "bytes_used", "bytes_reserved", "bytes_pending_free", "blocks", "allocs", "reused", "imported_bytes",
        "registered_bytes", "staged_copies", "staged_bytes", "host_fallbacks", "host_waits", "taken")]


def stats():
    all_ = Stats(size=ctypes.sizeof(Stats))
    found, handle = library()
    assert found.tmesh_cuda_stats(handle, -1, ctypes.byref(all_)) == 0
    return all_


HOST = "host regions registered, read-only registration, leases touched, taken away on lapse"
VMM = "VMM blocks, two devices, out of memory, host memory on request"
REFS = "refs between processes, access, read-only mappings, sending on"
KILLS = "SIGKILL of either side, no reuse under a holder, reclaim, holders"
EVENTS = "interprocess events: a consumer's stream waits, no host does"
IPC = "cuIpc for foreign memory"
PIECES = "host regions registered in pieces, with progress"
CAPTURE = "allocations and frees while a stream captures a graph, which goes on"
KEPT = "kept memory opened again after its maker and openers were killed"
CONTEXT = "a context destroyed under all of these, also if replaced"
TORCH = "PyTorch's allocator (`libtmesh-cuda-torch.so`)"
HOOK = "the preload (`libtmesh-cuda-hook.so`)"
HOOK_STATIC = "the preload under a static runtime (`TMESH_CUDA_HOOK_DRIVER=1`)"
VLLM = "vLLM on a GPU: tokens of an engine, the load format `tmesh`"
GGML = 'the engine "ggml" by ggml\'s backend for CUDA, beside the CPU'


class Cap(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("level", ctypes.c_int), ("reason", ctypes.c_char * 160)]


PROGRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
RIGHTS_READ, RIGHTS_WRITE = 1, 2


class RegisterOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_int), ("rights", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("piece_bytes", ctypes.c_uint64), ("progress", PROGRESS),
                ("data", ctypes.c_void_p)]


@test("what the doctor says of each path")
def doctor(driver):
    caps, (found, handle) = (Cap * 11)(), library()
    call(found.tmesh_cuda_caps_sized, handle, 0, caps, ctypes.c_size_t(len(caps)), ctypes.c_size_t(ctypes.sizeof(Cap)))
    levels = {}
    for cap in caps:
        levels[cap.name.decode()] = cap.level
        note(f"{cap.name.decode()}: {('not tried', 'not supported', 'works')[cap.level]}: {cap.reason.decode()}")
    for name in ("host-register", "vmm", "posix-fd", "opaque-fd-import"):
        assert levels[name] == 2, f"{name} does not work"


@test(HOST)
def region_registered(driver):
    tensor = tmesh.empty((1 << 20,), "uint8")
    tensor.numpy()[:4] = b"host"[0]
    with tmesh.cuda.open(tensor.ref(writable=True), writable=True) as array:
        assert array.kind == "host"
        assert driver.read(array.pointer, 4) == b"hhhh"
        driver.write(array.pointer, b"from the device")
        driver.synchronize()
        assert bytes(tensor.numpy()[:15]) == b"from the device"
        # Kernels use the device pointer and not the host's mapping.
        with tmesh.cuda.empty(1 << 20, "uint8") as there:
            driver.copy_by_kernel(there.pointer, array.pointer, 1 << 20)
            assert driver.read(there.pointer, 15) == b"from the device"
            driver.write(there.pointer, b"by a kernel")
            driver.copy_by_kernel(array.pointer, there.pointer, 1 << 20)
        assert bytes(tensor.numpy()[:11]) == b"by a kernel"


@test("host regions on huge pages")
def huge_pages_registered(driver):
    try:
        # The stand-in takes whatever there is.
        tensor = tmesh.empty((8 << 20,), "uint8", huge="try" if driver.is_standin() else True)
    except tmesh.Error as error:
        raise Skip(f"no huge pages (vm.nr_hugepages? shmem_enabled?): {error}") from None
    with tmesh.cuda.open(tensor.ref(writable=True), writable=True) as array:
        driver.write(array.pointer + (5 << 20), b"huge")
        driver.synchronize()
        assert bytes(tensor.numpy()[5 << 20:][:4]) == b"huge"


WORDS = b"not written here"


def open_for_reading(driver, tensor):
    try:
        array = tmesh.cuda.open(tensor.ref())
    except tmesh.UnsupportedError as error:
        # Newer GPUs take no read-only memory: tmesh copies instead, and counts the copy.
        note(str(error))
        array = tmesh.cuda.open(tensor.ref(), or_copy=True)
        assert array.kind == "staged" and stats().staged_copies > 0
    with array, tmesh.cuda.empty(16, "uint8") as there:
        assert driver.read(array.pointer, 16) == WORDS and not array.writable
        driver.copy_by_kernel(there.pointer, array.pointer, 16)
        assert driver.read(there.pointer, 16) == WORDS


@test(HOST)
def sealed_region_read_only(driver):
    open_for_reading(driver, tmesh.put(bytearray(WORDS), seal=True))


@test(HOST)
def region_for_reading(driver):
    open_for_reading(driver, tmesh.put(bytearray(WORDS), seal=False))


@test(PIECES)
def registered_in_pieces(driver):
    """A region with pieces of 64 MiB, as much larger regions have pieces of 64 GiB; kernels and copies cross their
    edges."""
    found, handle = library()
    regions = ctypes.CDLL("libtmesh.so.0")
    size, piece, seen = 256 << 20, 64 << 20, []
    if driver.is_standin():
        size, piece = 8 << 20, 2 << 20
    context, region, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call(regions.tmesh_ctx_open, None, ctypes.byref(context))
    call(regions.tmesh_region_create, context, ctypes.c_uint64(size), None, ctypes.byref(region))

    def progress(_, done, whole):
        seen.append(done)
        assert whole == size
        return 0

    opts = RegisterOpts(ctypes.sizeof(RegisterOpts), 0, RIGHTS_READ | RIGHTS_WRITE, 0, piece, PROGRESS(progress), None)
    start = time.monotonic()
    call(found.tmesh_cuda_register_with, handle, region, ctypes.byref(opts), ctypes.byref(memory))
    note(f"{size >> 20} MiB in {len(seen) - 1} pieces took {time.monotonic() - start:.3f} s")
    try:
        assert seen == list(range(0, size + 1, piece)), seen
        found.tmesh_cuda_pointer.restype = ctypes.c_uint64
        data, back = bytes(range(256)) * 16, ctypes.create_string_buffer(4096)
        call(found.tmesh_cuda_write, memory, ctypes.c_uint64(piece - 2048), data, ctypes.c_uint64(4096))
        call(found.tmesh_cuda_read, memory, ctypes.c_uint64(piece - 2048), back, ctypes.c_uint64(4096))
        assert back.raw == data
        if not driver.is_standin():  # whose kernels do not go over an edge
            with tmesh.cuda.empty(4096, "uint8") as there:
                driver.copy_by_kernel(there.pointer, found.tmesh_cuda_pointer(memory) + piece - 2048, 4096)
                assert driver.read(there.pointer, 4096) == data
    finally:
        found.tmesh_cuda_memory_unref.restype = regions.tmesh_region_unref.restype = None
        found.tmesh_cuda_memory_unref(memory)
        regions.tmesh_region_unref(region)
        regions.tmesh_ctx_unref(context)


@test(CAPTURE)
def captures_go_on(driver):
    """In the strictest mode, of a stream that does not block the default one, as frameworks capture."""
    found, handle = library()
    stream, graph = driver.stream(), ctypes.c_void_p()
    with tmesh.cuda.empty(1 << 20, "uint8", alone=True) as array:
        before = driver.free_bytes()
        call(found.tmesh_cuda_capture_begin, handle, 0)
        driver.call("cuStreamBeginCapture_v2", stream, 0)
        for _ in range(20):
            with tmesh.cuda.empty(2 << 20, "uint8", alone=True) as other:
                tmesh.cuda.share(other, stream=-1)
        raises(tmesh.BusyError, tmesh.cuda.share, array, stream=stream.value, word="captures a graph")
        driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        call(found.tmesh_cuda_capture_end, handle, 0)
        eventually(lambda: driver.free_bytes() >= before, "memory given back after the capture")


@test(HOST)
def host_lease(driver):
    """The holder's library touches it; a holder that is stopped for longer loses it."""
    tensor = tmesh.put(bytearray(WORDS), seal=False)
    with Peer() as peer:
        peer.ask(tensor.ref(), writable=False, lease=1)
        time.sleep(3)
        assert not peer.say(taken=True)["taken"]
        peer.stop()
        time.sleep(3)
        os.kill(peer.process.pid, signal.SIGCONT)
        eventually(lambda: peer.say(taken=True)["taken"], "taken")


@test(VMM)
def out_of_memory(driver):
    raises(tmesh.OutOfMemoryError, tmesh.cuda.empty, 1 << 44, "uint8", word="CUDA_ERROR_OUT_OF_MEMORY")
    arrays = [tmesh.cuda.empty(3 << 20, "uint8") for _ in range(20)]
    assert len({array.pointer for array in arrays}) == 20 and stats().reused
    for array in arrays:
        array.release()
    assert stats().bytes_used == 0


@test(REFS)
def two_processes(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8")
    driver.write(array.pointer, b"first" * 20)
    with Peer() as peer:
        answer = peer.ask(tmesh.cuda.share(array), write=b"second".hex())
        assert bytes.fromhex(answer["bytes"]).startswith(b"first") and answer["kind"] == "imported"
        assert driver.read(array.pointer, 6) == b"second"
        peer.end()


@test(REFS)
def three_processes_and_a_producer_that_goes(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8")
    driver.write(array.pointer, b"sent on" * 10)
    with Peer() as first, Peer() as second:
        ref = first.ask(tmesh.cuda.share(array), share=True)["ref"]
        array.release()
        assert bytes.fromhex(second.ask(ref)["bytes"]).startswith(b"sent on")


@test(REFS)
def mapping_for_reading(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8", alone=True)
    driver.write(array.pointer, b"kept")
    with Peer() as peer:
        answer = peer.ask(tmesh.cuda.share(array), writable=False, try_write=b"gone".hex())
        note(f"writing to it: {answer['refused']}")
        assert bytes.fromhex(answer["bytes"]).startswith(b"kept")
    assert answer["refused"] and driver.read(array.pointer, 4) == b"kept"


@test("leases of an importer")
def lease_of_an_importer(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8")
    with Peer() as peer:
        peer.ask(tmesh.cuda.share(array), lease=0.5)
        eventually(lambda: peer.say(taken=True)["taken"], "taken")
        array.release()
        eventually(lambda: stats().bytes_pending_free == 0, "given back")


@test(KILLS)
def killed_readers_leak_nothing(driver):
    for _ in range(5):
        array = tmesh.cuda.empty(64 << 20, "uint8", alone=True)
        with Peer() as peer:
            peer.ask(tmesh.cuda.share(array))
            array.release()
            assert stats().bytes_pending_free == 64 << 20
        eventually(lambda: stats().bytes_pending_free == 0, "given back")


@test(KILLS)
def killed_producer_takes_nothing(driver):
    with Peer() as producer:
        ref = producer.say(make=4 << 20, fill=7, alone=True)["ref"]
        array = tmesh.cuda.open(ref)
        producer.kill()
    assert driver.read(array.pointer + (3 << 20), 4) == b"\7" * 4
    array.release()
    raises(tmesh.NotFoundError, tmesh.cuda.open, ref, word="CUDA_ERROR_INVALID_HANDLE")


@test(KEPT)
def kept_when_all_are_killed(driver):
    """A process without a context has its descriptor, and nothing else is left."""
    size, name = 64 << 20, f"check-gpu-{os.getpid()}"
    try:
        with Peer() as maker:
            made = maker.say(keep=size, name=name)["digest"]
            maker.kill()
        note(f"nvidia-smi, with the keeper alone: {gpu.used_mib()} MiB are used")
        for _ in range(2):
            with Peer() as client:
                assert client.say(kept=name)["digest"] == made
                client.kill()
        with tmesh.cuda.open_kept(name, writable=True) as array, Peer() as peer:
            assert hashlib.sha256(driver.read(array.pointer, size)).hexdigest() == made
            # By a kernel too, and sent on.
            with tmesh.cuda.empty(size, "uint8", alone=True) as there:
                driver.copy_by_kernel(there.pointer, array.pointer, size)
                assert hashlib.sha256(driver.read(there.pointer, size)).hexdigest() == made
            driver.write(array.pointer, b"one memory")
            driver.synchronize()
            assert bytes.fromhex(peer.ask(array.ref())["bytes"]).startswith(b"one memory")
            tmesh.drop(name)
            assert driver.read(array.pointer, 10) == b"one memory"
            peer.end()
    finally:
        if any(one["name"] == name for one in tmesh.kept()):
            tmesh.drop(name)
    raises(tmesh.NotFoundError, tmesh.cuda.open_kept, name, word="nothing is kept")


@test(KILLS)
def reclaimed(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8", alone=True)
    with Peer() as peer:
        peer.ask(tmesh.cuda.share(array))
        array.reclaim(timeout=10)
        assert peer.say(taken=True)["taken"]
        driver.write(array.pointer, b"still mine")
        peer.ask(tmesh.cuda.share(array))
        peer.stop()
        raises(tmesh.PeerTimeoutError, array.reclaim, timeout=0.2, word=f"{peer.process.pid} (")


@test(EVENTS)
def order_without_waiting(driver):
    """A ref goes out while the producer's stream is at work; its opener reads the bytes written last."""
    size = 256 << 20 if not driver.is_standin() else 1 << 20
    array = tmesh.cuda.empty(size, "uint8", alone=True)
    stream = driver.stream()
    with Peer() as peer:
        peer.say(make=1, fill=0)
        for value in [1] * 2000 + [7]:
            driver.fill(array.pointer, value, size, stream)
        ref = tmesh.cuda.share(array, stream=stream.value)
        busy = driver.busy(stream)
        first = bytes.fromhex(peer.ask(ref)["bytes"])
        note(f"the stream was {'still at work' if busy else 'done'} when the ref was made")
        assert first == b"\7" * 64, f"read {first[:4]}"
        assert busy or driver.is_standin(), "the stream was too quick to show anything"
    assert stats().host_waits == 0, f"the host waited {stats().host_waits} times"


@test("each bad input's error")
def bad_input(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8", alone=True)
    ref = tmesh.cuda.share(array)
    array.release()
    raises(tmesh.NotFoundError, tmesh.cuda.open, ref, word="CUDA_ERROR_INVALID_HANDLE")
    raises(tmesh.Error, tmesh.cuda.empty, 1, device=63, word="CUDA_ERROR_INVALID_DEVICE")
    memory, (found, handle) = ctypes.c_void_p(), library()
    for kind in (1, 2):  # an opaque descriptor, a dma-buf
        with open(os.devnull, "rb") as file:
            raises(tmesh.Error, call, found.tmesh_cuda_import_fd, handle, 0, kind, file.fileno(),
                   ctypes.c_uint64(1 << 21), ctypes.byref(memory), word="CUDA_ERROR_")


@test(CONTEXT)
def context_reset(driver):
    """The context is gone, and another caller revived it: none of its old objects is used or touched."""
    tensor = tmesh.empty((1 << 20,), "uint8")
    ref = tensor.ref(writable=True)
    array = tmesh.cuda.open(ref, writable=True)
    block = tmesh.cuda.empty(1 << 20, "uint8")
    tmesh.cuda.share(block)
    driver.call("cuDevicePrimaryCtxReset_v2", 0)
    raises(tmesh.Error, tmesh.cuda.empty, 1, word="CUDA_ERROR_CONTEXT_IS_DESTROYED")
    raises(tmesh.Error, tmesh.cuda.share, block, word="CUDA_ERROR_CONTEXT_IS_DESTROYED")
    array.release()
    block.release()


@test(CONTEXT)
def context_revived(driver):
    tensor = tmesh.empty((1 << 20,), "uint8")
    ref = tensor.ref(writable=True)
    array = tmesh.cuda.open(ref, writable=True)
    block = tmesh.cuda.empty(1 << 20, "uint8")
    tmesh.cuda.share(block)
    before = driver.context
    driver.call("cuDevicePrimaryCtxReset_v2", 0)
    again = gpu.Driver()
    note(f"the revived context has {'the same' if again.context == before else 'another'} address")
    raises(tmesh.Error, tmesh.cuda.empty, 1, word="CUDA_ERROR_CONTEXT_IS_DESTROYED")
    raises(tmesh.Error, tmesh.cuda.open, ref, writable=True, word="CUDA_ERROR_CONTEXT_IS_DESTROYED")
    raises(tmesh.Error, tmesh.cuda.share, block, word="CUDA_ERROR_CONTEXT_IS_DESTROYED")
    array.release()
    block.release()


def between_three(driver, name):
    """A framework makes it here, the same one writes it in a second process, and reads it in a third."""
    by = gpu.FRAMEWORKS[name]()
    array = tmesh.cuda.empty(1000, "int32")
    view = by.view(array)
    if not by.fill(view, 3):
        driver.write(array.pointer, b"\3\0\0\0" * 1000)
    driver.synchronize()
    with Peer() as first, Peer() as second:
        ref = tmesh.cuda.share(view)
        assert ref["cuda"]["kind"] == "vmm", ref
        answer = first.ask(ref, by=name, value=5, share=True)
        assert answer["total"] == 3000, answer
        expected = 5000 if answer["written"] else 3000
        assert second.ask(answer["ref"], by=name)["total"] == expected
        assert driver.read(array.pointer, 4)[0] == expected // 1000


@test("real PyTorch in three processes", FRAMEWORK_S)
def torch_between_processes(driver):
    between_three(driver, "torch")


@test("real CuPy in three processes", FRAMEWORK_S)
def cupy_between_processes(driver):
    between_three(driver, "cupy")


@test("real JAX in three processes", FRAMEWORK_S)
def jax_between_processes(driver):
    between_three(driver, "jax")


def foreign(name, array, total):
    """A framework's own memory, in another process's framework."""
    ref = tmesh.cuda.share(array)
    note(f"{name}: {ref['cuda']}")
    assert ref["cuda"]["kind"] == "ipc"
    with Peer() as peer:
        assert peer.ask(ref, by=name)["total"] == total
        peer.end()


@test(IPC, FRAMEWORK_S)
def torch_foreign_by_ipc(driver):
    torch = gpu.Torch().torch
    foreign("torch", torch.arange(16, device="cuda", dtype=torch.int32), 120)


@test(IPC, FRAMEWORK_S)
def cupy_foreign_by_ipc(driver):
    foreign("cupy", gpu.Cupy().cupy.arange(16, dtype="int32"), 120)


@test(IPC, FRAMEWORK_S)
def jax_foreign_by_ipc(driver):
    numpy = gpu.Jax().jax.numpy
    foreign("jax", numpy.arange(16, dtype="int32").block_until_ready(), 120)


@test("arrays that have DLPack alone, shared and lent", FRAMEWORK_S)
def jax_bfloat16_by_dlpack(driver):
    numpy = gpu.Jax().jax.numpy
    array = numpy.ones(64, dtype=numpy.bfloat16).block_until_ready()
    ref = tmesh.cuda.share(array)
    assert ref["dtype"] == "bfloat16"
    with Peer() as peer:
        assert bytes.fromhex(peer.ask(ref)["bytes"])[:4] == b"\x80\x3f\x80\x3f"
        peer.end()


def torch_pool():
    torch = gpu.Torch().torch
    if not hasattr(torch.cuda, "MemPool"):
        raise Skip(f"PyTorch {torch.__version__} has no MemPool")
    plugin = torch.cuda.memory.CUDAPluggableAllocator("libtmesh-cuda-torch.so", "tmesh_torch_malloc",
                                                      "tmesh_torch_free")
    return torch, torch.cuda.MemPool(plugin.allocator())


@test(TORCH, FRAMEWORK_S)
def torch_pool_and_training_step(driver):
    torch, pool = torch_pool()
    with torch.cuda.use_mem_pool(pool):
        model = torch.nn.Linear(256, 256, device="cuda")
        data = torch.randn(64, 256, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Peer() as peer:
        for _ in range(3):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            ref = tmesh.cuda.share(model.weight.data)
            assert ref["cuda"]["kind"] == "vmm", ref
            seen = bytes.fromhex(peer.ask(ref, keep=False)["bytes"])
            assert seen == model.weight.data.cpu().numpy().tobytes()[:64]


@test("tensors of a segment lent and given back singly", FRAMEWORK_S)
def torch_lends_what_it_has_forgotten(driver):
    torch, pool = torch_pool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.full((64,), 7, dtype=torch.uint8, device="cuda")
        gone = weakref.ref(tensor)
        with Peer() as peer:
            with tmesh.cuda.lend(tensor) as array:
                pointer = array.pointer
                peer.ask(array.ref())
            del tensor
            others = [torch.zeros(64, dtype=torch.uint8, device="cuda") for _ in range(100)]
            torch.cuda.synchronize()
            assert driver.read(pointer, 64) == b"\7" * 64
        eventually(lambda: not gone(), "the tensor is PyTorch's again")
        del others


def preload():
    """Return the path of the hook."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        path = os.path.join(folder, "libtmesh-cuda-hook.so")
        if os.path.exists(path):
            return path
    raise Skip("libtmesh-cuda-hook.so is not on LD_LIBRARY_PATH")


@test(HOOK_STATIC)
def static_runtime_under_the_preload(driver):
    program = os.path.join(gpu.HERE, "static_runtime")
    if not os.path.exists(program):
        raise Skip("the kit was made without a CUDA toolkit, so it has no program with a static runtime")
    if os.environ.get("TMESH_GPU_STANDIN"):
        raise Skip("the stand-in lacks the private tables that the static runtime asks for")
    hook = preload()
    for on, word in (("0", "0 not shareable 0"), ("1", "0 shareable 0")):
        done = subprocess.run([program], env={**os.environ, "LD_PRELOAD": hook, "TMESH_CUDA_HOOK_DRIVER": on},
                              capture_output=True, text=True, timeout=LIMIT_S)
        for line in (done.stdout + done.stderr).splitlines():
            note(line)
        assert done.returncode == 0 and done.stdout.strip() == word, (on, done)


@test(HOOK, FRAMEWORK_S)
def torch_under_the_preload(driver):
    gpu.Torch()
    hook = preload()
    script = ("import torch, tmesh.cuda\nt = torch.zeros(1000, device='cuda')\n"
              "print(tmesh.cuda.share(t)['cuda']['kind'])\n")
    done = subprocess.run([sys.executable, "-P", "-c", script], env={**os.environ, "LD_PRELOAD": hook},
                          capture_output=True, text=True, timeout=FRAMEWORK_S)
    for line in (done.stdout + done.stderr).splitlines():
        note(line)
    assert done.returncode == 0 and done.stdout.strip() == "vmm"


TWIN = """graph twin
x = input : float32[2,128]
pos = input : int32[2]
rows = input : int64[2]
past = input cache=reuse : float32[32,128]
pool = input : float32[8,16,2,64]
tables = input : int32[2,2]
a = input : float32[4,128]
b = input : float32[128,4]
w = weight : float16[128,128]
blocks = weight quant=Q8_0 : float32[128,128]
n = rms_norm(x)
s = silu(n)
m = lora(s, w, a, b)
fresh = matmul(m, blocks)
present = set_rows(past, fresh, rows)
k = reshape(present) : float32[32,2,64]
heads = reshape(m) : float32[2,2,64]
q = rope(heads, pos) dims=64
seen = attention(q, k, k, pos)
paged = attention(q, pool, pool, pos, tables)
both = add(seen, paged)
output seen = seen
output both = both
output present = present
"""


def vllm_tokens(folder, load_format):
    """Return an engine's tokens, and what tmesh's loader reports."""
    process = subprocess.Popen([sys.executable, os.path.join(gpu.HERE, "vllm_engine.py"), folder, load_format], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    last = report = ""
    for line in process.stdout:
        last = line.rstrip()
        note(f"{load_format}: {last}")
        if "tmesh: {'artifact'" in last:
            report = last
    assert process.wait() == 0, f"the engine with the load format {load_format} ended with {process.returncode}"
    return json.loads(last), report


@test(VLLM, VLLM_S)
def vllm_loads_a_model(driver):
    """With a Python that has vLLM for CUDA. An engine with the load format "tmesh" keeps finished weights in GPU memory, and a second one maps
    them. Both have the tokens of "auto"."""
    if importlib.util.find_spec("vllm") is None:
        raise Skip("vllm cannot be imported: this Python has no wheel of it")
    import tmesh

    with tempfile.TemporaryDirectory() as folder:
        tokens, _ = vllm_tokens(folder, "auto")
        assert len(tokens) == 16, tokens
        for made in True, False:
            found, report = vllm_tokens(folder, "tmesh")
            assert found == tokens, (found, tokens)
            assert f"'made': {made}" in report and "'reason': ''" in report, report
    for one in tmesh.kept():
        if one["name"][:2] in ("a.", "g."):
            tmesh.drop(one["name"])


@test(GGML, FRAMEWORK_S)
def ggml_as_on_the_cpu(driver):
    """With TMESH_GGML, a libggml that was built with GGML_CUDA: 20 runs, each on the last one's cache."""
    import tmesh.engine

    try:
        import numpy

        contexts = [tmesh.engine.Context("ggml", device=device) for device in ("cuda", "cpu")]
    except (ImportError, tmesh.UnsupportedError) as error:
        raise Skip(str(error)) from None
    random = numpy.random.default_rng(1)
    scales = numpy.full((512, 1), 0.001, "float16").view("uint8")
    blocks = numpy.concatenate([scales, random.integers(0, 256, (512, 32), "uint8")], 1)
    given = {"w": (random.standard_normal((128, 128)) / 12).astype("float16"), "blocks": blocks.reshape(-1)}
    weights = {name: tmesh.put(array, seal=True) for name, array in given.items()}
    given = {name: random.standard_normal(shape).astype("float32") for name, shape in
             {"x": (2, 128), "pool": (8, 16, 2, 64), "a": (4, 128), "b": (128, 4)}.items()}
    given["a"] /= 12
    given["tables"] = numpy.array([[5, 2], [7, 1]], "int32")
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "twin")
        with open(path, "w") as file:
            file.write(TWIN)
        graphs = [context.graph(path, weights=weights) for context in contexts]
    for context, graph in zip(contexts, graphs):
        values = {name: context.tensor(shape, dtype, readable=True, writable=True) for name, shape, dtype in (
            ("pos", (2,), "int32"), ("rows", (2,), "int64"), ("past", (32, 128), "float32"),
            ("seen", (2, 2, 64), "float32"), ("both", (2, 2, 64), "float32"))}
        for name, array in given.items():
            values[name] = context.tensor(array.shape, str(array.dtype), writable=True)
            values[name].write(array)
        values["past"].write(numpy.zeros((32, 128), "float32"))
        outputs = {"seen": values.pop("seen"), "both": values.pop("both"), "present": values["past"]}
        steps.append((values, outputs, graph.bind(values, outputs, in_place={"present": "past"})))
    worst = 0
    for at in range(20):
        results = []
        for values, outputs, binding in steps:
            values["pos"].write(numpy.array([at, at + 1], "int32"))
            values["rows"].write(numpy.array([at, at + 1], "int64"))
            binding.dispatch()
            results.append([outputs[name].read() for name in ("seen", "both", "present")])
        worst = max([worst, *(float(abs(here - there).max()) for here, there in zip(*results))])
    note(f"largest difference from the CPU: {worst}")
    assert worst < 0.05
    del steps, values, outputs, binding, graphs, graph, contexts, context


def scenario(driver):
    """A run for compute-sanitizer: two processes, with a kernel on imported memory."""
    size = 1 << 20
    array = tmesh.cuda.empty(size, "uint8")
    driver.write(array.pointer, bytes(size))
    with Peer() as peer:
        peer.ask(tmesh.cuda.share(array), rounds=1)
        peer.end()
    array.release()
    region_registered(driver)


@test("compute-sanitizer is clean", SANITIZER_S)
def compute_sanitizer(driver):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if not tool:
        raise Skip("compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin")
    for check in ("memcheck", "racecheck"):
        process = subprocess.Popen([tool, "--tool", check, "--target-processes", "all", "--error-exitcode", "9",
                                    sys.executable, os.path.abspath(__file__), "--one", "scenario"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        for line in process.stdout:
            note(f"{check}: {line.rstrip()}")
        assert process.wait() == 0, f"{check} ended with {process.returncode}"


def settled(driver, least):
    """Return the free memory once it is as much as @least, after at most 10 s."""
    found, handle = library()
    for _ in range(1000):
        found.tmesh_cuda_trim(handle)
        if driver.free_bytes() >= least:
            break
        time.sleep(0.01)
    return driver.free_bytes()


# Frameworks keep memory of their own, and a context that is gone has none: nvidia-smi shows both.
KEEP = ("torch", "cupy", "jax", "ggml", "vllm")


def one(name):
    """Run one test in this process, which is its own; return the exit status."""
    global tmesh
    import tmesh
    import tmesh.cuda

    function = scenario if name == "scenario" else tests[name][0]
    try:
        driver = gpu.Driver()
        tmesh.cuda.empty(1).release()
        before = settled(driver, 0)
        function(driver)
        if not name.startswith((*KEEP, "context", "scenario")):
            after = settled(driver, before)
            assert after >= before, f"{before - after} bytes of the GPU are missing"
    except Skip as reason:
        print(f"SKIP {reason}", flush=True)
        return SKIPPED
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return 1
    return 0


def limit_of(name):
    return LIMIT_S if name == "scenario" else tests[name][2]


if __name__ == "__main__":
    sys.exit(one(sys.argv[2]))
