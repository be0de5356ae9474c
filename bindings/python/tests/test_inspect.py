# SPDX-License-Identifier: MIT
"""Counters, capabilities, regions, holders, configuration."""

import builtins
import inspect
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

import tmesh
from conftest import assert_refused


VOCABULARY = Path(__file__).resolve().parents[3] / "tests" / "vocabulary.md"


def members(name):
    """Return the members that the page promises."""
    table = VOCABULARY.read_text().split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {word for cell in first for word in re.findall("`([a-z_]+)`", cell)}


def test_members_are_those_of_the_vocabulary():
    t = tmesh.put(b"abc")
    region, = [region for region in tmesh.regions() if region["id"] == t.id]
    assert set(region) == members("region members")
    assert all(set(holder) == members("holder members") for holder in tmesh.holders(t))
    assert set(t.ref()) == members("ref members")


def test_everything_imported_replaces_no_builtin():
    names = {}
    exec("from tmesh import *", names)
    assert not set(names) & set(vars(builtins)) - {"__builtins__", "__doc__"}
    assert {"put", "regions", "zeros", "Tensor"} <= set(names) and tmesh.open


@pytest.mark.skipif(tmesh.backend() == "kernel", reason="the module tells by the one descriptor that is open")
def test_without_a_descriptor():
    """Each call reports the remedy, once, and none reports that all is well."""
    done = subprocess.run([sys.executable, "-P", "-c", """
import os, resource, tmesh
from multiprocessing.reduction import ForkingPickler
t = tmesh.put([1.0])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
while True:
    try:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break
calls = {"regions": tmesh.regions, "holders": lambda: tmesh.holders(t), "draw": tmesh.draw, "ref": t.ref,
         "send": lambda: ForkingPickler.dumps(t)}
for free in range(2):  # /proc itself can be opened with one
    for name, call in calls.items():
        try:
            print(name, call())
        except tmesh.LimitError as error:
            print(str(error).count("ulimit -n"), "TMESH_RUNTIME_DIR" in str(error) or "mounted" in str(error))
    os.close(taken.pop())
"""], capture_output=True, text=True, timeout=600)
    assert done.stdout == "1 False\n" * 10, done.stderr


def test_waits_have_no_limit_by_default():
    for kind in (tmesh.Channel, tmesh.Queue, tmesh.Tensor):
        for name, call in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                timeout = inspect.signature(call).parameters.get("timeout")
                assert timeout is None or timeout.default is None, name


def test_backend():
    assert tmesh.backend() in ("kernel", "memfd")
    assert tmesh.backend() == os.environ.get("TMESH_BACKEND", tmesh.backend())


def test_stats():
    before = tmesh.stats()
    assert all(isinstance(value, int) for value in before.values())
    t = tmesh.put(bytes(5000))
    o = tmesh.open(t.ref())
    after = tmesh.stats()
    assert (after["regions_opened"] - before["regions_opened"], after["bytes_live"] - before["bytes_live"]) == (1, 8192)
    o.numpy(), t.numpy(), t[5:].numpy()
    assert tmesh.stats()["bytes_copied"] == after["bytes_copied"]


def test_caps():
    caps = {cap["name"]: cap for cap in tmesh.caps()}
    assert len(caps) == len(tmesh.caps())
    assert {"zero-copy", "crash-cleanup", "read-only", "seal", "revoke", "holders", "quota"} <= set(caps)
    for cap in caps.values():
        assert cap["level"] in ("no", "cooperative", "enforced")
        assert set(cap) == {"name", "level", "reason"}
        assert cap["level"] == "enforced" or cap["reason"]


def test_list_and_holders():
    t = tmesh.put(b"abc", label="to be seen")
    mine = [region for region in tmesh.regions() if region["id"] == t.id]
    assert len(mine) == 1
    assert (mine[0]["label"], mine[0]["bytes"], mine[0]["sealed"]) == ("to be seen", 3, True)
    assert mine[0]["backend"] == tmesh.backend() and mine[0]["uid"] == os.getuid()
    assert mine[0]["tensor"] == {"dtype": "uint8", "shape": (3,), "strides": (1,), "offset": 0, "byte_size": 3}
    assert (mine[0]["node"], mine[0]["mode"], mine[0]["fence"]) == (None, 0o600, "idle")
    # Another process that lists the machine's regions, such as tmeshctl, may have this one open at that moment.
    holders, same = ([{**holder, "lease_left_ns": 0} for holder in tmesh.holders(one) if holder["pid"] == os.getpid()]
                     for one in (t.id, t))
    assert holders and holders == same
    assert {holder["kind"] for holder in holders} <= {"handle", "mapping"}
    assert {(holder["view"], holder["device"]) for holder in holders} == {(None, None)}
    assert all(isinstance(holder["command"], str) for holder in holders)
    t.release()
    assert_refused(lambda: tmesh.holders(t), tmesh.ReleasedError)


@pytest.mark.parametrize("id, error", [
    ("0" * 16 + "g", tmesh.InvalidError), ("12", tmesh.InvalidError), ("g" * 16, tmesh.InvalidError),
    (5, TypeError), (None, TypeError),
])
def test_holders_of_nothing(id, error):
    assert_refused(lambda: tmesh.holders(id), error, "region")


def test_configure_comes_first():
    tmesh.backend()
    assert_refused(lambda: tmesh.configure(region_pool_bytes=1), tmesh.BusyError, "comes first")


def test_configure(python, tmp_path):
    assert python("""
import os, sys, pathlib, tmesh
tmesh.configure(backend="memfd", region_pool_bytes=1 << 24, runtime_dir=pathlib.Path(sys.argv[1]) / "run")
assert tmesh.backend() == "memfd"
tmesh.put(bytes(1 << 20), seal=False).release()
t = tmesh.put(bytes(1 << 20), seal=False)
assert tmesh.stats()["region_pool_hits"] == 1, tmesh.stats()
t.ref()
print(len(os.listdir(pathlib.Path(sys.argv[1]) / "run")) > 0)
""", str(tmp_path)) == "True\n"


@pytest.mark.parametrize("configure, kept, wait", [
    ("pass", True, True), ("tmesh.configure(region_pool_bytes=0)", False, False),
    ("tmesh.configure(region_pool_bytes=None)", True, False), ("tmesh.configure(region_pool_bytes=1 << 16)", False, False),
    ("os.environ['TMESH_REGION_POOL'] = '0'", False, False),
])
def test_pool(python, configure, kept, wait):
    """Released memory is kept for reuse by default, and given back later even without further calls."""
    assert python(f"""
import os, time, tmesh
{configure}
tmesh.put(bytes(1 << 20), seal=False).release()
size = 1 << 20 if {kept} else 0
assert tmesh.stats()["region_pool_bytes"] == size, tmesh.stats()
tmesh.put(bytes(1 << 20), seal=False).release()
assert tmesh.stats()["region_pool_hits"] == {int(kept)}, tmesh.stats()
while {wait} and tmesh.stats()["region_pool_bytes"]:
    time.sleep(0.1)
""") == ""


def test_configure_refuses(python):
    assert python("""
import tmesh
for arguments in ({"backend": "gpu"}, {"backend": ""}, {"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")},
                  {"timeout": 1e9}):
    try:
        tmesh.configure(**arguments)
    except tmesh.InvalidError:
        print("refused")
for positional, arguments in (((5,), {}), ((), {"region_pool_bytes": "x"}), ((), {"max_bytes": 1.5}), ((), {"runtime_dir": 5}),
                              ((), {"pool": 1})):
    try:
        tmesh.configure(*positional, **arguments)
    except TypeError:
        print("no")
print(tmesh.backend() in ("kernel", "memfd"))
""") == "refused\n" * 6 + "no\n" * 5 + "True\n"


def test_no_module_no_silent_fallback(python):
    if os.path.exists("/dev/tmesh"):
        pytest.skip("/dev/tmesh is there")
    assert python("""
import tmesh
try:
    tmesh.configure(backend="kernel")
except tmesh.NotFoundError as error:
    print("tmesh" in str(error))
""") == "True\n"


def test_unknown_backend_in_the_environment(python):
    assert python("""
import tmesh
for attempt in 1, 2:
    try:
        tmesh.put(b"x")
    except tmesh.InvalidError:
        print("refused")
""", env={**os.environ, "TMESH_BACKEND": "cloud"}) == "refused\n" * 2


# Members that the bindings show in their languages' own way, or not at all: those of the caller's handle alone, or in
# other results.
BY_HAND = {
    "tmesh_stats": set(),
    "tmesh_region_info": {"backend", "backing", "node", "rights", "fence_producer", "fence_dead", "pinning", "zeros"},
    "tmesh_holder_info": {"kind", "pid", "rights", "device", "view", "region"},
    "tmesh_kept_info": {"backend", "count"},
    "tmesh_page_pool_info": set(),
    "tmesh_pages_info": set(),
    "tmesh_model_report": {"method", "hash"},
}


def test_tables_have_every_member():
    """Each new member of a structure is shown by both bindings, or listed above."""
    root = Path(__file__).resolve().parents[3]
    headers = "".join(path.read_text() for path in sorted((root / "include/tmesh").glob("*.h")))
    tables = (root / "lib/common/shown.h").read_text()
    shown = {name: set() for name in BY_HAND}
    for name, table in re.findall(r"#define STRUCTURE struct (\w+)\n(.*?)#undef STRUCTURE", tables, re.S):
        members = re.findall(r"MEMBER\(\w+, (\w+)\)", table)
        assert len(members) == len(set(members))
        shown[name].update(members)
    for name, by_hand in BY_HAND.items():
        body = re.search(rf"^struct {name} \{{\n(.*?)^\}};", headers, re.S | re.M).group(1)
        lines = re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(";")
        members = {re.search(r"(\w+)(\[.*\])?\s*$", line).group(1) for line in lines if line.strip()} - {"size"}
        assert shown[name] | by_hand == members and not shown[name] & by_hand, name
