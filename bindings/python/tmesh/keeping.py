# SPDX-License-Identifier: MIT
"""Memory that stays under a name after every process that held it is gone.

    tmesh.keep(net.state_dict(), "weights")           # sealed; this process may end now
    weights = tmesh.open_kept("weights")              # later, in another process: the same memory
    net.load_state_dict(weights.state_dict(), assign=True)
    tmesh.drop("weights")

    tmesh.keep_folder("models/llama", "llama")        # all files of a model, for programs that open paths
    llama_cpp.Llama(tmesh.kept_path("llama", "model.gguf"))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from . import _tmesh
from .bundles import Bundle, bundle
from .model import Model


def keep(what: object, name: str, *, replace: bool = False, lifetime: float | None = None, mode: int = 0o600,
         gid: int | None = None) -> Any:
    """Keep a Bundle, a Model or a Tensor under a name, and return it. A dict of names and arrays is first made a
    bundle, and an array is first put(); both copy once.

    Only sealed memory is kept, and only a whole Tensor, not a part of one. replace=True replaces memory already kept
    under the name, in one step; else ExistsError. lifetime: seconds until it is dropped; None: never. mode, gid: the
    users who may open it (memfd: only 0o600). LimitError: this user's limit is reached and all kept memory is in use.

    With the module the kernel keeps it. On memfd tmesh-keeper does, a small process of this user, which is started if
    needed. docs/reference/keeping.md lists the promises of each."""
    if isinstance(what, Model):
        what = what.bundle
    elif isinstance(what, Mapping) and not isinstance(what, Bundle):
        what = bundle(what)
    elif not isinstance(what, (Bundle, _tmesh.Tensor)):
        what = _tmesh.put(what)
    _tmesh.keep(what._held if isinstance(what, Bundle) else what, name, replace, lifetime, mode, gid)
    return what


def open_kept(name: str, *, uid: int | None = None, path: str | os.PathLike[str] | None = None) -> Any:
    """Open memory kept under a name: a Bundle or a Tensor, read-only, without a copy. A name under which another program keeps
    regions that are no bundle gives a list of Tensors. uid: another user who admits this one (not on memfd). path: one file of
    keep_folder(), as a Tensor of its bytes. NotFoundError: nothing is kept under the name."""
    if path is not None:
        return _tmesh.open_kept_file(name, path)
    found = _tmesh.open_kept(name, uid)
    if isinstance(found, _tmesh.Held):
        return Bundle(found)
    return found[0] if len(found) == 1 else found


def keep_folder(path: str | os.PathLike[str], name: str, *, replace: bool = False, lifetime: float | None = None,
                mode: int = 0o600, gid: int | None = None,
                progress: Callable[[int, int], object] | None = None) -> None:
    """Keep all files of a folder, of a model of the Hugging Face hub, or one file, under a name. They are read once and
    sealed, in huge pages if there are any. Other programs open them at kept_path().

    Links to files are followed. After an error nothing is kept. InvalidError: a socket, a device, a pipe or a link to a
    folder. StaleError: a file changed meanwhile. LimitError: more than 65,536 files, or more than 1,024 of 64 KiB and
    larger.

    mode: the permissions of the files by their paths: 0o600, 0o640 or 0o644. progress: called with the bytes read and the bytes
    of all files; an exception of it ends the call. The other arguments are those of keep()."""
    _tmesh.keep_folder(path, name, replace, lifetime, mode, gid, progress)


def kept_path(name: str, path: str | os.PathLike[str] | None = None) -> str:
    """Return the path of kept files, or of one of them, for any program. NotFoundError: nothing is kept under the name,
    or it was kept without files, or no mount shows its files; the message says which. PeerTimeoutError: the mount does
    not answer."""
    return _tmesh.kept_path(name, path)
