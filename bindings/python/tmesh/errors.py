# SPDX-License-Identifier: MIT
"""What can go wrong. Every error carries errno and the library's sentence, and is also what
Python's own code would raise in its place, so that ``except FileNotFoundError`` works."""


class Error(OSError):
    """The base of them all."""


class InvalidError(Error, ValueError):
    """An argument is out of its range (EINVAL, EOVERFLOW)."""


class NotFoundError(Error, FileNotFoundError):
    """The token is dead, foreign or guessed (ENOENT)."""


class AccessError(Error, PermissionError, BufferError):
    """The handle or token has not that right, or was inherited through fork() (EACCES, EPERM)."""


class SealedError(AccessError):
    """The memory is sealed: nobody can write to it any more (EPERM)."""


class BusyError(Error, BufferError):
    """Views are alive, or a writer prevents the seal (EBUSY)."""


class StaleError(Error):
    """The region was revoked, or the lease of its handle has lapsed (ESTALE)."""


class ExistsError(Error, FileExistsError):
    """Something else is kept under that name (EEXIST)."""


class LimitError(Error):
    """A limit of tmesh or of the process would be passed (EDQUOT, EMFILE, ENFILE)."""


class OutOfMemoryError(Error, MemoryError):
    """No memory (ENOMEM)."""


class ProtocolError(Error, ValueError):
    """A malformed ref or token, or one that does not fit its region (EPROTO)."""


class UnsupportedError(Error, NotImplementedError, BufferError):
    """This backend, machine or consumer cannot do it; tmesh.caps() says why (EOPNOTSUPP)."""


class PeerTimeoutError(Error, TimeoutError):
    """A peer did not answer in time (ETIMEDOUT, EAGAIN). Of Tensor.reclaim() its report, a dict, says
    what still uses the memory."""

    report: dict[str, int] | None = None


class GoneError(Error, BrokenPipeError):
    """Nobody is left at the other end: of a channel, of a socket, or of a fence (EPIPE)."""


class CancelledError(Error):
    """The call was given up: an engine's dispatch by its Cancellable (ECANCELED)."""


class ReleasedError(Error, ValueError):
    """The tensor was released, or the channel closed (EBADF)."""
