# SPDX-License-Identifier: MIT
"""A wheel of another release beside this one's library, keeper and module: each refuses the other by name."""
import importlib.metadata
import os
import re
import subprocess
import sys
import textwrap

import boot
from cache import sh
from releases import TOP

VERSION = "0.0.1"
# Numbers of protocols that the other release has in place of this one's.
NUMBERS = (("lib/wire.h", "TMESH_WIRE_VERSION"), ("include/uapi/linux/tmesh.h", "TMESH_ABI_VERSION"))
OTHER = 99

# A process that opens /dev/tmesh gets this in place of it: a module that answers the first question by this release's header.
MODULE = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <linux/tmesh.h>
#include <sys/mman.h>

static int device = -1;

int open(const char *path, int flags, ...)
{
	va_list list;
	va_start(list, flags);
	int mode = va_arg(list, int);
	va_end(list);
	if (strcmp(path, "/dev/tmesh"))
		return openat(AT_FDCWD, path, flags, mode);
	return device = memfd_create("module", MFD_CLOEXEC);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	struct tmesh_caps_query *caps = va_arg(list, void *);
	va_end(list);
	errno = ENOTTY;
	if (fd != device || request != TMESH_CAPS)
		return -1;
	caps->abi_version = TMESH_ABI_VERSION;
	return 0;
}
"""
KEEP = "import tmesh; tmesh.keep({'w': tmesh.put(b'kept')}, 'weights', lifetime=600); print('kept')"
OPEN = "import sys, tmesh; print(tmesh.open(sys.argv[1]).shape)"
GIVE = "import json, sys, tmesh; t = tmesh.put(b'given'); print(json.dumps(t.ref()), flush=True); sys.stdin.read()"
MODULE_ASKED = "import tmesh; tmesh.put(b'x'); print(tmesh.backend())"


def installed(name):
    """Return whether Python has a distribution. A module of the name may be this folder's wheel.py."""
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def package(where):
    """Return the folder of a Python environment with the other release's wheel alone."""
    sources = where / "sources"
    sh(sys.executable, "-W", "ignore", "setup.py", "-q", "sdist", "--dist-dir", sources, cwd=TOP / "bindings/python")
    [archive] = sources.glob("*.tar.gz")
    sh("tar", "-xf", archive, "-C", sources)
    [tree] = [path for path in sources.iterdir() if path.is_dir()]
    library = tree / "library"
    for name in (library / "VERSION", *tree.glob("VERSION")):
        name.write_text(f"{VERSION}\n")
    for name, number in NUMBERS:
        text, count = re.subn(rf"(#define {number}) \d+", rf"\1 {OTHER}", (library / name).read_text())
        if count != 1:
            sys.exit(f"yesterday: {name} does not define {number} once")
        (library / name).write_text(text)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "TMESH_"))}
    there = installed("setuptools") and installed("wheel")
    sh(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", *(["--no-build-isolation"] if there else []),
       "--wheel-dir", where, tree, env={**env, "CFLAGS": "-O0 -g0"})
    [wheel] = where.glob("*.whl")
    sh(sys.executable, "-m", "venv", where / "venv")
    sh(where / "venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel)
    return where / "venv"


class Side:
    """Python of one release, in a runtime folder that both share."""

    def __init__(self, python, runtime, keeper):
        self.python = python
        self.env = {"PATH": "/usr/bin:/bin", "TMESH_RUNTIME_DIR": str(runtime)}
        if keeper:
            self.env["TMESH_KEEPER"] = str(keeper)

    def run(self, program, *arguments, **env):
        done = subprocess.run([self.python, "-c", program, *arguments], env={**self.env, **env}, capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    def give(self):
        """Start a producer. Return its process and its ref."""
        running = subprocess.Popen([self.python, "-c", GIVE], env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return running, running.stdout.readline().strip()


def keeper(tap, which, runtime, first, second, here, there):
    """The first side's keeper runs; the second side asks it, before and after."""
    said = first.run(KEEP)
    tap.point(said == "kept\n", f"{which}: its own side keeps memory")
    tap.note("" if said == "kept\n" else said)
    wanted = rf"ProtocolError: .*keeper is of another release of tmesh \(protocol {there}, here {here}\): .*TMESH_RUNTIME_DIR"
    for what, program in (("keeping", KEEP), ("opening", "import tmesh; tmesh.open_kept('weights')")):
        said = second.run(program)
        tap.point(re.search(wanted, said), f"{which}: {what} is refused, and names the release and the remedy")
        tap.note("" if re.search(wanted, said) else said)
    said = first.run("import tmesh; print(bytes(tmesh.open_kept('weights')['w']))\nfrom tmesh import __main__ as m")
    tap.point(said == "b'kept'\n", f"{which}: what it keeps is whole after that")
    first.run("import tmesh; tmesh.drop('weights')")


def producer(tap, which, giver, opener):
    running, ref = giver.give()
    with running:
        said = opener.run(OPEN, ref)
        wanted = r"ProtocolError: .*producer is of another release of tmesh.*install one release in both"
        tap.point(re.search(wanted, said), f"{which}: opening its ref is refused, and names the release and the remedy")
        tap.note("" if re.search(wanted, said) else said)
        again = giver.run(OPEN, ref)
        tap.point(again == "(5,)\n", f"{which}: its own side opens the ref after that")
        tap.note("" if again == "(5,)\n" else again)
        running.stdin.close()


def module(tap, where, name, side, here, there):
    """A module that has a header's number, and a library that has another or the same."""
    text = MODULE
    source, shim = where / f"module-{there}.c", where / f"module-{there}.so"
    source.write_text(text)
    include = where / "include" / str(there)
    (include / "linux").mkdir(parents=True, exist_ok=True)
    header = (TOP / "include/uapi/linux/tmesh.h").read_text()
    (include / "linux/tmesh.h").write_text(re.sub(r"(#define TMESH_ABI_VERSION) \d+", rf"\1 {there}", header))
    sh("cc", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{include}", "-o", shim, source)
    said = side.run(MODULE_ASKED, TMESH_BACKEND="kernel", LD_PRELOAD=str(shim))
    refused = re.search(rf"ProtocolError: .*module is of another release of tmesh \(ABI {there}, here {here}\): .*TMESH_BACKEND=memfd", said)
    good = bool(refused) == (here != there)
    tap.point(good, f"module: {name} {'refuses a module of the other release by name' if here != there else 'takes a module of its own release'}")
    tap.note("" if good else said)
    if here != there:
        said = side.run(MODULE_ASKED, LD_PRELOAD=str(shim))
        tap.point(said.endswith("memfd\n"), f"module: {name} uses memfds beside it when it may choose")
        tap.note("" if said.endswith("memfd\n") else said)


def run(tap):
    where = boot.BUILD / "packaging" / "yesterday"
    sh("rm", "-rf", where)
    (where / "runtime").mkdir(parents=True)
    (where / "runtime").chmod(0o700)
    venv = package(where)
    wire, abi = [int(re.search(rf"#define {number} (\d+)", (TOP / name).read_text())[1]) for name, number in NUMBERS]
    other = Side(venv / "bin/python", where / "runtime", None)
    today = Side(boot.BUILD / "venv/bin/python", where / "runtime", boot.BUILD / "tmesh-keeper")
    said = other.run("import tmesh; print(tmesh.__version__)")
    tap.point(said == f"{VERSION}\n", "the other release's wheel is installed")
    keeper(tap, "other release's keeper", where / "runtime", other, today, wire, OTHER)
    sh("rm", "-rf", where / "runtime")
    (where / "runtime").mkdir(mode=0o700)
    keeper(tap, "this release's keeper", where / "runtime", today, other, OTHER, wire)
    producer(tap, "other release's producer", other, today)
    producer(tap, "this release's producer", today, other)
    for name, side, here, there in (("this release's library", today, abi, OTHER), ("the other release's library", other, OTHER, abi),
                                    ("this release's library", today, abi, abi)):
        module(tap, where, name, side, here, there)
