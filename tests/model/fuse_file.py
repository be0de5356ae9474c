#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A FUSE file system with one file, which has another file's bytes, and which fails as its arguments say.

    fuse_file.py MOUNT_POINT FILE LOG [FAULT AFTER]

LOG gets a line "OFFSET SIZE" for each read that the kernel asks for. From byte AFTER on, the mode says how it
fails. eio fails, end has no more bytes, changed has another mtime, gone is no file any more. The mode dead ends the
server. The mode hangs reports in LOG and answers no more. The mode gated reports each read in LOG, and answers it
when the FIFO LOG.gate has another byte. Meanwhile it answers other requests, and read bytes stay in the cache for the next
open of the file. Runs until it is unmounted.
"""
import errno
import os
import signal
import stat
import sys

import fusepy as fuse

POINT, FILE, LOG = sys.argv[1:4]
FAULT, AFTER = (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 4 else ("", 0)


class OneFile(fuse.Operations):
    def __init__(self):
        self.data = open(FILE, "rb").read()
        self.log = open(LOG, "w", buffering=1)
        self.gate = os.open(LOG + ".gate", os.O_RDWR) if FAULT == "gated" else None
        self.far = 0

    def _reached(self, fault):
        return FAULT == fault and self.far > AFTER

    def getattr(self, path, handle=None):
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path != "/" + os.path.basename(FILE) or self._reached("gone"):
            raise fuse.FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": len(self.data),
                "st_mtime": 2000 if self._reached("changed") else 1000}

    def readdir(self, path, handle):
        return [".", "..", os.path.basename(FILE)]

    def read(self, path, size, offset, handle):
        self.log.write(f"{offset} {size}\n")
        self.far = max(self.far, offset + size)
        if self._reached("dead"):
            os._exit(0)
        if self._reached("hangs"):
            self.log.write("hangs 0\n")
            signal.pause()
        if FAULT == "gated" and offset + size > AFTER:
            self.log.write("gated 0\n")
            os.read(self.gate, 1)
        if self._reached("eio"):
            raise fuse.FuseOSError(errno.EIO)
        return self.data[offset:min(offset + size, AFTER) if FAULT == "end" else offset + size]


fuse.FUSE(OneFile(), POINT, foreground=True, ro=True, nothreads=FAULT != "gated", kernel_cache=FAULT == "gated", attr_timeout=0, fsname="tmesh-test")
