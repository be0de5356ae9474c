# SPDX-License-Identifier: MIT
"""Debian roots: made by debootstrap, and entered in a mount namespace that ends with the command."""
import os
import subprocess
import sys
from pathlib import Path

import debian
from cache import say, sh

# Variables of the host that are passed into a root: proxies for Debian's mirror and PyPI, and the length of tests.
PASSED = ("http_proxy", "https_proxy", "no_proxy", "TMESH_TEST_LENGTH")


def bootstrap(path, suite, packages):
    """Install a minimal system of a Debian release with these packages."""
    main, _ = debian.mirrors()
    say(f"installing a Debian root ({suite}), about 3 minutes")
    # A debootstrap that is older than a release has no script for it. All releases since lenny use the same one.
    known = [] if Path(f"/usr/share/debootstrap/scripts/{suite}").exists() else ["/usr/share/debootstrap/scripts/sid"]
    sh("debootstrap", "--variant=minbase", f"--keyring={debian.KEYRING}", suite, path, main, *known)
    if packages:
        run(path, "apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages)
    run(path, "apt-get", "clean")


def attempt(path, *command, binds=()):
    """Run a command inside a root.

    binds: (directory of the host, path in the root) pairs. Return the finished process; its standard error
    has gone to ours.
    """
    script = 'root=$1; shift; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"\n'
    for source, target in binds:
        (path / str(target).lstrip("/")).mkdir(parents=True, exist_ok=True)
        script += f'mount --rbind "{source}" "$root{target}"\n'
    script += 'exec chroot "$root" "$@"'
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root",
           "DEBIAN_FRONTEND": "noninteractive",
           # Packages of PyPI are optional in a root: do not retry for 40 seconds if PyPI cannot be reached.
           "PIP_RETRIES": "1"}
    env.update((name, os.environ[name]) for name in PASSED if name in os.environ)
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script, "sh",
                           path, *map(str, command)], env=env, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def run(path, *command, binds=()):
    """Run a command that must succeed inside a root. Return its output."""
    done = attempt(path, "sh", "-c", 'exec "$@" 2>&1', "sh", *command, binds=binds)
    if done.returncode:
        sys.stderr.write(done.stdout)
        sys.exit(f"vm: in the root {path}, `{' '.join(map(str, command))}` failed with status {done.returncode}")
    return done.stdout
