#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The Elixir suite, and random use of Python's extension, on memfds in a root of Debian's testing. It has a newer Erlang and Python than
Debian 13. No guest is booted."""
import re
import sys

import roots
from boot import BUILD
from cache import keep, locked, sh
from checkout import REPO, SETTINGS
from modules import TOP
from tap import Tap, program

RELEASE = "forky"
PACKAGES = (
    "make", "gcc", "g++", "libc6-dev", "pkg-config", "libjansson-dev", "libcmocka-dev", "liburing-dev", "libxxhash-dev",
    "python3-dev", "python3-venv", "python3-pip", "python3-setuptools", "python3-wheel", "python3-numpy", "python3-pytest",
    "elixir", "erlang-dev", "erlang-nox", "erlang-eunit", "scdoc",
)
COPY = BUILD / "vm" / f"repo-{RELEASE}"


def main():
    tap = Tap()
    root = keep(f"{RELEASE}/root", lambda path: roots.bootstrap(path, RELEASE, PACKAGES))
    with locked(COPY):
        COPY.mkdir(parents=True, exist_ok=True)
        sh("rsync", "-a", "--delete", "--exclude=/build", "--exclude=/.git", f"{TOP}/", COPY)
        version = roots.run(root, "erl", "-noshell", "-eval", 'io:put_chars(erlang:system_info(otp_release)), halt().')
        tap.point(re.fullmatch(r"\d+", version) and int(version) >= 28, f"{RELEASE}: Erlang/OTP {version} is newer than Debian 13's")
        done = roots.attempt(root, "make", "-s", "--no-print-directory", "-C", REPO, *SETTINGS, "beam-check", binds=[(COPY, REPO)])
        program(tap, f"{RELEASE}: beam-check", done.stdout.splitlines(), done.returncode)
        tap.note(roots.run(root, "python3", "--version"))
        done = roots.attempt(root, "make", "-s", "--no-print-directory", "-C", REPO, "python-check", "PYTHON_TESTS=test_fuzz.py test_extension.py",
                             binds=[(COPY, REPO)])
        program(tap, f"{RELEASE}: python-check", done.stdout.splitlines(), done.returncode)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
