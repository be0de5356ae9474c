#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""Takes the guards of libtmesh or of the module out, one by one, and runs the tests that come by them.

A guard that may go and no test fails is a survivor: it wants a test, or a line in `reasons.txt` (of the module:
`reasons.kmod.txt`). It is inverted, too:
where no test sees even that, the condition means nothing to any of them. Prints TAP, a point a mutant. A survivor
whose reason is known is a skip that says it; a guard that no test comes by fails too.

Findings are written to `verdicts.lib`, `verdicts.lib-module` and `verdicts.kmod` in build/mutation, or $TMESH_MUTATION. The
search may be ended (by Ctrl-C too) and continued on another day. Another run goes on with the guards that were not tried,
those whose function has changed since, and survivors without a reason. `--all` begins anew, `--tell` prints what is
known and runs nothing.
"""
import argparse
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import guards as guards_in
from guards import Mutant, Untried
from verdicts import Verdicts

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
FOUND = Path(os.environ.get("TMESH_MUTATION") or TOP / "build/mutation")


def reasons(text):
    """{a guard's name, or the beginning of names and `*`: why it may go unseen}. A file has one a line, and the reason
    indented below, which may be of several."""
    known, names, why = {}, [], ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            if why:
                names, why = [], ""
            if line.strip() in known:
                sys.exit(f"reasons, line {number}: {line.strip()} has a reason already")
            names.append(line.strip())
            known[names[-1]] = ""
        elif names:
            why = f"{why} {line.strip()}".strip()
            known |= dict.fromkeys(names, why)
        else:
            sys.exit(f"reasons, line {number}: a reason without a guard")
    for name, told in known.items():
        if not told:
            sys.exit(f"reasons: none is given for {name}")
    return known


def all_reasons():
    """Those of libtmesh, then those of the module."""
    return reasons("".join((HERE / name).read_text() for name in ("reasons.txt", "reasons.kmod.txt")))


def reason(name, known):
    """Return why the guard of this name may go unseen, or None. A line that ends in `*` is about all names that begin
    so."""
    return next((why for told, why in known.items()
                 if name == told or (told.endswith("*") and name.startswith(told[:-1]))), None)


def changed_lines(text):
    """Return the numbers of the lines that are of no boundary commit, of what `git blame --line-porcelain` says."""
    lines, number, old = set(), 0, False
    for line in text.splitlines():
        if found := re.match(r"[0-9a-f]{40} \d+ (\d+)", line):
            number, old = int(found[1]), False
        elif line == "boundary":
            old = True
        elif line.startswith("\t") and not old:
            lines.add(number)
    return lines


def changed_since(guards, commit):
    """Return the guards with a line that was written after a commit; one that was moved is as old as it was."""
    found = {}
    for file in sorted({guard.file for guard in guards}):
        done = subprocess.run(["git", "blame", "-w", "-C", "-C", "--line-porcelain", f"{commit}..", "--", file], cwd=TOP,
                              capture_output=True, text=True, errors="replace")
        if done.returncode:
            sys.exit(f"mutate: --since {commit}: {done.stderr.strip()}")
        found[file] = changed_lines(done.stdout)
    return [guard for guard in guards if found[guard.file] & {*guard.lines}]


def chosen(guards, only, every, first):
    """Return the guards that the pattern finds, and of these one in so many."""
    return [guard for guard in guards if re.search(only, guard.name)][first::every]


def subject_of(what, known):
    """Return the subject that tries mutants, the guards that it tries, and a function that explains an unseen guard
    there."""
    def explained(guard):
        return reason(guard.name, known)

    if what == "kmod":
        from module import Module
        return Module, Module.guards(), explained
    from library import Library, all_guards
    from on_module import OnModule, elsewhere
    there = all_guards()
    if what == "lib":
        return Library, [guard for guard in there if not OnModule.speaks(guard)], explained
    return (OnModule, [guard for guard in there if OnModule.speaks(guard) or elsewhere(explained(guard))],
            lambda guard: None if elsewhere(explained(guard)) else explained(guard))


def is_seen(answer):
    return bool(answer) and not isinstance(answer, Untried)


def tell(number, mutant, answer, explained):
    """The point of one mutant; whether it fails."""
    if is_seen(answer):
        print(f"ok {number} - {mutant.name}: {answer} sees it", flush=True)
        return False
    why = str(answer) or "no test sees it"
    if allowed := explained(mutant.guard):
        print(f"ok {number} - {mutant.name} # SKIP {allowed}", flush=True)
        return False
    print(f"not ok {number} - {mutant.name}: {why}", flush=True)
    return True


def all_names():
    """The names of all guards there are."""
    return [guard.name for path in sorted([*TOP.glob("lib/**/*.c"), *TOP.glob("kmod/**/*.c")])
            for guard in guards_in.find(str(path.relative_to(TOP)), path.read_text())]


def stale(reasons_of, names):
    """The reasons that are about no guard of these names."""
    return [told for told in reasons_of if not any(reason(name, {told: "it"}) for name in names)]


def tell_all(what, verdicts, explained):
    """Print the results of all guards; return how many need a test or a reason."""
    told = verdicts.summary(explained)
    for word, guards in (("no test sees it", told["unseen"]), ("no test comes by", told["unmet"])):
        for guard in guards:
            print(f"# {word}, and no reason is given: {guard.name}")
    for guard in told["seen"]:
        if explained(guard):
            print(f"# a test misses it, so that its reason can go: {guard.name}")
    seen, *others = (len(told[word]) for word in ("seen", "explained", "unseen", "unmet", "untried"))
    print(f"# {what}: {len(verdicts.of)} guards, {seen} that a test misses, {others[0]} with a reason, {others[1]} "
          f"survivors without one, {others[2]} that no test comes by, {others[3]} not tried", flush=True)
    return others[1] + others[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lib", "lib-module", "kmod"],
                        help="guards of libtmesh on memfds, of libtmesh on the module in guests, of the module")
    parser.add_argument("--only", default="", metavar="PATTERN", help="guards whose name has this regular expression")
    parser.add_argument("--since", metavar="COMMIT", help="guards that were written or changed after this commit")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one in so many of these")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first of them, from 0")
    parser.add_argument("--jobs", type=int, default=2, help="how many cases at once, or guests")
    parser.add_argument("--enough", type=float, default=math.inf, metavar="SECONDS",
                        help="of the cases that make a guard true, the quickest that take so long together")
    parser.add_argument("--by", default="", metavar="PATTERN",
                        help="by programs with such a name alone: only what they see is written down")
    parser.add_argument("--all", action="store_true", help="try those again of which the verdict is known")
    parser.add_argument("--tell", action="store_true", help="print what is known of all guards, and run nothing")
    parser.add_argument("--list", action="store_true", help="print the guards, and do nothing")
    args = parser.parse_args()

    def say(text):
        print(f"# {text}", flush=True)

    known = all_reasons()
    Subject, there, explained = subject_of(args.what, known)
    guards = chosen(changed_since(there, args.since) if args.since else there, args.only, args.every, args.first)
    if args.list:
        for guard in guards:
            print(guard.name)
        return 0
    FOUND.mkdir(parents=True, exist_ok=True)
    verdicts = Verdicts(FOUND / f"verdicts.{args.what}", there)
    if args.tell:
        for name in stale(known, all_names()):
            say(f"there is no guard any more that this reason is about: {name}")
        return 1 if tell_all(args.what, verdicts, explained) else 0
    if not guards:
        sys.exit(f"mutate: no guard of {args.what} has a name like {args.only!r}")
    wanted = [Mutant(guard) for guard in guards] if args.all else verdicts.wanted(guards, explained)
    began = time.monotonic()
    number = failed = 0
    if wanted:
        subject = Subject(Path("build/mutation") / args.what, say, enough=args.enough, only=args.by)
        for mutants in (lambda: wanted, lambda: verdicts.inverted([mutant.guard for mutant in wanted])):
            for mutant, answer in subject.judged(mutants(), args.jobs):
                number += 1
                if not args.by or is_seen(answer):
                    verdicts.learn(mutant, answer)
                failed += tell(number, mutant, answer, explained)
    print(f"1..{number}", flush=True)
    say(f"{number} mutants, {failed} survived without a reason, {(time.monotonic() - began) / 60:.0f} minutes")
    tell_all(args.what, verdicts, explained)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
