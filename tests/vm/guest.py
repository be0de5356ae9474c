# SPDX-License-Identifier: MIT
"""Packs a guest, boots it, and hands back what it said."""
import os
from dataclasses import dataclass
from pathlib import Path

import kernels
import qemu
from cache import say
from initramfs import Initramfs

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build"

# What the guest loads where its kernel has them as modules: disks, and the peers that take
# our dma-bufs.
GUEST_MODULES = ("virtio_pci", "virtio_blk", "virtio_rng", "ext4", "nvme", "vgem", "vivid", "udmabuf")

# Other ways to boot a kernel, which show other mistakes: the kernel, more of a command line.
VARIANTS = {
    "debug-swiotlb": ("debug", ["swiotlb=force"]),
}
NAMES = (*kernels.KERNELS, *VARIANTS)

# Seconds that one program may take, by TMESH_TEST_LENGTH.
TIMEOUT = {"short": 300, "full": 1800}


def length():
    value = os.environ.get("TMESH_TEST_LENGTH", "short")
    if value not in TIMEOUT:
        raise SystemExit("vm: TMESH_TEST_LENGTH is short or full")
    return value


@dataclass
class Outcome:
    """What a guest left: the two serial lines, and why it was ended from outside, if it was."""
    results: str
    console: str
    trouble: str


def boot(name, suite, *, module, programs=(), disks=(), arguments=()):
    """Boot a kernel or variant with one suite; module is the .ko file that the suite loads."""
    base, more = VARIANTS.get(name, (name, []))
    kernel = kernels.prepare(base)
    logs = BUILD / "vm" / name / suite
    logs.mkdir(parents=True, exist_ok=True)

    archive = Initramfs()
    archive.add_file("bin/busybox", Path("/bin/busybox"), 0o755)
    archive.add_file("init", HERE / "guest/init", 0o755)
    archive.add_file("suite", HERE / f"suites/{suite}.sh")
    archive.add_file(module.name, module)
    order = kernel.modules(GUEST_MODULES)
    for file in order:
        archive.add_file(f"modules/{file.name.removesuffix('.xz')}", file)
    archive.add("modules/order", "".join(f"{f.name.removesuffix('.xz')}\n" for f in order).encode())
    for program in programs:
        archive.add_file(f"tests/{program.name}", program, 0o755)
    archive.write(logs / "initramfs")

    say(f"{name} ({kernel.release}): {suite}")
    limit = TIMEOUT[length()]
    trouble = qemu.boot(kernel, logs / "initramfs", logs=logs, disks=disks, timeout=2 * limit,
                        arguments=[*more, *arguments, f"TMESH_TEST_LENGTH={length()}",
                                   f"TMESH_TIMEOUT={limit}"])
    (logs / "initramfs").unlink()
    return Outcome((logs / "results").read_text(errors="replace"),
                   (logs / "console").read_text(errors="replace"), trouble)
