# SPDX-License-Identifier: MIT
"""Programs in C and Python that open by their machine's net, and hostile ones, for test_machines.py. The program in C is
examples/c/net_open.c."""

import os
import random
import signal
import socket
import struct
import subprocess
import tempfile

from machines import BUILD, PYTHON, SECONDS, connect, eventually, report, still

BY_C = [str(BUILD / "tests/net/net_open")]
PROGRAM = """
import sys, tmesh.net
kind, how, text, *seconds = sys.argv[1:]
try:
    opened = (tmesh.net.open_name if how == "name" else tmesh.net.open)(text, timeout=float(*seconds or [600]))
except tmesh.Error as error:
    import errno
    raise SystemExit(f"{errno.errorcode[error.errno]}: {error.strerror}")
write = sys.stdout.buffer.write
if kind == "bundle":
    for name, tensor in opened.items():
        write(name.encode() + bytes(memoryview(tensor)))
else:
    write(bytes(memoryview(opened)))
"""
BY_PYTHON = [PYTHON, "-P", "-c", PROGRAM]


def test_programs(home, reader):
    """C and Python programs open by their machine's net: refs and names, from elsewhere and at home."""
    offer, digest = home.offer(3_000_001, "programs")
    before, at_home = reader.stats()["fetched"], home.stats()["fetched"]
    json = home.ask("json", offer)
    _ok, bundle = home.ask("publish", "programs", 4, 200_000, "programs").split()
    for program in (BY_C, BY_PYTHON):
        for machine in (reader, home):
            assert machine.opened_by(*program, "tensor", "ref", json, str(SECONDS)) == digest
            assert machine.opened_by(*program, "bundle", "name", "programs", str(SECONDS)) == bundle
        # One fetch for both programs, and for Elixir.
        assert reader.stats()["fetched"] == before + 6 and home.stats()["fetched"] == at_home
        assert reader.ask("open", 1, SECONDS * 1000, offer) == digest
        wrong = json.replace('"shape":[3000001]', '"shape":[3000002]')
        assert wrong != json
        for text, error in ((wrong, "EPROTO"), ("{", "EPROTO"), ("[]", "EPROTO"), ("{}", "EPROTO")):
            assert reader.opened_by(*program, "tensor", "ref", text).startswith(f"error:{error}: "), text
        for text, error in (("nobody", "ENOENT"), ("x" * 256, "EINVAL")):
            assert reader.opened_by(*program, "bundle", "name", text).startswith(f"error:{error}: "), text
    # A fetched value is kept, and opens without a net; one that was not fetched does not.
    json = home.ask("json", home.offer(1000, "unfetched")[0])
    reader.kill("beam.smp")
    reader.beam.wait()
    for program in (BY_C, BY_PYTHON):
        why = reader.opened_by(*program, "tensor", "ref", json)
        assert why.startswith("error:ENOENT: ") and home.node in why, why
    reader.start()
    connect(reader, home)


def test_hostile_programs(home, reader):
    """Programs that say nothing, garbage, half a message or much, or go in the middle, keep no other program from opening."""
    offer, digest = home.offer(1_000_000, "hostile")
    json = home.ask("json", offer)

    def connect():
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(SECONDS)
        client.connect(str(reader.dir / "net.sock"))
        return client

    def request(text):
        return struct.pack(">I", len(text)) + text

    rng = random.Random(0)
    good = b'{"v":1,"type":"open","timeout_ms":10000,"ref":' + json.encode() + b"}"
    texts = [b"", b"{", b"[]", b"null", b"{}" * 100, rng.randbytes(5000), b"[" * 100_000, b'{"v":1}', good[:-1] + b',"more":1}',
             good.replace(b"10000", b"0"), good.replace(b"10000", b"1e99"), good.replace(b"10000", b'"soon"'),
             good.replace(b'"v":1', b'"v":2'), b'{"v":1,"type":"open","timeout_ms":1,"name":["llama"]}',
             b'{"v":1,"type":"open","timeout_ms":1,"name":""}', b'{"v":1,"type":"open","timeout_ms":1,"ref":{"kind":"bundle"}}']
    for text in texts:
        with connect() as client:
            client.sendall(request(text))
            answer = client.recv(1 << 16)
            # A message that is none gets no answer.
            assert not answer or b'"type":"error"' in answer, (text[:100], answer)
    for raw in (b"\xff\xff\xff\xff", struct.pack(">I", (4 << 20) + 1) + b"x" * 100, b"\0\0"):
        with connect() as client:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == b""
    # More than one request, and one that does not wait.
    with connect() as client:
        client.sendall(request(good) * 3)
    for _ in range(20):
        with connect() as client:
            client.sendall(request(good))
    # Silent connections, one fewer than the limit; and one that holds an open one without reading.
    silent = [connect() for _ in range(62)]
    holding = connect()
    holding.sendall(request(good))
    assert reader.opened_by(*BY_C, "tensor", "ref", json, str(SECONDS)) == digest
    for client in (*silent, holding):
        client.close()
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest


def in_a_folder():
    """A server of net.sock that is no Tmesh.Net: C and Python say so, and do not wait for ever."""
    def frame(text, length=None):
        return struct.pack(">I", len(text) if length is None else length) + text

    waiting = frame(b'{"v":1,"type":"waiting"}')
    answers = [
        (b"", "EPIPE"), (b"\0\0", "EPIPE"), (frame(b"", 0), "EPROTO"), (frame(b"", 0xFFFFFFFF), "EPROTO"),
        (frame(b"{", 1000), "EPIPE"), (waiting * 3, "EPIPE"), (frame(b"{"), "EPROTO"), (frame(b"[]"), "EPROTO"),
        (frame(b"[" * 100_000), "EPROTO"), (frame(b"{}"), "EPROTO"), (frame(b'{"type":"opened"}'), "EPROTO"),
        (frame(b'{"type":"opened","ref":{}}'), "EPROTO"), (frame(b'{"type":"opened","ref":{"kind":"bundle"}}'), "EPROTO"),
        (frame(b'{"type":"error","errno":"EDQUOT","message":"much"}'), "EDQUOT"),
        (waiting + frame(b'{"type":"error","errno":"EXYZ"}'), "EIO"), (frame(b'{"type":"error","errno":1,"message":[]}'), "EIO"),
    ]
    programs = BY_C, BY_PYTHON
    wrong = []
    with tempfile.TemporaryDirectory(prefix="tmesh-net-") as directory, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{directory}/net.sock")
        server.listen()
        server.settimeout(SECONDS)
        env = {**os.environ, "TMESH_BACKEND": "memfd", "TMESH_RUNTIME_DIR": directory}
        for answer, expected in answers:
            for program in programs:
                client = subprocess.Popen([*program, "tensor", "name", "x"], env=env, stderr=subprocess.PIPE)
                connection, _peer = server.accept()
                with connection:
                    length = struct.unpack(">I", connection.recv(4))[0]
                    while length:
                        length -= len(connection.recv(length))
                    connection.sendall(answer)
                said = client.communicate(timeout=SECONDS)[1].decode()
                if client.returncode != 1 or not said.startswith(f"{expected}: "):
                    wrong.append(f"{answer[:60]}: {said} and not {expected}")
        server.close()
        for program in programs:
            said = subprocess.run([*program, "tensor", "name", "x"], env=env, stderr=subprocess.PIPE, timeout=SECONDS).stderr
            if not said.startswith(b"ENOENT: "):
                wrong.append(f"no process listens: {said}")
    report("what is no net", "\n".join(wrong))


def half_fetched(home, reader, make, wait, too_quick=lambda: None):
    """Return the result of `make`, and the programs that wait for it. Its fetch, which `wait` has begun,
    stays half there: the home's fetcher is stopped. A fetch that ends too quickly is made again, after a call
    of `too_quick` and an end of all that it left."""
    for _attempt in range(100):
        made = make()
        before = reader.stats()["fetched"]
        programs = wait(made)
        eventually(lambda: reader.stats()["fetches"] or reader.stats()["fetched"] > before, lambda: "a fetch")
        home.signal("tmesh-net", signal.SIGSTOP)
        still([home], [reader])
        if reader.stats()["fetches"]:
            assert reader.regions()
            return made, programs
        home.signal("tmesh-net", signal.SIGCONT)
        for program in programs:
            program.wait(SECONDS)
        too_quick()
        for one in (home, reader):
            assert one.ask("clean") == "ok"
    raise AssertionError("each fetch is done at once")


def test_waiters_gone(home, reader):
    """The last one who waits takes the fetch along, with what was half there: Elixir's processes, C and Python programs, the node."""
    large, seeds = 128 << 20, iter(range(10**9))

    def ref():
        offer, digest = home.offer(large, f"waiters{next(seeds)}")
        return offer, digest, home.ask("json", offer)

    def name():
        name = f"waiters{next(seeds)}"
        assert home.ask("publish", name, 1, large, name).startswith("ok ")
        return name

    def wait(*programs, processes=0):
        def begin(made):
            if processes:
                assert reader.ask("wait", processes, "ref", made[0]) == "ok"
            return [reader.waiting(*program, "tensor", "ref", made[2], "600") for program in programs]
        return begin

    def wait_for_name(name):
        assert reader.ask("wait", 1, "name", name) == "ok"
        return []

    def gone():
        """While the home still says nothing. A bundle's index, which came whole, is kept until it is
        dropped."""
        eventually(lambda: not reader.stats()["fetches"], lambda: "an end of the fetch")
        assert reader.ask("clean") == "ok"
        eventually(lambda: not reader.regions(), lambda: f"an end of what was half fetched: {reader.regions()}")
        home.signal("tmesh-net", signal.SIGCONT)
        for one in (home, reader):
            one.nothing_left()

    def kill(programs):
        for program in programs:
            program.kill()
            program.wait()

    for program in (BY_C, BY_PYTHON):
        kill(half_fetched(home, reader, ref, wait(program))[1])
        gone()
    half_fetched(home, reader, name, wait_for_name)
    assert reader.ask("kill_waiters", 1) == "0"
    gone()
    # Several programs wait, and the last one ends too.
    _made, programs = half_fetched(home, reader, ref, wait(BY_C, BY_PYTHON, processes=3))
    kill(programs)
    assert reader.ask("kill_waiters", 2) == "1"
    assert reader.stats()["fetches"] == 1, "one waits still"
    assert reader.ask("kill_waiters", 1) == "0"
    gone()
    # The remaining program has the bytes, by the same fetch.
    (offer, digest, _json), programs = half_fetched(home, reader, ref, wait(BY_C, processes=1))
    fetched = reader.stats()["fetched"]
    kill(programs)
    home.signal("tmesh-net", signal.SIGCONT)
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest and reader.stats()["fetched"] == fetched + 1
    # The node with all who wait: its fetcher goes by itself.
    half_fetched(home, reader, ref, wait(processes=2))
    reader.kill("beam.smp")
    reader.beam.wait()
    eventually(lambda: not [*reader.processes("tmesh-net")], lambda: "an end of the fetcher")
    home.signal("tmesh-net", signal.SIGCONT)
    eventually(lambda: home.stats().get("keys") == 0, lambda: "an end of the lease")
    reader.start()
    connect(reader, home)
