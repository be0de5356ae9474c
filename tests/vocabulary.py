#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/vocabulary.md against what there is: the headers, tmeshctl's JSON, the Python package, the
Elixir application. One region is made, and all of them say what they see. Prints TAP.

    vocabulary.py TMESHCTL PYTHON EBIN MAP...
"""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PAGE = (TOP / "tests/vocabulary.md").read_text()

# Rows of the page that no language has yet, or not all. Remove a row from here when its names exist.
NOT_YET = {
    "C": set(),
    "Python": set(),
    "Elixir": set(),
    "tmeshctl": set(),
}
# C's members beside the page's, by handle, and the parts that the page's members are made of.
C_ALONE = {
    "region": {"size", "rights", "pinning", "lapsed", "zeros", "lease_ns", "lease_left_ns", "fence_producer", "fence_dead"},
    "holder": {"region"},
}
MADE = {"tensor", "fence"}

PYTHON_SIDE = """
import dataclasses, json, sys, typing
import tmesh, tmesh.batching, tmesh.cuda, tmesh.engine, tmesh.fetcher, tmesh.graphs, tmesh.net
import tmesh.safetensors.numpy
from tmesh import _tmesh

def found(name):
    at = tmesh
    for part in name.replace("()", "").split("."):
        if not hasattr(at, part):
            return False
        at = getattr(at, part)
    return True

def answer(what, *words):
    if what == "function":
        return found(words[0])
    if what == "all":
        return list(tmesh.__all__)
    if what == "keep":
        tmesh.keep(tmesh.put(b"kept"), words[0])
    if what == "drop":
        tmesh.drop(words[0])
    if what == "kept":
        return next(kept for kept in tmesh.kept() if kept["name"] == words[0])
    if what == "fields":
        return [field.name for field in dataclasses.fields(getattr(tmesh.engine, words[0][:-1].capitalize()))]
    if what == "ref":
        return tmesh.zeros((2, 3), "float32").ref()
    if what == "opens":
        try:
            tmesh.open(words[0]).release()
        except tmesh.Error as error:
            return str(error)
        return None
    if what == "region":
        return next(region for region in tmesh.regions() if region["id"] == words[0])
    if what == "holder":
        return tmesh.holders(words[0])[0]
    if what == "default":
        try:
            return getattr(tmesh, words[0])((2,)).dtype
        except TypeError:
            return None
    if what == "dtype":
        try:
            return tmesh.empty((2,), words[0]).dtype
        except tmesh.InvalidError:
            return None

for line in sys.stdin:
    print(json.dumps(answer(*line.split())), flush=True)
"""

# Symbols in the maps that have no row of their own on the page, with the reason. Whole names as regular expressions. An
# expression that covers nothing must go from here, and so must one whose names have come to the page.
NO_ROW = {
    "of every counted object, as docs/explanation/architecture.md says": r"tmesh_\w+_(ref|unref|unref_on|try_unref)",
    "C's handles are opened, closed and asked what they are; languages have objects":
        r"tmesh_(ctx|net|cuda)_open|tmesh_ctx_(backend|limit|runtime_dir)|tmesh_slot_close|tmesh_seq_free|tmesh_version|"
        r"tmesh_(slot|channel|region)_token|tmesh_channel_wake|tmesh_channel_trim|tmesh_channel_gone|tmesh_net_(provider|grant|revoke)|tmesh_keeper_info|tmesh_limits",
    "members of a language's objects: its properties, or how it is iterated":
        r"tmesh_bundle_(bytes|count|entry|find|index|metadata|name|regions|tensor|ref_size|ref_encode|from_regions|plan)|"
        r"tmesh_model_(bundle|files?|find|format|format_name|method_name|parse|region|report|tensors?|"
        r"tensor_open)|tmesh_slot_value_\w+|tmesh_page_pool_info|tmesh_pages_(base|hash|head|info|trim|unshare)|tmesh_seq_(id|tokens)|"
        r"tmesh_devices_\w+|tmesh_engine_(context_(backend|version)|graph_\w+|tensor_info)",
    "the memory under a tensor, which languages have by buffers and DLPack":
        r"tmesh_region_(bytes|create|derive|events|fd|from_fd|from_memfd|id|info|is_sealed|map|opaque_fd|open|pin|poll_fd|"
        r"populate|private|read|rights|set_description|unmap|write)|tmesh_tensor_(bytes|data|from_dlpack|from_dlpack_versioned|layout|"
        r"read|region|to_dlpack|to_dlpack_versioned|view|wrap)|tmesh_layout_\w+|tmesh_ref_(decode|encode)",
    "words of the page's own tables": r"tmesh_(backend|backing|dtype|holder_kind)_name|tmesh_dtype_(bits|from_name)",
    "a channel's waits: languages have them under send and receive": r"tmesh_channel_(send|recv|flush)(_batch)?",
    "leases of a process, and what a lease is: members of lease and info": r"tmesh_lease_(bind|state)",
    "memory of GPUs, Python's tmesh.cuda and Elixir's Tmesh.DLPack: docs/reference/cuda.md has the calls": r"tmesh_cuda_\w+",
    "what libtmesh-xla counts, one function for each of its users": r"tmesh_xla_stats",
}
# Functions that only others' programs call: half of a pair, whose other half has users here, and the short forms of
# calls that take a cancellable.
NO_USER = r"tmesh_\w+_ref|tmesh_engine_(binding_)?dispatch"
# As NO_ROW, for the Python package.
NO_ROW_PYTHON = {
    "classes whose calls are in the table": r"Arena|Channel|Bundle|Description|Model|PagePool|Pages|Slot|SlotReader|SlotValue|Tensor|Queue|Ref",
    "errors, which have a table": r"\w*Error",
    "of the package": r"__version__|backend|configure",
    "of Python's own protocols, and a drawing for notebooks": r"from_address|from_dlpack|draw",
}
# The same of the Elixir application: full names of functions, without "Tmesh." and without arities.
NO_ROW_ELIXIR = {
    "bang forms of what has a row or a reason": r".*!",
    "of Elixir's own protocols and behaviours": r"(Collectable|Enumerable|Inspect)\..*|.*\.(child_spec|start_link)",
    "a handle's end, as Python's release() and close()": r".*\.(release|close)",
    "what a handle is: Python has properties": r"backend|.*\.(info|tokens)|Pages\.(hash|head|trim|unshare)|TensorRef\.dtypes",
    "members of a language's objects, as above": r"(Bundle|Model|Slot\.Value)\.(fetch|to_map|metadata|read|bundle|to_nx)|"
                                                r"ZeroCopy\.(tie|to_binary|write)|TensorRef\.from_json|Graph\.(in_place|save)",
    "a channel's waits, as above": r"Channel\.(call|flush)",
    "names between nodes, and pages of another node: docs/reference/net.md": r"Net\.(lookup|names|publish|unpublish)|Net\.Pages\..*",
    "what the other languages have by their packages: each has a guide": r"(Arrow|DLPack|Nx|Stream|Telemetry|Worker|AutoDetect)\..*",
}

count = failed = 0


def check(wrong, name):
    global count, failed
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}", flush=True)
    for line in sorted(wrong):
        print(f"# {line}", flush=True)


def table(name):
    """The cells of a marked table, a row at a time."""
    body = PAGE.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in body.splitlines() if line.startswith("|")]
    return rows[2:]


def words(cell):
    return re.findall(r"`([^`]+)`", cell)


def members(name):
    return {word for row in table(name) for word in words(row[0])}


def struct(header, name):
    text = (TOP / header).read_text().split(f"struct {name} {{")[1].split("\n};")[0]
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return set(re.findall(r"(\w+)(?:\[[^]]*\])?;", text))


def typed_dict(name, file="_tmesh.pyi"):
    text = (TOP / "bindings/python/tmesh" / file).read_text()
    body = re.search(rf"^class {name}\(TypedDict\):\n((?:    .*\n|\n)*)", text, re.M)
    return set(re.findall(r"^    (\w+):", body.group(1), re.M)) if body else set()


def differ(want, have, where):
    return {f"{where} has no {name}" for name in want - have} | {f"{where} has {name}, the page not" for name in have - want}


class Peer:
    """A process that answers questions, a line each."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *question):
        print(*question, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def same(want, answers, name, varies=()):
    """Every side has the page's members, and tells the same of them."""
    wrong = set()
    for side, answer in answers.items():
        wrong |= differ(want, set(answer), side)
    for member in want - set(varies):
        told = {json.dumps(answer.get(member), sort_keys=True): side for side, answer in answers.items()}
        if len(told) > 1:
            wrong.add(f"{member} is {', '.join(f'{value} for {side}' for value, side in told.items())}")
    check(wrong, name)


def calls(tmeshctl, maps, python, elixir):
    # A function that takes a structure's size has an inline form without it in the headers.
    exported = {name.removesuffix("_sized") for file in maps
                for name in re.findall(r"^\s*(tmesh_\w+);", Path(file).read_text(), re.M)}
    verbs = subprocess.run([tmeshctl, "--help"], capture_output=True, text=True).stdout
    missing = {"C": set(), "Python": set(), "Elixir": set(), "tmeshctl": set()}
    for _, c, py, ex, tool in table("calls"):
        missing["C"] |= {name for name in words(c) if name not in exported}
        missing["Python"] |= {name for name in words(py) if not python.ask("function", name)}
        module = "Tmesh"
        for name in words(ex):
            module, name = name.rsplit(".", 1) if "." in name else (module, name)
            if not elixir.ask("function", f"{module}.{name}"):
                missing["Elixir"].add(f"{module}.{name}")
        for name in words(tool):
            verb, _, option = name.partition(" ")
            text = subprocess.run([tmeshctl, verb, "--help"], capture_output=True, text=True).stdout if option else ""
            if not re.search(rf"^\s*{verb}\b", verbs, re.M) or option not in text:
                missing["tmeshctl"].add(name)
    used(exported)
    no_row(exported, {name for _, c, *_ in table("calls") for name in words(c)}, NO_ROW, "C")
    no_row(set(python.ask("all")), {name.removesuffix("()") for _, _, py, *_ in table("calls") for name in words(py)},
           NO_ROW_PYTHON, "Python")
    page = set()
    for _, _, _, ex, _ in table("calls"):
        module = "Tmesh"
        for name in words(ex):
            module, name = name.rsplit(".", 1) if "." in name else (module, name)
            page.add(plain(f"{elixir.ask('module', module)}.{name.split('/')[0]}"))
    no_row({plain(name) for name in elixir.ask("all")}, page, NO_ROW_ELIXIR, "Elixir")
    for side, names in missing.items():
        wrong = {f"{name} is missing" for name in names - NOT_YET[side]}
        for name in sorted(NOT_YET[side] - names):
            print(f"# {side} has {name} now")
        check(wrong, f"{side} has the calls of the page" + (f" but {len(NOT_YET[side])}" if NOT_YET[side] else ""))


def used(exported):
    """Every function that a library exports is called by something that is no test: one of our libraries, tools and
    bindings, or an example. Tables of calls that are looked up name them as X(name), without their prefix."""
    called = set()
    for room in ("lib", "model", "engine", "net", "bindings", "tools", "examples"):
        for path in [*(TOP / room).rglob("*.c"), *(TOP / room).rglob("*.h")]:
            text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(), flags=re.S)
            for line in text.splitlines():
                # A line that begins in the first column defines or declares the first name in it.
                line = line.partition("(")[2] if re.match(r"[a-z]", line) else line
                called |= set(re.findall(r"(?<!struct )(?<!enum )\btmesh_\w+", line))
                called |= {f"tmesh_{name}" for name in re.findall(r"\bX\((\w+)\)", line)}
    called = {name.removesuffix("_sized") for name in called}
    unused = {name for name in exported - called if not re.fullmatch(NO_USER, name)}
    check({f"nothing but tests calls {name}: an example, a tool or a binding is to, or it goes" for name in unused},
          "every exported function has a user")


# The beginning of a message is for its reader: never only the call that failed.
SYSTEM_CALLS = (r"open|close|read|write|p?(read|write)v?|fcntl|ioctl|f?stat|mmap|m(protect|remap)|socket(pair)?|bind|listen|connect|"
                r"accept4?|(send|recv)(msg)?|[gs]etsockopt|poll|e?poll_\w+|epoll|eventfd|timerfd\w*|signalfd|inotify\w*|pipe2?|fork|"
                r"clone3?|exec\w*|waitp?id|kill|dup[23]?|memfd_create|f?truncate|fallocate|rename|unlink(at)?|mkdir(at)?|fdopen|fopen|"
                r"dl(open|sym)|pthread_\w+|sig(procmask|action)|sched_\w+|prctl|seccomp|landlock_\w+|pidfd_\w+|unshare|setns")


def messages():
    wrong = set()
    for room in ("lib", "model", "engine", "net", "bindings", "tools"):
        for path in (TOP / room).rglob("*.c"):
            for found in re.finditer(rf'(?:tmesh_fail_errno\(\s*err,|complain(?:_errno)?\(|perror\()\s*"({SYSTEM_CALLS})(: %s)?"',
                                     path.read_text()):
                wrong.add(f"{path.relative_to(TOP)} says {found[1]!r}: which call failed for the user?")
    check(wrong, "no error says a system call's name alone")


def plain(name):
    """As the page has it: Tmesh.ZeroCopy.TensorRef.to_map is TensorRef.to_map."""
    name = name.removeprefix("Tmesh.")
    return name.removeprefix("ZeroCopy.") if name.count(".") > 1 else name


def no_row(names, page, exempt, side):
    """Every public name has a row of the page or a reason, and every reason a name."""
    reasons = {reason: re.compile(names) for reason, names in exempt.items()}
    wrong = {f"{side} has {name}, which is in no row of tests/vocabulary.md and has no reason here" for name in names - page
             if not any(pattern.fullmatch(name) for pattern in reasons.values())}
    wrong |= {f"nothing is {reason!r} any more" for reason, pattern in reasons.items()
              if not any(pattern.fullmatch(name) for name in names - page)}
    check(wrong, f"what {side} has is on the page, or has a reason")


def errors(elixir):
    source = (TOP / "bindings/python/ext/error.c").read_text()
    classes = dict(re.findall(r"X\((E\w+), (\w+)\)", (TOP / "lib/common/error_names.h").read_text()))
    wrong = {side: set() for side in ("Python", "Elixir")}
    for word, numbers, py, ex, _ in table("errors"):
        [py], [ex] = words(py), words(ex)
        for number in numbers.split(", "):
            assert hasattr(errno, number), number
            # EPERM is of sealed memory where the region at hand is sealed: what the languages look at themselves.
            if classes.get(number) != py and not (py == "SealedError" and f'"{py}"' in source):
                wrong["Python"].add(f"{number}, {word}, is {classes.get(number, 'Error')}, not {py}")
            if (got := elixir.ask("error", word if word == "sealed" else number.lower())) != ex.strip(":"):
                wrong["Elixir"].add(f"{number}, {word}, is :{got}, not {ex}")
    for side, lines in wrong.items():
        check(lines, f"{side} names the errors as the page does")


def main(tmeshctl, python, ebin, *maps):
    os.environ |= {"TMESH_BACKEND": os.environ.get("TMESH_BACKEND", "memfd")}
    folder = tempfile.TemporaryDirectory()
    os.environ["TMESH_RUNTIME_DIR"] = folder.name
    os.environ["TMESH_DEVICES_PROGRAM"] = str(Path(tmeshctl).resolve().with_name("tmeshctl-devices"))
    holder = subprocess.Popen([tmeshctl, "create", "--shape", "2,3", "--dtype", "float32", "--label", "vocabulary", "--json"],
                              stdout=subprocess.PIPE, text=True)
    names, text = None, ""
    while names is None:
        text += holder.stdout.readline()
        try:
            names = json.loads(text)
        except json.JSONDecodeError:
            pass
    py = Peer(python, "-P", "-c", PYTHON_SIDE)
    ex = Peer("elixir", "--erl", "-logger level warning", "-pa", ebin,
              str(TOP / "tests/vocabulary.exs"))

    def tool(*words):
        return json.loads(subprocess.run([tmeshctl, *words, "--json"], check=True, capture_output=True).stdout)

    try:
        for kind, header, name, made in (("region", "include/tmesh/inspect.h", "tmesh_region_info", MADE),
                                         ("holder", "include/tmesh/inspect.h", "tmesh_holder_info", set())):
            page = members(f"{kind} members")
            check(differ(page - made, struct(header, name) - C_ALONE[kind], f"struct {name}"),
                  f"struct {name} has the page's members")
            check(differ(page, typed_dict(kind.capitalize()), "the stub"), f"Python's stub of a {kind} has the page's members")
        page = members("kept members")
        kept = struct("include/tmesh/keep.h", "tmesh_kept_info") - {"size", "count"} | {"regions"}
        check(differ(page, kept, "struct tmesh_kept_info") | differ(page, typed_dict("Kept"), "the stub"),
              "what is kept has the page's members in C and Python")
        region = next(region for region in tool("ls") if region["id"] == names["id"])
        same(members("region members"),
             {"tmeshctl": region, "Python": py.ask("region", names["id"]), "Elixir": ex.ask("region", names["id"])},
             "a region is the same for tmeshctl, Python and Elixir", varies=["handles", "created_ns"])
        same(members("holder members"),
             {"tmeshctl": tool("holders", names["id"])[0], "Python": py.ask("holder", names["id"]),
              "Elixir": ex.ask("holder", names["id"])}, "a holder is the same for tmeshctl, Python and Elixir")
        check({f"{name}() takes {got} by default" for name in ("zeros", "empty")
               if (got := py.ask("default", name))}, "a dtype has no default")
        py.ask("keep", "vocabulary")
        same(members("kept members"),
             {"tmeshctl": next(one for one in tool("kept") if one["name"] == "vocabulary"), "Python": py.ask("kept", "vocabulary"),
              "Elixir": ex.ask("kept", "vocabulary")}, "what is kept is the same for tmeshctl, Python and Elixir",
             varies=["held", "used_ns"])
        py.ask("drop", "vocabulary")
        found, seen = tool("devices"), ex.ask("devices")
        for kind, name in (("device", "devices"), ("found engine", "engines")):
            page = members(f"{kind} members")
            check(differ(page, set(found[name][0]), "tmeshctl") | differ(page, set(seen[name]), "Elixir") |
                  differ(page, set(py.ask("fields", name)), "Python"), f"a {kind.removeprefix('found ')} has the page's members")
            c = f"tmesh_devices_{kind.split()[-1]}"
            # A device's follow from its kind and the engines.
            made = {"kind", "never_seen"} if kind == "device" else set()
            check({f"it has no {member}" for member in page - struct("include/tmesh/placement.h", c) - made},
                  f"struct {c} has the page's members")
        page = members("ref members")
        refs = {"tmeshctl": names["ref"], "Python": py.ask("ref"), "Elixir": ex.ask("ref")}
        same(page, refs, "a ref is the same for tmeshctl, Python and Elixir", varies=["id", "token"])
        axes = ex.ask("axes")
        check(differ(members("elixir ref members"), set(axes) - page, "Elixir's ref"), "Elixir's refs have the page's members of Nx")
        check({f"{side} does not open it: {told}" for side, told in (("Python", py.ask("opens", json.dumps(axes).replace(" ", ""))),)
               if told}, "a ref with the members of Nx is a ref for others")
        check(differ(page, typed_dict("Ref", "refs.py"), "tmesh.Ref"), "Python's type of a ref has the page's members")
        calls(tmeshctl, maps, py, ex)
        errors(ex)
        messages()
        dtypes = set(words(PAGE.split("## Types of elements")[1].split(": the same words")[0]))
        check(differ(dtypes, set(ex.ask("dtypes")), "Elixir") | {f"Python has no {name}" for name in dtypes
                                                                  if py.ask("dtype", name) != name},
              "Python and Elixir have the page's types of elements")
    finally:
        py.end()
        ex.end()
        holder.terminate()
        holder.wait()
        folder.cleanup()
    print(f"1..{count}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
