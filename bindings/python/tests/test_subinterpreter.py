# SPDX-License-Identifier: MIT
"""Tensors in a second interpreter that shares its GIL with the main one."""

import importlib.util
import sys

import pytest
from conftest import ANY_BACKEND

MODULE = next((name for name in ("_interpreters", "_xxsubinterpreters") if importlib.util.find_spec(name)), None)

pytestmark = [ANY_BACKEND, pytest.mark.skipif(not MODULE, reason="this Python has no module of subinterpreters")]

# The module and its option to share the GIL have different names in each version.
BEGIN = f"""
import sys, {MODULE} as interpreters
if sys.version_info >= (3, 13):
    interpreter = interpreters.create("legacy")
elif sys.version_info >= (3, 12):
    interpreter = interpreters.create(isolated=False)
else:
    interpreter = interpreters.create()
interpreters.run_string(interpreter, '''
import ctypes, sys
import tmesh
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
used = []                                   # names of capsules, which are not copied

def consume(capsule, name, deleter):
    "As C code does that calls the deleter with the GIL."
    pointer = get_pointer(capsule, name)
    used.append(b"used_" + name)
    set_name(capsule, used[-1])
    call = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(ctypes.c_void_p.from_address(pointer + deleter).value)
    call(pointer)

tensor = tmesh.zeros((2, 2), 'float32')         # no import of NumPy, which may refuse a second interpreter
"""
END = """
tensor.release()
print("released")
''')
interpreters.destroy(interpreter)
print("end")
"""


@pytest.mark.parametrize("more", [
    "capsule = tensor.dlpack()\ndel capsule",
    "capsule = tensor.__dlpack__(max_version=(1, 0))\ndel capsule",
    "assert tmesh.from_dlpack(tensor).tolist() == tensor.tolist()",
    "capsules = tensor.__arrow_c_array__()\ndel capsules",
    # The deleter is after a DLTensor of 48 bytes and its producer's context.
    "consume(tensor.dlpack(), b'dltensor', 56)",
    "consume(tensor.__dlpack__(max_version=(1, 0)), b'dltensor_versioned', 16)",
], ids=["capsule", "versioned", "from_dlpack", "arrow", "deleter", "versioned-deleter"])
def test_end_of_a_view(python, more):
    """It does not wait for a GIL that its own thread has, and release() finds no view."""
    assert python(BEGIN + more + END).split() == ["released", "end"]


def test_end_of_a_view_by_another_thread(python):
    """A consumer ends without the GIL, in a thread that Python does not know."""
    assert python(BEGIN + """
import threading
free = ctypes.CDLL(None)
capsule = tensor.dlpack()
pointer = get_pointer(capsule, b'dltensor')
set_name(capsule, b'used_dltensor')
address = ctypes.c_void_p.from_address(pointer + 56).value
create, join = free.pthread_create, free.pthread_join
create.argtypes = [ctypes.c_void_p] * 4
join.argtypes = [ctypes.c_void_p] * 2
thread = ctypes.c_void_p()
assert not create(ctypes.addressof(thread), None, address, pointer)
assert not join(thread, None)
""" + END).split() == ["released", "end"]
