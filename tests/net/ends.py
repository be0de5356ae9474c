# SPDX-License-Identifier: MIT
"""Offers that end while they are fetched, names that two have taken, homes that are not there, for test_machines.py."""

import base64
import random
import signal

from machines import SECONDS, connect, eventually
from programs import half_fetched

LARGE = 64 << 20


def begin_to_open(reader):
    """For half_fetched(): two who open what `made` begins with."""
    def begin(made):
        assert reader.ask("begin_to_open", 2, SECONDS * 1000, made[0]) == "ok"
        return []
    return begin


def stopped(home, reader, make):
    """Begin a fetch and stop its reader half-way, while its home goes on."""
    made, _programs = half_fetched(home, reader, make, begin_to_open(reader), lambda: reader.ask("opened"))
    reader.signal("tmesh-net", signal.SIGSTOP)
    home.signal("tmesh-net", signal.SIGCONT)
    return made


def test_withdrawn_under_way(home, reader, other):
    """An offer withdrawn in the middle of a fetch: its memory is gone at once, whatever the reader does. The reader has an error and
    nothing half fetched, or the bytes of another home."""
    offer, digest = stopped(home, reader, lambda: home.offer(LARGE, f"withdrawn{random.random()}"))
    try:
        assert home.ask("release", offer) == "ok"
        assert home.regions(), "it is offered still"
        assert home.ask("withdraw", offer) == "ok"
        # The reader's fetcher has said nothing meanwhile.
        eventually(lambda: not home.regions(), lambda: "an end of what was withdrawn")
        stats = home.stats()
        assert stats["offers"] == 0 == stats["keys"], stats
    finally:
        reader.signal("tmesh-net", signal.SIGCONT)
    assert (answer := reader.ask("opened")) == "error:gone", answer
    # The keeper hears of it a moment later.
    eventually(lambda: not reader.regions(), lambda: "an end of what was half fetched")
    assert reader.ask("kept") == "0", "what was half fetched is kept"
    assert reader.stats()["fetches"] == 0
    assert reader.ask("open", 1, SECONDS * 1000, offer) == "error:not_found"

    # The same bytes at two homes, of which the one that is read from takes them back.
    def at_two():
        seed = f"two{random.random()}"
        offers = [one.offer(LARGE, seed) for one in (home, other)]
        both, first = reader.ask("at_two_homes", *(offer for offer, _digest in offers)).split()
        if first != "0":
            both, first = reader.ask("at_two_homes", offers[1][0], offers[0][0]).split()
        return both, offers[0][0], offers[0][1], offers[0] if first == "0" else offers[1]
    eventually(lambda: other.ask("connect", home.node) == "true" == other.ask("connect", reader.node), lambda: "a connection")
    fetched = reader.stats()["fetched"]
    _both, offer, digest, _first = stopped(home, reader, at_two)
    assert home.ask("withdraw", offer) == "ok"
    reader.signal("tmesh-net", signal.SIGCONT)
    assert (answer := reader.ask("opened")) == digest, answer
    assert reader.stats()["fetched"] > fetched
    other.nothing_left()


def test_names_apart(home, reader):
    """Two who do not know of each other publish different things under a name: it is taken twice until one takes it back."""
    assert reader.ask("disconnect", home.node) == "true"
    digests = {}
    for one in (home, reader):
        eventually(lambda: one.ask("publish", "apart", 2, 3000, one.node).startswith("ok "), lambda: "a name")
    digests = {one.node: one.ask("open_name", "apart", SECONDS * 1000) for one in (home, reader)}
    assert len({*digests.values()}) == 2, "each has its own"
    connect(reader, home)
    for one in (home, reader):
        eventually(lambda: one.ask("open_name", "apart", SECONDS * 1000) == "error:exists", lambda: "a name that two have")
        assert one.ask("lookup", "apart").startswith("error:exists ")
    assert reader.ask("publish", "apart", 2, 3000, "third") == "error:exists"
    assert reader.ask("unpublish", "apart") == "ok"
    for one in (home, reader):
        eventually(lambda: one.ask("open_name", "apart", SECONDS * 1000) == digests[home.node], lambda: "one who is left")
    assert home.ask("unpublish", "apart") == "ok"


def test_unknown_home(home, reader, other):
    """A home that is no node, or not connected, is an error that names it: no atom is made of it, and no connection."""
    offer, digest = home.offer(3000, "unknown")
    connected = reader.ask("open_from", other.node, offer).split()[3]
    for name in (f"nobody{random.randrange(10**9)}@127.0.0.1", f"x{random.randrange(10**9)}", other.node):
        error, message, atom, nodes = reader.ask("open_from", name, offer).split()
        message = base64.b64decode(message).decode(errors="replace")
        assert error == "not_found" and name in message and "is not connected" in message, (error, message)
        assert atom == "false" or name == other.node, name
        assert nodes == connected == "1", "a connection was made"
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest
