# SPDX-License-Identifier: MIT
"""tmesh's own loader on kept files by their paths."""
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys

from mounts import Mount, OTHER, as_user, end_keeper_of, keep_as, read, run_folder
from test_keep import BUILD, PATIENCE, TOOL, kept, tool


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


def test_mapped_user(folder):
    """root of a user namespace finds the path of its files by the uid outside, and has their region in place"""
    model = os.path.join(folder, "st")
    os.makedirs(model)
    safetensors(os.path.join(model, "model.safetensors"), ["a", "b"], 1)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "roots")
        keep_as(mount, OTHER, model, "own")

        def inside(*words):
            return as_user(OTHER, "unshare", "--user", "--map-root-user", *words, TMESH_RUNTIME_DIR=run_folder(mount, OTHER))

        if inside("true").returncode:
            return "this machine has no user namespaces for users"
        done = inside(TOOL, "kept", "--path", "own/model.safetensors")
        path = mount.path("own/model.safetensors", uid=OTHER)
        assert done.stdout.strip() == path, done
        done = inside(os.path.join(BUILD, "tmeshctl-load"), "--json", "--background", "--for", "60", path)
        said = json.loads(done.stdout)
        os.kill(said["pid"], signal.SIGKILL)
        assert said["report"]["kept"] == "own" and said["report"]["bytes_read"] == 0, said
        end_keeper_of(mount, OTHER)
    return None


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


TESTS = [test_in_place, test_mapped_user, test_shards_in_place]
