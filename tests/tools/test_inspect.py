#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The verbs that show, draw, count and watch, and those that take back. TAP.

usage: tests/tools/test_inspect.py TMESHCTL MAN_DIR
"""

import contextlib
import errno
import fcntl
import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import unittest

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harness import (BACKEND, HAVE_MODULE, TOOL, WAIT_S, Base, answer, any_backend, eventually, held, main,
                           refused, tool, wrong_usage)

EVIL = 'a"b\\c {x} <y> \u00e9'


def metrics(*args):
    text = tool("metrics", *args)[0].decode()
    assert text.endswith("# EOF\n")
    return {family.name: family for family in text_string_to_metric_families(text)}


def drawn():
    """Graphviz's own reading of the drawing."""
    dot = tool("draw")[0]
    done = subprocess.run(["dot", "-Tjson0"], input=dot, capture_output=True, check=True)
    return json.loads(done.stdout)


class See(Base):
    def test_show_by_every_name(self):
        with held("create", "10") as names:
            by = [answer("show", name) for name in
                  (names["id"], names["id"].upper(), names["token"], json.dumps(names["ref"]))]
            self.assertEqual([info["id"] for info in by], [names["id"]] * 4)
        refused("no region", "show", names["id"])

    def test_the_beginning_of_an_id(self):
        with contextlib.ExitStack() as several:
            ids = {several.enter_context(held("create", "1"))["id"] for _ in range(2)}
            # Two that begin alike: memfds with the names of regions, which need no holder of tmesh's.
            begin = f"dead{os.getpid():08x}"
            for number in begin + "beef", begin + "bee1":
                fd = os.memfd_create(f"tmesh:1:{number}:10:x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                several.callback(os.close, fd)
                os.truncate(fd, 4096 + 8192)
            for number in ids:
                # The module counts: its ids are alike but for the end.
                for digits in (8, 15) if BACKEND == "memfd" else (16,):
                    self.assertEqual(answer("show", number[:digits])["id"], number)
                    self.assertTrue(answer("holders", number[:digits].upper()))
            if BACKEND == "memfd":
                for verb in "show", "holders":
                    refused(f"2 regions have an id that begins with {begin}", verb, begin)
                    tool(verb, begin + "bee1")
        wrong_usage("needs a token", "get", "0" * 8)

    def test_a_bundle_is_not_one_region(self):
        """Its ref is refused with a way on, and the list says what its index is."""
        header = json.dumps({"w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
        path = self.file(struct.pack("<Q", len(header)) + header + b"xy", "m.safetensors")
        with held("load", path) as names:
            text = json.dumps(names["ref"])
            for verb in "show", "holders", "get", "seal", "export", "revoke", "lease":
                wrong_usage(f"and {verb} takes one region", verb, text)
            self.assertIn(b"bundle of 1 tensor ", tool("ls")[0])
            self.assertIn("this process or another has read it", tool("load", path, "--for", "1")[0].decode())

    @any_backend
    def test_what_names_no_region(self):
        for verb in ("show", "holders"):
            for name in ("", "0" * 3, "0" * 17, "g" * 16, "0x" + "1" * 14, "+" + "1" * 15,
                         " " + "1" * 15, "1" * 15 + "\n", "tm2k-" + "0" * 32, "{}"):
                wrong_usage(f"tmeshctl {verb}", verb, name)
            refused("no region 0000000000000000", verb, "0" * 16)
            # The module counts from 1. On memfds a region of another suite may begin with so few digits.
            refused("no region ffffffffffff...", verb, "f" * 12)
            short = subprocess.run([TOOL, verb, "f" * 4], capture_output=True, timeout=WAIT_S)
            self.assertIn(short.returncode, (0, 1), short.stderr)
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
            "huge_bytes": int, "sealed": bool, "revoked": bool, "poisoned": bool, "kept": bool, "uid": int, "gid": int,
            "mode": int, "node": (int, type(None)), "handles": int, "pinning_handles": int,
            "exports": int, "attachments": int, "hold_ms": int, "created_ns": int,
            "tensor": (dict, type(None)), "description": str,
        }
        self.assertEqual(set(info), set(types))
        for key, kind in types.items():
            self.assertIsInstance(info[key], kind, key)
        self.assertEqual((info["bytes"], info["uid"]), (10, os.getuid()))

    def test_holders(self):
        """Itself is none of them. Other suites look at the machine's regions, and may be a holder for a
        moment."""
        with held("create", "10") as names:
            looks = subprocess.Popen([TOOL, "holders", names["token"], "--json"], stdout=subprocess.PIPE)
            holders = json.loads(looks.communicate(timeout=WAIT_S)[0])
            self.assertNotIn(looks.pid, {holder["pid"] for holder in holders})
            holders = [holder for holder in holders if holder["pid"] == names["pid"]]
            self.assertEqual({holder["command"] for holder in holders}, {"tmeshctl"})
            self.assertEqual(set(holders[0]), {
                "kind", "pid", "command", "uid", "rights", "mappings", "attachments",
                "offset", "bytes", "since_ns", "device", "mapped", "view",
                "lease_ns", "lease_left_ns", "lapsed", "producer",
            })
            self.assertIn(str(names["pid"]), tool("holders", names["id"])[0].decode())

    def test_memory_errors_are_counted(self):
        """The numbers that only the module has: for memfds they are 0."""
        def count():
            sample, = (s for s in metrics()["tmesh_poisoned_regions"].samples if s.labels["backend"] == BACKEND)
            return sample.value

        before = count()
        if BACKEND == "memfd":
            self.assertEqual(before, 0)
            return
        call = bytearray(struct.pack("<IIQiIII64siIQ", 112, 0, 8192, 0, 0, 0, 0, b"", 0, 0, 0))
        with open("/dev/tmesh", "rb") as device:
            fcntl.ioctl(device, 0xe701, call)
        fd, _, number = struct.unpack_from("<iIQ", call, 96)
        self.addCleanup(os.close, fd)
        memory = mmap.mmap(fd, 8192)
        memory[:] = b"x" * 8192
        try:
            memory.madvise(100, 0, 4096)  # MADV_HWPOISON
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EINVAL):
                self.skipTest(f"this kernel makes no memory errors: {error}")
        self.assertEqual(count(), before)
        # A call of the kernel touches it, where it is not mapped yet.
        with open("/dev/zero", "rb", buffering=0) as zeros, self.assertRaises(OSError):
            zeros.readinto(memoryview(mmap.mmap(fd, 8192))[:4096])
        eventually(lambda: count() == before + 1, "a region with a memory error is counted")
        self.assertTrue(answer("show", f"{number:016x}")["poisoned"])

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
        self.assertRegex(found["machine"]["engine processes"]["value"],
                         r"^(not confined: .+|confined: files by Landlock \(ABI [0-9]+\), system calls by "
                         r"seccomp; ([0-9]+) of \2 attempts from inside were denied|not tried: .+)$")
        self.assertTrue(found["gpus"]["reason"] or found["gpus"]["devices"])
        out = tool("doctor")[0].decode()
        self.assertIn(f"{BACKEND} backend: works", out)
        self.assertRegex(out, "GPUs: not (tried|supported): |GPU 0: ")
        self.assertIsNone(found["engines"]["reason"])
        self.assertLessEqual({"ggml", "onnx"}, {engine["name"] for engine in found["engines"]["engines"]})
        self.assertRegex(out, r"engines\n +ggml +(works|does not work) ")
        # A part that no GPU has run says so, until one has.
        self.assertEqual(len(re.findall(r"^  (?:ggml|onnx) .*CUDA: never seen", out, re.M)), 2)

    @any_backend
    def test_a_keeper_out_of_reach(self):
        """Doctor says why it knows nothing of the keeper."""
        os.environ["TMESH_RUNTIME_DIR"] = self.file(b"")
        done = subprocess.run([TOOL, "doctor", "--json"], capture_output=True, timeout=WAIT_S)
        value = json.loads(done.stdout)["machine"]["keeper"]["value"]
        self.assertTrue(value.startswith("unknown: ") and os.strerror(errno.ENOTDIR) in value, value)

    @any_backend
    def test_devices(self):
        found = answer("devices")
        cpu = found["devices"][0]
        self.assertEqual((cpu["kind"], cpu["id"][:4]), ("cpu", "cpu:"))
        self.assertTrue(0 < cpu["memory_free"] <= cpu["memory"])
        for engine in found["engines"]:
            self.assertEqual(engine["version"] is None, engine["reason"] is not None)
        # A part that no GPU has run says so, until one has.
        self.assertEqual({engine["name"]: engine["never_seen"] for engine in found["engines"] if engine["name"] in ("ggml", "onnx")},
                         {"ggml": ["cuda"], "onnx": ["cuda"]})
        self.assertEqual(cpu["never_seen"], [])
        out = tool("devices")[0].decode()
        self.assertRegex(out, rf"DEVICE +MEMORY.*\n{cpu['id']} ")
        self.assertRegex(out, "engine ggml( [0-9.]+|: cannot be used): .")
        self.assertEqual(len(re.findall("^  CUDA: .*never seen on a GPU", out, re.M)), 2)
        os.environ["TMESH_GGML"] = os.path.join(self.dir, "no\x1blibrary")
        self.assertRegex(tool("devices")[0].decode(), r"engine ggml: cannot be used: .*no\\x1blibrary")

    @any_backend
    def test_doctor_without_the_program_for_engines(self):
        """It is of a package of its own."""
        alone = shutil.copy(TOOL, self.dir)
        env = dict(os.environ, PATH=self.dir)
        done = subprocess.run([alone, "doctor"], capture_output=True, env=env, timeout=WAIT_S)
        self.assertIn(b"engines: not tried: tmeshctl-devices is not installed", done.stdout)
        program = os.path.join(self.dir, "tmeshctl-devices")
        with open(program, "w") as file:
            file.write("#!/bin/sh\necho '{\"engines\": []}'; kill -SEGV $$\n")
        os.chmod(program, 0o755)
        done = subprocess.run([alone, "doctor"], capture_output=True, env=env, timeout=WAIT_S)
        self.assertIn(b"engines: not known: tmeshctl-devices failed", done.stdout)

    @any_backend
    def test_doctor_shows_the_runtime_directory(self):
        for name in (b"r\xff\x1b" + b"n" * 200, b"run"):
            path = os.path.join(os.fsencode(self.dir), name)
            os.environb[b"TMESH_RUNTIME_DIR"] = path
            fact = answer("doctor")["machine"]["runtime directory"]
            self.assertTrue(fact["value"].startswith(self.dir + "/r") and fact["value"].endswith(name[-1:].decode()))
            self.assertIsNone(fact["advice"])
        self.assertRegex(tool("doctor")[0].decode(), f"runtime directory +{self.dir}/run")

    @any_backend
    def test_doctor_finds_a_bad_runtime_folder(self):
        os.mkdir(os.path.join(self.dir, "run"))
        os.chmod(os.path.join(self.dir, "run"), 0o777)
        out, _ = tool("doctor", status=0 if HAVE_MODULE else 1)
        self.assertRegex(out.decode(), r"memfd backend: does not work: .*run")
        self.assertRegex(out.decode(), r"runtime directory +cannot be used +.*chmod 700")

    @any_backend
    @unittest.skipIf(os.geteuid() != 0, "only root can be another user")
    def test_doctor_makes_no_folder_of_roots_in_a_users(self):
        """With a user's XDG_RUNTIME_DIR, as sudo may leave it, it would lock that user out."""
        os.chown(self.dir, 65534, 65534)
        env = {name: value for name, value in os.environ.items() if name != "TMESH_RUNTIME_DIR"}
        out, _ = tool("doctor", status=0 if HAVE_MODULE else 1, env=env | {"XDG_RUNTIME_DIR": self.dir})
        self.assertRegex(out.decode(), r"runtime directory +cannot be used +.*user 65534 owns the folder above")
        self.assertEqual(os.listdir(self.dir), [])

    @unittest.skipIf(BACKEND == "kernel", "the kernel's tokens need no directory")
    def test_another_runtime_directory_is_named(self):
        with held("create", "5") as names:
            os.environ["TMESH_RUNTIME_DIR"] = os.path.join(self.dir, "other")
            refused(f"is not {self.dir}/other, where it was looked for", "get", names["token"])

    @any_backend
    def test_a_full_disk_is_told(self):
        with held("create", "5") as names, open("/dev/full", "w") as full:
            for words in (("--help",), ("--version",), ("ls", "--help"), ("ls",), ("ls", "--json"), ("show", names["id"]),
                          ("holders", names["id"]), ("doctor",), ("draw",), ("top",), ("metrics",),
                          ("create", "5"), ("create", "5", "--background")):
                done = subprocess.run([TOOL, *words], stdout=full, stderr=subprocess.PIPE, timeout=WAIT_S)
                self.assertEqual((done.returncode, done.stderr.count(b"No space left")), (1, 1), words)

    @any_backend
    def test_a_full_disk_is_told_by_the_other_programs(self):
        """By those that are built."""
        tried = 0
        for name, words in {"tmesh-keeper": ("--help",), "tmesh-engine": ("--help", "--version"), "tmesh-mount": ("--help", "--version"),
                            "tmesh-net": ("--help", "--version")}.items():
            program = os.path.join(os.path.dirname(TOOL), name)
            for word in words if os.path.exists(program) else ():
                with open("/dev/full", "w") as full:
                    done = subprocess.run([program, word], stdout=full, stderr=subprocess.PIPE, timeout=WAIT_S)
                self.assertEqual((done.returncode, done.stderr), (1, f"{name}: writing the answer: No space left on device\n".encode()), word)
                tried += 1
        self.assertGreater(tried, 0)


class Metrics(Base):
    def test_an_empty_machine_is_valid_openmetrics(self):
        families = metrics()
        self.assertIn("tmesh_regions", families)
        self.assertEqual(families["tmesh_memory_bytes"].unit, "bytes")

    def test_limits_are_those_of_the_module(self):
        families = metrics()
        for what in "bytes", "regions", "handles", "pins":
            for kind, scopes in ("used", {"uid", "ipc_ns"}), ("limit", {"uid", "ipc_ns", "all"}):
                name = f"tmesh_{kind}_{what}"
                self.assertEqual(name in families, BACKEND == "kernel", name)
                if name in families:
                    self.assertEqual({sample.labels["scope"] for sample in families[name].samples}, scopes)

    def test_regions_are_counted_by_state(self):
        def all_counted():
            families = metrics("--regions")
            series = [s.labels for s in families["tmesh_region_bytes"].samples if s.labels["backend"] == BACKEND]
            states = {labels["id"]: labels["state"] for labels in series}
            self.assertEqual((states[one["id"]], states[two["id"]]), ("open", "sealed"))
            return all(sample.value == [labels["state"] for labels in series].count(sample.labels["state"])
                       for sample in families["tmesh_regions"].samples if sample.labels["backend"] == BACKEND)

        with held("create", "5000") as one, held("put", self.file(b"x" * 10)) as two:
            # A series stands once also where another suite has two memfds of one name, as those that lie about regions do.
            eventually(all_counted, "as many regions of each state as series")

    def test_labels_are_escaped(self):
        with held("create", "5000", "--label", EVIL) as names:
            series = [s for s in metrics("--regions")["tmesh_region_bytes"].samples
                      if s.labels["id"] == names["id"]]
        self.assertEqual(series[0].labels["label"], EVIL)
        self.assertEqual(series[0].value, 8192)

    def test_a_series_stands_once(self):
        """Two memfds of one name spoil nothing for others."""
        os.environ["TMESH_BACKEND"] = "memfd"
        number = f"dead{os.getpid():08x}0000"
        for label in "a", "a", "b":
            fd = os.memfd_create(f"tmesh:1:{number}:10:{label}", os.MFD_CLOEXEC)
            self.addCleanup(os.close, fd)
        # The parser would pass over the second one; those of scrapers refuse all of it.
        text = tool("metrics", "--regions")[0].decode()
        labels = re.findall(f'id="{number}".*label="(.)"', text)
        self.assertEqual(sorted(labels), ["a", "b"])


@any_backend
class Draw(Base):
    def test_graphviz_reads_it(self):
        with held("create", "5000", "--label", EVIL) as names:
            graph = drawn()
        nodes = {node["name"]: node for node in graph["objects"]}
        region, process = nodes["r" + names["id"]], nodes[f"p{names['pid']}"]
        self.assertIn(names["id"], region["label"])
        self.assertIn("tmeshctl", process["label"])
        edges = [(edge["tail"], edge["head"]) for edge in graph["edges"]]
        self.assertIn((process["_gvid"], region["_gvid"]), edges)


@any_backend
class GraphFile(Base):
    """A graph for engines, by the program tmeshctl-graph."""

    TEXT = b"graph g\nh = matmul(x, w)\nx = input : float32[2,4]\nw = weight : float16[3,4]\noutput y = h\n"
    WHOLE = b"graph g\nx = input : float32[2,4]\nw = weight : float16[3,4]\nh = matmul(x, w) : float32[2,3]\noutput y = h\n"

    def test_every_form(self):
        path = self.file(self.TEXT, "g.graph")
        self.assertEqual(tool("graph", path)[0], self.WHOLE)
        found = answer("graph", path)
        self.assertEqual([node["shape"] for node in found["nodes"] if node["name"] == "h"], [[2, 3]])
        dot = tool("graph", "--dot", path)[0]
        done = subprocess.run(["dot", "-Tjson0"], input=dot, capture_output=True, check=True)
        self.assertTrue(any("matmul" in node.get("label", "") for node in json.loads(done.stdout)["objects"]))
        # A name that looks like an option.
        os.rename(path, os.path.join(self.dir, "--json"))
        self.assertEqual(tool("graph", "--", "--json", cwd=self.dir)[0], self.WHOLE)

    def test_what_is_no_graph(self):
        hostile = {"cycle": (b"graph g\na = silu(b)\nb = silu(a)\noutput y = a\n", "cycle"),
                   "shape": (self.TEXT.replace(b"[3,4]", b"[3,5]"), 'node "h"'),
                   "huge": (self.TEXT.replace(b"[3,4]", b"[99999999999,99999999999]"), "2^48"),
                   "operator": (b"graph g\nx = \x1b[31m : float32[1]\n", "line 2"),
                   "json": (b'{"tmesh_graph": 1, "name": "g", "nodes": [{"name": "x\\u001b"}], "outputs": {}}', "begins with"),
                   "zero": (b"graph g\n\0\0", ""), "empty": (b"", ""),
                   "gguf": (b"GGUF" + bytes(60), "tmesh.graphs.of_model()")}
        for name, (data, word) in hostile.items():
            out, said = tool("graph", self.file(data, name), status=1)
            self.assertEqual((out, "\x1b" in said), (b"", False), name)
            self.assertIn(word, said, name)
        large = self.file(b"graph g\n", "large")
        os.truncate(large, (16 << 20) + 1)
        fifo = os.path.join(self.dir, "fifo")
        os.mkfifo(fifo)
        for path, word in ((large, "16 MiB"), (fifo, "regular file"), (self.dir, self.dir), ("/dev/zero", "regular file"),
                           (os.path.join(self.dir, "none"), "No such file")):
            refused(word, "graph", path)

    def test_usage(self):
        path = self.file(self.TEXT, "g.graph")
        wrong_usage("--svg", "graph", "--svg", path)
        wrong_usage("tmeshctl graph", "graph")
        wrong_usage("tmeshctl draw", "draw", path)
        self.assertEqual(tool("draw")[0][:13], b"digraph tmesh")

    def test_without_the_program(self):
        alone = shutil.copy(TOOL, self.dir)
        done = subprocess.run([alone, "graph", "g"], capture_output=True, env=dict(os.environ, PATH=self.dir), timeout=WAIT_S)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"no program tmeshctl-graph", done.stderr)


@any_backend
class Top(Base):
    def test_once_without_a_terminal(self):
        with held("create", "1M", "--label", "larger") as large, held("create", "5000") as small:
            out = tool("top")[0].decode()
        self.assertLess(out.index(large["id"]), out.index(small["id"]))
        self.assertIn(f"tmeshctl {large['pid']}", out)
        self.assertNotIn("\033", out)

    def test_lines_are_cut_on_a_terminal(self):
        with held("create", "1M") as one:
            said, status = self.on_terminal("top", "--count", "1")
        self.assertEqual(status, 0)
        self.assertIn(f"tmeshctl {one['pid']}", said)
        self.assertRegex(said, r"(?s)^\033\[H\033\[J\033\[\?7l.*ID +SIZE.*\033\[\?7h$")

    def test_json_has_all_holders(self):
        # The terminal has two rows for regions, and a reader of JSON reads all of it. Other suites may be holders for a moment, too.
        with held("create", "1M") as one, held("create", "5000") as two, held("create", "5001") as three:
            said, status = self.on_terminal("top", "--json", rows=6)
        self.assertEqual(status, 0)
        shown = {region["id"]: region["held_by"] for region in json.loads(said)["regions"]}
        for names in (one, two, three):
            self.assertIn(f"tmeshctl {names['pid']}", shown[names["id"]].split(", "))

    def test_as_often_as_asked(self):
        out = tool("top", "--count", "2", "--interval", "1")[0].decode()
        self.assertEqual(len(re.findall("^[0-9]+ regions?, ", out, re.M)), 2)

    def test_bad_numbers(self):
        for word in ("0", "-1", "x", "1e3", ""):
            wrong_usage("not", "top", "--count", word)
            wrong_usage("not", "top", "--interval", word)


class Lease(Base):
    def test_it_lapses(self):
        with held("create", "5000") as names:
            self.assertEqual(tool("lease", names["token"], "--period", "1")[0], b"lapsed\n")

    def test_a_command_gets_the_handle(self):
        # A memfd can be read; of a handle of the module's one sees the name.
        command, printed = (("head -c 5 <&$TMESH_HANDLE_FD", b"hello") if BACKEND == "memfd" else
                            ("readlink /proc/self/fd/$TMESH_HANDLE_FD", b"tmesh"))
        with held("put", self.file(b"hello")) as names:
            out = tool("lease", names["token"], "--", "sh", "-c", command)[0]
        self.assertIn(printed, out)

    def test_a_period_has_bounds(self):
        with held("create", "5000") as names:
            refused("1 h", "lease", names["token"], "--period", "3601")
            wrong_usage("seconds", "lease", names["token"], "--period", "0")

    def test_it_ends_with_a_process(self):
        with held("create", "5000") as names, subprocess.Popen(["sleep", "1000"]) as process:
            words = ("lease", names["token"], "--process", str(process.pid), "--period", "3600")
            wrong_usage("process", "lease", names["token"], "--process", "0")
            if BACKEND == "memfd":
                refused("module", *words)
                process.kill()
                return
            with subprocess.Popen([TOOL, *words], stdout=subprocess.PIPE) as leased:
                eventually(lambda: any(holder["lease_ns"]
                                       for holder in answer("holders", names["token"])),
                           "the handle is leased")
                process.kill()
                self.assertEqual(leased.communicate(timeout=WAIT_S)[0], b"lapsed\n")

    def test_an_id_gives_no_handle(self):
        wrong_usage("token", "lease", "0123456789abcdef")


class TakingBack(Base):
    def take_back(self, *more):
        with held("create", "1M", "--manage-token") as names:
            words = ("revoke", names["manage_token"], *more)
            if BACKEND == "memfd":
                refused("module", *words)
                return
            tool(*words)
            self.assertEqual(answer("show", names["id"])["revoked"], True)
            refused("no such region", *words)

    def test_a_region_is_taken_back(self):
        self.take_back()

    def test_its_memory_is_waited_for(self):
        self.take_back("--wait", "60")

    def test_a_readers_token_does_not_revoke(self):
        with held("create", "5000") as names:
            refused("right", "revoke", names["token"])
        wrong_usage("manage", "revoke", "0123456789abcdef", "--wait", "1")

    def test_by_its_id(self):
        with held("create", "1M") as names:
            if BACKEND == "memfd":
                refused("by its id", "revoke", names["id"])
                return
            tool("revoke", names["id"])
            self.assertEqual(answer("show", names["id"])["revoked"], True)
            refused("was revoked", "revoke", names["id"])


class Import(Base):
    def test_what_is_no_dmabuf(self):
        refused("module" if BACKEND == "memfd" else "not a dma-buf", "import", "0",
                stdin=subprocess.PIPE)

    def test_a_device_file_is_kept(self):
        with held("import", "0", "--opaque", "4K") as names:
            self.assertEqual(answer("show", names["id"])["bytes"], 4096)

    @unittest.skipUnless(BACKEND == "kernel", "a memfd has no export that is the module's")
    def test_an_export_of_our_own_is_no_import(self):
        with held("create", "4K", "--writable-token") as names:
            refused("by its token", "export", names["writable_token"], "--", "sh", "-c",
                    f'exec {TOOL} import "$TMESH_DMABUF_FD"')

    def test_what_is_no_descriptor(self):
        for word in ("-1", "x", "99999999999"):
            wrong_usage("descriptor", "import", "--", word)


if __name__ == "__main__":
    sys.exit(main())
