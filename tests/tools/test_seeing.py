#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The verbs that draw, count and watch, and those that take back. TAP.

usage: tests/tools/test_seeing.py TMESHCTL MAN_DIR
"""

import json
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from test_tmeshctl import (BACKEND, TOOL, WAIT_S, Base, answer, eventually, held, main,
                           refused, tool, wrong_usage)

EVIL = 'a"b\\c {x} <y> \u00e9'


def metrics(*args):
    text = tool("metrics", *args)[0].decode()
    assert text.endswith("# EOF\n")
    return {family.name: family for family in text_string_to_metric_families(text)}


def drawn():
    """Graphviz's own reading of the graph."""
    dot = tool("graph")[0]
    done = subprocess.run(["dot", "-Tjson0"], input=dot, capture_output=True, check=True)
    return json.loads(done.stdout)


class Metrics(Base):
    def test_an_empty_machine_is_valid_openmetrics(self):
        families = metrics()
        self.assertIn("tmesh_regions", families)
        self.assertEqual(families["tmesh_memory_bytes"].unit, "bytes")

    def test_regions_are_counted_by_state(self):
        with held("create", "5000") as one, held("put", self.file(b"x" * 10)) as two:
            families = metrics("--regions")
        states = {s.labels["id"]: s.labels["state"]
                  for s in families["tmesh_region_bytes"].samples if s.labels["backend"] == BACKEND}
        self.assertEqual((states[one["id"]], states[two["id"]]), ("open", "sealed"))
        for sample in families["tmesh_regions"].samples:
            if sample.labels["backend"] == BACKEND:
                self.assertEqual(sample.value,
                                 list(states.values()).count(sample.labels["state"]))

    def test_labels_are_escaped(self):
        with held("create", "5000", "--label", EVIL) as names:
            series = [s for s in metrics("--regions")["tmesh_region_bytes"].samples
                      if s.labels["id"] == names["id"]]
        self.assertEqual(series[0].labels["label"], EVIL)
        self.assertEqual(series[0].value, 8192)

    def test_a_series_stands_once(self):
        """Whoever makes two memfds of one name spoils nothing for others."""
        os.environ["TMESH_BACKEND"] = "memfd"
        for label in "a", "a", "b":
            fd = os.memfd_create(f"tmesh:1:00000000deadbeef:10:{label}", os.MFD_CLOEXEC)
            self.addCleanup(os.close, fd)
        # The parser would pass over the second one; those of scrapers refuse all of it.
        text = tool("metrics", "--regions")[0].decode()
        labels = re.findall('id="00000000deadbeef".*label="(.)"', text)
        self.assertEqual(sorted(labels), ["a", "b"])


class Graph(Base):
    def test_graphviz_reads_it(self):
        with held("create", "5000", "--label", EVIL) as names:
            graph = drawn()
        nodes = {node["name"]: node for node in graph["objects"]}
        region, process = nodes["r" + names["id"]], nodes[f"p{names['pid']}"]
        self.assertIn(names["id"], region["label"])
        self.assertIn("tmeshctl", process["label"])
        edges = [(edge["tail"], edge["head"]) for edge in graph["edges"]]
        self.assertIn((process["_gvid"], region["_gvid"]), edges)

    def test_svg(self):
        with held("create", "5000", "--label", "weights"):
            svg = tool("graph", "--svg")[0]
        self.assertTrue(xml.etree.ElementTree.fromstring(svg).tag.endswith("svg"))
        self.assertIn(b"weights", svg)

    def test_without_graphviz(self):
        refused("graphviz", "graph", "--svg", env=dict(os.environ, PATH="/nonexistent"))


class Top(Base):
    def test_once_without_a_terminal(self):
        with held("create", "1M", "--label", "larger") as large, held("create", "5000") as small:
            out = tool("top")[0].decode()
        self.assertLess(out.index(large["id"]), out.index(small["id"]))
        self.assertIn(f"tmeshctl {large['pid']}", out)
        self.assertNotIn("\033", out)

    def test_lines_are_cut_on_a_terminal(self):
        with held("create", "1M"):
            said, status = self.on_terminal("top", "--count", "1")
        self.assertEqual(status, 0)
        self.assertRegex(said, r"(?s)^\033\[H\033\[J\033\[\?7l.*ID +SIZE.*\033\[\?7h$")

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
        wrong_usage("manage", "revoke", "0123456789abcdef")


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
