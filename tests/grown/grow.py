#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A copy of the public headers in which each structure that may grow has a member more, as in a
version to come. Prints how many. A structure that neither may grow nor is known to be frozen is an error.

    grow.py INCLUDE COPY
"""

import re
import shutil
import sys
from pathlib import Path

STRUCT = re.compile(r"^(struct (tmesh_\w+) \{\n)(.*?)^(\};)", re.M | re.S)
# Elements of arrays, whose size goes along with the call.
ELEMENTS = {"tmesh_cap", "tmesh_cuda_cap", "tmesh_holder_info"}
# Structures that never grow, and why. Further members of one go into a structure beside it.
FROZEN = {
    "tmesh_error": "callers have it on their stack, and every call writes it",
    "tmesh_layout": "a plain value, copied and compared whole, and a member of others",
    "tmesh_ref": "a plain value; what a version to come adds is in its text, whose unknown members are allowed",
    "tmesh_message": "a plain value of one slot of a channel, whose layout is the same for all processes",
    "tmesh_bundle_entry": "callers' arrays have it; options are in tmesh_bundle_opts",
    "tmesh_gather_extent": "callers' arrays have it; options are in tmesh_region_opts",
    "tmesh_kept_file": "callers' arrays have it, in tmesh_keep_opts",
    "tmesh_model_item": "callers' arrays have it; options are in those of the call",
    "tmesh_devices_library": "callers' arrays have it, in the options of the call",
    "tmesh_engine_weight": "callers' arrays have it, in the options of the call",
    "tmesh_engine_value": "callers' arrays have it; an engine's plug-in reads them",
    "tmesh_page_victim": "callers' arrays have it",
    "tmesh_placement_place": "callers' arrays have it",
    "tmesh_placement_link": "callers' arrays have it",
}


def main(source, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    grown, left = set(), set()

    def grow(found):
        head, name, members, end = found.groups()
        if name not in ELEMENTS and not re.match(r"\s*size_t size;", members):
            left.add(name)
            return found.group()
        grown.add(name)
        return f"{head}{members}\tuint64_t grown[3];\n{end}"

    for header in sorted(Path(copy, "tmesh").glob("*.h")):
        header.write_text(STRUCT.sub(grow, header.read_text()))
    missing = ELEMENTS - grown
    if missing or len(grown) < 40:
        sys.exit(f"only {len(grown)} structures have grown, not {', '.join(sorted(missing))}")
    if unknown := left - FROZEN.keys():
        sys.exit(f"neither does it begin with its size, nor is it frozen (FROZEN in this file): {', '.join(sorted(unknown))}")
    if gone := FROZEN.keys() - left:
        sys.exit(f"not frozen, or not there any more: {', '.join(sorted(gone))}")
    told = set(re.findall(r"\btmesh_\w+", Path(source, "tmesh/tmesh.h").read_text()))
    if silent := FROZEN.keys() - told:
        sys.exit(f"frozen, and tmesh/tmesh.h does not say so: {', '.join(sorted(silent))}")
    print(f"# {len(grown)} structures have grown, {len(left)} are frozen")


main(*sys.argv[1:])
