#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""Test the choice of kernels from Debian's index, and how long the choice is kept."""
import contextlib
import io
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import debian
import kernels
import modules
import suites
from tap import Tap
from test_judge import AsTap

INDEX = """\
linux-headers-6.1.0-50-amd64 | 6.1.176-1 | http://mirror/debian bookworm/main amd64 Packages
linux-headers-6.1.0-9-amd64 | 6.1.27-1 | http://mirror/debian bookworm/main amd64 Packages
linux-headers-6.1.0-56-amd64 |  6.1.192-2 | http://mirror/debian-security bookworm-security/main amd64 Packages
linux-headers-6.1.0-56-cloud-amd64 |  6.1.192-2 | http://mirror/debian-security bookworm-security/main amd64 Packages
linux-headers-6.1.0-56-rt-amd64 |  6.1.192-2 | http://mirror/debian-security bookworm-security/main amd64 Packages
linux-headers-6.1.0-56-common |  6.1.192-2 | http://mirror/debian-security bookworm-security/main amd64 Packages
linux-headers-amd64 |  6.1.192-2 | http://mirror/debian-security bookworm-security/main amd64 Packages
linux-headers-amd64 |  6.1.176-1 | http://mirror/debian bookworm/main amd64 Packages
linux-headers-6.12.95+deb12-amd64 | 6.12.95-1~bpo12+1 | http://mirror/debian bookworm-backports/main amd64 Packages
linux-headers-amd64 | 6.12.95-1~bpo12+1 | http://mirror/debian bookworm-backports/main amd64 Packages
linux-headers-6.12.117+deb12-amd64 | 6.12.117-1~deb12u1 | http://mirror/debian-security bookworm-security/main amd64 Packages
linux-headers-6.12-amd64 | 6.12.117-1~deb12u1 | http://mirror/debian-security bookworm-security/main amd64 Packages
linux-headers-6.12.117+deb13-amd64 | 6.12.117-1 | http://mirror/debian-security trixie-security/main amd64 Packages
linux-headers-amd64 | 6.12.117-1 | http://mirror/debian-security trixie-security/main amd64 Packages
linux-headers-7.2.9+deb13-amd64 | 7.2.9-1~bpo13+1 | http://mirror/debian trixie-backports/main amd64 Packages
linux-headers-7.2.12+deb13-amd64 | 7.2.12-1~bpo13+1 | http://mirror/debian trixie-backports/main amd64 Packages
linux-headers-7.3.4+deb13-amd64 | 7.3.4-1~bpo13+1 | http://mirror/debian trixie-backports/main amd64 Packages
linux-headers-7.3.4+deb13-cloud-amd64 | 7.3.4-1~bpo13+1 | http://mirror/debian trixie-backports/main amd64 Packages
linux-headers-amd64 | 7.3.4-1~bpo13+1 | http://mirror/debian trixie-backports/main amd64 Packages
"""


class Newest(unittest.TestCase):
    """Test the choice of the newest kernel of a suite."""

    def setUp(self):
        self.index = debian.index(INDEX)

    def test_suites(self):
        for suite, release in (("bookworm", "6.1.0-56-amd64"), ("bookworm-backports", "6.12.117+deb12-amd64"),
                               ("trixie", "6.12.117+deb13-amd64"), ("trixie-backports", "7.3.4+deb13-amd64")):
            self.assertEqual(debian.newest(self.index, suite), release)

    def test_line(self):
        self.assertEqual(debian.newest(self.index, "trixie-backports", "7.2"), "7.2.12+deb13-amd64")
        self.assertIsNone(debian.newest(self.index, "trixie-backports", "6.18"))

    def test_numbers_not_letters(self):
        index = self.index + [("linux-headers-7.10.1+deb13-amd64", "7.10.1-1~bpo13+1", "trixie-backports")]
        self.assertEqual(debian.newest(index, "trixie-backports"), "7.10.1+deb13-amd64")

    def test_unknown_suite(self):
        self.assertIsNone(debian.newest(self.index, "sid"))


class Chosen(unittest.TestCase):
    """Test that the choice is kept, refreshed, and never old without a message."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.answer = "7.3.4+deb13-amd64"
        self.asked = 0
        self.said = io.StringIO()
        for patch in (mock.patch.object(kernels, "KERNELS_KEPT", self.folder),
                      mock.patch.object(debian, "newest_kernel", self.newest_kernel),
                      contextlib.redirect_stderr(self.said)):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)

    def newest_kernel(self, suite, line):
        self.asked += 1
        self.assertEqual((suite, line), ("trixie-backports", ""))
        if isinstance(self.answer, SystemExit):
            raise self.answer
        return self.answer

    def age(self, days):
        then = time.time() - days * 86400
        os.utime(self.folder / "newest.choice", (then, then))

    def test_kept(self):
        self.assertEqual(kernels.chosen("newest"), "7.3.4+deb13-amd64")
        self.answer = "7.4.1+deb13-amd64"
        self.age(kernels.KEPT_DAYS - 1)
        self.assertEqual(kernels.chosen("newest"), "7.3.4+deb13-amd64")
        self.assertEqual(self.asked, 1)

    def test_asked_again(self):
        kernels.chosen("newest")
        self.answer = "7.4.1+deb13-amd64"
        self.age(kernels.KEPT_DAYS + 1)
        self.assertEqual(kernels.chosen("newest"), "7.4.1+deb13-amd64")
        self.assertIn("newest is 7.4.1+deb13-amd64 from now on, not 7.3.4+deb13-amd64", self.said.getvalue())
        self.assertEqual(kernels.chosen("newest"), "7.4.1+deb13-amd64")
        self.assertEqual(self.asked, 2)

    def test_anew(self):
        kernels.chosen("newest")
        self.answer = "7.4.1+deb13-amd64"
        self.assertEqual(kernels.chosen("newest", anew=True), "7.4.1+deb13-amd64")

    def test_not_reached(self):
        kernels.chosen("newest")
        self.answer = SystemExit("vm: no network")
        self.age(kernels.KEPT_DAYS + 2)
        self.assertEqual(kernels.chosen("newest"), "7.3.4+deb13-amd64")
        self.assertIn("no network: newest is 7.3.4+deb13-amd64, as Debian said 9 days ago", self.said.getvalue())
        with self.assertRaises(SystemExit):
            kernels.chosen("newest", anew=True)
        # This is not a new answer, so the next call reads the index too.
        kernels.chosen("newest")
        self.assertEqual(self.asked, 4)

    def test_nothing_known(self):
        for self.answer in (SystemExit("vm: no network"), None):
            with self.assertRaises(SystemExit):
                kernels.chosen("newest")
        self.assertFalse((self.folder / "newest.choice").exists())


class Told(unittest.TestCase):
    """Test a kernel that is newer than the tested ones."""

    def points(self, *warnings):
        """Return the points of a suite for a module whose build gave these warnings."""
        out = io.StringIO()
        with mock.patch.object(suites.kernels, "prepare"), mock.patch.object(suites.boot, "logs"), \
                mock.patch.object(suites.boot, "run"), mock.patch.object(suites, "judge"), \
                mock.patch.object(suites.coverage, "report"), contextlib.redirect_stdout(out), \
                mock.patch.object(suites.modules, "kept", return_value=("tmesh.ko", [*warnings])):
            suites.on_module(Tap(), "newest", "kselftest")
        return [line for line in out.getvalue().splitlines() if " - " in line]

    def test_tested(self):
        self.assertEqual(self.points(), ["ok 1 - newest: kselftest: the module builds without a warning"])

    def test_newer(self):
        built, told = self.points("compat.c:28:9: note: '#pragma message: warning: tmesh is tested up to Linux 7.3, and'")
        self.assertTrue(built.startswith("ok 1"))
        self.assertRegex(told, "^ok 2 - .* # SKIP it is newer: raise TMESH_TESTED_MAJOR")

    def test_other_warning(self):
        built, *more = self.points("main.c:1:2: warning: unused variable 'x'")
        self.assertTrue(built.startswith("not ok 1"))
        self.assertFalse(more)


class Kept(unittest.TestCase):
    """Test that a module is built once for a kernel, and again after a change of its inputs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        for name in ("kmod", "module"):
            (self.top / name).mkdir()
        (self.top / "include/uapi").mkdir(parents=True)
        (self.top / "kmod/main.c").write_text("int x;")
        self.built, self.compiler = 0, "gcc 12.2"
        self.kernel = kernels.Kernel("6.12", self.top / "kernels/6.12")
        self.kernel.path.mkdir(parents=True)
        (self.kernel.path / "release").write_text("6.12\n6.12-1\n")
        for patch in (mock.patch.object(modules, "TOP", self.top), mock.patch.object(modules, "tmesh", self.tmesh),
                      mock.patch.object(modules, "sh", lambda *command: self.compiler)):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)

    def tmesh(self, kernel, where):
        self.built += 1
        return where / "tmesh.ko", ["main.c:1:2: warning: unused variable 'x'"]

    def build(self):
        module, warnings = modules.kept(self.kernel, self.top / "module")
        self.assertEqual(module, self.top / "module/tmesh.ko")
        self.assertEqual(warnings, ["main.c:1:2: warning: unused variable 'x'"])
        return self.built

    def test_once(self):
        self.assertEqual([self.build(), self.build()], [1, 1])

    def test_anew(self):
        self.build()
        for n, change in enumerate((
                lambda: (self.top / "kmod/main.c").write_text("int y;"),
                lambda: (self.top / "kmod/main.c").rename(self.top / "kmod/first.c"),
                lambda: (self.top / "include/uapi/new.h").write_text(""),
                lambda: (self.top / "Kbuild").write_text("obj-m := kmod/"),
                lambda: (self.kernel.path / "release").write_text("6.12\n6.12-2\n"),
                lambda: setattr(self, "compiler", "gcc 12.3"))):
            change()
            self.assertEqual([self.build(), self.build()], [n + 2, n + 2])

    def test_failed(self):
        self.build()
        (self.top / "kmod/main.c").write_text("int")
        with mock.patch.object(modules, "tmesh", side_effect=SystemExit("vm: `make` failed")):
            for _ in range(2):
                with self.assertRaises(SystemExit):
                    self.build()
        (self.top / "kmod/main.c").write_text("int x;")
        self.assertEqual(self.build(), 2)


if __name__ == "__main__":
    unittest.main(testRunner=unittest.TextTestRunner(stream=sys.stderr, verbosity=0, resultclass=AsTap))
