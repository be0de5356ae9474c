#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs beside a node open values, an open reports its progress, and nodes lie about names. Prints TAP.

    test_beside.py BUILD PYTHON
"""

import json
import signal
import subprocess
import sys

from machines import PYTHON, SECONDS, Machine, connect, epmd_here, eventually, reported
from programs import BY_C
from test_machines import play

# It also tries the forbidden accesses.
BY_PYTHON = """
import errno, sys, tmesh, tmesh.net
try:
    what = tmesh.net.open(sys.argv[1], timeout=float(sys.argv[2]))
except tmesh.Error as error:
    raise SystemExit(f"{errno.errorcode[error.errno]}: {error.strerror}")
for tensor in [what] if isinstance(what, tmesh.Tensor) else what.values():
    assert tensor.sealed and not tensor.writable
    try:
        tmesh.open(tensor.ref(), writable=True)
    except tmesh.Error:
        pass
    else:
        raise AssertionError("it was opened for writing")
    sys.stdout.buffer.write(tensor.numpy().tobytes())
"""


def programs(kind, offer, seconds):
    yield [*BY_C, kind, "ref", offer, seconds]
    yield [PYTHON, "-P", "-c", BY_PYTHON, offer, seconds]


def said(machine, *command):
    done = subprocess.run([*machine.inside, *command], env=machine.env, capture_output=True, timeout=SECONDS)
    return done.stdout if not done.returncode else b"error:" + done.stderr


def test_kept_is_not_asked_for(home, reader):
    """Memory that this machine has fetched opens in C and in Python while its node takes no questions, and when it has ended;
    not for writing."""
    offer, digest = home.offer(300_001, "kept")
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest
    text = home.ask("json", offer)
    told = json.loads(text)
    for command in ("beam.smp", "tmesh-net"):
        reader.signal(command, signal.SIGSTOP)
    try:
        for program in programs("tensor", text, "1"):
            assert (seen := reader.opened_by(*program)) == digest, (program[0], seen)
    finally:
        for command in ("beam.smp", "tmesh-net"):
            reader.signal(command, signal.SIGCONT)
    # A part of the region, as the offer says.
    part = json.dumps({**told, "offset": 1, "byte_size": 5, "shape": [5]})
    first, second = (said(reader, *program) for program in programs("tensor", part, str(SECONDS)))
    assert first == second and len(first) == 5, (first, second)
    # Past its end: the net reports the fault.
    beyond = json.dumps({**told, "offset": 300_000, "byte_size": 5, "shape": [5]})
    for program in programs("tensor", beyond, str(SECONDS)):
        assert said(reader, *program).startswith(b"error:"), program[0]
    reader.die()
    try:
        for program in programs("tensor", text, "1"):
            assert (seen := reader.opened_by(*program)) == digest, (program[0], seen)
        # Other bytes than are kept.
        for wrong in {**told, "region_bytes": 300_002}, {**told, "checksum": "0" * 32}:
            for program in programs("tensor", json.dumps(wrong), "1"):
                assert said(reader, *program).startswith(b"error:ENOENT: "), (wrong, program[0])
    finally:
        reader.start()
    connect(reader, home)


def test_kept_bundle(home, reader):
    """A bundle too, all of it or by the net."""
    name = "bundle"
    answer, digest = home.ask("publish", name, 3, 70_000, "bundle").split()
    assert answer == "ok"
    offer = home.ask("json_of", name)
    assert reader.ask("open_name", name, SECONDS * 1000) == f"{digest} bundle"
    outs = []
    for command in ("beam.smp", "tmesh-net"):
        reader.signal(command, signal.SIGSTOP)
    try:
        for program in programs("bundle", offer, "1"):
            outs.append(said(reader, *program))
    finally:
        for command in ("beam.smp", "tmesh-net"):
            reader.signal(command, signal.SIGCONT)
    assert all(len(out) > 3 * 70_000 for out in outs), [out[:60] for out in outs]
    # One of its regions is dropped: the missing one is fetched again.
    fetched = reader.stats()["fetched"]
    assert reader.ask("drop", "net-" + json.loads(offer)["shards"][2]["checksum"]) == "ok"
    for program, out in zip(programs("bundle", offer, str(SECONDS)), outs):
        assert said(reader, *program) == out, program[0]
    assert reader.stats()["fetched"] == fetched + 1


def test_told(home, reader):
    """An open tells how far it is, of each region until all of it is here, and nothing of what is here already."""
    offer, _digest = home.offer(5_000_001, "told")
    answer = reader.ask("open_told", "ref", offer).split()
    assert answer[:4] == ["ok", "1", "true", "5000001"], answer
    assert reader.ask("open_told", "ref", offer).split() == ["ok", "0", "true", "0", "0"], "it is kept"
    small, _digest = home.offer(1000, "small")
    assert reader.ask("open_told", "ref", small).split() == ["ok", "1", "true", "1000", "1"]
    answer, _digest = home.ask("publish", "told", 4, 200_000, "told").split()
    assert answer == "ok"
    answer = reader.ask("open_told", "name", "told").split()
    assert answer[:3] == ["ok", "5", "true"], "4 regions and the index"


def test_lies_of_names(home, reader):
    """A node with false records of a name is passed over, and is an error if it is the only one. Only an offer's home ends the
    offer."""
    offer, digest = home.offer(3000, "mine")
    assert reader.ask("end_elsewhere", home.node, offer) == "access 0", "an offer is its home's, and what is open there too"
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest
    answer, digest = home.ask("publish", "llama", 2, 3000, "names").split()
    assert answer == "ok"
    third = machines_of["third"]
    for one in (home, reader):
        connect(third, one)
    assert third.ask("lie_of_names") == "ok"
    try:
        eventually(lambda: "nobodys" in reader.ask("names").split(), lambda: "a name")
        for _round in range(6):
            assert reader.ask("open_name", "llama", SECONDS * 1000) == f"{digest} names"
            assert reader.ask("open_name", "nobodys", SECONDS * 1000) == "error:protocol"
            assert reader.ask("publish", "other", 1, 100, "x") == "error:protocol"
    finally:
        assert third.ask("honest") == "ok"
    eventually(lambda: reader.ask("open_name", "nobodys", 1000) == "error:not_found", lambda: "an end of the lies")


machines_of = {}


def main():
    daemon, port = epmd_here()
    try:
        for name in ("home", "reader", "third"):
            machines_of[name] = Machine(name, "127.0.0.1", None, port)
        home, reader, _third = machines_of.values()
        connect(reader, home)
        play("beside", home, reader, [(test, ()) for test in (test_kept_is_not_asked_for, test_kept_bundle, test_told,
                                                              test_lies_of_names)])
    finally:
        for machine in machines_of.values():
            machine.end()
        daemon.kill()
        daemon.wait()
    print(f"1..{len(reported)}")
    sys.exit(1 if any(reported) else 0)


if __name__ == "__main__":
    main()
