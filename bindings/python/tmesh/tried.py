# SPDX-License-Identifier: MIT
"""Versions of engines: each module of this package for one was tried with one version of it."""

from importlib import metadata
import warnings


def warn_of_another(package: str, version: str, page: str) -> None:
    """RuntimeWarning where the installed version of a package is another one than was tried."""
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        found = "of an unknown version"
    if found != version:
        warnings.warn(f"{package} {found} is installed; tmesh was tried with {package} {version}, whose interface may differ: "
                      f"docs/{page} says what was tried. To have that one: pip install {package}=={version}",
                      RuntimeWarning, stacklevel=3)
