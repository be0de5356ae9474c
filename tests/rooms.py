#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The walls between rooms. The headers that each room includes, by the compiler's own lists (.d files). The libraries
that each library is linked with. The files of the module that call each other in a circle. Prints TAP.

    rooms.py ROOM=HEADERS...

says which room installs which headers of include/tmesh/. docs/explanation/architecture.md has the rules.
"""

import re
import subprocess
import sys
from pathlib import Path

import callbacks
import environment
import file_sizes
import outputs

TOP = Path(__file__).resolve().parents[1]
BUILD = TOP / "build"

# Folders with C sources that are no rooms: the module is built by the kernel's rules, and tests use everything.
NO_ROOMS = {"build", "kmod", "tests", "test"}
COMMON = "lib/common"
# The libraries that each library may ask the loader for. An unlisted library may ask for none.
NEEDED = {
    "libtmesh.so": {"libc.so.6", "libjansson.so.4"},
    "libtmesh-cuda.so": {"libc.so.6", "libjansson.so.4", "libtmesh.so.0"},
    "libtmesh-cuda-hook.so": {"libc.so.6", "libtmesh-cuda.so.0"},
    "libtmesh-cuda-torch.so": {"libc.so.6", "libtmesh-cuda.so.0"},
    "libtmesh-xla.so": {"libc.so.6", "libtmesh.so.0"},
    "libtmesh-engine.so": {"libc.so.6", "libjansson.so.4", "libtmesh.so.0"},
    "tmesh-engine-onnx.so": {"libc.so.6"},
    "libtmesh-net.so": {"libc.so.6", "libjansson.so.4", "libtmesh.so.0", "libfabric.so.1"},
    "tmesh-engine-ggml.so": {"libc.so.6", "libjansson.so.4", "libm.so.6"},
    "libtmesh-model.so": {"libc.so.6", "libjansson.so.4", "libtmesh.so.0", "liburing.so.2"},
}

# Files of kmod/ that call each other, directly or by way of others. docs/explanation/architecture.md lists them.
CIRCLES = {frozenset({"lease", "lease_expiry"}), frozenset({"export", "proxy"})}

# Headers of kmod/ that are called as public ones are: docs/explanation/architecture.md has the reason. Other headers
# must have names of their own.
SAME_NAME = {"fence.h", "gather.h", "hold.h", "keep.h", "lease.h", "region.h", "tmesh.h"}

failed = 0
count = 0


def check(wrong, name):
    global failed, count
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}", flush=True)
    for line in sorted(wrong):
        print(f"# {line}", flush=True)


def room_of(path):
    """Return the room of a path: a folder of bindings/, the common folder of lib/, or a folder at the top."""
    if path.startswith(COMMON + "/"):
        return COMMON
    parts = path.split("/")
    return "/".join(parts[:2 if parts[0] == "bindings" else 1])


def sources_like(pattern):
    """Yield matching files of the folders at the top, but not of build/: kernels and packages are unpacked there
    meanwhile."""
    for folder in TOP.iterdir():
        if folder.is_dir() and folder != BUILD:
            yield from (path.relative_to(TOP) for path in folder.rglob(pattern))


def sources():
    for path in sources_like("*.c"):
        if not NO_ROOMS & set(path.parts[:-1]):
            yield str(path)


def inside(name):
    """Return a path of a .d file, as one below the top; None for a file of the system."""
    path = (TOP / name).resolve()
    return str(path.relative_to(TOP)) if path.is_relative_to(TOP) else None


def read_lists():
    """Return the headers that each source includes. Objects of several kinds are made of one source: all count."""
    lists = {}
    # build/packaging has whole systems in it while the packages are tested, build/vm modules that are being built.
    for file in (*BUILD.glob("*.d"), *(file for room in BUILD.glob("*/") if room.name not in ("packaging", "vm")
                                       for file in room.rglob("*.d"))):
        rule = file.read_text().replace("\\\n", " ").splitlines()[0]
        names = [inside(name) for name in rule.partition(":")[2].split()]
        # Skip a removed source, and the object that was made of it.
        if names and names[0] and all(name is None or (TOP / name).exists() for name in names):
            lists.setdefault(names[0], set()).update(name for name in names[1:] if name)
    return lists


def may_include(room, header, installed):
    if header.startswith("include/tmesh/"):
        # A library does not know the libraries that are built on it.
        return room not in ("lib", COMMON) or header in installed["lib"]
    if header.startswith("include/uapi/"):
        return room == "lib"
    return room_of(header) in (room, COMMON)


def needed(library):
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    # The loader itself, for thread-local data.
    return {name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text) if not name.startswith("ld-linux")}


def kmod_calls():
    """Return the files whose functions each file of the module names. A call through a table of operations does not
    count, and a header's inline code belongs to its user."""
    texts = {}
    for path in (*(TOP / "kmod").glob("*.c"), *(TOP / "kmod/compat").glob("*.c")):
        text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.S)
        texts[path.stem] = re.sub(r'"(\\.|[^"\\])*"', '""', text)
    # A definition begins its line, and its body the next one.
    where = {name: stem for stem, text in texts.items() for name in
             re.findall(r"^(?!static\b)[a-z][\w *]*?\b(tmesh_\w+)\([^;{}]*\)\n\{", text, flags=re.M)}
    return {stem: {where[name] for name in re.findall(r"\btmesh_\w+", text) if name in where} - {stem}
            for stem, text in texts.items()}


def magics():
    """Return the files that define each magic number of the product's formats."""
    found = {}
    for pattern in ("*.c", "*.h"):
        for path in sources_like(pattern):
            if path.parts[0] != "tests":
                for name in re.findall(r'0x[0-9a-f]{8,16}\w*\)?\s*(?:\\\s*)?/\* "(T[\w]{3})"', (TOP / path).read_text()):
                    found.setdefault(name, []).append(str(path))
    return found


def functions(*folders):
    """Return the names of functions with external linkage, and of static ones, that folders define."""
    pattern = re.compile(r"^(?!typedef|#|\s)[a-z][\w *]*?\b(tmesh_\w+)\([^;{}]*\)\n\{", flags=re.M)
    return {name for folder in folders for path in (TOP / folder).rglob("*.c") for name in pattern.findall(path.read_text())}


def circles(calls):
    """Return sets of files each of which leads to all others of its set."""
    def reached(start):
        seen, ahead = set(), [start]
        while ahead:
            new = calls[ahead.pop()] - seen
            seen |= new
            ahead += new
        return seen

    reach = {stem: reached(stem) for stem in calls}
    return {frozenset(other for other in seen if stem in reach[other]) for stem, seen in reach.items() if stem in seen}


def main():
    installed = {room: set(headers.split()) for room, headers in (word.split("=", 1) for word in sys.argv[1:])}
    public = {str(path.relative_to(TOP)) for path in TOP.glob("include/tmesh/*.h")}
    every = [header for headers in installed.values() for header in headers]
    check({f"{header} is installed by {every.count(header)} libraries" for header in public | set(every)
           if every.count(header) != 1}, "each public header is installed by one library")

    names = {Path(header).name for header in public}
    private = {str(path) for path in sources_like("*.h") if not (NO_ROOMS | {"include"}) & set(path.parts)}
    check({f"{path} has the name of a public header" for path in private if Path(path).name in names},
          "private headers have names of their own")
    same = {path.name for path in TOP.glob("kmod/*.h")} & names
    check({f"kmod/{name} has the name of a public header, and docs/explanation/architecture.md does not say so" for name in same - SAME_NAME}
          | {f"kmod/{name} has no public namesake any more" for name in SAME_NAME - same},
          "the module's headers have names of their own, with the listed exceptions")

    lists = read_lists()
    rooms = {}
    for source in sources():
        rooms.setdefault(room_of(source), []).append(source)
    for room, files in sorted(rooms.items()):
        wrong = {f"{source}: the compiler left no list of what it includes" for source in files if source not in lists}
        wrong |= {f"{source} includes {header}" for source in files for header in lists.get(source, ())
                  if not may_include(room, header, installed)}
        check(wrong, f"{room} includes its own headers, public ones and {COMMON}: {len(files)} files")

    for library in sorted((*BUILD.glob("libtmesh*.so"), *BUILD.glob("tmesh-engine-*.so"))):
        asked, allowed = needed(library), NEEDED.get(library.name, set())
        check({f"it needs {name}" for name in asked - allowed}, f"{library.name} is linked with {', '.join(sorted(asked))}")
    levels = dict(re.findall(r'\{"(\w+)", "([^"]+)"\}', (TOP / "tools/maturity.h").read_text()))
    said = {path.stem: re.findall(r"^ \* Maturity: (.*)\.$", path.read_text(), flags=re.M) for path in TOP.glob("include/tmesh/*.h")}
    rows = dict(re.findall(r"^\| `tmesh/(\w+)\.h` \| ([^|(]+?) (?:\([^)]*\) )?\|$", (TOP / "docs/README.md").read_text(), flags=re.M))
    check({f"include/tmesh/{name}.h says {found}, tools/maturity.h {levels.get(name)}" for name, found in said.items()
           if found != [levels.get(name)]} | {f"tools/maturity.h has {name}, which is no header" for name in levels.keys() - said}
          | {f"docs/README.md says {rows.get(name)} of tmesh/{name}.h" for name, level in levels.items()
             if rows.get(name, "stable") != level}, "maturity is the same in headers, tmeshctl doctor and the docs index")
    named = re.findall(r"^\| (?!concern|-)[^|]+ \| `([^`]+)` \|$", (TOP / "docs/where.md").read_text(), flags=re.M)
    check({f"{path} is not there" for path in named if not (TOP / path).is_file()}
          | ({f"{len(named)} concerns; 40 are expected"} if len(named) < 40 else set()), "the files that docs/where.md names exist")
    check({f"{name}: {', '.join(paths)}" for name, paths in magics().items() if len(paths) > 1} | (set() if magics() else {"none found"}),
          f"each of {len(magics())} formats has a magic number of its own")
    ours = functions("lib", "model", "engine", "net", "bindings/cuda", "bindings/xla")
    check(functions("kmod") & ours | (set() if ours else {"no functions found"}), f"none of {len(ours)} functions of libraries has the name of one of the module")
    calls = kmod_calls()
    found = circles(calls)
    check({f"they call each other in a circle: {', '.join(sorted(circle))}" for circle in found - CIRCLES}
          | {f"no circle any more: {', '.join(sorted(circle))}" for circle in CIRCLES - found},
          f"files of kmod in circles of calls: {sum(map(len, found))} of {len(calls)}")
    missing, calls_that_fill = outputs.untested()
    check({f"no test_outputs.c has {name}()" for name in missing} | (set() if calls_that_fill else {"no calls found"}),
          f"a failure leaves the results of {calls_that_fill} calls as they were, by test")
    wrong, waits = outputs.timeouts()
    check(wrong | (set() if waits else {"none found"}), f"each of {waits} timeouts is int64_t")
    wrong, members = callbacks.callbacks()
    check(wrong | (set() if members else {"none found"}),
          f"each of {members} callbacks states its thread, the calls that it may make, and fork()")
    wrong, readers = environment.wrong()
    check(wrong, f"each of {readers} functions that read the environment does so at a stated moment")
    wrong, writes = file_sizes.unguarded()
    check(wrong | (set() if writes else {"none found"}),
          f"RLIMIT_FSIZE ends no process: {writes} calls write without a guard, none of them to a file")
    print(f"1..{count}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
