# SPDX-License-Identifier: MIT
"""Kills while pages are followed and a stream is read, for test_machines.py."""

import collections
import contextlib
import os
import re
import time
from pathlib import Path

from machines import connect, eventually

ERRORS = {f"error:{type}" for type in ("gone", "timeout", "not_found", "not_started", "closed")}
VALUES = 6
# A program may have descriptors in one life that it did not yet have in another. They are of the node or
# fetcher beside it, once one has asked the other for memory: the connection at both ends, /proc/PID/fd and a
# pidfd (lib/peer.c, lib/server.c). Eight rounds showed one socket in each and
# nothing else. The program tmesh-net also has an endpoint whose reads do not end within a second (docs/reference/net.md), with 10
# descriptors: sockets, epolls and a pipe of libfabric's (1.17). One that leaves a descriptor with each value
# has more in one round.
OF_ANOTHER = 4
OF_AN_ENDPOINT = 12
MORE = {"beam.smp": OF_ANOTHER, "tmesh-net": OF_ANOTHER + OF_AN_ENDPOINT, "tmesh-keeper": OF_ANOTHER}


def descriptors(machine):
    """Count the descriptors of each of the machine's programs by kind."""
    counts = {}
    for command in ("beam.smp", "tmesh-net", "tmesh-keeper"):
        for pid in machine.processes(command):
            kinds = counts.setdefault(command, collections.Counter())
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    kinds[re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "N", os.readlink(link))] += 1
    return counts


def more(had, machine):
    """Return the descriptors that are more now than before."""
    now = descriptors(machine)
    return {command: now[command] - had[command] for command in now
            if command in had and now[command].total() > had[command].total() + MORE[command]}


def read_through(home, reader, name, rng, kill):
    """Follow a stream and a log of pages on the reader, while `kill` ends one machine in the middle. Return the
    right results and the reader's own."""
    digests = home.ask("feed", name, VALUES, 200_000, f"{name}{rng.random()}").split()
    home.ask("pages", f"{name}-pages", 60, 10, f"{name}{rng.random()}")
    assert reader.ask("follow", name, 2) == "ok" == reader.ask("follow_pages", f"{name}-pages")
    assert reader.ask("begin_to_read", VALUES, 2) == "ok"
    update, table = home.ask("grow", 20).split()
    assert update == "2"
    killed = kill()
    if killed is reader:
        return None
    words = reader.ask("opened").split()
    return [*digests, table], words


def storm_of_followers(home, reader, rounds, rng):
    """A process is killed at a random moment while pages are followed and a stream is read: errors or what is right, and nothing is left."""
    victims, counts, right = [], {}, 0
    for number in range(rounds + 1):
        if not victims:
            victims = ["home", "home's fetcher", "reader's fetcher", "reader"]
            rng.shuffle(victims)

        def kill(victim=victims[-1]):
            time.sleep(rng.random() * 0.4)
            machine = home if victim.startswith("home") else reader
            if victim.endswith("fetcher"):
                machine.kill("tmesh-net")
                return None
            machine.die()
            return machine
        # In the first round no process is.
        seen = read_through(home, reader, f"flow{number}", rng, kill if number else lambda: None)
        if number:
            victims.pop()
        if seen:
            wanted, words = seen
            assert len(words) == len(wanted), f"round {number}: {words}"
            for want, word in zip(wanted, words):
                assert word == want or (number and word in ERRORS), f"round {number}: {word} and not {want}"
            right += sum(word == want for want, word in zip(wanted, words))
        for one in (home, reader):
            if one.beam.poll() is not None:
                one.start()
        connect(reader, home)
        for one in (home, reader):
            one.nothing_left()
            had = counts.setdefault(one.node, descriptors(one))
            eventually(lambda: not more(had, one), lambda: f"round {number}: an end of descriptors on {one.node}: {more(had, one)}")
    print(f"# {right} of {rounds + 1} times {VALUES + 1} were right, the others errors", flush=True)
