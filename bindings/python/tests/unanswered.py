# SPDX-License-Identifier: MIT
"""A file whose server, a FUSE file system of one file, stops answering once it is open."""
import ctypes
import errno
import os
import signal
import stat
import struct
import tempfile

INIT, GETATTR, OPEN, FLUSH = 26, 3, 14, 25  # linux/fuse.h
ATTR = struct.pack("<QII 6Q 10I", 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFREG | 0o600, 1, 0, 0, 0, 0, 0)


def _is_of(thread, process):
    with open(f"/proc/{thread}/status") as status:
        return f"\nTgid:\t{process}\n" in status.read()


def _serve(device):
    """Answer flush(), which belongs to close(), only to the process that made the file. It could not be ended
    otherwise."""
    owner = os.getppid()
    answers = {INIT: struct.pack("<4I2H2I8I", 7, 31, 4096, 0, 0, 0, 4096, *[0] * 9), GETATTR: ATTR, OPEN: struct.pack("<QII", 1, 0, 0),
               FLUSH: b""}
    while request := os.read(device, 1 << 17):
        _, operation, unique, _, _, _, thread = struct.unpack_from("<IIQQIII", request)
        answer = answers.get(operation)
        if operation != FLUSH or _is_of(thread, owner):
            error, answer = (-errno.ENOSYS, b"") if answer is None else (0, answer)
            os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)


def unanswered():
    """Return its descriptor, and a function that ends its server; None without root or FUSE."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    file, path = tempfile.mkstemp()
    os.close(file)
    try:
        options = f"fd={device},rootmode=100600,user_id={os.getuid()},group_id={os.getgid()}"
        if libc.mount(b"tmesh-test", path.encode(), b"fuse", 6, options.encode()):
            return None
        server = os.fork()
        if not server:
            libc.prctl(1, signal.SIGKILL)
            signal.alarm(1800)  # a failing test must not wait forever
            try:
                _serve(device)
            finally:
                os._exit(0)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            libc.umount2(path.encode(), 2)
    finally:
        os.close(device)
        os.unlink(path)

    def end():
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    return file, end
