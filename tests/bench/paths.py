#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A kept file of 1 GiB by its path, beside the same bytes in a file of tmpfs and in the page cache of a disk's file system.

  read   1 MiB a call into one buffer
  map    a mapping whose every byte is read
  four   four processes at once, each with a mapping, until all have read it; beside one

usage: tests/bench/paths.py BUILD FOLDER [PROGRAM WORD...]

FOLDER is on the disk. The words start another tmesh-mount than the build's, such as one with passthrough. Needs root and /dev/fuse.
"""
import contextlib
import mmap
import os
import sys
import tempfile

import numpy
from harness import Series

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD, FOLDER = sys.argv[1:3]
BUILD = os.path.abspath(BUILD)
sys.argv[1:] = [BUILD, *sys.argv[3:]]
sys.path[:0] = [os.path.join(HERE, "../mount"), os.path.join(HERE, "../keep")]
import test_mount

BYTES, PIECE, ROUNDS, PROCESSES = 1 << 30, 1 << 20, 5, 4
buffer = bytearray(PIECE)


def read_calls(path):
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def read_mapping(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
        words = numpy.frombuffer(mapping, numpy.uint64)
        total = int(words.sum())
        del words
    return total


@contextlib.contextmanager
def at_once(path, count):
    """Make processes that wait, and give a function in which each reads a mapping."""
    workers = [os.pipe() + os.pipe() for _ in range(count)]
    children = []
    for start, _, _, end in workers:
        child = os.fork()
        if not child:
            os.read(start, 1)
            read_mapping(path)
            os.write(end, b"x")
            os._exit(0)
        children.append(child)

    def run():
        for _, go, _, _ in workers:
            os.write(go, b"x")
        for _, _, done, _ in workers:
            os.read(done, 1)

    yield run
    for child in children:
        os.waitpid(child, 0)
    for fd in (fd for worker in workers for fd in worker):
        os.close(fd)


def why_not():
    if os.geteuid():
        return "needs root"
    if not os.path.exists(test_mount.PROGRAM[0]):
        return "tmesh-mount is not built: libfuse3-dev"
    if test_mount.errno_of(lambda: os.close(os.open("/dev/fuse", os.O_RDWR))):
        return "this machine has no /dev/fuse"
    return None


def measure(series, places):
    for turn in range(ROUNDS + 1):
        for place, path in places.items():
            series.time(f"{place}-read", lambda: read_calls(path), keep=turn)
            series.time(f"{place}-map", lambda: read_mapping(path), keep=turn)
            for name, count in ("one", 1), ("four", PROCESSES):
                with at_once(path, count) as run:
                    series.time(f"{place}-{name}", run, keep=turn)


def main():
    if why := why_not():
        print(f"paths: not measured: {why}", file=sys.stderr)
        return
    os.environ |= {"TMESH_BACKEND": "memfd", "TMESH_KEEPER": test_mount.KEEPER}
    series = Series("paths")
    with (tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=FOLDER) as disk,
          tempfile.TemporaryDirectory(dir="/dev/shm") as shared, test_mount.Mount(folder) as mount):
        data = numpy.random.default_rng(1).integers(0, 1 << 63, BYTES // 8, numpy.uint64)
        for place in disk, shared:
            with open(os.path.join(place, "model"), "wb") as file:
                file.write(data)
                os.fsync(file.fileno())
        test_mount.tool("keep", "--folder", disk, "bench")
        measure(series, {"kept": mount.path("bench/model"), "tmpfs": os.path.join(shared, "model"),
                         "disk": os.path.join(disk, "model")})
        print(f"paths: by {mount.way().decode()}", file=sys.stderr)
    series.print()


if __name__ == "__main__":
    main()
