#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Drive the built tmeshctl, on memfds unless TMESH_BACKEND says kernel, and print TAP.

usage: tests/tools/test_tmeshctl.py TMESHCTL MAN_DIR
"""

import contextlib
import ctypes
import fcntl
import glob
import importlib.util
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import traceback
import unittest

TOOL, MAN = (os.path.abspath(path) for path in sys.argv[1:3])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VERBS = ("doctor ls show holders top graph create put get export import seal lease "
         "revoke keep kept drop stats metrics load model").split()
WAIT_S = 60
BACKEND = os.environ.get("TMESH_BACKEND") or "memfd"
HAVE_MODULE = os.path.exists("/dev/tmesh")


def tool(*args, status=0, **more):
    """Run to its end; its output, and what it said on standard error."""
    more.setdefault("stdin", subprocess.DEVNULL)
    if "input" in more:
        del more["stdin"]
    done = subprocess.run([TOOL, *args], capture_output=True, timeout=WAIT_S, **more)
    said = done.stderr.decode()
    assert done.returncode == status, f"status {done.returncode}, not {status}: {said}"
    return done.stdout, said


def answer(*args, **more):
    return json.loads(tool(*args, "--json", **more)[0])


def refused(word, *args, status=1, **more):
    out, said = tool(*args, status=status, **more)
    assert not out, f"something on standard output: {out!r}"
    assert word in said, f"{said!r} does not say {word!r}"


def wrong_usage(word, *args, **more):
    refused(word, *args, status=2, **more)


def eventually(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before the opening, or after it
        return True


@contextlib.contextmanager
def held(*args, **more):
    """A region held in the background; its names."""
    names = answer(*args, "--background", **more)
    try:
        yield names
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(names["pid"], signal.SIGTERM)
        eventually(lambda: gone(names["pid"]), "the holder ends")


def listed(names):
    return any(region["id"] == names["id"] for region in answer("ls"))


class Base(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        os.environ["TMESH_RUNTIME_DIR"] = os.path.join(self.dir, "run")
        os.environ["TMESH_BACKEND"] = BACKEND

    def file(self, data, name="data"):
        path = os.path.join(self.dir, name)
        with open(path, "wb") as to:
            to.write(data)
        return path

    def read(self, name):
        with open(os.path.join(self.dir, name), "rb") as file:
            return file.read()

    def on_terminal(self, *args):
        """What a command writes to a terminal, and its status."""
        leader, follower = pty.openpty()
        with os.fdopen(leader, "rb", 0) as screen:
            with os.fdopen(follower, "wb", 0) as terminal:
                process = subprocess.Popen([TOOL, *args], stdin=subprocess.DEVNULL,
                                           stdout=terminal, stderr=terminal)
            said = b""
            with contextlib.suppress(OSError):  # EIO: the other side is closed
                while piece := screen.read(65536):
                    said += piece
        return said.decode(), process.wait(WAIT_S)


class Main(Base):
    def test_no_verb(self):
        wrong_usage("usage: tmeshctl VERB")

    def test_unknown_verb(self):
        wrong_usage("no such verb", "frobnicate\x1b[31m")

    def test_help_names_every_verb(self):
        out, _ = tool("--help")
        self.assertEqual(re.findall(r"^  (\w+) ", out.decode(), re.M), VERBS)

    def test_version(self):
        with open(os.path.join(ROOT, "VERSION")) as version:
            self.assertEqual(tool("--version")[0].decode(), f"tmeshctl {version.read()}")

    def test_every_verb_explains_itself(self):
        for verb in VERBS:
            out, said = tool(verb, "--help")
            self.assertIn(f"usage: tmeshctl {verb} ", out.decode())
            self.assertFalse(said)

    def test_every_verb_refuses_unknown_options(self):
        for verb in VERBS:
            wrong_usage(f"tmeshctl {verb} --help", verb, "--frobnicate")

    def test_every_verb_refuses_more_words(self):
        for verb in VERBS:
            wrong_usage("tmeshctl", verb, "1", "2", "3")

    def test_a_chosen_backend_is_never_replaced(self):
        on_kernel = dict(os.environ, TMESH_BACKEND="kernel")
        for args, more in (("--backend", "kernel"), {}), ((), {"env": on_kernel}):
            if not HAVE_MODULE:
                refused("/dev/tmesh", "ls", *args, **more)
                continue
            with held("create", "1", "--backend", "memfd") as other, held("create", "1", *args, **more) as names:
                there = {region["id"]: region["backend"] for region in answer("ls", *args, **more)}
                self.assertEqual(there.get(names["id"]), "kernel")
                self.assertNotIn(other["id"], there)
        wrong_usage("not a backend", "ls", "--backend", "cuda")


class Create(Base):
    def test_lives_as_long_as_its_holder(self):
        with held("create", "64K") as names:
            self.assertTrue(listed(names))
            self.assertEqual(tool("get", names["token"])[0], bytes(65536))
        self.assertFalse(listed(names))
        refused("no such region", "get", names["token"])

    def test_foreground(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([TOOL, "create", "1"], stdout=subprocess.PIPE)
            lines = [process.stdout.readline().split(None, 1) for _ in range(4)]
            self.assertEqual([line[0] for line in lines], [b"id", b"token", b"ref", b"pid"])
            self.assertEqual(int(lines[3][1]), process.pid)
            process.send_signal(number)
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

    def test_background_for_seconds(self):
        with held("create", "1", "--for", "1") as names:
            self.assertTrue(listed(names))
            eventually(lambda: gone(names["pid"]), "the holder ends by itself")

    def test_background_leaves_the_caller_alone(self):
        with held("create", "1") as names:
            status = f"/proc/{names['pid']}/fd"
            self.assertEqual({os.readlink(f"{status}/{fd}") for fd in (0, 1, 2)},
                             {"/dev/null"})
            self.assertEqual(os.getsid(names["pid"]), names["pid"])
            self.assertEqual(os.readlink(f"/proc/{names['pid']}/cwd"), "/")

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

    def test_command_killed(self):
        tool("create", "5", "--", "sh", "-c", "kill -KILL $$", status=128 + signal.SIGKILL)

    def test_command_is_told_to_end(self):
        process = subprocess.Popen([TOOL, "create", "1", "--", "sleep", "1000"])
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        eventually(lambda: pathlib.Path(children).read_text(), "the command runs")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 128 + signal.SIGTERM)

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

    def test_bad_sizes(self):
        for size in ("", "0", "x", "1X", "99999999999999999999", "17179869184G"):
            wrong_usage("bytes", "create", "--json", size)
        wrong_usage("whole number", "create", "7", "--dtype", "int16")
        wrong_usage("either BYTES or --shape", "create")
        wrong_usage("either BYTES or --shape", "create", "8", "--shape", "8")
        for shape in ("x", "1,,x", "[1", "1]", "-1", "1,1,1,1,1,1,1,1,1"):
            wrong_usage("not a shape", "create", "--shape", shape)
        wrong_usage("not a dtype", "create", "8", "--dtype", "float31")
        wrong_usage("seconds", "create", "8", "--for", "soon")
        refused("2^63", "create", "--shape", "9223372036854775807,3")

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


def npy(text, data=b"", version=1, length=None):
    """A .npy file with this dictionary."""
    text = text.encode("latin-1")
    size = (len(text) if length is None else length).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


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
                (b"x" * 100, "no .npy file"), (good.replace(b"\x01\x00", b"\x04\x00", 1), "version"),
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

    def test_bad_targets(self):
        for target in ("", "x", "{", "{}", "tm2k-00", "0" * 15, '{"v":1}'):
            wrong_usage("tmeshctl get", "get", target)
        wrong_usage("token", "get", "0" * 16)
        refused("token", "get", "tm1m-zz")
        refused("no such region", "get", "tm1m-" + "0" * 32 + "-" + "0" * 32)


class See(Base):
    def test_show_by_every_name(self):
        with held("create", "10") as names:
            by = [answer("show", name) for name in
                  (names["id"], names["id"].upper(), names["token"], json.dumps(names["ref"]))]
            self.assertEqual([info["id"] for info in by], [names["id"]] * 4)
        refused("no region", "show", names["id"])

    def test_what_names_no_region(self):
        for verb in ("show", "holders"):
            for name in ("", "0" * 15, "0" * 17, "g" * 16, "0x" + "1" * 14, "+" + "1" * 15,
                         " " + "1" * 15, "1" * 15 + "\n", "tm2k-" + "0" * 32, "{}"):
                wrong_usage(f"tmeshctl {verb}", verb, name)
            refused("no region 0000000000000000", verb, "0" * 16)
            refused("not a token", verb, "tm1m-" + "0" * 31)
            refused("no such region", verb, "tm1m-" + "0" * 32 + "-" + "0" * 32)
        refused("not an id", "show", "\x1b[31m", status=2)

    def test_labels_that_nobody_may_give(self):
        for label in ("a\nb", "\x1b[31m", "a\x7f", "a\x85", b"\xff", b"\xed\xa0\x80", "x" * 64):
            refused("label", "create", "1", "--label", label, "--for", "1")
            refused("label", "put", self.file(b"x"), "--label", label, "--for", "1")
        with held("create", "1", "--label", "ü" * 31) as names:
            self.assertEqual(answer("show", names["id"])["label"], "ü" * 31)

    def test_show_schema(self):
        with held("create", "10", "--label", "x") as names:
            info = answer("show", names["id"])
        types = {
            "id": str, "backend": str, "label": str, "bytes": int, "alloc_bytes": int,
            "backing": str, "views": int, "pinned_bytes": int, "fence_value": int,
            "fence": str, "cgroup_id": int,
            "huge_bytes": int, "sealed": bool, "revoked": bool, "uid": int, "gid": int,
            "mode": int, "node": (int, type(None)), "handles": int, "pinning_handles": int,
            "exports": int, "attachments": int, "linger_ms": int, "created_ns": int,
            "tensor": (dict, type(None)), "description": str,
        }
        self.assertEqual(set(info), set(types))
        for key, kind in types.items():
            self.assertIsInstance(info[key], kind, key)
        self.assertEqual((info["bytes"], info["uid"]), (10, os.getuid()))

    def test_holders(self):
        with held("create", "10") as names:
            holders = answer("holders", names["token"])
            self.assertEqual({holder["pid"] for holder in holders}, {names["pid"]})
            self.assertEqual({holder["command"] for holder in holders}, {"tmeshctl"})
            self.assertEqual(set(holders[0]), {
                "kind", "pid", "command", "uid", "rights", "mappings", "attachments",
                "offset", "bytes", "since_ns", "device", "mapped", "view",
                "lease_ns", "lease_left_ns", "lapsed", "producer",
            })
            self.assertIn(str(names["pid"]), tool("holders", names["id"])[0].decode())

    def test_stats(self):
        before = answer("stats")[BACKEND]
        with held("put", self.file(bytes(5000))):
            after = answer("stats")[BACKEND]
        self.assertGreaterEqual(after["regions"], 1)
        self.assertEqual(set(before), set(after))
        self.assertEqual(after["limits"] is None, BACKEND == "memfd")
        for count in ("bytes", "regions", "handles", "pins") if after["limits"] else ():
            for form in ("used_%s", "max_%s_per_uid", "used_%s_ipc_ns", "max_%s_per_ipc_ns",
                         "max_%s"):
                self.assertIn(form % count, after["limits"])
        self.assertIn("alloc_bytes", tool("stats")[0].decode())

    def test_doctor(self):
        found = answer("doctor")
        self.assertTrue(found["backends"][BACKEND]["works"])
        for name, backend in found["backends"].items():
            for cap in backend["capabilities"]:
                self.assertIn(cap["level"], ("no", "cooperative", "enforced"))
                self.assertTrue(cap["reason"], f"{name} {cap['name']} has no reason")
        self.assertEqual(found["machine"]["module"]["value"],
                         "loaded" if HAVE_MODULE else "not loaded")
        for fact in found["machine"].values():
            self.assertTrue(fact["value"])
        self.assertTrue(found["gpus"]["reason"] or found["gpus"]["devices"])
        out = tool("doctor")[0].decode()
        self.assertIn(f"{BACKEND} backend: works", out)
        self.assertRegex(out, "GPUs: not (tried|supported): |GPU 0: ")

    def test_doctor_shows_the_runtime_directory(self):
        for name in (b"r\xff\x1b" + b"n" * 200, b"run"):
            path = os.path.join(os.fsencode(self.dir), name)
            os.environb[b"TMESH_RUNTIME_DIR"] = path
            fact = answer("doctor")["machine"]["runtime directory"]
            self.assertTrue(fact["value"].startswith(self.dir + "/r") and fact["value"].endswith(name[-1:].decode()))
            self.assertIsNone(fact["advice"])
        self.assertRegex(tool("doctor")[0].decode(), f"runtime directory +{self.dir}/run")

    def test_doctor_finds_a_bad_runtime_folder(self):
        os.mkdir(os.path.join(self.dir, "run"))
        os.chmod(os.path.join(self.dir, "run"), 0o777)
        out, _ = tool("doctor", status=0 if HAVE_MODULE else 1)
        self.assertRegex(out.decode(), r"memfd backend: does not work: .*run")
        self.assertRegex(out.decode(), r"runtime directory +cannot be used +.*chmod 700")

    @unittest.skipIf(BACKEND == "kernel", "the kernel's tokens need no directory")
    def test_another_runtime_directory_is_named(self):
        with held("create", "5") as names:
            os.environ["TMESH_RUNTIME_DIR"] = os.path.join(self.dir, "other")
            refused(f"is not {self.dir}/other, where it was looked for", "get", names["token"])

    def test_a_full_disk_is_told(self):
        with held("create", "5") as names, open("/dev/full", "w") as full:
            for words in (("--help",), ("--version",), ("ls", "--help"), ("ls",), ("ls", "--json"), ("show", names["id"]),
                          ("holders", names["id"]), ("doctor",), ("stats",), ("graph",), ("top",), ("metrics",),
                          ("create", "5"), ("create", "5", "--background")):
                done = subprocess.run([TOOL, *words], stdout=full, stderr=subprocess.PIPE, timeout=WAIT_S)
                self.assertEqual((done.returncode, done.stderr.count(b"No space left")), (1, 1), words)


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

    def test_progress_only_on_a_terminal(self):
        args = ("--shape", str(6 * 2097152), "--", "true")
        said, status = self.on_terminal("put", self.slow_pipe("a"), *args)
        self.assertEqual(status, 0)
        self.assertRegex(said, r"\rput: +\d+% ")
        self.assertTrue(said.endswith("\r\033[K"), said)
        out, said = tool("put", self.slow_pipe("b"), *args)
        self.assertEqual((out, said), (b"", ""))

    def test_no_progress_for_what_is_quick(self):
        said, status = self.on_terminal("put", self.file(b"x"), "--", "true")
        self.assertEqual((said, status), ("", 0))

    def test_bytes_do_not_go_to_a_terminal(self):
        with held("put", self.file(b"plain\x1b")) as names:
            said, status = self.on_terminal("get", names["token"])
            self.assertEqual(status, 2)
            self.assertNotIn("plain", said)
            said, status = self.on_terminal("get", names["token"], "-o", "-")
            self.assertEqual((said, status), ("plain\x1b", 0))

    def is_escaped(self, name):
        """Nothing of what others wrote steers the terminal, or spoils the JSON."""
        for verb in (("ls",), ("show", name)):
            done = subprocess.run([TOOL, *verb], capture_output=True, timeout=WAIT_S, check=True)
            for bad in (b"\x1b", b"\x07", b"\xff", "\u202e".encode()):
                self.assertNotIn(bad, done.stdout + done.stderr)
            json.loads(tool(*verb, "--json")[0].decode())
        self.assertIn(b"red", tool("show", name)[0])

    def test_what_others_wrote_is_escaped(self):
        """A memfd whose name looks like a region's, with a label no library would set."""
        os.environ["TMESH_BACKEND"] = "memfd"
        name = b"tmesh:1:00000000deadbeef:10:\x1b[31mred\x07 \xff\xe2\x80\xae"
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        os.truncate(fd, 4096 + 8192)
        self.is_escaped("00000000deadbeef")
        self.assertIn(b"\\x1b[31mred", tool("ls")[0])

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

    def test_what_only_looks_like_a_region(self):
        os.environ["TMESH_BACKEND"] = "memfd"
        for rest in ("00000000deadbeef:0:x", "00000000deadbeef:-1:x", "00000000deadbeef: 1:x",
                     "00000000deadbeef:0x1:x", "00000000deadbeef:11111111111111111:x",
                     "00000000deadbeef:1", "00000000DEADBEEF:1:x", "0000000deadbeef:1:x",
                     "-0000000deadbeef:1:x", "00000000deadbeef:1:" + "x" * 64):
            fd = os.memfd_create(f"tmesh:1:{rest}", os.MFD_CLOEXEC)
            os.truncate(fd, 8192)
            try:
                self.assertFalse([r for r in answer("ls") if r["id"] == "00000000deadbeef"], rest)
                refused("no region", "show", "00000000deadbeef")
            finally:
                os.close(fd)


class Completion(Base):
    def complete(self, *words):
        script = ('source "$1"; shift; COMP_WORDS=(tmeshctl "$@"); '
                  'COMP_CWORD=$#; _tmeshctl; printf "%s\\n" "${COMPREPLY[@]}"')
        path = os.path.join(ROOT, "tools", "completion", "tmeshctl")
        done = subprocess.run(["bash", "-c", script, "-", path, *words], check=True,
                              capture_output=True, text=True)
        return done.stdout.split()

    def test_verbs(self):
        self.assertEqual(self.complete(""), VERBS + ["--help", "--version"])

    def test_options_are_those_of_help(self):
        for verb in VERBS:
            text = tool(verb, "--help")[0].decode()
            options = re.findall(r"^  (?:-\w, |    )(--[\w-]+)", text, re.M)
            self.assertIn("--help", options)
            self.assertEqual(sorted(self.complete(verb, "--")), sorted(options), verb)

    def test_values(self):
        for dtype in self.complete("put", "--dtype", ""):
            tool("create", "16", "--dtype", dtype, "--", "true")
        self.assertEqual(self.complete("ls", "--backend", "m"), ["memfd"])


class Model(Base):
    """Verbs that are programs of their own, and what they do."""

    def write(self, name="m.safetensors"):
        header = json.dumps({"__metadata__": {"format": "pt\x1b[2J"},
                             "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, name)
        pathlib.Path(path).write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(16)))
        return path

    def test_model(self):
        path = self.write()
        text = tool("model", path)[0].decode()
        self.assertIn("[2, 2]", text)
        self.assertNotIn("\x1b", text)
        told = json.loads(tool("model", "--json", path)[0])
        self.assertEqual(told["tensors"][0]["dtype"], "float32")
        self.assertEqual(told["byte_size"], 16)

    def test_refused(self):
        path = self.write()
        with open(path, "ab") as file:
            file.write(b"x")
        for verb in "model", "load":
            refused("belong to no tensor", verb, path)
        wrong_usage("load --help", "load")
        wrong_usage("magic", "load", "--method", "magic", path)

    def test_load(self):
        path = self.write()
        told = json.loads(tool("load", "--json", "--background", "--for", "20", path)[0])
        try:
            self.assertEqual(told["tensors"], 1)
            self.assertEqual(told["report"]["bytes"], 16)
            self.assertEqual(tool("get", told["token"])[0][:16], bytes(range(16)))
            again = tool("load", path, "--", TOOL, "show", told["token"])[0].decode()
            self.assertIn(told["id"], again)
        finally:
            os.kill(told["pid"], signal.SIGTERM)

    def kept(self):
        return {one["name"]: one for one in answer("kept")}

    def test_keep_as(self):
        path = self.write()
        tool("load", "--keep-as", "mine", path, "--", "true")
        os.unlink(path)
        self.addCleanup(subprocess.run, [TOOL, "drop", "mine"], capture_output=True)
        # Its index and its tensors; nobody holds them.
        self.assertEqual((self.kept()["mine"]["regions"], self.kept()["mine"]["held"]), (2, 0))
        refused("kept already", "load", "--keep-as", "mine", self.write(), "--", "true")
        refused("a name", "load", "--keep-as", "", self.write(), "--", "true")
        wrong_usage("exclude", "load", "--keep", "--keep-as", "mine", path)
        tool("drop", "mine")
        self.assertEqual(self.kept(), {})

    def test_keep_by_token(self):
        with held("put", self.file(b"kept by its token")) as names:
            tool("keep", names["token"], "theirs")
        self.addCleanup(subprocess.run, [TOOL, "drop", "theirs"], capture_output=True)
        self.assertEqual((self.kept()["theirs"]["regions"], self.kept()["theirs"]["held"]), (1, 0))
        tool("drop", "theirs")
        refused("nothing is kept", "drop", "theirs")

    def test_no_program(self):
        for verb in "nosuch", "../x", "LOAD", "load/../load", "a" * 40:
            wrong_usage("no such verb", verb)


def declarations(text):
    """The functions that a header or a synopsis declares, each in a line."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return [re.sub(r"\s+", " ", one) for one in re.findall(r"^[a-z][^;{}]*?\btmesh_\w+\([^;{}]*\);", text, re.M)]


def called(declaration):
    return re.search(r"\w+(?=\()", declaration)[0]


DECLARED = [one for header in glob.glob(os.path.join(ROOT, "include", "tmesh", "*.h"))
            for one in declarations(pathlib.Path(header).read_text())]


class Man(Base):
    @unittest.skipUnless(shutil.which("man"), "man-db is not installed")
    def test_pages_are_clean(self):
        pages = [page for page in sorted(glob.glob(os.path.join(MAN, "*", "*"))) if not os.path.islink(page)]
        self.assertTrue(pages)
        for page in pages:
            done = subprocess.run(["man", "--warnings", "-l", page], check=True,
                                  capture_output=True, text=True,
                                  env=dict(os.environ, MANWIDTH="80", LC_ALL="C.UTF-8"))
            self.assertEqual(done.stderr, "", page)
            self.assertTrue(done.stdout.strip(), page)

    def test_every_verb_and_option_is_explained(self):
        with open(os.path.join(MAN, "man1", "tmeshctl.1")) as page:
            text = page.read().replace("\\-", "-")
        for verb in VERBS:
            self.assertIn(f"\\fB{verb}\\fR", text)
            options = re.findall(r"--[\w-]+", tool(verb, "--help")[0].decode())
            for option in options:
                self.assertIn(f"\\fB{option}\\fR", text, f"{verb} {option}")

    def test_every_call_is_in_a_page(self):
        """In the synopsis of one, as the header declares it, and among its names."""
        shown = []
        for source in glob.glob(os.path.join(ROOT, "docs", "man", "*.3.scd")):
            page = pathlib.Path(source).read_text()
            found = declarations(re.search(r"^# SYNOPSIS$(.*?)^# ", page, re.S | re.M)[1])
            names = re.search(r"^# NAME\n\n(.*?) - ", page, re.M)[1].split(", ")
            title = os.path.basename(source).removesuffix(".3.scd")  # of a call, or of what several are about
            self.assertEqual(names, list(dict.fromkeys([title, *map(called, found)])))
            shown += found
        self.assertEqual(sorted(shown), sorted(DECLARED))

    @unittest.skipUnless(shutil.which("man"), "man-db is not installed")
    def test_man_finds_every_call(self):
        for call in map(called, DECLARED):
            done = subprocess.run(["man", "-M", MAN, "-w", call], capture_output=True, text=True)
            self.assertRegex(done.stdout, r"\.3\n$", f"{call}: {done.stderr}")


class Tap(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.number = 0

    def line(self, word, test, note=""):
        self.number += 1
        name = test.id().split(".", 1)[1].replace(".test_", ": ").replace("_", " ")
        print(f"{word} {self.number} - {name}{note}", flush=True)

    def addSuccess(self, test):
        self.line("ok", test)

    def addSkip(self, test, reason):
        self.line("ok", test, f" # SKIP {reason}")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line("not ok", test)
        traceback.print_exception(*err, file=sys.stderr)

    addError = addFailure


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    print(f"1..{suite.countTestCases()}")
    result = Tap()
    suite.run(result)
    return 1 if result.failures or result.errors else 0


if __name__ == "__main__":
    sys.exit(main())
