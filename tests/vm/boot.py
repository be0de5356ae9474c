# SPDX-License-Identifier: MIT
"""Packs a guest, boots it, and hands back what it said."""
import os
from dataclasses import dataclass
from pathlib import Path

import kernels
import qemu
from cache import say, sh
from initramfs import Initramfs

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build"

# What the guest loads where its kernel has them as modules: disks (ext4 finds its checksum by
# name, not by symbol), the peers that take our dma-bufs, and RDMA over a device of its own.
GUEST_MODULES = ("virtio_pci", "virtio_blk", "virtio_rng", "crc32c_generic", "crc32_generic", "ext4", "nvme",
                 "vgem", "vivid", "udmabuf", "dummy", "ib_uverbs", "rdma_rxe")

# Other ways to boot a kernel, which show other mistakes: the kernel, more of a command line.
VARIANTS = {
    # An IOMMU would translate what is to be copied.
    "debug-swiotlb": ("debug", ["swiotlb=force", "intel_iommu=off"]),
}
NAMES = (*kernels.KERNELS, *VARIANTS)

# Seconds that one program and a whole guest may take, by TMESH_TEST_LENGTH.
LIMITS = {"brief": (1800, 3300), "short": (1800, 3300), "full": (12600, 4 * 3600)}


def kernel_of(name):
    """The kernel that a variant boots; a kernel's name is itself one."""
    return VARIANTS.get(name, (name, []))[0]


def logs(name, suite):
    """Where a suite on a kernel builds its modules and leaves what its guest said."""
    path = BUILD / "vm" / name / suite
    path.mkdir(parents=True, exist_ok=True)
    return path


def length():
    """TMESH_TEST_LENGTH: short unless it says brief or full."""
    value = os.environ.get("TMESH_TEST_LENGTH", "short")
    if value not in LIMITS:
        raise SystemExit("vm: TMESH_TEST_LENGTH is brief, short or full")
    return value


@dataclass
class Outcome:
    """What a guest left: the two serial lines, and why it was ended from outside, if it was."""
    results: str
    console: str
    trouble: str


def run(name, suite, *, module, script=None, programs=(), files=(), disks=(), shares=(), arguments=(), modules=(),
        libraries=(), devices=GUEST_MODULES):
    """Boot a kernel or variant with one suite; module is the .ko file that the suite loads, script
    what runs in the guest where that is not called like the suite. Programs are executable,
    files are not; both keep their names. modules: what the guest loads beside devices. libraries: what
    programs that are not static are linked with, which keep their places."""
    kernel = kernels.prepare(kernel_of(name))
    _, more = VARIANTS.get(name, (name, []))
    left = logs(name, suite)

    archive = Initramfs()
    archive.add_file("bin/busybox", Path("/bin/busybox"), 0o755)
    archive.add_file("init", HERE / "guest/init", 0o755)
    archive.add_file("suite", HERE / f"guest/{script or suite}.sh")
    # What debuggers want of it, nine tenths, stays with coverage.py: `unload` loads it dozens of times.
    sh("strip", "-g", "-o", left / module.name, module)
    archive.add_file(module.name, left / module.name)
    order = {file.name.removesuffix(".xz"): file for file in kernel.modules((*devices, *modules))}
    for file_name, file in order.items():
        archive.add_file(f"modules/{file_name}", file)
    archive.add("modules/order", "".join(f"{file_name}\n" for file_name in order).encode())
    for program in programs:
        archive.add_file(f"tests/{program.name}", program, 0o755)
    for file in files:
        archive.add_file(file.name, file)
    for library in libraries:
        archive.add_file(str(library).removeprefix("/"), library, 0o755)
    archive.write(left / "initramfs")

    say(f"{name} ({kernel.release}): {suite}")
    for_program, for_guest = LIMITS[length()]
    for last in (False, True):
        trouble = qemu.boot(kernel, left / "initramfs", logs=left, disks=disks, shares=shares,
                            timeout=for_guest,
                            arguments=[*more, *arguments, f"TMESH_TEST_LENGTH={length()}",
                                       f"TMESH_TIMEOUT={for_program}"])
        results = (left / "results").read_text(errors="replace")
        # A stock kernel that patches its own code panics now and then under emulation, long
        # before it knows our module.
        if results or last:
            break
        say(f"{name}: the kernel did not reach init; once more. Its console: {left}/console.first")
        (left / "console").rename(left / "console.first")
    (left / "initramfs").unlink()
    return Outcome(results, (left / "console").read_text(errors="replace"), trouble)
