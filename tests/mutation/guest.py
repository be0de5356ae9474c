# SPDX-License-Identifier: MIT
"""Mutants that are tried in guests.

A guest that a guard's loss ends, or whose module stays or may be broken, is followed by another.
"""
import concurrent.futures
import re
import sys
from collections import defaultdict
from itertools import islice
from pathlib import Path

from cases import ByCases, out

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))
import boot  # noqa: E402: found by the line above

KERNEL = "6.12"
# Mutants of one guest: their results are written down when it ends.
AT_ONCE = 25
# A kernel that stands still is ended, not waited for.
STANDING = ["softlockup_panic=1", "rcupdate.rcu_cpu_stall_timeout=30", "sysctl.kernel.panic_on_rcu_stall=1"]


class Guests(ByCases):
    """A subject has beside the common members: `module`, the file that guests load; `files` beside it; `libraries`."""
    # Most mutants that do not end wait for ever, and each costs a guest.
    patience = 10, 4

    def told_cases(self, names):
        """Return {program: its cases as cases_of() has them}, of these programs."""
        outcome = self.boot(1, self.files, names)
        if outcome.trouble or not re.search("^@ done$", outcome.results, re.M):
            sys.exit(f"mutate: the guest that tells which guards are true {outcome.trouble or 'ended'}: {console(1)}")
        for failed in re.findall(r"^@ check (.* [1-9]\d* .*)$", outcome.results, re.M):
            self.say(f"with every guard in: {failed}")
        return cases_of(outcome.results)

    def tried(self, waiting, jobs):
        """Yield (mutant, answer) of each of {mutant: its runs}, by so many guests at once."""
        waiting = {out(self.number[mutant.guard], mutant): (mutant, runs) for mutant, runs in waiting.items()}
        idle, guests = list(range(jobs, 0, -1)), {}
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            while waiting or guests:
                while waiting and idle:
                    turn = dict(islice(waiting.items(), AT_ONCE))
                    waiting = {number: waiting[number] for number in waiting if number not in turn}
                    place = idle.pop()
                    guests[pool.submit(self.guest, place, {number: runs for number, (_, runs) in turn.items()})] = place, turn
                for guest in concurrent.futures.wait(guests, return_when=concurrent.futures.FIRST_COMPLETED).done:
                    place, turn = guests.pop(guest)
                    idle.append(place)
                    if not guest.result():
                        sys.exit(f"mutate: a guest ended before it tried a guard: {console(place)}")
                    for number, answer in guest.result().items():
                        yield turn.pop(number)[0], answer
                    waiting = turn | waiting

    def guest(self, place, runs):
        """Return {number: answer} of the mutants whose turn came."""
        plan = self.where / f"guest-{place}/plan"
        plan.parent.mkdir(exist_ok=True)
        plan.write_text("".join(" ".join([number, *(f"{name}:{case}:{limit}" for name, case, limit in mine)]) + "\n"
                                for number, mine in runs.items()))
        names = sorted({name for mine in runs.values() for name, _, _ in mine})
        outcome = self.boot(place, [*self.files, plan], names, STANDING)
        return answers_of(outcome.results, outcome.trouble)

    def boot(self, place, files, names, arguments=()):
        """Return the results of the guest at this place, one of several at once."""
        return boot.run(KERNEL, f"mutation-{place}", script="mutation", module=self.module, files=files,
                        programs=[self.programs[name] for name in names], libraries=self.libraries, arguments=arguments)


def console(place):
    """Return the log of a guest's kernel."""
    return boot.logs(KERNEL, f"mutation-{place}") / "console"


def cases_of(results):
    """Return {program: [[hundredths of a second, case, numbers of guards that were true, of those that were false] of
    each case]}, as a guest printed it."""
    found = defaultdict(list)
    for name, case, took, *seen in re.findall(r"^@ case (\w+) (\w+) (\d+)((?: [\da-f]+)*) *\|((?: [\da-f]+)*) *$",
                                              results, re.M):
        found[name].append([int(took), case, *([int(number, 16) for number in numbers.split()] for numbers in seen)])
    return dict(found)


def answers_of(results, trouble=None):
    """Return a guest's answers about mutants. A mutant whose turn was cut short ended its guest, which is an answer
    too. If the guest's time was over, it is an answer only for a mutant that had all of it. One that is to be tried
    again has no answer."""
    answers, begun = {}, None
    for line in results.splitlines():
        if found := re.fullmatch(r"@ mutant (\d+i?)", line):
            begun = found[1]
        elif found := re.fullmatch(r"@ (seen|unseen) (\d+i?) ?(.*)", line):
            answers[found[2]] = found[3] if found[1] == "seen" else ""
            begun = None
        elif line == f"@ again {begun}":
            begun = None
    if begun is not None and not (trouble and answers):
        answers[begun] = "the kernel, which it ended,"
    return answers
