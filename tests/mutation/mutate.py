#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""Takes the guards of libtmesh or of the module out, one by one, and runs the tests that come by them.

A guard that may go and no test fails is a survivor: it wants a test, or a line in `reasons.txt`. Prints TAP, a point
a guard. A survivor whose reason is known is a skip that says it; a guard that no test comes by fails too.
"""
import argparse
import math
import re
import sys
import time
from pathlib import Path

from guards import Untried

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent


def reasons(text):
    """{a guard's name, or the beginning of names and `*`: why it may go unseen}. The file has one a line, and its
    reason indented below."""
    known, name = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            name = line.strip()
            if name in known:
                sys.exit(f"reasons.txt:{number}: this guard has a reason already")
            known[name] = ""
        elif name:
            known[name] = f"{known[name]} {line.strip()}".strip()
        else:
            sys.exit(f"reasons.txt:{number}: a reason without a guard")
    for name, why in known.items():
        if not why:
            sys.exit(f"reasons.txt: no reason is given for {name}")
    return known


def reason(name, known):
    """Why the guard of this name may go unseen, or None. A line that ends in `*` is about all names that begin so."""
    return next((why for told, why in known.items()
                 if name == told or (told.endswith("*") and name.startswith(told[:-1]))), None)


def chosen(guards, only, every, first):
    """Those that the pattern finds, and of these one in so many."""
    return [guard for guard in guards if re.search(only, guard.name)][first::every]


def tell(number, guard, answer, known):
    """The point of one guard; whether it fails."""
    if isinstance(answer, Untried):
        why = str(answer)
    elif answer:
        print(f"ok {number} - {guard.name}: {answer} sees it", flush=True)
        return False
    else:
        why = "no test sees it"
    if allowed := reason(guard.name, known):
        print(f"ok {number} - {guard.name} # SKIP {allowed}", flush=True)
        return False
    print(f"not ok {number} - {guard.name}: {why}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lib", "kmod"])
    parser.add_argument("--only", default="", metavar="PATTERN", help="guards whose name has this regular expression")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one in so many of these")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first of them, from 0")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (lib)")
    parser.add_argument("--enough", type=float, default=math.inf, metavar="SECONDS",
                        help="of the cases that make a guard true, the quickest that take so long together (kmod)")
    parser.add_argument("--list", action="store_true", help="print the guards, and do nothing")
    args = parser.parse_args()

    def say(text):
        print(f"# {text}", flush=True)

    known = reasons((HERE / "reasons.txt").read_text())
    if args.what == "lib":
        from library import Library as Subject
    else:
        from module import Module as Subject
    if args.list:
        for guard in chosen(Subject.guards(), args.only, args.every, args.first):
            print(guard.name)
        return 0
    began = time.monotonic()
    wanted = chosen(Subject.guards(), args.only, args.every, args.first)
    if not wanted:
        sys.exit(f"mutate: no guard of {args.what} has a name like {args.only!r}")
    more = {"enough": args.enough} if args.what == "kmod" else {}
    subject = Subject(Path("build/mutation") / args.what, say, **more)
    print(f"1..{len(wanted)}", flush=True)
    survived = 0
    for number, (guard, answer) in enumerate(subject.judged(wanted, args.jobs), 1):
        survived += tell(number, guard, answer, known)
    say(f"{len(wanted)} guards, {survived} survived, {(time.monotonic() - began) / 60:.0f} minutes")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
