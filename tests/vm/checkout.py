# SPDX-License-Identifier: MIT
"""The Python and Elixir suites in Debian 13: on memfds in a root, on the module in a guest.

The root builds what the guest then runs, at the same path, so that the guest compiles nothing.
"""
import debian13
import roots
from cache import sh
from modules import BUILD, TOP

REPO = "/repo"
SUITES = ("python-check", "beam-check")


def copy():
    """A copy of the checkout, which keeps what an earlier run built there."""
    repo = BUILD / "repo"
    repo.mkdir(parents=True, exist_ok=True)
    sh("rsync", "-a", "--delete", "--exclude=/build", "--exclude=/.git", f"{TOP}/", repo)
    return repo


def on_memfd(suite, repo):
    """Run a suite in the root. Returns its output and exit status."""
    return roots.attempt(debian13.root(), "make", "-s", "--no-print-directory", "-C", REPO, suite,
                         binds=[(repo, REPO)])


def disks(repo):
    """(image, device) of the guest's root, and of the copy with what the suites built."""
    image = BUILD / "repo.img"
    debian13.write_image(repo, image)
    return [(path, "virtio-blk-pci") for path in (debian13.image(), image)]
