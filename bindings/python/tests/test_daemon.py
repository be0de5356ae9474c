# SPDX-License-Identifier: MIT
"""Servers become another user and close all descriptors between their start and their work."""

import os

import pytest

import tmesh
from conftest import ANY_BACKEND, assert_refused

pytestmark = ANY_BACKEND

OTHER = 65534

AS_ANOTHER = """
import os, sys, tmesh

def become(user):
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)

inherited = tmesh.put(b"inherited")
queue = tmesh.Queue()
inherited.ref()
child = os.fork() if sys.argv[2] == "fork" else 0
if not child:
    become(int(sys.argv[1]))
    mine = tmesh.put(b"mine")
    assert bytes(inherited) == b"inherited"
    assert bytes(tmesh.open(mine.ref())) == b"mine"
    if sys.argv[2] == "fork":
        try:
            queue.put(1)
        except tmesh.GoneError as error:
            assert "another user" in str(error)
    own = tmesh.Queue()
    own.put(mine)
    assert bytes(own.get()) == b"mine"
    grandchild = os.fork()
    if not grandchild:
        assert bytes(own.get()) == b"mine"
        os._exit(0)
    own.put(mine)
    assert os.waitpid(grandchild, 0)[1] == 0
    del own
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert bytes(tmesh.open(inherited.ref())) == b"inherited"
"""


@pytest.mark.parametrize("how", ["fork", "same process"])
def test_another_user(python, how):
    """Change the user as gunicorn --preload --user does."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    # The other user cannot use the runtime directory of the first.
    env = {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "TMESH_RUNTIME_DIR", "TMPDIR")}
    python(AS_ANOTHER, str(OTHER), how, env=env)


CLOSED = """
import os, sys, tempfile, tmesh
made, sealed = tmesh.put(b"a secret", seal=False), tmesh.put(b"a secret")
opened, arena = tmesh.open(sealed.ref()), tmesh.Arena()
if sys.argv[1] == "fork" and (child := os.fork()):
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.closerange(3, 4096)
files = [tempfile.TemporaryFile() for _ in range(30)]
for file in files:
    file.write(b"a stranger's" * 1000)
    file.flush()
for tensor in made, sealed, opened:
    try:
        print(bytes(tensor.numpy()))
        sys.exit("a stranger's file was mapped")
    except tmesh.Error as error:
        assert "descriptor" in str(error), error
    tensor.release()
for file in files:
    os.fstat(file.fileno())
new = tmesh.put(b"new")
assert bytes(new) == b"new" and bytes(new.numpy()) == b"new"
if sys.argv[1] == "fork":
    assert bytes(tmesh.open(new.ref())) == b"new"
for file in files:
    file.seek(0)
    assert file.read() == b"a stranger's" * 1000
os._exit(0)
"""


@pytest.mark.parametrize("how", ["fork", "same process"])
def test_a_daemon_that_closes_all_descriptors(python, how):
    """The numbers of closed descriptors then belong to other files, which are neither reported nor closed."""
    python(CLOSED, how)


NAMED = """
import os, sys, tempfile
from tmesh.shared_memory import SharedMemory
first = SharedMemory("first", create=True, size=10)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.closerange(3, 4096)
folders = [tempfile.TemporaryDirectory() for _ in range(30 * int(sys.argv[1]))]
strange = [os.open(folder.name, os.O_RDONLY) for folder in folders]
SharedMemory("first").close()
second = SharedMemory("second", create=True, size=10)
second.buf[0] = 7
assert SharedMemory("second").buf[0] == 7
second.unlink()
assert not any(os.listdir(folder.name) for folder in folders)
for file in strange:
    os.fstat(file)
os._exit(0)
"""


@pytest.mark.parametrize("files", [0, 1], ids=["free", "used again"])
def test_names_of_a_daemon_that_closes_all_descriptors(python, files):
    """The folder of the names is opened again. Its old number may be another folder's, which gets no names."""
    python(NAMED, str(files))


def test_errors_name_the_region():
    """Python 3.11 has no %llx with a width in messages."""
    sealed = tmesh.put(b"x")
    assert_refused(lambda: sealed.ref(writable=True), tmesh.SealedError, f"region {sealed.id} is sealed")
