# SPDX-License-Identifier: MIT
"""`make install` and `make uninstall`: below DESTDIR, and into a PREFIX of one's own. A purge ends keepers."""
import os
import subprocess

import boot
from cache import sh
from releases import TOP

PARTS = ("bin/tmeshctl", "bin/tmesh-engine", "libexec/tmesh-keeper", "lib/libtmesh.so.0", "lib/libtmesh-model.so.0", "lib/libtmesh-engine.so.0",
         "lib/libtmesh-cuda.so.0", "lib/libtmesh-xla.so.0", "lib/pkgconfig/libtmesh.pc", "include/tmesh/tmesh.h", "include/linux/tmesh.h",
         "share/man/man1/tmeshctl.1", "lib/systemd/user/tmesh-keeper.service")


def make(target, **variables):
    """Run a target as a user would: no variable of the make that runs this test is passed on."""
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", "-s", "-C", TOP, target, *(f"{name}={value}" for name, value in variables.items())], env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def found(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def round_trip(tap, name, folder, prefix, **variables):
    """Install and uninstall."""
    done = make("install", **variables)
    missing = [part for part in PARTS if not (prefix / part).exists()]
    tap.point(not done.returncode and not missing, f"{name}: make install" + "".join(f", without {part}" for part in missing))
    tap.note(done.stdout[-2000:])
    if "DESTDIR" in variables:
        named = [path for path in found(prefix) if (prefix / path).is_file() and str(folder).encode() in (prefix / path).read_bytes()]
        tap.point(not named, f"{name}: no file names the staging folder" + "".join(f", {path}" for path in named))
    own = prefix / "share/own/file"
    own.parent.mkdir(parents=True)
    own.write_text("")
    done = make("uninstall", **variables)
    parents = [str(path.relative_to(folder)) for path in own.parents if path != folder and path.is_relative_to(folder)]
    left = found(folder)
    tap.point(not done.returncode and left == sorted([*parents, str(own.relative_to(folder))]),
              f"{name}: make uninstall leaves the files of others alone")
    tap.note(done.stdout[-2000:])
    sh("rm", "-r", own.parent)
    done = make("uninstall", **variables)
    left = found(folder)
    tap.point(not done.returncode and not left, f"{name}: make uninstall leaves nothing" + "".join(f", {path}" for path in left))


# sleep(1) stands for a keeper whose program was removed.
PURGE = """
mount --make-rprivate /
mount -t tmpfs none /usr/libexec
cp /bin/sleep /usr/libexec/tmesh-keeper
/usr/libexec/tmesh-keeper 60 >/dev/null &
keeper=$!
until [ "$(readlink /proc/$keeper/exe)" = /usr/libexec/tmesh-keeper ]; do sleep 0.1; done
sh "$1" purge
kill -0 $keeper
rm /usr/libexec/tmesh-keeper
sh "$1" remove
kill -0 $keeper
sh "$1" purge
wait $keeper || echo $?
"""


def purge(tap):
    """Run the script of the package that has the keeper, in mounts of its own."""
    name = "a purged package's keepers end, and those whose program is there do not"
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode:
        tap.point(True, name, skip="no mounts of its own can be had here")
        return
    done = subprocess.run(["unshare", "-m", "sh", "-euc", PURGE, "sh", TOP / "packaging/deb/tmesh-tools.postrm"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    tap.point(not done.returncode and done.stdout.split()[-1:] == ["143"], name)
    tap.note(done.stdout)


def run(tap):
    where = boot.BUILD / "packaging" / "install"
    sh("rm", "-rf", where)
    purge(tap)
    alone = where / "alone"
    done = make("install", DESTDIR=alone, NET_BUILT="")
    pages = [path for path in found(alone) if "tmesh-net" in path or "tmesh_net" in path]
    tap.point(not done.returncode and not pages, "without libfabric nothing of tmesh-net is installed" + "".join(f", but {path}" for path in pages))
    for name in ("staged", "own"):
        (where / name).mkdir(parents=True)
    round_trip(tap, "DESTDIR", where / "staged", where / "staged/usr/local", DESTDIR=where / "staged")
    round_trip(tap, "PREFIX", where / "own", where / "own", PREFIX=where / "own")
    sh("rm", "-rf", where)
