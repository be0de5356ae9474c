#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Print C for test_null.c: a call of each function of the given headers for each of its pointers, which is NULL there,
while all others lead somewhere.

    null_calls.py HEADER...
"""

import re
import sys
from pathlib import Path

# Parameters that may be NULL, beside options, which mean the defaults then, and errors.
MAY = {
    "tmesh_bundle_metadata": {"bytes"},
    "tmesh_channel_level": {"waiting", "room"},
    "tmesh_ctx_flush": {"left"},
    "tmesh_fence_wait": {"reached"},
    "tmesh_kept_open_fd": {"file", "name"},
    "tmesh_kept_open_file": {"file"},
    "tmesh_kept_path": {"path"},
    "tmesh_layout_check": {"extent"},
    "tmesh_region_reclaim": {"report"},
    "tmesh_region_set_description": {"text"},
    "tmesh_tensor_from_dlpack": {"ctx"},
    "tmesh_tensor_from_dlpack_versioned": {"ctx"},
}
# Values for parameters, by type or else by name: members of struct here, and numbers.
TYPES = {
    "struct tmesh_arena *": "here->arena",
    "struct tmesh_bundle *": "here->bundle",
    "struct tmesh_channel *": "here->sender",
    "struct tmesh_ctx *": "here->ctx",
    "struct tmesh_error *": "err",
    "struct tmesh_layout *": "&here->layout",
    "struct tmesh_ref *": "&here->ref",
    "struct tmesh_region *": "here->region",
    "struct tmesh_region *const *": "&here->region",
    "struct tmesh_tensor *": "here->tensor",
    "enum tmesh_dtype": "TMESH_FLOAT32",
    "uint32_t": "TMESH_READ",
    "int64_t": "0",
}
NAMES = {"name": '"a"', "path": '"a"', "text": '"{}"', "token": "here->ref.token", "shape": "here->shape", "ndim": "2",
         "size": "NULL_ROOM"}
# All other pointers.
ROOM = "here->room"


def functions(header: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the functions of a header that return a number, and the type and the name of each parameter."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    found = []
    for name, parameters in re.findall(r"^(?:static inline )?int\s+(tmesh_\w+)\(([^;{]*?)\)[;\s{]", text, re.M):
        pairs = []
        for parameter in (" ".join(each.split()) for each in parameters.split(",")):
            kind, last = re.fullmatch(r"(.*?)(\w+)(?:\[[^]]*\])?", parameter).groups()
            pairs.append((kind.strip() + (" *" if parameter.endswith("]") else ""), last))
        found.append((name, pairs))
    return found


def value(function: str, kind: str, name: str) -> str:
    if kind.endswith("_opts *"):
        return "NULL"
    if kind == "char *":
        return ROOM
    plain = kind.removeprefix("const ")
    if "_recv" in function and plain == "struct tmesh_channel *":
        return "here->receiver"
    if function.startswith("tmesh_channel") and plain == "char *":
        return "here->token"
    if name in NAMES and (plain in ("char *", "int64_t *") or "*" not in plain):
        return NAMES[name]
    return TYPES.get(plain) or (ROOM if "*" in plain else "1")


def main() -> None:
    calls = []
    for header in sys.argv[1:]:
        for function, parameters in functions(Path(header).read_text()):
            if function.endswith(("_unref", "_free", "_close")):
                continue
            for null, (kind, name) in enumerate(parameters):
                if "*" not in kind or kind == "struct tmesh_error *" or kind.endswith("_opts *") or \
                        name in MAY.get(function, ()):
                    continue
                values = ["NULL" if i == null else value(function, *each) for i, each in enumerate(parameters)]
                calls.append((function, name, "err" in values, f"{function}({', '.join(values)})"))
    for i, (_, _, _, call) in enumerate(calls):
        print(f"static int null_{i}(struct here *here, struct tmesh_error *err)\n{{\n\treturn {call};\n}}\n")
    print("static const struct null_call null_calls[] = {")
    for i, (function, name, says, _) in enumerate(calls):
        print(f'\t{{"{function}", "{name}", {str(says).lower()}, null_{i}}},')
    print("};")


main()
