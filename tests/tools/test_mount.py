#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tmeshctl mount and umount, and the paths of kept files on the module's file system. TAP.

usage: tests/tools/test_mount.py TMESHCTL MAN_DIR
"""

import json
import os
import struct
import subprocess
import unittest

from harness import BACKEND, HAVE_MODULE, TOOL, Base, answer, held, main, refused, tool, wrong_usage

ROOT_USER = os.geteuid() == 0


class Refused(Base):
    """Refusals that need no module, and leave nothing behind."""

    def setUp(self):
        super().setUp()
        self.place = os.path.join(self.dir, "place")
        os.environ["TMESH_MOUNT"] = self.place
        self.addCleanup(os.environ.pop, "TMESH_MOUNT")

    def test_words(self):
        wrong_usage("more words than wanted", "mount", "a", "b")
        wrong_usage("more words than wanted", "umount", "a", "b")
        wrong_usage("lazy", "mount", "--lazy")

    def test_another_user(self):
        """A process that is not root; this one may be."""
        def drop():
            if ROOT_USER:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
        os.chmod(self.dir, 0o755)
        refused("it takes root: sudo tmeshctl mount", "mount", preexec_fn=drop)
        self.assertFalse(os.path.exists(self.place))

    @unittest.skipIf(HAVE_MODULE, "the module is loaded")
    @unittest.skipUnless(ROOT_USER, "needs root")
    def test_no_module(self):
        refused("modprobe tmesh", "mount")
        self.assertFalse(os.path.exists(self.place))

    def test_nothing_is_mounted(self):
        refused("no file system tmesh is mounted there", "umount")
        refused("no file system tmesh is mounted there", "umount", "/proc")


@unittest.skipUnless(HAVE_MODULE and ROOT_USER and BACKEND == "kernel", "needs the module and root")
class Mounted(Base):
    def setUp(self):
        super().setUp()
        self.place = os.path.join(self.dir, "place")
        os.environ["TMESH_MOUNT"] = self.place
        self.addCleanup(os.environ.pop, "TMESH_MOUNT")
        self.addCleanup(subprocess.run, [TOOL, "umount", "--lazy"], capture_output=True)
        self.addCleanup(subprocess.run, [TOOL, "drop", "model"], capture_output=True)
        self.folder = os.path.join(self.dir, "model")
        os.makedirs(os.path.join(self.folder, "sub"))
        self.file(b"w" * 100_000, "model/weights")
        self.file(b"{}", "model/sub/config.json")

    def holders(self):
        """Return the processes that hold a region of this user's."""
        return {holder["pid"] for region in answer("ls") for holder in answer("holders", region["id"])}

    def test_a_folder_by_its_path(self):
        out, said = tool("keep", "--folder", self.folder, "model")
        self.assertEqual(out, b"")
        self.assertIn("tmeshctl mount", said)
        refused("tmeshctl mount", "kept", "model")
        tool("mount")
        path = os.path.join(self.place, str(os.geteuid()), "model")
        self.assertEqual(tool("kept", "model")[0].decode(), path + "\n")
        self.assertEqual(tool("kept", "--path", "model/sub/config.json")[0].decode(), path + "/sub/config.json\n")
        with open(os.path.join(path, "weights"), "rb") as file:
            self.assertEqual(file.read(), b"w" * 100_000)
        with open(os.path.join(path, "sub", "config.json"), "rb") as file:
            self.assertEqual(file.read(), b"{}")
            self.assertIn(os.getpid(), self.holders())
            refused("fuser -vm", "umount")
            with self.assertRaises(OSError):
                open(os.path.join(path, "sub", "new"), "wb").close()
        self.assertNotIn(os.getpid(), self.holders())
        self.assertEqual(tool("keep", "--folder", "--replace", self.folder, "model")[0].decode(), path + "\n")
        facts = tool("doctor", status=0)[0].decode()
        self.assertIn(f"in {self.place}, by the module"[:60], facts)
        tool("umount")
        self.assertEqual(os.listdir(self.place), [])
        refused("tmeshctl mount", "kept", "model")

    def load(self, path, *words):
        """Return the report of a loader that holds the model."""
        with held("load", path, *words) as said:
            return said["report"] | {"id": said["id"]}

    def test_a_model_in_place(self):
        """The file's region becomes the model's, and its bytes are not read."""
        head = json.dumps({name: {"dtype": "F32", "shape": [50_000], "data_offsets": [i * 200_000, (i + 1) * 200_000]}
                           for i, name in enumerate("ab")}).encode()
        head += b" " * (-len(head) % 8)
        self.file(struct.pack("<Q", len(head)) + head + os.urandom(400_000), "model/m.safetensors")
        tool("mount")
        tool("keep", "--folder", self.folder, "model")
        path = tool("kept", "model/m.safetensors")[0].decode().strip()
        one, two = self.load(path), self.load(path)
        self.assertEqual((one["bytes_read"], one["kept"], one["id"]), (0, "model", two["id"]))
        self.assertIn("in place", one["reason"])
        alone = self.load(path, "--alone")
        self.assertNotEqual(alone["id"], one["id"])
        self.assertGreaterEqual(alone["bytes_read"], 400_000)
        tool("keep", "--folder", "--replace", self.folder, "model")
        self.assertNotEqual(self.load(path)["id"], one["id"])

    def test_places(self):
        refused("it is no folder", "mount", self.file(b"x"))
        refused("it is not empty", "mount", self.folder)
        refused("another file system is mounted there", "mount", "/proc")
        refused("No such file", "mount", os.path.join(self.dir, "none", "none"))
        os.mkdir(self.place)
        tool("mount", self.place)
        tool("keep", "--folder", self.folder, "model")
        refused("mounted there already", "mount", self.place)
        refused("below a mount", "umount", os.path.join(self.place, str(os.geteuid())))
        with open("/proc/self/mounts") as mounts:
            line = next(one for one in mounts if one.split()[1] == self.place)
        self.assertEqual(line.split()[2], "tmesh")
        for word in "ro", "nosuid", "nodev", "noexec":
            self.assertIn(word, line.split()[3].split(","))
        holder = os.open(self.place, os.O_RDONLY)
        refused("--lazy", "umount", self.place)
        tool("umount", "--lazy", self.place)
        os.close(holder)
        refused("no file system tmesh", "umount", self.place)


if __name__ == "__main__":
    main()
