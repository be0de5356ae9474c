# SPDX-License-Identifier: MIT
"""tmesh.lmcache below LMCache's real storage manager, without an engine and without a GPU."""

import contextlib
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tmesh
from conftest import EMULATED, assert_refused, eventually

if EMULATED:
    pytest.skip("LMCache takes minutes to start in an emulated machine", allow_module_level=True)
pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("lmcache", reason="LMCache is not installed: make python-lmcache-check")

ENGINE = Path(__file__).with_name("lmcache_engine.py")
sys.path.insert(0, str(ENGINE.parent))

import lmcache_engine as side  # noqa: E402
from lmcache.v1.distributed.api import ObjectKey  # noqa: E402
from tmesh.lmcache import Adapter  # noqa: E402

# The bytes that the keeper counts.
KEPT_BYTES = side.BYTES + 8192
PATIENCE = 600


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    gc.collect()
    for one in tmesh.kept():
        tmesh.drop(one["name"])


@pytest.fixture
def key_file(tmp_path):
    return str(tmp_path / "tenant.key")


@pytest.fixture
def engine(request, key_file):
    """An engine of this process."""
    one = side.Engine({"key_file": key_file, **getattr(request, "param", {})})
    yield one
    one.close()


def run(parameters, *words):
    """Run the same in another process, and return its output."""
    return subprocess.Popen([sys.executable, "-P", str(ENGINE), json.dumps(parameters), *map(str, words)],
                            stdout=subprocess.PIPE, text=True)


def said(process):
    return json.loads(process.communicate(timeout=PATIENCE)[0])


def test_a_strangers_first_program(engine, key_file):
    """Another process loads the objects that one process stored, and so does the first one again."""
    engine.store(0, 8)
    assert [(one["regions"], one["bytes"]) for one in tmesh.kept()] == [(1, KEPT_BYTES)] * 8
    assert engine.fetch(0, 8) == [*range(8)]
    assert engine.fetch(6, 4) == [6, 7]
    assert said(run({"key_file": key_file}, "fetch", 0, 9)) == [*range(8)]
    assert engine.adapter._locked == {}


def test_a_restart(engine, key_file):
    """The objects of a killed process stay, and open ones stay open."""
    other = run({"key_file": key_file}, "die", 0, 5)
    assert other.stdout.readline() == "5\n"
    other.kill()
    other.wait()
    other.stdout.close()
    assert engine.fetch(0, 5) == [*range(5)]
    status = engine.adapter.report_status()
    assert (status["stored_object_count"], status["used_bytes"]) == (5, 5 * KEPT_BYTES)


def test_tenants_are_kept_apart(engine, tmp_path):
    """A process with another key finds nothing, and has other names."""
    engine.store(0, 3)
    mine = {one["name"] for one in tmesh.kept()}
    parameters = {"key_file": str(tmp_path / "other.key")}
    assert said(run(parameters, "fetch", 0, 3)) == []
    other = Adapter(parameters)
    assert other.report_status()["stored_object_count"] == 0
    other.delete(side.keys(0, 3))
    assert {one["name"] for one in tmesh.kept()} == mine
    assert said(run(parameters, "store", 0, 3)) == 3 == other.report_status()["stored_object_count"]
    theirs = {one["name"] for one in tmesh.kept()} - mine
    for part in 1, 2:
        assert not {name.split("-")[part] for name in mine} & {name.split("-")[part] for name in theirs}
    other.delete(side.keys(0, 3))
    assert {one["name"] for one in tmesh.kept()} == mine
    other.close()
    assert engine.fetch(0, 3) == [0, 1, 2]
    # LMCache's own salts separate tenants too.
    assert engine.fetch(0, 3, salt="somebody") == []
    engine.store(0, 1, salt="somebody")
    assert engine.fetch(0, 1, salt="somebody") == [0] and len(tmesh.kept()) == 4


@pytest.mark.parametrize("engine", [{"max_bytes": 4 * KEPT_BYTES}], indirect=True)
def test_a_limit(engine, key_file):
    """The least recently used objects go, whichever process stored them. Objects in use stay."""
    said(run({"key_file": key_file}, "store", 0, 3))
    adapter = engine.adapter
    wanted = side.keys(0, 1)
    task = adapter.submit_lookup_and_lock_task(wanted, {})
    assert side.Engine.until(lambda: adapter.query_lookup_and_lock_result(task)).popcount() == 1
    engine.store(3, 2)
    assert adapter.report_status()["used_bytes"] == 4 * KEPT_BYTES
    assert [engine.fetch(number, 1) for number in range(5)] == [[0], [], [2], [3], [4]]
    # A request for more than the limit stores nothing, and nothing goes.
    engine.store(10, 5)
    assert [engine.fetch(number, 1) for number in (0, 2, 3, 4, 10)] == [[0], [2], [3], [4], []]
    # Locked objects cannot make room.
    others = side.keys(2, 3)
    task = adapter.submit_lookup_and_lock_task(others, {})
    assert side.Engine.until(lambda: adapter.query_lookup_and_lock_result(task)).popcount() == 3
    engine.store(20, 1)
    assert adapter.report_status()["stored_object_count"] == 4 and engine.fetch(20, 1) == []
    adapter.submit_unlock(wanted + others)
    engine.store(20, 1)
    assert adapter.report_status()["stored_object_count"] == 4 and engine.fetch(20, 1) == [20]


def test_what_lmcache_counts(engine, key_file):
    """Its own figures follow the kept objects, also if another process drops them."""
    engine.store(0, 4)
    assert engine.adapter.get_usage().total_bytes_used == 4 * side.BYTES
    engine.adapter.delete(side.keys(0, 1))
    engine.adapter.delete(side.keys(0, 1))
    assert engine.adapter.get_usage().total_bytes_used == 3 * side.BYTES
    tmesh.drop(tmesh.kept()[0]["name"])
    engine.store(9, 1)
    assert engine.adapter.get_usage().total_bytes_used == 3 * side.BYTES
    assert engine.fetch(0, 1) == [] and engine.fetch(9, 1) == [9]


def test_what_is_locked_stays(engine):
    """Locked objects stay, even if their names are dropped meanwhile."""
    engine.store(0, 1)
    adapter, wanted = engine.adapter, side.keys(0, 1)
    for _ in range(2):
        task = adapter.submit_lookup_and_lock_task(wanted, {})
        assert side.Engine.until(lambda: adapter.query_lookup_and_lock_result(task)).popcount() == 1
    adapter.delete(wanted)

    class Memory:
        byte_array = memoryview(bytearray(side.BYTES))

    for unlocked in 0, 1, 2:
        task = adapter.submit_load_task(wanted, [Memory])
        bits = side.Engine.until(lambda: adapter.query_load_result(task))
        assert bits.popcount() == (unlocked < 2)
        adapter.submit_unlock(wanted)


def test_another_process_is_faster(engine, monkeypatch, caplog):
    """It is no error if another process stores the same after this one has looked."""
    engine.store(0, 2)
    engine.manager.clear(force=True)
    monkeypatch.setattr(engine.adapter, "_kept", lambda: [])
    engine.store(0, 3)
    monkeypatch.undo()
    # Check the adapter's own records only: LMCache logs remarks about slow machines.
    assert not [record for record in caplog.records if record.name == "tmesh.lmcache"]
    assert engine.adapter.report_status()["stored_object_count"] == 3
    assert engine.fetch(0, 3) == [0, 1, 2]


def test_other_bytes_than_expected(engine):
    """A buffer of another length is not filled: the key was used for another object."""
    engine.store(0, 1)

    class Memory:
        byte_array = memoryview(bytearray(side.BYTES - 2))

    task = engine.adapter.submit_load_task(side.keys(0, 1), [Memory])
    assert side.Engine.until(lambda: engine.adapter.query_load_result(task)).popcount() == 0
    assert not any(Memory.byte_array)


def test_hostile_keys(engine):
    """All parts of a key count, and bytes cannot be moved from one part to another."""
    names = engine.adapter._names
    many = [ObjectKey(*key) for key in (
        (b"", "", 0), (b"a", "b", 0), (b"ab", "", 0), (b"", "ab", 0), (b"a", "b", 1), (b"a", "b", -1), (b"a", "b", 1 << 80),
        (b"a", "b", 0, 1), (b"a", "b", 0, 0, "c"), (b"a", "bc", 0), (b"\0" * 1000, "/../" * 1000, 0), (b"a", "\ud800\0\n", 0))]
    made = {names.of(key) for key in many}
    assert len(made) == len(many) and all(len(name) <= 63 and name.isascii() for name in made)


def descriptors():
    """Return this process's open files, with their numbers."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


@pytest.mark.parametrize("parameters, words", [
    ({}, "key_file is missing"), ({"key_file": 5}, "key_file is missing"), ({"key_file": ""}, "key_file is missing"),
    ({"max_bytes": 0}, "max_bytes is 0"), ({"max_bytes": "1G"}, "max_bytes is '1G'"), ({"max_bytes": True}, "max_bytes is True"),
    ({"maxbytes": 1}, "unknown: 'maxbytes'"),
])
def test_bad_parameters(parameters, words, key_file):
    before = descriptors()
    with pytest.raises(tmesh.InvalidError, match=words):
        Adapter({"key_file": key_file, **parameters} if "key_file" not in parameters and parameters else parameters)
    # Threads of an earlier test's engine may still be closing some.
    eventually(lambda: not descriptors() - before)


def test_bad_key_files(tmp_path, key_file):
    Adapter({"key_file": key_file}).close()
    assert os.stat(key_file).st_mode & 0o777 == 0o600 and os.listdir(tmp_path) == ["tenant.key"]
    os.chmod(key_file, 0o640)
    assert_refused(lambda: Adapter({"key_file": key_file}), tmesh.AccessError, "chmod 600")
    os.chmod(key_file, 0o600)
    os.symlink(key_file, tmp_path / "link")
    assert_refused(lambda: Adapter({"key_file": str(tmp_path / "link")}), tmesh.AccessError, "no link")
    with pytest.raises(tmesh.NotFoundError, match="Its folder has to be there"):
        Adapter({"key_file": str(tmp_path / "none" / "key")})
    assert_refused(lambda: Adapter({"key_file": str(tmp_path)}), tmesh.AccessError, "Is a directory")
    # It does not wait for the pipe.
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(tmesh.AccessError, match="a tenant's key must be a file"):
        Adapter({"key_file": str(tmp_path / "pipe")})
    for content in b"", b"x" * 31, b"x" * 33:
        Path(key_file).write_bytes(content)
        assert_refused(lambda: Adapter({"key_file": key_file}), tmesh.InvalidError, "has 32 bytes")


def test_without_a_keeper(tmp_path, key_file):
    """A store fails with a message, and the engine continues."""
    process = subprocess.run([sys.executable, "-P", "-c", f"""
import sys
sys.path.insert(0, {str(ENGINE.parent)!r})
import lmcache_engine
engine = lmcache_engine.Engine({{"key_file": {key_file!r}}})
engine.store(0, 1)
print(engine.fetch(0, 1))
engine.close()
"""], env={**os.environ, "TMESH_KEEPER": "/nonexistent", "TMESH_RUNTIME_DIR": str(tmp_path)}, capture_output=True, text=True,
        timeout=PATIENCE, check=True)
    assert process.stdout == "[]\n" and "a task failed" in process.stderr and "keeper" in process.stderr
