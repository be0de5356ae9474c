# SPDX-License-Identifier: MIT
"""Decode steps of many requests in one run, on the engine "ggml": the same results as one by one, with turns, and with
clients that die."""

import collections
import concurrent.futures
import errno
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.batching  # noqa: E402
import tmesh.engine  # noqa: E402
from conftest import assert_refused, eventually, serve  # noqa: E402
from test_graphs import VOCABULARY, Reference, as_gguf, llama  # noqa: E402
from tmesh.batching import Client, Generator, Server  # noqa: E402

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("libggml"),
                                reason="ggml cannot be had: the package libggml-python is not installed")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("generator") / "model.gguf"
    as_gguf(path, "qwen2", llama("float32", "float32")[1])
    return path


@pytest.fixture
def model(file):
    with tmesh.load_model(file, alone=True) as loaded:
        yield loaded


def generator(model, **options):
    return Generator(model, **{"lanes": 4, "max_tokens": 48, "page_tokens": 4, "cache": "float32", **options})


def prompt(seed, length):
    return [int(token) for token in numpy.random.default_rng(seed).integers(0, VOCABULARY, length)]


def alone(model, requests, **options):
    """Run each by itself, in a generator without other requests."""
    out = []
    for tokens, count in requests:
        with generator(model, **options) as one:
            request = one.submit(tokens, count)
            while not request.done:
                one.step()
            out.append(request.tokens)
    return out


def test_numpy(model):
    """The generator's likeliest token is NumPy's too, for prompts of whole pages and of single tokens."""
    weights = llama("float32", "float32")[1]
    for tokens, got in zip((prompt(1, 13), prompt(2, 3)), alone(model, [(prompt(1, 13), 6), (prompt(2, 3), 6)])):
        reference, logits = Reference(weights), None
        for at, token in enumerate(tokens + got[:-1]):
            logits = reference.step(token, at)
            if at >= len(tokens) - 1:
                chosen = got[at - len(tokens) + 1]
                assert logits.max() - logits[chosen] < 1e-3


@pytest.mark.parametrize("page_tokens", [3, 12])
def test_page_sizes(model, page_tokens):
    """A model whose rows divide no power of two has other pages, and gives the same tokens."""
    requests = [(prompt(seed, 5 + 9 * seed), 6) for seed in range(3)]
    with generator(model, page_tokens=page_tokens) as many:
        made = [many.submit(*each) for each in requests]
        while many.busy:
            many.step()
    assert [request.tokens for request in made] == alone(model, requests)


def test_join_and_leave(model):
    """Twelve requests of many lengths on four lanes arrive while others run. All give the same tokens as one by one."""
    requests = [(prompt(seed, 1 + seed * 5 % 23), 2 + seed * 7 % 15) for seed in range(12)]
    with generator(model) as many:
        made = [many.submit(*each) for each in requests[:5]]
        most = 0
        while many.busy:
            many.step()
            most = max(most, many.info()["running"])
            if len(made) < 12:
                made.append(many.submit(*requests[len(made)]))
        info = many.info()
        assert most == 4 and info["pages_held"] == 0 and info["pages_free"] == 4 * 12 and info["waiting"] == 0
        assert info["together"] > 2 * info["steps"], info
        assert all(request.done == "length" for request in made)
    assert [request.tokens for request in made] == alone(model, requests)


def test_prefix(model):
    """A common beginning is computed once, also for a request that arrives after the first has ended."""
    common = prompt(3, 17)
    requests = [(common + prompt(seed, 3), 5) for seed in (4, 5, 6)]
    with generator(model) as many:
        made = []
        for each in requests:
            made.append(many.submit(*each))
            while not made[-1].done:
                many.step()
        assert [request.shared for request in made] == [0, 16, 16]
        assert many.counts["prompt_pages"] == 4
        same = many.submit(common + prompt(4, 3), 5)
        while many.busy:
            many.step()
        assert same.tokens == made[0].tokens
    assert [request.tokens for request in made] == alone(model, requests)


def test_turns(model):
    """A client with many requests does not block another one's, and a large request gets its turn."""
    with generator(model, lanes=1, pages=12) as one:
        flood = [one.submit(prompt(seed, 2), 2, client="flood") for seed in range(6)]
        late = one.submit(prompt(9, 2), 2, client="late")
        order = []
        while one.busy:
            order += [request for request in one.step() if request.done]
        assert order.index(late) == 1 and len(order) == 7 and order[0] is flood[0]
    with generator(model, lanes=3, pages=12) as some:
        small = collections.deque(some.submit(prompt(seed, 2), 6, client=seed) for seed in range(2))
        large = some.submit(prompt(7, 40), 8, client="large")
        steps = 0
        while not large.done:
            some.step()
            small.append(some.submit(prompt(steps, 2), 6, client=steps))
            steps += 1
            assert steps < 100
        assert large.done == "length"


def test_stop_sample_cancel(model):
    tokens = alone(model, [(prompt(1, 5), 12)])[0]
    with generator(model) as many:
        stopped = many.submit(prompt(1, 5), 12, stop=[tokens[3]])
        sampled = many.submit(prompt(1, 5), 4, sample=lambda logits: int(logits.argsort()[-2]))
        running, waiting = many.submit(prompt(2, 5), 12), [many.submit(prompt(seed, 5), 12) for seed in (3, 4)]
        many.step()
        many.cancel(running)
        many.cancel(waiting[-1])
        many.cancel(running)
        while many.busy:
            many.step()
        assert stopped.done == "stop" and stopped.tokens == tokens[:tokens.index(tokens[3]) + 1]
        assert sampled.done == "length" and sampled.tokens[0] != tokens[0]
        assert running.done == waiting[1].done == "cancelled" and waiting[0].done == "length"
        assert many.info()["pages_free"] == 48 and many.info()["pages_held"] == 0


def test_refused(model):
    with generator(model) as many:
        for bad, count, words in (([], 1, "at least one token"), ([VOCABULARY], 1, "0 to 255"), ([-1], 1, "0 to 255"),
                                  ([1.5], 1, "0 to 255"), ([True], 1, "0 to 255"), ([1], 0, "max_tokens"), ([1], 48, "above"),
                                  ([1], None, "max_tokens")):
            assert_refused(lambda: many.submit(bad, count), tmesh.InvalidError, words)
        assert not many.busy
    assert_refused(lambda: generator(model, pages=11), tmesh.InvalidError, "needs 12 pages, there are 11")


CHILD = """
import sys
import tmesh, tmesh.batching, tmesh.engine
model = tmesh.load_model(sys.argv[1])
context = tmesh.engine.connect(sys.argv[5])
many = tmesh.batching.Generator(model, lanes=2, max_tokens=48, cache="float32", context=context, folder=sys.argv[2], tenant=sys.argv[3])
request = many.submit(eval(sys.argv[4]), 24)
while not request.done:
    many.step()
    if request.tokens:
        print(request.shared, many.counts["prompt_pages"], flush=True)
        sys.stdin.readline()
"""


def test_engines_share_pages(file, tmp_path):
    """Engines in processes of their own share a pool: one finds the prompts that the other has read, and each gives the
    tokens that it would give alone. Killing an engine costs only a run. A killed process gives its pages back once the
    engine has let go of them."""
    common = prompt(3, 17)
    first, second = (common + prompt(4, 3), 12), (common + prompt(5, 2), 12)
    with (tmesh.load_model(file) as model, tmesh.batching.page_pool(model, 40, page_tokens=4, cache="float32") as pool,
          serve("ggml", models=tmp_path) as one, serve("ggml", models=tmp_path) as two):
        expected, token = alone(model, [first, second]), pool.tenant()
        contexts = [one.connect(), two.connect()]
        left, right = (generator(model, lanes=2, pages=12, context=context, folder=tmp_path, tenant=token) for context in contexts)
        a = left.submit(*first)
        while not a.tokens:
            left.step()
        # 8 pages of 32 tokens, and each generator's idle one. The pool learns of freed pages a little later.
        wait_for(lambda: pool.info()["held"] == 8 + 2)
        assert pool.info()["cached"] == 4 and left.counts["prompt_pages"] == 4
        b = right.submit(*second)
        right.step()
        # 8 pages of 31 tokens, 4 of which are shared with the other.
        assert b.shared == 16 and right.counts["prompt_pages"] == 0
        wait_for(lambda: pool.info()["held"] == 8 + 2 + 4)
        pid = contexts[0].pid
        os.kill(pid, signal.SIGKILL)
        while not a.done or not b.done:
            left.step()
            right.step()
        assert [a.tokens, b.tokens] == expected
        assert contexts[0].pid != pid
        wait_for(lambda: pool.info()["held"] == 2)
        assert left.info()["pages_held"] == right.info()["pages_held"] == 0

        child = subprocess.Popen([sys.executable, "-c", CHILD, str(file), str(tmp_path), token, repr(first[0]), two.name],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline().split() == ["16", "0"]
        # 11 pages of 44 tokens, 4 of them the common ones, and its idle one.
        wait_for(lambda: pool.info()["held"] == 2 + 12)
        stop(contexts[1].pid)
        child.kill()
        child.wait()
        left._handle.find([])  # the owner has processed all earlier messages
        assert pool.info()["handles"] == 3 and pool.info()["held"] == 2 + 12
        os.kill(contexts[1].pid, signal.SIGCONT)
        wait_for(lambda: pool.info()["handles"] == 2)
        assert pool.info()["died"] == 1
        wait_for(lambda: pool.info()["held"] == 2)
        for each in (left, right):
            each.close()


def stop(pid):
    """Wait until all of its threads have stopped: on a busy machine one of them continues for a while."""
    def stopped():
        try:
            return all((task / "stat").read_text().rpartition(") ")[2].startswith("T") for task in Path(f"/proc/{pid}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile
            return False

    os.kill(pid, signal.SIGSTOP)
    eventually(stopped)


class Dies:
    """A binding whose engine process dies in the first run, as late as possible."""

    def __init__(self, binding):
        self.binding, self.deaths = binding, 1

    def dispatch(self):
        self.binding.dispatch()
        if self.deaths:
            self.deaths -= 1
            raise tmesh.GoneError(errno.EPIPE, "as told")


def test_lost(file, tmp_path):
    """A run that ends with the engine's process is repeated and counted. In this process it is an error."""
    with tmesh.load_model(file) as model, serve("ggml", models=tmp_path) as server:
        with generator(model, context=server.connect(), folder=tmp_path) as many:
            for run in (many._decode, many._prompt):
                run._binding = Dies(run._binding)
            request = many.submit(prompt(1, 9), 6)
            while not request.done:
                many.step()
            assert many.info()["lost"] == 2 and [request.tokens] == alone(model, [(prompt(1, 9), 6)])
        assert_refused(lambda: generator(model, context=server.connect()), tmesh.InvalidError, "folder is one of them")
        with generator(model) as many:
            many._decode._binding = Dies(many._decode._binding)
            many.submit(prompt(1, 3), 6)
            assert_refused(many.step, tmesh.GoneError)


def settled(pool, *generators):
    """Wait until the pool has processed freed pages: before that others cannot get them, nor those of a prefix."""
    eventually(lambda: pool.info()["held"] == sum(each.info()["pages_held"] + 1 for each in generators))


def test_pool_is_full(file, tmp_path):
    """A request waits for pages that another generator has, and reports it."""
    with tmesh.load_model(file) as model, tmesh.batching.page_pool(model, 14, page_tokens=4, cache="float32") as pool:
        token = pool.tenant()
        left = generator(model, lanes=2, pages=12, tenant=token)
        settled(pool, left)
        right = generator(model, lanes=2, pages=12, tenant=token)
        settled(pool, left, right)
        a, b = left.submit(prompt(1, 20), 20), right.submit(prompt(2, 20), 20)
        left.step()
        settled(pool, left, right)
        for _ in range(5):
            assert right.step() == [] and right.stuck and right.info()["waiting"] == 1
        while not a.done:
            left.step()
        settled(pool, left, right)
        while not b.done:
            right.step()
            assert not right.stuck
        assert [a.tokens, b.tokens] == alone(model, [(prompt(1, 20), 20), (prompt(2, 20), 20)])
        settled(pool, left, right)
        c = left.submit(prompt(1, 20), 1)
        left.step()
        settled(pool, left, right)
        with tmesh.load_model(file, alone=True) as another, generator(another, lanes=1, pages=12, tenant=token) as third:
            left.close()
            settled(pool, right, third)
            d = third.submit(prompt(1, 20), 1)
            third.step()
            assert c.shared > d.shared == 0  # another model's pages
        assert_refused(lambda: generator(model, pages=14, tenant=token), tmesh.InvalidError, "more than 14 pages")
        with tmesh.PagePool(page_bytes=4096, page_tokens=64, slab_pages=14, max_pages=14) as small, \
                pytest.raises(tmesh.InvalidError, match="do not fit"):
            generator(model, pages=12, tenant=small.tenant())
        right.close()


@pytest.fixture
def served(model, tmp_path):
    with generator(model) as many:
        server = Server(many, tmp_path / "s")
        thread = threading.Thread(target=server.run)
        thread.start()
        yield tmp_path / "s", many
        server.stop()
        thread.join()
        server.close()
    assert not (tmp_path / "s").exists()


CLIENT = """
import sys
from tmesh.batching import Client
with Client(sys.argv[1]) as client:
    for token in client.generate(eval(sys.argv[2]), int(sys.argv[3])):
        print(token, flush=True)
"""


def ask(path, tokens, count):
    return subprocess.Popen([sys.executable, "-c", CLIENT, str(path), repr(tokens), str(count)], stdout=subprocess.PIPE, text=True)


def test_served(model, served):
    """Six processes at once get the same tokens as alone."""
    requests = [(prompt(seed, 3 + 2 * seed), 8 + seed) for seed in range(6)]
    made = [ask(served[0], *each) for each in requests]
    got = [[int(line) for line in each.stdout] for each in made]
    assert [each.wait() for each in made] == [0] * 6
    assert got == alone(model, requests)


def wait_for(true):
    """Wait until a condition is true, at most ten minutes, for busy machines."""
    done = threading.Event()
    for _ in range(60000):
        if true():
            return
        done.wait(.01)
    assert true()


def test_client_dies(model, served):
    """A client is killed in the middle of a request, while others wait. Its lanes and pages become free, and others
    continue."""
    path, many = served
    with Client(path) as other:
        running = other.generate(prompt(1, 3), 40)
        first = next(running)
        dead = ask(path, prompt(2, 3), 44)
        dead.stdout.readline()
        silent = socket.socket(socket.AF_UNIX)
        silent.connect(str(path))
        for number in range(8):
            silent.sendall(json.dumps({"id": number, "prompt": prompt(number, 4), "max_tokens": 40}).encode() + b"\n")
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        silent.close()
        assert [first, *running] == alone(model, [(prompt(1, 3), 40)])[0]
    # A request's lane is free a moment before its pages are.
    wait_for(lambda: not many.busy and (many.info()["pages_free"], many.info()["pages_held"]) == (48, 0))


SERVE = """
import os, sys, signal, tmesh, tmesh.batching
path, file = sys.argv[1:]
with tmesh.load_model(file) as model, tmesh.batching.Generator(model, lanes=1, max_tokens=48, page_tokens=4) as generator:
    server = tmesh.batching.Server(generator, path)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    print("ready", flush=True)
    server.run()
    server.close()
"""


def test_restart(file, tmp_path):
    """The next server replaces the socket of a killed one, but not that of a running one. A server that ends late
    leaves the next one's socket."""
    path = tmp_path / "s"

    def start():
        return subprocess.Popen([sys.executable, "-c", SERVE, str(path), str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    servers = [start()]
    try:
        assert servers[0].stdout.readline() == "ready\n"
        second = start()
        assert "another server is there" in second.communicate()[1] and second.returncode
        with Client(path) as client:
            assert len(list(client.generate([1], 2))) == 2
        servers[0].kill()
        servers[0].wait()
        assert path.is_socket()
        servers.append(start())
        assert servers[1].stdout.readline() == "ready\n"
        path.unlink()
        servers.append(start())
        assert servers[2].stdout.readline() == "ready\n"
        servers[1].terminate()
        assert servers[1].wait() == 0
        with Client(path) as client:
            assert len(list(client.generate([1], 2))) == 2
        servers[2].terminate()
        assert servers[2].wait() == 0 and not path.exists()
    finally:
        for each in servers:
            each.kill()
            each.communicate()
    path.write_text("a file")
    third = start()
    assert "another server is there, or a file" in third.communicate()[1] and path.read_text() == "a file"


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b"{}\n", b'{"id": -1}\n', b'{"id": true}\n', b"\xff\n", b"[" * 5000 + b"\n",
                                  b"x" * (2 << 20)])
def test_malformed(served, line):
    """A client with an invalid request is disconnected; others are not."""
    path, many = served
    with Client(path) as good, socket.socket(socket.AF_UNIX) as bad:
        bad.connect(str(path))
        try:
            bad.sendall(line)
            assert bad.recv(1) == b""
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert len(list(good.generate([1], 3))) == 3


def test_said(served):
    """A valid request that cannot be served gets an error of its own. One may end early, and may sample by a seed."""
    path, many = served
    with Client(path) as client:
        for bad, words in (({"prompt": []}, "at least one"), ({"max_tokens": 1 << 30}, "max_tokens"), ({"stop": [-1]}, "stop"),
                           ({"temperature": -1}, "temperature"), ({"seed": -1}, "seed")):
            with pytest.raises(tmesh.InvalidError, match=words):
                list(client.generate(**{"prompt": [1], "max_tokens": 2, **bad}))
        for bad in {"prompt": [1.5]}, {"prompt": "text"}, {"stop": [2.5]}:
            with pytest.raises(TypeError, match="tokens' numbers"):
                list(client.generate(**{"prompt": [1], "max_tokens": 2, **bad}))
        for token in client.generate([1, 2], 40):
            break
        one, two, three = (list(client.generate([1, 2], 8, temperature=2, seed=seed)) for seed in (1, 1, 2))
        assert one == two != three
    assert_refused(lambda: list(client.generate([1], 2)), tmesh.ReleasedError, "closed")
    for place, words in (path, "another server is there"), (path.parent / "none/s", "none/s"), (path.parent / ("s" * 200), "sss"):
        assert_refused(lambda: Server(many, place), OSError, words)
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(str(path))
    with raw, raw.makefile("rb") as lines:
        raw.sendall(b'{"id": 1, "prompt": 5, "max_tokens": 1}\n{"id": 2, "prompt": [1], "max_tokens": 1, "x": 1}\n'
                    b'{"id": 3, "prompt": [1], "max_tokens": 40}\n{"id": 3, "prompt": [1], "max_tokens": 1}\n{"id": 3, "cancel": true}\n')
        said = []
        while not said or said[-1].get("done") != "cancelled":
            said.append(json.loads(lines.readline()))
    wrong = [each["error"] for each in said if "error" in each]
    assert len(wrong) == 3 and "lists" in wrong[0] and "unknown" in wrong[1] and "in use" in wrong[2]
    wait_for(lambda: not many.busy)


class Silent:
    """A generator's socket whose other end belongs to the test."""

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(1)
        self.client = Client(path)
        self.peer, _ = self.listener.accept()
        self.lines = self.peer.makefile("rb")

    def hear(self):
        return json.loads(self.lines.readline())

    def say(self, *all_words):
        self.peer.sendall(b"".join(json.dumps(words).encode() + b"\n" for words in all_words))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.client.close()
        self.lines.close()
        self.peer.close()
        self.listener.close()


def test_connect(tmp_path):
    """Connect to no socket, one without a listener, another kind of file, one that accepts no connections, and one that
    accepts them silently."""
    path = str(tmp_path / "s")
    assert_refused(lambda: Client(path), tmesh.NotFoundError, "no socket at .* start python -m tmesh.batching")
    (tmp_path / "file").write_text("")
    with pytest.raises(tmesh.GoneError, match="no process listens .* start python -m tmesh.batching"):
        Client(tmp_path / "file")
    assert_refused(lambda: Client(tmp_path / ("long" * 60)), tmesh.InvalidError, "no socket of a generator")
    for wrong in (-1, float("nan")):
        assert_refused(lambda: Client(path, timeout=wrong), tmesh.InvalidError, "timeout")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert_refused(lambda: Client(path), tmesh.GoneError, "no process listens")
        listener.listen(0)
        # The kernel makes connections wait that the queue has no room for.
        clients = [Client(path, timeout=600)]
        with pytest.raises(tmesh.PeerTimeoutError, match="took no connection"):
            for _ in range(3):
                clients.append(Client(path, timeout=.05))
        assert_refused(lambda: Client(path, timeout=0), tmesh.PeerTimeoutError, "took no connection")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            late = pool.submit(Client, path, timeout=600)
            peers = [listener.accept()[0] for _ in range(len(clients) + 1)]
            with late.result() as client, pytest.raises(tmesh.PeerTimeoutError, match="deadline"):
                list(client.generate([1], 1, timeout=.02))
        for each in clients + peers:
            each.close()


def test_connect_signals(tmp_path):
    """A handler runs while a connection waits for room, and the wait continues."""
    path, came, peers = str(tmp_path / "s"), [], []

    def handle(*_):
        came.append(1)
        if len(came) == 5:
            peers.append(listener.accept()[0])
        else:  # not before: the next one would interrupt this
            signal.setitimer(signal.ITIMER_REAL, .02)

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, .02)
        try:
            Client(path, timeout=600).close()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert len(came) == 5
        peers[0].close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_other_user(tmp_path):
    """The kernel tells the listener's user, even if another one made the socket."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        child = os.fork()
        if not child:
            os.setuid(65534)
            listener.listen()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert_refused(lambda: Client(path, timeout=600), tmesh.AccessError, "served by user 65534")


class Clock:
    """A clock of the test's. It advances by `step` at each reading."""

    def __init__(self, step):
        self.now, self.step = 0, step

    def monotonic(self):
        self.now += self.step
        return self.now


def test_deadline(tmp_path, monkeypatch):
    """A deadline ends a request, even at a silent generator. Its later tokens are dropped, and the next request is
    complete."""
    with Silent(tmp_path / "silent") as silent, pytest.raises(tmesh.PeerTimeoutError, match="deadline"):
        list(silent.client.generate([1], 9, timeout=.02))
    clock = Clock(0)
    monkeypatch.setattr(tmesh.batching, "time", clock)
    with Silent(tmp_path / "s") as silent, concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(list, silent.client.generate([1], 9, timeout=600))
        assert silent.hear()["prompt"] == [1]
        clock.now = 1000
        silent.say({"id": 0, "token": 1})  # it wakes and looks at the clock
        assert_refused(call.result, tmesh.PeerTimeoutError, "deadline")
        assert silent.hear() == {"id": 1, "cancel": True}
        silent.say({"id": 1, "token": 5}, {"id": 1, "done": "cancelled"}, {"id": 2, "token": 8}, {"id": 2, "done": "length"})
        assert list(silent.client.generate([2], 1, timeout=600)) == [8]
        assert silent.hear()["prompt"] == [2]
        # In the middle, with a token that has arrived and was not taken.
        silent.say({"id": 3, "token": 6}, {"id": 3, "token": 7})
        late = silent.client.generate([3], 9, timeout=600)
        assert next(late) == 6
        clock.now = 2000
        assert_refused(lambda: next(late), tmesh.PeerTimeoutError)
        assert silent.hear()["prompt"] == [3] and silent.hear() == {"id": 3, "cancel": True}
        for wrong in (-1, float("nan"), float("inf")):
            assert_refused(lambda: next(silent.client.generate([1], 1, timeout=wrong)), tmesh.InvalidError, "timeout")


def test_deadline_unread(tmp_path, monkeypatch):
    """At a generator that reads nothing, a line that was begun is completed before the next, and a line that was not
    begun is never sent."""
    monkeypatch.setattr(tmesh.batching, "time", Clock(.01))
    with Silent(tmp_path / "s") as silent, concurrent.futures.ThreadPoolExecutor(1) as pool:
        large = [1] * 300_000
        for _ in range(3):
            assert_refused(lambda: list(silent.client.generate(large, 9, timeout=.03)), tmesh.PeerTimeoutError)
        assert len(silent.client._unsent) < 1 << 20
        heard = pool.submit(lambda: [silent.hear() for _ in range(3)])
        silent.say({"id": 4, "token": 8}, {"id": 4, "done": "length"})
        assert list(silent.client.generate([2], 1, timeout=600)) == [8]
        one, cancelled, two = heard.result()
        assert one["prompt"] == large and cancelled == {"id": 1, "cancel": True} and two["prompt"] == [2]


@pytest.mark.parametrize("process", [[], ["--process"]])
def test_program(file, tmp_path, process):
    """Run python -m tmesh.batching as its page describes."""
    program = subprocess.Popen([sys.executable, "-m", "tmesh.batching", str(file), f"--socket={tmp_path / 's'}", "--max-tokens=32", *process],
                               stdout=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    try:
        assert program.stdout.readline() == "ready\n"
        assert os.stat(tmp_path / "s").st_mode & 0o777 == 0o600
        with Client(tmp_path / "s") as client:
            assert len(list(client.generate([5, 6, 7], 9))) == 9
            program.send_signal(signal.SIGINT)  # the program ignored it at its start, as in a shell's background
            assert len(list(client.generate([5, 6, 7], 9))) == 9
            program.terminate()
            assert program.wait() == 0
            assert_refused(lambda: list(client.generate([5], 9)), tmesh.GoneError)
    finally:
        program.kill()
        program.wait()
    missing = subprocess.run([sys.executable, "-m", "tmesh.batching", str(file) + "x", f"--socket={tmp_path / 's'}"],
                             capture_output=True, text=True)
    assert missing.returncode == 1 and "tmesh.batching:" in missing.stderr
