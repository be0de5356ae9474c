#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""tmesh-mount with passthrough, which Debian 12's libfuse does not have: built in a Debian 13 root, run on this kernel.
Usage: passthrough.py BUILD_DIR; prints TAP."""
import os
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests/vm"), str(TOP / "tests/mount")]
BUILD = sys.argv[1]
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def built():
    """The words that start the root's tmesh-mount here."""
    import debian13
    import roots
    root = debian13.root()
    out = Path(BUILD, "mount13")
    out.mkdir(parents=True, exist_ok=True)
    roots.run(root, "make", "-s", "-C", "/repo", "B=/out", "/out/tmesh-mount", binds=((TOP, "/repo"), (out, "/out")))
    libraries = root / LIBRARIES
    return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(out / "tmesh-mount")]


def why_not():
    if os.geteuid():
        return "needs root"
    if os.uname().machine != "x86_64":
        return "the Debian 13 root is of x86_64"
    if not os.path.exists("/dev/fuse"):
        return "this machine has no /dev/fuse"
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 9):
        return "this kernel has no FUSE_PASSTHROUGH (Linux 6.9)"
    return None


def main():
    why = why_not()
    if why:
        print(f"1..1\nok 1 - the kernel reads the memory itself # SKIP {why}")
        return 0
    return subprocess.call([sys.executable, "-B", str(TOP / "tests/mount/test_mount.py"), BUILD, *built()])


if __name__ == "__main__":
    sys.exit(main())
