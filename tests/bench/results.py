# SPDX-License-Identifier: MIT
"""The output of benches, a JSON object a line: {"topic", "name"} and the samples "ns" or a reason to "skip". The
module's bench prints {"name", "value", "unit"} with a median.
"""

import json
import statistics


def summary(samples):
    """Median, 99th percentile and best of samples in nanoseconds."""
    ordered = sorted(samples)
    return {
        "n": len(ordered),
        "p50_ns": statistics.median(ordered),
        "p99_ns": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "min_ns": ordered[0],
    }


def parse(text):
    """The series in a bench's output, by topic/name."""
    series = {}
    for line in text.splitlines():
        if line.startswith("{") and line.endswith("}"):
            record = json.loads(line)
            name = f"{record.pop('topic', 'module')}/{record.pop('name')}"
            if "ns" in record:
                record = summary(record["ns"])
            elif record.get("unit") == "us":
                record = {"p50_ns": 1000 * record["value"]}
            series[name] = record
    return series
