# SPDX-License-Identifier: MIT
"""What this process has sent by ref and nobody has taken yet: it is held until then."""

from __future__ import annotations

import time

from . import _tmesh

here = _tmesh.Sent()


def wait(timeout: float) -> None:
    """Until what this process has sent was taken, but no longer than that: who died with a ref
    takes nothing."""
    deadline = time.monotonic() + timeout
    while here.under_way() and time.monotonic() < deadline:
        time.sleep(0.001)
