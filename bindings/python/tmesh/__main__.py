# SPDX-License-Identifier: MIT
"""The programs that come with the package: `python -m tmesh doctor` is `tmeshctl doctor`."""

from __future__ import annotations

import os
from pathlib import Path
import sys
from typing import NoReturn

from .installed import LIBRARIES, library, program

# Where a program is if the package lacks it: Debian's package, the target of the sources.
_REMEDIES = {
    "tmeshctl": ("tmesh-tools", "make install"),
    "tmesh-engine": ("tmesh-tools", "make install"),
    "tmesh-net": ("tmesh-net", "make net install-net"),
}


def _become(name: str) -> NoReturn:
    path = program(name)
    # The script that called this one may be all that PATH has.
    if not path or Path(path).resolve() == Path(sys.argv[0]).resolve():
        package, target = _REMEDIES[name]
        raise SystemExit(f"{name}: this Python package was installed without the program {name}; install it by "
                         f"`sudo apt install {package}`, or in the sources by `sudo {target}`")
    # The programs know no packages of Python.
    engines = {variable: found for engine, (variable, *_) in LIBRARIES.items() if (found := library(engine))}
    try:
        os.execve(path, [name, *sys.argv[1:]], {**os.environ, **engines})
    except OSError as error:
        raise SystemExit(f"{name}: cannot start {path}: {error.strerror}") from None


def tmeshctl() -> NoReturn:
    _become("tmeshctl")


def tmesh_engine() -> NoReturn:
    _become("tmesh-engine")


def tmesh_net() -> NoReturn:
    _become("tmesh-net")


if __name__ == "__main__":
    tmeshctl()
