# SPDX-License-Identifier: MIT
"""The examples of the README run as they stand, and print what it says."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(python, number, tmp_path):
    program = EXAMPLES[number]
    if "torch" in program:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    if "pyarrow" in program:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: make python-arrow-check")
    wanted = re.findall(r"print\(.*\)\s+# (.*)", program)
    assert python(program, file=tmp_path / "example.py").splitlines() == wanted
