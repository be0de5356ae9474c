# SPDX-License-Identifier: MIT
"""The planted run: our module breaks a rule of docs/internals/locking.md, and lockdep must report it. Each rule has a
guest of its own, because lockdep ends with its first report."""
import shutil
from dataclasses import dataclass

import boot
import kernels
import modules
import splat


@dataclass(frozen=True)
class Offence:
    """A statement that is put behind the first of these lines of a file, a program that comes by, and the report that
    must name the lock."""
    what: str
    program: str
    file: str
    behind: str
    statement: str
    report: str
    lock: str


CYCLE = "possible circular locking dependency"
ASLEEP = "sleeping function called from invalid context"
ALLOCATE = "kfree(kmalloc(16, GFP_KERNEL));"
CLEAR = "if (clear_user((void __user *)8, 1)) {}"
WAKE = "tmesh_wake(&region->wait, EPOLLOUT);"
RESERVE = "{ struct dma_resv r; dma_resv_init(&r); dma_resv_lock(&r, NULL); dma_resv_unlock(&r); dma_resv_fini(&r); }"

CLAIMS = "create", "claim.c", "mutex_lock(&region->claims_lock);"
REGION = "create", "region.c", "down_write(&region->lock);"
USES = "seal", "drain.c", "mutex_lock(&region->uses_lock);\n\tWRITE_ONCE(region->gone, mem);"
KEPT = "keep", "keep.c", "spin_lock(&tmesh_kept_lock);\n\tlinked ="

OFFENCES = (
    Offence("memory is allocated under claims_lock", *CLAIMS, ALLOCATE, CYCLE, "claims_lock"),
    Offence("memory is allocated under the region lock", *REGION, ALLOCATE, CYCLE, "&region->lock"),
    Offence("memory is allocated under uses_lock", *USES, ALLOCATE, CYCLE, "uses_lock"),
    Offence("memory is allocated under tmesh_kept_lock", *KEPT, ALLOCATE, ASLEEP, "tmesh_kept_lock"),
    Offence("user memory is touched under claims_lock", *CLAIMS, CLEAR, CYCLE, "claims_lock"),
    Offence("pollers are woken under claims_lock", *CLAIMS, WAKE, CYCLE, "claims_lock"),
    Offence("pollers are woken under the region lock", *REGION, WAKE, CYCLE, "&region->lock"),
    Offence("a reservation is taken under uses_lock", *USES, RESERVE, CYCLE, "uses_lock"),
    Offence("a reservation is taken under claims_lock", *CLAIMS, RESERVE, CYCLE, "claims_lock"),
)


def built(kernel, where, offence):
    """Build the module with an offence. Return its file."""
    module, _ = modules.tmesh(kernel, where, [])
    path = module.parent / offence.file
    text = path.read_text()
    if offence.behind not in text:
        raise SystemExit(f"vm: kmod/{offence.file} has no line {offence.behind!r} any more")
    first = offence.behind.split("\n")[0]
    at = text.index(offence.behind) + len(first)
    includes = "".join(f"#include <linux/{name}.h>\n" for name in ("dma-resv", "poll", "uaccess"))
    path.write_text(f"{includes}{text[:at]} {offence.statement}{text[at:]}")
    modules.make(kernel, "-C", kernel.kdir, f"M={module.parent.parent}", *modules.arguments(kernel), "KCFLAGS=-w", "modules")
    return module


def run(tap, name):
    """Boot a guest for each offence."""
    kernel, logs = kernels.prepare(name), boot.logs(name, "planted")
    peer, _ = modules.of_tests(kernel, "peer", logs)
    for number, offence in enumerate(OFFENCES, 1):
        module = built(kernel, logs, offence)
        outcome = boot.run(name, "planted", module=module, script="kselftest", files=[peer],
                           programs=[boot.BUILD / "tests/kselftest" / offence.program])
        shutil.copy(logs / "console", logs / f"console.{number}")
        complaints = splat.in_console(outcome.console)
        first = complaints[0].text if complaints else "no report"
        seen = offence.report in first and offence.lock in first
        tap.point(seen, f"{name}: planted: lockdep reports that {offence.what}")
        if not seen:
            tap.note(first)
