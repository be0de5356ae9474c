# SPDX-License-Identifier: MIT
"""The common part of the simulations: seeds, TAP, and bugs that must be found.

A simulation is a function run(rng, bug) that plays one random history and raises Failure when a
promise is broken. `bug` names a step that is left out or changed; with None the protocol is as
built. The same seed gives the same history, so a failure's seed replays it:

    python3 tests/sim/sim_NAME.py --seed N [--bug NAME]
"""

import argparse
import os
import random
import sys


class Failure(Exception):
    """A promise of the protocol was broken."""


def must(condition, what):
    if not condition:
        raise Failure(what)


def play(run, seed, bug):
    """Return the failure of one history as text, or None."""
    try:
        run(random.Random(seed), bug)
    except Failure as failure:
        return str(failure)
    return None


def search(run, seeds, bug):
    """Return the first seed that fails and why, or (None, None)."""
    for seed in range(seeds):
        why = play(run, seed, bug)
        if why:
            return seed, why
    return None, None


def main(name, run, bugs, seeds, full):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, help="play this history alone")
    parser.add_argument("--bug", choices=sorted(bugs), help="with this mistake in the protocol")
    parser.add_argument("--seeds", type=int,
                        default=full if os.environ.get("TMESH_TEST_LENGTH") == "full" else seeds)
    args = parser.parse_args()
    if args.seed is not None:
        why = play(run, args.seed, args.bug)
        print(why or "nothing is wrong in this history")
        sys.exit(1 if why else 0)
    failed = 0
    print(f"1..{1 + len(bugs)}")
    seed, why = search(run, args.seeds, None)
    if why:
        failed += 1
        print(f"not ok 1 - {name}: seed {seed}: {why}")
    else:
        print(f"ok 1 - {name}: {args.seeds} histories")
    for number, (bug, what) in enumerate(sorted(bugs.items()), 2):
        seed, why = search(run, args.seeds, bug)
        again = why and play(run, seed, bug)
        if why and again == why:
            print(f"ok {number} - {name} without \"{what}\": seed {seed} shows it: {why}")
        else:
            failed += 1
            print(f"not ok {number} - {name} without \"{what}\": "
                  + ("the seed does not replay" if why else "no history shows it"))
    sys.exit(1 if failed else 0)
