# SPDX-License-Identifier: MIT
"""Run the bench_* of tests/kselftest against the module in a virtual machine; leave its output for run.py.

The processor is emulated there, so only the ratios mean something.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/vm"))

import boot  # noqa: E402 - from tests/vm
import kernels  # noqa: E402
import modules  # noqa: E402
import results  # noqa: E402
from cache import locked  # noqa: E402

KERNEL = "6.12"
PROGRAMS = sorted((ROOT / "build/tests/bench").glob("bench_*"))
OUT = ROOT / "build/bench/module.json"


def main():
    logs = boot.logs(KERNEL, "bench")
    with locked(logs):
        module, _warnings = modules.tmesh(kernels.prepare(KERNEL), logs)
        peer, _warnings = modules.of_tests(kernels.prepare(KERNEL), "peer", logs)
        outcome = boot.run(KERNEL, "bench", script="kselftest", module=module, programs=PROGRAMS, files=[peer])
    series = results.parse(outcome.results)
    if outcome.trouble or not series:
        sys.exit(f"bench-vm: {outcome.trouble or 'the guest measured nothing'};"
                 f" see {logs}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(series, indent=1) + "\n")
    print(f"bench-vm: {len(series)} figures for `make bench` in {OUT.relative_to(ROOT)}")


main()
