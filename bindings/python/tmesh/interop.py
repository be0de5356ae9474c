# SPDX-License-Identifier: MIT
"""Versions of engines. Each module of this package for an engine was tried with one version of it. Another version
causes a warning. A version without a name that the module uses is refused, before anything is done with it."""

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


def warn_of_another(package: str, version: str) -> None:
    """Warn (RuntimeWarning) if the installed version of a package is not the one that was tried."""
    found = _installed(package)
    if found != version:
        warnings.warn(f"{package} {found} is installed; tmesh was tried with {package} {version}, whose interface may differ: "
                      f"docs/howto/integrations.md says what was tried. To have that one: pip install {package}=={version}",
                      RuntimeWarning, stacklevel=3)


def lacks(package: str, version: str, what: str) -> str:
    """Return the words for names that the installed version lacks, or requires in addition."""
    return (f"{package} {_installed(package)} is installed, and {what}; tmesh was tried with {package} {version} (docs/howto/integrations.md). To have "
            f"that one: pip install {package}=={version}")


def missing(thing: object, names: Iterable[str]) -> str:
    """Return those of the names that it lacks."""
    return ", ".join(name for name in names if not hasattr(thing, name))


def load(package: str, version: str, wanted: dict[str, str]) -> list[Any]:
    """Load modules of a package, with the names that are used of each. ModuleNotFoundError: the package is not
    installed, or lacks a package itself. ImportError: it lacks a name that is used; the message has both versions."""
    modules = []
    for name, names in wanted.items():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as problem:
            top, _, rest = name.partition(".")
            if rest and problem.name and name.startswith(problem.name) and problem.name != top:
                raise ImportError(lacks(package, version, f"has no {problem.name}"), name=problem.name) from None
            raise
        absent = missing(module, names.split())
        if absent:
            raise ImportError(lacks(package, version, f"its {name} has no {absent}"), name=name)
        modules.append(module)
    return modules
