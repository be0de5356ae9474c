# SPDX-License-Identifier: MIT
"""The seeded run: seeded/seeded.c makes one mistake of each kind, and each must be found."""
import guest
import kernels
import modules
import splat
from judge import Results, reached_end

# What the kernel must say about each mistake, by boot. Lockdep falls silent after its own
# first complaint and after KASAN's, so locks have a boot of their own.
BOOTS = (
    {
        "sleep-under-spinlock": "sleeping function called from invalid context",
        "abba": "possible circular locking dependency",
    },
    {
        "use-after-free": "KASAN: slab-use-after-free in use_after_free",
        "out-of-bounds": "KASAN: slab-out-of-bounds in out_of_bounds",
        "shift": "UBSAN: shift-out-of-bounds",
        "warn": r"WARNING: .* at warn\+",
        "dma-size": "DMA-API: .* frees DMA memory with different size",
        "leak": r"kmemleak: unreferenced object .*\(size 4096\)",
    },
)


def boot(tap, name, module, mistakes):
    outcome = guest.boot(name, "seeded", module=module, arguments=[f"TMESH_SEEDED={','.join(mistakes)}"])
    results = Results(outcome.results)
    for what, ok, detail in results.checks:
        # The one check that has to fail, and only where a lock was abused.
        if what == "lockdep is still on":
            tap.point(not ok, f"{name}: {what} is answered with no after {', '.join(mistakes)}")
        else:
            tap.point(ok, f"{name}: {what} {detail}")
    return outcome, results


def run(tap, name):
    module, _ = modules.build(kernels.prepare(name), "tests/vm/seeded")
    for mistakes in BOOTS:
        outcome, results = boot(tap, name, module, mistakes)
        reached_end(tap, name, outcome, results)
        complaints = splat.in_console(outcome.console) + splat.in_kmemleak(results.leaks)
        for mistake, expected in mistakes.items():
            found = [c for c in complaints if splat.matches(c, mistake, expected)]
            tap.point(len(found) == 1, f"{name}: {mistake} is reported, once")
            complaints = [c for c in complaints if c not in found]
        for complaint in complaints:
            tap.point(False, f"{name}: not seeded, during {complaint.during}: {complaint.title}")
            tap.note(complaint.text)
