# SPDX-License-Identifier: MIT
"""tmesh-mount and keepers that hang and lie, and readers that flood it."""
import ctypes
import errno
import os
import socket
import threading
import time

from mounts import FILES, Liar, Mount, OTHER, Unanswered, a_model, end_keeper_of, errno_of, honest, keep_as, read, run_folder, tree_of
import wire
from test_keep import PATIENCE, tool, wait_until


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
            assert errno_of(os.stat, mount.path("name", uid=uid)) == errno.ENOENT
        keep_as(mount, OTHER, model, "theirs")
        assert tree_of(mount.path("theirs", uid=OTHER)) == files
        for uid in range(200_000, 203_000):
            os.mkdir(os.path.join(mount.folder, f"run-{uid}"), 0o700)
        assert str(OTHER) in os.listdir(mount.place)


def test_unanswered_folder(folder):
    """a runtime folder that a program serves, which does not answer, is refused without a question"""
    with Mount(folder) as mount, Unanswered(os.path.join(folder, "run-200000")):
        assert errno_of(os.stat, mount.path("name", uid=200_000)) == errno.EACCES


def listed_after_a_lookup(folder):
    """Return the users in a listing whose keeper answers only after a look-up of that user in the root has ended."""
    asked, ended = (os.path.join(folder, name) for name in ("asked", "ended"))

    def answer(connection, request):
        if request["op"] == wire.LIST:
            with open(asked, "wb") as file:
                file.write(b"x")
            while not os.path.exists(ended):
                time.sleep(0.01)
        honest(connection, request)

    with open(asked, "wb"):
        pass
    os.chown(asked, OTHER, OTHER)
    with Mount(folder) as mount, Liar(mount, answer):
        users = []
        listing = threading.Thread(target=lambda: users.extend(os.listdir(mount.place)))
        listing.start()
        wait_until("the keeper is asked", lambda: read(asked))
        assert not errno_of(os.stat, mount.path(uid=OTHER))
        with open(ended, "wb"):
            pass
        listing.join(PATIENCE)
    os.unlink(ended)
    return users


def test_root_waits_for_no_keeper(folder):
    """a look-up in the root waits for no keeper: with libfuse before 3.17 it would hold up the look-ups of all users"""
    # A listing has two seconds, which a busy machine may exceed.
    assert any(listed_after_a_lookup(folder) == [str(OTHER)] for _ in range(5))


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


TESTS = [test_liars, test_other_table, test_much_in_open_folders, test_seeks_in_a_folder, test_made_up_users, test_unanswered_folder,
         test_root_waits_for_no_keeper, test_hangs]
