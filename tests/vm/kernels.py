#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The kernels that the module is tested in: `kernels.py [--update] [NAME...]` prepares them.

Debian's stock kernels are unpacked, not installed; the debug kernel is built from Debian's
source package. Which stock kernels these are, Debian's own index says: the newest of each suite. It is
asked again when the answer is KEPT_DAYS old, so that the cache serves for so long without the network.
Each kernel is kept in the cache as a directory:

    release     `uname -r`, and the package version in the second line
    vmlinuz     what QEMU boots
    modules/    lib/modules/RELEASE
    kdir        a link to what a module is built against
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import debian
from cache import CACHE, keep, locked, say, sh

HERE = Path(__file__).resolve().parent
FRAGMENT = HERE / "debug-kernel.config"
KERNELS_KEPT = CACHE / "kernels"
KEPT_DAYS = 7


@dataclass(frozen=True)
class Stock:
    """A stock kernel: the newest that a suite of Debian has, or that it has of one line."""
    suite: str
    compiler: str
    in_debian13: bool = False
    line: str = ""
    by_hand: bool = False

    def folder(self, name):
        return chosen(name)

    def make(self, path):
        release = path.name.removesuffix(".unfinished")
        image = f"linux-image-{release}"
        debian.fetch(debian.closure([image, f"linux-headers-{release}"],
                                    r"linux-(image|binary|modules|headers|kbuild)-[^:]*(?<!unsigned)"), path)
        (path / "release").write_text(f"{release}\n{debian.version(image)}\n")

        modules = next(p for p in (path / "lib/modules" / release, path / "usr/lib/modules" / release)
                       if p.is_dir())
        sh("depmod", "-b", path if modules.is_relative_to(path / "lib") else path / "usr", release)
        modules.rename(path / "modules")
        shutil.copy(next(p for p in (path / "boot" / f"vmlinuz-{release}", path / "modules/vmlinuz")
                         if p.is_file()), path / "vmlinuz")

        # The packages expect to lie at the root of the file system.
        final = KERNELS_KEPT / release
        headers = path / "usr/src" / f"linux-headers-{release}"
        for makefile in (headers / "Makefile", headers / ".kernelvariables"):
            if makefile.is_file():
                makefile.write_text(makefile.read_text().replace("/usr/src/", f"{final}/usr/src/"))
        (path / "kdir").symlink_to(headers.relative_to(path))


@dataclass(frozen=True)
class Debug:
    """A kernel with every detector that has something to say about a module."""
    source: str
    compiler: str = "gcc-12"
    in_debian13: bool = False

    def folder(self, name):
        return f"{name}-{hashlib.sha256(FRAGMENT.read_bytes()).hexdigest()[:12]}"

    def make(self, path):
        build = path / "build"
        make = ["make", "-C", build, f"CC={self.compiler}", f"HOSTCC={self.compiler}"]
        unpack_source(self.source, build)
        sh(*make, f"KCONFIG_ALLCONFIG={FRAGMENT}", "allnoconfig")
        check_config(build / ".config")
        say("building the debug kernel, about 10 minutes on 2 cores")
        sh(*make, f"-j{os.cpu_count()}", "bzImage", "modules")

        release = sh(*make, "-s", "kernelrelease").strip()
        sh(*make, f"INSTALL_MOD_PATH={path}", "modules_install")
        (path / "lib/modules" / release).rename(path / "modules")
        (path / "modules/build").unlink()
        shutil.copy(build / "arch/x86/boot/bzImage", path / "vmlinuz")
        keep_headers(make, path)
        (path / "release").write_text(f"{release}\n{debian.version(self.source)}\n")
        shutil.rmtree(build)
        shutil.rmtree(path / "lib")


@dataclass(frozen=True)
class Clang:
    """What the debug kernel's module builds against, prepared by clang. Nothing boots it."""
    source: str

    def folder(self, name):
        return KERNELS["debug"].folder(name)

    def make(self, path):
        build = path / "build"
        make = ["make", "-C", build, "LLVM=1"]
        unpack_source(self.source, build)
        sh(*make, f"KCONFIG_ALLCONFIG={FRAGMENT}", "allnoconfig")
        sh(*make, f"-j{os.cpu_count()}", "modules_prepare")
        shutil.copy(prepare("debug").kdir / "Module.symvers", build)
        keep_headers(make, path)
        shutil.rmtree(build)


def unpack_source(source, into):
    """Debian's source of a kernel, in a folder of its own."""
    into.mkdir()
    debian.fetch([source], into)
    sh("tar", "-C", into, "--strip-components=1", "-xf", into / "usr/src" / f"{source}.tar.xz")


def keep_headers(make, path):
    """What building a module takes, without the rest of the source."""
    sh(*make, "run-command",
       f"KBUILD_RUN_COMMAND=$(srctree)/scripts/package/install-extmod-build {path}/headers")
    (path / "kdir").symlink_to("headers")


KERNELS = {
    "6.1": Stock("bookworm", "gcc-12"),
    "6.12": Stock("bookworm-backports", "gcc-12"),
    "trixie": Stock("trixie", "gcc-14", in_debian13=True),
    "newest": Stock("trixie-backports", "gcc-14", in_debian13=True),
    "debug": Debug("linux-source-6.12"),
    # No suite's newest any more: for whoever looks for a difference, as long as Debian has it.
    "7.2": Stock("trixie-backports", "gcc-14", in_debian13=True, line="7.2", by_hand=True),
}
CLANG = Clang("linux-source-6.12")


@dataclass(frozen=True)
class Kernel:
    """A prepared kernel."""
    name: str
    path: Path

    @property
    def compiler(self):
        return KERNELS[self.name].compiler

    @property
    def in_debian13(self):
        """Its headers carry programs and flags that Debian 12 is too old for."""
        return KERNELS[self.name].in_debian13

    @property
    def measures_coverage(self):
        """It has GCOV and KCOV."""
        return isinstance(KERNELS[self.name], Debug)

    @property
    def release(self):
        return (self.path / "release").read_text().splitlines()[0]

    @property
    def version(self):
        return (self.path / "release").read_text().splitlines()[1]

    @property
    def vmlinuz(self):
        return self.path / "vmlinuz"

    @property
    def kdir(self):
        return (self.path / "kdir").resolve()

    def modules(self, wanted):
        """Files of the wanted modules and of what they need, in the order to load them.

        A module that is built in or that this kernel lacks is left out: programs see what
        there is by the devices.
        """
        needs = {}
        for line in (self.path / "modules/modules.dep").read_text().splitlines():
            module, _, after = line.partition(":")
            name = Path(module).name.partition(".ko")[0].replace("-", "_")
            needs[name] = [*reversed(after.split()), module]
        ordered = {}
        for name in wanted:
            ordered.update(dict.fromkeys(needs.get(name, [])))
        return [self.path / "modules" / name for name in ordered]


def check_config(config):
    """Stop if an option of the fragment did not survive its dependencies."""
    got = set(config.read_text().splitlines())
    lost = [line for line in FRAGMENT.read_text().splitlines() if line.startswith("CONFIG_") and
            line not in got and not (line.endswith("=n") and line[:-1] + "y" not in got)]
    if lost:
        sys.exit(f"vm: the kernel's configuration does not honour {', '.join(lost)}")


def chosen(name, anew=False):
    """The release of a stock kernel: as Debian said not long ago, or says now. Where it cannot be asked, what it
    said last, which is told."""
    choice = KERNELS_KEPT / f"{name}.choice"
    with locked(choice):
        before = choice.read_text().strip() if choice.exists() else None
        days = (time.time() - choice.stat().st_mtime) / 86400 if before else 0
        if before and days < KEPT_DAYS and not anew:
            return before
        recipe = KERNELS[name]
        try:
            release = debian.newest_kernel(recipe.suite, recipe.line)
        except SystemExit as why:
            if not before or anew:
                raise
            say(f"{why}: {name} is {before}, as Debian said {days:.0f} days ago")
            return before
        if not release:
            sys.exit(f"vm: Debian has no headers for {name}: {recipe.suite} {recipe.line}")
        if before != release:
            say(f"{name} is {release} from now on" + (f", not {before}" if before else ""))
        unfinished = choice.with_suffix(".choice.unfinished")
        unfinished.write_text(f"{release}\n")
        unfinished.rename(choice)
        return release


def prepare(name):
    """The kernel by its name, made now if the cache lacks it."""
    recipe = CLANG if name == "clang" else KERNELS[name]
    return Kernel(name, keep(f"kernels/{recipe.folder(name)}", recipe.make))


def main():
    parser = argparse.ArgumentParser(description="Prepare the kernels that the module is tested in.")
    parser.add_argument("--update", action="store_true", help="take newer ones than the cache has")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        default=[name for name, recipe in KERNELS.items() if not getattr(recipe, "by_hand", False)],
                        help=f"one of {', '.join(KERNELS)}; by default those of `make check-full`")
    args = parser.parse_args()
    for name in args.names:
        if name not in KERNELS:
            parser.error(f"no kernel {name}; there are {', '.join(KERNELS)}")
        if args.update and isinstance(KERNELS[name], Stock):
            chosen(name, anew=True)
        elif args.update:
            shutil.rmtree(KERNELS_KEPT / KERNELS[name].folder(name), ignore_errors=True)
        kernel = prepare(name)
        print(f"{name}\t{kernel.release}\t{kernel.version}\t{kernel.path}")


if __name__ == "__main__":
    main()
