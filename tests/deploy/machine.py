# SPDX-License-Identifier: MIT
"""A Debian 13 machine with the programs of docs/howto/deploy: its root, the packages of tmesh, its image."""
import functools
import hashlib
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests/packaging"), str(TOP / "tests/vm"), str(TOP / "tests")]

import releases  # noqa: E402: found by the line above
import roots  # noqa: E402
import tree  # noqa: E402
from boot import BUILD  # noqa: E402
from cache import CACHE, keep, sh  # noqa: E402

[DEBIAN] = [release for release in releases.RELEASES if release.suite == "trixie"]
# Programs that the pages use, and the dependencies of tmesh's packages.
PACKAGES = (
    "systemd", "systemd-sysv", "libpam-systemd", "dbus", "dbus-user-session", "udev", "kmod", "procps", "util-linux",
    "podman", "crun", "netavark", "aardvark-dns", "uidmap", "passt", "busybox-static",
    "gunicorn", "uwsgi-core", "uwsgi-plugin-python3", "python3-numpy", "python3-nbclient", "python3-ipykernel",
    "prometheus", "prometheus-node-exporter", "curl", "fuse3", "libonnxruntime1.21",
    "libjansson4", "liburing2", "libxxhash0", "libfuse3-4", "adduser",
)
# The packages of tmesh that the pages install. The module is loaded from its build, because DKMS under emulation takes
# a quarter of an hour; make packaging-check has DKMS.
OURS = ("libtmesh0", "libtmesh-model0", "libtmesh-engine0", "tmesh-engine-onnx", "tmesh-tools", "tmesh-mount", "python3-tmesh")
# Rooms that the packages are built from.
SOURCES = ("VERSION", "Makefile", "bindings/", "engine/", "include/", "kmod/", "lib/", "model/", "net/", "packaging/", "tools/", "docs/man/")


def root():
    name = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    return keep(f"deploy-{name}/root", lambda path: roots.bootstrap(path, DEBIAN.suite, PACKAGES))


def digest():
    """Return a digest of the sources of the packages."""
    seen = hashlib.sha256()
    for path in tree.files():
        name = str(path.relative_to(TOP))
        if name.startswith(SOURCES):
            seen.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return seen.hexdigest()


@functools.cache
def packages():
    """Return the files of tmesh's packages. Build them if their sources have changed. All pages of a run have the same."""
    built = BUILD / "deploy/built"
    stamp, of = built / "stamp", digest()
    if not stamp.exists() or stamp.read_text() != of:
        sh("rm", "-rf", built)
        built.mkdir(parents=True)
        sh("make", "-s", "-C", TOP, "deb-source", f"DEB_OUT={built}")
        # Away from the checkout: other checks read all of its build folder.
        path = CACHE / "deploy-build-root"
        DEBIAN.fresh(path)
        binds = [*DEBIAN.binds("deploy"), (built, "/built")]
        sh("cp", Path(__file__).with_name("setup") / "build.sh", built)
        roots.run(path, "sh", "/built/build.sh", binds=binds)
        sh("rm", "-rf", path, *built.glob("tmesh-*/"))
        stamp.write_text(of)
    return [next(built.glob(f"{name}_*.deb")) for name in OURS]
