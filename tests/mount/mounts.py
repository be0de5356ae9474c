# SPDX-License-Identifier: MIT
"""Helpers of the tests of tmesh-mount: a mount, models, users, keepers of users and keepers that lie."""
import ctypes
import errno
import os
import random
import signal
import socket
import subprocess
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../keep")]
import test_keep
import wire
from test_keep import BUILD, PATIENCE, TOOL, wait_until

PROGRAM = sys.argv[2:] or [os.path.join(BUILD, "tmesh-mount")]
FULL = os.environ.get("TMESH_TEST_LENGTH") == "full"
OTHER = 65534  # a user without anything
# The capabilities that tmesh-mount.service leaves the process.
LIMITED = ["setpriv", "--bounding-set=-all,+sys_admin,+setuid", "--no-new-privs"]


def errno_of(call, *words):
    try:
        call(*words)
    except OSError as error:
        return error.errno
    return 0


class Mount:
    """A tmesh-mount of this test's; users' runtime folders are FOLDER/run-UID."""

    def __init__(self, folder, *keepers):
        os.chmod(folder, 0o755)
        self.keepers = [word for pattern in (os.path.join(folder, "run-%u"), *keepers) for word in ("--keepers", pattern)]
        self.folder, self.place = folder, os.path.join(folder, "tree")
        os.environ["TMESH_RUNTIME_DIR"] = os.path.join(folder, f"run-{os.geteuid()}")
        os.environ["TMESH_MOUNT"] = self.place
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen([*LIMITED, *PROGRAM, *self.keepers, self.place])
        wait_until("mounted", lambda: self.process.poll() is not None or self.way())
        assert self.process.poll() is None, "tmesh-mount ended"

    def way(self):
        try:
            return os.getxattr(self.place, "user.tmesh.mount")
        except OSError:
            return None

    def path(self, *parts, uid=None):
        return os.path.join(self.place, str(os.geteuid() if uid is None else uid), *parts)

    def end(self, how=signal.SIGTERM):
        if self.process:
            self.process.send_signal(how)
            self.process.wait(PATIENCE)
            self.process = None
        if how == signal.SIGTERM:
            assert not os.path.ismount(self.place)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        test_keep.end_by_need()
        self.end()


class ModuleMount(Mount):
    """A mount of the module's file system. All names of this user are dropped at its end."""

    def start(self):
        os.makedirs(self.place, exist_ok=True)
        test_keep.tool("mount", self.place)

    def end(self, _how=None):
        test_keep.tool("umount", self.place)

    def __exit__(self, *_):
        for name in test_keep.kept():
            test_keep.tool("drop", name)
        self.end()


def expected_way():
    """By what tmesh-mount is built with, and this kernel."""
    built = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
    return b"passthrough" if "passthrough" in built and kernel >= (6, 9) else b"page cache"


def a_model(folder, seed=1, large=3_000_001):
    """A folder of large and small files; their bytes by path."""
    dice = random.Random(seed)
    model = os.path.join(folder, f"model-{seed}")
    files = {"weights.bin": dice.randbytes(large), "config.json": b"{}", "empty": b"", "sub/tokens": dice.randbytes(65_535),
             "sub/deep/shard": dice.randbytes(65_536), "sub/deep.txt": b"text"}
    for path, data in files.items():
        os.makedirs(os.path.dirname(os.path.join(model, path)), exist_ok=True)
        with open(os.path.join(model, path), "wb") as file:
            file.write(data)
    return model, files


def read(path):
    with open(path, "rb") as file:
        return file.read()


def tree_of(place):
    return {os.path.relpath(os.path.join(at, name), place): read(os.path.join(at, name))
            for at, _, names in os.walk(place) for name in names}


def as_user(uid, *words, **environment):
    return subprocess.run(words, user=uid, group=uid, extra_groups=[], capture_output=True, text=True, timeout=PATIENCE,
                          env=os.environ | environment, check=False)


def run_folder(mount, uid):
    path = os.path.join(mount.folder, f"run-{uid}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    os.chown(path, uid, uid)
    return path


def keep_as(mount, uid, model, name, mode="0644"):
    done = as_user(uid, TOOL, "keep", "--replace", "--mode", mode, "--folder", model, name,
                   TMESH_RUNTIME_DIR=run_folder(mount, uid))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def end_keeper_of(mount, uid):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"tmesh-keeper") and os.fsencode(run_folder(mount, uid)) in words:
            os.kill(int(pid), signal.SIGKILL)


class Unanswered:
    """A file system at @place whose server never answers."""

    def __init__(self, place):
        self.place, self.libc = os.fsencode(place), ctypes.CDLL(None, use_errno=True)
        os.mkdir(place, 0o700)
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = b"fd=%d,rootmode=40700,user_id=0,group_id=0,allow_other" % self.device
        assert not self.libc.mount(b"unanswered", self.place, b"fuse", 0, options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.libc.umount2(self.place, 2)  # MNT_DETACH
        os.close(self.device)


class Liar:
    """A keeper of OTHER's in a process of that user's: @answer(connection, request) says what it answers."""

    last = 100  # id of a keeping: each liar has kept something else

    def __init__(self, mount, answer):
        Liar.last += 1
        folder = run_folder(mount, OTHER)
        ready, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setgroups([])
                os.setresgid(OTHER, OTHER, OTHER)
                os.setresuid(OTHER, OTHER, OTHER)
                path = os.path.join(folder, "keeper")
                if os.path.lexists(path):
                    os.unlink(path)
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                listener.bind(path)
                listener.listen(64)
                os.write(told, b"x")
                while True:
                    connection, _ = listener.accept()
                    data = connection.recv(4096)
                    try:
                        if len(data) == wire.REQUEST.size:
                            answer(connection, wire.request(data))
                    except (BrokenPipeError, ConnectionResetError):
                        pass  # the service waited no longer
                    connection.close()
            except BaseException:
                import traceback
                traceback.print_exc()
            os._exit(1)
        os.close(told)
        assert os.read(ready, 1) == b"x"
        os.close(ready)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


FILES = [(b"a", 0, 4096, 0), (b"b/c", 0, 100_000, 1)]


def honest(connection, asked, table=None, memory=None, size=4096):
    """Answer as a keeper that keeps FILES as "lies"; the table's or the region's descriptor may be another."""
    if asked["op"] == wire.LIST:
        wire.send(connection, wire.reply(count=1))
        wire.send(connection, wire.row(b"lies", Liar.last, count=2))
    elif asked["op"] == wire.FIND and asked["name"] == b"lies":
        wire.send(connection, wire.reply(count=1, ident=Liar.last), wire.memory(wire.table(FILES, 2)) if table is None else table())
        wire.send(connection, wire.row(b"lies", Liar.last, count=2))
    elif asked["op"] == wire.TAKE:
        wire.send(connection, wire.reply(count=1))
        if memory is None:
            wire.send(connection, wire.region(size), wire.memory(b"m" * (4096 if asked["region"] == 0 else 100_000)))
        else:
            wire.send(connection, wire.region(size), memory())
    else:
        wire.send(connection, wire.reply(-errno.ENOENT))
