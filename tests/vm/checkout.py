# SPDX-License-Identifier: MIT
"""Suites of the checkout in Debian 13: on memfds in a root, on the module in a guest.

The root builds what the guest then runs, at the same path, so that the guest compiles nothing.
"""
import debian13
import roots
from cache import sh
from boot import BUILD
from modules import TOP

REPO = "/repo"
COPY = BUILD / "vm/repo"
# For make, here and in guest/checkout.sh: skip the runs with sanitizers, which the host's suites have done.
SETTINGS = ("CONFORM_PLAIN=1",)


def copy(with_model):
    """Update the copy of the checkout, which keeps the build of earlier runs. The host fetches the demo's model and
    packages, because the root and the guest may not reach PyPI."""
    COPY.mkdir(parents=True, exist_ok=True)
    sh("rsync", "-a", "--delete", "--exclude=/build", "--exclude=/.git", f"{TOP}/", COPY)
    if with_model:
        for tree in (TOP, COPY):
            (tree / "build/demo").mkdir(parents=True, exist_ok=True)
        sh(TOP / "tests/demo/fetch.sh", TOP / "build/demo")
        sh("rsync", "-a", "--include=/*.whl", "--include=/packages/***", "--exclude=*", f"{TOP}/build/demo/", COPY / "build/demo")
    return COPY


def on_memfd(target, repo, packages=()):
    """Make a target in the root. Return its output and exit status."""
    return roots.attempt(debian13.root(packages), "make", "-s", "--no-print-directory", "-C", REPO, *SETTINGS, target,
                         binds=[(repo, REPO)])


def disks(repo, packages=()):
    """Return (image, device) of the guest's root and of the copy with its build."""
    image = COPY.with_suffix(".img")
    debian13.write_image(repo, image)
    return [(path, "virtio-blk-pci") for path in (debian13.image(packages), image)]
