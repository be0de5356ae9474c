# SPDX-License-Identifier: MIT
"""The seeded run: seeded/seeded.c makes one mistake of each kind, and each must be found."""
import boot
import kernels
import modules
import splat
from judge import Results

# The report that the kernel must print for each mistake. Lockdep turns itself off after its first report and after one
# of KASAN, so mistakes with locks come first. The panic is last.
MISTAKES = {
    "sleep-under-spinlock": "sleeping function called from invalid context",
    "abba": "possible circular locking dependency",
    "use-after-free": "KASAN: slab-use-after-free in use_after_free",
    "out-of-bounds": "KASAN: slab-out-of-bounds in out_of_bounds",
    "shift": "UBSAN: shift-out-of-bounds",
    "warn": r"WARNING: .* at warn\+",
    "dma-size": "DMA-API: .* frees DMA memory with different size",
    "leak": r"kmemleak: unreferenced object .*\bleak\+",
    "panic": "Kernel panic - not syncing: seeded",
}


def run(tap, name):
    """Run the seeded mistakes and check that each is found."""
    module, _ = modules.of_tests(kernels.prepare(name), "seeded", boot.logs(name, "seeded"))
    outcome = boot.run(name, "seeded", module=module, devices=(), arguments=[f"TMESH_SEEDED={','.join(MISTAKES)}"])
    results = Results(outcome.results)
    tap.point(not results.ended, f"{name}: a guest that panics is seen not to reach its end")
    for what, ok, detail in results.checks:
        if what == "lockdep is still on":
            # The reports of KASAN and lockdep turn it off.
            tap.point(not ok, f"{name}: lockdep is seen to be off")
        else:
            tap.point(ok, f"{name}: {what} {detail}")

    complaints = splat.in_console(outcome.console) + splat.in_kmemleak(results.leaks)
    for mistake, expected in MISTAKES.items():
        found = [c for c in complaints if splat.matches(c, mistake, expected)]
        tap.point(len(found) == 1, f"{name}: {mistake} is reported, once")
        complaints = [c for c in complaints if c not in found]
    for complaint in complaints:
        tap.point(False, f"{name}: not seeded, during {complaint.during}: {complaint.title}")
        tap.note(complaint.text)
