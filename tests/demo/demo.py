# SPDX-License-Identifier: MIT
"""One embedding table, put once by Python, read in place by Elixir, ranked by Python."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import tmesh

import engines
import handover
import model
import peers
import restart
import stock

BOLD, DIM, PLAIN = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")
NEAREST = 10


def say(who, text):
    print(f"{BOLD}{who:<7}{PLAIN} {text}")


def tmeshctl(*args, only=None):
    """Print the output of tmeshctl; of the regions only those with these ids, as others may exist."""
    print(f"\n{DIM}$ tmeshctl {' '.join(args)}{PLAIN}")
    head, *lines = subprocess.run([peers.ROOT / "build/tmeshctl", *args], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout.splitlines()
    shown = [line for line in lines if only is None or line.split()[0] in only]
    print("\n".join([head, *shown]))
    others = len(lines) - len(shown)
    if others:
        print(f"{DIM}and {others} {'region' if others == 1 else 'regions'} of others{PLAIN}")


def put_table(path):
    """The model's table as a sealed tensor."""
    file = model.load_table(path)
    file.sum()  # from disk before the clock starts
    start = time.perf_counter()
    tensor = tmesh.put(file, label="all-MiniLM-L6-v2 words")
    spent = time.perf_counter() - start
    rows, columns = tensor.shape
    say("Python", f"put {rows} x {columns} {tensor.dtype} ({tensor.nbytes / 1e6:.1f} MB) of"
                  f" all-MiniLM-L6-v2 into a region and sealed it: {1000 * spent:.0f} ms")
    return tensor


def nearest(table, query, vocabulary, skip):
    """The words whose rows have the largest cosine with the query, best first."""
    cosine = table @ query / (np.linalg.norm(table, axis=1) * np.linalg.norm(query))
    words = (int(i) for i in np.argsort(-cosine) if i not in skip and vocabulary.is_word(i))
    return [(vocabulary.words[i], cosine[i]) for i, _n in zip(words, range(NEAREST))]


def show(tensor, text, vocabulary, elixir):
    tokens = vocabulary.tokens(text)
    if not tokens:
        raise SystemExit("demo: the query has no words")
    copied = {"Python": tmesh.stats()["bytes_copied"], "Elixir": int(elixir.ask("copied"))}

    body = ",".join(map(str, tokens)) + "\n" + json.dumps(tensor.ref())
    mean = tmesh.open(elixir.ask("mean", body.encode()))
    say("Elixir", f'opened it by its ref, took {len(tokens)} rows as binaries without a copy'
                  f' ({", ".join(vocabulary.words[i] for i in tokens)})')
    say("", f"and put their mean, {mean.nbytes} bytes, into a second region")

    start = time.perf_counter()
    words = nearest(tensor.numpy(), mean.numpy(), vocabulary, set(tokens))
    spent = time.perf_counter() - start
    say("Python", f"ranked the vocabulary against it in place: {1000 * spent:.0f} ms")
    print(f"\nNearest to {BOLD}{text}{PLAIN}, besides its own words:")
    for start in range(0, NEAREST, NEAREST // 2):
        print("  " + "".join(f"{word:<12}{DIM}{cosine:.2f}{PLAIN}    "
                             for word, cosine in words[start:start + NEAREST // 2]))

    tmeshctl("ls", only={tensor.id, mean.id})
    tmeshctl("holders", tensor.id)

    now = {"Python": tmesh.stats()["bytes_copied"], "Elixir": int(elixir.ask("copied"))}
    python, beam = (now[side] - copied[side] for side in ("Python", "Elixir"))
    print(f"\nBytes that tmesh copied after the first put: Python {python}, Elixir {beam}"
          " (the mean, which Elixir computed).\n")
    mean.release()
    elixir.ask("release")


def main():
    folder, text, own = Path(sys.argv[1]), *sys.argv[2:4]
    stock.choose_place()
    if not own:
        weights, words = model.unpack(folder)
        vocabulary = model.Vocabulary(words)
    elixir = peers.Elixir()
    try:
        print(f"{BOLD}tmesh {tmesh.__version__}{PLAIN}, {tmesh.backend()} backend\n")
        if own:
            engines.show_own(elixir, own, text)
            return
        tensor = put_table(weights)
        show(tensor, text, vocabulary, elixir)
        handover.measure(tensor.numpy(), tensor.ref(), elixir)
        restart.show(weights, text, vocabulary)
        engines.show(elixir)
        stock.show()
    finally:
        elixir.close()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130)
