# SPDX-License-Identifier: MIT
"""Ask libggml's own reader about a GGUF file, in a process of its own: it may crash on a damaged one.

As a program it takes files on its standard input, each behind its length, and answers each with a line of JSON."""
import ctypes
import importlib.util
import json
import pathlib
import struct
import subprocess
import sys


class Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


class Refused(Exception):
    pass


class Reader:
    def __init__(self):
        self.process, self.crashes = None, 0

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
            self.process = None

    def tensors(self, data):
        """{name: (type, shape, bytes, offset)}; shapes without the ones that stand before them, which it does not tell."""
        self.process = self.process or subprocess.Popen([sys.executable, "-B", __file__], stdin=subprocess.PIPE,
                                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.process.stdin.write(struct.pack("<Q", len(data)) + data)
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.close()
            self.crashes += 1
            raise Refused("it crashed")
        answer = json.loads(line)
        if answer is None:
            raise Refused("it gave no context")
        return {name: tuple(rest) for name, *rest in answer}


def found():
    """Why there is no libggml, or None."""
    return None if importlib.util.find_spec("libggml") else "the package libggml-python is not installed"


def load():
    folder = pathlib.Path(importlib.util.find_spec("libggml").origin).parent / "lib64"
    lib = ctypes.CDLL(str(folder / "libggml-base.so.0"))
    of = ctypes.c_void_p
    for name, result, arguments in (
            ("gguf_init_from_buffer", of, [ctypes.c_char_p, ctypes.c_size_t, Params]), ("gguf_free", None, [of]),
            ("gguf_get_n_tensors", ctypes.c_int64, [of]), ("gguf_get_data_offset", ctypes.c_size_t, [of]),
            ("gguf_get_tensor_offset", ctypes.c_size_t, [of, ctypes.c_int64]),
            ("gguf_get_tensor_name", ctypes.c_char_p, [of, ctypes.c_int64]),
            ("gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64), [of, ctypes.c_int64]),
            ("gguf_get_tensor_type", ctypes.c_int, [of, ctypes.c_int64]),
            ("gguf_get_tensor_size", ctypes.c_size_t, [of, ctypes.c_int64]),
            ("ggml_type_name", ctypes.c_char_p, [ctypes.c_int])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def stripped(shape):
    """Without the ones that stand first."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def read(lib, data):
    file = lib.gguf_init_from_buffer(data, len(data), Params(True, None))
    if not file:
        return None
    start, tensors = lib.gguf_get_data_offset(file), []
    for index in range(lib.gguf_get_n_tensors(file)):
        shape = stripped([*lib.gguf_get_tensor_ne(file, index)[:4]][::-1])
        tensors.append((lib.gguf_get_tensor_name(file, index).decode(errors="replace"),
                        lib.ggml_type_name(lib.gguf_get_tensor_type(file, index)).decode().upper(), shape,
                        lib.gguf_get_tensor_size(file, index), start + lib.gguf_get_tensor_offset(file, index)))
    lib.gguf_free(file)
    return tensors


def main():
    lib = load()
    while len(head := sys.stdin.buffer.read(8)) == 8:
        data = sys.stdin.buffer.read(struct.unpack("<Q", head)[0])
        print(json.dumps(read(lib, data)), flush=True)


if __name__ == "__main__":
    main()
