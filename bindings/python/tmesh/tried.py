# SPDX-License-Identifier: MIT
"""Versions of engines: each module of this package for one was tried with one version of it. Another one is warned of; one
that has not what is used of it is refused, before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterable
import importlib
from importlib import metadata
from typing import Any
import warnings


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of an unknown version"


def warn_of_another(package: str, version: str, page: str) -> None:
    """RuntimeWarning where the installed version of a package is another one than was tried."""
    found = _installed(package)
    if found != version:
        warnings.warn(f"{package} {found} is installed; tmesh was tried with {package} {version}, whose interface may differ: "
                      f"docs/{page} says what was tried. To have that one: pip install {package}=={version}",
                      RuntimeWarning, stacklevel=3)


def lacks(package: str, version: str, page: str, what: str) -> str:
    """The words for what the installed version has not, or wants more."""
    return (f"{package} {_installed(package)} is installed, and {what}; tmesh was tried with {package} {version} (docs/{page}). To have "
            f"that one: pip install {package}=={version}")


def missing(thing: object, names: Iterable[str]) -> str:
    """Of these names, those that it has not."""
    return ", ".join(name for name in names if not hasattr(thing, name))


def load(package: str, version: str, page: str, wanted: dict[str, str]) -> list[Any]:
    """Modules of a package, with the names that are used of each. ModuleNotFoundError, as Python raises it, where the package is not
    installed or misses another one; ImportError, which names both versions, where it has not what is used of it."""
    modules = []
    for name, names in wanted.items():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as problem:
            top, _, rest = name.partition(".")
            if rest and problem.name and name.startswith(problem.name) and problem.name != top:
                raise ImportError(lacks(package, version, page, f"has no {problem.name}"), name=problem.name) from None
            raise
        absent = missing(module, names.split())
        if absent:
            raise ImportError(lacks(package, version, page, f"its {name} has no {absent}"), name=name)
        modules.append(module)
    return modules
