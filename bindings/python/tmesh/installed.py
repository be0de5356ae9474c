# SPDX-License-Identifier: MIT
"""Finds what is installed: tmesh's programs, and libraries of engines in other packages."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
import re
import shutil

# For each engine: the variable that names its library, a package that has it, and the path in that package.
LIBRARIES = {
    "onnx": ("TMESH_ONNXRUNTIME", "onnxruntime", "capi/libonnxruntime.so*"),
    "ggml": ("TMESH_GGML", "libggml", "lib*/libggml.so.0"),
}


def program(name: str) -> str | None:
    """Return the path of a program, or None if neither this package nor PATH has it."""
    own = Path(__file__).with_name(name)
    return str(own) if os.access(own, os.X_OK) else shutil.which(name)


def library(engine: str) -> str:
    """Find the package's library without importing the package: onnxruntime has a copy of its own."""
    variable, package, place = LIBRARIES.get(engine, ("", "", ""))
    if not package or os.environ.get(variable):
        return ""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(path for folder in folders for path in Path(folder).glob(place))
    return str(found[-1]) if found else ""


def explained(error: ImportError) -> ImportError:
    """Return the error of the extension's import with a remedy, if a library is missing."""
    found = re.match(r"(lib([\w-]+)\.so\.(\d+)): cannot open", str(error))
    if not found:
        return error
    # Debian puts a hyphen before the number if the name ends with a digit.
    package = f"lib{found[2]}{'-' if found[2][-1].isdigit() else ''}{found[3]}"
    return ImportError(f"cannot import tmesh: {found[1]} is missing, and this build of libtmesh does not contain it. Install it "
                       f"(Debian: sudo apt install {package}), or a wheel for other machines (make python-dist, with auditwheel)",
                       name="tmesh._tmesh", path=error.path)
