#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Kept files by paths: tmesh-mount, what it shows, readers of all kinds. The other tests are in test_hostile.py and the like.
Usage: test_mount.py BUILD_DIR [PROGRAM WORD...]; the words start another tmesh-mount than the build's. Prints TAP."""
import errno
import json
import mmap
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]
from mounts import FULL, Mount, OTHER, PROGRAM, a_model, as_user, end_keeper_of, errno_of, expected_way, keep_as, read, run_folder, tree_of
import test_floods
import test_hostile
import test_keep
import test_loader
import test_outside
from test_keep import KEEPER, PATIENCE, TOOL, kept, tool, wait_until


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
        for user in ("x", "00", "-1", "4294967295", "4294967296", "1x"):
            assert errno_of(os.stat, os.path.join(mount.place, user)) == errno.ENOENT, user
        assert os.listdir(mount.path(uid=OTHER + 1)) == []  # a user without a keeper
        one = tool("keep", "--file", os.path.join(model, "weights.bin"), "one").strip()
        assert one == mount.path("one/weights.bin") and read(one) == files["weights.bin"]
        tool("drop", "one")
        assert errno_of(os.stat, one) == errno.ENOENT and os.listdir(mount.path()) == ["llama"]


def test_stopped(folder):
    """a service that does not answer: doctor, keep, kept, mount, umount and another service end, and say what to do"""
    model, _ = a_model(folder)
    # The kernel's list of file systems with the module's, which `tmeshctl mount` requires.
    listed = os.path.join(folder, "filesystems")
    with open(listed, "w", encoding="ascii") as file:
        file.write("nodev\ttmesh\n")
    with Mount(folder) as mount:
        path = tool("keep", "--folder", model, "llama")
        mount.process.send_signal(signal.SIGSTOP)
        try:
            said = json.loads(tool("doctor", "--json"))["machine"]["kept files"]
            refusal = tool("kept", "--path", "llama/config.json", status=1)
            done = subprocess.run([TOOL, "keep", "--replace", "--folder", model, "llama"], capture_output=True, text=True,
                                  timeout=PATIENCE, check=True)
            taken = subprocess.run(["unshare", "--mount", "sh", "-c", 'mount --bind "$1" /proc/filesystems && exec "$2" mount "$3"', "-",
                                    listed, TOOL, mount.place], capture_output=True, text=True, timeout=PATIENCE, check=False)
            other = tool("umount", mount.place, status=1)
            second = subprocess.run([*PROGRAM, mount.place], capture_output=True, text=True, timeout=PATIENCE, check=False)
        finally:
            mount.process.send_signal(signal.SIGCONT)
        assert "does not answer" in said["value"] and mount.place in said["value"] and "systemctl restart tmesh-mount" in said["advice"], said
        for answer in refusal, done.stderr:
            assert "does not answer" in answer and mount.place in answer and "systemctl restart tmesh-mount" in answer, answer
        assert done.stdout == ""
        assert taken.returncode == 1 and "tmesh-mount has it" in taken.stderr, taken
        assert "no file system tmesh" in other, other
        assert second.returncode == 1 and "does not answer" in second.stderr, second
        assert tool("kept", "llama") == path


def test_no_thread(folder):
    """tmeshctl doctor says why it cannot ask a service: the user may have no more threads"""
    with Mount(folder) as mount:
        done = as_user(OTHER, "prlimit", "--nproc=1", TOOL, "doctor", "--json", TMESH_RUNTIME_DIR=run_folder(mount, OTHER))
        said = json.loads(done.stdout)["machine"]["kept files"]
        assert said["advice"] is None and said["value"].endswith(f"cannot ask {mount.place}"[:71] + ": " + os.strerror(errno.EAGAIN)), said


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
    """a mount point that is not empty, taken, a link, no folder, another user's; one that a kill left"""
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


def test_volume(folder):
    """a mount point that is a mount itself, as a container's volume is; after a kill, and with a file in it"""
    place = os.path.join(folder, "volume")
    os.makedirs(place)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    try:
        for how in (signal.SIGKILL, signal.SIGTERM):
            with subprocess.Popen([*PROGRAM, place]) as process:
                wait_until("mounted", lambda: process.poll() is not None or not errno_of(os.getxattr, place, "user.tmesh.mount"))
                assert process.poll() is None, "tmesh-mount ended"
                process.send_signal(how)
        assert os.listdir(place) == []
        os.mkdir(os.path.join(place, "x"))
        done = subprocess.run([*PROGRAM, place], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 1 and "another file system" in done.stderr, done
    finally:
        while not subprocess.run(["umount", "-l", place], stderr=subprocess.DEVNULL, check=False).returncode:
            pass


TESTS = [test_tree, test_stopped, test_no_thread, test_names, test_random_reader, test_replaced_and_dropped, test_held, test_modes, test_places, test_volume,
         *test_hostile.TESTS, *test_floods.TESTS, *test_outside.TESTS, *test_loader.TESTS]


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
