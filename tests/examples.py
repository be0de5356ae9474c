# SPDX-License-Identifier: MIT
"""The programs of examples/c as their first lines say, against what is installed: for readme.py, which installs."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# An example for the test programs of libtmesh-net: it needs a Tmesh.Net.
ELSEWHERE = {"net_open"}
MODEL = ROOT / "examples/small_model/small.gguf"
SECONDS = 600


def run(work, env, *command):
    done = subprocess.run([work / command[0], *command[1:]], capture_output=True, text=True, timeout=SECONDS, env=env)
    return done.stdout.splitlines(), f"status {done.returncode}: {done.stderr.strip()}"


def kept(work, env):
    """A bundle outlives the program that put it."""
    def get():
        return run(work, env, "kept", "get")
    yield run(work, env, "kept", "put")[1], "status 0: "
    yield get()[0], ["weight begins with 1 2 3", "bias begins with 7 8 9"]
    yield run(work, env, "kept", "drop")[1], "status 0: "
    yield get()[1], 'status 1: kept: nothing is kept as "example"'


def gguf(work, env):
    """A file's metadata with their types, and a tensor of it."""
    lines, status = run(work, env, "gguf", MODEL)
    yield (lines[0], status), ("general.architecture = llama", "status 0: ")
    yield "llama.block_count = 3" in lines, True
    yield run(work, env, "gguf", MODEL, "token_embd.weight")[0][0].split(" bytes")[0], "token_embd.weight: F16, 2 dimensions, 131072"
    yield run(work, env, "gguf", MODEL, "none")[1], 'status 1: gguf: the model has no tensor "none"'


def hold(work, env):
    """A function returns a ref and releases the tensor; the first reader gets it all the same, a later one does not."""
    with subprocess.Popen([work / "hold"], stdout=subprocess.PIPE, text=True, env=env) as producer:
        ref = producer.stdout.readline().strip()
        yield run(work, env, "read", ref), (["21"], "status 0: ")
        yield producer.wait(), 0
    lines, status = run(work, env, "read", ref)
    yield (lines, status.split(":")[:3]), ([], ["status 1", " read", " no such region"])
    yield run(work, env, "read", "{")[1].split(" from")[0], "status 1: read: the ref is not JSON"


def channel(work, env):
    """Values sent before the producer ends arrive, then its end."""
    with subprocess.Popen([work / "channel"], stdout=subprocess.PIPE, text=True, env=env) as consumer:
        token = consumer.stdout.readline().strip()
        yield run(work, env, "channel", token), ([], "status 0: ")
        yield consumer.stdout.read().splitlines(), ["number: 1", "number: 2", "number: 3"]
        yield consumer.wait(), 0
    yield run(work, env, "channel", token)[1].split(":")[0], "status 1"


def slot(work, env):
    """A reader sees each value that it waits for, keeps the first, and sees the publisher's end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    with subprocess.Popen([work / "slot"], **pipes) as publisher:
        print(5, file=publisher.stdin, flush=True)
        yield publisher.stdout.readline(), "generation 1\n"
        yield run(work, env, "slot")[1].split(":")[:2], ["status 1", " slot"]
        with subprocess.Popen([work / "slot", "read"], **pipes) as reader:
            yield reader.stdout.readline(), "generation 1: 5\n"
            print(6, file=publisher.stdin, flush=True)
            yield reader.stdout.readline(), "generation 2: 6\n"
            publisher.stdin.close()
            yield reader.stdout.read(), "generation 1: 5\n"
            yield (reader.wait(), publisher.wait()), (0, 0)
    yield run(work, env, "slot", "read")[1], 'status 1: slot: no slot is published as "example"'


def model(work, env):
    """A tensor of a loaded model, by its name."""
    lines, status = run(work, env, "model", MODEL, "token_embd.weight")
    yield (lines[0].split(",")[0], status), ("token_embd.weight float16 512 x 128", "status 0: ")
    yield run(work, env, "model", MODEL, "none")[1], 'status 1: model: the model has no tensor "none"'


def pages(work, env):
    """A router follows an engine's tables, until the engine ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    with subprocess.Popen([work / "pages"], stderr=subprocess.PIPE, **pipes) as engine:
        log = engine.stdout.readline().strip()
        with subprocess.Popen([work / "pages", log], **pipes) as router:
            # The router first prints the sequence as it was at its own start, or nothing of it yet.
            for tokens, blocks in ((20, 2), (40, 3)):
                print(file=engine.stdin, flush=True)
                wanted = f"sequence 1: {tokens} tokens in {blocks} pages"
                yield next((line.strip() for line in router.stdout if line.strip() == wanted), "it ended"), wanted
            engine.stdin.close()
            yield {line.strip() for line in router.stdout if "sequence" in line} - {wanted}, set()
            yield router.wait(), 0
        yield engine.wait(), 0


def placement(work, env):
    """The layers go to the GPU, except those that it has no kernel for."""
    yield run(work, env, "placement")[0][:3], ["embed: CPU", "layers: GPU", "logits: CPU"]


def gpu_socket(work, env):
    """Stand-in for a GPU's driver: the child reads what the parent wrote."""
    yield run(work, env, "gpu_socket"), (["written by the parent"], "status 0: ")


def examples(work, prefix, standin, check):
    """Build each, and run it. @prefix: the environment that the README wants for a PREFIX of one's own."""
    sources = sorted((ROOT / "examples/c").glob("*.c"))
    plays = {play.__name__: play for play in (kept, gguf, model, hold, channel, slot, pages, placement, gpu_socket)}
    check({source.stem for source in sources} == plays.keys() | ELSEWHERE | {"read"}, "each program of examples/c is run somewhere")
    folder = tempfile.mkdtemp(prefix="tmesh-examples-")
    env = {**os.environ, **prefix, "LC_ALL": "C.UTF-8", "TMESH_BACKEND": "memfd", "TMESH_RUNTIME_DIR": folder}
    for source in sources:
        shutil.copy(source, work)
        command = re.search(r"^/\* (cc .*) \*/$", source.read_text(), re.M)[1]
        library = re.search(r"--libs (\S+)\)", command)[1]
        if subprocess.run(["pkg-config", "--exists", library], env=env).returncode:
            # Without libfabric there is no libtmesh-net.
            check(library == "libtmesh-net", f"{source.name} has its library", library)
            continue
        built = subprocess.run(command.replace("cc ", "cc -Wall -Wextra -Werror ", 1), shell=True, cwd=work, env=env,
                               capture_output=True, text=True)
        check(built.returncode == 0, f"{source.name} compiles as its first line says", built.stderr)
    env["LD_LIBRARY_PATH"] = f"{(ROOT / standin).parent}:{env['LD_LIBRARY_PATH']}"
    for name, play in plays.items():
        wrong = [f"{got} and not {wanted}" for got, wanted in play(work, env) if got != wanted]
        check(not wrong, f"{name}: {play.__doc__}", "; ".join(wrong))
    shutil.rmtree(folder, ignore_errors=True)
