# SPDX-License-Identifier: MIT
"""Memory that stays under a name when every process that held it is gone.

    tmesh.keep(net.state_dict(), "weights")           # sealed; this process may end now
    weights = tmesh.open_kept("weights")              # later, in another process: the same memory
    net.load_state_dict(weights.state_dict(), assign=True)
    tmesh.drop("weights")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _tmesh
from .bundles import Bundle, bundle
from .model import Model


def keep(what: object, name: str, *, replace: bool = False, lifetime: float | None = None, mode: int = 0o600,
         gid: int | None = None) -> Any:
    """Keep a Bundle, a Model or a Tensor under a name, and give it back. A dict of names and arrays is made a
    bundle first, an array is put() first: copies, once.

    Only sealed memory is kept, and a whole Tensor, not a part of one. replace: the name may be taken; what is there
    goes in the same step. Else ExistsError. lifetime: dropped after so many seconds; None: never. mode, gid: who may
    open it (memfd: only 0o600). LimitError when this user's limit is reached and all that is kept is held.

    Under the module the kernel keeps it. On memfd a small process of this user does, tmesh-keeper, which is started;
    docs/keeping.md says what each promises."""
    if isinstance(what, Model):
        what = what.bundle
    elif isinstance(what, Mapping) and not isinstance(what, Bundle):
        what = bundle(what)
    elif not isinstance(what, (Bundle, _tmesh.Tensor)):
        what = _tmesh.put(what)
    _tmesh.keep(what._held if isinstance(what, Bundle) else what, name, replace, lifetime, mode, gid)
    return what


def open_kept(name: str, *, uid: int | None = None) -> Any:
    """What is kept under a name: a Bundle or a Tensor, for reading, without a copy. Of several regions that are no
    bundle, as other programs may keep them, a list of Tensors. uid: of another user who admits this one (not on
    memfd). NotFoundError when nothing is kept there."""
    found = _tmesh.open_kept(name, uid)
    if isinstance(found, _tmesh.Held):
        return Bundle(found)
    return found[0] if len(found) == 1 else found
