# SPDX-License-Identifier: MIT
"""Mutants that are tried in guests.

A guest that a guard's loss ends, or whose module stays or may be broken, is followed by another.
"""
import re
import sys
from collections import defaultdict
from pathlib import Path

from cases import ByCases, out

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))
import boot  # noqa: E402: found by the line above

KERNEL = "6.12"
# Mutants of one guest: what is known of them is written down when it ends.
AT_ONCE = 25
# A kernel that stands still is ended, not waited for.
STANDING = ["softlockup_panic=1", "rcupdate.rcu_cpu_stall_timeout=30", "sysctl.kernel.panic_on_rcu_stall=1"]


class Guests(ByCases):
    """A subject that says beside what every one does: `module`, the file that guests load; `files` beside it;
    `libraries`."""
    def told_cases(self, names):
        """{program: its cases as cases_of() has them}, of these programs."""
        outcome = boot.run(KERNEL, "mutation", module=self.module, programs=[self.programs[name] for name in names],
                           files=self.files, libraries=self.libraries)
        if outcome.trouble or not re.search("^@ done$", outcome.results, re.M):
            sys.exit(f"mutate: the guest that tells which guards are true {outcome.trouble or 'ended'}: "
                     f"{boot.logs(KERNEL, 'mutation')}/console")
        for failed in re.findall(r"^@ check (.* [1-9]\d* .*)$", outcome.results, re.M):
            self.say(f"with every guard in: {failed}")
        return cases_of(outcome.results)

    def tried(self, waiting, jobs):
        """(mutant, answer) of each of {mutant: its runs}, one guest after another."""
        waiting = {out(self.number[mutant.guard], mutant): (mutant, runs) for mutant, runs in waiting.items()}
        while waiting:
            turn = list(waiting.items())[:AT_ONCE]
            answers = self.guest({number: runs for number, (_, runs) in turn})
            if not answers:
                sys.exit(f"mutate: a guest ended before it tried a guard: {boot.logs(KERNEL, 'mutation')}/console")
            for number, answer in answers.items():
                yield waiting.pop(number)[0], answer

    def guest(self, runs):
        """{number: answer} of those whose turn came."""
        plan = self.where / "plan"
        plan.write_text("".join(" ".join([number, *(f"{name}:{case}:{limit}" for name, case, limit in mine)]) + "\n"
                                for number, mine in runs.items()))
        names = {name for mine in runs.values() for name, _, _ in mine}
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
