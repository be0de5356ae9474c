#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Loading and saving while the disk fails, and a storm of kills. Prints TAP.

    faults.py BUILD_DIR

faults.so makes reads of the model's file fail (EIO), end early or come in small pieces; what goes by
io_uring cannot be made to fail so, and is left out. Nothing may be left but what was there before.
"""
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(sys.argv[1]).resolve()
OUT = BUILD / "tests" / "model"
ROUNDS = int(os.environ.get("ROUNDS", 400 if os.environ.get("TMESH_TEST_LENGTH") == "full" else 25))
BYTES = 24 << 20
failed = number = 0


def check(good, name, why=""):
    global failed, number
    number += 1
    failed += not good
    print(f"{'ok' if good else 'not ok'} {number} - {name}", flush=True)
    if not good:
        print(f"# {why}")


def make(folder):
    """8 tensors, each with a byte of its own; the odd header misaligns them."""
    header, size = {}, BYTES // 8
    for i in range(8):
        header[f"t{i}"] = {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    path = os.path.join(folder, "m.safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i in range(8):
            file.write(bytes([i + 1]) * size)
    return path


def start(path, *args, **fault):
    env = {key.upper(): str(value) for key, value in fault.items()}
    if fault:
        env |= {"LD_PRELOAD": str(OUT / "faults.so"), "FAULT_PATH": path}
    return subprocess.Popen([BUILD / "tmeshctl-load", path, "--json", "--hash", "--for", "60", *args],
                            env=dict(os.environ, **env), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def finish(process):
    """What it says of what it loaded; then it may let go. Or its status and why it did not."""
    said = ""
    for line in process.stdout:
        said += line
        try:
            told = json.loads(said)
        except json.JSONDecodeError:
            continue
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        return 0, told["report"]["xxh3"]
    _, why = process.communicate(timeout=60)
    return process.returncode, why


def load(path, *args, **fault):
    return finish(start(path, *args, **fault))


def left(folder):
    return sorted(os.listdir(folder))


def storm(path, runtime, whole):
    """Loaders start and are killed at any time; now and then one is let alone, and has all."""
    rng, good, killed = random.Random(5), 0, 0
    for _ in range(ROUNDS):
        running = [start(path) for _ in range(rng.randrange(1, 4))]
        for process in running:
            if rng.random() < 0.6:
                time.sleep(rng.random() * 0.03)
                process.send_signal(signal.SIGKILL)
        for process in running:
            status, told = finish(process)
            if process.returncode == -signal.SIGKILL:
                killed += 1
            elif status or told != whole:
                return f"{status}: {told}", good, killed
            else:
                good += 1
    load(path)
    flights = [name for name in left(runtime) if name.endswith(".flight")]
    return f"left: {flights}" if flights else "", good, killed


def main():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as runtime:
        os.environ |= {"TMESH_RUNTIME_DIR": runtime, "TMESH_BACKEND": os.environ.get("TMESH_BACKEND", "memfd")}
        path = make(folder)
        status, whole = load(path)
        check(status == 0, "nothing is wrong", whole)
        for method in "splice", "read":
            for after in 0, 100, 5 << 20:
                status, said = load(path, "--method", method, fault="eio", fault_after=after)
                check(status == 1 and "Input/output error" in said, f"{method}: EIO after {after} bytes", said)
            status, said = load(path, "--method", method, fault="end", fault_after=5 << 20)
            check(status == 1 and "shrunk" in said, f"{method}: the file ends early", said)
            status, said = load(path, "--method", method, fault="short", fault_after=(24 << 20) - 5000)
            check(status == 0 and said == whole, f"{method}: reads come in pieces", said)
        for method in "io_uring", "direct":
            status, said = load(path, "--method", method)
            if "cannot be had" in said or "has no O_DIRECT" in said:
                check(True, f"{method} # SKIP {said.strip()}")
                continue
            check(status == 0 and said == whole, f"{method}: the same bytes", said)
        check(not [name for name in left(runtime) if name.endswith(".flight")], "no flight is left", left(runtime))
        why, good, killed = storm(path, runtime, whole)
        check(not why, f"a storm of kills: {killed} killed, {good} had the whole model", why)
    print(f"1..{number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
