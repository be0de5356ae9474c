# SPDX-License-Identifier: MIT
"""Guards of libtmesh that only come to something on the module, tried in guests with the unit tests: what speaks to the
module, and guards whose line in reasons.txt says so. Their switches are in the test programs (switches.h)."""
import concurrent.futures
import os
import re
import subprocess
from pathlib import Path

import guards
from guest import HERE, KERNEL, Guests
import kernels
from library import UNIT, words
import modules
from module import digest

SPEAK = re.compile(r"lib/(backend_kernel|kernel_\w+)\.c$")
# What a reason says of a guard that memfds do not need.
ELSEWHERE = "on the module alone"
TESTS = re.compile(r"^\t+(?:cmocka_unit_test\w*|TEST|KEEP_TEST)\((test_\w+)", re.M)


class OnModule(Guests):
    """The library's sources, its test programs, and which of their tests makes which guard true on the module."""
    def __init__(self, where, say, **limits):
        super().__init__(where, say, **limits)
        self.compile = words("CC") + words("LIB_CPPFLAGS") + words("CFLAGS") + words("LIB_CFLAGS") + ["-w"]
        self.link = words("CC") + words("CPPFLAGS") + words("CFLAGS") + words("UNIT_FLAGS")
        self.sources = [Path(name) for name in words("LIB_SRC")]
        all_of_them = [guard for path in self.sources for guard in guards.find(str(path), path.read_text())]
        self.number = {guard: number for number, guard in enumerate(all_of_them, 1)}
        kernel = kernels.prepare(KERNEL)
        self.module, _ = modules.tmesh(kernel, self.where)
        names = [name for name in words("UNIT_ALL") if name not in words("UNIT_KEEPS")]
        self.programs = self.built(names)
        self.libraries = libraries(self.programs.values())
        cases = self.where / "cases"
        cases.write_text("".join(f"{name} {test}\n" for name in names
                                 for test in TESTS.findall((UNIT / f"{name}.c").read_text())))
        self.files = [cases]
        self.digests = {name: digest(*self.sources, UNIT / f"{name}.c", HERE / "switches.h") for name in names}
        self.know_cases()

    @staticmethod
    def speaks(guard):
        """Whether a guard is of what speaks to the module: memfds never come by."""
        return bool(SPEAK.match(guard.file))

    def built(self, names):
        """The test programs, of a library with its guards behind switches, by name."""
        switches = self.where / "switches.o"
        jobs = [[*self.compile, "-I", HERE, "-c", HERE / "switches.c", "-o", switches]]
        objects = [switches]
        for path in self.sources:
            mine = [(number, guard) for guard, number in self.number.items() if guard.file == str(path)]
            source = self.where / "switched" / path
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(guards.switched(path.read_text(), mine))
            objects.append(source.with_suffix(".o"))
            jobs.append([*self.compile, "-include", HERE / "switches.h", "-iquote", path.parent, "-c", source,
                         "-o", objects[-1]])
        programs = {}
        links = []
        for name in names:
            programs[name] = self.where / name
            links.append([*self.link, UNIT / f"{name}.c", *objects, *words("UNIT_LIBS"), "-o", programs[name]])
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for commands in (jobs, links):
                list(pool.map(lambda command: subprocess.run(command, check=True), commands))
        return programs


def elsewhere(reason):
    """Whether a reason says that the guard is tried here."""
    return ELSEWHERE in (reason or "")


def libraries(programs):
    """What programs are linked with, and what links them."""
    told = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    return [Path(path) for path in sorted(set(re.findall(r"(/\S+) \(0x", told)))]
