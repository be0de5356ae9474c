# SPDX-License-Identifier: MIT
"""Guards of the module, tried in guests with the programs of tests/kselftest.

The debug kernel tells once which program runs which line. Modules without a guard are built for a stock kernel, and
one guest loads many of them, one after another; a guest that such a module ends is followed by another.
"""
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import guards

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))
import boot  # noqa: E402: found by the line above
import coverage  # noqa: E402
import kernels  # noqa: E402
import modules  # noqa: E402

KERNEL = "6.12"
SOURCES = "kmod/*.c", "kmod/compat/*.c"
IN_ONE_GUEST = 24
# Seconds that a program may take with a guard out, beside what it took with all guards in.
PATIENCE = 120, 4


class Module:
    """The module's sources, the programs, and which program runs which line."""

    def __init__(self, where, say):
        self.where, self.say = where.resolve(), say
        self.where.mkdir(parents=True, exist_ok=True)
        self.programs = [path for path in sorted((TOP / "build/tests/kselftest").iterdir()) if os.access(path, os.X_OK)]
        self.kernel = kernels.prepare(KERNEL)
        self.module, _ = modules.tmesh(self.kernel, self.where)
        self.peer, _ = modules.of_tests(self.kernel, "peer", self.where)
        self.takes, self.runs = self.known_coverage()

    @staticmethod
    def guards():
        return [guard for pattern in SOURCES for path in sorted(TOP.glob(pattern))
                for guard in guards.find(str(path.relative_to(TOP)), path.read_text())]

    def known_coverage(self):
        """What coverage() told of these very sources and programs, kept: it takes half an hour."""
        of = hashlib.sha256()
        for path in [*self.programs, *(path for pattern in SOURCES for path in sorted(TOP.glob(pattern)))]:
            of.update(path.read_bytes())
        kept = self.where / "coverage.json"
        if kept.exists() and (known := json.loads(kept.read_text()))["of"] == of.hexdigest():
            return known["takes"], known["runs"]
        takes, runs = self.coverage()
        kept.write_text(json.dumps({"of": of.hexdigest(), "takes": takes, "runs": runs}))
        return takes, runs

    def coverage(self):
        """({program: seconds}, {"file:line": programs that run it}), on the debug kernel"""
        self.say("which lines each program runs: once on the debug kernel")
        debug = kernels.prepare("debug")
        where = boot.logs("debug", "mutation")
        module, _ = modules.tmesh(debug, where)
        peer, _ = modules.of_tests(debug, "peer", where)
        outcome = boot.run("debug", "mutation", module=module, programs=self.programs, files=[peer, self.corpus()],
                           script="mutation-cover")
        if outcome.trouble:
            sys.exit(f"mutate: the guest that counts lines {outcome.trouble}: {where}/console")
        takes = {name: int(seconds) for name, seconds in re.findall(r"^@ took (\w+) (\d+)$", outcome.results, re.M)}
        left = boot_left(outcome.results)
        runs = {}
        for program in self.programs:
            folder = where / "left" / program.name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for member in left.getmembers():
                if member.isfile() and member.name.startswith(f"./{program.name}/"):
                    (folder / Path(member.name).name).write_bytes(left.extractfile(member).read())
            lines, _ = coverage.by_gcov(module, folder)
            for file, counts in lines.items():
                for line, count in counts.items():
                    if count:
                        runs.setdefault(f"kmod/{file}:{line}", []).append(program.name)
        return takes, runs

    def corpus(self):
        copied = self.where / "fuzz.corpus"
        shutil.copy(TOP / "tests/kselftest/fuzz.corpus", copied)
        return copied

    def programs_of(self, guard):
        names = set().union(*(self.runs.get(f"{guard.file}:{line}", ()) for line in guard.lines))
        return sorted(names, key=lambda name: self.takes.get(name, 0))

    def mutant(self, number, guard):
        """The module without a guard, or None where it cannot be built."""
        tree = self.module.parent
        source = tree / Path(guard.file).relative_to("kmod")
        whole = (TOP / guard.file).read_text()
        made = self.where / f"mutant-{number}.ko"
        try:
            source.write_text(guards.without(whole, guard))
            modules.make(self.kernel, "-C", self.kernel.kdir, f"M={tree.parent}",
                         *modules.arguments(self.kernel), "modules")
            subprocess.run(["strip", "-g", "-o", made, tree / "tmesh.ko"], check=True)
            return made
        except (subprocess.CalledProcessError, SystemExit):
            return None
        finally:
            source.write_text(whole)

    def judged(self, wanted, jobs):
        """(guard, answer) of each wanted guard: what sees that it is gone, "" where nothing does, or an Untried."""
        waiting = []
        for number, guard in enumerate(wanted):
            if not (names := self.programs_of(guard)):
                yield guard, guards.Untried("no test comes by")
            else:
                waiting.append((number, guard, names))
        while waiting:
            built = []
            while waiting and len(built) < IN_ONE_GUEST:
                number, guard, names = waiting.pop(0)
                if made := self.mutant(number, guard):
                    built.append((number, guard, names, made))
                else:
                    yield guard, guards.Untried("it does not compile")
            answers = self.guest(built)
            for number, guard, names, made in built:
                if number in answers:
                    yield guard, answers[number]
                else:
                    waiting.insert(0, (number, guard, names))   # its guest ended before its turn came
                made.unlink()

    def guest(self, built):
        """{number: answer} of those whose turn came."""
        more, times = PATIENCE
        plan = self.where / "plan"
        plan.write_text("".join(
            f"{number} {' '.join(f'{name}:{more + times * self.takes.get(name, 0)}' for name in names)}\n"
            for number, _, names, _ in built))
        outcome = boot.run(KERNEL, "mutation", module=self.module, programs=self.programs,
                           files=[self.peer, self.corpus(), plan, *(made for *_, made in built)])
        return answers_of(outcome.results)


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


def boot_left(results):
    """What a guest left, as an open tar."""
    from judge import Results
    return tarfile.open(fileobj=io.BytesIO(Results(results).left))
