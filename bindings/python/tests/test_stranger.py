# SPDX-License-Identifier: MIT
"""A newcomer's first programs: tensors returned from functions, pools and "with", printed, pickled."""

import array
import concurrent.futures
import copy
import gc
import json
import multiprocessing
from multiprocessing.reduction import ForkingPickler
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import tmesh
import tmesh.in_transit
from tmesh import _tmesh
from conftest import EMULATED, assert_refused, pytorch

PATIENCE = 600


@pytest.fixture(autouse=True)
def begin_anew():
    """Wait until sent tensors were taken or dropped, and reset this process's own state."""
    yield
    gc.collect()
    tmesh.in_transit.here = _tmesh.InTransit()


@pytest.fixture(params=["fork"] if EMULATED else ["fork", "spawn"])
def processes(request):
    return multiprocessing.get_context(request.param)


def make(number):
    """Return the only reference to a new tensor."""
    return tmesh.put(np.full(1000, number))


def total(tensor):
    return int(tensor.numpy().sum())


def make_and_put(queue):
    queue.put(make(7))


def make_and_send(end):
    end.send(make(8))
    end.close()


def test_from_a_function():
    assert total(make(2)) == 2000
    array = make(3).numpy()
    assert array.sum() == 3000


def test_pool(processes):
    with processes.Pool(2) as pool:
        made = pool.map(make, range(5))
        assert [total(t) for t in made] == [0, 1000, 2000, 3000, 4000]
        assert pool.map(total, [make(number) for number in range(5)]) == [0, 1000, 2000, 3000, 4000]
    # The workers are gone, the tensors are not. They are sealed as at the workers.
    assert [t[999].item() for t in made] == [0, 1, 2, 3, 4] and made[0].sealed


def test_futures(processes):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=processes) as pool:
        assert [total(t) for t in pool.map(make, range(3))] == [0, 1000, 2000]
        assert pool.submit(total, make(4)).result(PATIENCE) == 4000


def test_queue_pipe_and_argument(processes):
    queue = processes.Queue()
    worker = processes.Process(target=make_and_put, args=(queue,))
    worker.start()
    taken = queue.get(timeout=PATIENCE)
    worker.join(PATIENCE)
    assert worker.exitcode == 0 and total(taken) == 7000
    here, there = processes.Pipe()
    worker = processes.Process(target=make_and_send, args=(there,))
    worker.start()
    taken = here.recv()
    worker.join(PATIENCE)
    assert worker.exitcode == 0 and total(taken) == 8000
    worker = processes.Process(target=total, args=(make(1),))
    worker.start()
    worker.join(PATIENCE)
    assert worker.exitcode == 0


class Slow:
    """The queue's thread pickles it when the process is already at its end."""

    def __reduce__(self):
        time.sleep(0.2)
        return total_of, (make(9),)


def total_of(tensor):
    return total(tensor)


def put_slow(queue):
    queue.put(Slow())


def test_sent_by_a_process_at_its_end():
    processes = multiprocessing.get_context("fork")
    queue = processes.Queue()
    worker = processes.Process(target=put_slow, args=(queue,))
    worker.start()
    worker.join(0.7)  # longer than a send takes
    assert queue.get(timeout=PATIENCE) == 9000
    worker.join(PATIENCE)
    assert worker.exitcode == 0


def make_and_put_briefly(queue):
    """It waits no longer for a receiver."""
    tmesh.in_transit.PATIENCE = 0.1
    make_and_put(queue)


def test_taken_too_late():
    """The sender waits at its end, but not forever. Then it prints the remedy."""
    processes = multiprocessing.get_context("fork")
    queue = processes.Queue()
    worker = processes.Process(target=make_and_put_briefly, args=(queue,))
    worker.start()
    worker.join(PATIENCE)
    if tmesh.backend() == "kernel":
        pytest.skip("the module keeps nothing longer either, but when a process's memory goes is the kernel's")
    lost = queue.get(timeout=PATIENCE)
    assert lost.lost and not lost.released and repr(lost) == "<tmesh.Tensor, lost>"
    for use in (lambda: lost.shape, lost.numpy, lost.ref, lost.dlpack, lambda: memoryview(lost), lambda: lost[0],
                lambda: np.asarray(lost), lambda: copy.deepcopy(lost), lambda: tmesh.put(lost), lambda: len(lost)):
        assert_refused(use, tmesh.NotFoundError, r"call get\(\) before join\(\)")
    again = pickle.loads(ForkingPickler.dumps(pickle.loads(pickle.dumps(lost))))
    assert_refused(again.tolist, tmesh.NotFoundError, r"call get\(\) before join\(\)")
    lost.release()
    assert_refused(lambda: lost.shape, tmesh.ReleasedError)
    assert lost.released


def test_held_until_it_is_taken():
    live = tmesh.stats()["regions_live"]
    sent = ForkingPickler.dumps(make(5))
    gc.collect()
    assert tmesh.in_transit.here.under_way() == 1
    taken = pickle.loads(sent)
    assert total(taken) == 5000 and not taken.writable and tmesh.in_transit.here.under_way() == 0
    del taken
    tmesh.in_transit.here = _tmesh.InTransit()
    assert tmesh.stats()["regions_live"] == live


def test_a_bundle_that_is_lost():
    made = tmesh.bundle({"x": np.ones(3)})
    open_late, (ref,) = tmesh.bundles._reduce_held(made)
    made.release()
    opened = open_late(ref)
    tmesh.flush()
    assert opened["x"].tolist() == [1, 1, 1] and not opened.lost
    opened.release()
    while not (lost := open_late(ref)).lost:
        lost.release()
    lost = pickle.loads(ForkingPickler.dumps(lost))
    assert lost.lost and repr(lost) == "<tmesh.Bundle, lost>"
    for use in (lambda: lost["x"], lost.ref, lambda: [*lost], lambda: "x" in lost, lost.state_dict, lambda: len(lost)):
        assert_refused(use, tmesh.NotFoundError)


class Late:
    """Its pickling waits for the item that opens the gate, so later items are pickled after that."""

    gate = threading.Event()

    def __reduce__(self):
        assert self.gate.wait(PATIENCE)
        return int, ()


def put_within(queue):
    queue.put(Late())
    slot = tmesh.Slot()
    slot.publish({"x": np.ones(3)})
    with tmesh.put([1.0, 2.0]) as t, tmesh.bundle({"x": np.ones(3)}) as b, tmesh.Slot.open(slot.token).read() as value:
        queue.put([t, b, value])
    Late.gate.set()


def test_released_before_a_queue_pickles_it(processes):
    queue = processes.Queue()
    worker = processes.Process(target=put_within, args=(queue,))
    worker.start()
    assert queue.get(timeout=PATIENCE) == 0
    tensor, bundle, value = queue.get(timeout=PATIENCE)
    assert tensor.lost and bundle.lost and value.lost
    for use in (tensor.numpy, lambda: bundle["x"], lambda: value["x"]):
        assert_refused(use, tmesh.NotFoundError, "or its \"with\" ended, before a thread")
    worker.join(PATIENCE)
    assert worker.exitcode == 0


def test_released_before_its_own_thread_pickles_it():
    """Here the caller gets the error."""
    t, b = tmesh.put([1.0]), tmesh.bundle({"x": np.ones(3)})
    t.release()
    b.release()
    for dumps in (pickle.dumps, ForkingPickler.dumps):
        for what in (t, b):
            assert_refused(lambda: dumps(what), tmesh.ReleasedError, "was released")
    with tmesh.put([1.0]) as t:
        whole = np.asarray(t)
    assert_refused(lambda: ForkingPickler.dumps(t), tmesh.ReleasedError, "was released")
    assert whole.tolist() == [1]


def test_how_long_a_ref_holds():
    def made(**kwargs):
        return json.dumps(tmesh.put(np.arange(4)).ref(**kwargs))

    for bad in (0, -1, float("nan"), float("inf"), 86401, True):
        assert_refused(lambda: made(hold=bad), tmesh.InvalidError, "hold")
    assert_refused(lambda: made(hold="1"), TypeError)


def held_by_text(queue):
    queue.put(json.dumps(make(4).ref(hold=60)))


@pytest.mark.parametrize("method", ["fork"] if EMULATED else ["fork", "spawn", "forkserver"])
def test_a_process_waits_for_what_its_refs_hold(method):
    processes = multiprocessing.get_context(method)
    queue = processes.Queue()
    worker = processes.Process(target=held_by_text, args=(queue,))
    worker.start()
    ref = queue.get(timeout=PATIENCE)
    worker.join(0.3)  # it would have ended by now
    assert total(tmesh.open(ref)) == 4000
    worker.join(PATIENCE)
    assert worker.exitcode == 0


def test_copy():
    t = tmesh.zeros(3, "uint8")
    alias, other = copy.copy(t), copy.deepcopy([t])[0]
    t[0] = 5
    assert (alias.id, alias[0].item()) == (t.id, 5)
    assert other.id != t.id and other[0].item() == 0 and other.writable
    assert copy.deepcopy(t.seal()).sealed


def test_copy_of_a_bundle():
    tied = tmesh.put(np.arange(6.0).reshape(2, 3), seal=False)
    bundle = tmesh.bundle({"a": tied, "b": tied, "turned": tied.T, "none": np.empty(0)}, metadata="{}", seal=False)
    other = copy.deepcopy({"batch": bundle})["batch"]
    tied[0] = 9
    assert bundle["a"][0].tolist() == [9, 9, 9]
    assert other["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and other["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert ([*other], other.metadata, other["none"].shape) == ([*bundle], "{}", (0,))
    other["a"][0] = 7
    assert other["b"][0].tolist() == [7, 7, 7] and not other["b"].sealed
    sealed = tmesh.bundle({"a": np.arange(3)})
    same = copy.deepcopy(sealed)
    assert same["a"].id == sealed["a"].id
    sealed.release()
    assert same["a"].tolist() == [0, 1, 2] and len(copy.deepcopy(tmesh.bundle({}))) == 0

    class Typed:
        """A bundle with types, as C makes it."""

        def __init__(self, held):
            self.held = held

        def __getattr__(self, name):
            return getattr(self.held, name)

        def types(self):
            return [("float6", (6,))]

    typed = tmesh.bundle({"a": tmesh.zeros(6, "uint8")}, seal=False)
    typed._held = Typed(typed._held)
    assert_refused(lambda: copy.deepcopy(typed), TypeError, "only PyTorch knows")
    bundle.release()
    assert_refused(lambda: copy.deepcopy(bundle), tmesh.ReleasedError)


def test_with_that_has_ended():
    with tmesh.put(np.arange(4)) as t:
        array = t.numpy()
        view = memoryview(t[2:])
    assert t.released and repr(t) == "<tmesh.Tensor, released>"
    assert array.tolist() == [0, 1, 2, 3] and view[0] == 2
    assert_refused(t.numpy, tmesh.ReleasedError, 'its "with" has ended')
    t.release()
    del array
    assert view[1] == 3


def test_with_gives_back_the_memory_with_the_last_view():
    live = tmesh.stats()["regions_live"]
    with tmesh.put(np.arange(4)) as t:
        array = t.numpy()
    assert tmesh.stats()["regions_live"] == live + 1
    del array
    assert tmesh.stats()["regions_live"] == live
    assert t.released


def test_with_and_a_consumer_that_is_found_again():
    """DLPack consumers keep the memory too, and a usable tensor can be found from them."""
    torch = pytorch()
    with tmesh.zeros(4, "float32") as t:
        consumer = torch.from_dlpack(t)
    again = tmesh.from_address(consumer.data_ptr())
    again[0] = 3
    assert consumer.tolist() == [3, 0, 0, 0]


def test_print():
    t = tmesh.put(np.zeros((3, 4), "f4"), label="weights")
    assert str(t) == repr(t) == '<tmesh.Tensor float32 (3, 4), sealed, "weights">'
    assert f"{t}" == str(t)


def test_written_to():
    t = tmesh.put([1, 2])
    with pytest.raises(tmesh.SealedError, match="seal=False"):
        t[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        t.numpy()[0] = 5


@pytest.mark.parametrize("wrong, words", [
    (lambda ref: str(ref), "json.dumps"),
    (lambda ref: ref["id"], "ref()"),
    (lambda ref: "table.safetensors", "neither a ref"),
    (lambda ref: "", "neither a ref"),
    (lambda ref: ref["token"][:-1], "not a token"),
])
def test_something_else_opened(wrong, words):
    t = tmesh.put([1, 2])
    with pytest.raises(tmesh.ProtocolError) as caught:
        tmesh.open(wrong(t.ref()))
    assert words in str(caught.value)


@pytest.mark.parametrize("what, words", [
    ({"weights": np.ones(2)}, "bundle()"), (None, "Python objects"), ("text", "encode()"),
    (np.zeros(2, ">f4"), "convert"),
])
def test_no_elements(what, words):
    with pytest.raises(tmesh.UnsupportedError) as caught:
        tmesh.put(what)
    assert words in str(caught.value)


def test_a_bundle_of_something_else():
    assert_refused(lambda: tmesh.bundle([np.ones(2)]), TypeError, "dict of names and arrays, not list")
    with pytest.raises(TypeError, match="text, such as json.dumps.. gives, not dict"):
        tmesh.bundle({"w": np.ones(2)}, metadata={"layers": 1})


def test_a_channel_is_not_pickled():
    assert_refused(lambda: pickle.dumps(tmesh.Channel("send")), TypeError, "send its token")


@pytest.mark.parametrize("use, error, text", [
    (lambda t: t[np.array([0, 1])], TypeError, "indexed by integers.* numpy"),
    (lambda t: t[np.array([True, False])], TypeError, "indexed by integers.* numpy"),
    (lambda t: tmesh.bundle({1: t}), TypeError, "names, each a str, not 1"),
    (lambda t: tmesh.bundle({1: np.ones(2)}), TypeError, "names, each a str, not 1"),
    (lambda t: tmesh.put(2 ** 70), tmesh.UnsupportedError, "integers of at most 64 bits"),
    (lambda t: tmesh.put({1, 2}), tmesh.UnsupportedError, r"list\(\) of a set"),
    (lambda t: tmesh.empty(None, "float32"), TypeError, "sequence of integers, not None"),
    (lambda t: len(t[0, 0]), TypeError, r"has no length: float\(\).* torch\(\)"),
    (lambda t: t + 1, TypeError, r"does not compute: numpy\(\)"),
    (lambda t: 2.0 * t, TypeError, r"does not compute: numpy\(\)"),
    (lambda t: t ** 2, TypeError, r"does not compute: numpy\(\)"),
    (lambda t: t @ t, TypeError, r"does not compute: numpy\(\)"),
])
def test_words_that_say_what_to_do(use, error, text):
    assert_refused(lambda: use(tmesh.put(np.ones((2, 3)))), error, text)


def test_what_computes_computes_with_tensors():
    t = tmesh.put(np.ones((2, 3)))
    for result in (t + np.ones(3), np.ones(3) + t, t * np.float64(2), np.float64(2) * t):
        assert (result == 2).all() and result.shape == (2, 3)
    assert t[np.array(1)].shape == (3,)


def test_an_index_whose_own_code_fails():
    class Broken:
        def __index__(self):
            raise TypeError("mine")

    assert_refused(lambda: tmesh.put([1.0])[Broken()], TypeError, "mine")


def test_a_released_bundle_says_so():
    b = tmesh.bundle({"x": np.ones(3)})
    b.release()
    assert repr(b) == "<tmesh.Bundle, released>"


def test_weak_references():
    t, gone = tmesh.put([1.0]), []
    weak = weakref.ref(t, gone.append)
    assert weak() is t
    cache = weakref.WeakValueDictionary(t=t)
    del t
    gc.collect()
    assert weak() is None and gone == [weak] and not cache


@pytest.mark.skipif(tmesh.backend() == "kernel", reason="the module asks no producer")
def test_hold_is_named_where_it_helps():
    ref = tmesh.put([1.0]).ref()
    assert_refused(lambda: tmesh.open(ref), tmesh.NotFoundError, r"its producer lives and has released it.*\(hold\)")
    done = subprocess.run([sys.executable, "-P", "-c", "import json, tmesh; print(json.dumps(tmesh.put([1.0]).ref()))"],
                          capture_output=True, text=True, timeout=PATIENCE, check=True)
    with pytest.raises(tmesh.NotFoundError, match="is gone") as gone:
        tmesh.open(done.stdout)
    assert "hold" not in str(gone.value)


@pytest.mark.skipif(EMULATED, reason="says nothing of the backend; run on memfds")
def test_what_a_hold_loses_at_the_end_is_said():
    done = subprocess.run([sys.executable, "-P", "-c", "import tmesh; tmesh.put([1.0]).ref(hold=600)"], capture_output=True,
                          text=True, timeout=PATIENCE, env={**os.environ, "TMESH_EXIT_WAIT": "0.01"})
    assert "TMESH_EXIT_WAIT" in done.stderr and "tmesh_keep()" in done.stderr


@pytest.mark.skipif(EMULATED, reason="says nothing of the backend; run on memfds")
def test_an_end_waits_only_if_it_was_asked_to():
    """Neither a process nor a child of multiprocessing waits. A tensor in transit asks by being sent."""
    env = {name: value for name, value in os.environ.items() if name != "TMESH_EXIT_WAIT"}
    done = subprocess.run([sys.executable, "-P", "-c", """
import multiprocessing
import tmesh, tmesh.in_transit
assert tmesh.in_transit.PATIENCE == 5
def work():
    tmesh.put([1.0]).ref(hold=600)
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
tmesh.put([1.0]).ref(hold=600)
"""], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert [line.split(" ")[5:8] for line in done.stderr.splitlines()] == [["waited", "0", "s"]] * 2, done.stderr


def test_out_of_descriptors(python):
    assert python("""
import resource, tmesh
warm = tmesh.put(b"x")
tmesh.open(warm.ref())
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
keep = []
try:
    while len(keep) < 100:
        keep.append(tmesh.put(b"x"))
except tmesh.LimitError as error:
    text = str(error)
keep.clear()
print(text.count("ulimit -n") == 1 and "arena" in text)
arena = tmesh.Arena()
print(len([tmesh.put(b"x", arena=arena) for _ in range(1000)]))
""") == "True\n1000\n"


def test_parent_of_a_fork_is_told_what_to_do():
    t = tmesh.zeros(4, "uint8")
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            tmesh.open(t)
        except tmesh.AccessError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "fork" in pipe.read()
    os.waitpid(pid, 0)


def test_an_array_is_no_bytes_of_a_message():
    """Arrays would arrive without their dtype and shape."""
    out = tmesh.Channel("send")
    into = tmesh.Channel.open(out.token, "recv")
    for wrong in (np.arange(3), np.zeros(3, np.uint8), memoryview(np.arange(3)), array.array("d", [1.5]),
                  memoryview(b"abcd").cast("B", (2, 2))):
        assert_refused(lambda: out.send(wrong), TypeError, "tmesh.put")
        assert_refused(lambda: out.send((tmesh.put([1]), wrong)), TypeError, "tmesh.put")
    for right in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        out.send(right)
        assert into.recv(timeout=PATIENCE) == b"abc"


def test_a_masked_array_keeps_its_mask_or_is_refused():
    masked = np.ma.array([1, 2, 3], mask=[False, True, False])
    assert_refused(lambda: tmesh.put(masked), TypeError, "filled")
    for refused in lambda: tmesh.bundle({"x": masked}), lambda: tmesh.from_dlpack(masked):
        assert_refused(refused, TypeError, "filled")
    assert tmesh.bundle({"x": np.ma.array([1, 2])})["x"].tolist() == [1, 2]
    assert tmesh.put(masked.filled(0)).tolist() == [1, 0, 3]
    assert tmesh.put(np.ma.array([1, 2, 3])).tolist() == [1, 2, 3]

    class Interrupted(np.ndarray):
        fill_value = 0

        @property
        def mask(self):
            raise KeyboardInterrupt

    class Sparse(np.ndarray):
        fill_value = 0

    assert_refused(lambda: tmesh.put(np.arange(3).view(Interrupted)), KeyboardInterrupt)
    assert tmesh.put(np.arange(3).view(Sparse)).tolist() == [0, 1, 2]
