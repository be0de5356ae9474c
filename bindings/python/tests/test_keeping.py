# SPDX-License-Identifier: MIT
"""Memory that stays under a name, with the real keeper (on memfd) or the module."""

import errno
import os
import shutil

import numpy as np
import pytest

import tmesh
from conftest import assert_refused, pytorch

ARRAYS = {"w": np.arange(6.0).reshape(2, 3), "b": np.float32(2.5), "mask": np.array([True, False])}
# The members of kept() and of tmeshctl kept --json.
KEPT = {"name", "id", "backend", "regions", "held", "bytes", "kept_ns", "used_ns", "expires_ns", "uid", "gid", "mode",
        "handles", "cgroup_id"}


pytestmark = pytest.mark.usefixtures("nothing_kept")


def names():
    return [one["name"] for one in tmesh.kept()]


def test_a_strangers_first_program(python):
    """A state_dict outlives the process that kept it."""
    pytorch()
    made = """
import torch, tmesh
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 2)).to({0})
net[1].weight = torch.nn.Parameter(torch.full((2, 4), 0.5, dtype={0}))
"""
    for kind in ("torch.float32", "torch.bfloat16"):
        python(made.format(kind) + "tmesh.keep(net.state_dict(), 'net', replace=True)")
        assert python(made.format(kind) + """
kept = tmesh.open_kept("net")
weights = kept.state_dict()
assert [*weights] == [*net.state_dict()] and len({tensor.id for tensor in kept.values()}) == 1
assert all(torch.equal(weights[name], value) and weights[name].dtype == value.dtype
           for name, value in net.state_dict().items())
other = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 2)).to(net[0].weight.dtype)
other.load_state_dict(weights)
x = torch.ones(1, 5, dtype=net[0].weight.dtype)
assert torch.equal(other(x), net(x))
weights["0.weight"][0, 0] = 7                                # one's own page
assert torch.equal(tmesh.open_kept("net").state_dict(private=False)["0.weight"], net[0].weight.detach())
tmesh.drop("net")
print(tmesh.kept())
""") == "[]\n"


def test_bundles_and_tensors_go_in_as_they_are():
    made = tmesh.bundle(ARRAYS, metadata="ü")
    copies = tmesh.stats()["copies"]
    assert tmesh.keep(made, "bundle") is made
    whole = tmesh.put(np.arange(12, dtype="int16").reshape(3, 4))
    assert tmesh.keep(whole, "tensor") is whole and tmesh.stats()["copies"] == copies + 1
    assert names() == ["bundle", "tensor"]
    there = tmesh.open_kept("bundle")
    assert there.id == made.id and there.metadata == "ü" and there["w"].id == made["w"].id
    t = tmesh.open_kept("tensor")
    assert (t.id, t.dtype, t.shape, t.tolist()) == (whole.id, "int16", (3, 4), whole.tolist())
    assert tmesh.keep([1.5, 2.5], "list").sealed and tmesh.open_kept("list").tolist() == [1.5, 2.5]


def test_what_is_told():
    tmesh.keep(ARRAYS, "told")
    tmesh.keep(b"x" * 10, "short", lifetime=3600)
    told, short = tmesh.kept()
    assert set(told) == KEPT
    assert (told["backend"], told["regions"], told["uid"], told["mode"]) == (tmesh.backend(), 2, os.getuid(), 0o600)
    assert told["expires_ns"] is None and told["bytes"] >= 4096 and len(told["id"]) == 16
    assert short["expires_ns"] - short["kept_ns"] == 3600 * 10**9
    if tmesh.backend() == "memfd":
        assert_refused(lambda: tmesh.open_kept("told", uid=os.getuid() + 1), tmesh.UnsupportedError)
    else:
        assert_refused(lambda: tmesh.open_kept("told", uid=os.getuid() + 1), tmesh.NotFoundError)


def test_a_part_is_refused():
    t = tmesh.put(np.arange(12).reshape(3, 4))
    for part in (t[1:], t.view("uint8"), t.reshape(12), t[0]):
        assert_refused(lambda: tmesh.keep(part, "part"), tmesh.InvalidError, r"keep\(\{")
    tmesh.keep({"part": t[1:]}, "part")
    assert tmesh.open_kept("part")["part"].tolist() == t[1:].tolist()


def test_a_released_bundle_is_refused():
    gone = tmesh.bundle(ARRAYS)
    gone.release()
    assert_refused(lambda: tmesh.keep(gone, "open"), tmesh.ReleasedError)
    assert names() == []


@pytest.mark.parametrize("name, error", [
    ("a\0b", tmesh.InvalidError), ("a\nb", tmesh.InvalidError),
    (5, TypeError), (None, TypeError), (b"bytes", TypeError),
])
def test_bad_names(name, error):
    t = tmesh.put(b"x")
    for use in (lambda: tmesh.keep(t, name), lambda: tmesh.open_kept(name), lambda: tmesh.drop(name)):
        assert_refused(use, error)
    assert names() == []


@pytest.mark.parametrize("more, error", [
    ({"lifetime": 0}, tmesh.InvalidError), ({"lifetime": -1}, tmesh.InvalidError), ({"lifetime": "x"}, TypeError),
    ({"mode": 0o777}, tmesh.InvalidError), ({"mode": -1}, OverflowError), ({"gid": "x"}, TypeError),
    ({"gid": 1 << 32}, OverflowError), ({"uid": 5}, TypeError),
])
def test_bad_options(more, error):
    assert_refused(lambda: tmesh.keep(b"x", "name", **more), error, [*more][0] if error is tmesh.InvalidError else "")
    assert names() == []


def test_one_name_for_a_region():
    t = tmesh.keep(tmesh.put(b"x"), "one")
    try:
        assert_refused(lambda: tmesh.keep(t, "other"), tmesh.BusyError, "drop that one first")
        assert names() == ["one"]
    finally:
        tmesh.drop("one")


def test_bad_things():
    assert_refused(lambda: tmesh.keep(object(), "name"), (TypeError, tmesh.Error))
    assert_refused(lambda: tmesh.keep({5: [1]}, "name"), TypeError)
    assert_refused(lambda: tmesh.open_kept("name", uid="root"), TypeError)
    assert names() == []


def test_a_child_opens_on_its_own():
    made = tmesh.keep(ARRAYS, "for-the-child")
    child = os.fork()
    if not child:
        try:
            os._exit(0 if tmesh.open_kept("for-the-child")["w"].tolist() == ARRAYS["w"].tolist() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0 and made["b"].item() == 2.5


def test_without_a_keeper(python, tmp_path):
    if tmesh.backend() == "kernel":
        pytest.skip("under the module the kernel keeps")
    environment = {**os.environ, "TMESH_KEEPER": "/nonexistent/keeper", "TMESH_RUNTIME_DIR": str(tmp_path)}
    assert python("""
import tmesh
print(tmesh.kept())
for use in (lambda: tmesh.keep(b"x", "name"), lambda: tmesh.open_kept("name"), lambda: tmesh.drop("name")):
    try:
        use()
    except tmesh.NotFoundError as error:
        print("keeper" in str(error))
""", env=environment) == "[]\nTrue\nFalse\nFalse\n"


def test_files_of_a_folder(tmp_path):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights").write_bytes(b"w" * 70_000)
    (folder / "sub" / "config.json").write_text("{}")
    (folder / "sub" / "link").symlink_to("../weights")
    (folder / os.fsdecode(b"\xff\n")).touch()
    seen = []
    assert tmesh.keep_folder(folder, "model", mode=0o644, progress=lambda done, total: seen.append((done, total))) is None
    assert seen[-1] == (140_002, 140_002)
    files = tmesh.kept_files("model")
    assert [(file["path"], file["bytes"]) for file in files] == [
        ("sub/config.json", 2), ("sub/link", 70_000), ("weights", 70_000), (os.fsdecode(b"\xff\n"), 0)]
    assert files[2]["mtime_ns"] == (folder / "weights").stat().st_mtime_ns
    assert bytes(tmesh.open_kept("model", path="weights")) == b"w" * 70_000
    assert bytes(tmesh.open_kept("model", path="sub/config.json")) == b"{}"
    assert_refused(lambda: tmesh.open_kept("model", path="config"), tmesh.NotFoundError, "config")
    assert_refused(lambda: tmesh.keep_folder(folder, "model"), tmesh.ExistsError)
    assert_refused(lambda: tmesh.kept_path("model", "none"), tmesh.NotFoundError, "none")
    assert_refused(lambda: tmesh.kept_path("other"), tmesh.NotFoundError, "nothing is kept")
    tmesh.keep_folder(folder / "weights", "one")
    assert [file["path"] for file in tmesh.kept_files("one")] == ["weights"]
    tmesh.keep(tmesh.put(b"x"), "plain")
    assert_refused(lambda: tmesh.kept_files("plain"), tmesh.NotFoundError, "without files")
    tmesh.drop("one")
    tmesh.drop("model")


def test_a_kept_file_is_read_and_mapped_by_its_path(tmp_path, kept_files):
    """NumPy opens the path as that of any file."""
    folder = tmp_path / "model"
    folder.mkdir()
    weights = np.arange(50_000, dtype="float32")
    np.save(folder / "w.npy", weights)
    tmesh.keep_folder(folder, "model")
    shutil.rmtree(folder)
    path = tmesh.kept_path("model", "w.npy")
    assert path == os.path.join(tmesh.kept_path("model"), "w.npy") == str(kept_files / str(os.geteuid()) / "model" / "w.npy")
    mapped = np.load(path, mmap_mode="r")
    assert np.array_equal(mapped, weights) and np.array_equal(np.load(path), weights)
    with pytest.raises(OSError) as refused:
        open(path, "r+b")
    assert refused.value.errno == errno.EROFS
    with pytest.raises(tmesh.NotFoundError, match="none"):
        tmesh.kept_path("model", "none")
    tmesh.drop("model")
    assert not os.path.exists(path) and np.array_equal(mapped, weights)


def test_a_folder_of_too_many_files_is_refused(tmp_path):
    """A large file has a region of its own, and one name keeps only so many regions."""
    for number in range(1025):
        with open(tmp_path / str(number), "wb") as file:
            file.truncate(65_536)
    assert_refused(lambda: tmesh.keep_folder(tmp_path, "x"), tmesh.LimitError, "files of 64 KiB")
    assert names() == []


def test_a_folder_is_kept_whole_or_not_at_all(tmp_path):
    assert_refused(lambda: tmesh.keep_folder(tmp_path, "x"), tmesh.InvalidError, "no files")
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert_refused(lambda: tmesh.keep_folder(tmp_path, "x", progress=lambda done, total: 1 / 0), ZeroDivisionError)
    with pytest.raises(tmesh.StaleError, match="changed"):
        tmesh.keep_folder(tmp_path, "x", progress=lambda done, total: (tmp_path / "file").write_bytes(b"y"))
    (tmp_path / "self").symlink_to(".")
    assert_refused(lambda: tmesh.keep_folder(tmp_path, "x"), tmesh.InvalidError, "link to a folder")
    assert_refused(lambda: tmesh.keep_folder(tmp_path / "file", "x", mode=0o666), tmesh.InvalidError, "0644")
    assert_refused(lambda: tmesh.keep_folder(tmp_path, 5), TypeError)
    assert names() == []
