#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tmesh.Net between machines: nodes with runtime directories of their own, first on the loopback, then in
network namespaces (topology.sh). Prints TAP.

    test_machines.py BUILD PYTHON [PLACE...]

A place is one of those at the end of this file; by default all that need nothing of the kernel but namespaces.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import four
from alone import test_alone, test_full_disks
from ends import test_names_apart, test_unknown_home, test_withdrawn_under_way
from machines import (BUILD, EMULATED, FULL, HERE, SECONDS, Machine, connect, epmd, epmd_here, eventually, machines_apart, report,
                      reported)
from programs import half_fetched, in_a_folder, test_hostile_programs, test_programs, test_waiters_gone
from storms import storm_of_followers
from wire import Wire


def test_open(home, reader):
    """A ref opens like any other, and its bytes come once."""
    offer, digest = home.offer(9_000_001, "open")
    assert reader.ask("open", 8, SECONDS * 1000, offer) == digest
    assert reader.stats()["fetched"] == 1
    assert reader.ask("open", 2, SECONDS * 1000, offer) == digest, "what is kept opens again"
    assert reader.stats()["fetched"] == 1
    assert home.ask("open", 1, SECONDS * 1000, offer) == digest, "at home it opens too"
    assert home.stats()["fetched"] == 0


def test_beside(home, reader):
    """A region that one process has open opens in others as a local ref, without a question to the net; when it is gone, the
    net is asked."""
    offer, digest = home.offer(100_000, "beside")
    assert reader.ask("hold", offer) == digest
    fetched = reader.stats()["fetched"]
    assert reader.ask("open_beside", SECONDS * 1000, offer) == digest
    assert reader.ask("let_go") == "ok"
    # It hears a moment later that no process has it any more.
    eventually(lambda: reader.ask("open_beside", 10_000, offer) == "asks", lambda: "an end of what was open")
    # One who comes and goes takes it from no other.
    assert reader.ask("hold", offer) == digest
    assert reader.ask("open", 3, SECONDS * 1000, offer) == digest == reader.ask("open_beside", SECONDS * 1000, offer)
    assert reader.stats()["fetched"] == fetched, "it was kept"
    assert reader.ask("clean") == "ok"

    # The last release is heard a moment later, too. Until then an open needs no fetch.
    def asks_the_net():
        assert reader.ask("open", 1, SECONDS * 1000, offer) == digest
        return reader.stats()["fetched"] == fetched + 1

    eventually(asks_the_net, lambda: "a fetch after the last release")


def test_home_is_named(home, reader):
    """An ordinary open of a ref from elsewhere says where its home is."""
    import base64
    offer, _digest = home.offer(1000, "named")
    what, message = reader.ask("plain", offer).split()
    assert what == "not_found" and home.node.encode() in base64.b64decode(message)


def test_withdrawn(home, reader):
    offer, _digest = home.offer(5000, "withdrawn")
    assert home.ask("withdraw", offer) == "ok"
    assert home.ask("withdraw", offer) == "error not_found"
    assert reader.ask("open", 1, SECONDS * 1000, offer) == "error:not_found"


def test_names(home, reader, other):
    """A bundle by name, from two machines and from the one that is left; other bytes are refused."""
    eventually(lambda: other.ask("connect", home.node) == "true" == other.ask("connect", reader.node), lambda: "a connection")
    answer, digest = home.ask("publish", "llama", 12, 300_000, "llama").split()
    assert answer == "ok" and other.ask("publish", "llama", 12, 300_000, "other") == "error:exists"
    assert other.ask("publish", "llama", 12, 300_000, "llama") == f"ok {digest}", "the same bytes are the same name"
    assert home.ask("publish", "llama", 12, 300_000, "llama") == "error:exists", "once a node"
    # By the groups alone, of which it hears a moment later.
    eventually(lambda: reader.ask("names") == "llama", lambda: "a name")
    before = reader.stats()["fetched"]
    assert reader.ask("open_name", "llama", SECONDS * 1000) == f"{digest} llama"
    assert reader.stats()["fetched"] == before + 13, "12 regions and the index"
    assert reader.ask("open_name", "llama", SECONDS * 1000) == f"{digest} llama"
    assert reader.stats()["fetched"] == before + 13, "what is kept is not fetched"
    assert home.ask("open_name", "llama", SECONDS * 1000) == f"{digest} llama", "at home nothing is fetched"
    assert home.stats()["fetched"] == 0 == other.stats()["fetched"]
    reader.ask("clean")
    # Its fetcher offers them again; until then the other one has them.
    home.kill("tmesh-net")
    assert reader.ask("open_name", "llama", SECONDS * 1000) == f"{digest} llama"
    reader.ask("clean")
    home.die()
    assert reader.ask("open_name", "llama", SECONDS * 1000) == f"{digest} llama"
    home.start()
    for machine in (reader, other):
        connect(machine, home)
    assert other.ask("unpublish", "llama") == "ok" and other.ask("unpublish", "llama") == "error:not_found"
    assert reader.ask("open_name", "llama", SECONDS * 1000) == "error:not_found"
    assert home.ask("publish_briefly", "brief") == "ok"
    eventually(lambda: reader.ask("open_name", "brief", 5000) == "error:not_found", lambda: "the end of a name")
    other.nothing_left()


def test_channel(home, reader):
    """A channel's name is its token on its own machine, and an error that says where it is elsewhere."""
    import base64
    answer, token = home.ask("publish_channel", "frames").split()
    assert answer == "ok" and home.ask("lookup", "frames") == f"ok {token}"
    what, message = reader.ask("lookup", "frames").split()
    assert what == "error:unsupported" and home.node.encode() in base64.b64decode(message)
    for machine in (home, reader):
        assert machine.ask("open_name", "frames", 1000) == "error:invalid"
    assert reader.ask("publish_channel", "frames") == "error:exists", "another one"
    assert home.ask("unpublish", "frames") == "ok"
    assert reader.ask("publish_channel", "frames").startswith("ok ")
    assert home.ask("lookup", "frames").startswith("error:unsupported ")


def test_rights(home, reader):
    """A guessed offer gives nothing, a received one can be read, and neither can be ended or written."""
    offer, digest = home.offer(5000, "rights")
    # The module sees the token alone, which does not say that its memory is sealed.
    assert reader.ask("without_rights", offer) in ("not_found sealed not_found", "not_found access not_found")
    assert reader.ask("withdraw", offer) == "error not_found"
    assert reader.ask("clean") == "ok"
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest


def test_busy(home, reader):
    """A home that has no key left for a reader is asked again: an error by the reader's deadline, or the bytes."""
    offer, digest = home.offer(100_000, "busy")
    assert reader.ask("take_keys", home.node, offer) == "64"
    answer = reader.ask("open", 1, 5000, offer)
    assert answer == "error:limit_exceeded", answer
    assert reader.ask("open_and_give_back", SECONDS * 1000, offer) == digest


def test_stream(home, reader):
    """A stream is followed from another node: its tensors in order, so many fetched ahead; tensors that are not popped go
    back."""
    digests = home.ask("feed", "batches", 8, 300_000, "stream").split()
    fetched = reader.stats()["fetched"]

    # Each value has its tensor, and a bundle's index and region.
    def ahead(count):
        eventually(lambda: reader.stats().get("fetched") == fetched + 3 * count, lambda: f"{count} values: {reader.stats()}, {fetched}")
    assert reader.ask("follow", "batches", 2) == "ok"
    ahead(2)
    assert reader.ask("pop", 3).split() == digests[:3]
    ahead(5)
    # The last one is dropped after it was counted.
    eventually(lambda: reader.ask("kept") == "0", lambda: "an end of what passes by: it is not kept")
    assert reader.ask("unfollow") == "ok"
    eventually(lambda: home.stats().get("offers") == 0, lambda: "an end of the offers")
    assert reader.stats()["fetched"] == fetched + 15, "no more than two are fetched ahead"
    # The fourth and the fifth again; and the node's end behind the last one that was fetched.
    assert reader.ask("follow", "batches", 3) == "ok"
    assert reader.ask("pop", 4).split() == digests[3:7]
    ahead(5 + 5)
    home.die()
    assert reader.ask("pop", 3).split() == [digests[7], "error:gone", "error:gone"]
    home.start()
    connect(reader, home)


def test_pages(home, reader):
    """A sequence of pages goes on elsewhere: only what is missing comes, whole or not at all, and stays when the home is gone."""
    first = home.ask("pages", "first", 80, 30, "first")
    assert reader.ask("follow_pages", "first") == "ok"
    assert reader.ask("sequence", 1) == f"{first} 80 0"
    # Another one begins with the same tokens.
    second = home.ask("pages", "second", 90, 30, "second")
    assert reader.ask("follow_pages", "second") == "ok"
    assert reader.ask("sequence", 1) == f"{second} 60 30"
    number, longer = home.ask("grow", 20).split()
    assert number == "2" and reader.ask("sequence", 2) == f"{longer} 80 120"
    assert reader.ask("kept") == "0", "the pool has them"
    # A follower of another life finds all of them in the pool.
    assert reader.ask("leave_pages") == "ok" == reader.ask("follow_pages", "second")
    assert reader.ask("sequence", 1) == f"{longer} 0 110"
    had, own = reader.ask("go_on", 5).split()
    assert had == "110" and own != longer and reader.ask("sequence", 1) == f"{longer} 0 110", "its own is no other's"
    # The home's fetcher is killed: it begins anew.
    home.kill("tmesh-net")
    number, longer = home.ask("grow", 10).split()
    assert number == "3" and reader.ask("sequence", 3).split()[0] == longer
    # The first has 80 pages, the second 120, of which they have 30 in common. A table that begins anew is built beside the old one.
    whole = 80 + 120 - 30
    eventually(lambda: int(reader.ask("held_pages")) == whole, lambda: "an end of what was built anew")
    # The home dies while its pages are on their way: that is an error, and what is whole stays.
    for fetcher in home.processes("tmesh-net"):
        os.kill(fetcher, signal.SIGSTOP)
    assert home.ask("grow", 40).startswith("4 ")
    reader.send("sequence", 4)
    home.die()
    assert reader.read() == "error:gone"
    assert reader.ask("sequence", 3).split()[0] == longer
    eventually(lambda: int(reader.ask("held_pages")) == whole, lambda: "an end of what was half there")
    home.start()
    connect(reader, home)


def test_many(home, reader):
    offers = [home.offer(700_000 + number, f"many{number}") for number in range(6)]
    for offer, digest in offers:
        assert reader.ask("open", 3, SECONDS * 1000, offer) == digest
    eventually(lambda: home.stats().get("keys") == 0, lambda: "the end of the leases")


def test_fetcher_killed(home, reader):
    """The home's and the reader's: a waiting process gets an error, and both begin anew."""
    for victim in (home, reader):
        offer, digest = home.offer(64 << 20, f"fetcher{victim.node}")
        offers = home.stats()["offers"]
        reader.send("open", 2, 5000, offer)
        time.sleep(random.random() * 0.3)
        killed = {*victim.processes("tmesh-net")}
        victim.kill("tmesh-net")
        # Also the next one, as soon as it is there: offers outlive fetchers that end young.
        eventually(lambda: {*victim.processes("tmesh-net")} - killed, lambda: "a new fetcher")
        victim.kill("tmesh-net")
        result = reader.read()
        # If two open it, one may have it already.
        assert {*result.split()} <= {digest, "error:gone", "error:timeout", "error:not_found"}, result
        # An offer is made again by the new fetcher, also one that the reader has already.
        eventually(lambda: home.stats().get("offers") == offers, lambda: f"{offers} offers")
        eventually(lambda: reader.ask("open", 1, 20_000, offer) == digest, lambda: "an open after that: " + reader.last)


LIES = [
    ("{:bytes, String.duplicate(<<1>>, 3000)}", "protocol"), ("{:bytes, <<1>>}", "protocol"), ("{:bytes, <<>>}", "protocol"),
    ("{:bytes, String.duplicate(<<1>>, 3001)}", "protocol"), ("{:bytes, 5}", "protocol"), (":bytes", "protocol"), ("{:ok, 1, 2}", "protocol"),
    ('{:ok, "0123456789abcdef", "address"}', "invalid"), ("{:error, 1, 2}", "protocol"), ('{:error, :not_found, "no"}', "not_found"),
    # Answers that the fetcher could not read at all, or not at such a length.
    ('{:ok, "key", "address"}', "protocol"), ('{:ok, "0123456789ABCDEF", "address"}', "protocol"),
    ('{:ok, String.duplicate(<<255>>, 16), "address"}', "protocol"), ('{:ok, String.duplicate("0", 200_000), "address"}', "protocol"),
    ('{:ok, "0123456789abcdef", <<255>>}', "protocol"), ('{:ok, "0123456789abcdef", "a\\0b"}', "protocol"),
    ('{:ok, "0123456789abcdef", ""}', "protocol"), ('{:ok, "0123456789abcdef", String.duplicate("0", 200_000)}', "protocol"),
    ("{:bytes, String.duplicate(<<1>>, 100_000)}", "protocol"), ("{:error, :gone, <<255>>}", "protocol"),
    ('{:error, :gone, String.duplicate("x", 5_000)}', "protocol"),
    # Whole messages: a home that is no process, and one of another version.
    ('fn number -> {:tmesh_net, 1, {:answer, "home", number, {:ok, "0123456789abcdef", "address"}}} end', "protocol"),
    ('fn number -> {:tmesh_net, 1, {:answer, nil, number, {:bytes, String.duplicate(<<1>>, 3000)}}} end', "protocol"),
    ("fn number -> {:tmesh_net, 2, {:answer, self(), number, :new, :words}} end", "unsupported"),
    ("fn number -> {:tmesh_net, :next, {:answer, nil, number}} end", "unsupported"),
]
# Larger than what an answer has room for.
LARGE_LIES = [("{:bytes, String.duplicate(<<1>>, 100_000)}", "protocol"), ('{:bytes, "less"}', "protocol")]


def test_lies(home, reader):
    """A home that answers garbage, or other bytes than it offers: an error, and the reader's net goes on."""
    import base64
    reader.offer(3000, "mine")
    for size, lies in ((3000, LIES), (100_000, LARGE_LIES)):
        offer, _digest = home.offer(size, "lies")
        for answer, error in lies:
            assert home.ask("lie", base64.b64encode(answer.encode()).decode()) == "ok"
            result = reader.ask("open", 1, SECONDS * 1000, offer)
            assert home.ask("honest") == "ok"
            assert result == f"error:{error}", (answer, result)
            # The same net as before: its offers stand.
            assert reader.stats().get("offers") == 1, answer


def test_version(home, reader):
    """A question in another version is answered, so that no program waits for the end of its patience."""
    offer, digest = home.offer(3000, "version")
    for version in "2", "0", "1.5", ":next":
        assert reader.ask("lease_in", version, home.node, offer) == "unsupported is of version 1"
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest


def test_deadline(home, reader):
    """An open with a deadline waits no longer, although the home has more time: the half fetched part goes, unless another
    process waits."""
    large = 128 << 20
    offer, digest = home.offer(large, "deadline")
    name = "deadline"
    assert home.ask("publish", name, 2, large, name).startswith("ok ")
    home.signal("tmesh-net", signal.SIGSTOP)
    try:
        # Open a tensor, a bundle, and one of two.
        assert reader.ask("open_by", 500, "ref", offer) == "error:timeout"
        assert reader.ask("open_by", 500, "name", name) == "error:timeout"
        eventually(lambda: not reader.stats()["fetches"], lambda: "an end of the fetch")
    finally:
        home.signal("tmesh-net", signal.SIGCONT)
    for one in (home, reader):
        eventually(lambda: one.stats()["keys"] == 0, lambda: "an end of the leases")

    def wait(made):
        assert reader.ask("wait", 1, "ref", made[0]) == "ok"
        return []
    (offer, digest), _programs = half_fetched(home, reader, lambda: home.offer(large, f"deadline{random.random()}"), wait)
    assert reader.ask("open_by", 500, "ref", offer) == "error:timeout"
    assert reader.stats()["fetches"] == 1, "another waits"
    assert reader.ask("kill_waiters", 1) == "0"
    eventually(lambda: not reader.stats()["fetches"], lambda: "an end of the fetch")
    home.signal("tmesh-net", signal.SIGCONT)
    # A home that has no key left, and one that answers.
    assert reader.ask("take_keys", home.node, offer) == "64"
    assert reader.ask("open_by", 500, "ref", offer) == "error:timeout"
    assert reader.ask("open_and_give_back", SECONDS * 1000, offer) == digest
    assert reader.ask("open_by", SECONDS * 1000, "ref", offer) == f"open {large}"


def storm(home, reader, rounds, rng):
    """A process is killed at a random moment of a fetch: an error or the right bytes, and nothing is left."""
    for number in range(rounds):
        offer, digest = home.offer(rng.choice((1 << 20, 24 << 20, 48 << 20)), f"storm{number}{rng.random()}")
        reader.send("open", 2, 3000, offer)
        time.sleep(rng.random() * 0.25)
        victim = rng.choice(("home", "home's fetcher", "reader's fetcher", "reader"))
        if victim == "home":
            home.die()
        elif victim == "reader":
            reader.die()
        else:
            (home if victim == "home's fetcher" else reader).kill("tmesh-net")
        if victim != "reader":
            result = reader.read()
            assert result == digest or result in ("error:gone", "error:timeout", "error:not_found", "error:not_started"), \
                f"round {number}, {victim}: {result}"
        for one in (home, reader):
            if one.beam.poll() is not None:
                one.start()
        connect(reader, home)
        for one in (home, reader):
            one.nothing_left()


def test_partition(home, reader, cut):
    """The cable is pulled in the middle: both sides end by their clocks, and who has the memory open keeps it."""
    offer, digest = home.offer(5_000_000, "held")
    for machine in (home, reader):
        assert machine.ask("hold", offer) == digest
    moving, moved = home.offer(256 << 20, "partition")
    # Its reader on the home's own machine.
    assert home.ask("open", 1, SECONDS * 1000, moving) == moved
    reader.send("open", 1, 1000, moving)
    time.sleep(0.2)
    cut("cut")
    result = reader.read()
    assert result in (moved, "error:timeout", "error:gone"), result
    # As one sees it on that machine: 10 s without progress.
    eventually(lambda: home.stats().get("keys") == 0, lambda: "the end of the lease")
    eventually(lambda: reader.stats().get("fetches") == 0, lambda: "the end of the fetch")
    assert home.ask("withdraw", offer) == "ok"
    for machine in (home, reader):
        assert machine.ask("look") == digest
    assert home.ask("open", 1, SECONDS * 1000, moving) == moved
    cut("join")
    connect(reader, home)
    eventually(lambda: reader.ask("open", 1, 20_000, moving) == moved, lambda: "an open after that: " + reader.last)
    for machine in (home, reader):
        assert machine.ask("look") == digest


def test_round_trips(home, reader, wire):
    """A small ref is open after one round trip, a small bundle by name after two; three are the bound."""
    def trips(*words):
        eventually(lambda: not home.stats().get("keys"), lambda: "an end of the leases")
        # The messages that are still on their way, and those sent again after that.
        eventually(wire.is_quiet, lambda: "silence on the wire")
        wire.begin()
        answer = reader.ask(*words)
        return wire.trips(1), answer

    told = {}
    for size in 1, 4096, 65536:
        offer, digest = home.offer(size, f"trips{size}")
        told[size], answer = trips("open", 1, SECONDS * 1000, offer)
        assert answer == digest
        assert not wire.connections(), "an answer has room for it"
    # A larger one takes one more: the lease, with whose answer key and address come, and three of a
    # connection: TCP, libfabric's greeting, the read. A look whether a listener is there is another one,
    # which carries no message.
    offer, digest = home.offer(65537, "trips65537")
    more, answer = trips("open", 1, SECONDS * 1000, offer)
    assert answer == digest and wire.before_connecting() == {0, 1}, "the connection waits for the lease's answer"
    said = [ends for ends in wire.connections() if len(ends) > 2]
    assert said == [[1, 0] * 3], (more, wire.connections())
    told[65537] = 1 + 3
    _ok, digest = home.ask("publish", "trips", 3, 1000, "trips").split()
    told["name"], answer = trips("open_name", "trips", SECONDS * 1000)
    assert answer == f"{digest} trips"
    print(f"# round trips: {told}", flush=True)
    assert max(told[1], told[4096], told[65536], told["name"]) <= 3, told


def test_slow_reader(home, reader):
    """A reader that takes nothing keeps its home from nothing, however much it has asked for."""
    offer, digest = home.offer(65536, "slow")
    assert reader.ask("ask_often", home.node, 1000, offer) == "ok"
    reader.signal("beam.smp", signal.SIGSTOP)
    try:
        for number in range(10):
            other, _digest = home.offer(65536, f"beside{number}")
            assert home.ask("withdraw", other) == "ok"
        # While the reader's answers are still on their way, and not after its connection was given up.
        assert home.ask("connect", reader.node) == "true"
    finally:
        reader.signal("beam.smp", signal.SIGCONT)
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest


def test_tls(home, reader, strangers):
    """By TLS distribution: an open by name; a node without a certificate, or with a stranger's, is not let in."""
    for stranger in strangers:
        for machine in (home, reader):
            assert stranger.ask("connect", machine.node) == "false", stranger.node
            assert machine.ask("connect", stranger.node) == "false", stranger.node
    answer, digest = home.ask("publish", "secret", 3, 500_000, "secret").split()
    assert answer == "ok" and reader.ask("open_name", "secret", SECONDS * 1000) == f"{digest} secret"
    for stranger in strangers:
        assert stranger.ask("open_name", "secret", 1000) == "error:not_found"


def play(place, home, reader, tests):
    for test, args in tests:
        name = f"{place}: {(test.__doc__ or test.__name__[5:]).splitlines()[0]}"
        try:
            test(home, reader, *args)
            for one in (home, reader):
                one.nothing_left()
            report(name)
        except Exception:
            said = "".join(f"\n{one.node} said at last: {one.last[:200]}" for one in (home, reader))
            report(name, traceback.format_exc() + said)
            return


def on_loopback():
    daemon, port = epmd_here()
    machines = []
    try:
        for name in ("home", "reader", "other"):
            machines.append(Machine(name, "127.0.0.1", None, port))
        connect(machines[1], machines[0])
        seed = int(os.environ.get("TMESH_TEST_SEED", random.randrange(10**9)))
        print(f"# TMESH_TEST_SEED={seed}", flush=True)
        play("loopback", *machines[:2], [
            (test_open, ()), (test_beside, ()), (test_home_is_named, ()), (test_withdrawn, ()), (test_many, ()),
            (test_unknown_home, machines[2:]), (test_names_apart, ()), (test_names, machines[2:]), (test_withdrawn_under_way, machines[2:]),
            (test_channel, ()), (test_rights, ()), (test_busy, ()), (test_slow_reader, ()), (test_lies, ()), (test_version, ()), (test_stream, ()), (test_pages, ()), (test_programs, ()), (test_hostile_programs, ()), (test_waiters_gone, ()), (test_deadline, ()),
            (test_fetcher_killed, ()),
            (storm, (300 if FULL else 12, random.Random(seed))),
            (storm_of_followers, (300 if FULL else 4, random.Random(seed)))])
    finally:
        for machine in machines:
            machine.end()
        daemon.kill()
        daemon.wait()


def with_tls():
    daemon, port = epmd_here()
    machines = []
    directory = Path(tempfile.mkdtemp(prefix="tmesh-net-tls-"))
    try:
        subprocess.run(["elixir", str(HERE / "certificates.exs"), str(directory), "127.0.0.1"], check=True)
        for name, tls in (("home", "good"), ("reader", "good"), ("strange", "strange"), ("plain", None)):
            machines.append(Machine(name, "127.0.0.1", None, port, tls and directory / f"{tls}.conf"))
        connect(machines[1], machines[0])
        play("TLS", *machines[:2], [(test_tls, (machines[2:],))])
    finally:
        for machine in machines:
            machine.end()
        daemon.kill()
        daemon.wait()
        shutil.rmtree(directory, ignore_errors=True)


def in_namespaces():
    with machines_apart("namespaces", each_alone=True) as made:
        if made:
            home, reader, do = made
            play("namespaces", home, reader, [(test_alone, ()), (test_open, ()), (test_many, ()), (test_full_disks, ()), (test_fetcher_killed, ()),
                                              (test_partition, (lambda what: do(what, "1"),))])


def on_slow_wire():
    """Run the tests on a slow wire. Its delay separates the messages sent after an answer from those sent
    before."""
    names = [f"tmw{os.getpid()}-{number}" for number in (1, 2)]
    machines, daemons, wire = [], [], None
    try:
        try:
            for name in names:
                subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True, text=True)
            wire = Wire(names, 0.01)
        except (OSError, subprocess.CalledProcessError) as error:
            report("slow wire", skip=f"no TAP devices in network namespaces here: {' '.join(str(error).split())}")
            return
        for number, name in enumerate(names, 1):
            daemons.append(epmd(["ip", "netns", "exec", name], 4369))
            machines.append(Machine("home" if number == 1 else "reader", f"10.77.0.{number}", name, 4369))
        connect(machines[1], machines[0])
        play("slow wire", *machines, [(test_round_trips, (wire,))])
    finally:
        for machine in machines:
            machine.end()
        for daemon in daemons:
            daemon.kill()
            daemon.wait()
        if wire:
            wire.close()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def in_four_namespaces():
    backend = "kernel" if EMULATED else "memfd"
    with machines_apart("four namespaces", backends=(backend,) * 4, each_alone=True, names="abcd", lease_ms=four.LEASE_MS) as made:
        if made:
            a, b, c, d, do = made

            def join():
                for number in "2", "4":
                    do("join", number)

            def narrow(*weather):
                """Set the weather for packets to the readers, in words of netem's that every guest has."""
                for number in ("3", "4") if EMULATED else ():
                    do("shape", number, *weather)
            play("four namespaces", a, b, [(four.test_from_two, (c, d)), (four.test_home_ends, (c, d)), (four.test_pages_on_two, (c, d)),
                                           (four.test_two_pairs, (c, d, lambda: do("split", "2", "4"), join, narrow))])


# The words of netem for the packets that go to the reader.
WEATHER = [
    "delay 20ms", "delay 10ms 5ms distribution normal", "loss 2%", "delay 10ms reorder 25% 50%", "duplicate 2%",
    "delay 5ms loss 1% duplicate 1% reorder 25% 50% rate 50mbit",
]


def test_weather(home, reader, do):
    """Loss, delay, another order, copies and little room on the way: the bytes are right, in the end."""
    for number, weather in enumerate(WEATHER):
        for machine in "1", "2":
            do("shape", machine, *weather.split())
        offer, digest = home.offer(4_000_001, f"weather{number}")
        eventually(lambda: reader.ask("open", 2, 60_000, offer) == digest, lambda: f"an open with {weather}")
    # It gets worse while the bytes move, to nothing, and well again.
    offer, digest = home.offer(24 << 20, "storm")
    for weather in "rate 50mbit", "loss 30%", "loss 100%":
        do("shape", "2", *weather.split())
        reader.send("open", 1, 2000, offer)
        result = reader.read()
        assert result in (digest, "error:timeout", "error:gone"), f"{weather}: {result}"
    for machine in "1", "2":
        do("shape", machine, "delay", "0ms")
    connect(reader, home)
    eventually(lambda: reader.ask("open", 1, 60_000, offer) == digest, lambda: "an open after that: " + reader.last)


def in_weather(backends=("memfd", "memfd")):
    place = f"netem, {' and '.join(backends)}"
    with machines_apart(place, more=[("shape", "1", "delay", "0ms")], backends=backends) as made:
        if made:
            home, reader, do = made
            play(place, home, reader, [(test_open, ()), (test_weather, (do,)), (test_fetcher_killed, ())])


def test_tunnel(home, reader, inside):
    """Fetched bytes go by the tunnel."""
    def received():
        words = subprocess.run([*inside, "wg", "show", "wg0", "transfer"], capture_output=True, text=True, check=True)
        return int(words.stdout.split()[1])
    before = received()
    offer, digest = home.offer(3_000_000, "tunnel")
    assert reader.ask("open", 1, 60_000, offer) == digest
    assert received() - before > 3_000_000


def in_wireguard(backends=("memfd", "memfd")):
    place = f"WireGuard, {' and '.join(backends)}"
    with machines_apart(place, network="10.78.0", more=[("tunnel", "2")], backends=backends) as made:
        if made:
            home, reader, do = made
            play(place, home, reader, [(test_open, ()), (test_tunnel, (reader.inside,)), (test_fetcher_killed, ()),
                                       (test_partition, (lambda what: do(what, "1"),))])


def in_guest():
    """With the module, by which one machine has its memory, or both."""
    both = ("kernel", "kernel") if EMULATED else ("memfd", "memfd")
    in_weather(both)
    in_wireguard((both[0], "memfd"))


# Beside tcp, where this libfabric has them: over TCP in another way, and over shared memory.
PROVIDERS = "net", "shm"


def has_provider(provider):
    """The fetcher itself says whether it is there."""
    with tempfile.TemporaryDirectory(prefix="tmesh-net-") as directory:
        said = subprocess.run([str(BUILD / "tmesh-net"), "--address", "127.0.0.1", "--provider", provider], stdin=subprocess.DEVNULL,
                              capture_output=True, env={**os.environ, "TMESH_BACKEND": "memfd", "TMESH_RUNTIME_DIR": directory})
    return said.returncode == 0, said.stderr.decode().strip()


def by_other_providers():
    for provider in PROVIDERS:
        there, why = has_provider(provider)
        if not there:
            assert "libfabric has no provider" in why, why
            report(provider, skip=why)
            continue
        tests = [(test_open, ()), (test_many, ()), (test_withdrawn, ()), (test_rights, ()), (test_busy, ())]
        # A process killed while it reads by shared memory can leave a lock of libfabric's there, for which
        # the other one waits for ever.
        if provider != "shm":
            tests += [(test_stream, ()), (test_pages, ()), (test_fetcher_killed, ()), (storm, (30 if FULL else 4, random.Random(provider)))]
        os.environ["TMESH_TEST_PROVIDER"] = provider
        daemon, port = epmd_here()
        machines = []
        try:
            for name in ("home", "reader"):
                machines.append(Machine(name, "127.0.0.1", None, port))
            connect(machines[1], machines[0])
            play(provider, *machines, tests)
        finally:
            del os.environ["TMESH_TEST_PROVIDER"]
            for machine in machines:
                machine.end()
            daemon.kill()
            daemon.wait()


PLACES = {place.__name__: place for place in (in_a_folder, on_loopback, with_tls, by_other_providers, in_namespaces, in_four_namespaces, on_slow_wire, in_guest)}

if __name__ == "__main__":
    for place in sys.argv[3:] or [name for name in PLACES if name != "in_guest"]:
        try:
            PLACES[place]()
        except Exception:
            report(place, traceback.format_exc())
    print(f"1..{len(reported)}")
    sys.exit(any(reported))
