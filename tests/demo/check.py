# SPDX-License-Identifier: MIT
"""Run the demo as `make demo` does and check its claims, as TAP."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import seeded

ROOT = Path(__file__).resolve().parents[2]
BACKEND = "kernel" if os.path.exists("/dev/tmesh") else "memfd"
# A guest generates fewer tokens, and once. A user's own reader of the model does not depend on the backend.
SHORT = os.environ.get("TMESH_BACKEND") == "kernel" and os.environ.get("TMESH_TEST_LENGTH") != "full"
TOKENS = 60 if SHORT else 300
WORD = r"[a-z]+ +-?\d\.\d\d"

# Lines that the demo must print, once.
SAID = {
    f"it uses the {BACKEND} backend": rf"^tmesh \S+, {BACKEND} backend$",
    "Python puts the whole table": r"^Python +put 30522 x 384 float32 \(46\.9 MB\)",
    "Elixir reads rows without a copy": r"^Elixir +opened it by its ref, took \d+ rows as binaries without a copy",
    "Elixir puts their mean": r"^ +and put their mean, 1536 bytes",
    "ten nearest words": rf"^Nearest to .*\n(  ({WORD} *){{5}}\n){{2}}",
    "and they are near": r"^  dough +0\.40 ",
    "ls shows the sealed table": rf"^[0-9a-f]{{16}}  44\.7 MiB +{BACKEND} +sealed .*float32 \[30522, 384\]",
    "tmesh copied nothing but the mean": r"^Bytes that tmesh copied after the first put: Python 0, Elixir 1536 ",
    "a server reads the model": r"^  started +read +9\d\.\d MB   model there +\d+ ms   answered \"dough\" +\d+ ms$",
    "killed and started again it reads nothing":
        r"^  killed, started again +read +0\.0 MB   model there +\d+ ms   answered \"dough\" +\d+ ms$",
    "two engines have the weights in one region": r"^  0\.95 MB of weights, float16, in one region; two engines \(ggml \S+\) ready",
    "both generate, and Elixir chooses": rf"^  {TOKENS} tokens in \d+\.\d\d s, both at once, each chosen by Elixir",
    "no byte was copied for it": r"^  Bytes that tmesh copied for it, in Python: 0$",
    "what both begin with is in one set of pages":
        r"^  A reads \d+ tokens that both begin with: (\d+) pages of keys and values, \d+ KiB\. B forks them: \1 pages still$",
    "and stays so but for the page that was not full":
        r"^  Pages of keys and values: A has \d+, B \d+, [1-9]\d* of them the same \(\d+ KiB shared\).*\n  a write: 1 page,",
    "an adapter is swapped, an engine killed and back": r"^  A \| A region (.*\n)*?.*\[adapter\](.*\n)*?.*\[killed\]",
    "the other one goes on": r"^  B \| Elixir (.*\n)*?.*\[adapter\]",
    "the next token comes of another process": r"^  Engine A, process \d+, was killed \(SIGKILL\): calls lost [01], its next token after \d+ ms",
    "each engine has all of the weights, for reading": r"^(  engine [AB], process \d+ +0\.9\d MB +0\.\d\d MB   r\n){2}",
    "and all together one copy": r"^  all together +(0\.9\d|1\.0\d) MB$",
    "the hand-overs are timed": r"^  tmesh +\d+\.\d\d ms +\d+\.\d\d ms$",
}


# Lines of the third act, where it is shown.
SAID_STOCK = {
    "a stock engine writes the same in two processes": r"^  both write: '",
    "with one copy of the model": r"^(  process \d+ +0\.9\d MB of the model, its share +0\.[45]\d MB\n){2}",
    "and goes on from memory": r"^  all killed, the model's folder removed, started again: the same text after \d+ ms",
}

# The same of a model of the user's.
SAID_OWN = {
    "it shows that model": r"^seeded\.gguf, architecture qwen2, in two engine processes:$",
    "its weights are in one region": r"^  0\.23 MB of weights, float16, in one region; two engines \(ggml \S+\) ready",
    "both go on from the query": r"^  A \| <s>abc(.*\n)*?.*\[killed\]",
    "each token is chosen by Elixir": r"^  80 tokens in \d+\.\d\d s, both at once, each chosen by Elixir",
    "and nothing is copied": r"^  Bytes that tmesh copied for it, in Python: 0$",
    "the killed engine comes back": r"^  Engine A, process \d+, was killed \(SIGKILL\): calls lost [01], its next token after \d+ ms",
    "the engines have the weights once": r"^(  engine [AB], process \d+ +0\.2\d MB +0\.\d\d MB   r\n){2}",
}
OWN = [*(f"a model of the user's: {what}" for what in (*SAID_OWN, "it ends well")), "an architecture that is not known is refused",
       "a file that is not there is refused", "a query that is too long is refused"]
SKIP = " # SKIP says nothing of the backend; run on memfds"


def run(env, **more):
    done = subprocess.run([ROOT / "tests/demo/run.sh"], env=env | more, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    sys.stderr.write(done.stdout + done.stderr)
    return done


def said(done, patterns):
    return {what: len(re.findall(pattern, done.stdout, re.M)) == 1 for what, pattern in patterns.items()}


def refused(done, *words):
    """It ends with one line that gives the reason."""
    last = done.stderr.splitlines()[-1] if done.stderr else ""
    return done.returncode == 1 and last.startswith("demo: ") and "Traceback" not in done.stderr and all(word in last for word in words)


def own_models(env):
    """The result of each of its checks."""
    with tempfile.TemporaryDirectory() as folder:
        model, other = Path(folder, "seeded.gguf"), Path(folder, "other.gguf")
        seeded.write(model, "qwen2", 7)
        seeded.write(other, "rwkv7", 7)
        shown = run(env, MODEL=str(model), QUERY="abc")
        return [*said(shown, SAID_OWN).values(), shown.returncode == 0,
                refused(run(env, MODEL=str(other)), "other.gguf", "architecture 'rwkv7'", "llama, qwen2, qwen3", "docs/reference/engines.md"),
                refused(run(env, MODEL=f"{folder}/none.gguf"), "none.gguf"),
                refused(run(env, MODEL=str(model), QUERY="-" * 300), "QUERY=", "301 tokens")]


def stock(done):
    """The third act's points. Without the engine's wheel for this Python, FUSE or libfuse the demo leaves it out and
    prints why."""
    act = done.stdout.partition("A stock engine, ")[2]
    why = re.search(r"^  not shown: (.*)$", act, re.M)
    return {f"{what} # SKIP {why[1]}": True for what in SAID_STOCK} if why else said(done, SAID_STOCK)


def holders(text):
    """The commands of the processes that hold the table."""
    table = text.partition("$ tmeshctl holders ")[2].partition("\n\n")[0]
    return set(re.findall(r"^\d+ +(beam\.smp|python)", table, re.M))


def main():
    # Its own query, and its own choice of the backend.
    env = {name: value for name, value in os.environ.items() if name not in ("QUERY", "MODEL", "SHORT", "TMESH_BACKEND")}
    if SHORT:
        env["SHORT"] = "1"
    done = run(env)
    checks = said(done, SAID) | stock(done)
    checks["Python and Elixir hold the table"] = len(holders(done.stdout)) == 2
    checks["it ends well"] = done.returncode == 0
    checks |= {what + SKIP: True for what in OWN} if SHORT else dict(zip(OWN, own_models(env), strict=True))
    print(f"1..{len(checks)}")
    for number, (what, good) in enumerate(checks.items(), 1):
        print(f"{'ok' if good else 'not ok'} {number} - {what}")
    return not all(checks.values())


if __name__ == "__main__":
    sys.exit(main())
