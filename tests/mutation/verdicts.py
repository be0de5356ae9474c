# SPDX-License-Identifier: MIT
"""The verdicts on each guard, kept in a file, so that a stopped search goes on.

The file has a line a guard, of words between tabs. They are its file, its function, its text, the digest of its function,
the case that sees it removed, and the case that sees it inverted. The number of a case is that of the day. `UNSEEN` means
that no case sees it, `UNMET` that no test reaches it, `UNKNOWN` that it was not tried. For a removed guard in a guest
`UNMET` means that no test makes it true.
"""
from guards import Mutant, Untried

UNSEEN, UNMET, UNKNOWN = "unseen", "unmet", "-"
HEAD = "# file, function, guard, digest of the function, what sees it out, what sees it inverted: see mutate.py --help"


class Verdicts:
    """{guard: [the case that sees it out, the case that sees it inverted]}, in the guards' order."""

    def __init__(self, path, guards):
        self.path = path
        kept = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            if not line.startswith("#"):
                file, function, text, digest, *seen = line.split("\t")
                kept[file, function, text, digest] = seen
        # A guard whose function has changed is a new one.
        self.of = {guard: kept.get(key(guard), [UNKNOWN, UNKNOWN]) for guard in guards}

    def learn(self, mutant, answer):
        """Write an answer of Subject.judged down."""
        self.of[mutant.guard][mutant.inverted] = UNMET if isinstance(answer, Untried) else answer or UNSEEN
        written = self.path.with_suffix(".new")
        written.write_text("\n".join([HEAD, *("\t".join([*key(guard), *seen]) for guard, seen in self.of.items()), ""]))
        written.replace(self.path)

    def out(self, guard):
        return self.of[guard][0]

    def wanted(self, guards, explained):
        """Return mutants to be tried: untried guards, those first that have no reason, then those that no test misses
        and that have no reason. A guard that a test misses when it is out is missed inverted too: only the others tell
        more."""
        new = [Mutant(guard) for guard in guards if self.out(guard) == UNKNOWN]
        again = [Mutant(guard) for guard in guards if self.out(guard) in (UNSEEN, UNMET) and not explained(guard)]
        return [*sorted(new, key=lambda mutant: bool(explained(mutant.guard))), *again]

    def inverted(self, guards):
        """Those of them that are to be tried inverted: nothing sees that they are out."""
        return [Mutant(guard, True) for guard in guards
                if self.out(guard) in (UNSEEN, UNMET) and self.of[guard][1] in (UNKNOWN, UNMET, UNSEEN)]

    def summary(self, explained):
        """Return {a result: the guards that have it}."""
        told = {"seen": [], "explained": [], "unseen": [], "unmet": [], "untried": []}
        for guard in self.of:
            out = self.out(guard)
            if out == UNKNOWN:
                told["untried"].append(guard)
            elif out not in (UNSEEN, UNMET):
                told["seen"].append(guard)
            else:
                told["explained" if explained(guard) else out].append(guard)
        return told


def key(guard):
    """Return the key of a guard: the first columns of its line."""
    _, _, text = guard.name.split(": ", 2)
    return guard.file, guard.function, text, guard.digest
