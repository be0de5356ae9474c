# SPDX-License-Identifier: MIT
"""Builds a module against a prepared kernel, away from the checkout's own files."""
import os
import re
import shutil
from pathlib import Path

import debian13
from cache import CACHE, sh

TOP = Path(__file__).resolve().parent.parent.parent
BUILD = TOP / "build/vm"


def build(kernel, directory="kmod"):
    """Build the module in a directory of the checkout. Returns its .ko file and the warnings.

    The sources are copied, with the header they share with user space, so that builds for
    several kernels do not disturb each other; kbuild puts objects beside sources.
    """
    tree = BUILD / kernel.name / "module"
    source = tree / directory
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(TOP / directory, source, ignore=shutil.ignore_patterns("*.o", "*.ko", ".*"))
    shutil.copytree(TOP / "include/uapi", tree / "include/uapi")
    command = ["make", "-C", kernel.kdir, f"M={source}", "W=1", f"-j{os.cpu_count()}",
               f"CC={kernel.compiler}", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]
    if kernel.in_debian13:
        output = debian13.run(debian13.root(), *command, binds=(CACHE / "kernels", BUILD))
    else:
        output = sh(*command)
    # A line that starts with "warning:" is kbuild's, about tools that differ from Debian's.
    warnings = [line for line in output.splitlines() if re.search(r".\bwarning:|^WARNING:", line)]
    return next(source.glob("*.ko")), warnings
