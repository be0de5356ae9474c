# SPDX-License-Identifier: MIT
"""The third act: a stock engine, llama.cpp in the wheel of the package index, on a kept path. Two processes share one copy. All of
them are killed, the model's folder is gone, and a new process goes on from memory.

With arguments this is such a process: stock.py STARTED_NS PATH TEXT.
"""

import atexit
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/small_model/small.gguf"
NAME = "demo-model"
TEXT, TOKENS = "A region ", 24
PATIENCE = 60


def memory(path):
    """Return (RSS, PSS) of this process's mappings of a file, in bytes."""
    rss = pss = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = len(words) > 5 and words[5] == path
        elif inside and words[0] in ("Rss:", "Pss:"):
            rss += int(words[1]) * 1024 * (words[0] == "Rss:")
            pss += int(words[1]) * 1024 * (words[0] == "Pss:")
    return rss, pss


def serve(started, path, text):
    """Load, write some words and print them; after a line of input, print the memory of the model; stay."""
    import cyllama.llama.llama_cpp as llama
    model = llama.LlamaModel(path, llama.LlamaModelParams())
    options = llama.LlamaContextParams()
    options.n_ctx, options.n_threads = 128, 1
    context, vocabulary = llama.LlamaContext(model, options), model.get_vocab()
    sampler = llama.LlamaSampler(llama.LlamaSamplerChainParams())
    sampler.add_greedy()
    tokens = vocabulary.tokenize(text, True, True)
    context.decode(llama.llama_batch_get_one(tokens, 0))
    for _ in range(TOKENS):
        tokens.append(sampler.sample(context, -1))
        context.decode(llama.llama_batch_get_one(tokens[-1:], len(tokens) - 1))
    words = "".join(vocabulary.token_to_piece(token, 0, False) for token in tokens[1:])
    print(json.dumps({"text": words, "ms": (time.monotonic_ns() - int(started)) / 1e6}), flush=True)
    sys.stdin.readline()
    print(json.dumps(memory(os.path.realpath(path))), flush=True)
    sys.stdin.read()


def has_engine():
    """Return whether the wheel's engine is one of this Python's version."""
    try:
        return bool(importlib.util.find_spec("cyllama.llama.llama_cpp"))
    except ImportError:
        return False


def by_module():
    """Return whether the module keeps the folder."""
    import tmesh
    return tmesh.backend() == "kernel"


def missing():
    """Return why the act cannot be shown here; empty if it can."""
    if not has_engine():
        return "the package that it needs could not be had: cyllama"
    if by_module():
        return "mounting what the module keeps takes root" if os.geteuid() else ""
    if not (ROOT / "build/tmesh-mount").exists():
        return "tmesh-mount is not built: libfuse3-dev is missing"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "this machine has no /dev/fuse for this user"
    if os.geteuid() and not shutil.which("fusermount3"):
        return "fusermount3 is missing: install fuse3"
    return ""


def start(path):
    return subprocess.Popen([sys.executable, "-B", __file__, str(time.monotonic_ns()), path, TEXT], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def answer(process):
    line = process.stdout.readline()
    if not line:
        raise SystemExit("demo: llama.cpp has not answered")
    return json.loads(line)


def choose_place():
    """Make the folder in which kept files are shown. tmesh reads its name once, before it is used."""
    place = tempfile.mkdtemp(prefix="tmesh-demo-")
    os.environ["TMESH_MOUNT"] = place
    atexit.register(os.rmdir, place)


def mount(place, runtime):
    """Mount kept files, by the module or by a tmesh-mount of the demo's own, as the system's may not run. Return what ends the
    mount."""
    if by_module():
        subprocess.run([ROOT / "build/tmeshctl", "mount", place], check=True)
        return lambda: subprocess.run([ROOT / "build/tmeshctl", "umount", place], check=True)
    service = subprocess.Popen([ROOT / "build/tmesh-mount", "--keepers", runtime, place], stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE
    while not os.path.ismount(place):
        if service.poll() is not None or time.monotonic() > end:
            raise SystemExit("demo: tmesh-mount has not mounted its folder")
        time.sleep(0.01)
    return lambda: (service.terminate(), service.wait())


def play(place, folder):
    """Keep the model's folder; run two processes; kill all, remove the folder, and run a third."""
    import tmesh
    shutil.copy(MODEL, folder)
    tmesh.keep_folder(folder, NAME, replace=True)
    path = tmesh.kept_path(NAME, MODEL.name)
    print(f"  kept as {path[len(place):]} below {place}")
    servers = [start(path) for _ in range(2)]
    try:
        answers = [answer(server) for server in servers]
        shares = []
        for server in servers:
            server.stdin.write("\n")
            server.stdin.flush()
            shares.append(answer(server))
        print(f"  both write: {answers[0]['text'].strip()!r}" if answers[0]["text"] == answers[1]["text"] else "  they differ")
        for server, (rss, pss) in zip(servers, shares):
            print(f"  process {server.pid:<8} {rss / 1e6:5.2f} MB of the model, its share {pss / 1e6:5.2f} MB")
    finally:
        for server in servers:
            server.send_signal(signal.SIGKILL)
            server.wait()
    shutil.rmtree(folder)
    again = start(path)
    try:
        last = answer(again)
    finally:
        again.kill()
        again.wait()
    same = "the same text" if last["text"] == answers[0]["text"] else "another text"
    print(f"  all killed, the model's folder removed, started again: {same} after {last['ms']:.0f} ms (first {answers[0]['ms']:.0f} ms)")
    tmesh.drop(NAME)


def show():
    """The act, or why it is not shown."""
    print("\nA stock engine, llama.cpp from the package index, nothing patched, in two processes on one kept path:\n")
    why = missing()
    if why:
        print(f"  not shown: {why}")
        return
    runtime = runtime_folder()
    with tempfile.TemporaryDirectory() as above:
        place, folder = os.environ["TMESH_MOUNT"], os.path.join(above, "model")
        os.mkdir(folder)
        unmount = mount(place, runtime)
        try:
            play(place, folder)
        finally:
            unmount()


def runtime_folder():
    """Return where this user's keeper is, as libtmesh finds it."""
    given = os.environ.get("TMESH_RUNTIME_DIR")
    if given:
        return given
    if os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(os.environ["XDG_RUNTIME_DIR"], "tmesh")
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"tmesh-{os.geteuid()}")


if __name__ == "__main__":
    serve(*sys.argv[1:])
