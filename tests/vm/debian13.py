# SPDX-License-Identifier: MIT
"""A Debian 13 root: the compiler that newer kernels want, and the guest of the bindings' suites."""
import hashlib
import os
import shutil
import subprocess
import sys

import debian
from cache import keep, say, sh

PACKAGES = (
    "make", "gcc", "g++", "libc6-dev", "libelf-dev", "kmod", "pkg-config",
    "libjansson-dev", "libcmocka-dev", "libdrm-dev", "liburing-dev",
    "python3-dev", "python3-venv", "python3-pip", "python3-setuptools", "python3-wheel",
    "python3-numpy", "python3-pytest", "python3-torch", "mypy",
    "elixir", "erlang-dev", "erlang-eunit",
)
KEY = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]

# What of the host's environment reaches into the root: the way to Debian's mirror and to PyPI.
PASSED = ("http_proxy", "https_proxy", "no_proxy", "TMESH_TEST_LENGTH")


def make(path):
    main, _ = debian.mirrors()
    say("installing a Debian 13 root, about 3 minutes")
    sh("debootstrap", "--variant=minbase", f"--keyring={debian.KEYRING}", "trixie", path, main)
    run(path, "apt-get", "-qq", "install", "-y", "--no-install-recommends", *PACKAGES)
    run(path, "apt-get", "clean")
    (path / "repo").mkdir()
    shutil.rmtree(path / "var/lib/apt/lists")


def root():
    return keep(f"debian13-{KEY}/root", make)


def image():
    """The root as an ext4 image."""
    return keep(f"debian13-{KEY}/image", lambda path: write_image(root(), path / "ext4")) / "ext4"


def write_image(tree, path):
    """An ext4 image of a directory, sparse, with room for what a guest writes."""
    path.unlink(missing_ok=True)
    used = int(sh("du", "-sm", tree).split()[0])
    sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=0", "-d", tree, path, f"{used + used // 4 + 512}M")


def attempt(path, *command, binds=()):
    """Run a command inside a root, in a mount namespace that goes away with the command.

    binds: (directory of the host, where the command sees it). Returns the finished process;
    its standard error has gone to ours.
    """
    script = 'root=$1; shift; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"\n'
    for source, target in binds:
        (path / str(target).lstrip("/")).mkdir(parents=True, exist_ok=True)
        script += f'mount --rbind "{source}" "$root{target}"\n'
    script += 'exec chroot "$root" "$@"'
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root",
           "DEBIAN_FRONTEND": "noninteractive"}
    env.update((name, os.environ[name]) for name in PASSED if name in os.environ)
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script, "sh",
                           path, *map(str, command)], env=env, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def run(path, *command, binds=()):
    """The same for a command that must work. Returns what it printed."""
    done = attempt(path, "sh", "-c", 'exec "$@" 2>&1', "sh", *command, binds=binds)
    if done.returncode:
        sys.stderr.write(done.stdout)
        sys.exit(f"vm: in Debian 13, `{' '.join(map(str, command))}` failed with status {done.returncode}")
    return done.stdout
