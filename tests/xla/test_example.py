# SPDX-License-Identifier: MIT
"""examples/xla_training as it stands: Elixir feeds a JAX program, another process serves its weights."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed, and cannot be had from the package index")

ROOT = Path(__file__).resolve().parents[2]
EBIN = ROOT / "build/beam/dev/lib/tmesh/ebin"


def test_training_is_fed_and_served():
    if not shutil.which("elixir") or not EBIN.exists():
        pytest.skip("Elixir, or tmesh for it (make beam), is not there")
    done = subprocess.run(["elixir", "-pa", EBIN, ROOT / "examples/xla_training/feed.exs", "50"], capture_output=True,
                          text=True, timeout=600, env={**os.environ, "TMESH_PYTHON": sys.executable, "LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    published = re.findall(r"^generation (\d): region ([0-9a-f]{16}) published$", done.stdout, re.M)
    served = re.findall(r"^generation (\d): region ([0-9a-f]{16}) answers (\d\.\d\d), 0 bytes copied$", done.stdout, re.M)
    # Each generation, on the pages that the training wrote, and better each time.
    assert [number for number, _ in published] == list("12345")
    assert [(number, region) for number, region, _ in served] == published
    answers = [float(answer) for *_, answer in served]
    assert answers == sorted(answers) and answers[-1] > 0.6
    assert done.stdout.count("loss ") == 6
