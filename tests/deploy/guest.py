#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Follow a page as it stands, in a machine that systemd runs. guest/init of tests/vm has the words for the results' line.

A ```console block has commands of several people: "$ " is ada's shell, "bob$ " that of another user, "# " root's. A
block after <!-- setup --> is left out, because SETUP has done that, and one after <!-- guest --> is for a guest alone. The other marks are
those of tests/docs.py.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import docs  # noqa: E402: found by the line above

PAGES = HERE.parents[1] / "docs/howto/deploy"
PROMPT = re.compile(r"(?P<user>\w*)(?P<kind>[$#]) (?P<command>.*)", re.DOTALL)
SETUP = HERE / "setup"
docs.PATIENCE_S = 600


def commands(text):
    """Yield (user, command, expected output) of a console block."""
    found = []
    for line in text.rstrip("\n").split("\n"):
        prompt = PROMPT.match(line)
        if prompt:
            user = "root" if prompt["kind"] == "#" else prompt["user"] or "ada"
            found.append((user, prompt["command"], []))
        elif line.startswith("> "):
            user, command, said = found.pop()
            found.append((user, f"{command}\n{line[2:]}", said))
        else:
            found[-1][2].append(line)
    return [(user, command, "\n".join(said)) for user, command, said in found]


class Shells:
    """A login shell for each user, in a session of its own."""

    def __init__(self):
        self.shells = {}

    def run(self, user, command):
        if user not in self.shells:
            home = os.path.expanduser(f"~{user}")
            self.shells[user] = docs.Shell(home, {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C.UTF-8", "TERM": "dumb"},
                                           ["su", "-l", user, "-c", "exec bash --norc --noprofile"])
            # The notices of PAM come with the first command.
            self.shells[user].run("export LC_ALL=C.UTF-8 SYSTEMD_PAGER= SYSTEMD_COLORS=0; cd")
        return self.shells[user].run(command)


def follow(page, shells, in_guest):
    """Print a point for each command of a page, up to the first that does not print the page's output."""
    setup = sorted(SETUP.glob(f"{page.stem}*.sh"))
    for block in docs.BLOCK.finditer(page.read_text()):
        if block["file"]:
            path = Path("/home/ada", block["file"])
            path.write_text(block["text"])
            subprocess.run(["chown", "ada:", path], check=True)
        if block["mark"] == "setup" and setup:
            prepare(setup.pop(0), page.name)
        if block["kind"] != "console" or block["mark"] == "setup":
            continue
        if block["mark"] == "guest" and not in_guest:
            docs.number += 1
            print(f"ok {docs.number} - {page.name}: {block['text'].splitlines()[0][:60]} # SKIP for a guest: limits of memory, or the module")
            continue
        for user, command, expected in commands(block["text"]):
            said = shells.run(user, command)
            good = said is not None and bool(docs.matches(expected, said))
            docs.point(good, f"{page.name}: {user}: {command.splitlines()[0][:100]}", f"expected:\n{expected}\nprinted:\n{said}")
            if not good:
                return


def prepare(script, name):
    done = subprocess.run(["sh", "-ex", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    docs.point(done.returncode == 0, f"{name}: what the page needs is installed", done.stdout[-3000:])


def main():
    print("\n@ begin follow", flush=True)
    prepare(SETUP / "all.sh", "all pages")
    asked = dict(word.split("=", 1) for word in Path("/proc/cmdline").read_text().split() if word.startswith("TMESH_"))
    follow(PAGES / f"{asked['TMESH_PAGES']}.md", Shells(), asked["TMESH_WHERE"] == "guest")
    print(f"1..{docs.number}\n\n@ end {int(bool(docs.bad))}\n\n@ taint {Path('/proc/sys/kernel/tainted').read_text().strip()}", flush=True)
    print("\n@ done", flush=True)
    subprocess.run(["sync"])


if __name__ == "__main__":
    main()
