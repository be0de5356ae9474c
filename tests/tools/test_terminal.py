#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The output of tmeshctl on terminals: progress, no bytes, no control sequences from strangers. TAP.

usage: tests/tools/test_terminal.py TMESHCTL MAN_DIR
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

from harness import (HAVE_MODULE, TOOL, WAIT_S, Base, answer, any_backend, eventually, held, main, refused, tool)

# The time in which tmeshctl shows nothing (PATIENCE_NS of tools/progress.c).
PATIENCE_S = 0.3

# The name of a false region; another run of these tests has others. Its number begins with a zero.
NUMBER = f"0000{os.getpid():08x}beef"


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


class Terminal(Base):
    def slow_pipe(self, name):
        """A pipe whose writer takes longer than progress waits for."""
        path = os.path.join(self.dir, name)
        os.mkfifo(path)
        script = f"exec >{path}; for i in 1 2 3 4 5 6; do head -c 2097152 /dev/zero; sleep 0.2; done"
        writer = subprocess.Popen(["sh", "-c", script])
        self.addCleanup(writer.wait)
        self.addCleanup(writer.kill)  # runs first; a reader may never have come
        return path

    @any_backend
    def test_progress_only_on_a_terminal(self):
        args = ("--shape", str(6 * 2097152), "--", "true")
        said, status = self.on_terminal("put", self.slow_pipe("a"), *args)
        self.assertEqual(status, 0)
        self.assertRegex(said, r"\rput: +\d+% ")
        self.assertTrue(said.endswith("\r\033[K"), said)
        out, said = tool("put", self.slow_pipe("b"), *args)
        self.assertEqual((out, said), (b"", ""))

    def test_an_error_takes_the_line_of_progress(self):
        """keep reads a file, and its keeper has no room for it. tmeshctl is stopped again and again, so it is slow enough for progress."""
        os.environ.update(TMESH_BACKEND="memfd", TMESH_KEEPER_BYTES="1000000")
        self.addCleanup(os.environ.pop, "TMESH_KEEPER_BYTES")
        slow = ("while read -r _ _ state _ </proc/$!/stat && [ $state != Z ]; do kill -STOP $!; sleep 0.4; kill -CONT $!; sleep 0.01; done; "
                "wait $!")
        file = self.file(bytes(64 << 20))
        # On a busy machine it may have ended before it was stopped.
        for _ in range(50):
            said, status = self.on_terminal("keep", "--file", file, "large", wrapper=["sh", "-c", f'"$@" & {slow}', "sh"])
            self.assertEqual(status, 1, said)
            if "reading" in said:
                break
        self.assertRegex(said, r"\rreading: +\d+% ")
        self.assertIn("\r\033[Ktmeshctl: keeping: ", said)

    @any_backend
    def test_no_progress_for_what_is_quick(self):
        # On a busy machine it may not be quick; a short operation may have shown nothing.
        for _ in range(100):
            began = time.monotonic()
            said, status = self.on_terminal("put", self.file(b"x"), "--", "true")
            self.assertEqual(status, 0)
            if time.monotonic() - began < PATIENCE_S:
                break
        self.assertEqual(said, "")

    @any_backend
    def test_bytes_do_not_go_to_a_terminal(self):
        with held("put", self.file(b"plain\x1b")) as names:
            said, status = self.on_terminal("get", names["token"])
            self.assertEqual(status, 2)
            self.assertNotIn("plain", said)
            said, status = self.on_terminal("get", names["token"], "-o", "-")
            self.assertEqual((said, status), ("plain\x1b", 0))

    @any_backend
    def test_top_is_interrupted_while_it_draws(self):
        """The terminal wraps lines again. It takes a part of the lines, until it is read."""
        os.environ["TMESH_BACKEND"] = "memfd"
        for i in range(300):
            fd = os.memfd_create(f"tmesh:1:{NUMBER[:-4]}{i:04x}:10:{'x' * 60}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self.addCleanup(os.close, fd)
            os.truncate(fd, 4096 + 8192)
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 65535, 80, 0, 0))
        process = subprocess.Popen([TOOL, "top"], stdin=subprocess.DEVNULL, stdout=follower, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        os.close(follower)
        self.addCleanup(process.kill)
        # It has begun, and sleeps: the lines are more than a terminal takes that is not read.
        eventually(lambda: select.select([leader], [], [], 0)[0] and state_of(process.pid) == "S", "the terminal is full")
        process.send_signal(signal.SIGINT)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while piece := os.read(leader, 65536):
                said += piece
        os.close(leader)
        self.assertEqual(process.wait(WAIT_S), -signal.SIGINT)
        self.assertGreater(said.rfind(b"\033[?7h"), said.rfind(b"\033[?7l"))

    def is_escaped(self, name):
        """Nothing of what others wrote steers the terminal, or spoils the JSON."""
        for verb in (("ls",), ("show", name), ("ls", "--json"), ("show", name, "--json"), ("top", "--json")):
            done = subprocess.run([TOOL, *verb], capture_output=True, timeout=WAIT_S, check=True)
            for bad in (b"\x1b", b"\x07", b"\xff", b"\x7f", "\x9b".encode(), "\u202e".encode()):
                self.assertFalse(bad in done.stdout + done.stderr, (verb, bad))
            if verb[-1] == "--json":
                json.loads(done.stdout.decode())
        self.assertIn(b"red", tool("show", name)[0])

    @any_backend
    def test_what_others_wrote_is_escaped(self):
        """A memfd whose name looks like a region's, with a label no library would set."""
        os.environ["TMESH_BACKEND"] = "memfd"
        name = f"tmesh:1:{NUMBER}:10:".encode() + b"\x1b[31mred\x07 \xff\xe2\x80\xae"
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        os.truncate(fd, 4096 + 8192)
        self.is_escaped(NUMBER)
        self.assertIn(b"\\x1b[31mred", tool("ls")[0])

    @any_backend
    def test_json_is_the_label_and_steers_no_terminal(self):
        """Terminals obey control characters of two bytes, too. In JSON they are escaped, and other letters are not."""
        os.environ["TMESH_BACKEND"] = "memfd"
        label = "\x9b31mred\x7f \u202e\u2066 \u00e9\u4e16\U0001f30d"
        fd = os.memfd_create(f"tmesh:1:{NUMBER}:10:{label}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        os.truncate(fd, 4096 + 8192)
        self.is_escaped(NUMBER)
        out = tool("show", NUMBER, "--json")[0].decode()
        self.assertEqual(json.loads(out)["label"], label)
        self.assertIn("\u00e9\u4e16\U0001f30d", out)

    @unittest.skipUnless(HAVE_MODULE, "no tmesh module")
    def test_what_others_told_the_module_is_escaped(self):
        """The module refuses control characters and takes all other bytes; a text about the
        contents may be anything."""
        os.environ["TMESH_BACKEND"] = "kernel"
        label, text = b"\xff red \xe2\x80\xae", b"\x1b[31m\x07\xff\xe2\x80\xae"
        made = bytearray(struct.pack("=IIQiIII64siIQ", 112, 0, 4096, 0, 0o600, 0, 0, label, 0, 0, 0))
        device = os.open("/dev/tmesh", os.O_RDWR | os.O_CLOEXEC)
        self.addCleanup(os.close, device)
        fcntl.ioctl(device, 0xE701, made)
        region, _, number = struct.unpack_from("=iIQ", made, 96)
        self.addCleanup(os.close, region)
        room = ctypes.create_string_buffer(text)
        fcntl.ioctl(region, 0xE70B, struct.pack("=IIQQII", 32, 0, 0, ctypes.addressof(room), len(text), 0))
        self.is_escaped(f"{number:016x}")

    @any_backend
    def test_what_only_looks_like_a_region(self):
        os.environ["TMESH_BACKEND"] = "memfd"
        for rest in (f"{NUMBER}:0:x", f"{NUMBER}:-1:x", f"{NUMBER}: 1:x", f"{NUMBER}:0x1:x", f"{NUMBER}:11111111111111111:x",
                     f"{NUMBER}:1", f"{NUMBER.upper()}:1:x", f"{NUMBER[1:]}:1:x", f"-{NUMBER[1:]}:1:x",
                     f"{NUMBER}:1:" + "x" * 64):
            fd = os.memfd_create(f"tmesh:1:{rest}", os.MFD_CLOEXEC)
            os.truncate(fd, 8192)
            try:
                self.assertFalse([r for r in answer("ls") if r["id"] == NUMBER], rest)
                refused("no region", "show", NUMBER)
            finally:
                os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
