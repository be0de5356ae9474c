#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The kernels that the module is tested in: `kernels.py [--update] [NAME...]` prepares them.

Debian's stock kernels are unpacked, not installed. They are the newest of each suite in Debian's index. The index
is read again when the choice is KEPT_DAYS old, so the cache works without the network until then. The debug
kernel is built from Debian's source package.
Each kernel is kept in the cache as a directory:

    release     `uname -r`, and the package version in the second line
    vmlinuz     the image that QEMU boots
    modules/    lib/modules/RELEASE
    kdir        a link to the headers for building modules
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
import debian13
from cache import CACHE, keep, locked, say, sh

HERE = Path(__file__).resolve().parent
FRAGMENTS = ("debug-kernel.config",)
KERNELS_KEPT = CACHE / "kernels"
KEPT_DAYS = 7


@dataclass(frozen=True)
class Stock:
    """A stock kernel: the newest of a suite of Debian, or of one line in it."""
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

        # The packages expect to be unpacked at the root of the file system.
        final = KERNELS_KEPT / release
        headers = path / "usr/src" / f"linux-headers-{release}"
        for makefile in (headers / "Makefile", headers / ".kernelvariables"):
            if makefile.is_file():
                makefile.write_text(makefile.read_text().replace("/usr/src/", f"{final}/usr/src/"))
        (path / "kdir").symlink_to(headers.relative_to(path))


def answers(files):
    """Merge configuration files into one text for allnoconfig. A later file overrides an earlier one."""
    if len(files) == 1:
        return (HERE / files[0]).read_text()
    found = {}
    for name in files:
        for line in (HERE / name).read_text().splitlines():
            if line.startswith("CONFIG_"):
                found[line.partition("=")[0]] = line
    return "".join(f"{line}\n" for line in found.values())


@dataclass(frozen=True)
class Debug:
    """A kernel with every detector that applies to a module and can be combined with the others."""
    source: str
    compiler: str = "gcc-12"
    in_debian13: bool = False
    fragments: tuple = FRAGMENTS
    coverage: bool = True
    by_hand: bool = False

    def folder(self, name):
        return f"{name}-{hashlib.sha256(answers(self.fragments).encode()).hexdigest()[:12]}"

    def make(self, path):
        build, fragment = path / "build", path / "fragment"
        make = ["make", "-C", build, f"CC={self.compiler}", f"HOSTCC={self.compiler}"]
        unpack_source(self.source, build)
        fragment.write_text(answers(self.fragments))
        sh(*make, f"KCONFIG_ALLCONFIG={fragment}", "allnoconfig")
        check_config(build / ".config", fragment)
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
    """The headers of the debug kernel, prepared by clang, to build the module against. No guest boots this kernel."""
    source: str

    def folder(self, name):
        return KERNELS["debug"].folder(name)

    def make(self, path):
        build = path / "build"
        make = ["make", "-C", build, "LLVM=1"]
        unpack_source(self.source, build)
        sh(*make, f"KCONFIG_ALLCONFIG={HERE / FRAGMENTS[0]}", "allnoconfig")
        sh(*make, f"-j{os.cpu_count()}", "modules_prepare")
        shutil.copy(prepare("debug").kdir / "Module.symvers", build)
        keep_headers(make, path)
        shutil.rmtree(build)


def unpack_source(source, into):
    """Unpack Debian's source of a kernel into a new folder."""
    into.mkdir()
    debian.fetch([source], into)
    sh("tar", "-C", into, "--strip-components=1", "-xf", into / "usr/src" / f"{source}.tar.xz")


def keep_headers(make, path):
    """Keep only the files of the source that building a module needs."""
    sh(*make, "run-command",
       f"KBUILD_RUN_COMMAND=$(srctree)/scripts/package/install-extmod-build {path}/headers")
    (path / "kdir").symlink_to("headers")


KERNELS = {
    "6.1": Stock("bookworm", "gcc-12"),
    "6.12": Stock("bookworm-backports", "gcc-12"),
    "trixie": Stock("trixie", "gcc-14", in_debian13=True),
    "newest": Stock("trixie-backports", "gcc-14", in_debian13=True),
    "debug": Debug("linux-source-6.12"),
    # Data races. KCSAN excludes KASAN. By hand, because most of its reports are about the kernel itself.
    "kcsan": Debug("linux-source-6.12", fragments=(*FRAGMENTS, "kcsan-kernel.config"), coverage=False, by_hand=True),
    # Not the newest of a suite any more. By hand, for bisecting differences while Debian still has it.
    "7.2": Stock("trixie-backports", "gcc-14", in_debian13=True, line="7.2", by_hand=True),
}
CLANG = Clang("linux-source-6.12")
ROOT = "debian13"


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
        """Return whether its headers have programs and flags that are too new for Debian 12."""
        return KERNELS[self.name].in_debian13

    @property
    def measures_coverage(self):
        """Return whether it has GCOV and KCOV."""
        return getattr(KERNELS[self.name], "coverage", False)

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
        """Return the files of the wanted modules and of their dependencies, in the order to load them.

        Modules that are built in or missing in this kernel are left out: programs find out by the devices.
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


def check_config(config, fragment):
    """Exit if an option of the fragment was dropped because of its dependencies."""
    got = set(config.read_text().splitlines())
    lost = [line for line in fragment.read_text().splitlines() if line.startswith("CONFIG_") and
            line not in got and not (line.endswith("=n") and line[:-1] + "y" not in got)]
    if lost:
        sys.exit(f"vm: the kernel's configuration does not honour {', '.join(lost)}")


def chosen(name, anew=False):
    """Return the release of a stock kernel: the kept choice if it is recent, else that of Debian's index. If the index
    cannot be read, print that and return the kept choice."""
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
    """Return a kernel by its name. Make it if it is not in the cache."""
    recipe = CLANG if name == "clang" else KERNELS[name]
    return Kernel(name, keep(f"kernels/{recipe.folder(name)}", recipe.make))


def main():
    parser = argparse.ArgumentParser(description="Prepare the kernels that the module is tested in.")
    parser.add_argument("--update", action="store_true", help="take newer ones than the cache has")
    parser.add_argument("--tap", action="store_true", help="print a test point for each, as suites do")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        default=[name for name, recipe in KERNELS.items() if not getattr(recipe, "by_hand", False)],
                        help=f"one of {', '.join(KERNELS)}, or {ROOT}, the root of the guests that run the checkout; "
                             "by default the kernels of `make check-full`")
    args = parser.parse_args()
    unknown = sorted({*args.names} - {*KERNELS, ROOT})
    if unknown:
        parser.error(f"no kernel {', '.join(unknown)}; there are {', '.join(KERNELS)}")
    if args.tap:
        print(f"1..{len(args.names)}", flush=True)
    for number, name in enumerate(args.names, 1):
        if name == ROOT:
            debian13.image()
            print(f"ok {number} - {name} is ready" if args.tap else name, flush=True)
            continue
        if args.update and isinstance(KERNELS[name], Stock):
            chosen(name, anew=True)
        elif args.update:
            shutil.rmtree(KERNELS_KEPT / KERNELS[name].folder(name), ignore_errors=True)
        kernel = prepare(name)
        print(f"ok {number} - {name} is ready: {kernel.release}" if args.tap else
              f"{name}\t{kernel.release}\t{kernel.version}\t{kernel.path}", flush=True)


if __name__ == "__main__":
    main()
