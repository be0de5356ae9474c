# SPDX-License-Identifier: MIT
"""Builds modules against a prepared kernel, away from the checkout's own files."""
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import debian13
import roots
from cache import CACHE, locked, sh

TOP = Path(__file__).resolve().parent.parent.parent
# The sources of our module.
SOURCES = ("Kbuild", "kmod", "include/uapi")


def kept(kernel, where):
    """Return the file of our module and the warnings of its build. Build it by tmesh() only if the last build in this
    directory had other sources, another kernel or another compiler."""
    of, stamp = digest(kernel), where / "built.json"
    with locked(where):
        if stamp.exists() and (told := json.loads(stamp.read_text()))["of"] == of:
            return Path(told["module"]), told["warnings"]
        stamp.unlink(missing_ok=True)
        module, warnings = tmesh(kernel, where)
        stamp.write_text(json.dumps({"of": of, "module": str(module), "warnings": warnings}))
    return module, warnings


def digest(kernel):
    """Return a digest of all inputs of a build of our module for a kernel."""
    compiler = debian13.key(()) if kernel.in_debian13 else sh(kernel.compiler, "--version")
    seen = hashlib.sha256(repr((str(kernel.path), kernel.version, compiler, arguments(kernel), coverage(kernel))).encode())
    for name in SOURCES:
        for path in (TOP / name, *sorted((TOP / name).rglob("*"))):
            if path.is_file():
                seen.update(f"{path.relative_to(TOP)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return seen.hexdigest()


# A header that is included before each source of a module with delays after its unlocks.
WIDEN = Path(__file__).resolve().parent / "widened/widen.h"


def widened(kernel, where):
    """Build our module with delays after its unlocks. Return its file and the places of the unlocks, as the log names
    them."""
    flags = [word for word in coverage(kernel) if not word.startswith("KCFLAGS")]
    module, warnings = tmesh(kernel, where, [*flags, f"'KCFLAGS=-g -include {WIDEN}'"])
    if warnings:
        raise SystemExit("vm: the module with delays does not build cleanly:\n" + "\n".join(warnings))
    return module, unlocks()


def unlocks():
    """Return FILE:LINE of each call in the module's sources that WIDEN delays."""
    names = "|".join(re.findall(r"^#define (\w+)\([^)]*\)(?: do| \\$)", WIDEN.read_text(), re.M))
    return {f"{path.name}:{number}" for path in sorted((TOP / "kmod").rglob("*.c"))
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if re.search(rf"\b({names})\(", line.split("/*")[0]) and not line.startswith((" *", "/*"))}


def tmesh(kernel, where, flags=None):
    """Build our module by `make kmod`, as users do, in where/tmesh. Return its file and the warnings."""
    tree = where / "tmesh"
    shutil.rmtree(tree, ignore_errors=True)
    warnings = make(kernel, "-C", TOP, "kmod", f"B={tree.relative_to(TOP)}", f"KDIR={kernel.kdir}",
                    f"KBUILD_ARGS={' '.join([*arguments(kernel), *(coverage(kernel) if flags is None else flags)])}")
    return next(tree.rglob("tmesh.ko")), warnings


def of_tests(kernel, name, where):
    """Build seeded/ or peer/, in where. Return its file and the warnings."""
    tree = where / name
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(Path(__file__).resolve().parent / name, tree)
    warnings = make(kernel, "-C", kernel.kdir, f"M={tree}", *arguments(kernel), "modules")
    return tree / f"{name}.ko", warnings


def arguments(kernel):
    """Return the arguments for kbuild. BTF would need a vmlinux, which the headers do not have."""
    return [f"CC={kernel.compiler}", "W=1", "CONFIG_DEBUG_INFO_BTF_MODULES="]


def coverage(kernel):
    """Return the arguments that instrument a module for GCOV and KCOV."""
    return ["GCOV_PROFILE=y", "KCOV_INSTRUMENT=y", "KCFLAGS=-g"] if kernel.measures_coverage else []


def make(kernel, *words):
    """Run make in a system that can use the kernel's headers. Return the compiler's warnings."""
    command = ["make", f"-j{os.cpu_count()}", *words]
    if kernel.in_debian13:
        output = roots.run(debian13.root(), *command, binds=[(p, p) for p in (CACHE / "kernels", TOP)])
    else:
        output = sh(*command)
    # Skip lines that start with "warning:": kbuild prints them about tools that differ from Debian's.
    return [line for line in output.splitlines() if re.search(r".\bwarning:|^WARNING:", line)]
