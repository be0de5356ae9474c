#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A copy of the public headers in which each structure that may grow has a member more, as in a
version to come. Prints how many.

    grow.py INCLUDE COPY
"""

import re
import shutil
import sys
from pathlib import Path

STRUCT = re.compile(r"^(struct (tmesh_\w+) \{\n)(.*?)^(\};)", re.M | re.S)
# Elements of arrays, whose size goes along with the call.
ELEMENTS = {"tmesh_cap", "tmesh_cuda_cap", "tmesh_holder_info"}


def main(source, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    grown = set()

    def grow(found):
        head, name, members, end = found.groups()
        if name not in ELEMENTS and not re.match(r"\s*size_t size;", members):
            return found.group()
        grown.add(name)
        return f"{head}{members}\tuint64_t grown[3];\n{end}"

    for header in sorted(Path(copy, "tmesh").glob("*.h")):
        header.write_text(STRUCT.sub(grow, header.read_text()))
    missing = ELEMENTS - grown
    if missing or len(grown) < 40:
        sys.exit(f"only {len(grown)} structures have grown, not {', '.join(sorted(missing))}")
    print(f"# {len(grown)} structures have grown")


main(*sys.argv[1:])
