# SPDX-License-Identifier: MIT
"""The second act: a language model's weights in one region, and two engine processes that generate from it at once.
Their keys and values are in pages of one pool, and they share those of their common beginning. Elixir chooses the
tokens; meanwhile an adapter is swapped, and one engine is killed and restarted. The same runs with a user's GGUF model,
without an adapter."""

import importlib.util
import json
import os
import re
import signal
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import tmesh
import tmesh.adapters
import tmesh.engine
import tmesh.generate
import tmesh.graphs
import tmesh.tokens

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "examples/small_model"
COMMON = ("tmesh shares tensors between processes: the bytes are written once, and a ref goes to the other process, which reads them "
          "where they lie. ")
NAMES = {"F16": "float16", "F32": "float32", "BF16": "bfloat16"}
PROMPTS = "A region ", "Elixir "
# SHORT: the same acts with fewer tokens, for an emulated machine.
TOKENS, ADAPT_AT, KILL_AT = (30, 10, 20) if os.environ.get("SHORT") else (150, 50, 100)
OWN_TOKENS, OWN_KILL_AT = 40, 20
ROWS, PAGE_TOKENS = 256, 16
RANKS = dict.fromkeys(("attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), 8)


def missing():
    """Return why the act cannot be shown here, in words; empty if it can."""
    packages = [name for name in ("libggml", "tokenizers") if not importlib.util.find_spec(name)]
    return f"the packages that it needs could not be had: {', '.join(packages)}" if packages else ""


def of_ours(line, start, end, sizes):
    """Return whether a mapping is of a region. A memfd has the region's id in its name. The module names no region, so
    there the size decides."""
    return any(region in line for region in sizes) or (" /tmesh" in line and end - start in sizes.values())


def share(pid, sizes):
    """Return a process's bytes of the regions in memory, its share of them (PSS), and whether any is writable."""
    rss = pss = 0
    ours = writable = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ", line)
        if head:
            ours = of_ours(line, int(head[1], 16), int(head[2], 16), sizes)
            writable |= ours and "w" in head[3]
        elif ours and line.startswith("Rss:"):
            rss += int(line.split()[1]) * 1024
        elif ours and line.startswith("Pss:"):
            pss += int(line.split()[1]) * 1024
    return rss, pss, writable


class Stream:
    """A text that grows, on an engine process."""

    def __init__(self, number, context, sequence, tokens, elixir):
        self.name, self.context, self.sequence, self.tokens = "AB"[number], context, sequence, tokens
        self.first, self.lost, self.marks, self.times = len(self.tokens), 0, {}, []
        self.elixir = elixir
        elixir("logits", f"{self.name}\n{json.dumps(self.sequence.logits.ref())}".encode())
        for token in self.tokens[sequence.position:-1]:
            self.sequence.run([token])

    def step(self):
        """Generate one token more; repeat a call that an engine's death interrupts."""
        while True:
            try:
                self.sequence.run(self.tokens[-1:])
                break
            except tmesh.GoneError:
                self.lost += 1
        self.tokens.append(int(self.elixir("sample", self.name.encode())))
        self.times.append(time.perf_counter())

    def new(self):
        return len(self.tokens) - self.first

    def text(self, tokenizer, start):
        """From that token on, with a mark where something happened."""
        parts = []
        for at, mark in sorted(self.marks.items()):
            parts += [tokenizer.decode(self.tokens[start:at]), f" [{mark}] "]
            start = at
        return "".join([*parts, tokenizer.decode(self.tokens[start:])])


def generate(streams, count, kill_at, publish=None):
    """Run all at once, a thread each. When both have ADAPT_AT tokens the adapter is published, if there is one. When
    both have `kill_at`, one kills the other's engine. Return the time of that."""
    killed, failed, together = [], [], threading.Barrier(len(streams))

    def work(stream, other):
        try:
            for number in range(count):
                adapt = publish and number == ADAPT_AT
                if adapt or number == kill_at:
                    together.wait(600)
                if stream is streams[0] and adapt:
                    publish()
                    for one in streams:
                        one.marks[len(one.tokens)] = "adapter"
                if stream is streams[1] and number == kill_at:
                    os.kill(other.context.pid, signal.SIGKILL)
                    killed.append(time.perf_counter())
                    other.marks[len(other.tokens)] = "killed"
                if adapt:
                    together.wait(600)
                stream.step()
        except BaseException as error:
            failed.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(stream, other)) for stream, other in zip(streams, streams[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return killed[0]


def table(model, contexts):
    ids = {model[name].id for name in model}
    sizes = {region["id"]: region["alloc_bytes"] for region in tmesh.regions() if region["id"] in ids}
    rows = [("engine A", contexts[0].pid), ("engine B", contexts[1].pid)]
    print(f"  {'weights, by /proc/PID/smaps':<30}{'in memory':>12}{'its share':>12}   rights")
    total = 0
    for name, pid in rows:
        rss, pss, writable = share(pid, sizes)
        total += pss
        print(f"  {f'{name}, process {pid}':<30}{rss / 1e6:>9.2f} MB{pss / 1e6:>9.2f} MB   {'rw' if writable else 'r'}")
    rss, pss, _ = share(os.getpid(), sizes)
    if rss:
        print(f"  {f'this process, {os.getpid()}':<30}{rss / 1e6:>9.2f} MB{pss / 1e6:>9.2f} MB   r")
    print(f"  {'all together':<30}{'':>12}{(total + pss) / 1e6:>9.2f} MB")


def pool_of(model):
    """Room for both, each as if they shared nothing."""
    return tmesh.generate.page_pool(model, 2 * ROWS // PAGE_TOKENS, page_tokens=PAGE_TOKENS)


def begin(servers, model, common, own, folder, pages, elixir, **adapted):
    """Engine A reads the common pages; B has a fork of them, and each goes on with its own tokens."""
    contexts = [server.connect(timeout=600) for server in servers]
    sequence = tmesh.generate.Sequence(model, rows=ROWS, context=contexts[0], folder=folder, pages=pages, **adapted)
    sequence.run(common)
    sequences = sequence, sequence.fork(context=contexts[1])
    held, size = pages.info()["held"], pages.info()["page_bytes"]
    assert sequences[0].block_table == sequences[1].block_table
    said = (f"  A reads {len(common)} tokens that both begin with: {held} pages of keys and values, {held * size // 1024} KiB. B forks "
            f"them: {held} pages still")
    return [Stream(number, *each, elixir) for number, each in enumerate(zip(contexts, sequences, own))], said


def tell_pages(streams, pages):
    """The two sequences share these pages now."""
    info = pages.info()
    one, two = (set(stream.sequence.block_table) for stream in streams)
    size = info["page_bytes"] // 1024
    assert len(one | two) == info["held"]
    print(f"  Pages of keys and values: A has {len(one)}, B {len(two)}, {len(one & two)} of them the same ({len(one & two) * size} KiB "
          f"shared); {info['held']} in all ({info['held'] * size} KiB). Copied before\n  a write: {info['copies']} page, the one that "
          f"was not full ({info['bytes_copied'] // 1024} KiB). The killed engine had none to lose: they are its client's.")


def locked(elixir):
    """Both threads ask it."""
    lock = threading.Lock()

    def ask(request, body=b""):
        with lock:
            return elixir.ask(request, body)

    os.environ.setdefault("TMESH_ENGINE_PROGRAM", str(ROOT / "build/tmesh-engine"))
    return ask


def tell_ready(model, streams, began, said):
    kind = max(model.entries.values(), key=lambda entry: len(entry.shape)).type
    print(f"  {model.nbytes / 1e6:.2f} MB of weights, {NAMES.get(kind, kind)}, in one region; two engines (ggml "
          f"{streams[0].context.version}) ready after {1000 * (time.perf_counter() - began):.0f} ms\n{said}")


def tell_texts(streams, tokenizer, spent, copied, start):
    print(f"  {sum(stream.new() for stream in streams)} tokens in {spent:.2f} s, both at once, each chosen by Elixir from the"
          f" engine's logits\n  Bytes that tmesh copied for it, in Python: {copied}\n")
    for stream in streams:
        text = re.sub(r"\s+", " ", stream.text(tokenizer, start)).strip()
        # A model's text may contain control characters of a terminal.
        text = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
        for number, line in enumerate(textwrap.wrap(text, 100, break_on_hyphens=False)):
            print(f"  {' ' if number else stream.name} | {line}")
    print()


def tell_killed(streams, pids, killed):
    after = min(when for when in streams[0].times if when > killed)
    print(f"  Engine A, process {pids[0]}, was killed (SIGKILL): calls lost {streams[0].lost}, its next token after "
          f"{1000 * (after - killed):.0f} ms, from\n  process {streams[0].context.pid}, on the same weights and the same cache; "
          f"engine B went on.\n")
    assert streams[0].context.pid != pids[0] and streams[1].context.pid == pids[1]


def timed(streams, *how):
    """Return the result of generate(), its time, and the bytes copied for it."""
    start, copied = time.perf_counter(), tmesh.stats()["bytes_copied"]
    killed = generate(streams, *how)
    return killed, time.perf_counter() - start, tmesh.stats()["bytes_copied"] - copied


def let_go(streams, pages, ask):
    ask("forget")
    for stream in streams:
        stream.sequence.release()
    assert pages.info()["held"] == 0


def show(elixir):
    """Run all of it. If a requirement is missing, print which."""
    why = missing()
    print("\nA language model, trained on this repository's documents (examples/small_model), in two engine processes:\n")
    if why:
        print(f"  not shown: {why}")
        return
    ask = locked(elixir)
    began = time.perf_counter()
    model = tmesh.load_model(SMALL / "small.gguf")
    tokenizer = tmesh.tokens.of_model(model)
    common = tokenizer.encode(COMMON).ids
    own = [common + tokenizer.encode(words).ids[1:] for words in PROMPTS]
    servers = []
    with (tempfile.TemporaryDirectory() as folder, tmesh.Slot(label="adapter") as slot, pool_of(model) as pool,
          tmesh.Pages.open(pool.tenant()) as pages):
        try:
            servers += [tmesh.engine.serve("ggml", models=folder, limit=600, patience=60) for _ in range(2)]
            tmesh.adapters.publish(slot, None, tmesh.graphs.of_model(model, rows=1, lora=RANKS))
            streams, said = begin(servers, model, common, own, folder, pages, ask, lora=RANKS, slot=slot.token)
            pids = [stream.context.pid for stream in streams]
            tell_ready(model, streams, began, said)

            def publish():
                with tmesh.load_model(SMALL / "elixir.gguf") as adapter:
                    tmesh.adapters.publish(slot, adapter, tmesh.graphs.of_model(model, rows=1, lora=RANKS))

            killed, *took = timed(streams, TOKENS, KILL_AT, publish)
            tell_texts(streams, tokenizer, *took, len(common))
            print("  The adapter (74 kB, trained on Elixir sources) was swapped by a slot between two tokens: no graph was built anew.")
            tell_killed(streams, pids, killed)
            tell_pages(streams, pages)
            print()
            table(model, [stream.context for stream in streams])
            let_go(streams, pages, ask)
        finally:
            for server in servers:
                server.close()
    model.release()


def show_own(elixir, path, text):
    """The same of a user's model, whose two texts begin with `text`. SystemExit says why not."""
    why = missing()
    if why:
        raise SystemExit(f"demo: {why}")
    ask, began, servers = locked(elixir), time.perf_counter(), []
    try:
        header = tmesh.describe_model(path)  # a model that cannot run is refused before it is loaded
        tmesh.graphs.check(header, rows=ROWS, context=tmesh.engine.Context("ggml"))
        tokenizer = tmesh.tokens.of_model(header)
        with tmesh.load_model(path) as model:
            tokens = tokenizer.encode(text).ids
            if not 2 <= len(tokens) <= ROWS - OWN_TOKENS:
                raise SystemExit(f"demo: the query is {len(tokens)} tokens of this model: give QUERY=\"some words\" of 2 to "
                                 f"{ROWS - OWN_TOKENS}")
            print(f"{Path(path).name}, architecture {model.metadata['general.architecture']}, in two engine processes:\n")
            with tempfile.TemporaryDirectory() as folder, pool_of(model) as pool, tmesh.Pages.open(pool.tenant()) as pages:
                servers += [tmesh.engine.serve("ggml", models=folder, limit=600, patience=60) for _ in range(2)]
                streams, said = begin(servers, model, tokens[:-1], [tokens, list(tokens)], folder, pages, ask)
                pids = [stream.context.pid for stream in streams]
                tell_ready(model, streams, began, said)
                killed, *took = timed(streams, OWN_TOKENS, OWN_KILL_AT)
                tell_texts(streams, tokenizer, *took, 0)
                tell_killed(streams, pids, killed)
                table(model, [stream.context for stream in streams])
                let_go(streams, pages, ask)
    except tmesh.Error as error:
        said = error.strerror or str(error)
        said = said if said.startswith(str(path)) else f"{path}: {said}"
        raise SystemExit(f"demo: {said}. docs/reference/engines.md says which models run, and which were tried.") from None
    finally:
        for server in servers:
            server.close()
