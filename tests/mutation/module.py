# SPDX-License-Identifier: MIT
"""Guards of the module, tried in guests with the cases of tests/kselftest. Their switches are a module of their own
(mutants.h)."""
import json
import os
import shutil
import subprocess
from pathlib import Path

import guards
from cases import digest
from guest import HERE, KERNEL, TOP, Guests
import kernels
import modules

SOURCES = "kmod/*.c", "kmod/compat/*.c"


class Module(Guests):
    """The module's sources, the programs, and which of their cases makes which guard true."""
    libraries = ()

    def __init__(self, where, say, **limits):
        super().__init__(where, say, **limits)
        self.programs = {path.name: path for path in sorted((TOP / "build/tests/kselftest").iterdir())
                         if os.access(path, os.X_OK)}
        self.digests = {name: digest(path, *self.sources(), HERE / "mutants.h") for name, path in self.programs.items()}
        self.number = {guard: number for number, guard in enumerate(self.guards(), 1)}
        self.module, *self.files = self.built(kernels.prepare(KERNEL))
        corpus = self.where / "fuzz.corpus"
        shutil.copy(TOP / "tests/kselftest/fuzz.corpus", corpus)
        self.files.append(corpus)
        self.know_cases()

    @staticmethod
    def sources():
        return [path for pattern in SOURCES for path in sorted(TOP.glob(pattern))]

    @staticmethod
    def guards():
        return [guard for path in Module.sources()
                for guard in guards.find(str(path.relative_to(TOP)), path.read_text())]

    def built(self, kernel):
        """The module with its guards behind switches, that which has the switches, and the peer, built anew where one
        of their sources has changed."""
        stamp = self.where / "built.json"
        of = digest(*self.sources(), *sorted(TOP.glob("kmod/*.h")), *sorted(TOP.glob("include/uapi/linux/*.h")),
                    *sorted(TOP.glob("tests/vm/peer/*")), *sorted(HERE.glob("mutants.*")), HERE / "guards.py",
                    kernel.vmlinuz)
        if stamp.exists() and (told := json.loads(stamp.read_text()))["of"] == of:
            return [Path(path) for path in told["files"]]
        peer, _ = modules.of_tests(kernel, "peer", self.where)
        module, _ = modules.tmesh(kernel, self.where)
        tree = module.parent
        for path in self.sources():
            name = str(path.relative_to(TOP))
            mine = [(number, guard) for guard, number in self.number.items() if guard.file == name]
            (tree / path.relative_to(TOP / "kmod")).write_text(guards.switched(path.read_text(), mine))
        for name in ("mutants.c", "mutants.h"):
            shutil.copy(HERE / name, tree)
        with open(tree / "Kbuild", "a") as kbuild:
            kbuild.write("obj-m += mutants.o\nccflags-y += -include $(src)/mutants.h\n")
        modules.make(kernel, "-C", kernel.kdir, f"M={tree.parent}", *modules.arguments(kernel), "KCFLAGS=-w", "modules")
        for name in ("tmesh.ko", "mutants.ko"):
            subprocess.run(["strip", "-g", tree / name], check=True)
        files = [module, tree / "mutants.ko", peer]
        stamp.write_text(json.dumps({"of": of, "files": [str(path) for path in files]}))
        return files
