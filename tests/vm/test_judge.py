#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""Test the judgement on logs written for it: faulty runs must fail."""
import contextlib
import io
import sys
import unittest

import judge
import splat
from boot import Outcome
from tap import Tap, program

WARNING = """\
[    8.5] tmesh-vm: create
[    8.6] ------------[ cut here ]------------
[    8.6] WARNING: CPU: 0 PID: 1 at kmod/main.c:1 tmesh_open+0x1/0x2 [tmesh]
[    8.6] Call Trace:
[    8.6] ---[ end trace 0000000000000000 ]---
"""
KASAN = """\
[    9.0] ==================================================================
[    9.0] BUG: KASAN: slab-use-after-free in tmesh_open+0x1/0x2 [tmesh]
[    9.0] Read of size 4
[    9.0] ==================================================================
[    9.1] Disabling lock debugging due to kernel taint
[    9.2] DMA-API: dma_debug_entry pool grown to 131072 (200%)
"""
# vgem maps its own buffer, because a region that tmesh imported is exported and mapped.
SEGMENT = """\
[    9.3] ------------[ cut here ]------------
[    9.3] DMA-API: platform vgem: mapping sg segment longer than device claims to support [len=131072] [max=65536]
[    9.3] WARNING: CPU: 1 PID: 9 at kernel/dma/debug.c:1178 debug_dma_map_sg+0x3c7/0x9e0
[    9.3] Call Trace:
[    9.3]  <TASK>
[    9.3]  ? __warn+0x9f/0x1d0
[    9.3]  __dma_map_sg_attrs+0xd1/0x1b0
[    9.3]  dma_map_sgtable+0x77/0xc0
[    9.3]  ? __pfx_drm_gem_map_dma_buf+0x10/0x10 [drm]
[    9.3]  drm_gem_map_dma_buf+0xb8/0x150 [drm]
[    9.3]  dma_buf_map_attachment+0x19a/0x2f0
[    9.3]  tmesh_proxy_map+0x21b/0x590 [tmesh]
[    9.3] ---[ end trace 0000000000000000 ]---
"""
END = "\n@ check lockdep is still on 0 \n\n@ taint 12288\n\n@ done\n"


def points(judged):
    """Return (ok, text) of the points that judged(tap) makes."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        judged(Tap())
    return [(line.startswith("ok"), line.partition(" - ")[2])
            for line in out.getvalue().splitlines() if line.startswith(("ok", "not ok"))]


def failed(judged):
    return [text for ok, text in points(judged) if not ok]


def of_guest(results, console="", trouble=None):
    return failed(lambda tap: judge.judge(tap, "k", Outcome(results, console, trouble)))


def of_program(text, status):
    return failed(lambda tap: program(tap, "p", text.splitlines(), status))


class Programs(unittest.TestCase):
    def test_good(self):
        self.assertEqual(of_program("TAP version 13\n1..2\nok 1 - a\nok 2 b # SKIP no disk\n", 0), [])

    def test_hash_in_a_name(self):
        self.assertEqual(of_program("1..1\nok 1 - list # of five\n", 0), [])

    def test_blanks_in_a_name(self):
        """Take no more than a moment: a pattern that backtracks at each blank takes a quarter of an hour."""
        self.assertEqual(of_program(f"1..2\nok 1 - a{' ' * (1 << 20)}b\nnot ok 2 - b  # what\n", 1), ["p: b   what"])

    def test_failed_point(self):
        self.assertEqual(of_program("1..2\nok 1 - a\nnot ok 2 - b\n", 1), ["p: b"])

    def test_failure_with_status_of_success(self):
        self.assertEqual(len(of_program("1..1\nnot ok 1 - b\n", 0)), 2)

    def test_colours_of_a_logger_do_not_hide_lines(self):
        self.assertEqual(of_program("1..2\n\x1b[0mok 1 - a\n\x1b[33;1m\x1b[0mnot ok 2 - b\n", 1), ["p: b"])

    def test_crash(self):
        self.assertEqual(len(of_program("1..2\nok 1 - a\n", 139)), 1)

    def test_silence(self):
        self.assertEqual(len(of_program("", 0)), 1)

    def test_time(self):
        for status in (124, 143):
            self.assertEqual(of_program("1..2\nok 1 - a\n", status), ["p: ended in time"])

    def test_streams(self):
        self.assertEqual(of_program("1..1\nok 1 - a\n1..2\nok 1 - b\nok 2 - c\n", 0), [])
        self.assertEqual(len(of_program("1..2\nok 1 - a\n1..2\nok 1 - b\nok 2 - c\n", 0)), 1)

    def test_skip_without_a_reason(self):
        self.assertEqual(len(of_program("1..1\nok 1 - a # SKIP\n", 0)), 1)

    def test_skip_of_all(self):
        self.assertEqual(of_program("1..0 # SKIP no such device\n", 0), [])
        self.assertEqual(len(of_program("1..0\n", 0)), 1)


class Guests(unittest.TestCase):
    def test_good(self):
        self.assertEqual(of_guest("@ begin a\n1..1\nok 1 - x\n\n@ end 0\n" + END), [])

    def test_restart_within_a_program(self):
        """A program goes on after a restart of its guest."""
        self.assertEqual(of_guest("@ boot\n@ begin a\n1..2\nok 1 - x\n\n@ boot\n\n@ check root is mounted 0 \nnot ok 2 - y\n\n@ end 1\n" + END),
                         ["k: a: y"])

    def test_no_last_word(self):
        self.assertIn("k: the guest reached its end", of_guest("@ begin a\n1..1\nok 1 - x\n\n@ end 0\n"))

    def test_program_that_did_not_end(self):
        self.assertEqual(len(of_guest("@ begin a\n1..1\nok 1 - x\n")), 2)

    def test_failed_check(self):
        self.assertEqual(of_guest("@ check module unloads 1 busy\n" + END), ["k: module unloads: busy"])

    def test_taint(self):
        self.assertEqual(len(of_guest(END.replace("12288", "12416"))), 1)

    def test_ended_from_outside(self):
        self.assertEqual(of_guest(END, trouble="did not end within 9 s"), ["k: did not end within 9 s"])

    def test_reports(self):
        found = of_guest(END, WARNING + KASAN)
        self.assertEqual(len(found), 2)
        self.assertIn("during create: WARNING: CPU: 0", found[0])
        self.assertIn("KASAN: slab-use-after-free", found[1])

    def test_leak(self):
        leak = "unreferenced object 0xffff8880 (size 64):\n  backtrace (crc 0):\n    tmesh_open+0x1\n"
        self.assertEqual(len(of_guest(END.replace("@ done", f"@ leaks\n{leak}{leak}\n@ done"))), 1)


class Allowances(unittest.TestCase):
    def test_none_is_about_the_module(self):
        complaint = splat.in_console(WARNING)[0]
        self.assertIsNone(splat.allowed(complaint, splat.allowances()))

    def test_segments_of_vgem(self):
        own = splat.in_console(SEGMENT)[0]
        ours = splat.in_console(SEGMENT.replace(" drm_gem_map_dma_buf", " tmesh_dmabuf_map"))[0]
        other = splat.in_console(SEGMENT.replace("platform vgem", "platform peer"))[0]
        self.assertIn("vgem", splat.allowed(own, splat.allowances()))
        self.assertIsNone(splat.allowed(ours, splat.allowances()))
        self.assertIsNone(splat.allowed(other, splat.allowances()))

    def test_one_applies(self):
        rules = [(splat.re.compile("vgem"), "the peer's own")]
        self.assertIsNone(splat.allowed(splat.in_console(WARNING)[0], rules))
        self.assertEqual(splat.allowed(splat.in_console(WARNING.replace("tmesh_open", "vgem_open"))[0], rules),
                         "the peer's own")


class AsTap(unittest.TextTestResult):
    """Report unittest's results in the words that tests/run.py reads."""

    def stopTest(self, test):
        super().stopTest(test)
        bad = any(test is case for case, _ in self.failures + self.errors)
        print(f"{'not ok' if bad else 'ok'} {self.testsRun} - vm: {test.id().partition('.')[2]}")

    def stopTestRun(self):
        super().stopTestRun()
        print(f"1..{self.testsRun}")


if __name__ == "__main__":
    unittest.main(testRunner=unittest.TextTestRunner(stream=sys.stderr, verbosity=0, resultclass=AsTap))
