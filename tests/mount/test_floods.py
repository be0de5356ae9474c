# SPDX-License-Identifier: MIT
"""tmesh-mount and users who flood it: one user's requests, names and open folders take nothing from others."""
import ctypes
import errno
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time

from mounts import Liar, Mount, OTHER, Unanswered, a_model, errno_of, honest, keep_as, read, run_folder
import wire
from test_keep import PATIENCE, tool, wait_until

STRANGER = OTHER - 1
REFUSED = (errno.EAGAIN, errno.ETIMEDOUT)
IN_ACCESS, IN_NONBLOCK = 1, os.O_NONBLOCK

# The interpreter itself may be where only root can read.
BECOME = f"""
import os, resource, sys, threading
os.setgroups([]), os.setresgid({STRANGER}, {STRANGER}, {STRANGER}), os.setresuid({STRANGER}, {STRANGER}, {STRANGER})
"""

# Many threads make one request each, and write its error.
FLOOD = BECOME + """
count, call, path = int(sys.argv[1]), getattr(os, sys.argv[2]), sys.argv[3]
os.chdir(sys.argv[4])
gate = threading.Barrier(count + 1)
def request(number):
    gate.wait()
    error = 0
    try:
        call(path.replace("@", f"{number:03}"), *[os.O_RDONLY] * (call is os.open))
    except OSError as failure:
        error = failure.errno
    os.write(1, b"%d\\n" % error)
for number in range(count):
    threading.Thread(target=request, args=(number,)).start()
os.write(1, b"ready\\n")
os.read(0, 1)
gate.wait()
"""


class Flood:
    """A stranger's requests and the last one, a user's own, which the service finds all at once."""

    def __init__(self, mount, place, count, call, path):
        self.mount, self.connections = mount, os.path.join(mount.folder, "connections")
        self.own = os.open(mount.path(uid=OTHER), os.O_PATH)
        self.waiting = os.path.join(self.connections, str(os.minor(os.fstat(self.own).st_dev)), "waiting")
        self.process = subprocess.Popen([sys.executable, "-c", FLOOD, str(count), call, path, place], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"
        os.makedirs(self.connections, exist_ok=True)
        subprocess.run(["mount", "-t", "fusectl", "none", self.connections], check=True)
        mount.process.send_signal(signal.SIGSTOP)
        try:
            self.process.stdin.write(b"x")
            self.process.stdin.flush()
            self.await_requests(count)
            self.thread, self.result = stat_as(OTHER, "lies", self.own)
            self.await_requests(count + 1)
        finally:
            mount.process.send_signal(signal.SIGCONT)
            subprocess.run(["umount", self.connections], check=True)

    def await_requests(self, count):
        wait_until("the requests wait", lambda: int(read(self.waiting)) >= count)

    def end(self):
        """Return the error of the user's own request, and the stranger's errors."""
        self.thread.join()
        errors = [int(line) for line in self.process.communicate(timeout=PATIENCE)[0].split()]
        assert self.process.returncode == 0
        os.close(self.own)
        return self.result[0], errors


def stat_as(uid, path, folder):
    """Return the error of a stat by a thread with this user's rights."""
    result = []

    def run():
        libc = ctypes.CDLL(None, use_errno=True)
        libc.setfsgid(uid)
        libc.setfsuid(uid)  # of this thread alone
        result.append(errno_of(lambda: os.stat(path, dir_fd=folder)))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def test_listings_share_questions(folder):
    """many listings of the root at the same time: a user's keeper is asked a few times, and the user's own requests go on"""
    asked = os.path.join(folder, "asked")

    def answer(connection, request):
        if request["op"] == wire.LIST:
            with open(asked, "ab") as file:
                file.write(b".")
            time.sleep(0.1)
        honest(connection, request)

    with open(asked, "wb"):
        pass
    os.chown(asked, OTHER, OTHER)
    with Mount(folder) as mount, Liar(mount, answer):
        os.stat(mount.path("lies", uid=OTHER))
        own, errors = Flood(mount, mount.place, 200, "listdir", ".").end()
        assert len(errors) == 200 and set(errors) <= {0, errno.EAGAIN}, errors
        assert not own and not errno_of(os.stat, mount.path("lies", uid=OTHER)), own
        assert 0 < os.stat(asked).st_size <= 40, os.stat(asked).st_size


def test_opens_of_strangers(folder):
    """a stranger's flood of opens in a user's folder refuses the stranger alone"""
    files = [(b"f%03d" % number, 0, 1, 0) for number in range(300)]

    def answer(connection, request):
        if request["op"] == wire.TAKE:
            time.sleep(0.01)
            wire.send(connection, wire.reply(count=1))
            wire.send(connection, wire.region(4096), wire.memory(b"m" * 4096))
        elif request["op"] == wire.FIND:
            wire.send(connection, wire.reply(count=1), wire.memory(wire.table(files)))
            wire.send(connection, wire.row(b"lies", 1))
        else:
            wire.send(connection, wire.reply(-errno.ENOENT))

    with Mount(folder) as mount, Liar(mount, answer):
        lies = mount.path("lies", uid=OTHER)
        for _ in range(10):
            for name, *_ in files:
                os.stat(os.path.join(os.fsencode(lies), name))  # no lookup is needed then
            own, errors = Flood(mount, lies, 300, "open", "f@").end()
            assert len(errors) == 300 and sum(error in REFUSED for error in errors) >= 200, errors
            if not own:
                break
            # On a busy machine the keeper may be late, and is not asked for a moment.
            wait_until("asked again", lambda: not errno_of(os.stat, lies))
        assert own == 0, errno.errorcode[own]


def test_folder_of_users_is_kept(folder):
    """the folder of all users' runtime folders is read again only if it has changed"""
    model, _ = a_model(folder, large=70_000)
    libc = ctypes.CDLL(None, use_errno=True)
    with Mount(folder) as mount:
        tool("keep", "--mode", "0644", "--folder", model, "mine")
        assert os.listdir(mount.place) == ["0"]
        time.sleep(0.3)  # until a later change has another time for certain
        assert os.listdir(mount.place) == ["0"]
        watch = libc.inotify_init1(IN_NONBLOCK)
        assert watch >= 0 and libc.inotify_add_watch(watch, os.fsencode(folder), IN_ACCESS) >= 0
        reads = 0
        for _ in range(20):
            assert os.listdir(mount.place) == ["0"]
            while not errno_of(os.read, watch, struct.calcsize("iIII") + 256):
                reads += 1
        os.close(watch)
        assert reads == 0, reads
        keep_as(mount, OTHER, model, "theirs")
        assert sorted(os.listdir(mount.place)) == ["0", str(OTHER)]


def test_folder_of_users_hangs(folder):
    """a folder of runtime folders that takes for ever to read: other requests go on, listings have the users who are known"""
    model, _ = a_model(folder, large=70_000)
    slow = os.path.join(folder, "slow")
    with Mount(folder, os.path.join(slow, "run-%u")) as mount:
        tool("keep", "--folder", model, "mine")
        assert read(mount.path("mine/config.json")) == b"{}"
        with Unanswered(slow):
            listing = subprocess.Popen(["ls", mount.place], stdout=subprocess.PIPE)
            try:
                for _ in range(20):
                    done = subprocess.run(["cat", mount.path("mine/config.json")], capture_output=True, timeout=60, check=False)
                    assert done.stdout == b"{}", done
            finally:
                assert listing.communicate(timeout=PATIENCE)[0] == b"0\n"


def test_many_names(folder):
    """a keeper that answers for any name: the service knows a bounded number of them, and forgets those without users"""
    shared = []

    def answer(connection, request):
        shared[:] = shared or [wire.memory(wire.table([(b"a", 0, 0, 0)]))]
        if request["op"] == wire.FIND and request["name"].isdigit():
            wire.send(connection, wire.reply(count=1), *shared)
            wire.send(connection, wire.row(request["name"], int(request["name"]) + 1))
        else:
            wire.send(connection, wire.reply(-errno.ENOENT))

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[1], 8192), max(limits[1], 8192)))
    model, files = a_model(folder, large=70_000)
    with Mount(folder) as mount, Liar(mount, answer):
        tool("keep", "--folder", model, "mine")
        held, error = [], 0
        try:
            while not error and len(held) < 4200:
                try:
                    held.append(os.open(mount.path(str(len(held)), uid=OTHER), os.O_PATH))
                except OSError as failure:
                    error = failure.errno
            assert error == errno.EMFILE and len(held) == 4096, (error, len(held))
            assert read(mount.path("mine/sub/tokens")) == files["sub/tokens"]
        finally:
            for fd in held:
                os.close(fd)
        wait_until("a new name is known", lambda: not errno_of(os.stat, mount.path("5000", uid=OTHER)))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_groups_held_open(folder):
    """a user's groups with open files are bounded; the same user's other files open again after a close, and other users' always"""
    shared = []

    def answer(connection, request):
        shared[:] = shared or [wire.memory(wire.table([(b"a", 0, 1, 0)])), wire.memory(b"m" * 4096)]
        if request["op"] == wire.FIND and request["name"].isdigit():
            wire.send(connection, wire.reply(count=1), shared[0])
            wire.send(connection, wire.row(request["name"], int(request["name"]) + 1))
        elif request["op"] == wire.TAKE:
            wire.send(connection, wire.reply(count=1))
            wire.send(connection, wire.region(4096), shared[1])
        else:
            wire.send(connection, wire.reply(-errno.ENOENT))

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[1], 4096), max(limits[1], 4096)))
    model, files = a_model(folder, large=70_000)
    with Mount(folder) as mount, Liar(mount, answer):
        tool("keep", "--folder", model, "mine")
        held = [os.open(mount.path(str(number), "a", uid=OTHER), os.O_RDONLY) for number in range(1024)]
        try:
            assert errno_of(read, mount.path("1024/a", uid=OTHER)) == errno.EMFILE
            assert read(mount.path("7/a", uid=OTHER)) == b"m"
            assert read(mount.path("mine/sub/tokens")) == files["sub/tokens"]
            os.close(held.pop())
            wait_until("another group opens", lambda: not errno_of(read, mount.path("1024/a", uid=OTHER)))
        finally:
            for fd in held:
                os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


OPENS = BECOME + """
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
try:
    while len(held) < 1100:
        held.append(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY))
except OSError as error:
    print(error.errno)
print(len(held))
"""


def test_root_held_open(folder):
    """one user's open listings of the root are bounded; another user opens it still"""
    with Mount(folder) as mount:
        run_folder(mount, OTHER)
        done = subprocess.run([sys.executable, "-c", OPENS, mount.place], capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        assert done.stdout.split() == [str(errno.EMFILE), "1024"], done
        assert os.listdir(mount.place) == []


TESTS = [test_listings_share_questions, test_opens_of_strangers, test_folder_of_users_is_kept, test_folder_of_users_hangs, test_many_names,
         test_groups_held_open, test_root_held_open]
