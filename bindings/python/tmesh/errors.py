# SPDX-License-Identifier: MIT
"""The exceptions. Each has errno and the library's message. Each is also a subclass of the exception that Python would
raise itself, so ``except FileNotFoundError`` works."""


class Error(OSError):
    """The base class of all errors."""


class InvalidError(Error, ValueError):
    """An argument is out of its range (EINVAL, EOVERFLOW)."""


class NotFoundError(Error, FileNotFoundError):
    """The token is dead, foreign or guessed (ENOENT)."""


class AccessError(Error, PermissionError, BufferError):
    """The handle or token does not have that right, or was inherited through fork() (EACCES, EPERM)."""


class SealedError(AccessError):
    """The memory is sealed: no process can write to it (EPERM)."""


class BusyError(Error, BufferError):
    """Views exist, or a writer prevents the seal (EBUSY)."""


class StaleError(Error, BufferError):
    """The region was revoked, or the lease of its handle has lapsed, or a file changed while it was read (ESTALE)."""


class ExistsError(Error, FileExistsError):
    """The name is already used for other memory (EEXIST)."""


class LimitError(Error):
    """The call would exceed a limit of tmesh or of the process (EDQUOT, EMFILE, ENFILE, E2BIG)."""


class OutOfMemoryError(Error, MemoryError):
    """No memory (ENOMEM)."""


class ProtocolError(Error, ValueError):
    """A malformed ref or token, or one that does not fit its region (EPROTO)."""


class UnsupportedError(Error, NotImplementedError, BufferError):
    """This backend, machine or consumer cannot do it; tmesh.caps() gives the reason (EOPNOTSUPP)."""


class PeerTimeoutError(Error, TimeoutError):
    """A peer did not answer in time (ETIMEDOUT, EAGAIN). After Tensor.reclaim(), report is a dict of the memory's
    users."""

    report: dict[str, int] | None = None


class GoneError(Error, BrokenPipeError):
    """The other end of a channel, a socket or a fence is gone (EPIPE)."""


class CancelledError(Error):
    """The call was cancelled: a dispatch by its Cancellable (ECANCELED)."""


class ReleasedError(Error, ValueError, BufferError):
    """The tensor was released, or the channel closed (EBADF)."""
