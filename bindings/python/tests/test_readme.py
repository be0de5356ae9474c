# SPDX-License-Identifier: MIT
"""The README's examples run unchanged, and print the output that it shows."""

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
    # Do not import them here: Debian's PyTorch and the package index's protobuf clash in one process.
    for word, package, why in (("torch", "torch", "PyTorch is not installed"),
                               ("pyarrow", "pyarrow", "pyarrow is not installed: make python-arrow-check"),
                               ("tmesh.grpc", "grpc_tools", "grpcio-tools is not installed: make python-arrow-check")):
        if word in program and not importlib.util.find_spec(package):
            pytest.skip(why)
    wanted = re.findall(r"print\(.*\)\s+# (.*)", program)
    assert python(program, file=tmp_path / "example.py", cwd=tmp_path).splitlines() == wanted
