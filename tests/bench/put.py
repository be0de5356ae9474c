# SPDX-License-Identifier: MIT
"""tmesh.put() of 100 MB into the warm pool, beside memcpy() to memory touched before."""

import ctypes

import numpy as np

import tmesh
from harness import CPU_PRODUCER, Series, pin

ROUNDS, WARM_UP = 30, 3
BYTES = 100_000_000


def main():
    pin(CPU_PRODUCER)
    tmesh.configure(pool_bytes=2 * BYTES)
    source, target = np.ones(BYTES, np.uint8), np.ones(BYTES, np.uint8)
    to, start = target.ctypes.data, source.ctypes.data
    series = Series("python")
    for turn in range(-WARM_UP, ROUNDS):
        series.time("memcpy-warm", lambda: ctypes.memmove(to, start, BYTES), turn >= 0)
        series.time("put-warm", lambda: tmesh.put(source), turn >= 0).release()
    series.print()


main()
