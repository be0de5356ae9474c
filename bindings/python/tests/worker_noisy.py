# SPDX-License-Identifier: MIT
"""A module that prints while it is imported: a line that looks like the worker's own, and half
a one."""

print("ready")
print("loading", end="", flush=True)


def nothing():
    pass
