# SPDX-License-Identifier: MIT
"""Each call of a public header that fills something of its caller's is in a test_outputs.c. These tests look at it after a
failure. A timeout has one type. tests/rooms.py runs this."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What calls fill. Objects that a call is about have other names.
FILLED = {
    "out", "info", "infos", "stats", "limits", "caps", "report", "count", "token", "ticket",
    "text", "fd", "i", "addr", "wait", "reached", "left", "layout", "extent", "ref",
    "entry", "message", "messages", "files", "holders", "regions", "region", "file", "bytes", "waiting",
    "room", "index", "generation", "value", "page", "device", "place", "tables", "lens", "slots",
    "need", "at", "given_up", "key", "address", "node", "name", "data", "offset", "outputs",
}


def calls(header: str) -> list[tuple[str, str]]:
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    return re.findall(r"^(?:static inline )?int\s+(tmesh_\w+)\(([^;{]*?)\)[;\n]", text, re.M)


def fills(arguments: str) -> bool:
    for argument in re.split(r",\s*", arguments):
        kind, _, name = " ".join(argument.split()).rpartition("*")
        pointers = kind.count("*") + 1
        readable = kind.startswith("const ") and pointers == 1 or kind.endswith("const ")
        an_object = kind == "struct tmesh_region "
        if name in FILLED and not readable and not an_object:
            return True
    return False


def untested() -> tuple[set[str], int]:
    """Return the calls that no test looks at, and how many there are in all."""
    tested: set[str] = set()
    for path in ROOT.glob("tests/*/test_outputs.c"):
        tested |= set(re.findall(r"(?:FAILS|CHECK)\((tmesh_\w+)", path.read_text()))
    names = []
    for path in ROOT.glob("include/tmesh/*.h"):
        names += [name for name, arguments in calls(path.read_text()) if fills(arguments)]
    return {name for name in names if not {name, name.removesuffix("_sized")} & tested}, len(names)


def timeouts() -> tuple[set[str], int]:
    """Return the timeouts of all headers that are not int64_t, and how many there are in all."""
    found = [(path.name, kind) for path in ROOT.glob("include/tmesh/*.h")
             for kind in re.findall(r"(\w+) \w*timeout\w*[,;)]", re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S))]
    return {f"{name}: a timeout is {kind}" for name, kind in found if kind != "int64_t"}, len(found)
