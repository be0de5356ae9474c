# SPDX-License-Identifier: MIT
"""Mutants that are tried in guests, by cases of programs.

One build has all guards behind switches. A guest tells once which case makes which guards true: no other case can miss
them. Then guards are switched off one after another, and the cases that make each true run, the quickest first, until
one fails. A guest that this ends, or whose module stays or may be broken, is followed by another.
"""
import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

import guards

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))
import boot  # noqa: E402: found by the line above

KERNEL = "6.12"
# Seconds that a case may take with a guard out, beside what it took with all guards in.
PATIENCE = 20, 4
# Mutants of one guest: what is known of them is written down when it ends.
AT_ONCE = 25
# Programs of a guest that tells of their cases.
PROGRAMS_AT_ONCE = 5
# A kernel that stands still is ended, not waited for.
STANDING = ["softlockup_panic=1", "rcupdate.rcu_cpu_stall_timeout=30", "sysctl.kernel.panic_on_rcu_stall=1"]


class Guests:
    """What a subject that is tried in guests says of itself: `module`, the file that guests load; `programs`, files by
    name; `digests`, which tell by a program's name whether what was known of its cases still is; `files` beside them;
    `number` of each guard. Then it calls know_cases()."""
    def __init__(self, where, say, enough=math.inf, only=""):
        """enough: how many seconds of cases, the quickest first, are run for a guard; only: what programs are called
        whose cases are run at all."""
        self.where, self.say, self.enough, self.only = where.resolve(), say, enough, only
        self.where.mkdir(parents=True, exist_ok=True)

    def know_cases(self):
        """{program: [[hundredths of a second, case, names of guards that were true, of those that were false] of each
        case]}, kept for those programs that are the same on the same module."""
        kept = self.where / "cases.json"
        known = json.loads(kept.read_text()) if kept.exists() else {}
        known = {name: told for name, told in known.items() if self.digests.get(name) == told["of"]}
        unknown = [name for name in self.programs if name not in known and re.search(self.only, name)]
        for first in range(0, len(unknown), PROGRAMS_AT_ONCE):
            known |= self.told_cases(unknown[first:first + PROGRAMS_AT_ONCE])
            kept.write_text(json.dumps(known))
        self.cases = {name: told["cases"] for name, told in known.items() if re.search(self.only, name)}

    def told_cases(self, names):
        """What a guest tells of the cases of these programs."""
        self.say(f"which guards each case makes true: {' '.join(names)}")
        outcome = boot.run(KERNEL, "mutation", module=self.module, programs=[self.programs[name] for name in names],
                           files=self.files, libraries=self.libraries)
        if outcome.trouble or not re.search("^@ done$", outcome.results, re.M):
            sys.exit(f"mutate: the guest that tells which guards are true {outcome.trouble or 'ended'}: "
                     f"{boot.logs(KERNEL, 'mutation')}/console")
        for failed in re.findall(r"^@ check (.* [1-9]\d* .*)$", outcome.results, re.M):
            self.say(f"with every guard in: {failed}")
        name_of = {number: guard.name for guard, number in self.number.items()}
        told = cases_of(outcome.results)
        return {name: {"of": self.digests[name],
                       "cases": [[took, case, *([name_of[number] for number in numbers] for numbers in seen)]
                                 for took, case, *seen in told.get(name, ())]} for name in names}

    def runs(self):
        """{(a guard's name, inverted): the [(seconds, program, case)] that can miss it, the quickest first}: those that
        make the guard true where it is out, those that come by where it is inverted."""
        found = defaultdict(list)
        for name, cases in self.cases.items():
            for took, case, met, passed in cases:
                run = took / 100, name, case
                for guard in met:
                    found[guard, False].append(run)
                for guard in {*met, *passed}:
                    found[guard, True].append(run)
        return {mutant: sorted(runs) for mutant, runs in found.items()}

    def judged(self, wanted, jobs):
        """(mutant, answer) of each wanted mutant: what sees it, "" where nothing does, or an Untried."""
        found, waiting = self.runs(), {}
        for mutant in wanted:
            if (mutant.guard.name, mutant.inverted) in found:
                waiting[f"{self.number[mutant.guard]}{'i' * mutant.inverted}"] = mutant
            else:
                yield mutant, guards.Untried("no test comes by" if mutant.inverted else "no test makes it true")
        while waiting:
            turn = list(waiting.items())[:AT_ONCE]
            answers = self.guest({number: self.chosen(found[mutant.guard.name, mutant.inverted])
                                  for number, mutant in turn})
            if not answers:
                sys.exit(f"mutate: a guest ended before it tried a guard: {boot.logs(KERNEL, 'mutation')}/console")
            for number, answer in answers.items():
                yield waiting.pop(number), answer

    def chosen(self, runs):
        """Of these the quickest that are enough."""
        took, chosen = 0, []
        for run in runs:
            took += run[0]
            if took <= self.enough or not chosen:
                chosen.append(run)
        return chosen

    def guest(self, runs):
        """{number: answer} of those whose turn came."""
        more, times = PATIENCE
        plan = self.where / "plan"
        plan.write_text("".join(
            " ".join([number, *(f"{name}:{case}:{int(more + times * seconds)}" for seconds, name, case in mine)]) + "\n"
            for number, mine in runs.items()))
        names = {name for mine in runs.values() for _, name, _ in mine}
        outcome = boot.run(KERNEL, "mutation", module=self.module, files=[*self.files, plan], arguments=STANDING,
                           programs=[self.programs[name] for name in sorted(names)], libraries=self.libraries)
        return answers_of(outcome.results, outcome.trouble)


def cases_of(results):
    """{program: [[hundredths of a second, case, numbers of guards that were true, of those that were false] of each
    case]}, as a guest said it."""
    found = defaultdict(list)
    for name, case, took, *seen in re.findall(r"^@ case (\w+) (\w+) (\d+)((?: [\da-f]+)*) *\|((?: [\da-f]+)*) *$",
                                              results, re.M):
        found[name].append([int(took), case, *([int(number, 16) for number in numbers.split()] for numbers in seen)])
    return dict(found)


def answers_of(results, trouble=None):
    """What a guest said of mutants. One whose turn was cut short ended its guest, which is an answer too; but where
    the guest's time was over, it is one only of the mutant that had all of it."""
    answers, begun = {}, None
    for line in results.splitlines():
        if found := re.fullmatch(r"@ mutant (\d+i?)", line):
            begun = found[1]
        elif found := re.fullmatch(r"@ (seen|unseen) (\d+i?) ?(.*)", line):
            answers[found[2]] = found[3] if found[1] == "seen" else ""
            begun = None
    if begun is not None and not (trouble and answers):
        answers[begun] = "the kernel, which it ended,"
    return answers
