# SPDX-License-Identifier: MIT
"""The replacement of multiprocessing.shared_memory: CPython's own tests, and tests of the
differences."""

import errno
import multiprocessing
import os
from pathlib import Path
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

import tmesh
from tmesh import _tmesh
from tmesh import shared_memory
from tmesh.shared_memory import ShareableList, SharedMemory
from conftest import assert_refused, check_cpython, cpython_names, runtime_dir

# A forked child has everything imported.
FRESH = pytest.mark.skipif(os.environ.get("TMESH_BACKEND") == "kernel",
                           reason="fresh interpreters take minutes in an emulated machine")
FORKSERVER = pytest.param("forkserver", marks=FRESH)
SPAWN = pytest.param("spawn", marks=FRESH)


@pytest.mark.parametrize("name", cpython_names("_TestSharedMemory"))
@pytest.mark.parametrize("method", ["fork", FORKSERVER, SPAWN])
def test_cpython(method, name):
    check_cpython("cpython_shared_memory.py", method, name)


def folder():
    return runtime_dir() / "shm"


def names():
    return sorted(os.listdir(folder())) if folder().exists() else []


def test_an_array_outlives_the_block():
    shm = SharedMemory(create=True, size=4096)
    array = np.ndarray(512, dtype="int64", buffer=shm.buf)
    array[:] = 7
    part = shm.buf[8:16]
    shm.unlink()
    shm.close()
    assert shm.buf is None and names() == []
    assert array.sum() == 7 * 512 and part[0] == 7
    array[:] = 8
    assert part[0] == 8


def test_blocks_are_seen_by_their_names():
    shm = SharedMemory("weights", create=True, size=4096)
    assert "weights" in [region["label"] for region in tmesh.regions()]
    shm.unlink()


def test_the_creator_keeps_a_closed_block():
    shm = SharedMemory("kept", create=True, size=100)
    shm.buf[:5] = b"hello"
    shm.close()
    again = SharedMemory("kept")
    assert bytes(again.buf[:5]) == b"hello" and again.size == 100
    again.unlink()
    assert_refused(again.unlink, FileNotFoundError)
    again.close()
    assert_refused(lambda: SharedMemory("kept"), FileNotFoundError)


CREATE = """
import sys
from tmesh.shared_memory import SharedMemory
shm = SharedMemory(sys.argv[1], create=True, size=1 << 20)
shm.buf[:5] = b"child"
if len(sys.argv) > 2:
    shm.close()
print(shm.name, flush=True)
sys.stdin.readline()
"""

UNLINK = """
import sys
from tmesh.shared_memory import SharedMemory
shm = SharedMemory(sys.argv[1])
shm.unlink()
"""


def test_a_block_that_another_process_unlinked_is_let_go(python):
    shm = SharedMemory("given", create=True, size=4096)
    shm.close()
    python(UNLINK, "given")
    SharedMemory("next", create=True, size=1).unlink()
    # The fixture no_leak counts leftovers.


HANDLER = """
import os, signal
from tmesh.shared_memory import SharedMemory
first, second = SharedMemory("first", create=True, size=1), SharedMemory("second", create=True, size=1)
signal.signal(signal.SIGTERM, lambda *_: first.unlink())
readlink = os.readlink
def interrupted(*args, **kwargs):
    os.readlink = readlink
    signal.raise_signal(signal.SIGTERM)
    return readlink(*args, **kwargs)
os.readlink = interrupted
second.unlink()
"""

FORKED = """
import os, threading
from tmesh import shared_memory
from tmesh.shared_memory import SharedMemory
locked, done = threading.Event(), threading.Event()
def hold():
    with shared_memory._names._locked():
        locked.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
locked.wait()
child = os.fork()
if not child:
    SharedMemory("child's", create=True, size=1).unlink()
    os._exit(0)
done.set()
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


@pytest.mark.parametrize("program", [HANDLER, FORKED], ids=["handler", "fork"])
def test_the_folders_lock_does_not_deadlock(python, program):
    """A signal's handler removes a name while its thread has the lock. A child is forked while another thread has it."""
    python(program, timeout=600)
    assert names() == []


def test_many_blocks_are_let_go_in_turn(python):
    many = [SharedMemory(f"many{i}", create=True, size=1) for i in range(20)]
    for shm in many:
        shm.close()
    for shm in many:
        (folder() / f"{shm.name}").unlink()
    before = tmesh.stats()["regions_live"]
    for _ in range(3):
        SharedMemory(create=True, size=1).unlink()
    assert tmesh.stats()["regions_live"] <= before - 20


def test_killed_creator(peer):
    """Its memory is gone, and the next block that another process creates removes its name."""
    creator = peer(CREATE, "mine")
    assert creator.stdout.readline() == "mine\n"
    held = SharedMemory("mine")
    creator.kill()
    creator.wait()
    assert bytes(held.buf[:5]) == b"child"
    held.close()
    del held
    assert_refused(lambda: SharedMemory("mine"), FileNotFoundError)
    assert names() == ["mine"]
    SharedMemory("mine", create=True, size=1).unlink()
    assert names() == []


def test_names_of_the_killed_are_swept(peer, python):
    creator = peer(CREATE, "mine")
    creator.stdout.readline()
    creator.kill()
    creator.wait()
    assert names() == ["mine"]
    python("from tmesh.shared_memory import SharedMemory\n"
           "SharedMemory(create=True, size=1).unlink()")
    assert names() == []


@pytest.mark.parametrize("closed", [[], ["closed"]])
def test_exit_removes_the_name(peer, closed):
    creator = peer(CREATE, "mine", *closed)
    creator.stdout.readline()
    assert names() == ["mine"]
    creator.communicate("\n")
    assert creator.returncode == 0
    assert names() == []


def create_and_leave(name):
    SharedMemory(name, create=True, size=10)


@pytest.mark.parametrize("method", ["fork", SPAWN])
def test_exit_of_a_worker_removes_the_name(method):
    worker = multiprocessing.get_context(method).Process(target=create_and_leave, args=("mine",))
    worker.start()
    worker.join(600)
    assert worker.exitcode == 0
    assert names() == []


def test_exit_of_who_attached_takes_nothing(python):
    shm = SharedMemory("mine", create=True, size=10)
    python("from tmesh.shared_memory import SharedMemory\nshm = SharedMemory('mine'); shm.buf[0] = 3")
    assert shm.buf[0] == 3 and SharedMemory("mine").size == 10
    shm.unlink()


def test_unlink_spares_a_newer_block_of_that_name():
    old = SharedMemory("mine", create=True, size=10)
    SharedMemory("mine").unlink()
    new = SharedMemory("mine", create=True, size=20)
    assert_refused(old.unlink, FileNotFoundError)
    assert SharedMemory("mine").size == 20
    new.unlink()


def write(shm, value):
    shm.buf[0] = value


@pytest.mark.parametrize("method", ["fork", FORKSERVER, SPAWN])
def test_a_block_as_an_argument(method):
    shm = SharedMemory(create=True, size=10)
    worker = multiprocessing.get_context(method).Process(target=write, args=(shm, 9))
    worker.start()
    worker.join(600)
    assert worker.exitcode == 0 and shm.buf[0] == 9
    shm.unlink()


def test_list():
    ours = ShareableList([1, "two", b"three", None, 4.5], name="list")
    assert isinstance(ours, shared_memory._standard.ShareableList)
    assert isinstance(ours.shm, SharedMemory)
    theirs = pickle.loads(pickle.dumps(ours))
    theirs[0] = 2
    assert list(ours) == [2, "two", b"three", None, 4.5]
    ours.shm.unlink()


@pytest.mark.parametrize("name", ["", "/", "a/b", "a\0b", "//", ".", "/.."])
@pytest.mark.parametrize("create", [False, True])
def test_bad_names(name, create):
    assert_refused(lambda: SharedMemory(name, create=create, size=1), tmesh.InvalidError)


def test_bad_arguments():
    for create in (False, True):
        assert_refused(lambda: SharedMemory(7, create=create, size=1), TypeError, "'name' is a str, not 7")
    assert_refused(lambda: SharedMemory(create=True, size="10"), TypeError)
    assert_refused(lambda: SharedMemory("x" * 300, create=True, size=1), OSError)


def test_a_link_to_rubbish():
    SharedMemory(create=True, size=1).unlink()
    os.symlink("rubbish", folder() / "odd")
    assert_refused(lambda: SharedMemory("odd"), tmesh.ProtocolError)
    assert_refused(lambda: SharedMemory("odd", create=True, size=1), FileExistsError)
    (folder() / "odd").unlink()


@pytest.mark.parametrize("fault", ["mode", "owner", "link", "file"])
def test_a_folder_that_others_might_write_to(tmp_path, python, fault):
    home = tmp_path / "runtime"
    if fault == "mode":
        home.mkdir(mode=0o700)
        home.chmod(0o755)
    elif fault == "owner":
        if os.geteuid():
            pytest.skip("only root can give a folder away")
        home.mkdir(mode=0o700)
        os.chown(home, 65534, -1)
    elif fault == "link":
        (home.parent / "elsewhere").mkdir(mode=0o700)
        home.symlink_to(home.parent / "elsewhere")
    else:
        home.write_bytes(b"")
    assert python("""
import tmesh
from tmesh.shared_memory import SharedMemory

for options in {"create": True, "size": 1}, {}:
    try:
        SharedMemory("mine", **options)
    except (tmesh.AccessError, NotADirectoryError):
        print("refused")
""", env={**os.environ, "TMESH_RUNTIME_DIR": str(home)}) == "refused\nrefused\n"


def test_a_folder_that_went_away():
    SharedMemory(create=True, size=1).unlink()
    folder().rmdir()
    assert_refused(lambda: SharedMemory("again"), FileNotFoundError)
    folder().rmdir()
    shm = SharedMemory("again", create=True, size=1)
    assert names() == ["again"]
    shm.unlink()


def test_a_folder_that_another_process_made_again(peer):
    SharedMemory(create=True, size=1).unlink()
    folder().rmdir()
    creator = peer(CREATE, "mine")
    assert creator.stdout.readline() == "mine\n"
    assert bytes(SharedMemory("mine").buf[:5]) == b"child"


def test_install(python, tmp_path):
    """Code that only uses the standard library gets our blocks, and so do managers."""
    assert python("""
import tmesh.shared_memory
tmesh.shared_memory.install()
from multiprocessing.managers import SharedMemoryManager
from multiprocessing.shared_memory import SharedMemory
if __name__ == "__main__":
    with SharedMemoryManager() as manager:
        shm = manager.SharedMemory(size=100)
        print(isinstance(shm, tmesh.shared_memory.SharedMemory), len(tmesh.regions()) > 0)
        name = shm.name
        shm.close()
    try:
        SharedMemory(name)
    except FileNotFoundError:
        print("gone")
""", file=tmp_path / "main.py") == "True True\ngone\n"


def test_killed_among_others(peer):
    """Processes are killed at any time. Only names of living blocks are left once another block is
    created."""
    program = """
import itertools
from tmesh.shared_memory import SharedMemory
print(flush=True)
for i in itertools.count():
    shm = SharedMemory(f"n{i % 5}-{i}", create=True, size=5000)
    SharedMemory(shm.name).buf[0] = 1
    if i % 3:
        shm.unlink()
"""
    for process in [peer(program) for _ in range(4)]:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", "from tmesh.shared_memory import SharedMemory\n"
                    "SharedMemory(create=True, size=1).unlink()"], check=True)
    assert names() == []


def test_open_link(tmp_path):
    """An entry of the folder is no token, does not exist, or is no link; and bad arguments."""
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (tmp_path / "file").touch()
        for target in ("nonsense", "x" * 1000, "tm1m-" + "0" * 32):
            (tmp_path / target[:20]).symlink_to(target)
            assert_refused(lambda: _tmesh.open_link(folder, target[:20]), tmesh.ProtocolError)
        for name, error in (("none", FileNotFoundError), ("file", OSError), ("a\0b", ValueError),
                            (7, TypeError), (None, TypeError)):
            assert_refused(lambda: _tmesh.open_link(folder, name), error)
        for bad in ((), (folder,), ("x", "file"), (folder, "file", 1)):
            assert_refused(lambda: _tmesh.open_link(*bad), TypeError)
        assert_refused(lambda: _tmesh.open_link(1 << 70, "file"), OverflowError)
        for number in (folder + (1 << 32), -1):
            with pytest.raises(OSError) as bad:
                _tmesh.open_link(number, "file")
            assert bad.value.errno == errno.EBADF
    finally:
        os.close(folder)
