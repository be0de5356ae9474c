# SPDX-License-Identifier: MIT
"""Debian roots: made by debootstrap, entered in a mount namespace that goes away with the command."""
import os
import subprocess
import sys

import debian
from cache import say, sh

# What of the host's environment reaches into a root: the way to Debian's mirror and to PyPI.
PASSED = ("http_proxy", "https_proxy", "no_proxy", "TMESH_TEST_LENGTH")


def bootstrap(path, suite, packages):
    """A minimal system of a Debian release, with these packages."""
    main, _ = debian.mirrors()
    say(f"installing a Debian root ({suite}), about 3 minutes")
    sh("debootstrap", "--variant=minbase", f"--keyring={debian.KEYRING}", suite, path, main)
    if packages:
        run(path, "apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages)
    run(path, "apt-get", "clean")


def attempt(path, *command, binds=()):
    """Run a command inside a root.

    binds: (directory of the host, where the command sees it). Returns the finished process;
    its standard error has gone to ours.
    """
    script = 'root=$1; shift; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"\n'
    for source, target in binds:
        (path / str(target).lstrip("/")).mkdir(parents=True, exist_ok=True)
        script += f'mount --rbind "{source}" "$root{target}"\n'
    script += 'exec chroot "$root" "$@"'
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root",
           "DEBIAN_FRONTEND": "noninteractive",
           # Where a root does not reach PyPI, what it asks of it is optional: no 40 seconds to find out.
           "PIP_RETRIES": "1"}
    env.update((name, os.environ[name]) for name in PASSED if name in os.environ)
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script, "sh",
                           path, *map(str, command)], env=env, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def run(path, *command, binds=()):
    """The same for a command that must work. Returns what it printed."""
    done = attempt(path, "sh", "-c", 'exec "$@" 2>&1', "sh", *command, binds=binds)
    if done.returncode:
        sys.stderr.write(done.stdout)
        sys.exit(f"vm: in the root {path}, `{' '.join(map(str, command))}` failed with status {done.returncode}")
    return done.stdout
