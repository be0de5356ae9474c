# SPDX-License-Identifier: MIT
"""DLPack with every installed library: each dtype, both ways, and every kind of layout.

The results are printed, a line per row of the table. Three are allowed. The memory is shared. Or a
refusal gives its reason. Or there is a copy that was counted, or that the consumer made for
itself.
"""

import importlib.util
import math

import numpy as np
import pytest

import tmesh
from conftest import any_backend

any_backend()

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64",
          "complex128", "int4", "uint4", "float4_e2m1fn"]
WHOLE = [dtype for dtype in DTYPES if dtype not in ("int4", "uint4", "float4_e2m1fn")]
EVERYWHERE = ["int8", "int32", "int64", "uint8", "float16", "float32", "float64"]


class NumPy:
    module = np
    take = staticmethod(np.from_dlpack)

    @staticmethod
    def make(dtype, shape):
        return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


class Torch:
    @property
    def module(self):
        return importlib.import_module("torch")

    def take(self, t):
        return self.module.from_dlpack(t)

    def make(self, dtype, shape):
        numbers = self.module.arange(math.prod(shape)).reshape(shape)
        return numbers.to(getattr(self.module, dtype))


class Jax:
    @property
    def module(self):
        jax = importlib.import_module("jax")
        jax.config.update("jax_enable_x64", True)
        return jax

    def take(self, t):
        return self.module.dlpack.from_dlpack(t)

    def make(self, dtype, shape):
        name = {"bool": "bool_"}.get(dtype, dtype)
        return self.module.numpy.asarray(NumPy.make("float32", shape),
                                         getattr(self.module.numpy, name))


class OrtArray:
    """The parts of an array that the table uses, for ONNX Runtime's values, which cannot be
    transposed."""

    def __init__(self, value):
        self.shape = tuple(value.shape())
        self.__dlpack__ = value.__dlpack__
        self.value = value

    def tolist(self):
        return self.value.numpy().tolist()


class OnnxRuntime:
    @property
    def module(self):
        return importlib.import_module("onnxruntime")

    def take(self, t):
        return OrtArray(self.module.OrtValue.from_dlpack(t))

    def make(self, dtype, shape):
        if dtype == "bool":
            raise TypeError("goes out as uint8")
        return OrtArray(self.module.OrtValue.ortvalue_from_numpy(NumPy.make(dtype, shape)))


class CuPy:
    """This library works only on a GPU, so only its error is tested."""

    @property
    def module(self):
        return importlib.import_module("cupy")

    def take(self, t):
        return self.module.from_dlpack(t)

    def make(self, dtype, shape):
        return self.module.asarray(NumPy.make(dtype, shape))


LIBRARIES = {"numpy": NumPy(), "torch": Torch(), "jax": Jax(), "onnxruntime": OnnxRuntime(),
             "cupy": CuPy()}

# name, from a tensor of 4 by 8 elements
LAYOUTS = {
    "plain": lambda t: t,
    "read-only": lambda t: tmesh.open(t.ref()),
    "sealed": lambda t: t.seal(),
    "sliced": lambda t: t[1:3],
    "columns": lambda t: t[:, 2:5],
    "backwards": lambda t: t[::-1],
    "empty": lambda t: t[:0],
}


@pytest.fixture(params=[name for name in LIBRARIES if importlib.util.find_spec(name)])
def library(request):
    return LIBRARIES[request.param]


@pytest.mark.parametrize("name", LIBRARIES)
def test_library(name):
    """A missing library is reported once, not for each dtype."""
    pytest.importorskip(name, reason=f"{name} is not installed")
    assert LIBRARIES[name].module.__name__ == name


def read_only(array):
    """Whether an array is read-only, in libraries with such arrays; all of JAX's are."""
    array.flags.writeable = False
    return array


# name, from an array of 4 by 8 elements, or of none, or of one
SOURCES = {
    "plain": lambda make: make((4, 8)),
    "read-only": lambda make: read_only(make((4, 8))),
    "transposed": lambda make: make((4, 8)).T,
    "sliced": lambda make: make((4, 8))[1:3],
    "columns": lambda make: make((4, 8))[:, 2:5],
    "backwards": lambda make: make((4, 8))[::-1],
    "empty": lambda make: make((0, 3)),
    "scalar": lambda make: make(()),
}


def short(error):
    text = error.strerror if isinstance(error, OSError) else str(error)
    return f"refused ({type(error).__name__}: {text.splitlines()[0].split(': ')[0]})"


def grouped(row):
    groups = {}
    for name, result in row.items():
        groups.setdefault(result, []).append(name)
    return "; ".join(f"{', '.join(names)}: {result}" for result, names in groups.items())


def out(library, t):
    """Pass @t to the library."""
    copies = tmesh.stats()["copies"]
    try:
        taken = library.take(t)
    except Exception as error:
        assert str(error), "a refusal says why"
        return short(error)
    assert tuple(taken.shape) == t.shape
    if t.dtype in EVERYWHERE:
        assert taken.tolist() == t.numpy().tolist()
    assert tmesh.stats()["copies"] == copies, "tmesh copied in silence"
    if not t.nbytes:
        return "works"
    # Shared memory counts as a view of the tensor; a consumer's copy does not.
    try:
        t.release()
    except tmesh.BusyError:
        return "works"
    return "the consumer copies"


@pytest.mark.parametrize("dtype", DTYPES)
def test_out(library, dtype, record_property):
    row = {}
    for name, lay_out in LAYOUTS.items():
        made = tmesh.empty((4, 8), dtype)
        if dtype in EVERYWHERE:
            made.numpy()[...] = NumPy.make(dtype, (4, 8))
        if dtype in WHOLE or name in ("plain", "read-only", "sealed"):
            row[name] = out(library, lay_out(made))
    record_property(f"to {library.module.__name__} {dtype}", grouped(row))
    if library is LIBRARIES["cupy"]:
        assert "works" not in row.values(), row
    elif dtype in EVERYWHERE:
        assert row["plain"] == row["empty"] == "works", row
        # JAX copies tensors that do not start at a multiple of 64 bytes.
        assert row["sliced"] in ("works", "the consumer copies"), row
    if library.module.__name__ in ("torch", "onnxruntime"):
        for name in ("read-only", "sealed", "backwards"):
            assert row.get(name) != "works", "they have neither"


# PyTorch's int4 and uint4 are names for bytes.
@pytest.mark.parametrize("dtype", [*WHOLE, "float4_e2m1fn"])
def test_in(library, dtype, record_property):
    """Other libraries' arrays are copied once, and the copy is counted."""
    says = {}
    for name, source_of in SOURCES.items():
        try:
            source = source_of(lambda shape: library.make(dtype, shape))
        except Exception as error:
            says[name] = f"no such thing there ({type(error).__name__})"
            continue
        copies = tmesh.stats()["copies"]
        try:
            t = tmesh.from_dlpack(source)
        except Exception as error:
            assert str(error)
            says[name] = short(error)
            continue
        assert (t.dtype, t.shape) == (dtype, tuple(source.shape))
        copied = tmesh.stats()["copies"] - copies
        assert copied == 1 or not t.nbytes
        assert tmesh.put(source).dtype == dtype
        if dtype in EVERYWHERE:
            assert t.numpy().tolist() == source.tolist()
        says[name] = "copies, counted" if copied else "nothing to copy"
    record_property(f"from {library.module.__name__} {dtype}", grouped(says))
    if dtype in EVERYWHERE and library is not LIBRARIES["cupy"]:
        assert says["plain"] == says["scalar"] == "copies, counted", says
        # ONNX Runtime has no views.
        if library is not LIBRARIES["onnxruntime"]:
            assert says["transposed"] == says["sliced"] == says["columns"] == says["plain"], says


def test_jax_writes_to_none():
    """Donated arrays, which JAX may overwrite, are copied; otherwise this would end with a
    SIGSEGV."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    t = tmesh.put(np.ones(64, "float32"), seal=True)
    try:
        array = jax.dlpack.from_dlpack(t)
    except tmesh.AccessError:
        pytest.skip("this JAX asks for no version of DLPack: read-only memory is refused to it")
    result = jax.jit(lambda a: a + 1, donate_argnums=0)(array)
    assert float(result[63]) == 2 and t.numpy()[63] == 1


@pytest.mark.parametrize("dtype, bits", [("bfloat16", "uint16"), ("float8_e4m3fn", "uint8"),
                                         ("float8_e5m2", "uint8")])
def test_types_of_ml_dtypes(dtype, bits):
    """By their bits, as the README describes."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    array = np.arange(8).reshape(2, 4).astype(getattr(ml_dtypes, dtype))
    t = tmesh.put(array.view("uint8")).view(dtype)
    assert (t.dtype, t.shape) == (dtype, (2, 4))
    assert np.array_equal(t.view(bits).numpy().view(array.dtype), array)
