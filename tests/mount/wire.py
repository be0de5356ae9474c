# SPDX-License-Identifier: MIT
"""The keeper's messages (lib/keeper.h) and tables of paths (lib/paths.h), for keepers that lie."""
import array
import os
import socket
import struct

KEEP, REGION, PATHS = 0x4b304d54, 0x52304d54, 0x50304d54
REQUEST = struct.Struct("=6IQQ4I64s")
REPLY = struct.Struct("=IIi3I4Q")
ROW = struct.Struct("=5Q6I64s")
WIRE = struct.Struct("=6I2Q")
OPEN, LIST, DROP, STATUS, FIND, TAKE = 2, 3, 4, 5, 6, 7
WITH_PATHS = 1 << 8
F_ADD_SEALS, SEALED = 1033, 15


def request(data):
    fields = REQUEST.unpack(data)
    return {"op": fields[2], "id": fields[7], "region": fields[8], "name": fields[12].rstrip(b"\0")}


def reply(status=0, count=0, ident=1, magic=KEEP, version=1):
    return REPLY.pack(magic, version, status, count, 0, 0, ident, 0, 0, 0)


def row(name, ident=1, count=1, mode=0o644, gid=0, flags=WITH_PATHS):
    return ROW.pack(ident, 4096, 0, 0, 0, count, 0, mode, gid, flags, 0, name)


def region(size):
    return WIRE.pack(REGION, 1, 2, 1, 1, 0, 7, size)


def table(files, regions=1, magic=PATHS, count=None):
    """Make a table of (path, offset, bytes, region), unchecked."""
    names, entries, at = [], [], 0
    for path, offset, size, where in files:
        entries.append(struct.pack("=QQqII", offset, size, 0, where, at))
        names.append(path + b"\0")
        at += len(path) + 1
    return struct.pack("=IIIIQ", magic, 1, len(files) if count is None else count, regions, at) + b"".join(entries + names)


def memory(data, seals=SEALED, name="lie"):
    import fcntl
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return reader


def send(connection, data, *fds):
    connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
