# SPDX-License-Identifier: MIT
"""The type of what Tensor.ref() gives."""

from typing import TypedDict

__all__ = ["Ref"]


class Ref(TypedDict):
    """What Tensor.ref() gives: offset and byte_size in bytes, strides in elements."""

    v: int
    id: str
    token: str
    offset: int
    byte_size: int
    shape: list[int]
    dtype: str
    strides: list[int]
    device: str
