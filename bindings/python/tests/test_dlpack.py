# SPDX-License-Identifier: MIT
"""DLPack with real NumPy and real PyTorch, both ways."""

import ctypes
import gc
import threading
import types

import numpy as np
import pytest

import tmesh
from conftest import any_backend, assert_refused

any_backend()
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

TORCH = ["int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64", "bfloat16",
         "complex64", "complex128"]
VERSIONED_NUMPY = tuple(int(n) for n in np.__version__.split(".")[:2]) >= (2, 1)


def torch_sample(dtype):
    return torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", TORCH)
def test_torch_in_and_out(dtype):
    source = torch_sample(dtype)
    t = tmesh.put(source, seal=False)
    out = torch.from_dlpack(t)
    assert (t.dtype, t.shape, t.strides) == (dtype, (2, 3, 4), (12, 4, 1))
    assert out.dtype == source.dtype and torch.equal(out, source)
    out[0, 0, 0] = 3
    assert torch.from_dlpack(t)[0, 0, 0] == 3


@pytest.mark.parametrize("make", [lambda s: s.T, lambda s: s[::2], lambda s: s[:, 1],
                                  lambda s: s[:1].expand(4, 6), lambda s: s[0, 0], lambda s: s[:0]])
def test_torch_strided(make):
    source = make(torch.arange(24.0).reshape(4, 6))
    t = tmesh.put(source, seal=False)
    assert torch.equal(torch.from_dlpack(t), source)
    t = tmesh.put(torch.arange(24.0).reshape(4, 6), seal=False)
    assert torch.equal(torch.from_dlpack(t[1:, ::2]), torch.arange(24.0).reshape(4, 6)[1:, ::2])


def test_torch_bool():
    """PyTorch before 2 does not export them by DLPack."""
    for source in (torch.tensor([True, False]), torch.tensor([[True, False], [False, False]]).T, torch.tensor(True),
                   torch.empty(0, 2, dtype=torch.bool)):
        t = tmesh.put(source)
        assert t.dtype == "bool" and t.shape == tuple(source.shape) and t.numpy().tolist() == source.tolist()


def test_torch_tensors_that_refuse_dlpack_are_copied():
    copied = tmesh.stats()["copies"]
    for source in (torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True) * 1):
        assert tmesh.put(source).tolist() == [1, 1] and source.requires_grad
    assert tmesh.put(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    assert tmesh.put(torch.tensor([1 + 2j]).conj().imag).tolist() == [-2]
    assert tmesh.from_dlpack(torch.tensor([1 + 2j]).conj().imag).tolist() == [-2]
    assert tmesh.stats()["copies"] == copied + 6


def test_torch_refusals_pass_through():
    assert_refused(lambda: tmesh.put(torch.ones(2).to_sparse()), Exception, "(?i)sparse|layout|strided")
    assert_refused(lambda: tmesh.from_dlpack(torch.ones(2, requires_grad=True)), Exception, "requires? grad")


def test_torch_from_numpy_and_frombuffer():
    t = tmesh.put(np.arange(4.0), seal=False)
    a = torch.from_numpy(t.numpy())
    b = torch.frombuffer(t, dtype=torch.float64)
    a[0] = 9
    assert b[0] == 9 and t.numpy()[0] == 9


def test_torch_computes_in_place():
    t = tmesh.empty((64, 64), "float32")
    torch.from_dlpack(t).fill_(2)
    assert float(tmesh.open(t.ref()).numpy().sum()) == 2 * 64 * 64


def test_numpy():
    t = tmesh.put(np.arange(6, dtype="int32").reshape(2, 3), seal=False)
    out = np.from_dlpack(t)
    assert np.array_equal(out, t.numpy()) and out.ctypes.data == t.numpy().ctypes.data
    # Some versions make every array read-only, even NumPy's own.
    assert out.flags.writeable == np.from_dlpack(np.arange(3)).flags.writeable
    if VERSIONED_NUMPY:
        assert not np.from_dlpack(tmesh.open(t.ref())).flags.writeable
        assert np.from_dlpack(t, copy=True).ctypes.data != t.numpy().ctypes.data


def test_read_only_is_refused_to_consumers_that_cannot_know():
    t = tmesh.put([1.0, 2.0], seal=True)
    for consumer in (torch.from_dlpack, torch.utils.dlpack.from_dlpack):
        with pytest.raises(tmesh.AccessError, match="allow_readonly") as refusal:
            consumer(t)
        assert isinstance(refusal.value, BufferError)
    assert_refused(t.__dlpack__, tmesh.AccessError)
    assert_refused(lambda: t.__dlpack__(max_version=(0, 8)), tmesh.AccessError)
    assert_refused(t.dlpack, tmesh.AccessError)
    t.release()


def test_read_only_on_request():
    t = tmesh.put([1.0, 2.0], seal=True)
    assert_refused(lambda: t.dlpack(allow_readonly=False), tmesh.AccessError, "allow_readonly")
    for bad in (lambda: t.dlpack(True), lambda: t.dlpack(readonly=True),
                lambda: t.dlpack(allow_readonly=True, copy=True)):
        assert_refused(bad, TypeError, "allow_readonly")
    out = torch.from_dlpack(t.dlpack(allow_readonly=True))
    assert out.tolist() == [1.0, 2.0]
    assert_refused(t.release, tmesh.BusyError)
    del out
    t.release()


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, up to its flags."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64)]


def flags_of(capsule):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    header = Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
    assert header.major == 1
    return header.flags


def test_flags():
    t = tmesh.put([1.0], seal=False)
    assert flags_of(t.__dlpack__(max_version=(1, 0))) == 0
    assert flags_of(tmesh.open(t.ref()).__dlpack__(max_version=(1, 0))) == 1
    assert flags_of(t.__dlpack__(max_version=(1, 0), copy=True)) == 2


def test_pytorch_that_asks_for_a_version_is_not_trusted():
    """From 2.9 on torch.utils.dlpack asks for version 1, and ignores READ_ONLY."""
    module = types.ModuleType("torch.utils.dlpack")
    exec("def from_dlpack(t): return t.__dlpack__(max_version=(1, 0))", module.__dict__)
    t = tmesh.put([1.0], seal=False)
    module.from_dlpack(t)
    assert_refused(lambda: module.from_dlpack(tmesh.open(t.ref())), tmesh.AccessError, "allow_readonly")
    tmesh.open(t.ref()).__dlpack__(max_version=(1, 0))


def test_pytorch_gets_no_negative_strides():
    """PyTorch would abort the process."""
    t = tmesh.put([1.0, 2.0], seal=False)[::-1]
    for ask in (t.dlpack, lambda: torch.from_dlpack(t)):
        assert_refused(ask, tmesh.UnsupportedError, "negative strides")
    assert np.from_dlpack(t).tolist() == [2.0, 1.0]


def test_versions():
    t = tmesh.put([1.0], seal=False)
    assert '"dltensor"' in repr(t.__dlpack__())
    assert '"dltensor"' in repr(t.__dlpack__(max_version=(0, 9)))
    assert '"dltensor"' in repr(t.dlpack())
    for version in ((1, 0), (1, 3), (2, 0)):
        assert '"dltensor_versioned"' in repr(t.__dlpack__(max_version=version))


def test_device():
    t = tmesh.put([1.0], seal=False)
    assert t.__dlpack_device__() == (1, 0)
    t.__dlpack__(dl_device=(1, 0))
    for other in ((2, 0), (1, 1)):
        assert_refused(lambda: t.__dlpack__(dl_device=other), BufferError, "device")
    assert_refused(lambda: t.__dlpack__(stream=1), BufferError, "streams")
    for bad in ({"max_version": 1}, {"max_version": (1,)}, {"dl_device": 1}, {"copies": True}):
        assert_refused(lambda: t.__dlpack__(**bad), TypeError)


def test_copy():
    t = tmesh.put([1.0, 2.0], seal=True)
    before = tmesh.stats()["copies"]
    out = torch.from_dlpack(t.__dlpack__(copy=True))
    out[0] = 5
    assert t.numpy()[0] == 1 and tmesh.stats()["copies"] == before + 1
    assert t[::-1].__dlpack__(copy=True, max_version=(1, 0))
    t.__dlpack__(copy=False, max_version=(1, 0))


def test_consumers_are_views():
    t = tmesh.put([1.0], seal=False)
    out = torch.from_dlpack(t)
    assert_refused(t.seal, tmesh.BusyError, "1 writable view of")
    assert_refused(t.release, tmesh.BusyError, "1 view of")
    del out
    t.seal()
    t.release()


def test_capsule_unused():
    t = tmesh.put([1.0], seal=False)
    capsules = [t.__dlpack__(), t.__dlpack__(max_version=(1, 0))]
    assert_refused(t.release, tmesh.BusyError, "2 views")
    capsules.clear()
    t.release()


def test_consumer_outlives_the_tensor():
    out = torch.from_dlpack(tmesh.put([1.0, 2.0], seal=False))
    gc.collect()
    assert out.tolist() == [1.0, 2.0]


def test_consumer_ends_in_another_thread():
    box = [torch.from_dlpack(tmesh.put([1.0], seal=False))]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert not box


def test_from_dlpack_shares_what_is_ours():
    t = tmesh.put([1.0, 2.0], seal=False)
    copied = tmesh.stats()["copies"]
    for source in (t, t.__dlpack__(), t.__dlpack__(max_version=(1, 0)), t.dlpack()):
        same = tmesh.from_dlpack(source)
        same.numpy()[0] += 1
        assert same.id == t.id and same.writable
    assert t.numpy()[0] == 5 and tmesh.stats()["copies"] == copied
    assert not tmesh.from_dlpack(tmesh.open(t.ref())).writable


def test_from_dlpack_knows_of_other_views():
    t = tmesh.put([1.0], seal=False)
    same, array = tmesh.from_dlpack(t), t.numpy()
    assert_refused(same.seal, tmesh.BusyError, "1 writable view of")
    del array
    assert same.seal().sealed and t.sealed


def test_from_dlpack_copies_what_is_not():
    copied = tmesh.stats()["copies"]
    for source in (torch.ones(3), np.ones(3), torch.ones(3).__dlpack__()):
        t = tmesh.from_dlpack(source)
        assert t.numpy().tolist() == [1, 1, 1] and t.writable
    assert tmesh.stats()["copies"] == copied + 3


def test_from_dlpack_refuses():
    used = torch.ones(3).__dlpack__()
    torch.from_dlpack(used)
    assert_refused(lambda: tmesh.from_dlpack(used), tmesh.InvalidError, "capsule")
    assert_refused(lambda: tmesh.from_dlpack(object()), AttributeError)

    class Liar:
        def __dlpack__(self):
            return 5

    assert_refused(lambda: tmesh.put(Liar(), seal=False), tmesh.InvalidError, "capsule")


def test_put_copies_even_what_is_ours():
    for t in (tmesh.put([1.0], seal=False), tmesh.empty(4, "bfloat16"), tmesh.empty(4, "uint4")):
        other = tmesh.put(t, seal=False)
        assert other.id != t.id and (other.dtype, other.shape) == (t.dtype, t.shape)
    strided = tmesh.put(np.arange(6).reshape(2, 3), seal=False)[:, ::-1]
    assert np.array_equal(tmesh.put(strided, seal=False).numpy(), strided.numpy())


def test_nothing():
    assert torch.from_dlpack(tmesh.empty((0, 3), "float32")).shape == (0, 3)


def test_a_consumers_views_are_shared():
    t = tmesh.zeros((4, 6), "float32")
    theirs = torch.from_dlpack(t)
    copies = tmesh.stats()["copies"]
    for view in (theirs[1:], theirs[:, 2], theirs.t(), theirs[2, 3:], theirs.view(-1)[5:]):
        ours = tmesh.from_dlpack(view)
        assert ours.id == t.id and (ours.shape, ours.strides) == (tuple(view.shape), view.stride())
        view.fill_(view.numel())
        assert ours.numpy().tolist() == view.tolist()
        assert_refused(t.seal, tmesh.BusyError)
    assert tmesh.stats()["copies"] == copies
    bits = tmesh.from_dlpack(theirs.view(torch.int32)[1:])
    assert bits.id != t.id and tmesh.stats()["copies"] == copies + 1
    del theirs, view


@pytest.mark.parametrize("read_only", [False, True])
def test_a_consumers_read_only_view_stays_read_only(read_only):
    """A consumer says so by a flag of its capsule, as NumPy does from 2.1 on."""
    t = tmesh.zeros((4,), "float32")
    capsule = t.__dlpack__(max_version=(1, 0))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name, deleter, flags = b"dltensor_versioned", 16, 24
    managed = ctypes.create_string_buffer(ctypes.string_at(pointer(capsule, name), 80), 80)
    ctypes.memset(ctypes.addressof(managed) + deleter, 0, 8)
    managed[flags] = bytes([read_only])
    back = tmesh.from_dlpack(make(ctypes.addressof(managed), name, None))
    assert (back.id, back.writable) == (t.id, not read_only)
    if read_only:
        assert_refused(lambda: back.numpy(writable=True), tmesh.AccessError, "read-only here")
        assert not back.numpy().flags.writeable
    t.numpy()[1] = 3
    assert back.tolist() == [0, 3, 0, 0]


class Refusing(torch.Tensor):
    """In place of a tensor of float8, whose DLPack PyTorch refuses before version 2.9."""

    def __dlpack__(self, *_, **__):
        raise RuntimeError("float8 types are not supported by dlpack")


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a.T, lambda a: a[1, 1], lambda a: a[:0], lambda a: a[:, ::2].requires_grad_()])
def test_types_that_torch_does_not_export(view):
    """They are copied as bytes."""
    plain = view(torch.arange(6.0).reshape(2, 3).to(torch.bfloat16))
    source = plain.detach().as_subclass(Refusing).requires_grad_(plain.requires_grad)
    arena = tmesh.Arena()
    for t in tmesh.put(source), tmesh.put(source, arena=arena):
        assert (t.dtype, t.shape, t.tolist()) == ("bfloat16", tuple(plain.shape), plain.tolist())
