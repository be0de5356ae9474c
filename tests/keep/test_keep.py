#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Kept regions from outside, on memfd: tmeshctl's verbs, a session whose processes are all killed,
and a keeper that is killed while systemd has its descriptors. The systemd here is a stand-in: a socket
that speaks the part of sd_notify(3) and sd_listen_fds(3) that the keeper uses.
Usage: test_keep.py BUILD_DIR; prints TAP."""
import array
import hashlib
import json
import os
import re
import resource
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

BUILD = sys.argv[1]
TOOL = os.path.join(BUILD, "tmeshctl")
KEEPER = os.path.join(BUILD, "tmesh-keeper")
PATIENCE = 600


def wait_until(what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"never: {what}")
        time.sleep(0.01)


def keepers_of(tree):
    """PIDs of those that run the keeper of a tree."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe") == os.path.join(os.path.realpath(tree), "libexec", "tmesh-keeper"):
                found.append(int(pid))
        except OSError:
            pass  # gone, or another user's
    return found


class StandIn:
    """Stands in for systemd as the manager of a service with a descriptor store."""

    def __init__(self, folder, limit=None):
        self.folder = folder
        self.path = os.path.join(folder, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.store = []  # (name, descriptor), in the order in which they came
        self.ready = threading.Event()
        self.drop_after = None  # so many descriptors are taken, then none
        self.limit = limit
        self.answers = True  # to BARRIER=1; what it does not answer waits
        self.saw = None  # called with each message, before it counts
        self.more = {}  # variables of the keeper
        self.log = None  # a file for the keeper's log
        self.pid = None
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(16))
            fds = array.array("i")
            for _, _, data in ancillary:
                fds.frombytes(data)
            words = dict(line.split("=", 1) for line in text.decode().split("\n") if "=" in line)
            if self.saw:
                self.saw(words)
            if "READY" in words:
                self.ready.set()
            if "FDSTORE" in words:
                assert words["FDPOLL"] == "0" and ":" not in words["FDNAME"]
                if self.drop_after is None or len(self.store) < self.drop_after:
                    self.store += [(words["FDNAME"], fd) for fd in fds]
                    continue
            if "FDSTOREREMOVE" in words:
                for name, fd in self.store:
                    if name == words["FDNAME"]:
                        os.close(fd)
                self.store = [s for s in self.store if s[0] != words["FDNAME"]]
            if "BARRIER" in words and not self.answers:
                continue
            for fd in fds:
                os.close(fd)

    def kept(self):
        """Descriptors but for the keeper's lock."""
        assert [name for name, _ in self.store].count("tmesh-lock") == 1
        return len(self.store) - 1

    def start(self, wait=True):
        self.ready.clear()
        self.pid = os.fork()
        if self.pid == 0:
            store = self.store[::-1]  # as systemd does, which has the newest first
            high = [os.dup2(fd, 500 + i, inheritable=True) for i, (_, fd) in enumerate(store)]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i, inheritable=True)
            environment = dict(os.environ, NOTIFY_SOCKET=self.path, **self.more)
            if self.log:
                os.dup2(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
            if self.limit:
                environment["TMESH_KEEPER_BYTES"] = str(self.limit)
            if store:
                environment |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(store)),
                                "LISTEN_FDNAMES": ":".join(name for name, _ in store)}
            os.closerange(3 + len(store), 4096)
            os.execve(KEEPER, [KEEPER, os.environ["TMESH_RUNTIME_DIR"]], environment)
        if wait and not self.ready.wait(PATIENCE):
            raise AssertionError("the keeper was never ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self, how=signal.SIGTERM):
        if self.pid:
            os.kill(self.pid, how)
            os.waitpid(self.pid, 0)
            self.pid = None


def tool(*words, status=0, **more):
    done = subprocess.run([TOOL, *words], capture_output=True, timeout=PATIENCE, **more)
    if done.returncode != status:
        raise AssertionError(f"{words}: {done.returncode} {done.stderr.decode()}")
    return done.stdout.decode() if status == 0 else done.stderr.decode()


def preloaded(folder, library, **variables):
    """Return the environment of a client whose keeper preloads a library. A keeper inherits no variable from the client."""
    script = os.path.join(folder, "keeper")
    said = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    with open(script, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\nLD_PRELOAD={shlex.quote(os.path.join(BUILD, 'tests', 'keep', library))} {said} "
                   f"exec {shlex.quote(KEEPER)} \"$@\"\n")
    os.chmod(script, 0o700)
    return os.environ | {"TMESH_KEEPER": script}


def kept_digest(name, path):
    """Return the digest of one kept file's bytes."""
    program = os.path.join(BUILD, "tests", "keep", "kept_hash")
    done = subprocess.run([program, name, path], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


def kept():
    return {k["name"]: k for k in json.loads(tool("kept", "--json"))}


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def keeper_pid():
    """Return the process ID of a keeper that was started by need, which is no child of any process here."""
    value = json.loads(tool("doctor", "--json"))["machine"]["keeper"]["value"]
    found = re.match(r"process (\d+):", value)
    return int(found[1]) if found else None


def a_file(folder, size=3 << 20, name="weights.bin"):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(os.urandom(size))
    return path


def end_by_need():
    pid = keeper_pid()
    if pid:
        fd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        ended = select.select([fd], [], [], PATIENCE)[0]
        os.close(fd)
        assert ended, "the keeper got SIGTERM and goes on"


def test_verbs(folder):
    """keep, kept, drop, and what they say"""
    path = a_file(folder)
    said = subprocess.run([TOOL, "keep", "--file", path, "weights"], capture_output=True, text=True, timeout=PATIENCE)
    try:
        # Without a program that shows files it is kept, and a warning names the program.
        assert said.returncode == 0 and not said.stdout and "tmesh-mount" in said.stderr, said
        assert "tmesh-mount" in tool("kept", "--path", "weights", status=1)
        assert kept_digest("weights", "weights.bin") == digest(path)
        row = kept()["weights"]
        assert row["backend"] == "memfd" and row["held"] == 0 and row["regions"] == 1
        assert row["bytes"] - os.stat(path).st_size in range(1, 256) and row["expires_ns"] is None
        assert "weights" in tool("kept")
        assert "replace" in tool("keep", "--file", path, "weights", status=1)
        tool("keep", "--replace", "--for", "3600", "--file", path, "weights")
        assert kept()["weights"]["expires_ns"] > kept()["weights"]["kept_ns"]
        tool("drop", "weights")
        assert kept() == {}
        assert "nothing is kept" in tool("drop", "weights", status=1)
        assert "--folder keeps" in tool("keep", "--file", folder, "x", status=1)
        assert "--file keeps" in tool("keep", "--folder", path, "x", status=1)
        tool("keep", "--mode", "0666", "--file", path, "x", status=2)
        pipe, empty = os.path.join(folder, "pipe"), os.path.join(folder, "empty")
        os.mkfifo(pipe)
        open(empty, "w").close()
        for path_of_none, word in (pipe, "regular"), ("/dev/zero", "regular"), (empty, "no bytes"):
            assert word in tool("keep", "--file", path_of_none, "x", status=1)
        tool("keep", "only-one-word", status=2)
        for name in "with/slash", ".hidden":
            assert "no path can have it" in tool("keep", "--file", path, name, status=2)
        assert kept() == {}
    finally:
        end_by_need()


def test_by_token(folder):
    """a region by its ref, and its holder killed"""
    holder = subprocess.Popen([TOOL, "put", "--json", "--dtype", "uint8", a_file(folder, 16)],
                              stdout=subprocess.PIPE, text=True)
    try:
        lines = iter(holder.stdout.readline, "}\n")
        answer = json.loads("".join(lines) + "}")
        tool("keep", answer["token"], "text")
        assert kept()["text"]["held"] == 1
        tool("drop", "text")
        tool("keep", json.dumps(answer["ref"]), "text")
        holder.kill()
        holder.wait()
        # Other suites look at the machine's regions, and hold each for a moment.
        wait_until("no process holds it", lambda: kept()["text"]["held"] == 0)
        assert "not an id" in tool("keep", answer["id"], "more", status=2)
    finally:
        holder.kill()
        holder.wait()
        end_by_need()


def test_session_killed(folder):
    """all processes of a session but the keeper killed: the next one opens by name"""
    path = a_file(folder)
    session = subprocess.Popen(
        ["sh", "-c", '"$1" keep --file "$2" model && > "$3" & '
         'sleep 1000 & wait', "-", TOOL, path, folder + "/told"], start_new_session=True)
    try:
        wait_until("kept", lambda: "model" in kept())
        wait_until("told", lambda: os.path.exists(folder + "/told"))
        os.killpg(session.pid, signal.SIGKILL)
        session.wait()
        assert kept_digest("model", "weights.bin") == digest(path)
    finally:
        session.kill()
        end_by_need()


def test_store(folder):
    """the keeper killed while systemd has its descriptors: names, bytes, times and paths are back"""
    path = a_file(folder)
    with StandIn(folder) as systemd:
        systemd.start()
        tool("keep", "--file", path, "one")
        tool("keep", "--for", "3600", "--file", path, "two")
        tool("keep", "--file", path, "three")
        tool("drop", "three")
        wait_until("taken back", lambda: systemd.kept() == 6)
        before = kept()
        for _ in range(3):
            systemd.end(signal.SIGKILL)
            systemd.start()
            after = kept()
            assert list(after) == ["one", "two"]
            for name, row in before.items():
                for member in ("id", "bytes", "kept_ns", "expires_ns", "held", "regions"):
                    assert after[name][member] == row[member], (name, member)
            assert kept_digest("one", "weights.bin") == digest(path)
        # New ones get new ids, and a restart that is asked for is one too.
        tool("keep", "--file", path, "four")
        assert kept()["four"]["id"] > before["two"]["id"]
        tool("drop", "one")
        systemd.end()
        systemd.start()
        assert list(kept()) == ["two", "four"]
        assert "without a holder ends with it" not in tool("doctor")


def test_store_is_part(folder):
    """killed between two descriptors of a group: it was never kept, and nothing of it stays"""
    path = a_file(folder, 4096)
    with StandIn(folder) as systemd:
        systemd.start()
        tool("keep", "--file", path, "whole")
        systemd.drop_after = 5  # the lock, the whole one, and the region of the next one, not what says which it is
        tool("keep", "--file", path, "half")
        systemd.end(signal.SIGKILL)
        systemd.drop_after = None
        systemd.start()
        assert list(kept()) == ["whole"]
        wait_until("only the whole one is stored", lambda: systemd.kept() == 3)


def test_store_lies(folder):
    """descriptors in the store that are none of the keeper's"""
    path = a_file(folder, 4096)
    with StandIn(folder) as systemd:
        systemd.start()
        tool("keep", "--file", path, "good")
        wait_until("stored", lambda: systemd.kept() == 3)
        systemd.end(signal.SIGKILL)
        junk = os.memfd_create("junk", os.MFD_ALLOW_SEALING)
        os.write(junk, b"junk" * 100)
        systemd.store += [("tmesh-00000000000000ff-m", junk), ("stored", os.dup(junk)),
                          ("tmesh-0000000000000001-9-9", os.dup(junk)), ("", os.dup(junk)),
                          ("x" * 200, os.open("/dev/null", os.O_RDONLY))]
        # A manifest under another's name.
        manifest = next(fd for name, fd in systemd.store if name.endswith("-m") and fd != junk)
        systemd.store.append(("tmesh-00000000000000fe-m", os.dup(manifest)))
        systemd.start()
        assert list(kept()) == ["good"]


def test_store_lock(folder):
    """a lock file that was replaced: the store has the new one's descriptor alone"""
    path = os.path.join(os.environ["TMESH_RUNTIME_DIR"], "keeper.lock")
    with StandIn(folder) as stand_in:
        stand_in.start()
        tool("keep", "--file", a_file(folder, 5000), "weights")
        wait_until("stored", lambda: stand_in.kept() == 3)
        stand_in.end()
        os.unlink(path)
        stand_in.start()
        tool("keep", "--file", a_file(folder, 5000), "more")
        assert stand_in.kept() == 6
        assert os.path.samestat(os.fstat(next(fd for name, fd in stand_in.store if name == "tmesh-lock")), os.stat(path))


def test_store_folder(folder):
    """a folder's table of paths and mode come back, and without its table the group was never kept"""
    model = os.path.join(folder, "model")
    os.makedirs(os.path.join(model, "sub"))
    large = a_file(model, 100_000)
    small = a_file(os.path.join(model, "sub"), 1000, "a\nb")
    with StandIn(folder) as systemd:
        systemd.start()
        tool("keep", "--mode", "0644", "--folder", model, "model")
        assert kept()["model"]["mode"] == 0o644 and kept()["model"]["regions"] == 2
        systemd.end(signal.SIGKILL)
        systemd.start()
        assert kept()["model"]["mode"] == 0o644 and systemd.kept() == 4
        assert kept_digest("model", "weights.bin") == digest(large)
        assert kept_digest("model", "sub/a\nb") == digest(small)
        systemd.end(signal.SIGKILL)
        for name, fd in systemd.store:
            if name.endswith("-p"):
                os.close(fd)
        systemd.store = [s for s in systemd.store if not s[0].endswith("-p")]
        systemd.start()
        assert kept() == {}
        wait_until("nothing of it is stored", lambda: systemd.kept() == 0)


def test_standard_descriptors(folder):
    """a keeper that is started without standard descriptors has its lock, and tells its starter that it runs"""
    run = os.environ["TMESH_RUNTIME_DIR"]
    os.makedirs(run, mode=0o700, exist_ok=True)
    for closed in (0, 2), (0, 1, 2):
        subprocess.run([KEEPER, "--daemon", run], preexec_fn=lambda closed=closed: list(map(os.close, closed)), timeout=PATIENCE, check=True)
        try:
            files = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{keeper_pid()}/fd") if os.path.lexists(entry.path)}
            assert os.path.join(run, "keeper.lock") in files, files
        finally:
            end_by_need()


def test_limit(folder):
    """within its limit what has no holder gives way, what is held does not"""
    path = a_file(folder)
    with StandIn(folder, limit=8 << 20) as systemd:
        systemd.start()
        tool("keep", "--file", path, "first")
        tool("keep", "--file", path, "second")
        holder = subprocess.Popen([os.path.join(BUILD, "tests", "keep", "kept_hash"), "first", "weights.bin", "hold"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holder.stdout.readline()
        tool("keep", "--file", path, "third")
        assert set(kept()) == {"first", "third"} and kept()["first"]["held"] == 1
        holder.stdin.close()
        holder.wait(PATIENCE)
        refused = tool("keep", "--file", a_file(folder, 9 << 20, "large"), "large", status=1)
        assert str(8 << 20) in refused and set(kept()) == {"first", "third"}


def test_strange_limit(folder):
    """a limit that is no number of bytes is refused, and the keeper's starter gets the reason"""
    path = a_file(folder)
    for text in ("4G", "abc", "-5", "0", " 7", "99999999999999999999"):
        said = tool("keep", "--file", path, "name", status=1,
                    env=dict(os.environ, TMESH_KEEPER_BYTES=text))
        assert f'the limit is "{text}"; it is a number of bytes (TMESH_KEEPER_BYTES' in said, said


def test_a_users_folder(folder):
    """root's keeper makes no folder in another user's"""
    if os.geteuid():
        return
    os.chown(folder, 65534, 65534)
    done = subprocess.run([KEEPER, os.path.join(folder, "run")], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1 and done.stdout == "the runtime directory: Permission denied\n", done
    assert not os.listdir(folder)


def test_purged(folder):
    """a keeper goes with its package's purge, and not before; another program's stays"""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../packaging/deb/tmesh-tools.postrm"), encoding="ascii") as file:
        text = file.read()
    assert "/usr/libexec/tmesh-keeper (deleted)" in text
    programs = [os.path.join(os.path.realpath(folder), name) for name in ("purged", "other")]
    script = os.path.join(folder, "postrm")
    with open(script, "w", encoding="ascii") as file:
        file.write(text.replace("/usr/libexec/tmesh-keeper", programs[0]))
    keepers = []
    try:
        for program in programs:
            shutil.copy(KEEPER, program)
            keepers.append(subprocess.Popen([program, program + ".run"]))
            wait_until("the keeper serves", lambda: os.path.exists(program + ".run/keeper"))
        subprocess.run(["sh", script, "upgrade"], check=True, timeout=PATIENCE)
        for program in programs:
            os.unlink(program)
        subprocess.run(["sh", script, "remove"], check=True, timeout=PATIENCE)
        assert [keeper.poll() for keeper in keepers] == [None, None]
        subprocess.run(["sh", script, "purge"], check=True, timeout=PATIENCE)
        assert keepers[0].wait(PATIENCE) == 0 and keepers[1].poll() is None
    finally:
        for keeper in keepers:
            keeper.kill()
            keeper.wait()


def test_installed(folder):
    """a keeper that was installed with tmeshctl, and not where the build thought"""
    tree = os.path.join(folder, "tree")
    for place, program in ("bin", TOOL), ("libexec", KEEPER):
        os.makedirs(os.path.join(tree, place))
        shutil.copy(program, os.path.join(tree, place))
    environment = {name: value for name, value in os.environ.items() if name != "TMESH_KEEPER"}
    run = [os.path.join(tree, "bin", "tmeshctl")]
    subprocess.run([*run, "keep", "--file", a_file(folder), "mine"], env=environment, check=True, timeout=PATIENCE,
                   stdout=subprocess.DEVNULL)
    keepers = keepers_of(tree)
    assert list(kept()) == ["mine"] and len(keepers) == 1
    tool("drop", "mine")
    end_by_need()


def test_late_signal(folder):
    """a keeper that gets SIGTERM in the moment before it waits ends"""
    moment = os.path.join(folder, "moment")
    tool("keep", "--file", a_file(folder), "weights", env=preloaded(folder, "late_signal.so", TMESH_LATE_SIGNAL=moment))
    fd = os.pidfd_open(keeper_pid())
    try:
        with open(moment, "wb"):
            pass
        assert "weights" in kept()  # it wakes, answers, sees the client go, and is about to wait again
        assert select.select([fd], [], [], PATIENCE)[0], "it waits on"
    finally:
        os.close(fd)
        end_by_need()


def test_ignored_signal(folder):
    """a keeper that began with a signal ignored, as in the background of a shell, is not ended by it"""
    systemd = StandIn(folder)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        systemd.start()
        tool("keep", "--file", a_file(folder), "weights")
        os.kill(systemd.pid, signal.SIGINT)
        assert list(kept()) == ["weights"] and os.waitpid(systemd.pid, os.WNOHANG) == (0, 0)
    finally:
        signal.signal(signal.SIGINT, before)
        systemd.end()


def test_pressure(folder):
    """a process that waits for memory takes what has no holder only where memory is short"""
    meminfo = os.path.join(folder, "meminfo")
    tool("keep", "--file", a_file(folder), "weights", env=preloaded(folder, "short_memory.so", TMESH_PRESSURE=meminfo))
    try:
        for available, stays in ((500, True), (10, False)):
            with open(meminfo + ".new", "w", encoding="ascii") as file:
                file.write(f"MemTotal:  1000 kB\nMemFree:  0 kB\nMemAvailable:  {available} kB\n")
            os.rename(meminfo + ".new", meminfo)
            kept()  # it wakes, and hears of the pressure; which it has read when the file is gone
            wait_until("read", lambda: not os.path.exists(meminfo))
            assert ("weights" in kept()) == stays, available
    finally:
        end_by_need()


TESTS = [test_installed, test_verbs, test_by_token, test_session_killed, test_store, test_store_is_part,
         test_store_lies, test_store_lock, test_store_folder, test_standard_descriptors, test_limit, test_strange_limit, test_late_signal, test_ignored_signal, test_pressure,
         test_a_users_folder, test_purged]


def main(tests):
    """Run the tests. One that cannot run here returns the reason. Without a runtime directory each has one of its own."""
    own = "TMESH_RUNTIME_DIR" not in os.environ
    print(f"1..{len(tests)}")
    failed = 0
    for number, test in enumerate(tests, 1):
        with tempfile.TemporaryDirectory() as folder:
            if own:
                os.environ["TMESH_RUNTIME_DIR"] = os.path.join(folder, "run")
            try:
                why = test(folder)
                print(f"ok {number} - {test.__doc__}" + (f" # SKIP {why}" if why else ""), flush=True)
            except Exception as error:  # whatever it is, the others are to run
                failed = 1
                print(f"not ok {number} - {test.__doc__}\n# {type(error).__name__}: {error}", flush=True)
                traceback.print_exc()
    return failed


if __name__ == "__main__":
    os.environ |= {"TMESH_BACKEND": "memfd", "TMESH_KEEPER": KEEPER}
    os.environ.pop("NOTIFY_SOCKET", None)
    os.environ.pop("TMESH_RUNTIME_DIR", None)
    sys.exit(main(TESTS))
