# SPDX-License-Identifier: MIT
"""Guards of libtmesh, tried with the unit tests on memfds."""
import concurrent.futures
import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import guards

UNIT = Path("tests/unit")
# What a program may take with a guard out, beside what it takes with all guards in: some wait for ever then.
PATIENCE = 20, 4


class Broken(Exception):
    """The tests cannot judge: they fail with every guard in."""


def words(variable):
    """What make knows by a name, as a list of words."""
    told = subprocess.run(["make", "-s", "--no-print-directory", "-f", "Makefile", "-f", "-", "mutation-tell"],
                          input=f"mutation-tell: ; @:$(info $({variable}))\n", text=True, capture_output=True,
                          check=True).stdout
    return shlex.split(told)


class Library:
    """The library's sources, its test programs, and which program runs which line."""

    def __init__(self, where, say):
        self.where, self.say = Path(where), say
        self.where.mkdir(parents=True, exist_ok=True)
        self.compile = words("CC") + words("LIB_CPPFLAGS") + words("CFLAGS") + words("LIB_CFLAGS") + ["-w"]
        self.link = words("CC") + words("CFLAGS") + words("UNIT_FLAGS")
        self.libs = words("UNIT_LIBS")
        self.archive = words("LIB_A")[0]
        self.programs = words("UNIT_NAMES")
        keeper = words("UNIT_KEEPER_plain")[0]
        self.env = {"TMESH_BACKEND": "memfd", "TMESH_TEST_LENGTH": "short", **os.environ,
                    "TMESH_KEEPER": keeper, "CMOCKA_MESSAGE_OUTPUT": "TAP"}
        subprocess.run(["make", "-s", self.archive, keeper.removeprefix(os.getcwd() + "/"),
                        *[f"build/tests/unit/cov/{name}" for name in self.programs]], check=True)
        self.objects = {}
        for name in self.programs:
            self.objects[name] = self.where / f"{name}.o"
            subprocess.run([*self.compile, *words("UNIT_FLAGS"), "-c", UNIT / f"{name}.c", "-o", self.objects[name]],
                           check=True)
        self.takes = {}
        for name in self.programs:
            began = time.monotonic()
            if not self.passes(name, self.built(name, self.where / name), 600):
                raise Broken(f"{name} fails with every guard in")
            self.takes[name] = time.monotonic() - began
        self.runs = self.coverage()

    def coverage(self):
        """{(file, line): the programs that run it}"""
        runs = defaultdict(set)
        objects = Path("build/lib-cov")
        for name in self.programs:
            self.say(f"which lines {name} runs")
            for old in objects.rglob("*.gcda"):
                old.unlink()
            self.passes(name, Path(f"build/tests/unit/cov/{name}"), 600)
            for counts in objects.rglob("*.gcda"):
                told = subprocess.run(["gcov", "--json-format", "--stdout", counts.resolve()], check=True,
                                      capture_output=True, text=True, cwd=objects).stdout
                for file in json.loads(told)["files"]:
                    path = os.path.relpath(os.path.join(os.getcwd(), file["file"]))
                    for line in file["lines"]:
                        if line["count"]:
                            runs[path, line["line_number"]].add(name)
        return runs

    def built(self, name, path, *objects):
        """A test program with these objects in place of the archive's."""
        subprocess.run([*self.link, self.objects[name], *objects, self.archive, *self.libs, "-o", path], check=True,
                       capture_output=True)
        return path

    def passes(self, name, path, seconds):
        """Whether a program ends in time and well. Nothing that it started stays."""
        with tempfile.TemporaryDirectory() as runtime, tempfile.TemporaryFile() as output:
            child = subprocess.Popen([path.resolve()], env={**self.env, "TMESH_RUNTIME_DIR": runtime}, stdout=output,
                                     stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                return child.wait(seconds) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()

    @staticmethod
    def guards():
        return [guard for name in words("LIB_SRC") for guard in guards.find(name, Path(name).read_text())]

    def judge(self, mutant):
        """Which program fails with the mutant, "" where none does. Raises Untried."""
        guard = mutant.guard
        names = set().union(*(self.runs[guard.file, line] for line in guard.lines))
        if not names:
            raise guards.Untried("no test comes by")
        with tempfile.TemporaryDirectory(dir=self.where) as folder:
            source = Path(folder) / Path(guard.file).name
            source.write_text(guards.changed(Path(guard.file).read_text(), mutant))
            made = Path(folder) / "mutant.o"
            built = subprocess.run([*self.compile, "-iquote", Path(guard.file).parent, "-c", source, "-o", made],
                                   capture_output=True)
            if built.returncode:
                raise guards.Untried("it does not compile")
            for name in sorted(names, key=self.takes.get):
                program = self.built(name, Path(folder) / name, made)
                more, times = PATIENCE
                if not self.passes(name, program, more + times * self.takes[name]):
                    return name
        return ""

    def judged(self, wanted, jobs):
        """(mutant, answer) of each wanted mutant, as they are known: what sees it, "" where nothing does, or an
        Untried."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            waiting = {pool.submit(self.judge, mutant): mutant for mutant in wanted}
            for done in concurrent.futures.as_completed(waiting):
                if isinstance(done.exception(), guards.Untried):
                    yield waiting[done], done.exception()
                else:
                    yield waiting[done], done.result()
