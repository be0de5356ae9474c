# SPDX-License-Identifier: MIT
"""tmesh.put() of 100 MB into the warm pool, beside memcpy() to memory touched before. One copy is to small pages, as
the region's are. The other is between NumPy's own arrays, for which NumPy asks the kernel for huge pages.
"""

import ctypes
import mmap

import numpy as np

import tmesh
from harness import CPU_PRODUCER, Series, pin

ROUNDS, WARM_UP = 30, 3
BYTES = 100_000_000


def main():
    pin(CPU_PRODUCER)
    tmesh.configure(region_pool_bytes=2 * BYTES)
    source, array = np.ones(BYTES, np.uint8), np.ones(BYTES, np.uint8)
    small_pages = mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    target = np.frombuffer(small_pages, np.uint8)
    target[:] = 1
    series = Series("python")
    for turn in range(-WARM_UP, ROUNDS):
        for name, to in ("memcpy-warm", target), ("memcpy-huge", array):
            series.time(name, lambda: ctypes.memmove(to.ctypes.data, source.ctypes.data, BYTES),
                        turn >= 0)
        series.time("put-warm", lambda: tmesh.put(source, seal=False), turn >= 0).release()
    series.print()


main()
