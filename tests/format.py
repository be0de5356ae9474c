#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether the C files look as .clang-format says, by the one version of clang-format that is pinned in
tests/build.mk. Prints TAP, a test for each room.

    format.py CLANG-FORMAT          check
    format.py CLANG-FORMAT --write  format what differs, and name it
"""

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]

# checkpatch judges the module and the modules of tests/vm (`make kmod-check`). clang-format takes `new`, `class` and
# `try` for C++. It also undoes the tables, the trace points and the spaces in braces of the kernel's own style.
LEFT_OUT = ("kmod/", "tests/vm/")
SKIPPED = {"build", "_build", "deps"}


def rooms():
    """The C files, by the folder at the top."""
    found = {}
    # Leave out folders of builds and unpacked sources.
    for folder in sorted(TOP.iterdir()):
        if folder.name in SKIPPED or folder.name.startswith(".") or not folder.is_dir():
            continue
        for path in sorted([*folder.rglob("*.c"), *folder.rglob("*.h")]):
            parts = path.relative_to(TOP).parts
            if not SKIPPED & set(parts) and not "/".join(parts).startswith(LEFT_OUT):
                found.setdefault(folder.name, []).append(path)
    return found


def formatted(program, path, text):
    return subprocess.run([program, "--style=file", f"--assume-filename={path}"], input=text, stdout=subprocess.PIPE,
                          check=True).stdout


def differing(program, paths):
    """Return the files that clang-format would change. One call checks all; its warnings name each."""
    done = subprocess.run([program, "--style=file", "--dry-run", *map(str, paths)],
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{program} failed:\n{done.stderr}")
    names = {line.split(":")[0] for line in done.stderr.splitlines() if "[-Wclang-format-violations]" in line}
    return [path for path in paths if str(path) in names]


def main(program, write=False):
    if not Path(program).exists():
        print("ok 1 - clang-format # SKIP it cannot be had from the package index\n1..1")
        return 1 if write else 0
    if write:
        for paths in rooms().values():
            for path in differing(program, paths):
                path.write_bytes(formatted(program, path, path.read_bytes()))
                print(path.relative_to(TOP))
        return 0
    found, failed = rooms(), 0
    # Check the check: it must see a badly written line.
    bad = formatted(program, TOP / "lib" / "sample.c", b"int f(int a){return a;}\n")
    blind = bad != b"int f(int a)\n{\n\treturn a;\n}\n"
    print("not ok" if blind else "ok", "1 - a badly written line is seen")
    for count, (room, paths) in enumerate(found.items(), 2):
        wrong = differing(program, paths)
        failed += bool(wrong)
        print("not ok" if wrong else "ok", f"{count} - {room}: {len(paths)} files", flush=True)
        for path in wrong:
            print(f"# {path.relative_to(TOP)}: run `make format`")
    print(f"1..{len(found) + 1}")
    return 1 if failed or blind else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--write" in sys.argv[2:]))
