#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tmesh.cuda, and PyTorch's allocator by its two functions, on the stand-in for the driver, which
the loader finds as libcuda.so.1. Prints TAP; every line says "stand-in"."""

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref

import numpy
import tmesh
import tmesh.cuda

driver = ctypes.CDLL("libcuda.so.1")
driver.standin_access.restype = ctypes.c_bool
driver.standin_calls.restype = driver.standin_live.restype = ctypes.c_ulong
tests = []

PEER = """
import ctypes, json, sys
import tmesh.cuda
driver = ctypes.CDLL("libcuda.so.1")
driver.standin_access.restype = ctypes.c_bool
for line in sys.stdin:
    array = tmesh.cuda.open(json.loads(line), writable=True)
    byte = ctypes.c_char()
    driver.standin_access(0, ctypes.c_uint64(array.pointer), ctypes.byref(byte), 1, False)
    print(byte.value.decode(), array.kind, array.dtype, array.shape, json.dumps(tmesh.cuda.share(array)), sep="|",
          flush=True)
"""


class Skipped(Exception):
    pass


def test(function):
    tests.append(function)
    return function


def raises(kind, function, *args, word="", **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert word in str(error), str(error)
    else:
        raise AssertionError(f"{function.__name__} raised nothing")


def eventually(condition):
    for _ in range(60000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("in a minute it never was so")


def calls(symbol):
    return driver.standin_calls(symbol.encode())


def kernel(array, value):
    byte = ctypes.c_char(value)
    assert driver.standin_access(0, ctypes.c_uint64(array.pointer), ctypes.byref(byte), 1, True)


def seen(array):
    byte = ctypes.c_char(b"?")
    assert driver.standin_access(0, ctypes.c_uint64(array.pointer), ctypes.byref(byte), 1, False)
    return byte.value


def driver_byte(array, device):
    byte = ctypes.c_char(b"?")
    assert driver.standin_access(device, ctypes.c_uint64(array.pointer), ctypes.byref(byte), 1, False)
    return byte.value


class Foreign:
    """An array with the members that a CuPy array has."""

    def __init__(self, pointer, **more):
        self.__cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (pointer, False), "version": 3,
                                         **more}


def peer():
    return subprocess.Popen([sys.executable, "-P", "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)


def ask(process, ref):
    process.stdin.write(json.dumps(ref) + "\n")
    process.stdin.flush()
    return process.stdout.readline().rstrip("\n").split("|")


@test
def arrays():
    array = tmesh.cuda.empty((3, 4), "int16", device=1)
    assert (array.shape, array.strides, array.dtype, array.nbytes) == ((3, 4), (4, 1), "int16", 24)
    assert (array.device, array.kind, array.writable, array.taken) == ("cuda:1", "own", True, False)
    face = array.__cuda_array_interface__
    assert face["typestr"] == "<i2" and face["strides"] == (8, 2) and face["data"] == (array.pointer, False)
    assert array.__dlpack_device__() == (2, 1)
    array.release()
    raises(tmesh.ReleasedError, array.ref, word="[Errno 9]")
    raises(tmesh.InvalidError, tmesh.cuda.empty, 3, "float31")
    with tmesh.cuda.empty(100, "uint8") as dirty:
        pointer = dirty.pointer
        kernel(dirty, b"d")
    with tmesh.cuda.zeros((4, 25), "uint8") as clean:
        assert clean.pointer == pointer and seen(clean) == b"\0" and clean.shape == (4, 25)
        raises(tmesh.InvalidError, clean.reclaim, -1)
    raises(tmesh.InvalidError, tmesh.cuda.zeros, 3, "float31")
    raises(tmesh.OutOfMemoryError, tmesh.cuda.empty, 1 << 40, word="CUDA_ERROR_OUT_OF_MEMORY")
    raises(tmesh.Error, tmesh.cuda.empty, 1, device=7, word="no GPU 7")


@test
def streams():
    """Consumers by the array interface see the stream that the array was opened on."""
    with tmesh.cuda.empty(100) as array, tmesh.cuda.empty(100) as other:
        assert array.__cuda_array_interface__["stream"] is None
        ref = array.ref()
        for stream, told in ((0, 1), (2, 2), (-1, None)):
            with tmesh.cuda.open(ref, stream=stream) as again:
                assert again.__cuda_array_interface__["stream"] == told
        before = calls("cuEventRecord"), calls("cuStreamWaitEvent")
        tmesh.cuda.open(tmesh.cuda.share(other, stream=-1), stream=-1).release()
        assert (calls("cuEventRecord"), calls("cuStreamWaitEvent")) == before
        tmesh.cuda.open(tmesh.cuda.share(other)).release()
        assert (calls("cuEventRecord"), calls("cuStreamWaitEvent")) == (before[0] + 1, before[1] + 1)


def killed(script, *args):
    """Run a program that kills itself at the end."""
    done = subprocess.run([sys.executable, "-P", "-c", PRELUDE + script + "\nos.kill(os.getpid(), signal.SIGKILL)", *args],
                          capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


PRELUDE = """
import ctypes, os, signal, sys
import tmesh, tmesh.cuda
driver = ctypes.CDLL("libcuda.so.1")
driver.standin_access.restype = ctypes.c_bool
def access(array, byte, write):
    byte = ctypes.c_char(byte)
    assert driver.standin_access(1, ctypes.c_uint64(array.pointer), ctypes.byref(byte), 1, write)
    return byte.value
"""


@test
def kept():
    """The maker and the process that opened it are killed."""
    killed("""
array = tmesh.cuda.empty((3, 4), "int16", device=1, alone=True)
access(array, b"k", True)
assert tmesh.cuda.keep(array, "weights") is array
""")
    killed("""
array = tmesh.cuda.open_kept("weights", writable=True)
assert access(array, b"?", False) == b"k"
access(array, b"w", True)
""")
    assert [(one["name"], one["held"]) for one in tmesh.kept()] == [("weights", 0)]
    with tmesh.cuda.open_kept("weights") as array:
        assert (array.shape, array.dtype, array.device, array.kind) == ((3, 4), "int16", "cuda:1", "imported")
        assert not array.writable and driver_byte(array, 1) == b"w"
        assert tmesh.kept()[0]["held"] == 1
        # The array is shared on, though its maker is dead, and no stream waits for it.
        with tmesh.cuda.open(array.ref()) as again:
            assert driver_byte(again, 1) == b"w"
        raises(tmesh.InvalidError, tmesh.cuda.keep, array, "other", word="its maker keeps it")
        tmesh.drop("weights")
        assert driver_byte(array, 1) == b"w"
    raises(tmesh.NotFoundError, tmesh.cuda.open_kept, "weights", word='nothing is kept as "weights"')


@test
def kept_or_not():
    with tmesh.cuda.empty(16, "uint8") as array:
        tmesh.cuda.keep(array, "gpu", lifetime=1000)
        raises(tmesh.UnsupportedError, tmesh.open_kept, "gpu", word="tmesh.cuda.open_kept")
        raises(tmesh.ExistsError, tmesh.cuda.keep, array, "gpu")
        tmesh.cuda.keep(array, "gpu", replace=True, stream=-1)
        raises(tmesh.InvalidError, tmesh.cuda.keep, array, "")
        raises(tmesh.InvalidError, tmesh.cuda.keep, array, "x", lifetime=0)
        raises(tmesh.UnsupportedError, tmesh.cuda.keep, array, "x", mode=0o640, word="module")
        raises(TypeError, tmesh.cuda.keep, array, 3)
        raises(TypeError, tmesh.cuda.open_kept, None)
    raises(tmesh.ReleasedError, tmesh.cuda.keep, array, "x")
    raises(tmesh.UnsupportedError, tmesh.cuda.open_kept, "gpu", uid=os.getuid() + 1, word="module")
    assert [one["name"] for one in tmesh.kept()] == ["gpu"]
    tmesh.keep(numpy.arange(3), "host")
    raises(tmesh.AccessError, tmesh.cuda.open_kept, "host", word="is this GPU memory?")
    tensor = tmesh.put(numpy.arange(3), seal=False)
    with tmesh.cuda.open(tensor.ref(writable=True), writable=True) as array:
        raises(tmesh.UnsupportedError, tmesh.cuda.keep, array, "x", word="tmesh_keep")
    for name in ("gpu", "host"):
        tmesh.drop(name)


@test
def kept_of_a_framework():
    """Keeping an array keeps the framework's tensor alive, as lending it does."""
    with tmesh.cuda.empty(4096, "uint8") as whole:
        tensor = Foreign(whole.pointer + 1024)
        gone = weakref.ref(tensor)
        with tmesh.cuda.keep(tensor, "tensor") as array:
            assert array.shape == (2, 3) and array.dtype == "float32"
        del tensor, array
        gc.collect()
        assert gone()
        with tmesh.cuda.open_kept("tensor") as array:
            assert array.shape == (2, 3) and array.strides == (3, 1)
        tmesh.drop("tensor")
        eventually(lambda: not gone())


@test
def without_the_producers_event():
    """As in a container: with a stream the host waits; a caller that orders its work itself needs no stream."""
    script = """
import ctypes, sys
import tmesh, tmesh.cuda
fail = ctypes.CDLL("libcuda.so.1").standin_fail
fail(b"cuIpcOpenEventHandle", 1, 0)
tmesh.cuda.open(sys.argv[1]).release()
assert tmesh.cuda.stats()["host_waits"] == 1
fail(b"cuIpcOpenEventHandle", 1, 0)
with tmesh.cuda.open(sys.argv[1], stream=-1, writable=True) as array:
    array.__dlpack__(stream=1)
    assert array.ref()["cuda"]["waited"]
"""
    with tmesh.cuda.empty(100) as array:
        subprocess.run([sys.executable, "-P", "-c", script, json.dumps(tmesh.cuda.share(array))], check=True)


@test
def host_memory_instead():
    with tmesh.cuda.empty(250 << 20, "uint8"):
        with tmesh.cuda.empty(20 << 20, "uint8", or_host=True) as array:
            assert array.kind == "host"


@test
def capsules():
    """Without a framework: a capsule without a consumer frees its memory."""
    array = tmesh.cuda.empty(100, "uint8")
    pointer = array.pointer
    capsules = [array.__dlpack__(stream=-1), array.__dlpack__(stream=1, max_version=(1, 0))]
    array.release()
    other = tmesh.cuda.empty(100, "uint8")
    assert other.pointer != pointer
    other.release()
    capsules.clear()
    with tmesh.cuda.empty(100, "uint8") as again:
        assert again.pointer == pointer
        raises(BufferError, again.__dlpack__, copy=True)


@test
def between_processes():
    array = tmesh.cuda.empty((2, 3))
    kernel(array, b"k")
    process = peer()
    byte, kind, dtype, shape, on = ask(process, tmesh.cuda.share(array))
    assert (byte, kind, dtype, shape) == ("k", "imported", "float32", "(2, 3)")
    second = peer()
    assert ask(second, json.loads(on))[0] == "k"
    raises(tmesh.PeerTimeoutError, stopped_reclaim, array, process, second, word=f"{process.pid} (")
    process.kill()
    second.kill()
    process.wait()
    second.wait()
    array.reclaim()


def stopped_reclaim(array, *processes):
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
    array.reclaim(timeout=0.05)


@test
def host_tensor_on_the_gpu():
    tensor = tmesh.put(numpy.arange(5, dtype="uint8"), seal=False)
    with tmesh.cuda.open(tensor.ref(), device=1) as array:
        assert array.kind == "host" and not array.writable and array.device == "cuda:1"
        byte = ctypes.c_char()
        assert driver.standin_access(1, ctypes.c_uint64(array.pointer + 3), ctypes.byref(byte), 1, False)
        assert byte.value == b"\x03"


@test
def frameworks_allocator():
    plugin = ctypes.CDLL("libtmesh-cuda-torch.so")
    plugin.tmesh_torch_malloc.restype = ctypes.c_void_p
    pointer = plugin.tmesh_torch_malloc(ctypes.c_ssize_t(4096), 0, None)
    assert pointer
    ref = tmesh.cuda.share(Foreign(pointer + 512))
    assert ref["cuda"]["kind"] == "vmm" and ref["offset"] == 512 and ref["shape"] == [2, 3], ref
    process = peer()
    assert ask(process, ref)[1] == "imported"
    plugin.tmesh_torch_free(ctypes.c_void_p(pointer), ctypes.c_ssize_t(4096), 0, None)
    again = plugin.tmesh_torch_malloc(ctypes.c_ssize_t(4096), 0, None)
    assert again != pointer, "used again under a reader"
    plugin.tmesh_torch_free(ctypes.c_void_p(again), ctypes.c_ssize_t(4096), 0, None)
    process.kill()
    process.wait()
    assert plugin.tmesh_torch_malloc(ctypes.c_ssize_t(1 << 50), 0, None) is None
    assert plugin.tmesh_torch_malloc(ctypes.c_ssize_t(-1), 0, None) is None
    with tempfile.TemporaryFile() as said:
        usual = os.dup(2)
        os.dup2(said.fileno(), 2)
        plugin.tmesh_torch_free(ctypes.c_void_p(4096), ctypes.c_ssize_t(7), 0, None)
        os.dup2(usual, 2)
        os.close(usual)
        said.seek(0)
        assert b"7 bytes on GPU 0 are not given back: no memory" in said.read()


@test
def by_dlpack():
    """A tensor that has DLPack alone, as JAX's bfloat16 arrays have."""

    class Tensor:
        def __init__(self, array):
            self.array, self.streams = array, []

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, *, stream=None):
            self.streams.append(stream)
            return self.array.__dlpack__(stream=stream)

    for dtype in ("bfloat16", "bool", "float8_e5m2", "uint16", "complex64"):
        before = driver.standin_live()
        with tmesh.cuda.empty((2, 3), dtype, alone=True) as array:
            tensor = Tensor(array)
            ref = tmesh.cuda.share(tensor)
            assert (ref["cuda"]["kind"], ref["dtype"], ref["shape"], ref["strides"]) == ("vmm", dtype, [2, 3], [3, 1])
            tmesh.cuda.share(tensor, stream=2)
            tmesh.cuda.share(tensor, stream=-1)
            assert tensor.streams == [1, 2, -1]
            with tmesh.cuda.lend(tensor) as part:
                assert part.pointer == array.pointer and part.dtype == dtype
        eventually(lambda before=before: driver.standin_live() <= before)
    raises(tmesh.InvalidError, tmesh.cuda.share, numpy.zeros(3), word="no DLPack with memory on a GPU")


@test
def lent():
    """An array in a framework's segment lives as long as a process holds it."""
    plugin = ctypes.CDLL("libtmesh-cuda-torch.so")
    plugin.tmesh_torch_malloc.restype = ctypes.c_void_p
    pointer = plugin.tmesh_torch_malloc(ctypes.c_ssize_t(1 << 20), 0, None)
    tensor = Foreign(pointer + 4096 + 12, strides=(-12, 4))
    gone = weakref.ref(tensor)
    with tmesh.cuda.lend(tensor) as array:
        del tensor
        kernel(array, b"L")
        ref = array.ref()
        assert (ref["offset"], ref["strides"], array.pointer) == (12, [-3, 1], pointer + 4096 + 12)
        process = peer()
        assert ask(process, ref)[:2] == ["L", "imported"]
    assert gone()
    process.kill()
    process.wait()
    eventually(lambda: not gone())
    tensor = Foreign(pointer)
    gone = weakref.ref(tensor)
    array = tmesh.cuda.lend(tensor)
    del tensor
    assert gone()
    array.release()
    assert not gone()
    plugin.tmesh_torch_free(ctypes.c_void_p(pointer), ctypes.c_ssize_t(1 << 20), 0, None)
    raises(tmesh.NotFoundError, tmesh.cuda.lend, Foreign(4096), word="no memory of this library")


class View:
    """A tensor of PyTorch whose memory does not have its elements."""

    is_cuda, device, shape, dtype = True, "cuda:0", (2,), "torch.complex64"

    def __init__(self, kind):
        self.is_conj = lambda: kind == "conj"
        self.is_neg = lambda: kind == "neg"
        if kind == "cpu":
            self.is_cuda, self.device = False, "cpu"

    def stride(self):
        return (1,)

    def data_ptr(self):
        return ARRAY.pointer


@test
def views_without_elements():
    global ARRAY
    sys.modules["torch"] = types.SimpleNamespace(
        cuda=types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=0)))
    try:
        with tmesh.cuda.empty(2, "complex64") as ARRAY:
            assert tmesh.cuda.share(View("plain"))
            for call in tmesh.cuda.share, tmesh.cuda.lend, lambda view: tmesh.cuda.keep(view, "view"):
                for kind in "conj", "neg":
                    raises(tmesh.UnsupportedError, call, View(kind), word="resolve_conj().resolve_neg()")
                raises(tmesh.InvalidError, call, View("cpu"), word="tmesh.put()")
    finally:
        del sys.modules["torch"]


@test
def faces_that_no_layout_describes():
    with tmesh.cuda.empty(24, "uint8") as array:
        for call in tmesh.cuda.share, tmesh.cuda.lend:
            raises(tmesh.UnsupportedError, call, Foreign(array.pointer, strides=(10, 4)), word="strides")
            raises(tmesh.UnsupportedError, call, Foreign(array.pointer, typestr=">f4"), word="'>f4'")
            raises(tmesh.UnsupportedError, call, Foreign(array.pointer, mask=object()), word="mask")
            raises(tmesh.UnsupportedError, call, Foreign(array.pointer, typestr="|V4"), word="'|V4'")


@test
def forked():
    array = tmesh.cuda.empty(100, "uint8")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            raises(tmesh.AccessError, array.ref, word="fork")
            raises(tmesh.AccessError, tmesh.cuda.empty, 100, word="start a new program")
            assert not tmesh.cuda.available()
            del array
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert tmesh.cuda.share(array)
    array.release()


BUILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build")


def program(how, hook=True, name="program", **env):
    """The output of an unchanged program, with the hook and without it."""
    env = {**os.environ, **env, **({"LD_PRELOAD": f"{BUILD}/libtmesh-cuda-hook.so"} if hook else {})}
    done = subprocess.run([f"{BUILD}/tests/cuda/{name}", how], capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip(), done.stderr


def once(plugin, pointer, foreign):
    """Calls that hand arrays over, and calls that refuse to."""
    with tmesh.cuda.empty((2, 3), "int16") as array:
        repr((array, array.shape, array.strides, array.__cuda_array_interface__))
        array.touch()
        array.reclaim()
        ref = array.ref()
        with tmesh.cuda.open(ref, writable=True, lease=5) as again:
            tmesh.cuda.share(again)
        for version in (None, (1, 0)):
            array.__dlpack__(stream=1, max_version=version)
        raises(tmesh.InvalidError, array.reclaim, -1)
    raises(tmesh.ReleasedError, array.ref)
    raises(tmesh.NotFoundError, tmesh.cuda.open, ref)
    raises(tmesh.InvalidError, tmesh.cuda.empty, 3, "float31")
    raises(TypeError, tmesh.cuda.open, ref, stream="0")
    tmesh.cuda.zeros(5, "uint8").release()
    tmesh.cuda.share(Foreign(pointer))
    tmesh.cuda.share(Foreign(foreign))
    tmesh.cuda.lend(Foreign(pointer)).release()
    raises(tmesh.InvalidError, tmesh.cuda.lend, Foreign(pointer, shape=(1 << 20,)), word="outside")
    raises(tmesh.NotFoundError, tmesh.cuda.lend, Foreign(4096))
    with tmesh.cuda.empty((2, 3), "bfloat16") as array:
        tmesh.cuda.share(ByDlpack(array))


class ByDlpack:
    def __init__(self, array):
        self.__dlpack_device__, self.__dlpack__ = array.__dlpack_device__, array.__dlpack__


@test
def nothing_leaks():
    """No leak of Python's memory, of descriptors, or of references on the objects that every call uses."""
    plugin = ctypes.CDLL("libtmesh-cuda-torch.so")
    plugin.tmesh_torch_malloc.restype = ctypes.c_void_p
    pointer, foreign = plugin.tmesh_torch_malloc(ctypes.c_ssize_t(4096), 0, None), allocated()
    kept = (tmesh._tmesh.CudaHandle, tmesh._tmesh, None)

    def held():
        gc.collect()
        return [sys.getallocatedblocks(), len(os.listdir("/proc/self/fd")), *(sys.getrefcount(one) for one in kept)]

    # A leak leaves at least one object for each round. Python's own caches hold fewer.
    rounds, before = 300, None
    for turn in range(2 * rounds):
        if turn == rounds:
            before = held()
        once(plugin, pointer, foreign)
    grown = [now - then for then, now in zip(before, held())]
    assert max(grown) < rounds // 2, grown
    plugin.tmesh_torch_free(ctypes.c_void_p(pointer), ctypes.c_ssize_t(4096), 0, None)


@test
def counted_and_trimmed():
    """A released block stays with the process until the pool is trimmed."""
    gc.collect()
    tmesh.cuda.trim()
    before = tmesh.cuda.stats()
    large = tmesh.cuda.empty((64 << 20,), "uint8", device=1)
    there = tmesh.cuda.stats(1)
    assert there["bytes_used"] >= 64 << 20 and there["blocks"] >= 1
    assert tmesh.cuda.stats()["allocs"] == before["allocs"] + 1
    assert large.shape == (64 << 20,)
    large.release()
    kept = tmesh.cuda.stats()
    assert kept["bytes_used"] == before["bytes_used"]
    assert kept["bytes_reserved"] > before["bytes_reserved"]
    tmesh.cuda.trim()
    assert tmesh.cuda.stats()["bytes_reserved"] == before["bytes_reserved"]
    raises(tmesh.Error, tmesh.cuda.stats, 99, word="no device 99")


@test
def bad_layouts():
    for shape in (-1, (3, -1), (1 << 63,), (1 << 40, 1 << 40), (1,) * 9):
        raises(tmesh.InvalidError, tmesh.cuda.empty, shape)
    for dtype in ("int4", "float32\0", b"float32", None):
        raises(tmesh.InvalidError, tmesh.cuda.empty, 3, dtype, word="is no dtype of an array on a GPU")
    raises(tmesh.InvalidError, tmesh.cuda.share, Foreign(4096, strides=(4,)), word="1 strides for 2 dimensions")
    raises(tmesh.InvalidError, tmesh.cuda.lend, Foreign(4096, strides=(1 << 62, 1 << 64)), word="64 bits")
    with tmesh.cuda.empty(3) as array:
        capsule = array.__dlpack__(max_version=(1, 0))
    other = types.SimpleNamespace(__dlpack_device__=lambda: (2, 0), __dlpack__=lambda stream: capsule)
    raises(tmesh.InvalidError, tmesh.cuda.share, other, word="no DLPack capsule")


@test
def threads():
    """A call keeps an object that another thread releases meanwhile; a waiting call lets the others run."""
    array = tmesh.cuda.empty(100, "uint8")
    process = peer()
    ask(process, array.ref())
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    began, said = threading.Event(), []

    def reclaim():
        began.set()
        try:
            array.reclaim()
        except tmesh.ReleasedError as error:
            said.append(error)
        else:
            said.append(None)

    thread = threading.Thread(target=reclaim)
    thread.start()
    began.wait()
    time.sleep(0.01)
    array.release()
    process.kill()
    process.wait()
    thread.join()
    assert len(said) == 1


@test
def without_the_library():
    script = """
import sys, tmesh, tmesh.cuda
assert not tmesh.cuda.available()
try:
    tmesh.cuda.empty(1)
except tmesh.UnsupportedError as error:
    assert sys.argv[1] in str(error), str(error)
else:
    raise AssertionError("loaded")
"""
    for name, word in (("libtmesh-nowhere.so", "libtmesh-nowhere.so: cannot open"), ("libc.so.6", "has no tmesh_")):
        subprocess.run([sys.executable, "-P", "-c", script, word], check=True,
                       env={**os.environ, "TMESH_CUDA_LIBRARY": name})
    assert tmesh.cuda.available()


@test
def of_a_kind_to_come():
    script = "import tmesh.cuda; print(tmesh.cuda.empty(1).kind, repr(tmesh.cuda.empty(1)))"
    later = f"{os.path.dirname(os.environ['TMESH_TEST_LIBCUDA'])}/later/libtmesh-cuda.so.0"
    done = subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True,
                          env={**os.environ, "TMESH_CUDA_LIBRARY": later})
    assert done.stdout.startswith("unknown <tmesh.cuda.Array"), done.stdout


@test
def subinterpreters():
    import test.support

    with tmesh.cuda.empty(4, "uint8") as array:
        ref = json.dumps(array.ref())
        assert test.support.run_in_subinterp(f"""
import tmesh, tmesh.cuda
for _ in range(3):
    with tmesh.cuda.open({ref!r}) as array:
        array.__dlpack__(stream=1)
        again = tmesh.cuda.empty((2, 3))
try:
    array.ref()
except tmesh.ReleasedError:
    again.release()
else:
    raise AssertionError("released nothing")
""") == 0
        assert array.kind == "own" and tmesh.cuda.share(array)


@test
def capture_and_copy():
    with tmesh.cuda.capturing(1):
        tmesh.cuda.empty(10, "uint8", device=1, alone=True).release()
        assert tmesh.cuda.stats(1)["bytes_waiting"] == 10
    for _ in range(6000):
        if tmesh.cuda.stats(1)["bytes_waiting"] == 0:
            break
        time.sleep(0.01)
    assert tmesh.cuda.stats(1)["bytes_waiting"] == 0
    raises(tmesh.Error, tmesh.cuda.capturing(7).__enter__, word="no GPU 7")
    standin = ctypes.CDLL("libcuda.so.1")
    tensor = tmesh.put([1.0, 2.0], seal=True)
    standin.standin_set_up(b"without=read-only")
    try:
        raises(tmesh.UnsupportedError, tmesh.cuda.open, tensor.ref())
        with tmesh.cuda.open(tensor.ref(), or_copy=True) as array:
            assert array.kind == "staged"
            array.stage()
            raises(tmesh.Error, array.stage, back=True, word="for reading")
    finally:
        standin.standin_set_up(None)


@test
def hook():
    assert program("plain", hook=False) == ("0 0 0", "")
    assert program("plain") == ("0 shareable on 1 0 0", "")
    assert program("large") == ("2 0", "")
    assert program("freeasync") == ("0 shareable on 1 0 0", "")
    assert program("pitch") == ("0 pitch 1024 shareable on 1 0 0", "")
    # The runtime refuses an address inside an allocation, which stays.
    assert program("inside") == ("0 shareable on 1 inside 1 0 0", ""), program("inside")
    # Compiled with a default stream per thread; and with the runtime of a wheel.
    assert program("freethread") == ("0 shareable on 1 0 0", ""), program("freethread")
    assert "cudaMallocAsync() is not shareable" in program("asyncthread")[1]
    assert program("plain", name="program_of_wheel") == ("0 shareable on 1 0 0", ""), \
        program("plain", name="program_of_wheel")
    # The runtime's own call leaves a context current, and so does the hook's.
    assert program("current") == ("0 then 0 shareable on 1 0 0", "")
    out, said = program("managed")
    assert out == "0 0 0" and "cudaMallocManaged() is not shareable" in said
    out, said = program("async")
    assert out == "0 0 0" and "cudaMallocAsync() is not shareable" in said
    os.environ["TMESH_STANDIN"] = "without=vmm"
    out, said = program("plain")
    del os.environ["TMESH_STANDIN"]
    assert out == "0 0 0" and "not shareable: cuMemGetAllocationGranularity: CUDA_ERROR_NOT_SUPPORTED" in said
    script = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
    env = {**os.environ, "LD_PRELOAD": "libtmesh-cuda-hook.so"}
    said = subprocess.run([sys.executable, "-P", "-c", script], stderr=subprocess.PIPE, text=True, env=env).stderr
    assert "without libcudart.so" in said, said


@test
def hook_of_static_runtimes():
    on = {"name": "static", "TMESH_CUDA_HOOK_DRIVER": "1"}
    assert program("new", hook=False, name="static") == ("0 no context 201 0 0 next", "")
    # Without the variable the hook takes nothing over, and names the variable.
    out, said = program("new", name="static")
    assert out == "0 no context 201 0 0 next" and "TMESH_CUDA_HOOK_DRIVER=1" in said, (out, said)
    for how in ("new", "old", "older", "async", "thread"):
        assert program(how, **on) == ("0 no context 201 0 shareable on 1 0 next", ""), (how, program(how, **on))
    assert program("large", **on) == ("0 no context 201 2 next", ""), program("large", **on)
    out, said = program("new", **on, TMESH_STANDIN="without=vmm")
    assert out == "0 no context 201 0 0 next" and "memory is not shareable" in said, (out, said)
    # The library itself gets the driver's own functions.
    env = {**os.environ, "LD_PRELOAD": f"{BUILD}/libtmesh-cuda-hook.so", "TMESH_CUDA_HOOK_DRIVER": "1"}
    told = json.loads(subprocess.run([f"{BUILD}/tmeshctl", "doctor", "--json"], stdout=subprocess.PIPE, check=True, env=env).stdout)
    for device in told["gpus"]["devices"]:
        assert {path["name"]: path["level"] for path in device["paths"]}["ipc-memory"] == "works", device


@test
def hook_of_the_toolkits_static_runtime():
    """It asks for the driver's cuMemAlloc() by the way that the hook answers. It allocates nothing on a stand-in."""
    if not os.path.exists(f"{BUILD}/tests/cuda/static_runtime"):
        raise Skipped("no CUDA toolkit is installed: there is no libcudart_static.a")
    assert "nothing was shareable" in program("", name="static_runtime")[1]
    assert program("", name="static_runtime", TMESH_CUDA_HOOK_DRIVER="1")[1] == ""


@test
def doctor():
    tool = os.path.join(os.path.dirname(__file__), "../../build/tmeshctl")
    told = json.loads(subprocess.run([tool, "doctor", "--json"], stdout=subprocess.PIPE, check=True).stdout)
    devices = told["gpus"]["devices"]
    assert [device["name"] for device in devices] == ["stand-in 0", "stand-in 1"]
    for device in devices:
        assert {path["name"]: path["level"] for path in device["paths"]}["vmm"] == "works"
    text = subprocess.run([f"{tool}-devices"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "engines on GPUs: compiled, and never seen on one" in text, text
    found = json.loads(subprocess.run([f"{tool}-devices", "--json"], stdout=subprocess.PIPE, check=True).stdout)["devices"]
    assert [(gpu["id"], gpu["name"], gpu["engines"]) for gpu in found if gpu["kind"] == "cuda"] == [
        ("cuda:0", "stand-in 0", []), ("cuda:1", "stand-in 1", [])], found
    assert all(gpu["memory"] > 0 and gpu["memory_free"] is None and gpu["reason"] for gpu in found if gpu["kind"] == "cuda")
    env = {**os.environ, "TMESH_STANDIN": "without=vmm,without=read-only"}
    text = subprocess.run([tool, "doctor"], stdout=subprocess.PIPE, check=True, env=env, text=True).stdout
    assert "GPU 1: stand-in 1" in text
    for line, word in (("vmm", "not supported"), ("host-register-read-only", "CUDA_ERROR_NOT_SUPPORTED"),
                       ("dma-buf-import", "not tried"), ("host-register ", "works"),
                       ("ipc-memory", "works")):
        assert any(row.strip().startswith(line) and word in row for row in text.splitlines()), text
    env["TMESH_STANDIN"] = "devices=0"
    text = subprocess.run([tool, "doctor"], stdout=subprocess.PIPE, check=True, env=env, text=True).stdout
    assert "GPUs: not supported: cuInit: CUDA_ERROR_NO_DEVICE" in text, text


def allocated():
    """Memory that is not tmesh's."""
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0
    return pointer.value


@test
def foreign_memory():
    pointer = allocated()
    ref = tmesh.cuda.share(Foreign(pointer, strides=(12, 4), stream=1))
    assert ref["cuda"]["kind"] == "ipc"
    process = peer()
    assert ask(process, ref)[1] == "ipc"
    # A token takes a descriptor: those of the last 256 places are good.
    before = len(os.listdir("/proc/self/fd"))
    refs = [tmesh.cuda.share(Foreign(pointer + 8 * i)) for i in range(1, 400)]
    assert len(os.listdir("/proc/self/fd")) <= before + 256
    assert ask(process, refs[-256])[1] == "ipc"
    raises(tmesh.NotFoundError, tmesh.cuda.open, refs[0])
    process.kill()
    process.wait()
    raises(tmesh.InvalidError, tmesh.cuda.share, Foreign(4096), word="cuPointerGetAttribute")
    raises(tmesh.InvalidError, tmesh.cuda.share, object(), word="__cuda_array_interface__")
    raises(tmesh.ProtocolError, tmesh.cuda.open, "{}")


print(f"1..{len(tests)}")
failed = False
for number, function in enumerate(tests, 1):
    try:
        function()
        print(f"ok {number} - stand-in: python {function.__name__}", flush=True)
    except Skipped as why:
        print(f"ok {number} - stand-in: python {function.__name__} # SKIP {why}", flush=True)
    except Exception:
        failed = True
        print(f"not ok {number} - stand-in: python {function.__name__}", flush=True)
        print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), flush=True)
sys.exit(failed)
