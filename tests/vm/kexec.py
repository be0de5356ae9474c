#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Kept memory that passes a kexec: first memfds without systemd and tmesh, then the keeper under systemd 262.

kexec.py [GUEST...]     memfds, keeper, off (the feature is not on), stock (Debian's kernel, which does not have it); all by default
"""
import hashlib
import json
import os
import random
import re
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import debian
import debian13
import kernels
import qemu
import roots
from boot import BUILD, HERE, logs
from cache import keep, locked, say, sh
from initramfs import Initramfs
from modules import TOP
from tap import Tap, program

SOURCE = "linux-source-7.3"
COMPILER = "gcc-12"
FRAGMENT = HERE / "kexec-kernel.config"
NEXT = "-next"
RELEASE = "forky"
PACKAGES = ("systemd", "systemd-sysv", "libjansson4", "liburing2")
LIMIT_S = 1800
TENSORS = 300
# Debian's own kernel of the same line, which has these options off, and what it needs to mount the root.
STOCK = "newest"
STOCK_MODULES = ("virtio_pci", "virtio_blk", "virtio_rng", "crc32c_generic", "ext4", "autofs4")
# systemd as a minimal root needs it. Its kexec waits for a minimum of uptime otherwise.
SYSTEMD = ["systemd.minimum_uptime_sec=0", "systemd.firstboot=no", "systemd.unit=multi-user.target", "systemd.show_status=no",
           "systemd.machine_id=6d7e1f0c9a8b4c5d8e7f6a5b4c3d2e1f"]
ON = ["kho=on", "liveupdate=on"]
# Lines of the keepers' logs, and whether the kernel hands memory over when they are printed.
LOGGED = [
    ("a group whose checksums did not fit into the store is logged, if one came", 'dropped the kept group "late".*: no checksums came with it', True),
    ("a group of a user other than root is logged, if one came", "dropped the kept group .*: its manifest belongs to user 0", True),
    ("groups that end with a kexec are logged, if nothing is handed over", "kept groups end with a kexec: this kernel hands nothing over", False),
]


def make_kernels(path):
    """Build a kernel twice. The second differs in its release."""
    build = path / "build"
    make = ["make", "-C", build, f"CC={COMPILER}", f"HOSTCC={COMPILER}"]
    kernels.unpack_source(SOURCE, build)
    sh(*make, f"KCONFIG_ALLCONFIG={FRAGMENT}", "allnoconfig")
    kernels.check_config(build / ".config", FRAGMENT)
    say("building the kernel that hands memory over, about 8 minutes on 2 cores")
    for name, more in (("vmlinuz", []), ("next", [f"LOCALVERSION={NEXT}"])):
        sh(*make, *more, f"-j{os.cpu_count()}", "bzImage")
        (build / "arch/x86/boot/bzImage").rename(path / name)
        (path / f"{name}.release").write_text(sh(*make, *more, "-s", "kernelrelease"))
    (path / "release").write_text(f"{debian.version(SOURCE)}\n")
    sh("rm", "-r", build)


def kernel():
    """Return the folder of the two kernels."""
    return keep(f"kernels/kexec-{hashlib.sha256(FRAGMENT.read_bytes()).hexdigest()[:12]}", make_kernels)


def root():
    return keep(f"{RELEASE}-systemd/root", lambda path: roots.bootstrap(path, RELEASE, PACKAGES))


def image():
    return keep(f"{RELEASE}-systemd/image", lambda path: debian13.write_image(root(), path / "ext4")) / "ext4"


def nested(path, fill, next_kernel, where=""):
    """Write an initramfs, which also has the next kernel and that kernel's initramfs. fill() adds the files of both."""
    following = path.with_name(path.name + ".next")
    for target in (following, path):
        archive = Initramfs()
        fill(archive)
        if target == path:
            archive.add_file(f"{where}kernel", next_kernel)
            archive.add_file(f"{where}initramfs", following)
        archive.write(target)


def guest(tap, name, left, first, *, arguments, disks=()):
    """Boot the first kernel, take over the TAP of both, and return what they printed."""
    trouble = qemu.boot(SimpleNamespace(vmlinuz=first), left / "initramfs", logs=left, disks=disks, arguments=arguments, timeout=LIMIT_S)
    lines = (left / "results").read_text(errors="replace").splitlines()
    console = (left / "console").read_text(errors="replace")
    ended = "@ done" in lines
    status = int(any(line.startswith("not ok") for line in lines)) if ended else None
    program(tap, name, [line for line in lines if line != "@ done"], status)
    tap.point(ended and not trouble, f"{name}: the guest reached its end")
    if not ended or trouble:
        tap.note(f"{trouble or ''}\nthe console's last lines:\n" + "\n".join(console.splitlines()[-60:]))
    return "\n".join(lines)


def memfds(tap):
    """Test what the kernel hands over."""
    left = logs("kexec", "memfds")

    def fill(archive):
        archive.add_file("init", BUILD / "tests/vm/luo", 0o755)

    nested(left / "initramfs", fill, kernel() / "next")
    guest(tap, "memfds", left, kernel() / "vmlinuz", arguments=ON)


def model(seed):
    """Return a safetensors file of TENSORS tensors, and the SHA-256 of their bytes."""
    each = 64 << 10
    data = random.Random(seed).randbytes(TENSORS * each)
    entries = {f"t{i}": {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]} for i in range(TENSORS)}
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data, hashlib.sha256(data).hexdigest()


def unit(path):
    """Return an installed unit, with the programs where the guest has them."""
    text = path.read_text().replace("@libexecdir@", "/run/tmesh-test/bin")
    return text.replace("[Service]\n", "[Service]\nStandardError=file:/dev/ttyS1\n").encode()


def keeper(tap, name, first, *, handed, arguments=(), modules=()):
    """Test the keeper under systemd. handed: the kernel hands memory over."""
    left = logs("kexec", name)
    programs = [BUILD / "tmesh-keeper", BUILD / "tmeshctl", BUILD / "tmeshctl-load", BUILD / "tests/keep/kept_hash", BUILD / "tests/vm/luo"]
    data, digest = model(len(name))
    settings = {"model": digest, "handed": "yes" if handed else "no", "release": (kernel() / "next.release").read_text().strip()}

    def fill(archive):
        archive.add_file("bin/busybox", Path("/bin/busybox"), 0o755)
        archive.add_file("init", HERE / "kexec/init", 0o755)
        for file in programs:
            archive.add_file(f"tmesh-test/bin/{file.name}", file, 0o755)
        archive.add_file("tmesh-test/test.sh", HERE / "kexec/test.sh")
        archive.add("tmesh-test/settings", "".join(f"{key}={value}\n" for key, value in settings.items()).encode())
        archive.add("tmesh-test/model.safetensors", data)
        archive.add("tmesh-test/late", data[:100_000])
        archive.add("tmesh-test/units/tmesh-keeper.service", unit(TOP / "packaging/systemd/system/tmesh-keeper.service.in"))
        for file in ("tmesh-keeper-daemon.service", "tmesh-test.service"):
            archive.add_file(f"tmesh-test/units/{file}", HERE / "kexec" / file)
        order = {file.name.removesuffix(".xz"): file for file in modules}
        for file_name, file in order.items():
            archive.add_file(f"modules/{file_name}", file)
        archive.add("modules/order", "".join(f"{file_name}\n" for file_name in order).encode())

    nested(left / "initramfs", fill, kernel() / "next", "tmesh-test/")
    printed = guest(tap, name, left, first, arguments=[*SYSTEMD, *arguments], disks=[(image(), "virtio-blk-pci")])
    for what, log, wanted in LOGGED:
        tap.point(bool(re.search(f"^tmesh-keeper: {log}", printed, re.MULTILINE)) == (wanted == handed), f"{name}: {what}")


def stock(tap):
    """Test the keeper in a kernel that does not have the feature."""
    first = kernels.prepare(STOCK)
    keeper(tap, "stock", first.vmlinuz, handed=False, arguments=ON, modules=first.modules(STOCK_MODULES))


GUESTS = {
    "memfds": memfds,
    "keeper": lambda tap: keeper(tap, "keeper", kernel() / "vmlinuz", handed=True, arguments=ON),
    "off": lambda tap: keeper(tap, "off", kernel() / "vmlinuz", handed=False),
    "stock": stock,
}


def main(wanted):
    tap = Tap()
    with locked(BUILD / "vm/kexec"):
        for name in wanted or GUESTS:
            GUESTS[name](tap)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
