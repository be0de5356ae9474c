#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Loading and saving while the disk fails, and a storm of kills. Prints TAP.

    faults.py BUILD_DIR

faults.so makes reads of the model's file fail (EIO), end early or come in small pieces; it does not see reads
through io_uring. A FUSE file system (fuse_file.py; without it a skip) makes the reads of each way fail, and
counts how large they are. Nothing may be left but what was there before.
"""
import contextlib
import importlib.util
import json
import os
import pathlib
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest.mock

BUILD = pathlib.Path(sys.argv[1]).resolve()
OUT = BUILD / "tests" / "model"
ROUNDS = int(os.environ.get("ROUNDS", 400 if os.environ.get("TMESH_TEST_LENGTH") == "full" else 25))
BYTES = 24 << 20
SOURCE = pathlib.Path(__file__).resolve().parent
ON_MODULE = os.environ.get("TMESH_BACKEND") == "kernel"
# Only memfds can be spliced to. io_uring is not seen by faults.so.
METHODS = ["io_uring", "direct", "read"] if ON_MODULE else ["splice", "io_uring", "direct", "read"]
SEEN = [method for method in METHODS if method in ("splice", "read")]
failed = number = 0


def check(good, name, why=""):
    global failed, number
    number += 1
    failed += not good
    print(f"{'ok' if good else 'not ok'} {number} - {name}", flush=True)
    if not good:
        print(f"# {why}")


def make(folder):
    """8 tensors, each with a byte of its own; the odd header misaligns them."""
    header, size = {}, BYTES // 8
    for i in range(8):
        header[f"t{i}"] = {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    path = os.path.join(folder, "m.safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i in range(8):
            file.write(bytes([i + 1]) * size)
    return path


def start(path, *args, **fault):
    env = {key.upper(): str(value) for key, value in fault.items()}
    if fault:
        env |= {"LD_PRELOAD": str(OUT / "faults.so"), "FAULT_PATH": path}
    return subprocess.Popen([BUILD / "tmeshctl-load", path, "--json", "--hash", "--for", "60", *args],
                            env=dict(os.environ, **env), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def told(process):
    """Return its report of the loaded model, which it holds; or None."""
    said = ""
    for line in process.stdout:
        said += line
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(said)["report"]


def let_go(process):
    process.send_signal(signal.SIGTERM)
    _, why = process.communicate(timeout=60)
    return process.returncode, why


def reported(process):
    """Return its report of the loaded model; then it may let go. Or its status and why it did not."""
    report = told(process)
    if report:
        let_go(process)
        return 0, report
    _, why = process.communicate(timeout=60)
    return process.returncode, why


def finish(process):
    status, said = reported(process)
    return status, said if status else said["xxh3"]


def load(path, *args, **fault):
    return finish(start(path, *args, **fault))


def cold(path):
    """Reading ahead is for these. On a file system that lives in memory they stay where they are."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def left(folder):
    return sorted(os.listdir(folder))


@contextlib.contextmanager
def mounted(folder, path, *fault):
    """The model's file behind FUSE, the log of what is read of it, and the server."""
    point, log = os.path.join(folder, "fuse"), os.path.join(folder, "log")
    os.makedirs(point, exist_ok=True)
    server = subprocess.Popen([sys.executable, "-B", SOURCE / "fuse_file.py", point, path, log, *map(str, fault)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    inside = os.path.join(point, os.path.basename(path))
    try:
        while not os.path.exists(inside):
            if server.poll() is not None:
                raise NoFuse(f"a FUSE file system cannot be mounted: {server.stdout.read().strip()[-80:]}")
            time.sleep(0.01)
        yield inside, log, server
    finally:
        # A user other than root has fusermount.
        if subprocess.run(["umount", "-l", point], stderr=subprocess.DEVNULL).returncode:
            subprocess.run(["fusermount", "-uz", point], stderr=subprocess.DEVNULL)
        server.kill()
        server.communicate()


class NoFuse(Exception):
    pass


def reads(log):
    with open(log) as lines:
        return [int(line.split()[1]) for line in lines]


FUSE_FAULTS = (("eio", "Input/output error"), ("end", "shrunk"), ("changed", "changed while it was read"),
               ("gone", "No such file"), ("dead", "connect"))


def through_fuse(folder, path, whole):
    with mounted(folder, path) as (inside, log, _):
        status, report = reported(start(inside))
        check(status == 0 and report["xxh3"] == whole, "FUSE: the same bytes", report)
        check(status == 0 and (report["method"], report["file_system"]) == ("read", "fuse") and "FUSE" in report["reason"],
              "FUSE: the chosen method, and the reason", report)
        # 128 KiB is the most that the kernel asks a server of this kind for; the header's 64 KiB come first.
        sizes = reads(log)
        check(sum(sizes) < 1.05 * BYTES and len(sizes) < 1.2 * BYTES / (128 << 10),
              f"FUSE: {len(sizes)} reads of {sum(sizes) // len(sizes)} bytes on average", sorted(sizes)[:20])
    for method in METHODS:
        for fault, words in FUSE_FAULTS:
            with mounted(folder, path, fault, 9 << 20) as (inside, _, _):
                status, said = load(inside, "--method", method)
                check(status == 1 and words in said, f"FUSE, {method}: {fault}", f"{status}: {said}")
        hangs(folder, path, method)
    slowly(folder, path)
    hostile(folder, path)
    # In a directory of its own: the quota wants a keeper that it starts itself.
    with tempfile.TemporaryDirectory() as own, unittest.mock.patch.dict(os.environ, TMESH_RUNTIME_DIR=own):
        after_a_load(folder, path)


def hanging(log):
    with open(log) as lines:
        return any(line.startswith("hangs") for line in lines)


def hangs(folder, path, method):
    """The server answers no more in the middle. A reader waits as for any disk until the connection ends (the
    server does, or root by umount -f), also when it is killed. The kernel reports each end of a file to the
    server."""
    for end in "killed", "ended":
        with mounted(folder, path, "hangs", 9 << 20) as (inside, log, server):
            process = start(inside, "--method", method)
            while not hanging(log) and process.poll() is None:
                time.sleep(0.01)
            if end == "killed":
                process.kill()
            server.kill()
            status, said = finish(process)
            good = status == -signal.SIGKILL if end == "killed" else \
                status == 1 and ("connect" in said or "Input/output error" in said)
            check(good and hanging(log), f"FUSE, {method}: it hangs, the loader is {end}", f"{status}: {said}")


class Terminal:
    """`tmeshctl load` on a terminal of its own."""
    def __init__(self, path):
        self.pid, self.master = pty.fork()
        if not self.pid:
            os.execv(BUILD / "tmeshctl-load", ["tmeshctl-load", path, "--for", "60"])
        self.said = ""

    def shows(self, text):
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.said += os.read(self.master, 4096).decode()
            except OSError:  # it has ended
                break
        return text in self.said

    def press_control_c(self):
        os.write(self.master, b"\x03")

    def ended(self):
        """Its status, once it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self.shows("")
        return os.waitstatus_to_exitcode(status) if pid else None


class Gate:
    """Lets a slow server answer one read after another."""
    def __init__(self, log):
        self.log, self.passed, self.fd = log, 0, os.open(log + ".gate", os.O_RDWR)

    def has_somebody(self):
        with open(self.log) as lines:
            return sum(line.startswith("gated") for line in lines) > self.passed

    def let_through_until(self, done):
        """Reads, until something has come to pass. Returns that, and after how many."""
        before = self.passed
        while (what := done()) in (None, False):
            time.sleep(0.02)
            if self.has_somebody():
                self.passed += 1
                os.write(self.fd, b".")
        return what, self.passed - before


def until(done):
    while (what := done()) in (None, False):
        time.sleep(0.02)
    return what


def catches(process, number):
    """Before it does the signal ends it as any program."""
    with open(f"/proc/{process.pid}/status") as lines:
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> number - 1 & 1) or process.poll() is not None


def slowly(folder, path):
    """The server is slow: a reader shows its progress, as do those that wait, and each can be cancelled soon.
    The file takes 176 reads from the gate on; a load that tells of 32 MiB at a time would tell only at its
    end."""
    gate = os.path.join(folder, "log.gate")
    os.mkfifo(gate)
    with mounted(folder, path, "gated", 2 << 20) as (inside, log, _):
        gate = Gate(log)
        reader = Terminal(inside)
        _, passed = gate.let_through_until(lambda: reader.shows("load: "))
        check(passed < 100, f"FUSE, slow: the progress is shown after {passed} reads of 176", reader.said)
        waiter, piped = Terminal(inside), start(inside)
        until(lambda: waiter.shows("waiting for another reader: "))
        check(True, "FUSE, slow: a waiting process shows the same")
        waiter.press_control_c()
        status = until(waiter.ended)
        check(status == 1 and "cancelled" in waiter.said, "FUSE, slow: Ctrl-C ends who waits, without another read", waiter.said)
        until(lambda: catches(piped, signal.SIGINT))
        piped.send_signal(signal.SIGINT)
        status, said = finish(piped)
        check(status == 1 and said.count("\n") == 1 and "cancelled" in said, "FUSE, slow: on a pipe there is no progress", said)
        reader.press_control_c()
        status, passed = gate.let_through_until(reader.ended)
        check(status == 1 and "cancelled" in reader.said and passed < 100, f"FUSE, slow: Ctrl-C ends who reads, after {passed} reads",
              f"{status}: {reader.said}")
        check("\r\033[K" in reader.said.rpartition("load: ")[2], "FUSE, slow: the line is wiped off", reader.said)
        check(not [name for name in left(os.environ["TMESH_RUNTIME_DIR"]) if name.endswith(".shared")],
              "FUSE, slow: no file of a shared load is left")
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        killed = start(inside)
        signal.signal(signal.SIGINT, before)
        until(lambda: catches(killed, signal.SIGTERM))  # which it does as the last
        check(not catches(killed, signal.SIGINT), "FUSE, slow: an ignored Ctrl-C stays ignored")
        until(gate.has_somebody)
        killed.kill()
        status, said = finish(killed)
        check(status == -signal.SIGKILL and gate.has_somebody(), "FUSE, slow: SIGKILL ends who reads, without another read", said)


def hostile(folder, path):
    """Another process hands over a file of a server that answers no more: closing it must keep no caller waiting."""
    with mounted(folder, path, "hangs", 0) as (inside, log, server):
        process = subprocess.Popen([OUT / "plain/hostile_file", inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        process.stdout.readline()
        cat = subprocess.Popen(["cat", inside], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: hanging(log))
        process.stdin.write(b"\n")
        for what in "an answer", "a word", "a token's end", "a region":
            said = process.stdout.readline() if select.select([process.stdout], [], [], 60)[0] else b"it waits"
            check(said.startswith(b"ok"), f"FUSE, hangs: a file as {what} keeps no caller waiting", said)
        server.kill()
        process.kill()
        process.communicate()
        cat.wait()


def after_a_load(folder, path):
    """A loaded and kept model does not depend on the server any more, whether that is killed or stopped."""
    name = "after-a-load"

    def hashed():
        return subprocess.run([BUILD / "tests/keep/kept_hash", name], capture_output=True, text=True).stdout

    for end in signal.SIGKILL, signal.SIGSTOP:
        with mounted(folder, path) as (inside, _, server):
            holder = start(inside, "--keep-as", name)
            told(holder)
            before = hashed()
            server.send_signal(end)
            if end == signal.SIGKILL:
                server.wait()
                status, said = load(inside)
                check(status == 1 and "connect" in said, "FUSE: dead after a load, another load fails", f"{status}: {said}")
            check(before and hashed() == before, f"FUSE: {end.name} after a load, what is kept is the same", before)
            status, said = let_go(holder)
            check(status in (0, -signal.SIGTERM), f"FUSE: {end.name} after a load, its holder ends", f"{status}: {said}")
            done = subprocess.run([BUILD / "tmeshctl", "drop", name], capture_output=True, text=True)
            check(done.returncode == 0, f"FUSE: {end.name} after a load, what was kept is dropped", done.stderr)


def quota(runtime, path):
    """A model that may not be kept is not loaded either, and not left."""
    env = dict(os.environ, TMESH_KEEPER_BYTES=str(1 << 20))
    told = subprocess.run([BUILD / "tmeshctl-load", path, "--keep", "--for", "60"], capture_output=True, text=True, env=env)
    check(told.returncode == 1 and "limit" in told.stderr, "more than may be kept", told.stderr + told.stdout)
    kept = subprocess.run([BUILD / "tmeshctl", "kept", "--json"], capture_output=True, text=True)
    check(kept.returncode == 0 and "model-" not in kept.stdout, "nothing of it is kept", kept.stdout + kept.stderr)


def storm(path, runtime, whole):
    """Loaders start and are killed at any time; now and then one is let alone, and has all."""
    rng, good, killed = random.Random(5), 0, 0
    for _ in range(ROUNDS):
        running = [start(path) for _ in range(rng.randrange(1, 4))]
        for process in running:
            if rng.random() < 0.6:
                time.sleep(rng.random() * 0.03)
                process.send_signal(signal.SIGKILL)
        for process in running:
            status, told = finish(process)
            if process.returncode == -signal.SIGKILL:
                killed += 1
            elif status or told != whole:
                return f"{status}: {told}", good, killed
            else:
                good += 1
    load(path)
    shared_loads = [name for name in left(runtime) if name.endswith(".shared")]
    return f"left: {shared_loads}" if shared_loads else "", good, killed


def main():
    # A shell that runs this in the background may have ignored it, and the programs started here would
    # inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as runtime:
        os.environ |= {"TMESH_RUNTIME_DIR": runtime, "TMESH_KEEPER": str(BUILD / "tmesh-keeper"),
                       "TMESH_BACKEND": os.environ.get("TMESH_BACKEND", "memfd")}
        path = make(folder)
        status, whole = load(path)
        check(status == 0, "nothing is wrong", whole)
        for method in SEEN:
            for after in 0, 100, 5 << 20:
                status, said = load(path, "--method", method, fault="eio", fault_after=after)
                check(status == 1 and "Input/output error" in said, f"{method}: EIO after {after} bytes", said)
            # Which is not the time that one waits for a reader that was stopped.
            status, said = load(path, "--method", method, fault="late", fault_after=5 << 20)
            check(status == 1 and "timed out" in said, f"{method}: ETIMEDOUT", said)
            status, said = load(path, "--method", method, fault="end", fault_after=5 << 20)
            check(status == 1 and "shrunk" in said, f"{method}: the file ends early", said)
            status, said = load(path, "--method", method, fault="short", fault_after=(24 << 20) - 5000)
            check(status == 0 and said == whole, f"{method}: reads come in pieces", said)
        for method in "io_uring", "direct":
            status, said = load(path, "--method", method)
            if "cannot be had" in said or "has no O_DIRECT" in said:
                check(True, f"{method} # SKIP {said.strip()}")
                METHODS.remove(method)
                continue
            check(status == 0 and said == whole, f"{method}: the same bytes", said)
        for method in METHODS:
            cold(path)
            status, said = load(path, "--method", method)
            check(status == 0 and said == whole, f"{method}: of a file that is in no cache", said)
        for fault, words in ("eio", "Input/output error"), ("end", "shrunk"):
            cold(path)
            status, said = load(path, "--method", SEEN[0], fault=fault, fault_after=12 << 20)
            check(status == 1 and words in said, f"the same, {fault}", said)
        try:
            if not importlib.util.find_spec("fusepy"):
                raise NoFuse("python3-fusepy is not installed")
            through_fuse(folder, path, whole)
        except NoFuse as why:
            check(True, f"FUSE # SKIP {why}")
        if ON_MODULE:
            check(True, "more than may be kept # SKIP the keeper's limit is for memfds; the module's is tested by its own tests")
        else:
            quota(runtime, path)
        check(not [name for name in left(runtime) if name.endswith(".shared")], "no file of a shared load is left", left(runtime))
        why, good, killed = storm(path, runtime, whole)
        check(not why, f"a storm of kills: {killed} killed, {good} had the whole model", why)
    print(f"1..{number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
