# SPDX-License-Identifier: MIT
"""Guards of the module, tried in guests with the cases of tests/kselftest.

One build has all guards behind switches (mutants.h). A guest tells once which case makes which guards true: no other
case can miss them. Then guards are switched off one after another, and the cases that make each true run, the quickest
first, until one fails. A guest that this ends, or whose module stays or may be broken, is followed by another.
"""
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import guards

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))
import boot  # noqa: E402: found by the line above
import kernels  # noqa: E402
import modules  # noqa: E402

KERNEL = "6.12"
SOURCES = "kmod/*.c", "kmod/compat/*.c"
# Seconds that a case may take with a guard out, beside what it took with all guards in.
PATIENCE = 20, 4
# A kernel that stands still is ended, not waited for.
STANDING = ["softlockup_panic=1", "rcupdate.rcu_cpu_stall_timeout=30", "sysctl.kernel.panic_on_rcu_stall=1"]


class Module:
    """The module's sources, the programs, and which of their cases makes which guard true."""

    def __init__(self, where, say, enough=math.inf):
        """enough: how many seconds of cases, the quickest first, are run for a guard."""
        self.where, self.say, self.enough = where.resolve(), say, enough
        self.where.mkdir(parents=True, exist_ok=True)
        self.programs = [path for path in sorted((TOP / "build/tests/kselftest").iterdir()) if os.access(path, os.X_OK)]
        self.number = {guard: number for number, guard in enumerate(self.guards(), 1)}
        kernel = kernels.prepare(KERNEL)
        self.peer, _ = modules.of_tests(kernel, "peer", self.where)
        self.module, self.switches = self.built(kernel)
        corpus = self.where / "fuzz.corpus"
        shutil.copy(TOP / "tests/kselftest/fuzz.corpus", corpus)
        self.files = [self.peer, self.switches, corpus]
        self.cases = self.known_cases()

    @staticmethod
    def sources():
        return [path for pattern in SOURCES for path in sorted(TOP.glob(pattern))]

    @staticmethod
    def guards():
        return [guard for path in Module.sources()
                for guard in guards.find(str(path.relative_to(TOP)), path.read_text())]

    def built(self, kernel):
        """The module with its guards behind switches, and the module that has the switches."""
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
        return module, tree / "mutants.ko"

    def known_cases(self):
        """{program: [[hundredths of a second, names of guards that were true] of each case]}, kept for those programs
        that are the same on the same module."""
        def digest(*paths):
            return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()

        kept = self.where / "cases.json"
        of = {program.name: digest(program, *self.sources(), HERE / "mutants.h") for program in self.programs}
        known = json.loads(kept.read_text()) if kept.exists() else {}
        known = {name: told for name, told in known.items() if of.get(name) == told["of"]}
        unknown = [program for program in self.programs if program.name not in known]
        if unknown:
            self.say("which guards each case makes true: " + " ".join(program.name for program in unknown))
            outcome = boot.run(KERNEL, "mutation", module=self.module, programs=unknown, files=self.files,
                               script="mutation-cover")
            if outcome.trouble or not re.search("^@ done$", outcome.results, re.M):
                sys.exit(f"mutate: the guest that tells which guards are true {outcome.trouble or 'ended'}: "
                         f"{boot.logs(KERNEL, 'mutation')}/console")
            for failed in re.findall(r"^@ check (.* [1-9]\d* .*)$", outcome.results, re.M):
                self.say(f"with every guard in: {failed}")
            name_of = {number: guard.name for guard, number in self.number.items()}
            for name, cases in cases_of(outcome.results).items():
                known[name] = {"of": of[name],
                               "cases": [[took, [name_of[number] for number in met]] for took, met in cases]}
            kept.write_text(json.dumps(known))
        return {name: told["cases"] for name, told in known.items()}

    def runs(self):
        """{a guard's name: the [(seconds, program, case)] that make it true, the quickest first}"""
        found = defaultdict(list)
        for name, cases in self.cases.items():
            for case, (took, met) in enumerate(cases, 1):
                for guard in met:
                    found[guard].append((took / 100, name, case))
        return {guard: sorted(runs) for guard, runs in found.items()}

    def judged(self, wanted, jobs):
        """(guard, answer) of each wanted guard: what sees that it is gone, "" where nothing does, or an Untried."""
        found, waiting = self.runs(), {}
        for guard in wanted:
            if guard.name in found:
                waiting[self.number[guard]] = guard
            else:
                yield guard, guards.Untried("no test makes it true")
        while waiting:
            answers = self.guest({number: found[guard.name] for number, guard in waiting.items()})
            if not answers:
                sys.exit(f"mutate: a guest ended before it tried a guard: {boot.logs(KERNEL, 'mutation')}/console")
            for number, answer in answers.items():
                yield waiting.pop(number), answer

    def guest(self, runs):
        """{number: answer} of those whose turn came."""
        more, times = PATIENCE
        plan = self.where / "plan"
        with open(plan, "w") as lines:
            for number, mine in runs.items():
                took, chosen = 0, []
                for seconds, name, case in mine:
                    took += seconds
                    if took <= self.enough or not chosen:
                        chosen.append(f"{name}:{case}:{int(more + times * seconds)}")
                lines.write(f"{number} {' '.join(chosen)}\n")
        outcome = boot.run(KERNEL, "mutation", module=self.module, programs=self.programs,
                           files=[*self.files, plan], arguments=STANDING)
        return answers_of(outcome.results)


def cases_of(results):
    """{program: [[hundredths of a second, numbers of guards that were true] of each case]}, as a guest said it."""
    found = defaultdict(list)
    for name, took, met in re.findall(r"^@ case (\w+) \d+ (\d+)((?: \d+)*) *$", results, re.M):
        found[name].append([int(took), [int(number) for number in met.split()]])
    return dict(found)


def answers_of(results):
    """What a guest said of mutants. One whose turn was cut short ended its guest, which is an answer too."""
    answers, begun = {}, None
    for line in results.splitlines():
        if found := re.fullmatch(r"@ mutant (\d+)", line):
            begun = int(found[1])
        elif found := re.fullmatch(r"@ (seen|unseen) (\d+) ?(.*)", line):
            answers[int(found[2])] = found[3] if found[1] == "seen" else ""
            begun = None
    if begun is not None:
        answers[begun] = "the kernel, which it ended,"
    return answers
