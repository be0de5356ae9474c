# SPDX-License-Identifier: MIT
"""Guards of libtmesh that take effect on the module alone, tried in guests with the unit tests. They are the code that
calls the module, and the guards whose line in reasons.txt says so."""
import re
import subprocess
from pathlib import Path

from guest import KERNEL, Guests
import kernels
from library import Switched, words
import modules

SPEAK = re.compile(r"lib/(backend_kernel|kernel_\w+)\.c$")
# The words of a reason for a guard that memfds do not need.
ELSEWHERE = "on the module alone"


class OnModule(Guests):
    """The library's test programs, and which of their cases makes which guard true on the module."""
    def __init__(self, where, say, **limits):
        super().__init__(where, say, **limits)
        names = [name for name in words("UNIT_ALL") if name not in words("UNIT_KEEPS")]
        built = Switched(self.where, names)
        self.programs, self.number, self.digests = built.programs, built.number, built.digests
        self.module, _ = modules.tmesh(kernels.prepare(KERNEL), self.where)
        self.libraries = libraries(self.programs.values())
        cases = self.where / "cases"
        cases.write_text("".join(f"{name} {test}\n" for name in names for test in built.tests(name)))
        self.files = [cases]
        self.know_cases()

    @staticmethod
    def speaks(guard):
        """Return whether a guard is in code that calls the module: memfds never reach it."""
        return bool(SPEAK.match(guard.file))


def elsewhere(reason):
    """Return whether a reason has the guard tried here."""
    return ELSEWHERE in (reason or "")


def libraries(programs):
    """The libraries that programs are linked with, and the loader."""
    told = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    return [Path(path) for path in sorted(set(re.findall(r"(/\S+) \(0x", told)))]
