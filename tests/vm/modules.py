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
# What our module is made of.
SOURCES = ("Kbuild", "kmod", "include/uapi")


def kept(kernel, where):
    """Our module as tmesh() builds it, built anew only where the last build in this directory was of other sources, of
    another kernel or by another compiler. The warnings are told each time."""
    of, stamp = digest(kernel), where / "built.json"
    with locked(where):
        if stamp.exists() and (told := json.loads(stamp.read_text()))["of"] == of:
            return Path(told["module"]), told["warnings"]
        stamp.unlink(missing_ok=True)
        module, warnings = tmesh(kernel, where)
        stamp.write_text(json.dumps({"of": of, "module": str(module), "warnings": warnings}))
    return module, warnings


def digest(kernel):
    """Of all that says what a build of our module for a kernel becomes."""
    compiler = debian13.key(()) if kernel.in_debian13 else sh(kernel.compiler, "--version")
    seen = hashlib.sha256(repr((str(kernel.path), kernel.version, compiler, arguments(kernel), coverage(kernel))).encode())
    for name in SOURCES:
        for path in (TOP / name, *sorted((TOP / name).rglob("*"))):
            if path.is_file():
                seen.update(f"{path.relative_to(TOP)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return seen.hexdigest()


def tmesh(kernel, where):
    """Build our module as anybody would, by `make kmod`, in where/tmesh. Returns its file and the
    warnings."""
    tree = where / "tmesh"
    shutil.rmtree(tree, ignore_errors=True)
    warnings = make(kernel, "-C", TOP, "kmod", f"B={tree.relative_to(TOP)}", f"KDIR={kernel.kdir}",
                    f"KBUILD_ARGS={' '.join([*arguments(kernel), *coverage(kernel)])}")
    return next(tree.rglob("tmesh.ko")), warnings


def of_tests(kernel, name, where):
    """Build seeded/ or peer/, in where. Returns its file and the warnings."""
    tree = where / name
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(Path(__file__).resolve().parent / name, tree)
    warnings = make(kernel, "-C", kernel.kdir, f"M={tree}", *arguments(kernel), "modules")
    return tree / f"{name}.ko", warnings


def arguments(kernel):
    """What kbuild has to be told. BTF would want the vmlinux that headers do not carry."""
    return [f"CC={kernel.compiler}", "W=1", "CONFIG_DEBUG_INFO_BTF_MODULES="]


def coverage(kernel):
    """What makes a module tell which of its lines were run: to GCOV, and to KCOV."""
    return ["GCOV_PROFILE=y", "KCOV_INSTRUMENT=y", "KCFLAGS=-g"] if kernel.measures_coverage else []


def make(kernel, *words):
    """Run make where the kernel's headers can be used; the warnings of what it ran."""
    command = ["make", f"-j{os.cpu_count()}", *words]
    if kernel.in_debian13:
        output = roots.run(debian13.root(), *command, binds=[(p, p) for p in (CACHE / "kernels", TOP)])
    else:
        output = sh(*command)
    # A line that starts with "warning:" is kbuild's, about tools that differ from Debian's.
    return [line for line in output.splitlines() if re.search(r".\bwarning:|^WARNING:", line)]
