#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The kit for machines with a GPU itself: its contents, the order and limits of its steps, and its results. On the
stand-in; prints TAP.

usage: kit.py KIT OUT     OUT: what `run all` left"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KIT, OUT = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(KIT))
sys.dont_write_bytecode = True
import bench  # noqa: E402
import check  # noqa: E402
import libraries  # noqa: E402
import steps  # noqa: E402

tests = []


def test(function):
    tests.append(function)
    return function


def run(*words):
    return subprocess.run([KIT / "run", *words], capture_output=True, text=True)


@test
def every_library_is_carried():
    assert not libraries.missing(KIT), libraries.missing(KIT)
    needed = libraries.needed(KIT)
    assert {"libtmesh.so.0", "libjansson.so.4", "liburing.so.2"} <= set(needed), needed


@test
def a_library_that_is_missing_is_named():
    for name in libraries.needed(KIT):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(KIT, Path(folder) / "kit"))
            (copy / name).unlink()
            done = subprocess.run([sys.executable, "-B", copy / "libraries.py", copy], capture_output=True, text=True)
            assert done.returncode == 1 and f"needs {name}, which is not in" in done.stdout, done.stdout


@test
def what_is_carried_is_what_is_loaded():
    """Wherever else there is one, as here."""
    script = ("import os, tmesh.cuda; tmesh.cuda.available(); "
              "print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line})")
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True,
                          env={**os.environ, "LD_LIBRARY_PATH": f"{KIT.absolute()}:{os.environ['LD_LIBRARY_PATH']}",
                               "PYTHONPATH": str(KIT.absolute())})
    loaded = {os.path.basename(path): os.path.dirname(path) for path in done.stdout.split()}
    for name in libraries.needed(KIT):
        assert loaded.get(name) == str(KIT.resolve()), f"{name} is of {loaded.get(name)}"


@test
def those_that_tell_most_come_first():
    assert set(steps.ORDER) == {*check.tests, *bench.PARTS} and len(steps.ORDER) == len(set(steps.ORDER))
    groups = (("kept_when_all_are_killed",), ("two_processes", "three_processes_and_a_producer_that_goes"),
              ("sealed_region_read_only", "registered_in_pieces"), ("torch_pool_and_training_step", "torch_between_processes"),
              ("vllm_loads_a_model",), tuple(bench.PARTS))
    places = [[steps.ORDER.index(name) for name in group] for group in groups]
    assert all(max(earlier) < min(later) for earlier, later in zip(places, places[1:])), steps.ORDER
    assert places[0] == [0] and len(steps.FIRST) < len(steps.ORDER)
    # All steps before the measurements fit into one call of 540 s if each ends within half its limit.
    before = steps.ORDER[:steps.ORDER.index(next(iter(bench.PARTS)))]
    assert sum(steps.limit_of(name) for name in before) / 2 <= 540, before


@test
def every_step_is_a_row_of_the_page():
    """The names by which results are entered."""
    rows = {line.strip("| ").split(" | ")[0] for line in steps.table()}
    assert rows >= {steps.row_of(name) for name in steps.ORDER}, {steps.row_of(name) for name in steps.ORDER} - rows


@test
def a_step_has_its_time_and_what_it_said_is_kept():
    heard = []
    start = time.monotonic()
    status = steps.attempt(["sh", "-c", "echo said; sleep 600 & sleep 600"], 5, heard.append)
    assert status is None and heard == ["said"] and time.monotonic() - start < 600
    # A process that the step leaves behind has the pipe, and is ended.
    assert steps.attempt(["sh", "-c", "sleep 600 & printf more; exit 3"], 600, heard.append) == 3
    assert heard == ["said", "more"]
    assert steps.attempt(["sh", "-c", "exec >&- 2>&-; exit 4"], 600, heard.append) == 4
    assert steps.attempt(["sh", "-c", "kill -9 $$"], 600, heard.append) == -9


@test
def what_the_budget_does_not_reach_is_not_passed():
    with tempfile.TemporaryDirectory() as out:
        done = run("all", "--budget", "1", "--out", out)
        assert done.returncode == 2, done
        results = re.findall(r"^(ok|not ok) (\d+) - .*?(\w+): not reached$", done.stdout, re.M)
        assert [name for _, _, name in results] == list(steps.ORDER), done.stdout
        assert {word for word, _, _ in results} == {"not ok"}
        assert not re.search(r"^ok ", done.stdout, re.M)
        assert (Path(out) / "rows.md").read_text().splitlines() == steps.table()
        assert f"not reached: {' '.join(steps.ORDER)}" in done.stdout


@test
def what_was_said_is_kept_when_a_later_step_hangs():
    """The whole run is killed, as by a call's limit."""
    with tempfile.TemporaryDirectory() as out:
        # host_lease takes six seconds by itself: it stands for a step that hangs.
        process = subprocess.Popen([KIT / "run", "check", "--out", out, "two_processes", "host_lease"],
                                   stdout=subprocess.DEVNULL, start_new_session=True)
        log, rows, end = Path(out) / "log.txt", Path(out) / "rows.md", time.monotonic() + 120
        while time.monotonic() < end and not rows.exists():
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert re.search(r"^ok 1 - .*two_processes", log.read_text(), re.M)
        assert "stand-in, not a GPU: seen" in rows.read_text(), rows.read_text()


@test
def a_step_without_its_wheel_is_skipped_by_name():
    with tempfile.TemporaryDirectory() as folder:
        # The other stand-ins stay.
        for path in Path(os.environ["PYTHONPATH"]).iterdir():
            if path.name not in ("vllm.py", "__pycache__"):
                (Path(folder) / path.name).symlink_to(path)
        done = subprocess.run([KIT / "run", "check", "vllm_loads_a_model"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": folder})
    assert done.returncode == 0, done
    assert re.search(r"^ok 1 - .*vllm_loads_a_model # SKIP vllm cannot be imported", done.stdout, re.M), done.stdout


@test
def a_step_that_the_budget_ends_is_not_reached():
    # That one takes six seconds by itself.
    done = run("check", "--budget", "5", "host_lease", "out_of_memory")
    assert done.returncode == 2, done
    assert re.search(r"^not ok \d - stand-in.*host_lease: not reached$", done.stdout, re.M), done.stdout
    # The next call takes the names that the last line has.
    names = done.stdout.splitlines()[-1].partition("not reached: ")[2].split()
    assert names[0] == "host_lease", done.stdout
    done = run("all", "--budget", "540", *names)
    assert done.returncode == 0 and len(re.findall(r"^ok ", done.stdout, re.M)) == len(names), done


@test
def a_wrong_name_is_refused():
    done = run("check", "no_such")
    assert done.returncode == 1 and "there is no no_such in: " in done.stderr, done
    assert run("bench", "two_processes").returncode == 1


@test
def all_of_it_is_kept():
    assert sorted(path.name for path in OUT.iterdir()) == ["bench.md", "log.txt", "rows.md"]
    log = (OUT / "log.txt").read_text()
    assert len(re.findall(r"^(?:not )?ok \d+ - ", log, re.M)) == len(steps.ORDER)
    rows = (OUT / "rows.md").read_text().splitlines()
    assert len(rows) == len(steps.table())
    seen = [line for line in rows if "stand-in, not a GPU: seen: stand-in" in line]
    assert len(seen) > 10 and all(line.count(" | ") == 2 for line in rows), rows
    measured = (OUT / "bench.md").read_text().splitlines()
    assert measured[0].startswith("Measured on stand-in, not a GPU: ")
    assert all(line.count("|") == 5 for line in measured[2:]) and len(measured) > 20, measured


def main():
    print(f"1..{len(tests)}")
    failed = 0
    for number, function in enumerate(tests, 1):
        word = "ok"
        try:
            function()
        except Exception as error:
            word = "not ok"
            failed = 1
            print(*(f"# {line}" for line in f"{type(error).__name__}: {error}".splitlines()), sep="\n")
        print(f"{word} {number} - stand-in: kit: {function.__name__}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
