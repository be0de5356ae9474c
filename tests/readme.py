#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A newcomer with only the README: install into a folder of one's own, run its examples, and that of
libtmesh(3), against each other, uninstall. Prints TAP."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from examples import examples as programs

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "readme"
PREFIX = WORK / "prefix"
EXAMPLE = re.compile(r"<!-- file: ([\w.]+) -->\n```\w+\n(.*?)```", re.S)
# The variables that the README sets for a PREFIX of one's own.
OWN_PREFIX = re.compile(r"With a PREFIX of your own: `export ([^`]*)`")
IN_PAGE = re.compile(r"^# EXAMPLE\n\n```\n(.*?)```", re.S | re.M)

failed = 0
count = 0


def check(good, name, why=""):
    global failed, count
    count += 1
    failed += not good
    print(f"{'ok' if good else 'not ok'} {count} - {name}", flush=True)
    if not good:
        print(f"# {why}", flush=True)


def make(*targets):
    subprocess.run(["make", "-s", "-C", ROOT, *targets, f"PREFIX={PREFIX}"], check=True,
                   stdout=sys.stderr)


def files():
    return sorted(str(p.relative_to(PREFIX)) for p in PREFIX.rglob("*") if not p.is_dir())


def output(*command, **env):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600,
                          env={**os.environ, "LC_ALL": "C.UTF-8", **env})
    return (done.stdout.strip(), f"status {done.returncode}: {done.stderr.strip()}")


def own_prefix():
    """Return the environment that the README wants for a PREFIX of one's own."""
    words = OWN_PREFIX.search((ROOT / "README.md").read_text())[1].replace("$PATH", os.environ["PATH"])
    return dict(re.sub(r"\bPREFIX\b", str(PREFIX), word).split("=", 1) for word in words.split())


def producer_of(name):
    return subprocess.Popen([WORK / name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={**os.environ, **own_prefix()})


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    asked = WORK / "bin/pkg-config"
    asked.parent.mkdir()
    asked.write_text("#!/bin/sh\necho pkg-config was asked >&2\n")
    asked.chmod(0o755)
    got = output("make", "-C", ROOT, "help", PATH=f"{asked.parent}:{os.environ['PATH']}", MAKEFLAGS="")
    check(got[1] == "status 0: ", "make wants nothing installed before it installs what it wants", got)
    make("install")
    for built in "", "net":
        plan = output("make", "-n", "-C", ROOT, "install-tools", f"NET_BUILT={built}")[0]
        check(("tmesh-net.1" in plan) == bool(built), f"install brings {'the' if built else 'no'} page of a program that is "
              f"{'there' if built else 'not there'}", plan)
    standin = sys.argv[1]
    make("python", "beam", standin)
    installed = files()
    for part in ("bin/tmeshctl", "lib/libtmesh.so", "lib/libtmesh.so.0",
                 "lib/pkgconfig/libtmesh.pc", "include/tmesh/tmesh.h", "include/linux/tmesh.h",
                 "share/man/man1/tmeshctl.1", "share/bash-completion/completions/tmeshctl"):
        check(any(f == part or f == part + ".gz" for f in installed), f"install brings {part}",
              " ".join(installed))

    for where, wanted in (("PREFIX=/usr/local", 1), (f"PREFIX={PREFIX}", 0), ("DESTDIR=/there", 0)):
        plan = output("make", "-n", "-C", ROOT, "install", where)
        check(plan[0].split("\n").count("ldconfig") == wanted,
              f"with {where} install {'tells the loader' if wanted else 'leaves the loader alone'}", plan)
    got = output("man", "-M", PREFIX / "share/man", "-w", "tmesh_region_seal")
    check(got[0] == f"{PREFIX}/share/man/man3/tmesh_region.3", "man finds a call by its name", got)

    first = re.search(r"```python\n(.*?)```\n\n```\n(.*?)\n```", (ROOT / "README.md").read_text(), re.S)
    got = output(ROOT / "build/venv/bin/python", "-c", first[1])
    check(got[0] == first[2], "the README's first example prints what it says", got)
    examples = dict(EXAMPLE.findall((ROOT / "docs/howto/languages.md").read_text()))
    check(sorted(examples) == ["read.exs", "read.py", "read_gpu.py", "share.c"], "docs/howto/languages.md has its examples")
    for name, text in examples.items():
        (WORK / name).write_text(text)
    page = (ROOT / "docs/man/libtmesh.3.scd").read_text()
    (WORK / "page.c").write_text(IN_PAGE.search(page)[1].replace("\\\\", "\\"))
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libtmesh"], check=True,
                           capture_output=True, text=True,
                           env={**os.environ, **own_prefix()})
    for name, what in (("share", "share.c"), ("page", "libtmesh(3)'s example")):
        built = subprocess.run(["cc", "-Wall", "-Werror", WORK / f"{name}.c", *flags.stdout.split(),
                                "-o", WORK / name],
                               capture_output=True, text=True)
        check(built.returncode == 0, f"{what} compiles with pkg-config's flags", built.stderr)

    with producer_of("page") as producer:
        ref = producer.stdout.readline().strip()
        got = output(ROOT / "build/venv/bin/python", WORK / "read.py", ref)
        check(got[0] == "[ 6. 15.]", "read.py reads what libtmesh(3)'s example put", got)
        producer.communicate("\n")
    with producer_of("share") as producer:
        ref = producer.stdout.readline().strip()
        got = output(ROOT / "build/venv/bin/python", WORK / "read.py", ref)
        check(got[0] == "[ 6. 15.]", "read.py reads what share.c put", got)
        got = output(ROOT / "build/venv/bin/python", WORK / "read_gpu.py", ref,
                     LD_LIBRARY_PATH=f"{(ROOT / standin).parent}:{ROOT / 'build'}")
        check(got[0] == "(2, 3) host\n(2, 3) cuda:0",
              "stand-in for a GPU's driver: read_gpu.py opens what share.c put", got)
        got = output("elixir", "-pa", ROOT / "build/beam/dev/lib/tmesh/ebin", "--app",
                     "tmesh", WORK / "read.exs", ref)
        check(got[0].endswith("4.0"), "read.exs reads what share.c put", got)
        got = output("sh", "-c", "tmeshctl ls", **own_prefix())
        # Among those of others.
        mine = [line for line in got[0].splitlines() if line.startswith(json.loads(ref)["id"])]
        check(len(mine) == 1 and "float32" in mine[0], "tmeshctl ls shows it", got)
        # It is confined by then: it can load only readable files.
        got = output("sh", "-c", "tmesh-engine --engine=onnx --models=. readme", TMESH_ONNXRUNTIME="/nowhere/onnx.so", **own_prefix())
        check("/nowhere/onnx.so" in got[1], "tmesh-engine finds its engines where they were put", got)
        got = output("sh", "-c", 'test -x "$TMESH_KEEPER" && echo "$TMESH_KEEPER"', **own_prefix())
        check(got[0] == f"{PREFIX}/libexec/tmesh-keeper", "the keeper is found by packages of other folders", got)
        producer.communicate("\n")
        check(producer.returncode == 0, "share ends well")
    got = output(ROOT / "build/venv/bin/python", WORK / "read.py", ref)
    check("NotFoundError" in got[1], "after that its ref opens nothing", got)

    programs(WORK, own_prefix(), standin, check)

    make("uninstall")
    check(files() == [], "uninstall leaves nothing", " ".join(files()))
    print(f"1..{count}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
