# SPDX-License-Identifier: MIT
"""Mutants that are tried by cases of programs.

One build has all guards behind switches. Each case records once which guards it makes true: no other can miss them. Then
guards are switched off one after another, and the cases that make each true run, the quickest first, until one fails.
"""
import hashlib
import json
import math
import re
from collections import defaultdict

import guards

# The programs whose values of guards are recorded together.
PROGRAMS_AT_ONCE = 5


class ByCases:
    """A subject has `programs`, files by name; `digests`, by a program's name, which show whether its recorded cases
    are still valid; `number` of each guard; told_cases() and tried(). Then it calls know_cases()."""
    # Seconds that a case may take with a guard out, and that many times its time with all guards in.
    patience = 20, 4

    def __init__(self, where, say, enough=math.inf, only=""):
        """enough: the seconds of cases, the quickest first, that are run for a guard; only: the names of the programs
        whose cases are run at all."""
        self.where, self.say, self.enough, self.only = where.resolve(), say, enough, only
        self.where.mkdir(parents=True, exist_ok=True)

    def know_cases(self):
        """{program: [[hundredths of a second, case, guards that were true, guards that were false] of each case]}, kept
        for unchanged programs with the same guards."""
        kept = self.where / "cases.json"
        known = json.loads(kept.read_text()) if kept.exists() else {}
        known = {name: told for name, told in known.items() if self.digests.get(name) == told["of"]}
        unknown = [name for name in self.programs if name not in known and re.search(self.only, name)]
        name_of = {number: guard.name for guard, number in self.number.items()}
        for first in range(0, len(unknown), PROGRAMS_AT_ONCE):
            names = unknown[first:first + PROGRAMS_AT_ONCE]
            self.say(f"which guards each case makes true: {' '.join(names)}")
            told = self.told_cases(names)
            known |= {name: {"of": self.digests[name],
                             "cases": [[took, case, *([name_of[number] for number in numbers] for numbers in seen)]
                                       for took, case, *seen in told.get(name, ())]} for name in names}
            kept.write_text(json.dumps(known))
        self.cases = {name: told["cases"] for name, told in known.items() if re.search(self.only, name)}

    def runs(self):
        """{(a guard's name, inverted): the [(seconds, program, case)] that can miss it, the quickest first}. Those are
        the cases that make a removed guard true, or that reach an inverted one."""
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
        """Yield (mutant, answer) of each wanted mutant: the case that sees it, "" if none does, or an Untried."""
        found, waiting = self.runs(), {}
        for mutant in wanted:
            if runs := found.get((mutant.guard.name, mutant.inverted)):
                waiting[mutant] = self.chosen(runs)
            else:
                yield mutant, guards.Untried("no test comes by" if mutant.inverted else "no test makes it true")
        yield from self.tried(waiting, jobs)

    def chosen(self, runs):
        """Return enough of the quickest of these, as (program, case, seconds that it may take)."""
        more, times = self.patience
        took, chosen = 0, []
        for seconds, name, case in runs:
            took += seconds
            if took <= self.enough or not chosen:
                chosen.append((name, case, int(more + times * seconds)))
        return chosen


def out(number, mutant):
    """A mutant, as the switches read it: the guard's number, and "i" where it is inverted."""
    return f"{number}{'i' * mutant.inverted}"


def digest(*paths):
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
