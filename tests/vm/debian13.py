# SPDX-License-Identifier: MIT
"""A Debian 13 root: the compiler that newer kernels want, and the guest of the bindings' suites."""
import hashlib
import shutil

import debian
from cache import keep, say, sh

# A guest that runs Python and Elixir suites, and builds what they need.
PACKAGES = (
    "make", "gcc", "g++", "libc6-dev", "pkg-config",
    "python3", "python3-dev", "python3-venv", "python3-pip", "python3-setuptools", "python3-wheel",
    "python3-numpy", "python3-pytest", "python3-torch",
    "erlang-dev", "erlang-eunit", "erlang-dialyzer", "elixir",
    "libcmocka-dev", "libjansson-dev", "libdrm-dev", "liburing-dev",
    "libelf-dev", "kmod",
)


def key():
    return hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]


def make(path):
    main, _ = debian.mirrors()
    say("installing a Debian 13 root, about 5 minutes")
    sh("debootstrap", "--variant=minbase", f"--keyring={debian.KEYRING}", "trixie", path, main)
    run(path, "apt-get", "-qq", "install", "-y", "--no-install-recommends", *PACKAGES)
    run(path, "apt-get", "clean")
    shutil.rmtree(path / "var/lib/apt/lists")


def root():
    return keep(f"debian13-{key()}", make)


def run(path, *command, binds=(), **options):
    """Run a command inside a root, in a mount namespace that goes away with the command.

    binds: directories of the host that the command sees, at the same place.
    """
    script = 'root=$1; shift; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"\n'
    for bind in binds:
        (path / str(bind).lstrip("/")).mkdir(parents=True, exist_ok=True)
        script += f'mount --rbind "{bind}" "$root{bind}"\n'
    script += 'exec chroot "$root" "$@"'
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root",
           "DEBIAN_FRONTEND": "noninteractive"}
    return sh("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script, "sh", path,
              *command, env=env, **options)
