# SPDX-License-Identifier: MIT
"""The generation of weights that this worker has. Blocks of a KV cache that other weights have computed are not its own."""

from __future__ import annotations

_current = b""


def set(name: bytes) -> None:
    """Note that the weights are those of this generation now."""
    global _current
    _current = name


def current() -> bytes:
    """Return the generation's name; b"": the model's files."""
    return _current
