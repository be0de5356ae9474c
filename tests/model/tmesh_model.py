# SPDX-License-Identifier: MIT
"""The tests' access to libtmesh-model: read the description of a file's bytes or of a path.

It uses ctypes and the layouts of <tmesh/context.h> and <tmesh/model.h>, not the Python package. The library
alone is compared with the formats' own packages, and the environment with those has no tmesh. A call of _look()
fails if the layout of an error is another one.
"""
import contextlib
import ctypes
import os
import pathlib

BUILD = pathlib.Path(__file__).resolve().parents[2] / "build"
MAX_DIMS = 8


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 252)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("type", ctypes.c_char_p),
        ("dtype", ctypes.c_int), ("ndim", ctypes.c_int32), ("shape", ctypes.c_int64 * MAX_DIMS),
        ("block_elements", ctypes.c_uint32), ("block_bytes", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64), ("file", ctypes.c_uint32), ("file_offset", ctypes.c_uint64),
    ]


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(f"{os.strerror(-code)}: {message}")
        self.code, self.message = code, message


base = ctypes.CDLL(str(BUILD / "libtmesh.so.0"), mode=ctypes.RTLD_GLOBAL)
lib = ctypes.CDLL(str(BUILD / "libtmesh-model.so.0"))
libc = ctypes.CDLL(None)
libc.free.argtypes = [ctypes.c_void_p]
lib.tmesh_model_tensors.restype = ctypes.c_size_t
lib.tmesh_model_tensors.argtypes = [ctypes.c_void_p]
lib.tmesh_model_unref.argtypes = [ctypes.c_void_p]
lib.tmesh_model_tensor.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
lib.tmesh_model_parse.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p,
                                  ctypes.c_void_p, ctypes.c_void_p]
lib.tmesh_model_describe.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
lib.tmesh_model_metadata_json.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p,
                                          ctypes.c_void_p]
lib.tmesh_model_load.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
lib.tmesh_model_tensor_open.argtypes = lib.tmesh_model_tensor.argtypes
base.tmesh_ctx_open.argtypes = [ctypes.c_void_p] * 3
base.tmesh_ctx_unref.argtypes = base.tmesh_tensor_unref.argtypes = [ctypes.c_void_p]
base.tmesh_tensor_data.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p]
READ = 1


def _tensors(model):
    tensors = []
    for index in range(lib.tmesh_model_tensors(model)):
        info = Tensor(size=ctypes.sizeof(Tensor))
        assert lib.tmesh_model_tensor(model, index, ctypes.byref(info), None) == 0
        tensors.append({"name": info.name.decode(), "type": info.type.decode(),
                        "shape": list(info.shape[:info.ndim]), "bytes": info.bytes,
                        "file": info.file, "offset": info.file_offset})
    return tensors


def _metadata(model):
    text = ctypes.c_void_p()
    assert lib.tmesh_model_metadata_json(model, 0, ctypes.byref(text), None) == 0
    try:
        return ctypes.string_at(text).decode()
    finally:
        libc.free(text)


def _look(call):
    """(tensors, metadata as JSON text) of the model that @call makes."""
    model, err = ctypes.c_void_p(), Error()
    rc = call(ctypes.byref(model), ctypes.byref(err))
    if rc:
        assert err.code == rc and err.message, (rc, err.code, err.message)
        raise Refused(rc, err.message.decode())
    try:
        return _tensors(model), _metadata(model)
    finally:
        lib.tmesh_model_unref(model)


def parse(data):
    need = ctypes.c_uint64()
    return _look(lambda model, err: lib.tmesh_model_parse(data, len(data), len(data), model,
                                                          ctypes.byref(need), err))


def describe(path):
    return _look(lambda model, err: lib.tmesh_model_describe(os.fsencode(path), None, model, err))


@contextlib.contextmanager
def loaded(path):
    """The bytes of each tensor of a loaded model, by name, where they lie."""
    ctx, model, err, opened = ctypes.c_void_p(), ctypes.c_void_p(), Error(), []
    try:
        for rc in (lambda: base.tmesh_ctx_open(None, ctypes.byref(ctx), ctypes.byref(err)),
                   lambda: lib.tmesh_model_load(ctx, os.fsencode(path), None, ctypes.byref(model), ctypes.byref(err))):
            code = rc()
            if code:
                raise Refused(code, err.message.decode())
        found = {}
        for index, info in enumerate(_tensors(model)):
            tensor, data = ctypes.c_void_p(), ctypes.c_void_p()
            assert lib.tmesh_model_tensor_open(model, index, ctypes.byref(tensor), None) == 0
            opened.append(tensor)
            assert base.tmesh_tensor_data(tensor, READ, ctypes.byref(data), None) == 0
            found[info["name"]] = (ctypes.c_ubyte * info["bytes"]).from_address(data.value)
        yield found
    finally:
        for tensor in opened:
            base.tmesh_tensor_unref(tensor)
        lib.tmesh_model_unref(model)
        base.tmesh_ctx_unref(ctx)
