#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Follow a page as it stands, in a machine that systemd runs. guest/init of tests/vm has the words for the results' line.

A ```console block has commands of several people: "$ " is ada's shell, "bob$ " that of another user, "# " root's. A
block after <!-- setup --> is left out but for its apt-get, which finds the packages of tmesh in OWN; SETUP does the rest. One after <!-- guest --> is for a guest alone. The other marks are
those of tests/docs.py. After `systemctl reboot` the page is followed from the next command on.
"""
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import docs  # noqa: E402: found by the line above

PAGES = HERE.parents[1] / "docs/howto/deploy"
PROMPT = re.compile(r"(?P<user>\w*)(?P<kind>[$#]) (?P<command>.*)", re.DOTALL)
SETUP = HERE / "setup"
OWN = HERE.parents[1] / "own"
# Its DKMS would compile for a quarter of an hour under emulation.
LEFT_OUT = "./tmesh-dkms_*.deb"
# Exists while the machine restarts: the number of followed commands, of points and of failures.
RESTART = HERE.parents[1] / "restart"
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


def steps(page, in_guest):
    """Yield the steps of a page in order: ("write", name, text), ("install", command, ""), ("prepare", "", ""),
    ("skip", "", block), or (user, command, expected output)."""
    for block in docs.BLOCK.finditer(page.read_text()):
        if block["file"]:
            yield "write", block["file"], block["text"]
        elif block["mark"] == "setup":
            yield from (("install", command, "") for _, command, _ in commands(block["text"]) if command.startswith("apt-get install"))
            yield "prepare", "", ""
        elif block["kind"] == "console" and block["mark"] == "guest" and not in_guest:
            yield "skip", "", block["text"]
        elif block["kind"] == "console":
            yield from commands(block["text"])


def follow(page, shells, in_guest, done):
    """Print a point for each command of a page after the first `done` steps, up to the first that does not print the page's output."""
    setup = sorted(SETUP.glob(f"{page.stem}*.sh"))
    for number, (user, command, expected) in enumerate(steps(page, in_guest)):
        if user == "prepare" and setup:
            script = setup.pop(0)
            if number >= done:
                prepare(script, page.name)
        if number < done or user == "prepare":
            continue
        if user == "write":
            path = Path("/home/ada", command)
            path.write_text(expected)
            subprocess.run(["chown", "ada:", path], check=True)
        elif user == "install":
            install(command, page.name)
        elif user == "skip":
            docs.number += 1
            print(f"ok {docs.number} - {page.name}: {expected.splitlines()[0][:60]} # SKIP for a guest: limits of memory, or the module")
        elif command == "systemctl reboot":
            restart(number + 1)
        else:
            answer = shells.run(user, command)
            good = docs.matches(expected, answer)
            docs.point(good, f"{page.name}: {user}: {command.splitlines()[0][:100]}", f"expected:\n{expected}\nprinted, and exit status:\n{answer}")
            if not good:
                return


def restart(done):
    """Restart the machine. follow.service starts this program again, which goes on after the first `done` steps."""
    RESTART.write_text(json.dumps([done, docs.number, docs.bad]))
    subprocess.run(["sync"], check=True)
    subprocess.run(["systemctl", "reboot"], check=True)
    signal.pause()


def install(command, name):
    """Install packages as a page tells it. Only those of tmesh are not there yet."""
    packages = command.removeprefix("apt-get install").replace(LEFT_OUT, "")
    if packages.strip():
        run(["bash", "-xc", f"cd {OWN} && apt-get install -y{packages}"], f"{name}: {command}")


def prepare(script, name):
    run(["sh", "-ex", script], f"{name}: what the page needs is there")


def run(command, name):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    docs.point(done.returncode == 0, name, done.stdout[-3000:])


def main():
    done = 0
    if RESTART.exists():
        done, docs.number, docs.bad = json.loads(RESTART.read_text())
        RESTART.unlink()
        docs.point(True, "the machine is there again")
    else:
        print("\n@ begin follow", flush=True)
        prepare(SETUP / "all.sh", "all pages")
    asked = dict(word.split("=", 1) for word in Path("/proc/cmdline").read_text().split() if word.startswith("TMESH_"))
    follow(PAGES / f"{asked['TMESH_PAGES']}.md", Shells(), asked["TMESH_WHERE"] == "guest", done)
    print(f"1..{docs.number}\n\n@ end {int(bool(docs.bad))}\n\n@ taint {Path('/proc/sys/kernel/tainted').read_text().strip()}", flush=True)
    print("\n@ done", flush=True)
    subprocess.run(["sync"])


if __name__ == "__main__":
    main()
