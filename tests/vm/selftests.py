# SPDX-License-Identifier: MIT
"""The kernel's own selftests that can be pointed at files of a read-only file system. They are built static and unchanged
from Debian's source package. tests/kselftest/README.md tells which they are, and why the others are left out."""
import hashlib
import shutil

import kernels
from cache import keep, sh

SOURCE = "linux-source-6.12"
COMPILER = "gcc-12"
# The sources below tools/testing/selftests
PROGRAMS = {
    "default_file_splice_read": ("splice/default_file_splice_read.c",),
    "splice_read": ("splice/splice_read.c",),
    "openat2_test": ("openat2/openat2_test.c", "openat2/helpers.c"),
    "test_cachestat": ("cachestat/test_cachestat.c",),
    "proc-self-map-files-001": ("proc/proc-self-map-files-001.c",),
    "proc-self-map-files-002": ("proc/proc-self-map-files-002.c",),
    "pagemap_ioctl": ("mm/pagemap_ioctl.c", "mm/vm_util.c", "mm/thp_settings.c"),
}


def programs():
    """Return the files of the programs. Build them if they are not in the cache."""
    key = hashlib.sha256(repr(sorted(PROGRAMS.items())).encode()).hexdigest()[:12]
    path = keep(f"selftests-{key}", make)
    return [path / name for name in PROGRAMS]


def make(path):
    source = path / "source"
    kernels.unpack_source(SOURCE, source)
    sh("make", "-C", source, "headers")
    tests = source / "tools/testing/selftests"
    for name, sources in PROGRAMS.items():
        # The paths in the program are relative, so that its own files appear where it is started.
        sh(COMPILER, "-static", "-O2", "-w", "-D_GNU_SOURCE=", f"-I{source / 'usr/include'}", *sources, "-lm", "-pthread",
           "-o", path / name, cwd=tests)
    shutil.rmtree(source)
