#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Common to all verbs: usage, help, completion, manual pages; and verbs that are programs of their own. TAP.

usage: tests/tools/test_tmeshctl.py TMESHCTL MAN_DIR
"""

import glob
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from harness import (BACKEND, HAVE_MODULE, MAN, ROOT, TOOL, VERBS, WAIT_S, Base, answer, any_backend, eventually, gone, held,
                     main, refused, tool, wrong_usage)


class Main(Base):
    @any_backend
    def test_no_verb(self):
        wrong_usage("usage: tmeshctl VERB")

    @any_backend
    def test_unknown_verb(self):
        wrong_usage("no such verb", "frobnicate\x1b[31m")

    @any_backend
    def test_help_names_every_verb(self):
        out, _ = tool("--help")
        self.assertEqual(re.findall(r"^  (\w+) ", out.decode(), re.M), VERBS)

    @any_backend
    def test_version(self):
        with open(os.path.join(ROOT, "VERSION")) as version:
            self.assertEqual(tool("--version")[0].decode(), f"tmeshctl {version.read()}")

    @any_backend
    def test_every_verb_explains_itself(self):
        for verb in VERBS:
            out, said = tool(verb, "--help")
            self.assertIn(f"usage: tmeshctl {verb} ", out.decode())
            self.assertFalse(said)

    @any_backend
    def test_every_verb_refuses_unknown_options(self):
        for verb in VERBS:
            wrong_usage(f"tmeshctl {verb} --help", verb, "--frobnicate")

    @any_backend
    def test_every_verb_refuses_more_words(self):
        for verb in VERBS:
            wrong_usage("tmeshctl", verb, "1", "2", "3")

    @any_backend
    def test_a_reader_that_goes_away(self):
        """In "tmeshctl ... | head" it ends by SIGPIPE, as others do, or reports that it could not write."""
        with held("create", "1") as names:
            for args in (("ls",), ("ls", "--json"), ("show", names["id"]), ("holders", names["id"], "--json"),
                         ("kept",), ("metrics",), ("draw",), ("top",), ("doctor",), ("--help",),
                         ("get", names["token"])):
                reader, writer = os.pipe()
                os.close(reader)
                with os.fdopen(writer, "wb") as to:
                    done = subprocess.run([TOOL, *args], stdin=subprocess.DEVNULL, stdout=to, timeout=WAIT_S,
                                          stderr=subprocess.PIPE)
                self.assertIn(done.returncode, (1, -signal.SIGPIPE), args)

    def test_all_json_is_json(self):
        for args in ("ls",), ("kept",), ("doctor",):
            self.assertIsInstance(answer(*args), (list, dict), args)
        with held("create", "1") as names:
            for verb, kind in ("show", dict), ("holders", list):
                self.assertIsInstance(answer(verb, names["id"]), kind)

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


@any_backend
class Completion(Base):
    def complete(self, *words):
        script = ('source "$1"; shift; COMP_WORDS=("$@"); '
                  'COMP_CWORD=$(($# - 1)); _tmeshctl; printf "%s\\n" "${COMPREPLY[@]}"')
        path = os.path.join(ROOT, "tools", "completion", "tmeshctl")
        done = subprocess.run(["bash", "-c", script, "-", path, TOOL, *words], check=True,
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
        self.assertEqual(self.complete("ls", "-b", "k"), ["kernel"])
        self.assertEqual(self.complete("load", "--method", "s"), ["splice"])
        self.assertEqual(self.complete("create", "--label", ""), [])
        self.assertIn("tools/build.mk", self.complete("put", os.path.join(ROOT, "tools/build.m"))[0])


class Model(Base):
    """Verbs that are programs of their own, and what they do."""

    def write(self, name="m.safetensors", format="pt\x1b[2J"):
        header = json.dumps({"__metadata__": {"format": format, "zero": "a\0b"},
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
        self.assertEqual(told["metadata"]["zero"], "a\0b")
        self.assertIn("zero ", text)

    @any_backend
    def test_a_long_text_is_cut_between_letters(self):
        for before in range(4):
            long = "x" * before + "\u20ac" * 100
            text = tool("model", self.write(format=long))[0].decode()
            line, = (line for line in text.splitlines() if "\u20ac" in line)
            self.assertRegex(line, f'^format +"{long[:60]}\u20ac*[.]{{3}}$')

    @any_backend
    def test_refused(self):
        path = self.write()
        with open(path, "ab") as file:
            file.write(b"x")
        for verb in "model", "load":
            refused("belong to no tensor", verb, path)
        wrong_usage("load --help", "load")
        wrong_usage("magic", "load", "--method", "magic", path)
        # As create and put refuse it: a program that waits for JSON or for an end would wait in vain.
        for options in ("--json",), ("--for", "1"):
            wrong_usage("no meaning", "load", *options, path, "--", "true")
        wrong_usage("--background", "load", "--background", path, "--", "true")
        wrong_usage("no meaning", "export", "tm1m-x", "--for", "1", "--", "true")

    def test_load(self):
        path = self.write()
        told = json.loads(tool("load", "--json", "--background", "--for", "600", path)[0])
        try:
            self.assertEqual(told["tensors"], 1)
            self.assertEqual(told["report"]["bytes"], 16)
            self.assertEqual(tool("get", told["token"])[0][:16], bytes(range(16)))
            again = tool("load", path, "--", TOOL, "show", told["token"])[0].decode()
            self.assertIn(told["id"], again)
        finally:
            os.kill(told["pid"], signal.SIGTERM)
            # It empties the folder that goes with the test.
            eventually(lambda: gone(told["pid"]), "the holder ends")

    def stops_at_its_seal(self):
        """The environment of a program that stops itself when it seals memory: all bytes are there, and all progress is reported."""
        path = self.file(b"""
            #include <dlfcn.h>
            #include <linux/fcntl.h>
            #include <signal.h>
            int fcntl(int fd, int command, long argument)
            {
                int (*next)(int, int, long) = (int (*)(int, int, long))dlsym(RTLD_NEXT, "fcntl");
                if (command == F_ADD_SEALS && (argument & F_SEAL_WRITE))
                    raise(SIGSTOP);
                return next(fd, command, argument);
            }
            int fcntl64(int fd, int command, long argument)
            {
                return fcntl(fd, command, argument);
            }
            """, "stop.c")
        subprocess.run([os.environ.get("CC", "cc"), "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", path[:-1] + "so", path], check=True)
        return dict(os.environ, LD_PRELOAD=path[:-1] + "so")

    @unittest.skipIf(BACKEND == "kernel", "the module seals by another call; run on memfds")
    def test_it_is_told_to_end_when_it_has_loaded(self):
        """No holder stays."""
        path, env = self.write(), self.stops_at_its_seal()
        for options in (), ("--background",):
            process = subprocess.Popen([TOOL, "load", *options, path], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(process.kill)
            holder, children = process.pid, pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
            if options:
                eventually(children.read_text, "it starts a holder")
                holder = int(children.read_text())
            eventually(lambda: pathlib.Path(f"/proc/{holder}/stat").read_text().rsplit(")", 1)[1].split()[0] in "TZ", "it seals")
            process.send_signal(signal.SIGTERM)
            if options:
                eventually(lambda: gone(process.pid), "the one that waits ends")
            os.kill(holder, signal.SIGCONT)
            out, said = process.communicate(timeout=WAIT_S)
            self.assertEqual((process.returncode, out), (-signal.SIGTERM if options else 1, b""), said)
            eventually(lambda: gone(holder), "no holder stays")

    @any_backend
    def test_a_limit_of_file_sizes(self):
        """It bounds memfds too. The error names it, and no signal ends the program."""
        path = self.write()
        out, why = tool("load", path, "--", "true", status=1,
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)))
        self.assertIn("RLIMIT_FSIZE", why)

    def kept(self):
        """By name. On the module other suites' refs may still hold."""
        return {one["name"]: one for one in answer("kept") if not one["name"].startswith("hold-")}

    def nobody_holds(self, name, regions):
        """So many regions are kept under a name. Other suites look at the machine's regions, and hold each
        for a moment."""
        self.assertEqual(self.kept()[name]["regions"], regions)
        eventually(lambda: self.kept()[name]["held"] == 0, f"no process holds {name}")

    def test_keep_as(self):
        path = self.write()
        tool("load", "--keep-as", "mine", path, "--", "true")
        os.unlink(path)
        self.addCleanup(subprocess.run, [TOOL, "drop", "mine"], capture_output=True)
        # Its index and its tensors; no process holds them.
        self.nobody_holds("mine", 2)
        refused("kept already", "load", "--keep-as", "mine", self.write(), "--", "true")
        refused("the name is empty", "load", "--keep-as", "", self.write(), "--", "true")
        wrong_usage("exclude", "load", "--keep", "--keep-as", "mine", path)
        tool("drop", "mine")
        self.assertEqual(self.kept(), {})

    def test_keep_by_token(self):
        with held("put", "--unsealed", "--manage-token", self.file(b"kept by its token")) as names:
            refused("sealed", "keep", names["manage_token"], "theirs")
            tool("seal", names["manage_token"])
            if BACKEND == "kernel":
                refused("rights", "keep", names["token"], "theirs")
            tool("keep", names["manage_token"], "theirs")
        self.addCleanup(subprocess.run, [TOOL, "drop", "theirs"], capture_output=True)
        self.nobody_holds("theirs", 1)
        tool("drop", "theirs")
        refused("nothing is kept", "drop", "theirs")

    def test_artifacts(self):
        """Names of an artifact's form are listed, and no others."""
        names = ["a." + "abcdefghijklmnopqrstuvwxyz234567"[:26] * 2, "a." + "a" * 51, "a." + "a" * 53, "a." + "A" * 52, "b." + "a" * 52]
        for name in names:
            with held("put", "--unsealed", "--manage-token", self.file(b"weights")) as mine:
                tool("seal", mine["manage_token"])
                tool("keep", mine["manage_token"], name)
                self.addCleanup(subprocess.run, [TOOL, "drop", name], capture_output=True)
        self.assertEqual([one["name"] for one in answer("kept", "--artifacts")], names[:1])
        rows = tool("kept", "--artifacts")[0].decode().splitlines()
        self.assertEqual([row.split()[0] for row in rows], ["NAME", names[0]])
        wrong_usage("kept", "kept", "--artifacts", "mine")

    @unittest.skipIf(os.geteuid() or BACKEND == "kernel", "root alone becomes any user; the keeper's part, for which memfds do")
    def test_a_user_with_a_large_number(self):
        """Containers have users beyond 2^31."""
        number = 3_000_000_000
        os.mkdir(os.environ["TMESH_RUNTIME_DIR"], 0o700)
        os.chmod(self.dir, 0o755)
        os.chown(os.environ["TMESH_RUNTIME_DIR"], number, number)
        more = {"user": number, "group": number, "extra_groups": []}
        tool("keep", "--file", self.file(b"kept"), "mine", **more)
        self.addCleanup(subprocess.run, [TOOL, "drop", "mine"], capture_output=True, **more)
        kept = answer("kept", **more)[0]
        self.assertEqual((kept["uid"], kept["gid"]), (number, number))

    def test_ls_tells_what_is_kept(self):
        """With and without a holder: a kept region is listed as such, and another one is not."""
        def states():
            titles, *rows = tool("ls")[0].decode().splitlines()
            at = titles.index("STATE")
            return {row[:16]: row[at:].split()[0] for row in rows}, {one["id"]: one["kept"] for one in answer("ls")}

        with held("put", "--unsealed", "--manage-token", self.file(b"kept")) as mine, held("put", self.file(b"x")) as other:
            tool("seal", mine["manage_token"])
            self.assertEqual({states()[0][one["id"]] for one in (mine, other)}, {"sealed"})
            tool("keep", mine["manage_token"], "mine")
            self.addCleanup(subprocess.run, [TOOL, "drop", "mine"], capture_output=True)
            words, told = states()
            self.assertEqual((words[mine["id"]], told[mine["id"]]), ("kept", True))
            self.assertEqual((words[other["id"]], told[other["id"]]), ("sealed", False))
            self.assertTrue(answer("show", mine["id"])["kept"])
        words, told = states()
        self.assertEqual((words[mine["id"]], told[mine["id"]]), ("kept", True))
        self.assertNotIn(other["id"], told)
        tool("drop", "mine")
        self.assertNotIn(mine["id"], states()[1])

    def test_a_file_is_not_kept_by_its_name(self):
        wrong_usage("is a file: --file keeps its bytes", "keep", self.write(), "x")
        refused("--folder keeps a folder", "keep", "--file", self.dir, "x")

    @any_backend
    @unittest.skipIf(os.geteuid() or subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode, "no mounts of its own can be had here")
    def test_no_program_of_the_working_directory(self):
        """Without /proc the tool does not know its folder, and looks in PATH alone."""
        shutil.copy(shutil.which("true"), os.path.join(self.dir, "tmeshctl-strange"))
        done = subprocess.run(["unshare", "-m", "sh", "-ec", 'mount -t tmpfs none /proc; exec "$0" strange', TOOL], cwd=self.dir,
                              capture_output=True, timeout=WAIT_S)
        self.assertEqual((done.returncode, b"no such verb" in done.stderr), (2, True), done.stderr)

    @any_backend
    def test_no_program(self):
        for verb in "nosuch", "../x", "LOAD", "load/../load", "a" * 40:
            wrong_usage("no such verb", verb)


def declarations(text):
    """The functions that a header or a synopsis declares, each in a line. The functions that inline ones pass
    sizes to are left out."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^static inline ([^;{}]*?)\s*\{.*?^\}", r"\1;", text, flags=re.S | re.M)
    text = re.sub(r"^int tmesh_\w+_sized\([^;]*;", "", text, flags=re.M)
    return [re.sub(r"\s+", " ", one).replace("* tmesh", "*tmesh") for one in re.findall(r"^[a-z][^;{}]*?\btmesh_\w+\([^;{}]*\);", text, re.M)]


def called(declaration):
    return re.search(r"\w+(?=\()", declaration)[0]


DECLARED = [one for header in glob.glob(os.path.join(ROOT, "include", "tmesh", "*.h"))
            for one in declarations(pathlib.Path(header).read_text())]


needs_man = unittest.skipUnless(shutil.which("man"), "man-db is not installed")


@any_backend
class Man(Base):
    @needs_man
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

    def test_all_of_the_module_is_in_its_page(self):
        """Each ioctl, limit, file for debugging and tracepoint of the sources, and no other."""
        page = pathlib.Path(ROOT, "docs/man/tmesh.4.scd").read_text()
        header = pathlib.Path(ROOT, "include/uapi/linux/tmesh.h").read_text()
        source = {name: pathlib.Path(ROOT, "kmod", name).read_text() for name in ("account.c", "debug.c", "trace.h")}
        self.assertEqual(set(re.findall(r"\*(TMESH_\w+)\*", page)),
                         set(re.findall(r"^#define (TMESH_\w+) _IO\(", header, re.M)))
        self.assertEqual(set(re.findall(r"_(?:/proc/sys/dev/tmesh/)?(max_\w+)_(?=[,\n])", page)),
                         set(re.findall(r'TMESH_LIMIT\("(\w+)"', source["account.c"])))
        files = re.search(r"^_/sys/kernel/debug/tmesh/(.*)$", page, re.M)[1]
        self.assertEqual(re.findall(r"[a-z]+", files), re.findall(r'debugfs_create_file\("(\w+)"', source["debug.c"]))
        told = re.search(r"Tracepoints for .*?\.(.*?)\n\n", page, re.S)[1]
        self.assertEqual(sorted(word for part in re.findall(r":(.*?)\.", told, re.S) for word in re.findall(r"\w+", part)),
                         sorted(set(re.findall(r"^(?:TRACE_EVENT|DEFINE_EVENT)\((?:\w+, )?tmesh_(\w+),", source["trace.h"],
                                               re.M))))

    def test_every_call_is_in_a_page(self):
        """Among the names of one, and in its synopsis, as the header declares it."""
        shown = []
        for source in glob.glob(os.path.join(ROOT, "docs", "man", "*.3.scd")):
            page = subprocess.run(["awk", "-f", "docs/man/synopsis.awk", source], cwd=ROOT, capture_output=True, text=True,
                                  check=True).stdout
            found = declarations(re.search(r"^# SYNOPSIS$(.*?)^# ", page, re.S | re.M)[1])
            names = re.search(r"^# NAME\n\n(.*?) - ", page, re.M)[1].split(", ")
            title = os.path.basename(source).removesuffix(".3.scd")  # of a call, or of what several are about
            self.assertEqual(names, list(dict.fromkeys([title, *map(called, found)])))
            shown += found
        self.assertEqual(sorted(shown), sorted(DECLARED))

    @needs_man
    def test_man_finds_every_call(self):
        for call in map(called, DECLARED):
            done = subprocess.run(["man", "-M", MAN, "-w", call], capture_output=True, text=True)
            self.assertRegex(done.stdout, r"\.3\n$", f"{call}: {done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
