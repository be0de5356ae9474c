# SPDX-License-Identifier: MIT
"""Four machines, for test_machines.py: a and b have things, c and d want them; some end, and a cut goes through the middle."""

import itertools
import json
import os
import signal
import time

from machines import EMULATED, SECONDS, connect, eventually, still

LEASE_MS = 120_000 if EMULATED else 10_000
SILENCE_MS = 40_000 if EMULATED else 5_000  # that an open takes of a home
REGIONS = 8
LARGE = (8 if EMULATED else 16) << 20  # a region that can be half there
numbers = itertools.count()


def connect_all(*machines):
    for one in machines:
        for other in machines:
            connect(one, other)


def publish(name, homes, bytes=LARGE):
    """The same bundle on each; its digest."""
    answers = {one.ask("publish", name, REGIONS, bytes, name) for one in homes}
    assert len(answers) == 1, answers
    answer, digest = answers.pop().split()
    assert answer == "ok"
    return digest


def half_there(readers, least, stopped, begin, half):
    """Return the result of `begin`, once each reader has at least so many fetches under way, and the fetchers
    of `stopped` are stopped. Where it is not `half` there then, it came too quickly, and is begun anew. First
    in what is made is how many opens of each reader it is."""
    fetchers = [pid for one in stopped for pid in one.processes("tmesh-net")]
    for _attempt in range(20):
        before = {one: one.stats()["fetched"] for one in readers}
        made = begin(next(numbers))
        deadline = time.monotonic() + SECONDS
        # A bundle's index, which is small, is whole at once.
        while not all(one.stats()["fetches"] >= least or one.stats()["fetched"] > before[one] + 1 for one in readers):
            assert time.monotonic() < deadline, "no fetch has begun"
        for pid in fetchers:
            os.kill(pid, signal.SIGSTOP)
        still(stopped, [one for one in readers if one not in stopped])
        if half(before):
            return made
        for pid in fetchers:
            os.kill(pid, signal.SIGCONT)
        for one in readers:
            for _opening in range(made[0]):
                one.ask("opened")
    raise AssertionError("none was half there as it should be")


def are_read(*homes):
    return lambda _before: all(one.stats()["keys"] for one in homes)


def reading(*readers):
    return lambda _before: all(one.stats()["fetches"] for one in readers)


def test_from_two(a, b, c, d):
    """Four machines. Two have a bundle, and a third fetches from both at once. A fourth fetches from all three, of which one
    ends meanwhile."""
    connect_all(a, b, c, d)

    def opens(reader, homes):
        def begin(number):
            name = f"weights{number}"
            digest = publish(name, homes)
            assert reader.ask("begin_to_open_name", name, SECONDS * 1000) == "ok"
            return 1, name, digest
        return begin
    # While its fetcher stands still both of the others have keys of it.
    _one, name, digest = half_there([c], 4, [c], opens(c, [a, b]), are_read(a, b))
    c.signal("tmesh-net", signal.SIGCONT)
    assert (answer := c.ask("opened")) == f"{digest} {name}", answer
    assert a.stats()["fetched"] == 0 == b.stats()["fetched"]
    assert c.ask("publish", name, REGIONS, LARGE, name) == f"ok {digest}", "the same bytes are the same name"
    a.die()
    assert (answer := d.ask("open_name", name, SECONDS * 1000)) == f"{digest} {name}", answer
    assert d.stats()["fetched"] == REGIONS + 1
    # One of the two remaining homes ends while it is read from.
    assert d.ask("clean") == "ok"
    _one, name, digest = half_there([d], 4, [d], opens(d, [b, c]), are_read(b, c))
    b.die()
    d.signal("tmesh-net", signal.SIGCONT)
    assert (answer := d.ask("opened")) == f"{digest} {name}", answer
    for one in (a, b):
        one.start()
    connect_all(a, b, c, d)
    for one in (c, d):
        one.nothing_left()


def test_home_ends(a, b, c, d):
    """A home dies while two fetch from it: both get an error and nothing of it, or all of it from another home."""
    connect_all(a, b, c, d)

    def of_one(number):
        offer, digest = a.offer(REGIONS * LARGE, f"alone{number}")
        for reader in (c, d):
            assert reader.ask("begin_to_open", 2, SECONDS * 1000, offer) == "ok"
        return 1, offer, digest

    def of_two(number):
        name = f"two{number}"
        digest = publish(name, [a, b])
        for reader in (c, d):
            assert reader.ask("begin_to_open_name", name, SECONDS * 1000) == "ok"
        return 1, name, digest
    half_there([c, d], 1, [a], of_one, reading(c, d))
    a.die()
    for one in (c, d):
        assert (answer := one.ask("opened")) == "error:gone", answer
        assert one.stats()["fetches"] == 0
        one.nothing_left()
    a.start()
    connect_all(a, b, c, d)
    _one, name, digest = half_there([c, d], 4, [a], of_two, reading(c, d))
    a.die()
    for one in (c, d):
        assert (answer := one.ask("opened")) == f"{digest} {name}", answer
    a.start()
    connect_all(a, b, c, d)
    for one in (c, d):
        one.nothing_left()


def test_pages_on_two(a, b, c, d):
    """Pages begun on one machine are followed on two. When it dies in the middle of an update both have the whole pages, and one goes on
    for the other."""
    connect_all(a, b, c, d)
    first = a.ask("pages", "chat", 80, 80, "chat")
    for one in (c, d):
        assert one.ask("follow_pages", "chat") == "ok"
    for one in (c, d):
        assert (answer := one.ask("sequence", 1)) == f"{first} 80 0", answer
    number, longer = a.ask("grow", 20).split()
    assert number == "2"
    for one in (c, d):
        assert (answer := one.ask("sequence", 2)).split()[0] == longer, answer
    a.signal("tmesh-net", signal.SIGSTOP)
    assert a.ask("grow", 40).startswith("3 ")
    for one in (c, d):
        one.send("sequence", 3)
    a.die()
    for one in (c, d):
        assert (answer := one.read()) == "error:gone", answer
        assert one.ask("sequence", 2).split()[0] == longer
    # The home's name is free, and of what c goes on with d has all but what is new.
    grown = c.ask("take_over", "chat", 5, 80, "chat")
    had, own = d.ask("go_on", 7).split()
    assert had == "100" and len({own, grown, longer}) == 3
    for one in (c, d):
        assert one.ask("sequence", 2).split()[0] == longer, "what goes on is another one"
    assert d.ask("leave_pages") == "ok" == d.ask("follow_pages", "chat")
    assert (answer := d.ask("sequence", 1)) == f"{grown} 5 100", answer
    a.start()
    connect_all(a, b, c, d)
    for one in (c, d):
        one.nothing_left()


def test_two_pairs(a, b, c, d, split, join, narrow):
    """A cut between two pairs: leases lapse on both sides, nothing goes under who reads it, and who has it serves his side, by refs and by names."""
    connect_all(a, b, c, d)
    held, held_digest = a.offer(5_000_000, "held")
    for one in (a, b, c, d):
        assert one.ask("hold", held) == held_digest
    checksum = json.loads(a.ask("json", held))["checksum"]
    offers = [one.offer(3_000_000, "both") for one in (a, b)]
    (one_home, both_digest), (other_home, _same) = offers
    first = a.ask("pages", "pairs", 30, 30, "pairs")
    for one in (c, d):
        assert one.ask("follow_pages", "pairs") == "ok"
        assert one.ask("sequence", 1) == f"{first} 30 0"

    # Values that only the home of the other side has.
    alone = [home.offer(LARGE, f"alone{home.node}") for home in (a, b)]

    def across(number):
        """Each reader fetches from both homes what these have."""
        name = f"across{number}"
        digest = publish(name, [a, b])
        for reader in (c, d):
            assert reader.ask("begin_to_open_name", name, SILENCE_MS) == "ok"
        return 1, name, digest

    def nothing_whole(before):
        return reading(c, d)(before) and all(one.stats()["fetched"] <= before[one] + 1 for one in (c, d))
    # A region that came whole before its homes were stopped stays, and is begun anew until memory ends.
    narrow("rate", "100mbit")
    _one, name, digest = half_there([c, d], 4, [a, b], across, nothing_whole)
    # Ask now, while its home is stopped. The regions that came whole before are counted a while later, and
    # look half there.
    for reader, (offer, _digest) in zip((d, c), alone):
        assert reader.ask("begin_to_open", 1, SILENCE_MS, offer) == "ok"
    split()
    narrow("delay", "0ms")
    for home in (a, b):
        home.signal("tmesh-net", signal.SIGCONT)
    for one in (c, d):
        assert (answer := one.ask("opened")) == "error:timeout", answer
        assert (answer := one.ask("opened")) == f"{digest} {name}", answer
        assert one.stats()["fetches"] == 0
    # Distribution has noticed nothing yet: it is the leases that end.
    for home in (a, b):
        eventually(lambda: home.stats()["keys"] == 0, lambda: f"an end of the leases on {home.node}: {home.stats()}")
    number, longer = a.ask("grow", 20).split()
    assert c.ask("sequence", number).split()[0] == longer
    assert a.ask("withdraw", held) == "ok"
    for one in (c, d):
        assert one.ask("drop", f"net-{checksum}") == "ok", "and it is kept no more"
    for one in (a, b, c, d):
        assert one.ask("look") == held_digest
    for home, reader in ((a, c), (b, d)):
        offer, side_digest = home.offer(2_000_000, f"side{home.node}")
        assert reader.ask("open", 2, SECONDS * 1000, offer) == side_digest
        both, _first = reader.ask("at_two_homes", one_home, other_home).split()
        assert reader.ask("open", 1, SILENCE_MS, both) == both_digest
    # A name may be another thing on the other side, as far as any side knows.
    for one in (c, d):
        assert (answer := one.ask("open_name", name, SILENCE_MS)) == "error:timeout", answer
    for one, others in ((a, (b, d)), (c, (b, d)), (b, (a, c)), (d, (a, c))):
        for other in others:
            one.ask("disconnect", other.node)
    assert (answer := d.ask("sequence", number)) == "error:gone", answer
    assert d.ask("sequence", 1).split()[0] == first
    # The same on both sides: when these meet it is one name.
    named = {publish("sides", [home], 300_000) for home in (a, b)}
    assert len(named) == 1
    named = f"{named.pop()} sides"
    for one in (c, d):
        assert (answer := one.ask("open_name", "sides", SECONDS * 1000)) == named, answer
    join()
    connect_all(a, b, c, d)
    for one in (a, b, c, d):
        assert one.ask("look") == held_digest
        assert (answer := one.ask("open_name", "sides", SECONDS * 1000)) == named, answer
    for reader, (offer, alone_digest) in zip((d, c), alone):
        eventually(lambda: reader.ask("open", 1, SILENCE_MS, offer) == alone_digest, lambda: "an open after that: " + reader.last)
    for one in (c, d):
        one.nothing_left()
