#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""Follow the pages of docs/howto/deploy under a real systemd of Debian 13. Prints TAP.

check.py [container|guest [PAGE...]]

A container is fast, but a limit of memory or the module may be missing there: blocks after <!-- guest --> are left out. A guest has
a kernel of its own, and runs every block of the pages that have such blocks.
"""
import signal
import subprocess
import sys

import machine  # first: it makes the modules of tests/vm known
import boot
import debian13
import kernels
import modules
from cache import keep, locked, sh
from judge import judge
from tap import Tap

HERE = machine.TOP / "tests/deploy"
KERNEL = "6.12"
PAGES = ("systemd", "web-servers", "notebooks", "containers", "shared-machines", "upgrade", "monitoring")
CONTAINER = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
LIMIT_S = 1800
DEVICES = ("virtio_pci", "virtio_blk", "virtio_rng", "crc32c_generic", "crc32_generic", "ext4", "overlay", "autofs4")


def image(root):
    """Return the root as an image."""
    return keep(f"{root.parent.name}/image", lambda path: debian13.write_image(root, path / "ext4")) / "ext4"


def newer(debs, folder):
    """Write the same packages with a higher version, to upgrade to."""
    for deb in debs:
        tree = folder / deb.stem
        sh("dpkg-deb", "-R", deb, tree)
        control = tree / "DEBIAN/control"
        version = sh("dpkg-deb", "-f", deb, "Version").strip()
        control.write_text(control.read_text().replace(f"Version: {version}", "Version: 99").replace(f"(= {version})", "(= 99)"))
        sh("dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, folder)
        sh("rm", "-rf", tree)


def tree(where):
    """Return a folder with the packages, the pages, and their follower."""
    path = where / "tree"
    sh("rm", "-rf", path)
    for name in ("own", "newer", "tests"):
        (path / name).mkdir(parents=True)
    debs = machine.packages()
    sh("cp", *debs, path / "own")
    newer(debs, path / "newer")
    sh("cp", "-r", machine.TOP / "docs", machine.TOP / "packaging", path)
    sh("cp", "-r", machine.TOP / "tests/deploy", machine.TOP / "tests/docs.py", machine.TOP / "tests/tree.py", path / "tests")
    return path


def container(tap, page):
    """Follow a page in a container, without its blocks for a guest."""
    where = boot.logs("container", page)
    with locked(where):
        files = tree(where)
        sh("mkdir", "-p", where / "upper")
        (where / "cmdline").write_text(f"TMESH_PAGES={page} TMESH_WHERE=container\n")
        (files / "results").write_text("")
        trouble = ""
        with open(where / "console", "w") as console:
            running = subprocess.Popen([*CONTAINER, "sh", HERE / "container.sh", machine.root(), where], stdout=console, stderr=console,
                                       stdin=subprocess.DEVNULL)
            try:
                running.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                trouble = f"did not end within {LIMIT_S} s"
            finally:
                running.kill()
                running.wait()
        judge(tap, "container", boot.Outcome((files / "results").read_text(errors="replace"), (where / "console").read_text(errors="replace"), trouble))


def guest(tap, page):
    """Follow a page in a guest."""
    where = boot.logs(KERNEL, f"deploy-{page}")
    with locked(where):
        debian13.write_image(tree(where), where / "disk")
        module, _ = modules.kept(kernels.prepare(KERNEL), boot.logs(KERNEL, "module"))
        disks = [(image(machine.root()), "virtio-blk-pci"), (where / "disk", "virtio-blk-pci")]
        judge(tap, "guest", boot.run(KERNEL, f"deploy-{page}", script="deploy", module=module, disks=disks,
                                     arguments=[f"TMESH_PAGES={page}", "TMESH_WHERE=guest"], devices=DEVICES, restarts=True))


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tap = Tap()
    kinds, pages = sys.argv[1:2] or ["container", "guest"], sys.argv[2:] or PAGES
    if "container" in kinds:
        for page in pages:
            container(tap, page)
    if "guest" in kinds:
        for page in pages:
            if "<!-- guest -->" in (machine.TOP / f"docs/howto/deploy/{page}.md").read_text():
                guest(tap, page)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
