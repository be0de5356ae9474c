# SPDX-License-Identifier: MIT
"""The examples of the README run as they stand, and print what it says."""

import importlib.util
import re
from pathlib import Path

import pytest
from conftest import ANY_BACKEND

pytestmark = ANY_BACKEND

README = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(python, number, tmp_path):
    program = EXAMPLES[number]
    # Not imported here: Debian's PyTorch and the package index's protobuf do not bear each other in one process.
    for word, package, why in (("torch", "torch", "PyTorch is not installed"),
                               ("pyarrow", "pyarrow", "pyarrow is not installed: make python-arrow-check"),
                               ("tmesh.grpc", "grpc_tools", "grpcio-tools is not installed: make python-arrow-check")):
        if word in program and not importlib.util.find_spec(package):
            pytest.skip(why)
    wanted = re.findall(r"print\(.*\)\s+# (.*)", program)
    assert python(program, file=tmp_path / "example.py", cwd=tmp_path).splitlines() == wanted
