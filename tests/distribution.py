#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The name in the package index: the distribution is `libtmesh`, the import is `tmesh`. `tmesh` in the index is a
stranger's program, so no text may advise to install it. Prints TAP."""

import re
import subprocess
import tomllib
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
NAME = "libtmesh"

# To the end of the command: a line, or a backslash and the next one, without the text after it.
COMMAND = re.compile(r"\b(?:pip[x3]?|uv(?:\s+pip)?|poetry|pdm)\s+(?:install|add|download|wheel)\b(?:\\\n|[^\n`;|&#])*")
# A word of its own: no path, file or module.
WORD = re.compile(r"(?<![\w./-])tmesh(?![\w/-]|\.\w)")

# A text, and whether it has readers install the stranger's package.
CASES = [
    ("pip" " install 'tmesh[ray]'", True), ("pip" " install tmesh", True), ("pip3" " install -U torch tmesh==0.1", True),
    ("uv" " pip install tmesh", True), ("uv" " add tmesh", True), ("pip" " install \\\n    tmesh", True),
    ("x = f\"{why}: pip" " install torch 'tmesh[lmcache]'\"", True), ("`pip" " install tmesh`", True),
    ("pip" " install libtmesh", False), ("pip" " install './bindings/python[ray]'", False), ("pip" " install ./tmesh", False),
    ("`pip" " install numpy`, then tmesh is there", False), ("pip" " install build/dist/libtmesh-0.1.0.whl", False),
    ("pip" " install numpy\nimport tmesh", False), ("pip" " install ray; tmesh.ray wants it", False),
]

count = failed = 0


def point(wrong, name, skip=""):
    global count, failed
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}{f' # SKIP {skip}' if skip else ''}")
    for line in wrong:
        print(f"# {line}")


def found(text):
    """Return lines of commands that install a distribution of the import's name."""
    return [text.count("\n", 0, command.start()) + 1 for command in COMMAND.finditer(text) if WORD.search(command[0])]


def main():
    point([text for text, bad in CASES if bool(found(text)) != bad], "such a command is seen, and no other")

    project = tomllib.loads((TOP / "bindings/python/pyproject.toml").read_text())["project"]
    point([] if project["name"] == NAME else [project["name"]], f"the distribution is called {NAME}")

    listed = subprocess.run(["git", "-C", TOP, "ls-files", "-z"], capture_output=True, text=True)
    wrong = []
    for name in filter(None, listed.stdout.split("\0")):
        file = TOP / name
        if file.is_file() and file != Path(__file__).resolve():
            wrong += [f"{name}:{line}: the distribution is called {NAME}" for line in found(file.read_text(errors="replace"))]
    point(wrong, "no text installs another's package", "this is no git checkout" if listed.returncode else "")
    print(f"1..{count}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
