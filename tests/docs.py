#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check the pages of docs/: links, the index, and the pages that a reader follows step by step. Prints TAP.

docs.py BUILD PREFIX [PAGE...]     BUILD is the build folder; libtmesh is installed in PREFIX. With pages only these are followed

The pages of docs/tutorial, and each page of docs/howto that has a block of shell commands, are followed as they stand:

- a block after <!-- file: NAME --> is written to NAME; the text before it has `NAME`, because a reader does not see the mark
- a ```console block is typed into one shell per page, line by line, and the output of each command is compared;
  "..." stands for any text; a command that has no other output than "..." there must succeed
- a ```console block after <!-- setup --> is left out: it installs what the tests have installed
- a page with <!-- needs: MODULE --> is a skip if Python does not have that module
"""

import os
from pathlib import Path
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import tree

TOP = Path(__file__).resolve().parents[1]
DOCS = TOP / "docs"
PATIENCE_S = 600
BLOCK = re.compile(r"(?:<!-- (?P<mark>setup|guest|file: (?P<file>[\w.-]+)) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```\n", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
END = "__end_of_command__"
LAST = re.compile(rf"{END} (\d+)\n".encode())
bad = number = 0


def point(ok, name, detail=""):
    global bad, number
    bad += not ok
    number += 1
    print(f"{'ok' if ok else 'not ok'} {number} - {name}", flush=True)
    if not ok:
        print("\n".join(f"# {line}" for line in str(detail).split("\n")), flush=True)


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


def broken_links(page):
    for target in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            yield target


def untold(page):
    """Yield the statements of a page about a deployment that are missing: charges, losses by a restart, and the way back."""
    text = page.read_text()
    header = re.search(r"^\|.*charged.*\| a restart of it loses \|\n\|[- |]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    if not header:
        yield "a table of charges and of losses by a restart"
    elif any(not cell.strip() for row in header[1].splitlines() for cell in row[1:-1].split("|")):
        yield "each cell of the table of charges"
    if not re.search(r"^## Undo\n\n.", text, re.MULTILINE):
        yield "a section Undo"


def unnamed(page):
    """Yield the files of a page whose names no reader sees: the text since the block before has not `NAME`."""
    text, end = page.read_text(), 0
    for block in BLOCK.finditer(text):
        if block["file"] and f"`{block['file']}`" not in text[end:block.start()]:
            yield block["file"]
        end = block.end()


def unproven(text):
    """Yield the rows of the table of promises that name no test, or a test that does not exist."""
    tests = {path.stem for path in tree.files(".c", ".py", ".txt") if "tests" in path.relative_to(TOP).parts}
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)[2:]:
        promise, shown = row.split("|")[1].strip(), re.findall(r"`([\w-]+)`", row.split("|")[-2])
        if not shown or not tests.issuperset(shown):
            yield f"{promise}: {', '.join(sorted(set(shown) - tests)) or 'no test'}"


def variables():
    """Return the environment variables that the product reads."""
    pattern = re.compile(r"""(?:getenv\(|variable\(|environ(?:\.get\(|\[)|get_env\()["'](TMESH_\w+)""")
    rooms = ("lib", "model", "engine", "net", "tools", "bindings")
    built = {"TMESH_BUILT", "TMESH_NOTICES"}  # makefiles and scripts tell setup.py by them
    return {name for path in tree.files(".c", ".h", ".py", ".ex") if path.relative_to(TOP).parts[0] in rooms and "test" not in str(path)
            for name in pattern.findall(path.read_text(errors="replace"))} - built


class Shell:
    """One bash in a folder of its own, as the terminal of a reader. command: starts another one"""

    def __init__(self, folder, env, command=("bash", "--norc", "--noprofile")):
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)

    def run(self, command):
        """Type a command; return its output and its exit status, or None after PATIENCE_S."""
        self.process.stdin.write(f"{{ {command}\n}} < /dev/null\necho {END} $?\n".encode())
        self.process.stdin.flush()
        said = b""
        until = time.monotonic() + PATIENCE_S
        while not (end := LAST.search(said)):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            piece = self.process.stdout.read() if ready else b""
            if not piece:
                return None
            said += piece
        return said[:end.start()].decode(errors="replace"), int(end[1])

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def commands(text):
    """Yield (command, expected output) of a console block."""
    command, output = None, []
    for line in text.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            if command is not None:
                yield command, "\n".join(output)
            command, output = line[2:], []
        else:
            output.append(line)
    if command is not None:
        yield command, "\n".join(output)


def matches(expected, answer):
    """Return whether a shell's answer is the page's."""
    if answer is None or expected == "..." and answer[1]:
        return False
    said = answer[0]
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, said.rstrip("\n"), re.DOTALL)


def follow(page, env):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "runtime").mkdir(mode=0o700)
        (Path(folder) / "examples").symlink_to(TOP / "examples")
        shell = Shell(folder, {**env, "TMESH_RUNTIME_DIR": f"{folder}/runtime"})
        try:
            for block in BLOCK.finditer(page.read_text()):
                if block["file"]:
                    (Path(folder) / block["file"]).write_text(block["text"])
                if block["kind"] != "console" or block["mark"] == "setup":
                    continue
                for command, expected in commands(block["text"]):
                    answer = shell.run(command)
                    if not matches(expected, answer):
                        return f"$ {command}\nexpected:\n{expected}\nprinted, and exit status:\n{answer}"
        finally:
            shell.run("kill $(jobs -p) 2>/dev/null; pkill -f \"$TMESH_RUNTIME_DIR\" 2>/dev/null; true")
            shell.end()
    return ""


def missing_module(page, env):
    """Return the Python module that a page needs and that is not installed, or None."""
    needs = re.search(r"^<!-- needs: (\w+) -->$", page.read_text(), re.MULTILINE)
    if needs and subprocess.run(["python", "-c", f"import {needs[1]}"], env=env, capture_output=True, check=False).returncode:
        return needs[1]
    return None


def follow_all(pages, env):
    for page in pages:
        module = missing_module(page, env)
        wrong = "" if module else follow(page, env)
        skip = f" # SKIP Python's package {module} is not installed" if module else ""
        point(not wrong, f"{page.relative_to(TOP)} works as it stands{skip}", wrong)


def main(build, prefix, *pages):
    build, prefix = Path(build).resolve(), Path(prefix).resolve()
    env = {**os.environ, "LC_ALL": "C.UTF-8", "TMESH_KEEPER": str(build / "tmesh-keeper"), "ERL_LIBS": str(build / "beam/dev/lib"),
           "PATH": f"{build / 'venv/bin'}:{prefix / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(prefix / "lib"),
           "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"), "PYTHONSAFEPATH": "1"}
    if pages:
        follow_all([TOP / page for page in pages], env)
    else:
        check_all(env)
    print(f"1..{number}")
    return bool(bad)


def check_all(env):
    for page in tree.files(".md"):
        links = list(broken_links(page))
        if links:
            point(False, f"links of {page.relative_to(TOP)}", "\n".join(links))
    point(not bad, "each link leads to a page and a title that exist", "see above")
    index = (DOCS / "README.md").read_text()
    missing = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))
               if page != DOCS / "README.md" and f"({page.relative_to(DOCS)})" not in index]
    point(not missing, "docs/README.md has a line for each page", ", ".join(missing))
    untold_of = [f"{page.name}: {what}" for page in sorted(DOCS.glob("howto/deploy/*.md")) for what in untold(page)]
    point(not untold_of, "each page of docs/howto/deploy tells charges, losses by a restart, and the way back", "\n".join(untold_of))
    hidden = [f"{page.relative_to(DOCS)}: {name}" for page in sorted(DOCS.rglob("*.md")) for name in unnamed(page)]
    point(not hidden, "each file that a reader writes is named in the text before it", "\n".join(hidden))
    bare = list(unproven((DOCS / "reference/promises.md").read_text()))
    point(not bare, "each promise of docs/reference/promises.md names tests that exist", "\n".join(bare))
    told = set(re.findall(r"^\| `(TMESH_\w+)`", (DOCS / "reference/environment.md").read_text(), re.MULTILINE))
    point(variables() <= told, "docs/reference/environment.md has each variable", ", ".join(sorted(variables() - told)))
    shell = Shell("/", env)
    silent = [command for command in ("echo said; false", "exec false") if matches("...", shell.run(command))]
    point(not silent, "a command that fails in silence is noticed", ", ".join(silent))
    shell.end()
    pages = sorted([*DOCS.glob("tutorial/*.md"), *DOCS.glob("howto/*.md")])
    follow_all([page for page in pages if "```console" in page.read_text()], env)


if __name__ == "__main__":
    shutil.which("bash") or sys.exit("docs.py: there is no bash")
    sys.exit(main(*sys.argv[1:]))
