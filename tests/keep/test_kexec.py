#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Groups that pass a kexec, with stand-ins for systemd and for both kernels. `make kexec-check` has the real ones.
Usage: test_kexec.py BUILD_DIR; prints TAP."""
import fcntl
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid

import test_keep
from test_keep import BUILD, KEEPER, StandIn, a_file, digest, kept, kept_digest, tool, wait_until

SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Machine(StandIn):
    """A systemd whose store passes a kexec, and the files by which its kernel is known."""

    def __init__(self, folder, hands_over=True):
        os.makedirs(folder, exist_ok=True)
        super().__init__(folder)
        self.kernel = os.path.join(folder, "kernel")
        self.log = os.path.join(folder, "log")
        self.more = {"LD_PRELOAD": os.path.join(BUILD, "tests/keep/other_kernel.so"), "TMESH_KERNEL": self.kernel}
        os.mkdir(self.kernel)
        if hands_over:
            self.write("liveupdate", "")
        self.boot()

    def write(self, name, text):
        with open(os.path.join(self.kernel, name), "w", encoding="ascii") as file:
            file.write(text)

    def boot(self):
        self.write("boot_id", f"{uuid.uuid4()}\n")
        self.write("kexec_loaded", "0\n")

    def load(self):
        self.write("kexec_loaded", "1\n")

    def said(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def kexec(self, seals=True, owner=None, kind="", change=None):
        """Give each memfd's bytes to a new one, and drop all other descriptors, as the kernel does. Give change() the bytes
        of the first group's descriptor of a kind, the end of its name. If it returns None, that descriptor is lost."""
        before, self.store = self.store, []
        first = min((name.split("-")[1] for name, _ in before if name.endswith("-m")), default="")
        for name, fd in before:
            try:
                had = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            except OSError:
                had = None
            linked = os.fstat(fd).st_nlink
            data = None if had is None or linked else os.pread(fd, os.fstat(fd).st_size, 0)
            if change and name == f"tmesh-{first}-{kind}":
                data = change(data)
            if data is not None:
                new = os.memfd_create("", os.MFD_ALLOW_SEALING)
                os.write(new, data)
                if seals:
                    fcntl.fcntl(new, fcntl.F_ADD_SEALS, had)
                if owner is not None:
                    os.fchown(new, owner, owner)
                self.store.append((name, new))
            os.close(fd)
        self.boot()

    def over(self, **how):
        """End the service and pass a kexec."""
        self.load()
        self.end()
        self.kexec(**how)

    def through(self, **how):
        """End the service, pass a kexec, and start it there."""
        self.over(**how)
        self.start()

    def at_barrier(self, action):
        """Run an action in place of the next answer to BARRIER=1."""
        def saw(words):
            if "BARRIER" in words:
                self.saw = None
                action()
        self.saw = saw

    def earlier(self):
        """Give each manifest the form that it had before it named its boot."""
        for i, (name, fd) in enumerate(self.store):
            if name.endswith("-m"):
                data = os.pread(fd, 1 << 20, 0)
                flags, = struct.unpack_from("=I", data, 36)
                new = os.memfd_create("tmesh-kept", os.MFD_ALLOW_SEALING)
                os.write(new, data[:36] + struct.pack("=I", flags & ~2) + data[40:-40])
                fcntl.fcntl(new, fcntl.F_ADD_SEALS, SEALED)
                os.close(fd)
                self.store[i] = name, new


def lasting(groups):
    """Return what the use of a group does not change."""
    return {name: {member: row[member] for member in ("id", "bytes", "kept_ns", "expires_ns", "regions", "mode")} for name, row in groups.items()}


def status(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return file.read()


def settled(machine, descriptors):
    wait_until("stored again", lambda: machine.kept() == descriptors)


def passes(folder, seals):
    """Keep a folder and a file, and pass two kernels."""
    model = os.path.join(folder, "model")
    os.mkdir(model)
    large, small = a_file(model, 100_001), a_file(model, 1000, "config.json")
    alone = a_file(folder, name="alone.bin")
    with Machine(folder) as machine:
        machine.start()
        tool("keep", "--mode", "0644", "--folder", model, "model")
        tool("keep", "--for", "3600", "--file", alone, "alone")
        settled(machine, 7)
        for _ in range(2):
            before = kept()
            machine.through(seals=seals)
            after = kept()
            assert list(after) == ["model", "alone"], after
            assert kept_digest("model", "weights.bin") == digest(large)
            assert kept_digest("model", "config.json") == digest(small)
            assert kept_digest("alone", "alone.bin") == digest(alone)
            assert after["model"]["mode"] == 0o644 and after["alone"]["expires_ns"] > 0
            assert all(after[name]["id"] > before[name]["id"] for name in after)
            settled(machine, 7)
            # Each file was opened anew for reading alone, and is sealed.
            for name, fd in machine.store:
                if re.fullmatch("tmesh-.*-[0-9p]", name):
                    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY, name
                    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALED == SEALED, name
            # Another life in the same kernel takes them without checksums.
            machine.end(signal.SIGKILL)
            machine.start()
            assert lasting(kept()) == lasting(after)
        assert machine.said() == "", machine.said()


def test_passes(folder):
    """a folder and a file pass two kernels: names, modes and bytes are the same, ids and descriptors are new"""
    passes(folder, seals=True)


def test_no_seals(folder):
    """the same with a kernel that drops seals: the keeper seals the files again"""
    passes(folder, seals=False)


def refused(folder, says, name="lost", **how):
    """Expect that a kexec of this kind drops the group "lost" with these words and leaves the group "stays". The keeper
    logs a name."""
    with Machine(folder) as machine:
        machine.start()
        tool("keep", "--file", a_file(folder, 5000), "lost")
        tool("keep", "--file", a_file(folder, 5000), "stays")
        settled(machine, 6)
        machine.through(**how)
        assert list(kept()) == ["stays"], kept()
        assert re.fullmatch(rf'tmesh-keeper: dropped the kept group "{name}" \(tmesh-[0-9a-f]+-m\): {says}; keep it again\n',
                            machine.said()), machine.said()
        settled(machine, 3)


def flip(data):
    return data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1:]


def test_mismatch(folder):
    """one bit of a region is another one: its group is dropped and logged, the other one stays"""
    refused(folder, "region 0 has other bytes than were kept", kind="0-0", change=flip)


def test_truncated(folder):
    """a region is a byte shorter"""
    refused(folder, r"region 0 has \d+ bytes, and \d+ were kept", kind="0-0", change=lambda data: data[:-1])


def test_lost(folder):
    """a region did not come, as from a store that was full"""
    refused(folder, "region 0 did not come", kind="0-0", change=lambda data: None)


def test_manifest(folder):
    """a manifest with another time"""
    refused(folder, "manifest 0 has other bytes than were kept",
            kind="m", change=lambda data: data[:16] + struct.pack("=Q", 7) + data[24:])


def test_record(folder):
    """damaged checksums"""
    refused(folder, "its checksums are damaged", kind="k", change=flip)


def test_no_record(folder):
    """checksums that did not come"""
    refused(folder, "no checksums came with it", kind="k", change=lambda data: None)


def test_no_manifest(folder):
    """a manifest that did not come: its group has no name in the log"""
    refused(folder, "its manifest did not come", name="", kind="m", change=lambda data: None)


def test_killed_between(folder):
    """a keeper that is killed when one group of two is stored again: the other one's checksums are there for the next life"""
    with Machine(folder) as machine:
        machine.start()
        for name in "one", "two":
            tool("keep", "--file", a_file(folder, 5000), name)
        settled(machine, 6)
        machine.over()
        killed = threading.Event()
        machine.at_barrier(lambda: (os.kill(machine.pid, signal.SIGKILL), killed.set()))
        machine.start(wait=False)
        assert killed.wait(test_keep.PATIENCE)
        os.waitpid(machine.pid, 0)
        machine.start()
        assert sorted(kept()) == ["one", "two"] and machine.said() == "", machine.said()
        settled(machine, 6)


def test_slow_systemd(folder):
    """a systemd that does not answer in time: the group stays, and the next life or the next kernel's takes it by its checksums"""
    with Machine(folder) as machine:
        machine.start()
        path = a_file(folder, 5000)
        tool("keep", "--file", path, "stays")
        settled(machine, 3)
        machine.over()
        machine.answers = False
        machine.start()
        machine.answers = True
        assert kept_digest("stays", "weights.bin") == digest(path)
        assert 'the kept group "stays" is not stored again' in machine.said(), machine.said()
        machine.end(signal.SIGKILL)
        machine.start()
        assert kept_digest("stays", "weights.bin") == digest(path)
        settled(machine, 3)


def test_ended_at_start(folder):
    """SIGTERM while a group is stored again: the service ends in order, and the group is there in the next life"""
    with Machine(folder) as machine:
        machine.start()
        tool("keep", "--file", a_file(folder, 5000), "stays")
        settled(machine, 3)
        machine.over()

        def terminate():
            """End the keeper while it waits for the answer."""
            wait_until("waits", lambda: "\nState:\tS" in status(machine.pid))
            os.kill(machine.pid, signal.SIGTERM)
            time.sleep(0.1)

        machine.at_barrier(terminate)
        machine.start()
        os.waitpid(machine.pid, 0)
        machine.start()
        assert list(kept()) == ["stays"] and machine.said() == "", machine.said()
        settled(machine, 3)


def test_earlier_version(folder):
    """a manifest of an earlier version, which names no boot, passes a kexec, also if the keeper is killed there"""
    with Machine(folder) as machine:
        machine.start()
        for name in "one", "two":
            tool("keep", "--file", a_file(folder, 5000), name)
        settled(machine, 6)
        before = lasting(kept())
        machine.end(signal.SIGKILL)
        machine.earlier()
        machine.start()
        assert lasting(kept()) == before
        machine.over()
        killed = threading.Event()
        machine.at_barrier(lambda: (os.kill(machine.pid, signal.SIGKILL), killed.set()))
        machine.start(wait=False)
        assert killed.wait(test_keep.PATIENCE)
        os.waitpid(machine.pid, 0)
        machine.start()
        assert sorted(kept()) == ["one", "two"] and machine.said() == "", machine.said()
        settled(machine, 6)


def test_full_table_of_files(folder):
    """the kernel's table of open files is full when the keeper reads its boot: the group is not one of another kernel"""
    with Machine(folder) as machine:
        machine.start()
        tool("keep", "--file", a_file(folder, 5000), "stays")
        settled(machine, 3)
        machine.end(signal.SIGKILL)
        machine.write("full", "")
        machine.start()
        assert not os.path.exists(os.path.join(machine.kernel, "full"))
        assert list(kept()) == ["stays"] and machine.said() == "", machine.said()


def test_clients_first(folder):
    """connections end before the keeper reads its files for the checksums"""
    machine = Machine(folder)
    found = []
    try:
        machine.start()
        tool("keep", "--file", a_file(folder, 5000), "stays")
        settled(machine, 3)
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(os.path.join(os.environ["TMESH_RUNTIME_DIR"], "keeper"))
        tool("kept")  # the connections before it are accepted

        def saw(words):
            if "EXTEND_TIMEOUT_USEC" in words:
                found.extend(select.select([client], [], [], 0)[0])
                machine.saw = None
        machine.load()
        machine.saw = saw
        machine.end()
        wait_until("read", lambda: not machine.saw)
        assert found == [client] and client.recv(1) == b""
    finally:
        machine.end()


def test_too_many(folder):
    """more descriptors than a process may have: the keeper refuses to start, and drops nothing"""
    done = subprocess.run(["sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=99999999 LISTEN_FDNAMES=tmesh-lock exec "$0" "$1"', KEEPER,
                           os.environ["TMESH_RUNTIME_DIR"]], capture_output=True, text=True, check=False, timeout=test_keep.PATIENCE)
    assert done.returncode == 1 and "LimitNOFILE=" in done.stdout, done


def test_other_user(folder):
    """descriptors of another user, as a user's own keeper gets them from root: nothing is taken"""
    with Machine(folder) as machine:
        machine.start()
        tool("keep", "--file", a_file(folder, 5000), "lost")
        machine.through(owner=65534)
        assert kept() == {} and "its manifest belongs to user 65534" in machine.said(), machine.said()
        settled(machine, 0)
        # The owner of a region alone is another one.
        tool("keep", "--file", a_file(folder, 5000), "again")
        machine.load()
        machine.end()
        machine.kexec()
        os.fchown(next(fd for name, fd in machine.store if name.endswith("-0-0")), 65534, 65534)
        machine.start()
        assert kept() == {} and "region 0 belongs to user 65534" in machine.said(), machine.said()


def test_killed(folder):
    """a keeper that was killed before a kexec has no checksums, and what a kernel without the feature drops is gone"""
    with Machine(folder) as machine:
        machine.start()
        tool("keep", "--file", a_file(folder, 5000), "lost")
        settled(machine, 3)
        machine.load()
        machine.end(signal.SIGKILL)
        machine.kexec()
        machine.start()
        assert kept() == {} and "no checksums came with it" in machine.said(), machine.said()
        settled(machine, 0)


def test_not_handed_over(folder):
    """a kernel without the feature: the keeper says once that its groups end, and without a loaded kernel nothing"""
    with Machine(folder, hands_over=False) as machine:
        machine.start()
        tool("keep", "--file", a_file(folder, 5000), "lost")
        settled(machine, 3)
        machine.end()
        assert machine.said() == ""
        machine.start()
        machine.load()
        machine.end()
        assert re.fullmatch("tmesh-keeper: kept groups end with a kexec: .*CONFIG_LIVEUPDATE.*\n", machine.said()), machine.said()
        machine.start()
        assert list(kept()) == ["lost"]


def test_no_kexec(folder):
    """a kernel was loaded and the service only restarted: all is as before, and the checksums are gone"""
    with Machine(folder) as machine:
        machine.start()
        tool("keep", "--file", a_file(folder, 5000), "stays")
        settled(machine, 3)
        before = lasting(kept())
        machine.load()
        machine.end()
        wait_until("the checksums", lambda: machine.kept() == 4)
        machine.start()
        assert lasting(kept()) == before and machine.said() == ""
        settled(machine, 3)


def test_device(folder):
    """a region that stands for a descriptor: its file, a hole of that length, is not left for the kernel to fill"""
    with Machine(folder) as machine:
        machine.start()
        subprocess.run([os.path.join(BUILD, "tests/keep/kept_device"), "device"], check=True, timeout=test_keep.PATIENCE)
        tool("keep", "--file", a_file(folder, 5000), "stays")
        machine.end()
        machine.start()
        assert list(kept()) == ["device", "stays"] and machine.said() == ""
        machine.load()
        machine.end()
        assert re.fullmatch('tmesh-keeper: the kept group "device" ends with a kexec: .*\n', machine.said()), machine.said()
        settled(machine, 4)
        assert max(os.fstat(fd).st_size for _, fd in machine.store) < 1 << 20
        machine.kexec()
        machine.start()
        assert list(kept()) == ["stays"]


def test_times(folder):
    """a lifetime that ends during the kexec ends the group"""
    with Machine(folder) as machine:
        machine.start()
        tool("keep", "--for", "1", "--file", a_file(folder, 5000), "short")
        tool("keep", "--for", "3600", "--file", a_file(folder, 5000), "long")
        settled(machine, 6)
        machine.load()
        machine.end()
        machine.kexec()
        time.sleep(1)
        machine.start()
        wait_until("over", lambda: list(kept()) == ["long"])


TESTS = [test_passes, test_no_seals, test_mismatch, test_truncated, test_lost, test_manifest, test_record, test_no_record, test_no_manifest, test_other_user,
         test_killed, test_killed_between, test_slow_systemd, test_ended_at_start, test_earlier_version, test_full_table_of_files, test_clients_first, test_too_many,
         test_not_handed_over, test_no_kexec, test_device, test_times]


def skip(why):
    print(f"1..{len(TESTS)}")
    for number, test in enumerate(TESTS, 1):
        print(f"ok {number} - {test.__doc__} # SKIP {why}")
    return 0


if __name__ == "__main__":
    if os.geteuid():
        sys.exit(skip("not root: only root's keeper passes a kexec"))
    os.environ |= {"TMESH_BACKEND": "memfd", "TMESH_KEEPER": KEEPER}
    os.environ.pop("NOTIFY_SOCKET", None)
    os.environ.pop("TMESH_RUNTIME_DIR", None)
    sys.exit(test_keep.main(TESTS))
