# SPDX-License-Identifier: MIT
"""A server of the whole model that is killed and started again: the bytes that it reads, and the time until it answers.

With arguments this is the server: restart.py STARTED_NS PATH NUMBER..., the numbers those of the words.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def passed_ms(started):
    return (time.monotonic_ns() - started) / 1e6


def serve(started, path, *numbers):
    """Load, answer once, and stay until this process is ended."""
    import numpy as np

    import model
    import tmesh

    loaded = tmesh.load_model(path, keep=True)
    there = passed_ms(started)
    table = loaded[model.TABLE].numpy()
    mean = table[list(numbers)].mean(axis=0)
    cosine = table @ mean / np.linalg.norm(table, axis=1)
    nearest = np.argsort(-cosine)[:100].tolist()
    print(json.dumps({"nearest": nearest, "there_ms": there, "answer_ms": passed_ms(started),
                      "read": loaded.report["bytes_read"], "kept": loaded.report["kept"]}), flush=True)
    sys.stdin.read()


def start(path, numbers):
    """Start a server; return its answer, after which it is killed."""
    server = subprocess.Popen([sys.executable, "-B", __file__, str(time.monotonic_ns()), str(path), *map(str, numbers)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env={"TMESH_KEEPER": str(ROOT / "build/tmesh-keeper"), **os.environ})
    line = server.stdout.readline()
    server.kill()
    server.communicate()
    if not line or server.returncode != -signal.SIGKILL:
        raise SystemExit("demo: the server has not answered")
    return json.loads(line)


def show(path, text, vocabulary):
    """Run it twice, each time killed (SIGKILL). The kept objects are dropped in the end."""
    numbers = vocabulary.tokens(text)
    answers = []
    try:
        for _ in range(2):
            answers.append(start(path, numbers))
    finally:
        if answers:
            subprocess.run([ROOT / "build/tmeshctl", "drop", answers[0]["kept"]], check=True)
    print("\nA server of the whole model, kept; times since its process was started, Python's own start in them:")
    for what, answer in zip(("started", "killed, started again"), answers):
        word = next(vocabulary.words[i] for i in answer["nearest"] if i not in numbers and vocabulary.is_word(i))
        print(f"  {what:<23}read {answer['read'] / 1e6:5.1f} MB   model there {answer['there_ms']:6.0f} ms"
              f"   answered \"{word}\" {answer['answer_ms']:6.0f} ms")


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
