# SPDX-License-Identifier: MIT
"""Run bench_kernel against the module in a virtual machine; leave what it says for run.py.

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

KERNEL = "6.12"
PROGRAM = ROOT / "build/tests/bench/bench_kernel"
OUT = ROOT / "build/bench/kernel.json"
NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def main():
    module, _warnings = modules.tmesh(kernels.prepare(KERNEL))
    outcome = boot.run(KERNEL, "kselftest", module=module, programs=[PROGRAM])
    series = {}
    for line in outcome.results.splitlines():
        if line.startswith("{"):
            record = json.loads(line)
            value, unit = record["value"], record["unit"]
            series[f"kernel/{record['name']}"] = (
                {"p50_ns": value * NS[unit]} if unit in NS else {"value": value, "unit": unit})
    if outcome.trouble or not series:
        sys.exit(f"bench-vm: {outcome.trouble or 'the guest measured nothing'};"
                 f" see build/vm/{KERNEL}/kselftest")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(series, indent=1) + "\n")
    for name, record in series.items():
        print(name, *record.values())


main()
