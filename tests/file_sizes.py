# SPDX-License-Identifier: MIT
"""Calls that can write past RLIMIT_FSIZE, for which the kernel kills the process by SIGXFSZ. The functions of
lib/common/file_size.h make them with that signal blocked, and no other file makes one to a file or a memfd.

tests/rooms.py runs this."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ("lib", "model", "tools", "engine", "net", "bindings")
GUARD = "lib/common/file_size.c"
CALL = re.compile(r"(?<![\w.>])(f?truncate|(?:posix_)?fallocate|p?writev?2?|(?:ftruncate|fallocate|pwrite|sendfile)64|splice|"
                  r"vmsplice|tee|sendfile|copy_file_range|v?dprintf|fwrite|io_uring_prep_(?:write\w*|splice|fallocate))"
                  r"\(([^,;()]+)")
SYSCALL = re.compile(r"\bsyscall\(\s*SYS_(f?truncate\w*|fallocate|p?write\w*|splice|sendfile\w*|copy_file_range)")
STREAM = re.compile(r"\b(f(?:d|re)?open)\([^;]*?\"[^\"]*[wa+][^\"]*\"\)")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')

EVENTFD = "an eventfd"
PIPE = "a pipe"
PROC = "a file of /proc, which has no size"
# The call and its first argument, and what else than a file it writes to.
OTHER = {
    "bindings/cuda/watch.c: write(cuda->wake": EVENTFD,
    "engine/process/calls.c: write(calls->notifier": EVENTFD,
    "engine/process/calls.c: write(calls->shared->wake": EVENTFD,
    "engine/process/check.c: write(ends[1]": PIPE,
    "engine/process/serve.c: write(ready": PIPE,
    "engine/remote.c: write(remote->notifier": EVENTFD,
    "lib/keeper/inherited.c: write(fd": PROC,
    "lib/keeper/main.c: write(fd": PROC,
    "lib/keeper/main.c: write(starter": PIPE,
    "lib/memfd_opaque.c: write(ends[1]": PIPE,
    "lib/server.c: write(server->stop": EVENTFD,
    "lib/watch.c: write(ctx->watch->stop": EVENTFD,
    "lib/watch.c: write(watch->nudge": EVENTFD,
    "model/files/read.c: splice(load->model->files[piece->run->file].fd": PIPE,
    "model/files/read_ahead.c: sendfile(ahead->null": "/dev/null",
    "model/shared/host.c: write(stop": EVENTFD,
    "net/port/frame.c: write(fd": PIPE,
    "tools/engine/graph.c: write(graph": "a function of that name",
    "tools/hold.c: write(hold->ready": PIPE,
}


def raw(text: str) -> list[str]:
    """Return the calls of a source that lib/common/file_size.h has a function for, and streams that are written to."""
    text = COMMENT.sub(" ", text)
    streams = [f"{found[1]}(for writing" for found in STREAM.finditer(text)]
    text = STRING.sub('""', text)
    return streams + [f"syscall(SYS_{found[1]}" for found in SYSCALL.finditer(text)] + \
        [f"{found[1]}({found[2].strip()}" for found in CALL.finditer(text)]


def unguarded() -> tuple[set[str], int]:
    """Return the calls that no list has, the entries that no call needs, and how many calls there are."""
    calls = {f"{path.relative_to(ROOT)}: {call}"
             for room in ROOMS for kind in ("c", "h", "cpp", "hpp") for path in (ROOT / room).rglob(f"*.{kind}")
             if not {"test", "tests", "deps", "_build"} & set(path.relative_to(ROOT).parts)
             and str(path.relative_to(ROOT)) != GUARD
             for call in raw(path.read_text(errors="replace"))}
    return ({f"{call}: use lib/common/file_size.h, or name what it writes to" for call in calls - OTHER.keys()} |
            {f"{call}: is listed, and no such call is left" for call in OTHER.keys() - calls}), len(calls)
