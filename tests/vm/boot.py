# SPDX-License-Identifier: MIT
"""Pack a guest, boot it, and return its output."""
import os
from dataclasses import dataclass
from pathlib import Path

import kernels
import qemu
from cache import say, sh
from initramfs import Initramfs

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build"

# Modules that the guest loads, if its kernel does not have them built in: disks, importers of our dma-bufs, and RDMA
# over a dummy device. The driver ext4 finds its checksum by name, so modules.dep does not list that.
GUEST_MODULES = ("virtio_pci", "virtio_blk", "virtio_rng", "crc32c_generic", "crc32_generic", "ext4", "nvme",
                 "vgem", "vivid", "udmabuf", "dummy", "ib_uverbs", "rdma_rxe", "overlay", "loop")

# Other ways to boot a kernel, which find other mistakes: the kernel, and more words for its command line.
VARIANTS = {
    # Without an IOMMU, so that DMA goes through bounce buffers.
    "debug-swiotlb": ("debug", ["swiotlb=force", "intel_iommu=off"]),
}
NAMES = (*kernels.KERNELS, *VARIANTS)

# The limits in seconds for one program and for a whole guest, by TMESH_TEST_LENGTH.
LIMITS = {"brief": (1800, 3300), "short": (1800, 3300), "full": (12600, 4 * 3600)}


def kernel_of(name):
    """Return the kernel that a variant boots. The name of a kernel stands for itself."""
    return VARIANTS.get(name, (name, []))[0]


def logs(name, suite):
    """Return the folder for the modules and logs of a suite on a kernel."""
    path = BUILD / "vm" / name / suite
    path.mkdir(parents=True, exist_ok=True)
    return path


def length():
    """Return TMESH_TEST_LENGTH: short by default, or brief or full."""
    value = os.environ.get("TMESH_TEST_LENGTH", "short")
    if value not in LIMITS:
        raise SystemExit("vm: TMESH_TEST_LENGTH is brief, short or full")
    return value


@dataclass
class Outcome:
    """The result of a guest: its two serial lines, and the reason if it was killed."""
    results: str
    console: str
    trouble: str


def run(name, suite, *, module, script=None, programs=(), files=(), disks=(), shares=(), arguments=(), modules=(),
        libraries=(), devices=GUEST_MODULES, balloon=False, restarts=False):
    """Boot a kernel or variant with one suite.

    module: the .ko file that the suite loads, or None
    script: the name of the script in guest/, if it is not that of the suite
    programs, files: copied under their names; only programs are executable
    modules: kernel modules that the guest loads beside devices
    libraries: the shared libraries of the programs, copied to the same paths
    balloon, restarts: see qemu.boot()
    """
    kernel = kernels.prepare(kernel_of(name))
    _, more = VARIANTS.get(name, (name, []))
    left = logs(name, suite)

    archive = Initramfs()
    archive.add_file("bin/busybox", Path("/bin/busybox"), 0o755)
    archive.add_file("init", HERE / "guest/init", 0o755)
    archive.add_file("suite", HERE / f"guest/{script or suite}.sh")
    if module:
        # Strip the debug information, nine tenths of the file: `unload` loads it dozens of times. coverage.py uses the
        # unstripped file.
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
                            balloon=balloon, restarts=restarts, timeout=for_guest,
                            arguments=[*more, *arguments, f"TMESH_TEST_LENGTH={length()}",
                                       f"TMESH_TIMEOUT={for_program}"])
        results = (left / "results").read_text(errors="replace")
        # A stock kernel that patches its own code sometimes panics under emulation, long before it loads our module.
        if results or last:
            break
        say(f"{name}: the kernel did not reach init; once more. Its console: {left}/console.first")
        (left / "console").rename(left / "console.first")
    (left / "initramfs").unlink()
    return Outcome(results, (left / "console").read_text(errors="replace"), trouble)
