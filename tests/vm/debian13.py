# SPDX-License-Identifier: MIT
"""A Debian 13 root: the compiler that newer kernels want, and the guest of the bindings' suites."""
import hashlib
import shutil

import roots
from cache import keep, sh

PACKAGES = (
    "make", "gcc", "g++", "libc6-dev", "libelf-dev", "kmod", "pkg-config",
    "libjansson-dev", "libcmocka-dev", "libdrm-dev", "liburing-dev", "libxxhash-dev",
    "python3-dev", "python3-venv", "python3-pip", "python3-setuptools", "python3-wheel",
    "python3-numpy", "python3-pytest", "python3-torch", "mypy",
    "scdoc", "man-db", "bash-completion", "valgrind", "graphviz", "python3-prometheus-client",
    "elixir", "erlang-dev", "erlang-nox", "erlang-eunit", "libfuse3-dev",
    # W=1 checks the comments of a module by kernel-doc, a program in Perl.
    "perl",
)
# More packages for some suites. They go into another root, which `make check` does not make.
NET = ("libfabric-dev", "iproute2", "wireguard-tools")


def key(more):
    return "debian13-" + hashlib.sha256(" ".join((*PACKAGES, *more)).encode()).hexdigest()[:12]


def root(more=()):
    def make(path):
        roots.bootstrap(path, "trixie", (*PACKAGES, *more))
        (path / "repo").mkdir()
        shutil.rmtree(path / "var/lib/apt/lists")

    return keep(f"{key(more)}/root", make)


def image(more=()):
    """Return the root as an ext4 image."""
    return keep(f"{key(more)}/image", lambda path: write_image(root(more), path / "ext4")) / "ext4"


def write_image(tree, path):
    """Write a sparse ext4 image of a directory, with room for files that a guest writes."""
    path.unlink(missing_ok=True)
    used = int(sh("du", "-sm", tree).split()[0])
    sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=0", "-d", tree, path, f"{used + used // 4 + 512}M")
