#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The keeper as a service of a real systemd (`systemd --user` in namespaces of its own). The tests cover its
unit as it is installed, descriptors that survive it, and a storm of kills on keeping. The unit of engines.
Needs root and systemd. Usage: test_systemd.py BUILD_DIR; prints TAP."""
import contextlib
import hashlib
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import threading
import time

import test_keep
from test_keep import BUILD, KEEPER, PATIENCE, TOOL, a_file, digest, kept, kept_digest, tool, wait_until

MANAGER = "/lib/systemd/systemd"
RUN = "/run/user/0"
UNIT = "tmesh-keeper.service"
UNITS = "/run/tmesh-units"
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FULL = os.environ.get("TMESH_TEST_LENGTH") == "full"
# Only these are mounted or seen by what runs inside.
NAMESPACES = ["unshare", "--mount", "--pid", "--cgroup", "--fork", "--mount-proc", "--kill-child"]


def why_not():
    """Return the missing requirement, or None."""
    if not os.access(MANAGER, os.X_OK):
        return f"there is no {MANAGER}: apt install systemd"
    if os.geteuid():
        return "not root: a systemd of one's own needs namespaces"
    done = subprocess.run([*NAMESPACES, "sh", "-ec", PREPARE], capture_output=True, text=True)
    return f"no namespaces with a cgroup2 of their own: {done.stderr.strip()[-200:]}" if done.returncode else None


# systemd wants to see that the machine runs systemd, and a hierarchy that it may write to.
PREPARE = f"""mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system {RUN} && chmod 700 {RUN}
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/tmesh-test-$$ && rmdir /sys/fs/cgroup/tmesh-test-$$"""


def systemctl(*words, check=True):
    return subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, check=check, timeout=PATIENCE).stdout


def service(what):
    return systemctl("show", "--value", "-p", what, UNIT).strip()


def stored():
    return int(service("NFileDescriptorStore"))


def keeper():
    """Its process, when it answers."""
    pid = int(service("MainPID") or 0)
    return pid if pid and service("ActiveState") == "active" else None


def again(before):
    wait_until("a new keeper", lambda: (keeper() or before) != before)


def kill_keeper():
    """Returns when it is dead; another one is on its way."""
    pid = keeper()
    fd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([fd], [], [], PATIENCE)
    os.close(fd)
    return pid


def restart_keeper():
    again(kill_keeper())


def patient(*words):
    """A client gives up when no keeper has come within three seconds; on a busy machine systemd may take longer."""
    end = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run([TOOL, *words], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode == 0 or "does not answer" not in done.stderr or time.monotonic() > end:
            assert done.returncode == 0, f"{words}: {done.returncode} {done.stderr}"
            return done.stdout


def others():
    """Processes in here that are neither this one, systemd nor one that waits for it."""
    mine = {1, os.getpid(), SYSTEMD.pid}
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in mine]


def test_unit(folder):
    """the installed unit: descriptors survive kills and restarts; ids, times and paths are the same"""
    empty = stored()
    path = a_file(folder)
    tool("keep", "--file", path, "one")
    tool("keep", "--for", "3600", "--file", path, "two")
    tool("keep", "--file", path, "three")
    tool("drop", "three")
    assert stored() == empty + 6
    before = kept()
    for restart in (restart_keeper, lambda: systemctl("restart", UNIT), restart_keeper):
        restart()
        after = kept()
        assert list(after) == ["one", "two"]
        for name, row in before.items():
            for member in ("id", "bytes", "kept_ns", "expires_ns", "held", "regions"):
                assert after[name][member] == row[member], (name, member)
        assert kept_digest("one", "weights.bin") == digest(path)
    assert "without a holder ends with it" not in tool("doctor")
    for name in "one", "two":
        tool("drop", name)
    assert stored() == empty and kept() == {}


def test_all_killed(folder):
    """every process but systemd killed, the keeper too, and the file gone: the model is there"""
    data = os.urandom(20 << 20 if not FULL else 1 << 30)
    count = 300
    each = len(data) // count
    entries = {f"t{i}": {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]} for i in range(count)}
    header = json.dumps(entries).encode()
    path = os.path.join(folder, "model.safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data[:count * each])
    load = [os.path.join(BUILD, "tmeshctl-load")]
    loader = subprocess.Popen([*load, "--keep-as", "model", path], stdout=subprocess.DEVNULL)
    wait_until("kept", lambda: "model" in kept())
    os.unlink(path)
    pid = keeper()
    sleepers = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    for other in others():
        os.kill(other, signal.SIGKILL)
    for process in (loader, *sleepers):
        assert process.wait() == -signal.SIGKILL
    again(pid)
    assert list(kept()) == ["model"] and kept()["model"]["bytes"] >= count * each
    reader = os.path.join(BUILD, "tests/keep/kept_hash")
    told = subprocess.run([reader, "model"], check=True, timeout=PATIENCE, capture_output=True, text=True).stdout.split()
    assert int(told[0]) == count and told[1] == hashlib.sha256(data[:count * each]).hexdigest(), told
    tool("drop", "model")


def test_no_other_keeper(folder):
    """between two lives of the service no other process becomes the keeper, and what is kept is not denied"""
    path = a_file(folder, 4096)
    names = {"mine"}
    tool("keep", "--file", path, "mine")
    for number in range(5):
        before = kill_keeper()
        # This finds no keeper; without the service it would start one.
        patient("keep", "--file", path, f"more{number}")
        names.add(f"more{number}")
        again(before)
        assert test_keep.keeper_pid() == keeper()
        before = kill_keeper()
        assert {k["name"] for k in json.loads(patient("kept", "--json"))} == names
        again(before)
    for name in names:
        tool("drop", name)


def test_by_need_before(folder):
    """a service that is started beside a keeper that was started by need waits until that one ends"""
    systemctl("stop", UNIT)
    systemctl("clean", "--what=fdstore", UNIT, check=False)  # since systemd 254; before, stopping does that
    tool("keep", "--file", a_file(folder, 4096), "early")
    first = test_keep.keeper_pid()
    systemctl("start", "--no-block", UNIT)
    wait_until("told", lambda: "another tmesh-keeper" in service("StatusText"))
    assert list(kept()) == ["early"] and test_keep.keeper_pid() == first
    tool("drop", "early")
    os.kill(first, signal.SIGTERM)
    wait_until("the service", keeper)
    assert test_keep.keeper_pid() == keeper() != first


class Client(threading.Thread):
    """Keeps, replaces and drops under names of its own, by processes that are killed at any moment. `may` has what each
    name may be afterwards: digests, or None for nothing. If a process got an answer, that digest is the only
    one."""

    def __init__(self, number, files, seed, until):
        super().__init__()
        self.files, self.random, self.until = files, random.Random(seed), until
        self.names = [f"c{number}-{n}" for n in range(3)]
        self.may = {name: {None} for name in self.names}
        self.done = self.killed = 0
        self.process = self.failure = None

    def act(self):
        name = self.random.choice(self.names)
        path = self.random.choice(list(self.files))
        drop = self.random.random() < 0.3
        words = ["drop", name] if drop else ["keep", "--replace", "--file", path, name]
        wanted = None if drop else self.files[path]
        before = self.may[name]
        self.may[name] = before | {wanted}
        self.process = subprocess.Popen([TOOL, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if self.random.random() < 0.3:
            time.sleep(self.random.random() * 0.03)
            self.process.kill()
        _, said = self.process.communicate()
        if self.process.returncode == 0 or (drop and "nothing is kept" in said):
            self.may[name] = {wanted}
            self.done += 1
        elif self.process.returncode == -signal.SIGKILL:
            self.killed += 1
        elif not any(words in said for words in ("keeper", "timed out", "other end")):
            raise AssertionError(f"{words}: {said}")

    def run(self):
        try:
            while not self.until.is_set():
                self.act()
        except Exception as failure:
            self.failure = failure


def digest_of(name, files):
    """Return the digest of the memory kept under a name, which is one of the files."""
    for path in files:
        try:
            return kept_digest(name, os.path.basename(path))
        except AssertionError as error:
            if "no file" not in str(error):
                raise
    raise AssertionError(f"{name} is none of the files")


def test_storm(folder):
    """loaders, clients and keepers killed at random moments: exactly the promised memory is there"""
    empty = stored()
    files = {}
    for number in range(4):
        path = a_file(folder, random.Random(number).choice((5000, 70000, 1 << 20)), f"f{number}")
        files[path] = digest(path)
    until = threading.Event()
    clients = [Client(n, files, n, until) for n in range(3)]
    dice = random.Random(17)
    for client in clients:
        client.start()
    kills = 100 if FULL else 12
    for _ in range(kills):
        time.sleep(dice.random() * 0.6)
        restart_keeper()
    until.set()
    for client in clients:
        client.join()
        if client.failure:
            raise client.failure
    for last in range(2):
        there = kept()
        regions = 0
        for client in clients:
            for name, may in client.may.items():
                if name not in there:
                    assert None in may, f"{name} was promised and is gone"
                    continue
                regions += there[name]["regions"]
                found = digest_of(name, files)
                assert found in may, f"{name} is another"
                may -= {None} | set(files.values()) - {found}
        assert set(there) <= {name for client in clients for name in client.may}
        if not last:
            restart_keeper()
    # A group has its regions, its table of paths and its manifest.
    assert stored() == empty + regions + 2 * len(there), (stored(), regions, len(there))
    for name in there:
        tool("drop", name)
    assert kept() == {} and stored() == empty
    wait_until("no process holds memory of it", lambda: not holders())
    done, killed = (sum(getattr(client, what) for client in clients) for what in ("done", "killed"))
    assert done and killed
    print(f"# {kills} keepers and {killed} clients killed, {done} requests answered", flush=True)


def holders():
    """Return the processes with a region's memfd; the index of a keeper's is none."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += [pid for fd in os.listdir(f"/proc/{pid}/fd")
                      if "memfd:tmesh:" in os.readlink(f"/proc/{pid}/fd/{fd}")]
        except OSError:
            pass  # gone meanwhile
    return found


def test_engine_unit(folder):
    """the engine's unit: systemd finds nothing wrong in it, it serves, is restarted when it is killed, and stops"""
    unit = "tmesh-engine@fake.service"
    options = os.path.join(UNITS, unit + ".d")
    os.makedirs(options)
    with open(os.path.join(options, "options.conf"), "w", encoding="utf-8") as file:
        file.write(f"[Service]\nEnvironment=\"TMESH_ENGINE_OPTIONS=--models={folder}\"\n")
    checked = subprocess.run(["systemd-analyze", "--user", "--man=no", "verify", os.path.join(UNITS, unit)],
                             capture_output=True, text=True, timeout=PATIENCE)
    assert checked.returncode == 0 and "tmesh-engine" not in checked.stderr, checked.stderr

    def served():
        """The process of the service, once it has an engine."""
        pid = int(systemctl("show", "--value", "-p", "MainPID", unit).strip() or 0)
        engines = json.loads(tool("top", "--json"))["engines"]
        return pid if [e["name"] for e in engines if e["supervisor_pid"] == pid and e["pid"]] == ["fake"] else None

    systemctl("daemon-reload")
    systemctl("start", unit)
    wait_until("the engine", served)
    first = served()
    os.kill(first, signal.SIGKILL)
    wait_until("another one", lambda: (served() or first) != first)
    systemctl("stop", unit)
    assert systemctl("show", "--value", "-p", "Result", unit).strip() == "success"
    assert json.loads(tool("top", "--json"))["engines"] == []


TESTS = [test_unit, test_all_killed, test_no_other_keeper, test_by_need_before, test_storm, test_engine_unit]
SYSTEMD = None


def inside():
    global SYSTEMD
    os.makedirs(UNITS)
    for name in UNIT, "tmesh-engine@.service":
        with open(os.path.join(TOP, "packaging/systemd", name + ".in"), encoding="utf-8") as template, \
                open(os.path.join(UNITS, name), "w", encoding="utf-8") as unit:
            unit.write(template.read().replace("@libexecdir@", os.path.dirname(KEEPER)).replace("@bindir@", BUILD))
    os.environ |= {"TMESH_ENGINE_PATH": os.path.join(BUILD, "tests/engine/engines"),
                   "XDG_RUNTIME_DIR": RUN, "SYSTEMD_UNIT_PATH": UNITS + ":/usr/lib/systemd/user", "TMESH_BACKEND": "memfd",
                   "TMESH_KEEPER": KEEPER, "TMESH_RUNTIME_DIR": RUN + "/tmesh", "HOME": "/run"}
    before = os.listdir("/sys/fs/cgroup")
    SYSTEMD = subprocess.Popen([MANAGER, "--user", "--log-target=console", "--log-level=warning"], stderr=subprocess.DEVNULL)
    wait_until("systemd", lambda: systemctl("is-system-running", check=False).strip() in ("running", "degraded"))
    systemctl("start", UNIT)
    try:
        return test_keep.main(TESTS)
    finally:
        SYSTEMD.terminate()
        SYSTEMD.wait(PATIENCE)
        # The groups that it made outlive it. Those of others, which came meanwhile, are in use, or go by themselves.
        for top in set(os.listdir("/sys/fs/cgroup")) - set(before):
            for group, _, _ in os.walk(os.path.join("/sys/fs/cgroup", top), topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(group)


def main():
    missing = why_not()
    if missing:
        print(f"1..{len(TESTS)}")
        for number, test in enumerate(TESTS, 1):
            print(f"ok {number} - {test.__doc__} # SKIP {missing}")
        return 0
    return subprocess.run([*NAMESPACES, "sh", "-ec", PREPARE + '\nexec "$0" -B "$@"', sys.executable, os.path.abspath(__file__),
                           BUILD, "inside"]).returncode


if __name__ == "__main__":
    sys.exit(inside() if sys.argv[2:] == ["inside"] else main())
