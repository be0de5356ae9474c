# SPDX-License-Identifier: MIT
"""All parts of the package use libtmesh's runtime directory."""

import os
import subprocess
import sys

import pytest

from conftest import ANY_BACKEND

PROGRAM = """
import json, os, socket, struct, sys, threading
import tmesh, tmesh.net
from tmesh.shared_memory import SharedMemory

folder = sys.argv[1]
if len(sys.argv) > 2:
    tmesh.configure(runtime_dir=folder)
ref = tmesh.put(b"x").ref()
shm = SharedMemory("named", create=True, size=1)
print(sorted(os.listdir(f"{folder}/shm")))

# In place of an Elixir node's Tmesh.Net, where tmesh-net says that the directory is.
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(f"{folder}/net.sock")
listener.listen()

def answer():
    connection = listener.accept()[0]
    connection.recv(1 << 16)
    words = json.dumps({"type": "error", "errno": "ENOENT", "message": "it was asked"}).encode()
    connection.sendall(struct.pack(">I", len(words)) + words)
    connection.close()

threading.Thread(target=answer).start()
try:
    tmesh.net.open_name("weights")
except tmesh.NotFoundError as error:
    print(error.strerror)
"""


def bare(**more):
    """Return an environment without variables that name folders. The backend stays: libtmesh reads it itself."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("TMESH_", "XDG_")) and name not in ("HOME", "TMPDIR")}
    return kept | {name: str(value) for name, value in more.items()}


@pytest.mark.parametrize("way", ["TMPDIR", "XDG_RUNTIME_DIR", "TMESH_RUNTIME_DIR", "configure"])
def test_everything_is_in_it(python, tmp_path, way):
    folder = {"TMPDIR": tmp_path / f"tmesh-{os.geteuid()}", "XDG_RUNTIME_DIR": tmp_path / "tmesh"}.get(way, tmp_path / "own")
    asked = {} if way == "configure" else {way: folder if way == "TMESH_RUNTIME_DIR" else tmp_path}
    given = ["configure"] if way == "configure" else []
    # The program's own choice has precedence over this one.
    other = {"TMPDIR": tmp_path / "none"} if way != "TMPDIR" else {}
    assert python(PROGRAM, folder, *given, env=bare(**other, **asked)) == "['named']\nit was asked\n"
    assert folder.stat().st_mode & 0o777 == 0o700


@ANY_BACKEND
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_folder_of_roots_in_a_users(tmp_path):
    """Neither SharedMemory nor tmesh.net makes a folder if XDG_RUNTIME_DIR is another user's."""
    os.chown(tmp_path, 65534, 65534)
    program = """
import tmesh, tmesh.net
from tmesh.shared_memory import SharedMemory
for call in (lambda: SharedMemory("mine", create=True, size=1), lambda: SharedMemory("mine"), lambda: tmesh.net.open_name("x")):
    try:
        call()
    except tmesh.AccessError as error:
        print("user 65534 owns the folder above" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", program], env=bare(XDG_RUNTIME_DIR=tmp_path), capture_output=True,
                          text=True, timeout=600)
    assert done.stdout == "True\n" * 3, done.stderr
    assert not list(tmp_path.iterdir())


LIMITED = """
import os, resource, signal, tmesh
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as where a program that embeds Python leaves signals alone
tensor = tmesh.put(b"x")
tensor.token
for name in os.listdir(folder := os.environ["TMESH_RUNTIME_DIR"]):
    os.unlink(os.path.join(folder, name))
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
os.write(2, b"." * (65536 - int(os.environ["ROOM"])))
tensor.token
"""


@pytest.mark.parametrize("room", [0, 4096])
def test_a_warning_to_a_full_file_does_not_end_the_process(tmp_path, room):
    """Standard error is often a file, and a write past the process's limit of a file's size ends it (SIGXFSZ)."""
    folder = tmp_path / "runtime"
    folder.mkdir(0o700)
    with open(tmp_path / "log", "ab") as log:
        done = subprocess.run([sys.executable, "-c", LIMITED], stderr=log, timeout=600, env={
            **os.environ, "TMESH_BACKEND": "memfd", "TMESH_RUNTIME_DIR": str(folder), "ROOM": str(room)})
    assert done.returncode == 0
    assert (b"is there again" in (tmp_path / "log").read_bytes()) == bool(room)
