#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write compile_commands.json, by which clangd and other tools learn how each C file is compiled.

compile_commands.py FILE reads what `make -nB V=1` prints from its standard input.
"""
import json
import os
from pathlib import Path
import shlex
import sys

TOP = Path(__file__).resolve().parents[1]


def commands(text):
    """Yield (source, words) of each call of a compiler that makes an object."""
    for line in text.replace("\\\n", " ").splitlines():
        if " -c " not in line:
            continue
        words = shlex.split(line.removeprefix("@"))
        if os.path.basename(words[0]) in ("cc", "gcc", "clang") and words[-1].endswith(".c"):
            yield words[-1], words


def expanded(words):
    """Return the words, with those of @FILE in its place."""
    for word in words:
        if word.startswith("@") and (TOP / word[1:]).is_file():
            yield from shlex.split((TOP / word[1:]).read_text())
        else:
            yield word


def main():
    # The plain build of a file comes first: an editor uses its flags.
    found = {}
    for source, words in commands(sys.stdin.read()):
        found.setdefault(source, words)
    if not found:
        raise SystemExit("compile_commands.py: make would compile no C file")
    entries = [{"directory": str(TOP), "file": source, "arguments": list(expanded(words))} for source, words in sorted(found.items())]
    Path(sys.argv[1]).write_text(json.dumps(entries, indent=1) + "\n")
    print(f"{sys.argv[1]}: {len(entries)} files")


if __name__ == "__main__":
    main()
