#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check how tmesh-net answers a program that speaks to it badly, and a second fetcher. Prints TAP.

    test_port.py BUILD
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

BUILD = Path(sys.argv[1]).resolve()
SECONDS = 600
LONGEST = 2 * 65536 + 4096  # message


class Fetcher:
    def __init__(self, place):
        env = {**os.environ, "TMESH_BACKEND": "memfd", "TMESH_RUNTIME_DIR": place, "TMESH_KEEPER": str(BUILD / "tmesh-keeper")}
        self.process = subprocess.Popen([BUILD / "tmesh-net", "--address", "127.0.0.1"], env=env, cwd=place, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def read(self):
        head = self.process.stdout.read(4)
        return json.loads(self.process.stdout.read(struct.unpack(">I", head)[0])) if head else None

    def send(self, data, length=None):
        self.process.stdin.write(struct.pack(">I", len(data) if length is None else length) + data)
        self.process.stdin.flush()

    def tell(self, kind, number, **members):
        self.send(json.dumps({"v": 1, "type": kind, "id": number, **members}).encode())

    def ask(self, kind, number, **members):
        self.tell(kind, number, **members)
        return self.read()

    def end(self):
        """The exit status, and what it said."""
        _, said = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said.decode()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Silent:
    """A listener that says nothing, as "of" in fetches."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))

    def source(self, provider, size=1000):
        return {"address": f"ofi+{provider}://127.0.0.1:{self.socket.getsockname()[1]}", "key": "0" * 16, "checksum": "0" * 32,
                "bytes": size, "timeout_ms": 1000 * SECONDS}


def has_open(fetcher, name):
    with contextlib.suppress(OSError):
        return any(os.readlink(link).endswith(name) for link in Path(f"/proc/{fetcher.process.pid}/fd").iterdir())
    return False


def test_two(place):
    """A second fetcher of a runtime directory is refused, and the first goes on."""
    one, two = Fetcher(place), None
    try:
        assert one.read()["type"] == "hello"
        two = Fetcher(place)
        last = two.read()
        assert last["v"] == 1 and last["type"] == "end" and "another tmesh-net runs" in last["message"], last
        status, said = two.end()
        assert status == 1 and last["message"] in said, (status, said)
        assert one.ask("stats", 1)["type"] == "stats"
        two = Fetcher(place)
        while two.process.poll() is None and not has_open(two, "net.lock"):
            time.sleep(0.001)
        one.process.kill()
        one.process.wait()
        assert two.read()["type"] == "hello", "the lock ends with its process, however that ends, and is waited for a moment"
        assert two.end()[0] == 0
    finally:
        for fetcher in (one, two):
            if fetcher:
                fetcher.kill()


def test_frames(place):
    """Frames that are too long, empty or cut off end it with a word, and nothing is read beyond them."""
    for data, length in ((b"", 0), (b"{}", LONGEST + 1), (b"{}", 0xFFFFFFFF), (b"{}", 3), (b"x" * (LONGEST + 1000), None)):
        fetcher = Fetcher(place)
        try:
            assert fetcher.read()["type"] == "hello"
            try:
                fetcher.send(data, length)
            except BrokenPipeError:
                pass
            fetcher.process.stdin.close()
            last = fetcher.read()
            assert last["type"] == "end" and "empty, too long or cut off" in last["message"], last
            fetcher.process.stdin = None
            status, said = fetcher.end()
            assert status == 1 and last["message"] in said, (length, status, said)
        finally:
            fetcher.kill()


def test_garbage(place):
    """Messages that are none are answered with an error each, and it goes on; the longest is read."""
    fetcher = Fetcher(place)
    try:
        assert fetcher.read()["type"] == "hello"
        for data in (b"\0", b"{", b"[]", b"null", b"{}", b"[" * 60000, b"{\"v\":1}", b"\xff\xfe", b" " * LONGEST,
                     b'{"v":2,"type":"stats","id":1}', b'{"v":1,"type":"stats","id":-1}', b'{"v":1,"type":"stats","id":1,"x":2}',
                     b'{"v":1,"type":"stats","id":1e99}', b'{"v":1,"type":"stats","id":1,"id":2}', b'{"v":1,"type":"fly","id":1}'):
            fetcher.send(data)
            answer = fetcher.read()
            assert answer["type"] == "error" and answer["errno"] == "EPROTO", (data[:40], answer)
        assert fetcher.ask("stats", 7)["id"] == 7
        assert fetcher.end()[0] == 0
    finally:
        fetcher.kill()


def test_hostile(place):
    """Sizes, keys and tokens that are wrong are errors, and nothing is left of them."""
    fetcher, silent = Fetcher(place), Silent()
    try:
        source = silent.source(fetcher.read()["provider"])
        for change, names in (({"bytes": 2**63 - 1}, ("EOVERFLOW", "ENOMEM", "EINVAL", "EDQUOT")),
                              ({"bytes": 2**50}, ("ENOMEM", "EDQUOT")), ({"bytes": 0}, ("EPROTO",)), ({"bytes": -1}, ("EPROTO",)),
                              ({"key": "g" * 16}, ("EINVAL",)), ({"key": "0" * 17}, ("EPROTO",)), ({"checksum": "0" * 31}, ("EINVAL",)),
                              ({"address": "x" * 127}, ("EINVAL",)), ({"address": "x" * 128}, ("EPROTO",)), ({"timeout_ms": 0}, ("EPROTO",))):
            answer = fetcher.ask("fetch", 1, **{**source, **change})
            assert answer["type"] == "error" and answer["errno"] in names, (change, answer)
        assert fetcher.ask("offer", 2, token="nobody's")["type"] == "error"
        assert fetcher.ask("grant", 3, offer="0" * 32, peer="p")["errno"] == "ENOENT"
        assert fetcher.ask("copy", 3, offer="0" * 32)["errno"] == "ENOENT"
        for data, name in (("", "EPROTO"), ("0", "EPROTO"), ("0G", "EPROTO"), ("AA", "EPROTO"), (7, "EPROTO"), ("00" * 65537, "EPROTO")):
            answer = fetcher.ask("store", 3, checksum="0" * 32, data=data)
            assert answer["type"] == "error" and answer["errno"] == name, (data, answer)
        assert fetcher.ask("store", 3, checksum="x", data="00")["errno"] == "EINVAL"
        assert fetcher.ask("store", 3, checksum="0" * 32, data="00" * 65536)["errno"] == "EPROTO", "not what the checksum says"
        assert fetcher.ask("withdraw", 4, offer="0" * 32)["errno"] == "ENOENT"
        assert fetcher.ask("revoke", 5, key="0" * 16)["errno"] == "ENOENT"
        assert fetcher.ask("cancel", 6, of=99)["errno"] == fetcher.ask("release", 6, of=99)["errno"] == "ENOENT"
        stats = fetcher.ask("stats", 7)
        assert (stats["offers"], stats["keys"], stats["fetches"], stats["fetched"]) == (0, 0, 0, 0), stats
        assert fetcher.end()[0] == 0
    finally:
        fetcher.kill()


def test_texts(place):
    """Texts that are no UTF-8, or that a message's end cuts inside a character, come as JSON all the same."""
    for letters in range(4):
        inside = Path(place, "x" * letters + "\u00e9" * 60)
        inside.mkdir(0o700)
        fetcher = Fetcher(str(inside))
        try:
            assert fetcher.read()["type"] == "hello"
            wrong = fetcher.ask("offer", 1, token="tm1m-" + "0" * 32 + "-" + "1" * 32)
            assert wrong["type"] == "error" and wrong["errno"] == "ENOENT", wrong
            for long in range(8):
                refused = fetcher.ask("grant", 2, offer="0" * 16, peer="x" * long + "\u20ac" * 84)
                assert refused["type"] == "error", refused
            assert fetcher.end()[0] == 0
        finally:
            fetcher.kill()
    strange = os.fsencode(place) + b"/\xff\xfe"
    os.mkdir(strange, 0o700)
    fetcher = Fetcher(os.fsdecode(strange))
    try:
        assert fetcher.read()["runtime_dir"].endswith("/??")
        assert fetcher.end()[0] == 0
    finally:
        fetcher.kill()


def test_limits(place):
    """Eight fetches of one address run at a time; each can be given up at once; the end of input ends the others."""
    fetcher, silent = Fetcher(place), Silent()
    try:
        source = silent.source(fetcher.read()["provider"])
        for number in range(9):
            fetcher.tell("fetch", number, **source)
        answer = fetcher.read()  # eight wait for ten minutes
        assert answer["type"] == "error" and answer["errno"] == "EDQUOT" and "8 fetches" in answer["message"], answer
        running = set(range(9)) - {answer["id"]}
        assert fetcher.ask("stats", 100)["fetches"] == 8
        given_up = running.pop()
        assert fetcher.ask("release", 101, of=given_up)["errno"] == "EBUSY"
        fetcher.tell("fetch", running.pop(), **source)
        assert fetcher.read()["errno"] == "EINVAL", "an id is one command's"
        fetcher.tell("cancel", 102, of=given_up)
        answers = {answer["id"]: answer for answer in (fetcher.read(), fetcher.read())}
        assert answers[102]["type"] == "done" and answers[given_up]["errno"] == "ECANCELED", answers
        assert fetcher.end()[0] == 0
    finally:
        fetcher.kill()


def test_signals(place):
    """A signal ends it as a signal does, and leaves no file: libfabric's libraries have taken none."""
    # A shell that runs this in the background may have ignored it, and the fetcher would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV):
        fetcher = Fetcher(place)
        try:
            assert fetcher.read()["type"] == "hello"
            fetcher.process.send_signal(number)
            assert fetcher.end()[0] == -number
            assert not [*Path(place).glob("*.btr")]
        finally:
            fetcher.kill()


def test_flood(place):
    """Ten thousand commands without a pause: each has its answer."""
    fetcher = Fetcher(place)
    try:
        assert fetcher.read()["type"] == "hello"
        for first in range(0, 10_000, 500):
            for number in range(first, first + 500):
                fetcher.tell("stats", number)
            assert [fetcher.read()["id"] for _ in range(500)] == list(range(first, first + 500))
        assert fetcher.end()[0] == 0
    finally:
        fetcher.kill()


def main():
    tests = [test_two, test_frames, test_garbage, test_hostile, test_texts, test_limits, test_signals, test_flood]
    failed = 0
    for number, test in enumerate(tests, 1):
        place = tempfile.mkdtemp(prefix="tmesh-port-")
        try:
            test(place)
            print(f"ok {number} - {test.__doc__}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {number} - {test.__doc__}", flush=True)
            for line in traceback.format_exc().splitlines():
                print(f"# {line}", flush=True)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    print(f"1..{len(tests)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
