# SPDX-License-Identifier: MIT
"""The type of Tensor.ref()'s result."""

from typing import TypedDict

__all__ = ["Ref"]


class Ref(TypedDict):
    """A ref: offset and byte_size are in bytes, strides in elements."""

    v: int
    id: str
    token: str
    offset: int
    byte_size: int
    shape: list[int]
    dtype: str
    strides: list[int]
    device: str
