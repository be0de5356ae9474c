#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The verbs that make regions, fill them, read them and hand them on. TAP.

usage: tests/tools/test_regions.py TMESHCTL MAN_DIR
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import termios
import time
import unittest

from harness import (BACKEND, TOOL, WAIT_S, Base, answer, any_backend, eventually, gone, held, listed, main,
                     refused, tool, wrong_usage)


class Create(Base):
    def test_lives_as_long_as_its_holder(self):
        with held("create", "64K") as names:
            self.assertTrue(listed(names))
            self.assertEqual(tool("get", names["token"])[0], bytes(65536))
        self.assertFalse(listed(names))
        refused("no such region", "get", names["token"])

    def test_foreground(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = subprocess.Popen([TOOL, "create", "1"], stdout=subprocess.PIPE,
                                       preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
            lines = [process.stdout.readline().split(None, 1) for _ in range(4)]
            self.assertEqual([line[0] for line in lines], [b"id", b"token", b"ref", b"pid"])
            self.assertEqual(int(lines[3][1]), process.pid)
            process.send_signal(number)
            self.assertEqual(process.wait(WAIT_S), 0)
            process.stdout.close()

    def test_ignored_signals_stay_so(self):
        # As nohup has them, and a shell that starts something in the background.
        for number in (signal.SIGINT, signal.SIGHUP):
            process = subprocess.Popen([TOOL, "create", "1"], stdout=subprocess.PIPE, text=True,
                                       preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)  # runs first
            names = dict(process.stdout.readline().split(None, 1) for _ in range(2))
            process.send_signal(number)
            self.assertEqual(tool("get", names["token"].strip())[0], b"\0")
            self.assertIsNone(process.poll())
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(WAIT_S), 0)
            process.stdout.close()

    def test_ends_while_it_reads(self):
        for options in (), ("--background",):
            process = subprocess.Popen([TOOL, "put", "-", *options], stdin=subprocess.PIPE,
                                       bufsize=0)
            process.stdin.write(b"x")
            room = bytes(4)
            eventually(lambda: fcntl.ioctl(process.stdin, termios.FIONREAD, room) == room,
                       "it reads")
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
            holders = children.read_text().split()
            self.assertEqual(len(holders), len(options))
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(WAIT_S), -signal.SIGTERM)
            eventually(lambda: all(map(gone, holders)), "its holder ends too")
            process.stdin.close()

    def test_for_seconds(self):
        began = time.monotonic()
        names = answer("create", "1", "--for", "1")
        self.assertGreaterEqual(time.monotonic() - began, 1)
        self.assertFalse(listed(names))

    def test_goes_on_when_its_wait_is_interrupted(self):
        for more in ((), ("--for", "600")):
            with held("create", "1", *more) as names:
                self.assertTrue(listed(names))
                for _ in range(3):
                    os.kill(names["pid"], signal.SIGSTOP)
                    os.kill(names["pid"], signal.SIGCONT)
                    time.sleep(0.05)
                self.assertTrue(listed(names))

    def test_interruptions_take_nothing_off_its_seconds(self):
        # In the second half of a second, of which the whole ones that are left are fewer than the time that is.
        while not 0.5 < time.monotonic() % 1 < 0.7:
            time.sleep(0.01)
        began = time.monotonic()
        process = subprocess.Popen([TOOL, "create", "1", "--for", "1"], stdout=subprocess.PIPE)
        process.stdout.readline()
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
        self.assertGreaterEqual(time.monotonic() - began, 1)
        self.assertEqual(process.returncode, 0)
        process.stdout.close()

    def test_background_for_seconds(self):
        # That it is there until then is asked where there is time enough.
        with held("create", "1", "--for", "1") as names:
            eventually(lambda: gone(names["pid"]), "the holder ends by itself")

    def test_background_leaves_the_caller_alone(self):
        with held("create", "1") as names:
            status = f"/proc/{names['pid']}/fd"
            self.assertEqual({os.readlink(f"{status}/{fd}") for fd in (0, 1, 2)},
                             {"/dev/null"})
            self.assertEqual(os.getsid(names["pid"]), names["pid"])
            self.assertEqual(os.readlink(f"/proc/{names['pid']}/cwd"), "/")

    def test_background_without_standard_descriptors(self):
        """The memory's own descriptor does not get the number of one that the holder gives up."""
        for closed in (0,), (2,), (0, 2):
            out, _ = tool("put", self.file(b"held"), "--background", "--json", preexec_fn=lambda: list(map(os.close, closed)))
            names = json.loads(out)
            try:
                self.assertEqual(tool("get", names["token"])[0], b"held")
            finally:
                os.kill(names["pid"], signal.SIGTERM)
        tool("ls", status=1, preexec_fn=lambda: os.close(1))

    def test_background_failure_is_told(self):
        refused("label", "create", "1", "--label", "a\nb", "--background")

    def test_command(self):
        script = 'printf %s "$TMESH_TOKEN" >token; printf %s "$TMESH_REF" >ref; exit 7'
        out, _ = tool("create", "5", "--", "sh", "-c", script, status=7, cwd=self.dir)
        self.assertFalse(out)
        self.assertEqual(json.loads(self.read("ref"))["token"].encode(), self.read("token"))
        tool("create", "5", "--", "sh", "-c", '"$0" get "$TMESH_TOKEN" >bytes', TOOL,
             cwd=self.dir)
        self.assertEqual(self.read("bytes"), bytes(5))

    def test_command_of_a_caller_that_ignores_its_children(self):
        """The kernel then reports no child's end, and the tool would wait for ever."""
        def ignore():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        for verb in ("create", "5"), ("put", self.file(b"x")):
            tool(*verb, "--", "sh", "-c", "exit 7", status=7, preexec_fn=ignore)

    def test_command_killed(self):
        tool("create", "5", "--", "sh", "-c", "kill -KILL $$", status=128 + signal.SIGKILL)

    def test_command_is_told_to_end(self):
        process = subprocess.Popen([TOOL, "create", "1", "--", "sleep", "1000"])
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        eventually(lambda: pathlib.Path(children).read_text(), "the command runs")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 128 + signal.SIGTERM)

    @any_backend
    def test_command_missing(self):
        refused("No such file", "create", "5", "--", "/nonexistent")
        wrong_usage("no command", "create", "5", "--")

    def test_shape_and_dtype(self):
        with held("create", "--shape", "[3, 4]", "--dtype", "float64") as names:
            self.assertEqual(names["ref"]["shape"], [3, 4])
            self.assertEqual(names["ref"]["strides"], [4, 1])
            self.assertEqual(names["ref"]["dtype"], "float64")
            self.assertEqual(names["ref"]["byte_size"], 96)
        with held("create", "2K", "--dtype", "int16") as names:
            self.assertEqual(names["ref"]["shape"], [1024])

    @any_backend
    def test_bad_sizes(self):
        for size in ("", "0", "x", "1X", "99999999999999999999", "17179869184G"):
            wrong_usage("bytes", "create", "--json", size)
        wrong_usage("whole number", "create", "7", "--dtype", "int16")
        wrong_usage("either BYTES or --shape", "create")
        wrong_usage("either BYTES or --shape", "create", "8", "--shape", "8")
        for shape in ("x", "1,,x", "[1", "1]", "-1", "1,1,1,1,1,1,1,1,1", "", ",", "2,", "2,,3", "2 3", "[2", "[2,]",
                      "9223372036854775808", "99999999999999999999,2"):
            wrong_usage("not a shape", "create", "--shape", shape)
        wrong_usage("not a dtype", "create", "8", "--dtype", "float31")
        wrong_usage("seconds", "create", "8", "--for", "soon")
        refused("2^63", "create", "--shape", "9223372036854775807,3")

    @any_backend
    def test_contradictions(self):
        wrong_usage("--background", "create", "1", "--background", "--", "true")
        wrong_usage("no meaning", "create", "1", "--json", "--", "true")


class Put(Base):
    DATA = bytes(range(256)) * 5000

    def test_file(self):
        path = self.file(self.DATA)
        with held("put", path, "--label", "größe") as names:
            self.assertEqual(tool("get", names["token"])[0], self.DATA)
            self.assertEqual(tool("get", json.dumps(names["ref"]))[0], self.DATA)
            info = answer("show", names["id"])
            self.assertEqual(info["label"], "größe")
            self.assertTrue(info["sealed"])

    def test_standard_input(self):
        for args in ((), ("--shape", str(len(self.DATA)))):
            with held("put", "-", *args, input=self.DATA) as names:
                self.assertEqual(tool("get", names["token"])[0], self.DATA)

    def test_empty_file(self):
        with held("put", self.file(b"")) as names:
            self.assertEqual(names["ref"]["shape"], [0])
            self.assertEqual(tool("get", json.dumps(names["ref"]))[0], b"")

    def test_wrong_length(self):
        path = self.file(b"12345")
        refused("whole number", "put", path, "--dtype", "int16")
        refused("5 bytes, the shape needs 6", "put", path, "--shape", "6")
        refused("ends after 5", "put", "-", "--shape", "6", input=b"12345")
        refused("more input", "put", "-", "--shape", "4", input=b"12345")

    def test_no_file(self):
        refused("No such file", "put", os.path.join(self.dir, "none"))
        refused("directory", "put", self.dir)

    def test_seal(self):
        with held("put", self.file(b"abcd")) as names:
            self.assertTrue(answer("show", names["token"])["sealed"])
        with held("put", self.file(b"abcd"), "--unsealed") as names:
            self.assertFalse(answer("show", names["token"])["sealed"])
        wrong_usage("only readers", "put", self.file(b"abcd"), "--writable-token")

    def test_tensor(self):
        path = self.file(bytes(24))
        with held("put", path, "--dtype", "float32", "--shape", "2,3") as names:
            tensor = answer("show", names["id"])["tensor"]
            self.assertEqual(tensor, {"dtype": "float32", "shape": [2, 3], "strides": [3, 1],
                                      "offset": 0, "byte_size": 24})
            self.assertIn("float32 [2, 3]", tool("ls")[0].decode())


class Hold(Base):
    def held(self, *args):
        """Names that hold, and what the kernel keeps for them is given up in the end."""
        names = answer("put", self.file(b"abcd"), "--hold", *args)
        self.addCleanup(self.give_up, f"hold-{names['id']}-")
        return names

    def give_up(self, start):
        for one in answer("kept"):
            if one["name"].startswith(start):
                subprocess.run([TOOL, "drop", one["name"]], capture_output=True)

    def test_until_it_was_opened(self):
        for how in ("token", "ref"):
            names = self.held("600")
            if BACKEND == "kernel":
                eventually(lambda: gone(names["pid"]), "no process stays for what the kernel keeps")
            elif how == "token":
                self.assertFalse(gone(names["pid"]))
                self.assertEqual(os.readlink(f"/proc/{names['pid']}/cwd"), "/")
            name = names["token"] if how == "token" else json.dumps(names["ref"])
            self.assertEqual(tool("get", name)[0], b"abcd")
            eventually(lambda: gone(names["pid"]), "who held it ends")
            if BACKEND == "memfd":
                refused("no such region", "get", name)

    def test_unsealed_memory_has_a_holder(self):
        names = self.held("600", "--unsealed")
        self.assertFalse(gone(names["pid"]))
        self.assertEqual(tool("get", names["token"])[0], b"abcd")
        with contextlib.suppress(ProcessLookupError):
            os.kill(names["pid"], signal.SIGTERM)
        eventually(lambda: gone(names["pid"]), "who held it ends")
        refused("no such region", "get", names["token"])

    def test_at_most_so_long(self):
        names = self.held("1")
        eventually(lambda: gone(names["pid"]) and not listed(names), "its time is over")
        refused("no such region", "get", names["token"])

    def test_contradictions(self):
        path = self.file(b"abcd")
        for text in ("0", "soon", "3601"):
            wrong_usage("up to 3600", "put", path, "--hold", text)
        wrong_usage("--hold", "put", path, "--hold", "1", "--for", "1")
        wrong_usage("--hold", "put", path, "--hold", "1", "--", "true")
        wrong_usage("--hold", "put", path, "--hold", "1", "--unsealed", "--writable-token")


def npy(text, data=b"", version=1, length=None):
    """A .npy file with this dictionary."""
    text = text.encode("latin-1")
    size = (len(text) if length is None else length).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


@any_backend
class Npy(Base):
    HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"

    def test_there_and_back(self):
        data = bytes(range(24))
        for version in (1, 2, 3):
            with held("put", "--npy", self.file(npy(self.HEADER, data, version))) as names:
                self.assertEqual((names["ref"]["dtype"], names["ref"]["shape"]), ("float32", [2, 3]))
                self.assertEqual(tool("get", names["token"])[0], data)
                for target in (names["token"], json.dumps(names["ref"])):
                    out = tool("get", "--npy", target)[0]
                    self.assertEqual((len(out) % 64, out[-24:]), (24, data))
                    with held("put", "--npy", "-", input=out) as again:
                        self.assertEqual(again["ref"]["shape"], [2, 3])
                        self.assertEqual(tool("get", "--npy", again["token"])[0], out)

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not installed")
    def test_numpy_agrees(self):
        import numpy

        path = os.path.join(self.dir, "array.npy")
        for array in (numpy.arange(24, dtype="<f8").reshape(2, 3, 4), numpy.float32(7), numpy.zeros((0, 3)),
                      numpy.arange(5, dtype="u1"), numpy.ones(3, bool), numpy.ones((1,) * 8, "<c16")):
            numpy.save(path, array)
            with held("put", "--npy", path) as names:
                self.assertEqual(names["ref"]["dtype"], array.dtype.name)
                tool("get", "--npy", names["token"], "-o", path + ".back")
                with open(path, "rb") as saved:
                    ours, theirs = self.read("array.npy.back"), saved.read()
                back = numpy.load(path + ".back")
                self.assertEqual((back.dtype, back.shape, back.tobytes()),
                                 (array.dtype, array.shape, array.tobytes()))
                self.assertEqual(len(ours), len(theirs))
        for wrong, word in ((numpy.ones((2, 3), order="F"), "Fortran"), (numpy.ones(2, ">f4"), "big-endian"),
                            (numpy.ones(2, "datetime64[s]"), "not of a type"),
                            (numpy.ones(2, [("a", "<i4")]), "not of a type")):
            numpy.save(path, wrong)
            refused(word, "put", "--npy", path)

    def test_bad_headers(self):
        good = npy(self.HEADER, bytes(24))
        for data, word in (
                (b"", "ends within"), (good[:11], "ends within"), (good[:40], "ends within"),
                (b"x" * 100, "not a .npy file"), (good.replace(b"\x01\x00", b"\x04\x00", 1), "version"),
                (npy(self.HEADER, length=5000), "too long"), (npy(self.HEADER, length=3), "too short"),
                (npy(self.HEADER, version=2, length=0xFFFFFFFF), "too long"),
                (good + b"x", "behind its header"), (good[:-1], "behind its header")):
            refused(word, "put", "--npy", self.file(data))
            refused("" if word == "behind its header" else word, "put", "--npy", "-", input=data)

    def test_bad_dictionaries(self):
        for old, new, word in (
                ("False", "True", "Fortran"), ("<f4", ">f4", "big-endian"), ("<f4", "|O", "not of a type"),
                ("'<f4'", "[('a', '<f4')]", "not of a type"), ("<f4", "<f40", "not of a type"),
                ("(2, 3)", "(2, -3)", "shape"), ("(2, 3)", "(6)", "shape"), ("(2, 3)", "6", "shape"),
                ("(2, 3)", "(2, 3", "shape"), ("(2, 3)", "(2 3)", "shape"), ("(2, 3)", "(,)", "shape"),
                ("(2, 3)", "(2L, 3L)", "shape"), ("(2, 3)", "(9223372036854775808, 1)", "shape"),
                ("(2, 3)", "(9223372036854775807, 3)", "2^63"), ("(2, 3)", "(" + "1, " * 9 + ")", "dimensions"),
                ("'shape'", "'size'", "damaged"), ("'shape'", "'descr'", "damaged"), ("}", "", "damaged"),
                ("}", "} x", "damaged"), ("}", "'x': 1}", "damaged"), (", 'shape'", " 'shape'", "damaged"),
                (", 'shape': (2, 3), ", "", "damaged"), ("{", "", "damaged"), ("{", "{\0", "damaged")):
            text = self.HEADER.replace(old, new)
            assert text != self.HEADER
            refused(word, "put", "--npy", self.file(npy(text, bytes(24))))

    def test_what_does_not_go_together(self):
        path = self.file(npy(self.HEADER, bytes(24)))
        wrong_usage("--npy excludes", "put", "--npy", path, "--shape", "6")
        wrong_usage("--npy excludes", "put", "--npy", path, "--dtype", "float32")
        with held("put", "--npy", path) as names:
            wrong_usage("--npy excludes", "get", "--npy", names["token"], "--range", "0:4")
            refused("does not fit", "get", "--npy",
                    json.dumps(dict(names["ref"], shape=[7], strides=[1], byte_size=28)))
        with held("create", "4", "--dtype", "bfloat16") as names:
            refused("NumPy has no bfloat16", "get", "--npy", names["token"])


class Get(Base):
    def test_range(self):
        with held("put", self.file(b"0123456789")) as names:
            for text, want in (("2:3", b"234"), (":4", b"0123"), ("7:", b"789"),
                               ("10:", b"")):
                self.assertEqual(tool("get", names["token"], "--range", text)[0], want)
            for text in ("11:", "9:2", "18446744073709551615:2"):
                refused("leave the region", "get", names["token"], "--range", text)
            for text in ("4", "a:b", "1:2:3"):
                wrong_usage("tmeshctl get", "get", names["token"], "--range", text)
            wrong_usage("--range", "get", json.dumps(names["ref"]), "--range", ":1")

    def test_output(self):
        with held("put", self.file(b"hello")) as names:
            path = os.path.join(self.dir, "out")
            tool("get", names["token"], "-o", path)
            self.assertEqual(self.read("out"), b"hello")
            refused("Is a directory", "get", names["token"], "-o", self.dir)
            refused("No space left", "get", names["token"], "-o", "/dev/full")

    def test_ref_that_lies(self):
        with held("put", self.file(bytes(16))) as names:
            for change in ({"id": "0123456789abcdef"}, {"offset": 8},
                           {"shape": [17], "byte_size": 17}):
                refused("does not fit", "get", json.dumps(dict(names["ref"], **change)))
            refused("do not lie together", "get",
                    json.dumps(dict(names["ref"], shape=[4], strides=[2], byte_size=4)))

    @any_backend
    def test_bad_targets(self):
        for target in ("", "x", "{", "{}", "tm2k-00", "0" * 15, '{"v":1}'):
            wrong_usage("tmeshctl get", "get", target)
        wrong_usage("token", "get", "0" * 16)
        refused("token", "get", "tm1m-zz")
        refused("no such region", "get", "tm1m-" + "0" * 32 + "-" + "0" * 32)


class Seal(Base):
    def test_needs_the_right(self):
        with held("put", self.file(b"abc"), "--unsealed", "--manage-token") as names:
            refused("rights", "seal", names["token"])
            self.assertFalse(answer("show", names["id"])["sealed"])
            tool("seal", names["manage_token"])
            self.assertTrue(answer("show", names["id"])["sealed"])
            tool("seal", names["manage_token"])
        wrong_usage("token", "seal", names["id"])

    def test_writable_token_is_no_manage_token(self):
        with held("create", "10", "--writable-token") as names:
            refused("rights", "seal", names["writable_token"])


class Export(Base):
    def test_export(self):
        with held("create", "8K", "--writable-token") as names:
            if BACKEND == "kernel" or os.path.exists("/dev/udmabuf"):
                out, _ = tool("export", names["writable_token"], "--", "sh", "-c",
                              'readlink /proc/self/fd/"$TMESH_DMABUF_FD"')
                self.assertIn(b"dmabuf", out)
            else:
                refused("udmabuf", "export", names["writable_token"])
            refused("rights", "export", names["token"])
        wrong_usage("token", "export", names["id"])


if __name__ == "__main__":
    sys.exit(main())
