# SPDX-License-Identifier: MIT
"""Guards of libtmesh, tried with the unit tests on memfds. The library is built once with all guards behind switches
(switches.h), which the test programs and the keeper that they start have by their environment."""
import concurrent.futures
import contextlib
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import guards
from cases import ByCases, digest, out

HERE = Path(__file__).resolve().parent
UNIT = Path("tests/unit")
TESTS = re.compile(r"\b(?:cmocka_unit_test\w*|(?:TEST|UNIT)\w*)\(\s*(test_\w+)")
MUTANTS = 4096


@functools.cache
def words(variable):
    """Return the value of one of make's variables, as a list of words."""
    told = subprocess.run(["make", "-s", "--no-print-directory", "-f", "Makefile", "-f", "-", "mutation-tell"],
                          input=f"mutation-tell: ; @:$(info $({variable}))\n", text=True, capture_output=True,
                          check=True).stdout
    return shlex.split(told)


def all_guards():
    return [guard for name in words("LIB_SRC") for guard in guards.find(name, Path(name).read_text())]


class Switched:
    """The keeper and test programs, of a library with its guards behind switches. `programs` by name, `number` of each
    guard, `digests` of each program's sources."""
    def __init__(self, where, names):
        self.number = {guard: number for number, guard in enumerate(all_guards(), 1)}
        self.programs = {name: where / name for name in names}
        self.keeper = where / "tmesh-keeper"
        library = [*map(Path, words("LIB_SRC")), *map(Path, words("KEEPER_SRC")), *HERE.glob("switches.*"),
                   *(path for folder in ("lib", "include", UNIT) for path in sorted(Path(folder).rglob("*.h")))]
        self.digests = {name: digest(*library, UNIT / "closes.c", UNIT / f"{name}.c") for name in names}
        stamp = where / "built.json"
        there = json.loads(stamp.read_text()) if stamp.exists() else {}
        of_library = digest(*library)
        if there.get("") != of_library:
            self.build_library(where)
        self.link = words("CC") + words("CPPFLAGS") + words("CFLAGS") + words("UNIT_FLAGS")
        behind = [*words("UNIT_WITH"), *words("UNIT_WRAP"), where / "switches.o", where / "switched.a", *words("UNIT_LIBS")]
        side_by_side([*self.link, UNIT / f"{name}.c", *behind, "-o", path]
                     for name, path in self.programs.items() if there.get(name) != self.digests[name])
        stamp.write_text(json.dumps({**self.digests, "": of_library}))

    def build_library(self, where):
        compile = words("CC") + words("LIB_CPPFLAGS") + words("CFLAGS") + words("LIB_CFLAGS") + ["-w"]
        archive, switches, objects = where / "switched.a", where / "switches.o", []
        jobs = [[*compile, "-I", HERE, "-c", HERE / "switches.c", "-o", switches]]
        for path in map(Path, words("LIB_SRC")):
            mine = [(number, guard) for guard, number in self.number.items() if guard.file == str(path)]
            source = where / "switched" / path
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(guards.switched(path.read_text(), mine))
            objects.append(source.with_suffix(".o"))
            jobs.append([*compile, "-include", HERE / "switches.h", "-iquote", path.parent, "-c", source,
                         "-o", objects[-1]])
        side_by_side(jobs)
        archive.unlink(missing_ok=True)
        subprocess.run([*words("AR"), "rcs", archive, *objects], check=True)
        subprocess.run([*words("CC"), *words("KEEPER_CPPFLAGS"), *words("CFLAGS"), "-std=gnu11", "-w", *words("KEEPER_SRC"),
                        switches, archive, *words("LIB_LIBS"), "-o", self.keeper], check=True)

    def tests(self, name):
        """Return the names of a program's cases."""
        return TESTS.findall((UNIT / f"{name}.c").read_text())


class Library(ByCases):
    """The library's test programs, and which of their cases makes which guard true on memfds."""
    # Most mutants that do not end wait for ever, and there are hundreds of them.
    patience = 6, 10

    def __init__(self, where, say, **limits):
        super().__init__(where, say, **limits)
        self.built = Switched(self.where, words("UNIT_NAMES"))
        self.programs, self.number, self.digests = self.built.programs, self.built.number, self.built.digests
        self.env = {"TMESH_TEST_LENGTH": "short", **os.environ, "TMESH_BACKEND": "memfd",
                    "TMESH_KEEPER": str(self.built.keeper)}
        self.know_cases()

    def told_cases(self, names):
        """Return {program: [[hundredths of a second, case, numbers of guards that were true, of those that were false]
        of each case that passes with every guard in]}"""
        found = defaultdict(list)

        def tell(run):
            name, case = run
            began = time.monotonic()
            with case_of(self.programs[name], case, self.env) as ran:
                passes = ran.passes(600)
                met = ran.met.read()
            took = round((time.monotonic() - began) * 100)
            if not passes:
                self.say(f"with every guard in: {name} {case} fails")
                return
            numbers = ([number for number, seen in enumerate(met) if seen & bit] for bit in (2, 1))
            found[name].append([took, case, *numbers])

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(tell, [(name, case) for name in names for case in self.built.tests(name)]))
        return found

    def tried(self, waiting, jobs):
        """Yield (mutant, answer) of each of {mutant: its runs}, as they are known."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            judging = {pool.submit(self.judge, mutant, runs): mutant for mutant, runs in waiting.items()}
            try:
                for done in concurrent.futures.as_completed(judging):
                    yield judging[done], done.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def judge(self, mutant, runs):
        """Return the case that fails with the mutant and passes with the guard in again, "" if there is none."""
        number = out(self.number[mutant.guard], mutant)
        for name, case, limit in runs:
            if self.passes(name, case, limit, number):
                continue
            if self.passes(name, case, limit, "0"):
                return f"{name} {case}"
            self.say(f"with every guard in: {name} {case} fails")
        return ""

    def passes(self, name, case, limit, number):
        with case_of(self.programs[name], case, {**self.env, "TMESH_MUTANT": number}) as ran:
            return ran.passes(limit)


class case_of:
    """One case of a program, in a process group and directories of its own. None of its processes and files stays."""
    def __init__(self, program, case, env):
        self.program, self.env = program, {**env, "TMESH_CASE": case}

    def __enter__(self):
        self.here, self.runtime = (tempfile.TemporaryDirectory(prefix="tmesh-mutation-", ignore_cleanup_errors=True)
                                   for _ in range(2))
        self.met = open(Path(self.here.name) / "met", "w+b")
        self.met.truncate(MUTANTS)
        self.env |= {"TMESH_RUNTIME_DIR": self.runtime.name, "TMESH_MET": self.met.name}
        return self

    def passes(self, seconds):
        """Return whether it ends in time, with success."""
        self.child = subprocess.Popen([self.program], env=self.env, cwd=self.here.name, start_new_session=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return self.child.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        # A process in a session of its own, as the keeper's, has the same environment.
        while left := left_of(self.met.name):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.met.close()
        self.here.cleanup()
        self.runtime.cleanup()


def left_of(name):
    """Return the processes that have this word in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if name.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def side_by_side(commands):
    """Run them, as many at once as there are processors."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: subprocess.run(command, check=True), commands))
