#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The libraries that the ELF files of a folder need and that are neither in it nor on every machine.

usage: libraries.py FOLDER COMPILER     copy them into the folder, found as the compiler finds them
       libraries.py FOLDER              name those that are missing; the status is 1 if there are any

A machine that runs the kit has nothing of ours: whatever is needed but the C library and the driver is to lie beside
it. The C library is to be as new as the newest version that a file asks for, which is printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

EVERYWHERE = re.compile(r"(ld-linux.*|libc|libm|libdl|libpthread|librt|libcuda)\.so(\.\d+)*")


def elf_files(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], check=True, capture_output=True, text=True).stdout


def needed(folder):
    """The libraries that the folder itself must hold, where the loader looks, each with its users."""
    wanted = {}
    for path in elf_files(folder):
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", path)):
            if not EVERYWHERE.fullmatch(name):
                wanted.setdefault(name, path.relative_to(folder))
    return wanted


def missing(folder):
    return {name: who for name, who in needed(folder).items() if not (folder / name).is_file()}


def newest_glibc(folder):
    numbers = {tuple(map(int, number.split("."))) for path in elf_files(folder)
               for number in re.findall(r"\bGLIBC_([\d.]+)", readelf("-V", path))}
    return ".".join(map(str, max(numbers, default=(0,))))


def carry(folder, compiler):
    """A copied library may need more."""
    while lacking := missing(folder):
        for name, who in lacking.items():
            found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True,
                                   text=True).stdout.strip()
            if found == name:
                raise SystemExit(f"{name}, which {who} needs, is not installed here")
            shutil.copy(found, folder / name)


def main(folder, *compiler):
    folder = Path(folder)
    if compiler:
        carry(folder, *compiler)
    for name, who in (lacking := missing(folder)).items():
        print(f"{who} needs {name}, which is not in {folder}")
    print(f"{folder} needs glibc {newest_glibc(folder)}, and has: {' '.join(sorted(needed(folder)))}")
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
