# SPDX-License-Identifier: MIT
"""Files of tensors: tmesh.load_model(), and tmesh.safetensors beside the package safetensors."""

import copy
import gc
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest

import tmesh
import tmesh.safetensors
import tmesh.safetensors.numpy as ours_numpy
from conftest import assert_refused, pytorch

try:
    tmesh._tmesh.parse_model(b"\2\0\0\0\0\0\0\0{}")
    LEFT_OUT = ""
except tmesh.UnsupportedError as error:
    LEFT_OUT = str(error)

pytestmark = pytest.mark.skipif(bool(LEFT_OUT), reason=LEFT_OUT)

ARRAYS = {
    "w": np.arange(6, dtype="float32").reshape(2, 3), "scalar": np.array(5), "empty": np.empty((0, 3), "float32"),
    "bytes": np.arange(3, dtype="uint8"), "flags": np.array([True, False]), "half": np.ones((2, 2, 2), "float16"),
    "wide": np.arange(24, dtype="float64").reshape(2, 3, 4), "small": np.arange(-2, 2, dtype="int16"),
}


def same(one, other):
    assert set(one) == set(other)
    for name in one:
        assert one[name].dtype == other[name].dtype and one[name].shape == other[name].shape
        assert one[name].tolist() == other[name].tolist()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    ours_numpy.save_file(ARRAYS, path, {"format": "pt", "who": "a test"})
    return path


@pytest.fixture
def big(tmp_path):
    """32 MiB, more than a process has by chance."""
    path = tmp_path / "big.safetensors"
    ours_numpy.save_file({"w": np.ones(8 << 20, "float32"), "b": np.arange(4, dtype="float32")}, path)
    return path


@pytest.fixture
def torch():
    return pytorch()


@pytest.fixture
def theirs(torch):
    pytest.importorskip("safetensors", reason="the package safetensors is not installed: make python-model-check")
    import safetensors.numpy
    import safetensors.torch
    return safetensors


def anonymous_kib():
    with open("/proc/self/smaps_rollup") as smaps:
        return next(int(line.split()[1]) for line in smaps if line.startswith("Anonymous"))


# tmesh.load_model()

def test_a_mapping_of_tensors(file):
    model = tmesh.load_model(file)
    assert len(model) == len(ARRAYS) and set(model) == set(ARRAYS) and "w" in model and "v" not in model
    assert model["w"].sealed and model["w"].numpy().tolist() == ARRAYS["w"].tolist()
    assert model.metadata == {"format": "pt", "who": "a test"}
    assert model.entries["half"].type == "F16" and model.entries["half"].shape == (2, 2, 2)
    report = model.report
    assert report["format"] == "safetensors" and report["shared"] and report["method"] and report["reason"]
    assert report["bytes_read"] == sum(array.nbytes for array in ARRAYS.values()) and report["hash"] is None
    assert "w" in repr(model) and model.nbytes == report["bytes_read"]
    assert_refused(lambda: model["v"], KeyError)


def test_it_goes_wherever_values_go(file):
    def made():
        with tmesh.load_model(file) as model:
            return model["w"], model.private()["w"]

    shared, mine = made()
    mine.numpy()[0, 0] = 7
    assert shared.numpy()[0, 0] == 0 and mine.numpy()[0, 0] == 7
    model = tmesh.load_model(file)
    assert tmesh.open(model.ref())["w"].numpy().tolist() == ARRAYS["w"].tolist()
    assert isinstance(pickle.loads(pickle.dumps(model)), tmesh.Bundle)
    copies = tmesh.stats()["copies"]
    for copied in copy.copy(model), copy.deepcopy({"model": model})["model"]:
        assert type(copied) is tmesh.Bundle and copied["w"].id == model["w"].id
    assert tmesh.stats()["copies"] == copies
    assert "released" not in repr(model)
    model.release()
    assert repr(model) == "<tmesh.Model, released>"
    assert_refused(lambda: model["w"], tmesh.ReleasedError)


def test_one_read_for_all_as_long_as_a_tensor_lives(big, peer, torch):
    """The tensor alone, in a program that has closed its file."""
    held = tmesh.load_model(big).state_dict()["b"]
    gc.collect()
    other = peer("import sys, tmesh; m = tmesh.load_model(sys.argv[1]); "
                 "print(m.report['bytes_read'], m['b'].id, m['b'].numpy().tolist())", str(big))
    assert other.stdout.readline().split(None, 2)[0] == "0"
    del held
    gc.collect()
    folder = os.environ["TMESH_RUNTIME_DIR"]
    assert other.wait(600) == 0
    assert not [name for name in os.listdir(folder) if name.endswith(".shared")]
    with tmesh.load_model(big) as model:
        assert model.report["bytes_read"]


def test_one_copy(big, peer, torch):
    """Addresses differ, but the memory is the same: no page is anonymous until it is written."""
    program = """
import sys, tmesh
def anonymous():
    with open("/proc/self/smaps_rollup") as smaps:
        return next(int(line.split()[1]) for line in smaps if line.startswith("Anonymous"))
import torch
torch.ones(10).sum()
before = anonymous()
weights = tmesh.load_model(sys.argv[1])
state = weights.state_dict()
print(state["w"].sum().item(), anonymous() - before < 8192, weights.report["bytes_read"], weights["w"].id, flush=True)
input()
state["w"][0] = 50
print(state["w"][:2].tolist(), anonymous() - before < 8192, flush=True)
input()
print(state["b"].tolist(), flush=True)
"""
    one, two = peer(program, str(big)), peer(program, str(big))
    first, second = one.stdout.readline().split(), two.stdout.readline().split()
    assert first[:2] == second[:2] == [str(float(8 << 20)), "True"]
    assert sorted((first[2], second[2]))[0] == "0" and first[3] == second[3]
    one.stdin.write("\n")
    one.stdin.flush()
    assert one.stdout.readline().strip() == "[50.0, 1.0] True"
    with tmesh.load_model(big) as mine:
        assert mine.report["bytes_read"] == 0 and mine["w"].numpy()[0] == 1
    two.stdin.write("\n")
    two.stdin.flush()
    assert two.stdout.readline().strip() == "[50.0, 1.0] True"


REPLICA = """
import sys, torch, tmesh
from test_model import network, weights_of
torch.set_num_threads(1)
model = network(torch)
state = tmesh.load_model(sys.argv[1]).state_dict()
for name, part in model.named_modules():
    for key in [key for key, one in part._parameters.items() if one is not None]:
        part._parameters[key] = torch.nn.Parameter(state[f"{name}.{key}"], requires_grad=False)
with torch.no_grad():
    said = model(torch.linspace(-1, 1, 2048).reshape(1, 8, 256))
places = [one.data_ptr() for one in model.parameters()]
print(said.double().sum().item(), said.double().abs().sum().item(), flush=True)
input()
print(*weights_of(places), flush=True)
input()
"""


def network(torch):
    """72 tensors, 12.6 MB."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 6).eval()


def weights_of(places):
    """Return Pss and Anonymous in KiB of the mappings that contain @places, and the number of @places in them."""
    found, inside = {"Pss": 0, "Anonymous": 0}, False
    count = 0
    with open("/proc/self/smaps") as maps:
        for line in maps:
            words = line.split()
            if "-" in words[0]:
                low, high = (int(word, 16) for word in words[0].split("-"))
                here = sum(low <= place < high for place in places)
                inside, count = here > 0, count + here
            elif inside and words[0][:-1] in found:
                found[words[0][:-1]] += int(words[1])
    return found["Pss"], found["Anonymous"], count


def test_ten_replicas_have_one_copy(tmp_path, peer, torch, monkeypatch):
    """Ten processes with the model in PyTorch, each of which has computed an answer, share its bytes once."""
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    torch.manual_seed(3)
    model = network(torch)
    path = tmp_path / "model.safetensors"
    import tmesh.safetensors.torch as ours_torch
    ours_torch.save_file(model.state_dict(), path)
    with torch.no_grad():
        said = model(torch.linspace(-1, 1, 2048).reshape(1, 8, 256)).double()
    replicas = [peer(REPLICA, str(path)) for _ in range(10)]
    answers = [[float(word) for word in one.stdout.readline().split()] for one in replicas]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == pytest.approx([said.sum().item(), said.abs().sum().item()], rel=1e-3, abs=1e-2)
    shares = []
    for one in replicas:
        one.stdin.write("\n")
        one.stdin.flush()
        shares.append([int(word) for word in one.stdout.readline().split()])
    count, whole = len(list(model.parameters())), sum(4 * one.numel() for one in model.parameters()) / 1024
    assert all(share[1:] == [0, count] for share in shares), shares
    assert 0.98 * whole < sum(share[0] for share in shares) < 1.02 * whole + 10 * 8, (shares, whole)


@pytest.mark.parametrize("harm", [lambda path: os.truncate(path, 100), os.unlink,
                                  lambda path: path.write_bytes(b"\0" * path.stat().st_size)],
                         ids=["truncated", "removed", "overwritten"])
def test_what_happens_to_the_file_later_changes_nothing(big, harm):
    array = ours_numpy.load_file(big)["w"]
    harm(big)
    assert array.sum() == 8 << 20 and array[-1] == 1
    if big.exists():
        assert_refused(lambda: ours_numpy.load_file(big), tmesh.safetensors.SafetensorError)


def test_progress_and_what_it_raises(big):
    seen = []
    with tmesh.load_model(big, progress=lambda *said: seen.append(said)):
        assert seen[-1][0] == seen[-1][1] == (32 << 20) + 16 and seen[-1][2] is False

    def stop(*said):
        raise KeyError("enough")

    assert_refused(lambda: tmesh.load_model(big, progress=stop), KeyError, "enough")
    assert not [name for name in os.listdir(os.environ["TMESH_RUNTIME_DIR"]) if name.endswith(".shared")]


def test_ctrl_c_ends_the_wait_for_another_reader(big, peer):
    reader = peer("import os, signal, sys, tmesh\n"
                  "def stop(*said):\n    print(flush=True)\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
                  "tmesh.load_model(sys.argv[1], progress=stop)\n", str(big))
    reader.stdout.readline()
    # Shells start background jobs with SIGINT ignored, which the child would inherit.
    waiter = peer("import signal, sys, tmesh\nsignal.signal(signal.SIGINT, signal.default_int_handler)\ntry:\n    tmesh.load_model(sys.argv[1])\n"
                  "except KeyboardInterrupt:\n    print('ended')\n", str(big))
    while not any(name.endswith(".shared") for name in open_files(waiter.pid)):
        assert waiter.poll() is None
    waiter.send_signal(signal.SIGINT)
    assert waiter.communicate(timeout=600)[0] == "ended\n"


def test_a_signal_ends_the_reading_of_a_header(tmp_path):
    """It is heard long before the malformed end."""
    index = tmp_path / "long.index.json"
    index.write_text('{"weight_map":{' + "".join(f'"layer.{i}":"{i}.safetensors",' for i in range(400_000)))

    def stop(*_):
        raise KeyError("enough")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(KeyError, match="enough"):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            tmesh.describe_model(index)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert_refused(lambda: tmesh.describe_model(index), tmesh.ProtocolError, "not JSON")


def open_files(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue


def test_a_child_of_fork_takes_nothing_along(big):
    model = tmesh.load_model(big)
    pid = os.fork()
    if not pid:
        del model
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    done = subprocess.run([sys.executable, "-c", "import sys, tmesh\n"
                           "print(tmesh.load_model(sys.argv[1]).report['bytes_read'])", big],
                          capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr
    assert model["w"].numpy()[5] == 1


def test_alone_and_hash(file):
    with tmesh.load_model(file, alone=True, hash=True) as one, tmesh.load_model(file, hash=True) as other:
        assert not one.report["shared"] and one["w"].id != other["w"].id
        assert one.report["hash"] == other.report["hash"] and len(one.report["hash"]) == 32
    assert_refused(lambda: tmesh.load_model(file, alone=True, keep=True), tmesh.InvalidError, "alone and keep exclude")


def test_bad_files(tmp_path):
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\5\0\0\0\0\0\0\0abcde")
    assert_refused(lambda: tmesh.load_model(bad), tmesh.ProtocolError, "does not begin with")
    assert_refused(lambda: tmesh.load_model(tmp_path / "nothing"), FileNotFoundError, "nothing")
    assert_refused(lambda: tmesh.load_model(5), TypeError)


def test_threads(big):
    """The GIL is free while a file is read, and threads share one load."""
    ids = []

    def load():
        with tmesh.load_model(big) as model:
            ids.append(model["w"].id)
            barrier.wait(600)

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 4 and len(set(ids)) == 1


def test_types_that_numpy_has_not(tmp_path, torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    header = json.dumps({"b": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
                         "f": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [4, 6]}}).encode()
    path = tmp_path / "types.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\x80\x3f\0\x40\x38\x40")
    with tmesh.safetensors.safe_open(path, "pt") as file:
        assert file.get_tensor("b").tolist() == [1, 2] and file.get_tensor("b").dtype == torch.bfloat16
        assert file.get_slice("f").get_dtype() == "F8_E4M3"
        if hasattr(torch, "float8_e4m3fn"):
            assert file.get_tensor("f").float().tolist() == [1, 2]
        else:
            assert_refused(lambda: file.get_tensor("f"), tmesh.UnsupportedError, "float8_e4m3fn")
    with tmesh.safetensors.safe_open(path, "np") as file, pytest.raises(TypeError, match="BF16"):
        file.get_tensor("b")
    assert_refused(lambda: ours_numpy.load(path.read_bytes()), KeyError, "BF16")


# tmesh.safetensors beside safetensors

def outcome(call):
    """Return a value as plain data, or the family of its exception."""
    try:
        value = call()
    except (Exception, SystemExit) as error:
        kinds = [kind for kind in type(error).__mro__ if kind.__module__ == "builtins" or "Safetensor" in kind.__name__]
        return next(kind.__name__ for kind in kinds)
    if hasattr(value, "dtype"):
        return str(value.dtype), tuple(value.shape), value.tolist()
    return value


QUESTIONS = [
    "f.keys()", "f.offset_keys()", "f.metadata()", "f.get_tensor('w')", "f.get_tensor('scalar')",
    "f.get_tensor('empty')", "f.get_tensor('flags')", "f.get_tensor('no')", "f.get_slice('no')",
    "f.get_slice('w').get_shape()", "f.get_slice('w').get_dtype()", "f.get_slice('flags').get_dtype()",
    *(f"f.get_slice('wide')[{index}]" for index in (
        ":", "...", "0", "-1", ":, 1", ":, ::2", "1:, :2", "0, 1, 2", "..., 1", "5", "0, 0, 0, 0", "::-1", "None", "'x'",
        "[0, 1]", "1:2, ..., 2:4")),
    "f.get_slice('scalar')[...]", "f.get_slice('scalar')[:]", "f.get_slice('scalar')[0]",
    "[*f.get_tensors()]", "f.__enter__() is f", "f.__exit__(None, None, None)", "f.keys()", "f.get_tensor('w')",
]


@pytest.mark.parametrize("device", ["cpu", None])
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_safe_open_behaves_as_theirs(file, theirs, framework, device):
    answers = []
    for kind in (theirs.safe_open, tmesh.safetensors.safe_open):
        f = kind(file, framework=framework, device=device)
        answers.append([(question, outcome(lambda: eval(question, {"f": f}))) for question in QUESTIONS])
    assert answers[0] == answers[1]


def rights_at(address):
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights, *_ = line.split()
            first, end = (int(word, 16) for word in span.split("-"))
            if first <= address < end:
                return rights
    return None


def test_a_device_gets_copies_from_a_mapping_for_reading(file, torch, monkeypatch):
    """A copy from a writable private mapping copies its pages first, on unified memory."""
    seen = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_: seen.append(rights_at(self.data_ptr())) or self.clone())
    with tmesh.safetensors.safe_open(file, "pt", device="meta") as opened:
        assert opened.get_tensor("w").tolist() == ARRAYS["w"].tolist()
        assert opened.get_slice("wide")[1:].tolist() == ARRAYS["wide"][1:].tolist()
        assert set(opened.get_tensors()) == set(ARRAYS)
    assert len(seen) == 2 + len(ARRAYS)
    assert {rights[:2] for rights in seen if rights} == {"r-"}, seen


@pytest.mark.parametrize("arguments", [("no/such/file", "pt"), ("here", "cobol"), ("here", "np", "cuda"), ("here",),
                                       ("here", "pt", "zork"), ("broken", "pt"), ("folder", "np"), ("short", "np")],
                         ids=str)
def test_what_safe_open_refuses_as_theirs(file, theirs, tmp_path, arguments):
    for name, data in (("broken", b"\5\0\0\0\0\0\0\0abcde"), ("short", file.read_bytes()[:-1])):
        (tmp_path / name).write_bytes(data)
    paths = {"here": file, "folder": tmp_path}
    arguments = (paths.get(arguments[0], tmp_path / arguments[0]), *arguments[1:])
    mine, their = (outcome(lambda: kind(*arguments)) for kind in (tmesh.safetensors.safe_open, theirs.safe_open))
    assert their == mine or (their, mine) == ("OSError", "IsADirectoryError")


def test_a_slice_outlives_its_file(file, theirs):
    for kind in (theirs.safe_open, tmesh.safetensors.safe_open):
        with kind(file, "np") as f:
            part = f.get_slice("w")
        assert part[1:].tolist() == [[3, 4, 5]]


def test_numpy_files_are_theirs_to_the_byte(theirs, tmp_path):
    import safetensors.numpy as their_numpy
    for metadata in (None, {}, {"ü": "é\n\""}, {"a": "b", "c": "d"}):
        data = their_numpy.save(ARRAYS, metadata)
        if metadata is None or len(metadata) < 2:  # their header may have more entries, in any order
            assert ours_numpy.save(ARRAYS, metadata) == data
        same(ours_numpy.load(data), their_numpy.load(data))
        same(their_numpy.load(ours_numpy.save(ARRAYS, metadata)), their_numpy.load(data))
    ours_numpy.save_file(ARRAYS, tmp_path / "file", {"a": "b"})
    assert os.stat(tmp_path / "file").st_mode & 0o777 == 0o600 and os.listdir(tmp_path) == ["file"]
    same(their_numpy.load_file(tmp_path / "file"), ours_numpy.load_file(tmp_path / "file"))
    array = ours_numpy.load_file(tmp_path / "file")["w"]
    array += 1  # as theirs does


@pytest.mark.parametrize("tensors", [{"x": [1]}, [1], {1: np.zeros(2)}, {"x": np.zeros(2, "complex128")}, {}], ids=str)
def test_what_numpy_refuses_as_theirs(theirs, tensors):
    import safetensors.numpy as their_numpy
    assert outcome(lambda: ours_numpy.save(tensors)) == outcome(lambda: their_numpy.save(tensors))
    assert outcome(lambda: ours_numpy.save({}, {"a": 1})) == outcome(lambda: their_numpy.save({}, {"a": 1}))
    assert outcome(lambda: ours_numpy.load(b"xx")) == outcome(lambda: their_numpy.load(b"xx")) == "SafetensorError"


def test_tensors_are_saved_as_they_are(tmp_path):
    """Also values of load_model(), types that NumPy lacks, and tensors that are not contiguous."""
    array = np.arange(6, dtype="float32").reshape(2, 3)
    wide = tmesh.put(array)
    half = tmesh.put(array.view("uint16")).view("bfloat16")
    made = {"a": wide, "t": wide[:, ::2], "h": half, "e": tmesh.put(np.zeros((0, 2))),
            "s": tmesh.put(np.array(3)), "n": array}
    ours_numpy.save_file(made, tmp_path / "file")
    found = tmesh.load_model(tmp_path / "file")
    assert {name: (one.dtype, one.shape) for name, one in found.items()} == {
        name: ("float32" if name == "n" else one.dtype, one.shape) for name, one in made.items()}
    for name in "aets":
        assert found[name].tolist() == made[name].tolist()
    assert bytes(found["h"].view("uint8").reshape(-1)) == bytes(half.view("uint8").reshape(-1))
    ours_numpy.save_file(dict(found), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()
    with pytest.raises(AttributeError, match="'x' is a NumPy array or a tmesh.Tensor, not list: take"):
        ours_numpy.save({"x": [1.0]})
    assert_refused(lambda: ours_numpy.save([array]), AttributeError, "a dict of names and arrays, not list")
    with pytest.raises(tmesh.safetensors.SafetensorError, match="Unknown dtype 'int4' of 'x'"):
        ours_numpy.save({"x": tmesh.empty(2, "int4")})


def test_arrays_in_any_order():
    """Their function writes the bytes in memory order; ours writes elements."""
    array = np.arange(6).reshape(2, 3)
    for each in (array.T, array[:, ::2], array.astype(">i8")):
        assert ours_numpy.load(ours_numpy.save({"x": each}))["x"].tolist() == each.tolist()


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    assert_refused(lambda: ours_numpy.save_file(ARRAYS, tmp_path / "no" / "file"), tmesh.safetensors.SafetensorError)
    (tmp_path / "folder").mkdir()
    assert_refused(lambda: ours_numpy.save_file(ARRAYS, tmp_path / "folder"), tmesh.safetensors.SafetensorError)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_pipe_stays_a_pipe(tmp_path):
    """A rename over a pipe, or over /dev/null, would replace it by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    ours_numpy.save_file(ARRAYS, pipe)
    assert pipe.is_fifo()
    reader.join()
    same(ours_numpy.load(got[0]), ARRAYS)


def torch_tensors(torch):
    return {"w": torch.arange(6.).reshape(2, 3), "b": torch.tensor([True, False]), "s": torch.tensor(3),
            "h": torch.ones(3, dtype=torch.bfloat16), "e": torch.empty(0, 2), "f": torch.ones(2, dtype=torch.float16)}


def test_torch_files_are_theirs_to_the_byte(theirs, torch, tmp_path):
    import safetensors.torch as their_torch
    import tmesh.safetensors.torch as ours_torch
    tensors = torch_tensors(torch)
    data = their_torch.save(tensors, {"format": "pt"})
    assert ours_torch.save(tensors, {"format": "pt"}) == data
    ours_torch.save_file(tensors, tmp_path / "file", {"format": "pt"})
    assert (tmp_path / "file").read_bytes() == data
    for found in (ours_torch.load(data), ours_torch.load_file(tmp_path / "file"),
                  ours_torch.load_file(str(tmp_path / "file"), device="cpu")):
        same(found, their_torch.load(data))
        found["w"].mul_(2)
    same(ours_torch.load_file(tmp_path / "file"), their_torch.load_file(tmp_path / "file"))


def test_what_torch_refuses_as_theirs(theirs, torch):
    import safetensors.torch as their_torch
    import tmesh.safetensors.torch as ours_torch
    t = torch.ones(4, 4)
    for tensors in ([t], {"x": 1}, {"x": t.T[:2]}, {"x": t.to_sparse()}, {"x": t, "y": t}, {"x": t, "y": t[1:]},
                    {"x": torch.ones(1, dtype=torch.complex128)}):
        answers = [outcome(lambda: face.save(tensors)) for face in (ours_torch, their_torch)]
        assert answers[0] == answers[1] or "complex128" in str(tensors)
        assert isinstance(answers[0], str)


class Modules:
    """Modules whose tensors share memory, or do not; new at each call."""

    def __init__(self, torch):
        self.torch = torch

    def plain(self):
        return self.torch.nn.Linear(3, 2)

    def tied(self):
        module = self.torch.nn.Sequential(*(self.torch.nn.Linear(size, size) for size in (4, 4, 2)))
        module[1].weight = module[0].weight
        return module

    def parts(self):
        """Two tensors that each overlap with one of the whole storage, but not with each other."""
        module = self.torch.nn.Module()
        whole = self.torch.arange(12.)
        for name, part in ("whole", whole), ("begin", whole[:4]), ("end", whole[6:]):
            module.register_buffer(name, part)
        return module

    def apart(self):
        """Both halves of a storage, without a tensor of the whole."""
        module = self.torch.nn.Module()
        whole = self.torch.arange(8.)
        module.register_buffer("left", whole[:4])
        module.register_buffer("right", whole[4:])
        return module

    def turned(self):
        module = self.torch.nn.Module()
        module.register_buffer("t", self.torch.arange(6.).reshape(2, 3).T)
        return module


@pytest.mark.parametrize("kind", ["plain", "tied", "parts", "apart", "turned"])
def test_modules_as_theirs(theirs, torch, tmp_path, kind):
    """Compare save_model() and load_model() with theirs: the file, refusals, and the module afterwards."""
    import safetensors.torch as their_torch
    import tmesh.safetensors.torch as ours_torch
    make = getattr(Modules(torch), kind)
    torch.manual_seed(1)
    module, said = make(), []
    for face in ours_torch, their_torch:
        path = tmp_path / face.__name__
        told = [outcome(lambda: face.save_model(module, path, *more))
                for more in ((), ({"0.weight": "mine"},), ({"a": "b"}, False))]
        if path.exists():
            with theirs.safe_open(path, "pt") as file:
                told.append((file.metadata(), {name: file.get_tensor(name).tolist() for name in file.keys()}))
        said.append(told)
    assert said[0] == said[1]
    for face in ours_torch, their_torch:
        for path in tmp_path.iterdir():
            fresh = make()
            assert face.load_model(fresh, path) == (set(), [])
            assert all(torch.equal(value, module.state_dict()[name]) for name, value in fresh.state_dict().items())


def test_what_load_model_misses_as_theirs(theirs, torch, tmp_path):
    import safetensors.torch as their_torch
    import tmesh.safetensors.torch as ours_torch
    modules, path = Modules(torch), tmp_path / "file"
    wholes = {"1.weight": torch.ones(4, 4), "0.bias": torch.ones(4), "1.bias": torch.ones(4), "2.bias": torch.ones(2)}
    for state in (wholes, {**wholes, "more": torch.ones(1)}, {**wholes, "0.weight": torch.zeros(4, 4)}, {}):
        their_torch.save_file(state, path)
        answers = []
        for face in ours_torch, their_torch:
            missing, unexpected = face.load_model(modules.tied(), path, strict=False)
            answers.append((sorted(missing), sorted(unexpected)))
            with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for Sequential") as caught:
                face.load_model(modules.tied(), path)
            answers[-1] += (str(caught.value),)
        assert answers[0] == answers[1]


def test_names_of_one_memory_as_theirs(theirs, torch):
    import safetensors.torch as their_torch
    import tmesh.safetensors.torch as ours_torch
    modules = Modules(torch)
    for state in modules.tied().state_dict(), modules.parts().state_dict(), {"m": torch.empty(3, device="meta")}:
        for more in ({}, {"preferred_names": ["1.weight", "end"]}, {"discard_names": ["0.weight", "whole"]},
                     {"preferred_names": ["0.weight"], "discard_names": ["0.weight"]}):
            assert (ours_torch._remove_duplicate_names(state, **more)
                    == dict(their_torch._remove_duplicate_names(state, **more)))


# The advantages of own memory over a mapped file.

LOADED = """
import os, sys
if sys.argv[2] == "theirs":
    from safetensors.torch import load_file
else:
    from tmesh.safetensors.torch import load_file
weights = load_file(sys.argv[1])["w"]
"""


def after(program, path, who):
    return subprocess.run([sys.executable, "-c", LOADED + program, path, who], capture_output=True, text=True)


def test_a_file_that_is_truncated_under_a_model(theirs, tmp_path):
    program = "os.truncate(sys.argv[1], 4096)\nprint(weights[-1].item())"
    results = []
    for who in "theirs", "ours":
        ours_numpy.save_file({"w": np.ones(8 << 20, "float32")}, tmp_path / who)
        results.append(after(program, tmp_path / who, who))
    assert results[0].returncode == -signal.SIGBUS
    assert (results[1].returncode, results[1].stdout) == (0, "1.0\n"), results[1].stderr


def test_a_file_that_is_overwritten_under_a_model(theirs, tmp_path):
    program = ("size = os.path.getsize(sys.argv[1])\nos.truncate(sys.argv[1], 4096)\nos.truncate(sys.argv[1], size)\n"
               "print(weights[-1].item())")
    results = []
    for who in "theirs", "ours":
        ours_numpy.save_file({"w": np.ones(8 << 20, "float32")}, tmp_path / who)
        results.append(after(program, tmp_path / who, who).stdout)
    assert results == ["0.0\n", "1.0\n"]


def test_a_page_cache_that_is_dropped_under_a_model(theirs, tmp_path):
    """Their function reads untouched pages from the disk again; ours reads nothing."""
    # Count reads of the file alone: in all a process also reads code that the machine has dropped.
    program = """
import ctypes, mmap, numpy
file = os.open(sys.argv[1], os.O_RDONLY)
mapping = mmap.mmap(file, 0, prot=mmap.PROT_READ)
address = numpy.frombuffer(mapping, "uint8").ctypes.data
def cached():
    pages = (ctypes.c_ubyte * -(-len(mapping) // mmap.PAGESIZE))()
    assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)), pages)
    return mmap.PAGESIZE * sum(page & 1 for page in pages)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
before = cached()
assert weights.sum().item() == 8 << 20
print(cached() - before)
"""
    results = []
    for who in "theirs", "ours":
        ours_numpy.save_file({"w": np.ones(8 << 20, "float32")}, tmp_path / who)
        with open(tmp_path / who, "rb") as file:
            os.fsync(file.fileno())
        done = after(program, tmp_path / who, who)
        assert not done.returncode, done.stderr
        results.append(int(done.stdout))
    if not results[0]:
        pytest.skip("this file system has no disk below its page cache")
    assert results[0] >= 16 << 20 and results[1] == 0


def test_a_state_dict_after_all_are_killed(torch, peer, tmp_path):
    if not os.path.exists(os.environ.get("TMESH_KEEPER", "")) and tmesh.backend() != "kernel":
        pytest.skip("TMESH_KEEPER does not name the keeper")
    path = tmp_path / "model.safetensors"
    made = {f"layer.{i:03}": np.random.default_rng(i).random((40, 50), "float32") for i in range(300)}
    ours_numpy.save_file(made, path)
    program = ("import sys, tmesh\nmodel = tmesh.load_model(sys.argv[1], keep=True)\nheld = model.state_dict()\n"
               "print(model.report['kept'], flush=True)\nsys.stdin.read()\n")
    all_of_them = [peer(program, str(path)) for _ in range(3)]
    kept = {process.stdout.readline().strip() for process in all_of_them}
    for process in all_of_them:
        process.kill()
        process.wait()
    try:
        with tmesh.load_model(path) as model:
            assert model.report["bytes_read"] == 0
            found = model.state_dict()
            assert [*found] == [*made]
            assert all(torch.equal(found[name], torch.from_dlpack(made[name])) for name in made)
        assert len(kept) == 1
    finally:
        del model, found
        gc.collect()
        for name in kept:
            tmesh.drop(name)


def test_two_of_one_name_are_of_one_memory(file, theirs):
    for kind in (theirs.safe_open, tmesh.safetensors.safe_open):
        with kind(file, "pt") as f:
            one, other = f.get_tensor("w"), f.get_tensor("w")
        one[0, 0] = 9
        assert other[0, 0] == 9
        with kind(file, "pt") as f:
            assert f.get_tensor("w")[0, 0] == 0


def test_install(file, theirs, torch):
    """Programs may have imported it under any name."""
    import safetensors.torch as their_torch
    import types
    program = types.ModuleType("a_program")
    original = program.open_it = theirs.safe_open
    sys.modules["a_program"] = program
    sys.modules["an_object"] = object()  # some packages put an object in the place of a module
    try:
        tmesh.safetensors.install()
        tmesh.safetensors.install()
        assert program.open_it is theirs.safe_open is their_torch.safe_open is tmesh.safetensors.safe_open
        before = tmesh.stats()["regions_live"]
        found = their_torch.load_file(file)
        assert tmesh.stats()["regions_live"] > before
        module = torch.nn.Linear(3, 2, bias=False)
        module.load_state_dict({"weight": found["w"]})
        os.truncate(file, 10)
        assert found["w"].tolist() == ARRAYS["w"].tolist() == module.weight.tolist()
    finally:
        tmesh.safetensors.uninstall()
        del sys.modules["a_program"], sys.modules["an_object"]
    assert program.open_it is theirs.safe_open is their_torch.safe_open is original
    tmesh.safetensors.uninstall()


def test_lenient(tmp_path):
    """A lenient load accepts refused files, and its report names the reason. A strict load still refuses them
    afterwards."""
    behind, gguf = tmp_path / "behind.safetensors", tmp_path / "old.gguf"
    ours_numpy.save_file({"w": np.arange(6, dtype="float32")}, behind)
    behind.write_bytes(behind.read_bytes() + b"more")
    name, data = b"w", np.arange(8, dtype="<f4").tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 2, 1, 0) + struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 8, 0, 0)
    gguf.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    for path, why, strict in (behind, "bytes behind the last tensor", tmesh.ProtocolError), (gguf, "version 2", tmesh.UnsupportedError):
        for _ in range(2):
            assert_refused(lambda: tmesh.load_model(path), strict)
            with tmesh.load_model(path, lenient=True) as model:
                assert why in model.report["reason"] and model["w"].numpy()[5] == 5
                assert_refused(lambda: tmesh.load_model(path), strict)
    gguf.write_bytes(gguf.read_bytes().replace(struct.pack("<I", 2), struct.pack("<I", 1), 1))
    assert_refused(lambda: tmesh.load_model(gguf, lenient=True), tmesh.UnsupportedError, "version 1")
    index = tmp_path / "index.json"
    ours_numpy.save_file({"a": np.ones(3), "b": np.zeros(2)}, tmp_path / "one.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    assert_refused(lambda: tmesh.load_model(index), tmesh.ProtocolError, "does not name")
    with tmesh.load_model(index, lenient=True) as model:
        assert "the index does not name" in model.report["reason"] and sorted(model) == ["a", "b"]
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "c": "one.safetensors"}}))
    assert_refused(lambda: tmesh.load_model(index, lenient=True), tmesh.ProtocolError, "lacks it")
