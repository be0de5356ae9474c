# SPDX-License-Identifier: MIT
"""The exceptions."""

import errno
import pickle
import struct

import pytest

import tmesh
from conftest import ANY_BACKEND, assert_refused
from tmesh import _tmesh

pytestmark = ANY_BACKEND

FAMILY = {
    tmesh.InvalidError: ValueError, tmesh.NotFoundError: FileNotFoundError,
    tmesh.AccessError: PermissionError, tmesh.SealedError: PermissionError,
    tmesh.BusyError: BufferError, tmesh.StaleError: OSError, tmesh.LimitError: OSError,
    tmesh.OutOfMemoryError: MemoryError, tmesh.ProtocolError: ValueError,
    tmesh.UnsupportedError: NotImplementedError, tmesh.PeerTimeoutError: TimeoutError,
    tmesh.GoneError: BrokenPipeError, tmesh.ReleasedError: ValueError, tmesh.ExistsError: FileExistsError,
    tmesh.CancelledError: OSError,
}


@pytest.mark.parametrize("cls", FAMILY)
def test_family(cls):
    assert issubclass(cls, tmesh.Error) and issubclass(cls, OSError) and issubclass(cls, FAMILY[cls])
    error = cls(errno.EIO, "a sentence")
    assert (error.errno, error.strerror) == (errno.EIO, "a sentence")
    assert cls.__name__ in tmesh.__all__ and cls.__doc__


def test_all_of_them_are_public():
    from tmesh import errors
    defined = {value for value in vars(errors).values() if isinstance(value, type)}
    assert defined == {tmesh.Error, *FAMILY}


@pytest.mark.parametrize("cause, cls, code", [
    (lambda: tmesh.empty(-1, "uint8"), tmesh.InvalidError, errno.EINVAL),
    (lambda: tmesh.open("nonsense"), tmesh.ProtocolError, errno.EPROTO),
    (lambda: tmesh.empty(2**62, "float64"), tmesh.InvalidError, errno.EOVERFLOW),
    (lambda: tmesh.put(b"", seal=True).numpy(writable=True), tmesh.SealedError, errno.EPERM),
    (lambda: tmesh.put(b"").view("int4").numpy(), tmesh.UnsupportedError, errno.EOPNOTSUPP),
])
def test_errno_and_message(cause, cls, code):
    with pytest.raises(cls) as caught:
        cause()
    assert type(caught.value) is cls and caught.value.errno == code
    assert len(caught.value.strerror) > 10
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.args) == (cls, caught.value.args)


def test_what_another_library_reports():
    report = bytearray(_tmesh.ERROR_BYTES)
    report[:4] = struct.pack("i", -errno.ESTALE)
    report[4:14] = b"its word \xff"
    with pytest.raises(tmesh.StaleError, match="its word \ufffd") as caught:
        _tmesh.raise_error(report)
    assert caught.value.errno == errno.ESTALE
    assert_refused(lambda: _tmesh.raise_error(report[:-1]), ValueError, f"{len(report)} bytes")
    assert_refused(lambda: _tmesh.raise_error("text"), TypeError)


@pytest.mark.parametrize("word, sealed, cls, code", [
    ("EPERM", False, "AccessError", errno.EPERM), ("EPERM", True, "SealedError", errno.EPERM),
    ("EAGAIN", False, "PeerTimeoutError", errno.EAGAIN), ("EXYZ", False, "Error", errno.EIO)])
def test_words_of_another_program(word, sealed, cls, code):
    """An error that Tmesh.Net answers becomes the exception that the library would raise."""
    with pytest.raises(getattr(tmesh, cls), match="why") as raised:
        _tmesh.raise_word(word, sealed, "why")
    assert type(raised.value) is getattr(tmesh, cls) and raised.value.errno == code
