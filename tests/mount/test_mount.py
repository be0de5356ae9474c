#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Kept files by paths: tmesh-mount, what it shows, readers of all kinds, keepers that hang and lie, kills, namespaces.
Usage: test_mount.py BUILD_DIR [PROGRAM WORD...]; the words start another tmesh-mount than the build's. Prints TAP."""
import ctypes
import errno
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "../keep")]
import test_keep
import wire
from test_keep import BUILD, KEEPER, PATIENCE, TOOL, StandIn, kept, tool, wait_until

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

    def __init__(self, folder):
        os.chmod(folder, 0o755)
        self.folder, self.place = folder, os.path.join(folder, "tree")
        os.environ["TMESH_RUNTIME_DIR"] = os.path.join(folder, f"run-{os.geteuid()}")
        os.environ["TMESH_MOUNT"] = self.place
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen([*LIMITED, *PROGRAM, "--keepers", os.path.join(self.folder, "run-%u"), self.place])
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


def test_tree(folder):
    """the tree: names, folders, lengths, times, modes, bytes; read-only; paths by tmeshctl"""
    model, files = a_model(folder)
    with Mount(folder) as mount:
        assert mount.way() == expected_way()
        assert os.listdir(mount.place) == []
        said = json.loads(tool("doctor", "--json"))["machine"]["kept files"]
        assert said["value"].endswith("by " + mount.way().decode()) and mount.place in said["value"]
        assert bool(said["advice"]) == (mount.way() != b"passthrough")
        assert tool("keep", "--folder", model, "llama").strip() == mount.path("llama")
        assert tool("kept", "llama").strip() == mount.path("llama")
        assert tool("kept", "--path", "llama/sub/tokens").strip() == mount.path("llama/sub/tokens")
        assert "no file" in tool("kept", "--path", "llama/none", status=1)
        assert os.listdir(mount.place) == [str(os.geteuid())] and os.listdir(mount.path()) == ["llama"]
        assert sorted(os.listdir(mount.path("llama"))) == ["config.json", "empty", "sub", "weights.bin"]
        assert sorted(os.listdir(mount.path("llama/sub"))) == ["deep", "deep.txt", "tokens"]
        assert tree_of(mount.path("llama")) == files
        for path, data in files.items():
            st, source = os.stat(mount.path("llama", path)), os.stat(os.path.join(model, path))
            assert stat.S_IMODE(st.st_mode) == 0o400 and st.st_size == len(data) and st.st_nlink == 1
            assert st.st_mtime_ns == source.st_mtime_ns and st.st_uid == os.geteuid()
        assert stat.S_IMODE(os.stat(mount.place).st_mode) == 0o755
        assert stat.S_IMODE(os.stat(mount.path()).st_mode) == 0o711
        assert stat.S_IMODE(os.stat(mount.path("llama")).st_mode) == 0o500
        weights = mount.path("llama/weights.bin")
        for call in (lambda: open(weights, "r+b"), lambda: os.truncate(weights, 0), lambda: os.unlink(weights),
                     lambda: os.mkdir(mount.path("new")), lambda: os.rename(weights, weights + "2"),
                     lambda: os.symlink("x", mount.path("llama/x")), lambda: os.utime(weights)):
            assert errno_of(call) == errno.EROFS
        for gone in ("none", "llama/none", "llama/sub/dee", "llama/weights.bin/x", "llama/sub/deep/shar"):
            assert errno_of(os.stat, mount.path(gone)) in (errno.ENOENT, errno.ENOTDIR)
        for user in ("x", "00", "-1", "4294967295", "4294967296", "1x", str(OTHER + 1)):
            assert errno_of(os.stat, os.path.join(mount.place, user)) == errno.ENOENT, user
        one = tool("keep", "--file", os.path.join(model, "weights.bin"), "one").strip()
        assert one == mount.path("one/weights.bin") and read(one) == files["weights.bin"]
        tool("drop", "one")
        assert errno_of(os.stat, one) == errno.ENOENT and os.listdir(mount.path()) == ["llama"]


def test_names(folder):
    """any bytes that a path may have: newlines, 255 bytes, no UTF-8, normalisation; deep and wide folders"""
    model = os.path.join(folder, "odd")
    names = [b"a\nb", b"x" * 255, b"\xff\xfe", "é".encode(), "e\u0301".encode(), b" ", b"...", b"\\", b"-r", b"*"]
    os.makedirs(model)
    deep = b"/".join([b"d" * 50] * 19)
    os.makedirs(os.path.join(os.fsencode(model), deep))
    wide = [b"wide/%04d" % i for i in range(3000)] + [b"wide/%04d.d/f" % i for i in range(50)]
    for name in [*names, deep + b"/f", *wide]:
        path = os.path.join(os.fsencode(model), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(name)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "odd")
        top = os.fsencode(mount.path("odd"))
        assert sorted(os.listdir(top)) == sorted([*names, b"d" * 50, b"wide"])
        for name in [*names, deep + b"/f", *wide[::100]]:
            assert read(os.path.join(top, name)) == name
        assert sorted(os.listdir(os.path.join(top, b"wide"))) == sorted({n.split(b"/")[1] for n in wide})
        assert errno_of(os.stat, os.path.join(top, b"x" * 256)) == errno.ENAMETOOLONG


def check_reader(path, beside, count, seed):
    """The file at @path beside the same bytes in tmpfs: whatever a reader does, it gets the same."""
    dice = random.Random(seed)
    ours, theirs = os.open(path, os.O_RDONLY), os.open(beside, os.O_RDONLY)
    size = os.fstat(theirs).st_size
    maps = [(mmap.mmap(ours, size, flags, mmap.PROT_READ), mmap.mmap(theirs, size, flags, mmap.PROT_READ))
            for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE)]
    copy = mmap.mmap(ours, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    ends = os.pipe()
    for _ in range(count):
        at, length = dice.randrange(size + 100), dice.choice((1, 100, 4096, dice.randrange(65536)))
        way = dice.randrange(6)
        if way == 0:
            assert os.pread(ours, length, at) == os.pread(theirs, length, at)
        elif way == 1:
            assert os.read(ours, length) == os.read(theirs, length)
        elif way == 2:
            whence = dice.choice((os.SEEK_SET, os.SEEK_END, os.SEEK_CUR))
            step = at if whence == os.SEEK_SET else -dice.randrange(size) if whence == os.SEEK_END else 0
            assert os.lseek(ours, step, whence) == os.lseek(theirs, step, whence)
        elif way == 3:
            one, other = maps[dice.randrange(2)]
            assert one[at:at + length] == other[at:at + length]
        elif way == 4:
            copy[at % size] = dice.randrange(256)  # this process's own
        else:
            length = min(length, 16384)
            got = [os.read(ends[0], moved) if (moved := os.splice(fd, ends[1], length, offset_src=at)) else b""
                   for fd in (ours, theirs)]
            assert got[0] == got[1]
    for fd in (ours, theirs, *ends):
        os.close(fd)


def test_random_reader(folder):
    """read, pread, mmap, splice and lseek at random beside the same file on tmpfs"""
    model, files = a_model(folder)
    with Mount(folder) as mount, tempfile.TemporaryDirectory(dir="/dev/shm") as beside:
        tool("keep", "--folder", model, "llama")
        for number, path in enumerate(p for p in files if files[p]):
            copy = os.path.join(beside, "copy")
            with open(copy, "wb") as file:
                file.write(files[path])
            check_reader(mount.path("llama", path), copy, (1_000_000 if FULL else 10_000) // 5, number)
        data = os.open(mount.path("llama/weights.bin"), os.O_RDONLY)
        assert os.lseek(data, 5, os.SEEK_DATA) == 5 and os.lseek(data, 5, os.SEEK_HOLE) == len(files["weights.bin"])
        os.close(data)


def shared_kib(mapping):
    """(RSS, PSS, anonymous) of a mapping in this process's smaps."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    found = {}
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as file:
        inside = False
        for line in file:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                inside = words[0].startswith(f"{address:x}-")
            elif inside:
                found[words[0]] = int(words[1]) if words[1].isdigit() else 0
    return found["Rss:"], found["Pss:"], found["Anonymous:"]


def test_replaced_and_dropped(folder):
    """a name leads to its present files or to none; open files and mappings keep what they have"""
    model, files = a_model(folder)
    other, others = a_model(folder, 2)
    with Mount(folder) as mount:
        path = mount.path("llama/weights.bin")
        tool("keep", "--folder", model, "llama")
        with open(path, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
            tool("keep", "--replace", "--folder", other, "llama")
            assert read(path) == others["weights.bin"] and tree_of(mount.path("llama")) == others
            tool("drop", "llama")
            assert errno_of(os.stat, path) == errno.ENOENT and os.listdir(mount.path()) == []
            assert file.read() == files["weights.bin"] == mapping[:]
        test_keep.end_by_need()
        assert errno_of(os.stat, path) == errno.ENOENT and mapping[:] == files["weights.bin"]
        tool("keep", "--folder", other, "llama")
        assert read(path) == others["weights.bin"] and mapping[:] == files["weights.bin"]


def test_held(folder):
    """an open file holds its region; a name that was only looked at holds nothing"""
    model, _ = a_model(folder)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "llama")
        tree_of(mount.path("llama"))
        wait_until("nothing is held", lambda: kept()["llama"]["held"] == 0)
        with open(mount.path("llama/weights.bin"), "rb"):
            assert kept()["llama"]["held"] == 1
        wait_until("nothing is held", lambda: kept()["llama"]["held"] == 0)


def test_modes(folder):
    """0600, 0640 and 0644: whose files others read, and which users they see"""
    model, files = a_model(folder, large=70_000)
    with Mount(folder) as mount:
        for mode in ("0600", "0640", "0644"):
            tool("keep", "--mode", mode, "--group", str(OTHER), "--folder", model, "m" + mode)
        if os.geteuid():
            return
        listing = lambda: as_user(OTHER, "ls", mount.place).stdout.split()
        for mode, may in ("0600", False), ("0640", True), ("0644", True):
            done = as_user(OTHER, "cat", mount.path("m" + mode, "config.json"))
            assert (done.stdout == "{}") == may, (mode, done)
            stranger = subprocess.run(["cat", mount.path("m" + mode, "config.json")], user=OTHER - 1, group=OTHER - 1,
                                      extra_groups=[], capture_output=True, check=False)
            assert (stranger.returncode == 0) == (mode == "0644"), mode
        assert as_user(OTHER, "ls", mount.path()).returncode != 0  # 0711
        assert listing() == ["0"]
        tool("drop", "m0644")
        assert listing() == ["0"]
        tool("drop", "m0640")
        assert listing() == []
        path = keep_as(mount, OTHER, model, "theirs", "0600")
        assert path == mount.path("theirs", uid=OTHER) and listing() == [str(OTHER)]
        assert as_user(OTHER, "cat", path + "/config.json").stdout == "{}"
        assert tree_of(path) == files  # root reads all
        end_keeper_of(mount, OTHER)


def test_places(folder):
    """a mount point that is not empty, taken, a link, no folder, somebody else's; one that a kill left"""
    def refused(place, word):
        done = subprocess.run([*PROGRAM, place], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 1 and word in done.stderr, done

    full, link, file, mine = (os.path.join(folder, name) for name in ("full", "link", "file", "mine"))
    os.makedirs(os.path.join(full, "x"))
    os.makedirs(mine)
    os.symlink(mine, link)
    open(file, "w").close()
    refused(full, "not empty")
    refused(link, "no folder")
    refused(file, "no folder")
    refused(os.path.join(folder, "none/none"), "No such file")
    if not os.geteuid():
        os.chown(mine, OTHER, OTHER)
        refused(mine, "another user")
        refused("/proc", "another file system")
    with Mount(folder) as mount:
        refused(mount.place, "another tmesh-mount")
        mount.end(signal.SIGKILL)
        assert errno_of(os.stat, mount.place) == errno.ENOTCONN
        mount.start()
        mount.end(signal.SIGKILL)
        subprocess.run([*PROGRAM, "--unmount", mount.place], check=True, timeout=PATIENCE)
        assert os.listdir(mount.place) == []


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
                    if len(data) == wire.REQUEST.size:
                        answer(connection, wire.request(data))
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


def test_liars(folder):
    """keepers that lie: only sealed memory of their user is taken, and other users are not harmed"""
    model, files = a_model(folder)
    disk = os.path.join(folder, "disk")
    with open(disk, "wb") as file:
        file.write(b"d" * 100_000)
    os.chmod(disk, 0o644)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "honest")
        lies = mount.path("lies", uid=OTHER)
        with Liar(mount, honest):
            assert read(lies + "/a") == b"m" * 4096 and read(lies + "/b/c") == b"m" * 100_000
        roots = wire.memory(wire.table(FILES, 2))  # another user's
        tables = [
            lambda: wire.memory(wire.table(FILES, 2), 7), lambda: wire.memory(wire.table(FILES, 2), 0),
            lambda: os.open(disk, os.O_RDONLY), lambda: os.open("/dev/zero", os.O_RDONLY), lambda: os.pipe()[0],
            lambda: socket.socket().detach(), lambda: roots, lambda: wire.memory(b"x"),
            lambda: wire.memory(wire.table(FILES, 3)), lambda: wire.memory(wire.table(FILES, 2, magic=1)),
            lambda: wire.memory(wire.table(FILES, 2, count=65537)), lambda: wire.memory(wire.table(FILES, 2, count=1)),
            lambda: wire.memory(wire.table(FILES[::-1], 2)), lambda: wire.memory(wire.table([FILES[0]] * 2, 2)),
            *(lambda path=path: wire.memory(wire.table([(path, 0, 1, 0)], 2))
              for path in (b"..", b"a/../b", b"/etc/passwd", b"", b"a//b", b"x" * 256, b"a/" * 600)),
            lambda: wire.memory(wire.table([(b"a", 0, 1, 0), (b"a/b", 0, 1, 0)], 2)),
            lambda: wire.memory(wire.table([(b"a", 2**64 - 1, 2, 0)], 2)),
            lambda: wire.memory(wire.table([(b"a", 0, 1, 9)], 2))]
        for number, table in enumerate(tables):
            # 7 lacks one seal that a table does not need
            with Liar(mount, lambda connection, asked: honest(connection, asked, table)):
                error = errno_of(os.listdir, lies)
                assert error if number else True, number
                assert read(mount.path("honest/config.json")) == b"{}"
        memories = [lambda: wire.memory(b"m" * 4095), lambda: wire.memory(b"m" * 4096, 7), lambda: wire.memory(b"m" * 4096, 0),
                    lambda: os.open(disk, os.O_RDONLY), lambda: os.open("/dev/zero", os.O_RDONLY), lambda: os.pipe()[0],
                    lambda: os.open("/", os.O_PATH), lambda: roots,
                    lambda: os.eventfd(0)]
        for number, memory in enumerate(memories):
            with Liar(mount, lambda connection, asked: honest(connection, asked, memory=memory)):
                assert errno_of(read, lies + "/a") in (errno.EPROTO, errno.ESTALE, errno.EIO), number
        answers = [
            lambda c, _: wire.send(c, b"junk"), lambda c, _: wire.send(c, wire.reply(status=5)),
            lambda c, _: wire.send(c, wire.reply(magic=0)), lambda c, _: wire.send(c, wire.reply(version=9)),
            lambda c, _: wire.send(c, wire.reply(status=-(2**31))), lambda c, _: wire.send(c, wire.reply(count=2**32 - 1)),
            lambda c, _: None]
        for answer in answers:
            with Liar(mount, answer):
                for call in (os.listdir, os.stat):
                    assert errno_of(call, lies) != 0
        rows = [wire.row(b"other", 7, count=2), wire.row(b"lies", 7, count=0), wire.row(b"lies", 7, count=9999),
                wire.row(b"lies", 7, count=2, mode=0o777), wire.row(b"l" * 64, 7, count=2), wire.row(b"../x", 7, count=2)]
        for line in rows:
            def answer(connection, asked):
                wire.send(connection, wire.reply(count=1), *([wire.memory(wire.table(FILES, 2))] if asked["op"] == wire.FIND else []))
                wire.send(connection, line)
            with Liar(mount, answer):
                assert errno_of(os.listdir, lies) != 0
                assert os.listdir(mount.path(uid=OTHER)) in ([], ["other"])
        # A folder that is open to others, or leads elsewhere, is not the user's alone.
        with Liar(mount, honest):
            os.chmod(run_folder(mount, OTHER), 0o755)
            assert errno_of(os.listdir, lies) == errno.EACCES
            os.chmod(run_folder(mount, OTHER), 0o700)
            assert read(lies + "/a")
        assert tree_of(mount.path("honest")) == files


def test_other_table(folder):
    """a keeper that answers with another table than before: descriptors of the first one are stale"""
    first = [*((b"a%05d" % i, 0, 10, 0) for i in range(20_000)), (b"b/c/d/e", 0, 10, 0)]
    large = wire.table([(b"%05d" % i + (b"/" + b"x" * 253) * 4, 0, 1, 0) for i in range(2000)])
    others = [f"large{i}" for i in range(70)]  # they take the room of the first table
    tables = {b"lies": wire.table(first), **{name.encode(): large for name in others}}
    shorter, flat = wire.table(first[:1]), wire.table([(b"a%05d" % i, 0, 10, 0) for i in range(30_000)])
    with Mount(folder) as mount:
        for second in (shorter, flat):
            changed = os.path.join(run_folder(mount, OTHER), "changed")

            def answer(connection, asked):
                name = asked["name"]
                if asked["op"] != wire.FIND or name not in tables:
                    wire.send(connection, wire.reply(-errno.ENOENT))
                    return
                table = wire.memory(second if name == b"lies" and os.path.exists(changed) else tables[name])
                wire.send(connection, wire.reply(count=1), table)
                wire.send(connection, wire.row(name, Liar.last))
                os.close(table)

            with Liar(mount, answer):
                lies = mount.path("lies", uid=OTHER)
                folders = [os.open(os.path.join(lies, path), os.O_PATH) for path in ("b/c/d", "b/c")]
                files = [os.open(os.path.join(lies, path), os.O_PATH) for path in ("a19999", "b/c/d/e")]
                for name in others:
                    os.stat(mount.path(name, uid=OTHER))
                with open(changed, "w", encoding="ascii"):
                    pass
                for fd in folders:
                    assert errno_of(os.listdir, f"/proc/self/fd/{fd}") == errno.ESTALE
                    assert errno_of(lambda fd: os.stat("new", dir_fd=fd), fd) == errno.ENOENT
                for fd in files:
                    assert errno_of(os.open, f"/proc/self/fd/{fd}", os.O_RDONLY) != 0
                for fd in folders + files:
                    os.close(fd)
            os.unlink(changed)
        assert mount.process.poll() is None


def test_much_in_open_folders(folder):
    """a keeper with large tables and lists, and many open folders: the service takes no more memory than its bounds"""
    table = wire.table([(b"%05d" % i + (b"/" + b"x" * 253) * 4, 0, 1, 0) for i in range(2000)])  # 2 MB
    long = [b"%060d" % i for i in range(8000)]

    def answer(connection, asked):
        if asked["op"] == wire.LIST:
            wire.send(connection, wire.reply(count=len(long)))
            for name in long:
                wire.send(connection, wire.row(name, 1))
        elif asked["op"] == wire.FIND:
            shown = wire.memory(table)
            wire.send(connection, wire.reply(count=1), shown)
            wire.send(connection, wire.row(asked["name"], int(asked["name"])))
            os.close(shown)
        else:
            wire.send(connection, wire.reply(-errno.ENOENT))

    def opened(paths):
        """The folders that can be opened, and the error of the others."""
        fds, errors = [], set()
        for path in paths:
            try:
                fds.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
            except OSError as error:
                errors.add(error.errno)
        return fds, errors

    with Mount(folder) as mount, Liar(mount, answer):
        for paths in ([mount.path(str(number), uid=OTHER) for number in range(1, 201)], [mount.path(uid=OTHER)] * 50):
            fds, errors = opened(paths)
            assert errors == {errno.EMFILE} and fds, (len(fds), errors)
            for fd in fds:
                os.close(fd)
            # The kernel closes them a moment later.
            wait_until("opened again", lambda path=paths[-1]: not errno_of(os.listdir, path))


def test_seeks_in_a_folder(folder):
    """a reader that seeks to any offset of a folder finds the rest, or nothing"""
    model = os.path.join(folder, "model")
    os.makedirs(os.path.join(model, "z/deeper"))
    for name in ("a", "b", "c", "d", "e", "z/x", "z/deeper/y"):
        with open(os.path.join(model, name), "wb"):
            pass
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(4096)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "model")
        for path in ("", "z", "z/deeper"):
            fd = os.open(mount.path("model", path), os.O_RDONLY | os.O_DIRECTORY)
            for offset in (2**32 - 1, 2**32 - 2, 2**32 - 4, 2**31, 2**31 - 1, 100):
                os.lseek(fd, offset, os.SEEK_SET)
                assert libc.syscall(217, fd, buffer, 4096) == 0, (path, offset)  # getdents64
            os.close(fd)


def test_made_up_users(folder):
    """readers of numbers without a user, and folders with others' numbers, take no user's place"""
    model, files = a_model(folder)
    with Mount(folder) as mount:
        for uid in range(200_000, 201_500):
            assert errno_of(os.stat, os.path.join(mount.place, str(uid))) == errno.ENOENT
        keep_as(mount, OTHER, model, "theirs")
        assert tree_of(mount.path("theirs", uid=OTHER)) == files
        for uid in range(200_000, 203_000):
            os.mkdir(os.path.join(mount.folder, f"run-{uid}"), 0o700)
        assert str(OTHER) in os.listdir(mount.place)


def test_unanswered_folder(folder):
    """a runtime folder that a program serves, which does not answer, is refused without a question"""
    libc = ctypes.CDLL(None, use_errno=True)
    with Mount(folder) as mount:
        place = os.fsencode(os.path.join(mount.folder, "run-200000"))
        os.mkdir(place, 0o700)
        device = os.open("/dev/fuse", os.O_RDWR)
        assert not libc.mount(b"unanswered", place, b"fuse", 0, b"fd=%d,rootmode=40700,user_id=0,group_id=0,allow_other" % device)
        try:
            assert errno_of(os.stat, os.path.join(mount.place, "200000")) == errno.EACCES
        finally:
            libc.umount2(place, 2)  # MNT_DETACH
            os.close(device)


def test_hangs(folder):
    """a keeper that does not answer: its user's requests fail, other users' go on"""
    model, files = a_model(folder)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "honest")
        keep_as(mount, OTHER, model, "theirs")
        hung = mount.path("theirs", uid=OTHER)
        assert read(hung + "/config.json") == b"{}"
        end_keeper_of(mount, OTHER)
        with Liar(mount, lambda connection, asked: time.sleep(1000)):
            failures = []
            waiting = [threading.Thread(target=lambda: failures.append(errno_of(os.stat, hung + "/config.json")))
                       for _ in range(20)]
            for thread in waiting:
                thread.start()
            assert tree_of(mount.path("honest")) == files
            for thread in waiting:
                thread.join(PATIENCE)
            assert failures == [errno.ETIMEDOUT] * 20, failures
            assert os.listdir(mount.place) == ["0"]  # the listing does not wait for it either


def test_service_killed(folder):
    """mappings outlive the service, which makes its mount anew"""
    model, files = a_model(folder)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "llama")
        path = mount.path("llama/weights.bin")
        with open(path, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
            if mount.way() != b"passthrough":
                assert mapping[:] == files["weights.bin"]  # in the page cache from here on
            for _ in range(3):
                mount.end(signal.SIGKILL)
                assert errno_of(os.stat, path) == errno.ENOTCONN
                mount.start()
                assert mapping[:] == files["weights.bin"] == read(path)


READER = """
import hashlib, mmap, os, sys
path, wanted = sys.argv[1:]
held = None
while True:
    try:
        with open(path, "rb") as file:
            data = file.read()
            mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError:
        continue
    except ValueError:
        continue
    if hashlib.sha256(data).hexdigest() != wanted:
        os._exit(3)
    print("read", flush=True)
    if sys.argv[0] and os.environ.get("HOLDS"):
        if held is not None and hashlib.sha256(held).hexdigest() != wanted:
            os._exit(4)
        held = mapped
"""


def test_kills(folder):
    """service, keeper and readers killed at random moments: each reader gets the file's bytes"""
    model, files = a_model(folder, large=400_000)
    wanted = hashlib.sha256(files["weights.bin"]).hexdigest()
    dice = random.Random(5)
    with Mount(folder) as mount:
        systemd = StandIn(folder)
        systemd.start()
        readers = []

        def read_on():
            environment = dict(os.environ)
            if mount.way() == b"passthrough":
                environment["HOLDS"] = "1"
            readers.append(subprocess.Popen([sys.executable, "-c", READER, mount.path("llama/weights.bin"), wanted],
                                            stdout=subprocess.PIPE, env=environment))

        try:
            tool("keep", "--folder", model, "llama")
            for _ in range(3):
                read_on()
            for number in range(300 if FULL else 10):
                what = number % 3
                if what == 0:
                    mount.end(signal.SIGKILL)
                    mount.start()
                elif what == 1:
                    systemd.end(signal.SIGKILL)
                    systemd.start()
                else:
                    victim = readers.pop(0)
                    victim.kill()
                    victim.wait()
                    read_on()
                time.sleep(dice.random() * 0.02)
                assert all(reader.poll() is None for reader in readers), [reader.poll() for reader in readers]
            for reader in readers:
                for _ in range(2):
                    assert reader.stdout.readline() == b"read\n"
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
            systemd.end()


def test_namespaces(folder):
    """another pid, mount, net, ipc and user namespace, a mapped uid, a read-only bind mount"""
    model, files = a_model(folder, large=100_000)
    inside = ('mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && cat "$2/0/open/config.json" '
              '&& sha256sum < "$2/0/open/weights.bin" && ls "$2" && ! cat "$2/0/closed/config.json" 2>/dev/null')
    with Mount(folder) as mount:
        tool("keep", "--mode", "0644", "--folder", model, "open")
        tool("keep", "--folder", model, "closed")
        place = os.path.join(folder, "container")
        os.makedirs(place)
        done = as_user(OTHER, "unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--fork", "sh", "-c",
                       inside, "-", mount.place, place)
        if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
            return "this machine has no user namespaces for users"
        assert done.returncode == 0, done
        assert done.stdout.startswith("{}" + hashlib.sha256(files["weights.bin"]).hexdigest()), done
        assert done.stdout.split()[-1] == "0"
    return None


CONTAINER = """
busybox sha256sum /run/tmesh/0/open/weights.bin && busybox cat /run/tmesh/0/open/config.json && busybox id -u
busybox cat /run/tmesh/0/closed/config.json 2>/dev/null || echo closed
busybox touch /x 2>/dev/null || busybox touch /run/tmesh/0/open/x 2>/dev/null || echo read-only
"""


def test_container(folder):
    """podman: a read-only container of another user without capabilities and network, with the tree bind-mounted"""
    if not shutil.which("podman") or not shutil.which("runc") or not shutil.which("busybox"):
        return "podman, runc and busybox-static are not all installed"
    model, files = a_model(folder, large=100_000)
    root = os.path.join(folder, "root")
    for name in "bin", "dev", "etc", "proc", "run/tmesh", "sys", "tmp":
        os.makedirs(os.path.join(root, name))
    shutil.copy(shutil.which("busybox"), os.path.join(root, "bin"))
    limits = [word for what in ("nofile", "nproc") for word in ("--ulimit", f"{what}=1024:1024")]
    with Mount(folder) as mount:
        tool("keep", "--mode", "0644", "--folder", model, "open")
        tool("keep", "--folder", model, "closed")
        done = subprocess.run(
            ["podman", "--root", os.path.join(folder, "store"), "--runroot", os.path.join(folder, "state"), "--storage-driver", "vfs",
             "--runtime", "runc", "--cgroup-manager", "cgroupfs", "run", "--rm", "--read-only", "--network", "none", "--cap-drop", "all",
             *limits, "--user", f"{OTHER}:{OTHER}", "-v", f"{mount.place}:/run/tmesh:ro", "--rootfs", root, "/bin/busybox", "sh", "-c",
             CONTAINER], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done
        digest = hashlib.sha256(files["weights.bin"]).hexdigest()
        assert done.stdout == f"{digest}  /run/tmesh/0/open/weights.bin\n{{}}{OTHER}\nclosed\nread-only\n", done
    return None


def fio(path, engine, *words):
    return subprocess.run(["fio", "--name=x", f"--filename={path}", f"--ioengine={engine}", "--bs=4k", "--size=4m", "--verify=crc32c",
                           "--verify_fatal=1", "--verify_state_save=0", "--random_generator=tausworthe64", "--output-format=terse", *words],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_fio(folder):
    """fio: each block has its checksum, by read, mmap, splice, libaio and io_uring, in order and at random"""
    if not shutil.which("fio"):
        return "fio is not installed"
    model = os.path.join(folder, "blocks")
    os.makedirs(model)
    done = fio(os.path.join(model, "good"), "psync", "--rw=write", "--do_verify=0")
    assert done.returncode == 0, done
    data = bytearray(read(os.path.join(model, "good")))
    data[len(data) // 2] ^= 1
    with open(os.path.join(model, "bad"), "wb") as file:
        file.write(data)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "blocks")
        for engine in "psync", "mmap", "splice", "libaio", "io_uring":
            for order in "read", "randread":
                done = fio(mount.path("blocks/good"), engine, "--readonly", f"--rw={order}")
                assert done.returncode == 0, (engine, order, done)
            assert fio(mount.path("blocks/bad"), engine, "--readonly", "--rw=read").returncode != 0, engine
    return None


def safetensors(path, names, seed):
    """A file of tensors in the safetensors format."""
    data, entries = random.Random(seed).randbytes(100_000 * len(names)), {}
    for i, name in enumerate(names):
        entries[name] = {"dtype": "F32", "shape": [25_000], "data_offsets": [i * 100_000, (i + 1) * 100_000]}
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)


def load(path, *words, status=0):
    """Return the report of a loader, which holds the model for a while in the background; or its error."""
    done = subprocess.run([os.path.join(BUILD, "tmeshctl-load"), "--json", "--background", "--for", "60", *words, path],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == status, done.stderr
    if status:
        return done.stderr
    said = json.loads(done.stdout)
    os.kill(said["pid"], signal.SIGKILL)
    return said


def test_in_place(folder):
    """tmesh's own loader takes a kept file's region behind its path, in all processes the same"""
    model = os.path.join(folder, "st")
    os.makedirs(model)
    safetensors(os.path.join(model, "model.safetensors"), ["a", "b"], 1)
    safetensors(os.path.join(model, "second.safetensors"), ["c"], 2)
    with open(os.path.join(model, "index.json"), "w", encoding="ascii") as file:
        json.dump({"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model.safetensors", "c": "second.safetensors"}}, file)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "st")
        path = mount.path("st/model.safetensors")
        first, second = load(path), load(path)
        assert first["id"] == second["id"] and first["report"]["bytes_read"] == 0 and first["report"]["kept"] == "st"
        assert first["report"]["bytes"] == os.stat(path).st_size and "in place" in first["report"]["reason"]
        alone = load(path, "--alone")
        assert alone["id"] != first["id"] and alone["report"]["bytes_read"] >= 200_000 and not alone["report"]["kept"]
        index = mount.path("st/index.json")
        assert load(index)["report"]["bytes_read"] == 0 and load(index, "--alone")["report"]["bytes_read"] >= 300_000
        safetensors(os.path.join(model, "model.safetensors"), ["a", "b"], 3)
        tool("keep", "--replace", "--folder", model, "st")
        assert load(path)["id"] != first["id"]


def write_index(folder, **files):
    """An index of tensors by the names of their files."""
    with open(os.path.join(folder, "index.json"), "w", encoding="ascii") as file:
        json.dump({"metadata": {}, "weight_map": {tensor: name for name, tensors in files.items() for tensor in tensors}}, file)


# The bytes of each region that a loader's command gets, in the order of its ref.
REGIONS = """
import hashlib, json, os, subprocess, sys
for region in json.loads(os.environ["TMESH_REF"])["regions"]:
    data = subprocess.run([sys.argv[1], "get", region["token"]], capture_output=True, check=True).stdout
    print(region["id"], hashlib.sha256(data).hexdigest())
"""


def regions_of(path):
    done = subprocess.run([os.path.join(BUILD, "tmeshctl-load"), path, "--", sys.executable, "-c", REGIONS, TOOL],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shards_in_place(folder):
    """a kept model of several files: the region of each, nothing read; files that do not belong together are refused"""
    model = os.path.join(folder, "st")
    os.makedirs(model)
    safetensors(os.path.join(model, "one"), ["a", "b"], 1)
    safetensors(os.path.join(model, "two"), ["c"], 2)
    write_index(model, one="ab", two="c")
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "st")
        index = mount.path("st/index.json")
        several, again = load(index, "--hash"), load(index, "--hash")
        assert several["report"]["bytes_read"] == 0 and several["report"]["kept"] == "st", several["report"]
        assert several["tensors"] == 3 and "in place" in several["report"]["reason"] and several["report"]["shared"]
        assert several["report"]["bytes"] == sum(os.stat(os.path.join(model, name)).st_size for name in ("one", "two"))
        assert [region["id"] for region in several["ref"]["regions"]] == [region["id"] for region in again["ref"]["regions"]]
        assert again["report"]["xxh3"] == several["report"]["xxh3"]
        wanted = [hashlib.sha256(read(os.path.join(model, name))).hexdigest() for name in ("one", "two")]
        assert regions_of(index).split()[1::2] == wanted and regions_of(index) == regions_of(index)
        # Small files share one region, which counts once.
        small = os.path.join(folder, "small")
        os.makedirs(small)
        for name, tensor in ("x", "u"), ("y", "v"), ("odd", "w"):
            head = json.dumps({tensor: {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
            head += b" " * (-len(head) % 8 + (name == "odd"))
            with open(os.path.join(small, name), "wb") as file:
                file.write(struct.pack("<Q", len(head)) + head + bytes(range(32)))
        write_index(small, x="u", y="v")
        tool("keep", "--folder", small, "small")
        packed = load(mount.path("small/index.json"), "--hash")
        assert packed["report"]["bytes_read"] == 0 and len(packed["ref"]["regions"]) == 1, packed
        assert packed["report"]["bytes"] < 4096 * 2
        # One file of several whose tensors are not aligned has all of them copied.
        write_index(small, x="u", odd="w")
        tool("keep", "--replace", "--folder", small, "small")
        copied = load(mount.path("small/index.json"))["report"]
        assert copied["bytes_read"] == 64 and "not aligned" in copied["reason"], copied
        # A file of the present keeping beside one of an earlier one.
        mixed = os.path.join(folder, "mixed")
        os.makedirs(mixed)
        shutil.copy(os.path.join(model, "index.json"), mixed)
        with open(mount.path("st/one"), "rb") as early:
            os.symlink(f"/proc/{os.getpid()}/fd/{early.fileno()}", os.path.join(mixed, "one"))
            os.symlink(mount.path("st/two"), os.path.join(mixed, "two"))
            assert load(os.path.join(mixed, "index.json"))["report"]["bytes_read"] == 0
            tool("keep", "--replace", "--folder", model, "st")
            assert "was replaced while" in load(os.path.join(mixed, "index.json"), status=1)


OWN = r"""
cd "$1"; export TMESH_RUNTIME_DIR="$1/run" TMESH_MOUNT="$1/tree"; program="$2" tool="$3"
mkdir tree m && echo hello > m/f
wait_for() { i=0; until mountpoint -q tree; do i=$((i + 1)); [ $i -lt 6000 ] || exit 9; sleep 0.01; done; }
"$program" tree 2> said & service=$!
wait_for
"$tool" keep --folder m n && cat tree/*/n/f && cat said
kill -9 $service; wait $service
"$program" tree 2> /dev/null & service=$!
i=0; until cat tree/*/n/f 2>/dev/null; do i=$((i + 1)); [ $i -lt 6000 ] || exit 8; sleep 0.01; done
kill $service; wait $service
mountpoint -q tree && exit 7
"$tool" drop n; exit 0
"""


def test_own_mount(folder):
    """a user's own mount, by fusermount3: it serves that user, is made anew after a kill, and goes with its end"""
    if not shutil.which("fusermount3"):
        return "fusermount3 is not installed"
    if len(PROGRAM) > 1:
        return "a program of another root has no fusermount3"
    own = os.path.join(folder, "own")
    os.makedirs(own)
    os.chown(own, OTHER, OTHER)
    os.chmod(folder, 0o755)
    script = os.path.join(folder, "script")
    with open(script, "w", encoding="ascii") as file:
        file.write(OWN)
    os.chmod(script, 0o755)
    # A device that users may open, as udev makes it; here in a mount namespace.
    outside = ('mount --make-rprivate / && mknod -m 666 "$1" c 10 229 && mount --bind "$1" /dev/fuse && '
               f'exec setpriv --reuid {OTHER} --regid {OTHER} --clear-groups sh "$2" "$3" "$4" "$5"')
    done = subprocess.run(["unshare", "--mount", "sh", "-c", outside, "-", os.path.join(folder, "fuse"), script, own, PROGRAM[0], TOOL],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done
    assert done.stdout.count("hello") == 2 and "user_allow_other" in done.stdout, done
    assert f"{own}/tree/{OTHER}/n" in done.stdout
    return None


TESTS = [test_own_mount, test_tree, test_names, test_random_reader, test_replaced_and_dropped, test_held, test_modes, test_places, test_liars,
         test_other_table, test_much_in_open_folders, test_seeks_in_a_folder, test_made_up_users, test_unanswered_folder,
         test_hangs, test_service_killed, test_kills, test_namespaces, test_container, test_fio, test_in_place, test_shards_in_place]


def main():
    why = None
    if os.geteuid():
        why = "needs root"
    elif not os.path.exists(PROGRAM[0]):
        why = "tmesh-mount is not built: libfuse3-dev"
    elif errno_of(lambda: os.close(os.open("/dev/fuse", os.O_RDWR))):
        why = "this machine has no /dev/fuse"
    if why:
        print(f"1..{len(TESTS)}")
        for number, test in enumerate(TESTS, 1):
            print(f"ok {number} - {test.__doc__} # SKIP {why}")
        return 0
    return test_keep.main(TESTS)


if __name__ == "__main__":
    os.environ |= {"TMESH_BACKEND": "memfd", "TMESH_KEEPER": KEEPER}
    for name in ("NOTIFY_SOCKET", "TMESH_RUNTIME_DIR"):
        os.environ.pop(name, None)
    sys.exit(main())
