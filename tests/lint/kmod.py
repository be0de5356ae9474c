#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""Looks at the module's source with the kernel's own tools, and prints TAP.

Findings that explained.txt gives a reason for do not count; a reason that no finding needs any
more does. All tools are those of the debug kernel's source.
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))

import kernels  # noqa: E402
import modules  # noqa: E402
from tap import Tap  # noqa: E402

UAPI = TOP / "include/uapi/linux/tmesh.h"
# Rules that cannot run here: they are written in OCaml, for which there is no compiler.
OCAML = re.compile(r"^@.*script:ocaml", re.M)


def sources():
    return sorted(p for p in (TOP / "kmod").rglob("*.[ch]"))


def output(*command, **options):
    """Return all output of a command; its findings count, its status does not."""
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **options).stdout


def build(kdir, name, *arguments):
    """The warnings and errors of building the module, anew."""
    tree = TOP / "build/lint" / name
    subprocess.run(["rm", "-rf", tree], check=True)
    said = output("make", "-s", "-C", TOP, "kmod", f"B={tree.relative_to(TOP)}", f"KDIR={kdir}",
                  f"KBUILD_ARGS={' '.join(['W=1', 'CONFIG_DEBUG_INFO_BTF_MODULES=', *arguments])}")
    found = [line for line in said.splitlines()
             if re.search(r".\b(warning|error):|^(WARNING|ERROR):|\*\*\*", line)]
    return found if list(tree.rglob("tmesh.ko")) else [*found, "the module was not built"]


def sparse(kdir):
    """sparse, and gcc with all of kbuild's warnings"""
    return build(kdir, "sparse", f"CC={kernels.KERNELS['debug'].compiler}", "C=2")


def clang(_):
    """clang, with all of kbuild's warnings, in a tree that was prepared with LLVM=1"""
    return build(kernels.prepare("clang").kdir, "clang", "LLVM=1")


def checkpatch(kdir):
    """checkpatch.pl --strict"""
    said = output(kdir / "scripts/checkpatch.pl", "--no-tree", "--strict", "--terse", "--quiet",
                  "--no-summary", "--show-types", "-f", *sources(), UAPI)
    return [line for line in said.splitlines() if re.match(r"\S+:\d+: ", line)]


def kernel_doc(kdir):
    """kernel-doc -Wall"""
    return output(kdir / "scripts/kernel-doc", "-Wall", "-none", *sources()).splitlines()


def coccinelle(kdir):
    """the kernel's Coccinelle rules"""
    found = []
    for rule in sorted((kdir / "scripts/coccinelle").rglob("*.cocci")):
        text = rule.read_text()
        if OCAML.search(text) or not re.search(r"^virtual.*\breport\b", text, re.M):
            continue
        options = re.search(r"^// Options: (.*)", text, re.M)
        said = output("spatch", "-D", "report", "--no-show-diff", "--very-quiet", "--cocci-file", rule,
                      *(options[1].split() if options else []), "-I", "include/uapi",
                      "-I", kdir / "include", "--dir", "kmod", cwd=TOP)
        found += [f"{line} ({rule.name})" for line in said.splitlines() if line.startswith("kmod/")]
    return found


def newer(kdir):
    """a build for a kernel newer than those that were tested says so, to the log too, and no other does"""
    tree, found = TOP / "build/lint/newer", []
    major, minor = map(int, output("make", "-s", "-C", kdir, "kernelversion").split(".")[:2])
    for tested in (minor - 1, minor):
        subprocess.run(["rm", "-rf", tree], check=True)
        subprocess.run(f"mkdir -p {tree}/include && cp -a {TOP}/kmod {tree} && cp -a {TOP}/include/uapi {tree}/include",
                       shell=True, check=True)
        said = output("make", "-s", "-C", kdir, f"M={tree}/kmod", f"CC={kernels.KERNELS['debug'].compiler}",
                      f"KCFLAGS=-DTMESH_TESTED_MAJOR={major} -DTMESH_TESTED_MINOR={tested}", "compat/compat.o")
        words = f"tested up to Linux {major}.{tested}"
        built = tree / "kmod/compat/compat.o"
        if not built.is_file():
            return [said]
        for name, is_told in (("the compiler", words in said), ("the module", words.encode() in built.read_bytes())):
            if is_told != (tested < minor):
                found.append(f"{name} {'says' if is_told else 'does not say'} on {major}.{minor}: {words}")
    return found


QUICK = (sparse, checkpatch, kernel_doc, newer)
SLOW = (clang, coccinelle)


def explanations():
    """(pattern, reason) pairs."""
    rules = []
    for line in (HERE / "explained.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, reason = line.split("\t")
            rules.append((re.compile(pattern), reason))
    return rules


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    tools = QUICK if parser.parse_args().quick else QUICK + SLOW
    kdir = kernels.prepare("debug").kdir
    tap, rules, used = Tap(), explanations(), set()
    for tool in tools:
        found = [f"{tool.__name__}: {line.replace(f'{TOP}/', '')}" for line in tool(kdir)]
        bad = []
        for line in found:
            reason = next((reason for pattern, reason in rules if pattern.search(line)), None)
            used.add(reason)
            if not reason:
                bad.append(line)
        tap.point(not bad, f"kmod: {tool.__doc__}: {len(found)} findings, {len(bad)} unexplained")
        tap.note("\n".join(bad))
    names = "|".join(tool.__name__ for tool in tools)
    stale = [pattern.pattern for pattern, reason in rules
             if reason not in used and re.match(rf"\^({names}):", pattern.pattern)]
    tap.point(not stale, "kmod: each explanation is still needed")
    tap.note("\n".join(stale))
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
