# SPDX-License-Identifier: MIT
"""Calls that once crashed or blocked the interpreter. Each runs in an interpreter of its own with a deadline."""

import pytest

from conftest import assert_refused

# No call below waits. The limit is for machines under load.
DEADLINE = 300


def test_index_of_more_dimensions_than_a_tensor_has(python):
    assert python("""
import tmesh

t = tmesh.zeros((2, 3), "float32")
keys = [(None,) * count + rest for count in range(120) for rest in [(), (0, 0, 0), (slice(None),) * 3, (..., 0), (0, ...), (True,)]]
refused = 0
for key in keys + [(slice(None),) * 200, (0,) * 200, (None, ...) * 60]:
    try:
        assert t[key].ndim <= 8
    except (IndexError, TypeError):
        refused += 1
print(t[(None,) * 6].ndim, t[(None,) * 8 + (0, 0)].ndim, refused > 600)
""", timeout=DEADLINE) == "8 8 True\n"
    import tmesh
    for key in ((None,) * 100 + (0, 0), (None,) * 7, (None,) * 7 + (...,)):
        assert_refused(lambda: tmesh.zeros((2, 3), "float32")[key], IndexError, "at most 8 dimensions|more indices")


# Up to Python 3.11 the collector runs at any allocation of a tuple, list or dict, so also in the middle of a call.
COLLECTED = """
import gc
import sys
import numpy as np
import tmesh


class Ends:
    def __init__(self, end):
        self.end, self.me = end, self

    def __del__(self):
        self.end()


def calls():
    shape = 2, 3, 4, 5, 6, 7, 2, 3
    tensor = lambda: tmesh.zeros(shape, "uint8")
    for use in (lambda t: t.shape, lambda t: t.strides, repr, tmesh._tmesh.layout, lambda t: t.T, lambda t: t[1, ..., None], lambda t: t.ref(),
                lambda t: t.numpy(), lambda t: t.__array_interface__, lambda t: t.__arrow_c_array__(), lambda t: t.reshape(-1).tolist(),
                lambda t: t.__dlpack__(max_version=(1, 0)), lambda t: tmesh.put(t), lambda t: t.__reduce__()):
        yield tensor, lambda t: t.release(), use
    bundle = lambda: tmesh.bundle({f"tensor {i}": np.arange(i + 1) for i in range(40)})._held
    for use in (lambda h: h.names(), lambda h: h.types(), lambda h: h.private(), lambda h: h.regions(), lambda h: h.tensor(3), lambda h: h.ref(False, None)):
        yield bundle, lambda h: h.release(), use


def once(make, end, use, threshold):
    gc.disable()
    gc.collect()
    what = make()
    Ends(lambda: end(what))
    gc.enable()
    gc.set_threshold(threshold)
    try:
        use(what)
    except tmesh.ReleasedError:
        pass
    finally:
        gc.disable()


gc.freeze()
count = 0
for make, end, use in calls():
    for threshold in range(1, 16):
        once(make, end, use, threshold)
        count += 1
print(count)
"""


def test_what_the_collector_releases_inside_a_call(python):
    assert int(python(COLLECTED, timeout=DEADLINE)) == 300


def test_consumers_that_end_after_the_interpreter(python):
    """Shells of DLPack's consumers that end after the interpreter stay in the list that later Python code still
    reads."""
    import os
    env = {**os.environ, "MALLOC_PERTURB_": "165"}
    assert python("""
import os
import sys
import types
import numpy as np
import tmesh

t = tmesh.zeros(1000, "float32")
held = types.ModuleType("held")
held.views = [np.from_dlpack(t) for _ in range(50)]
sys.modules["held"] = held
del held


class Late:
    def __init__(self):
        self.t, self.make, self.begins, self.write = t, np.from_dlpack, tmesh._tmesh.begins_at, os.write
        self.address = t.numpy().ctypes.data

    def __del__(self):
        more = [self.make(self.t) for _ in range(5)]
        del more
        self.write(1, f"{self.begins(self.address).shape}".encode())


sys.late = Late()
""", timeout=DEADLINE, env=env) == "(1000,)"


def test_arguments_that_end_what_they_are_given_to(python):
    """Parsing arguments may run their code, so a call takes its pointers afterwards."""
    assert python("""
import tmesh


class Ends:
    def __init__(self, end):
        self.end = end

    def __bool__(self):
        self.end()
        return True

    def __float__(self):
        self.end()
        return 0.001


class Text(str):
    def __hash__(self):
        return hash(str(self))

    def __eq__(self, other):
        ref.clear()
        return False


def refused(call):
    try:
        call()
    except (tmesh.ReleasedError, tmesh.ProtocolError):
        return 1
    return 0


pool = tmesh.PagePool()
pages = tmesh.Pages.open(pool.tenant())
seq = pages.sequence()
seq.append(40)
count = refused(lambda: seq.page(0, writable=Ends(seq.release)))
slot = tmesh.Slot()
reader = tmesh.Slot.open(slot.token)
count += refused(lambda: reader._handle.poll(Ends(reader._handle.close)))
t = tmesh.zeros(3, "uint8")
ref = t.ref()
ref = {Text("".join(["off", "set"])): 0, **{key: "".join(list(value)) if isinstance(value, str) else value for key, value in ref.items() if key != "offset"}}
count += refused(lambda: tmesh.open(ref))
print(count)
""", timeout=DEADLINE) == "3\n"


def test_copy_of_what_another_thread_lets_go(python):
    assert python("""
import copy
import sys
import threading
import tmesh

# The other thread gets the GIL where the copy lets go of it.
sys.setswitchinterval(1000)
t = tmesh.zeros(256 << 20, "uint8")
t.seal()
go = threading.Event()


def leave():
    go.wait()
    t.__exit__(None, None, None)


thread = threading.Thread(target=leave)
thread.start()
go.set()
try:
    assert copy.deepcopy(t).sealed
except tmesh.ReleasedError:
    pass
thread.join()
print("done")
""", timeout=DEADLINE) == "done\n"


def test_capsule_of_a_later_version(python):
    """In another major version only the beginning is the same; the rest of this capsule cannot be read."""
    assert python("""
import ctypes
import mmap
import tmesh

page = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
at = libc.mmap(None, 2 * page, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
assert not libc.mprotect(at + page, page, 0)
start = at + page - 24
ctypes.c_uint32.from_address(start).value = 2
new = ctypes.pythonapi.PyCapsule_New
new.restype = ctypes.py_object
new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
name = b"dltensor_versioned"
for take in tmesh.from_dlpack, lambda capsule: tmesh.put(type("Owner", (), {"__dlpack__": lambda self, **_: capsule})()):
    try:
        take(new(start, name, None))
    except tmesh.Error as error:
        print(type(error).__name__)
""", timeout=DEADLINE) == "UnsupportedError\nUnsupportedError\n"


def test_python_without_its_lock(python):
    """A free-threaded Python turns its lock on for tmesh; if its options forbid that, tmesh raises an error."""
    assert python("""
import sys

for enabled in False, True:
    sys._is_gil_enabled = lambda: enabled
    try:
        import tmesh
        print(tmesh.put(b"x").shape)
    except ImportError as error:
        print("PYTHON_GIL" in str(error))
        for name in [name for name in sys.modules if name.startswith("tmesh")]:
            del sys.modules[name]
""", timeout=DEADLINE) == "True\n(1,)\n"


def test_copies_by_any_truth():
    """True in the way of NumPy's numpy.True_."""
    import numpy as np
    import tmesh
    t = tmesh.zeros(3, "uint8")
    copy = t.__array__(copy=np.True_)
    copy[:] = 1
    tensor = tmesh.from_dlpack(t.__dlpack__(copy=np.True_))
    tensor.numpy()[:] = 2
    assert t.tolist() == [0, 0, 0]
    t.__array__(copy=np.False_)[0] = 3
    tmesh.from_dlpack(t.__dlpack__(copy=np.False_)).numpy()[1] = 4
    assert t.tolist() == [3, 4, 0]


def test_errors_of_the_buffer_protocol():
    import tmesh
    t = tmesh.zeros(3, "uint8")
    t.release()
    for use in memoryview, bytes:
        with pytest.raises(BufferError) as raised:
            use(t)
        assert raised.type is tmesh.ReleasedError
