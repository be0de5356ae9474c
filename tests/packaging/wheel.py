# SPDX-License-Identifier: MIT
"""The wheel for other machines: what it needs, and what it does alone in a clean Debian and in a poor container."""
import re
import shlex
import subprocess
import zipfile

import boot
from cache import sh
from packages import OWN, Report, Root
from releases import TOP

GLIBC = (2, 28)
BEGINNING = ("python3", "python3-venv", "procps", "iproute2")
INSTALL = "python3 -m venv /venv\n/venv/bin/pip install --quiet --no-index /built/libtmesh-*.whl"

# A user's first hour, without a network. The model's file is a header of JSON and eight bytes.
FIRST = r"""
import errno, json, pathlib, struct, subprocess, sys, threading, tmesh, tmesh.engine, tmesh.fetcher
print(tmesh.__version__, tmesh.backend())
large = tmesh.put(bytes(100 << 20))
print(subprocess.run([sys.executable, "-c", "import sys, tmesh; print('opened', *tmesh.open(sys.argv[1]).shape)", json.dumps(large.ref())],
                     capture_output=True, text=True).stdout)
tmesh.keep({"w": tmesh.put(b"kept here")}, "weights", lifetime=600)
header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
path = pathlib.Path(sys.argv[1], "model.safetensors")
path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
print("loaded", tmesh.load_model(path, keep=True)["w"].tolist())
tmesh._tmesh.xla_load(threading.main_thread().ident)
print("xla loaded")
with tmesh.fetcher.Fetcher("127.0.0.1") as home, home.offer(tmesh.put(b"fetched here", seal=True)) as offer:
    print(subprocess.run([sys.executable, "-c", "import sys, tmesh.fetcher; print(bytes(tmesh.fetcher.Fetcher('127.0.0.1').fetch(sys.argv[1])))",
                          json.dumps(offer.source)], capture_output=True, text=True).stdout)
for part in lambda: tmesh.engine.Context("onnx"), lambda: tmesh.engine.serve("onnx"):
    try:
        part()
    except tmesh.UnsupportedError as error:
        print("missing", error)
"""
SAID = (rf"{re.escape(OWN)} memfd\nopened 104857600\n\nloaded \[1\.0, 2\.0\]\nxla loaded\n"
        r"b'fetched here'\n\nmissing [^\n]*Python's package onnxruntime[^\n]*\n"
        r"missing [^\n]*onnxruntime[^\n]*\n")
HOUR = """
{where}
/venv/bin/python /built/first.py {folder}
/venv/bin/python -c 'import tmesh; print(bytes(tmesh.open_kept("weights")["w"]))'
/venv/bin/tmeshctl kept
/venv/bin/tmesh-net --version
/venv/bin/python -m tmesh doctor
/venv/bin/tmeshctl drop weights
"""
KEPT = rf"b'kept here'\nNAME .*\nweights .*\ntmesh-net {re.escape(OWN)}\n.*memfd backend: works"

# A container as orchestrators make them: the root cannot be written, /dev/shm has 64 MiB, there is no HOME, and the user
# is a number without a name. A volume at /volume is all that can be written.
POOR = """
mount --bind / /mnt
mount -t proc proc /mnt/proc
mount -t tmpfs -o size=512m,mode=1777 tmpfs /mnt/volume
mount --bind /built /mnt/built
mount -t tmpfs -o mode=755 tmpfs /mnt/dev
for node in null zero full random urandom; do touch /mnt/dev/$node; mount --bind /dev/$node /mnt/dev/$node; done
mkdir /mnt/dev/shm
mount -t tmpfs -o size=64m,mode=1777 tmpfs /mnt/dev/shm
mount -o remount,bind,ro /mnt
exec chroot --userspec=+3000000000:+3000000000 --groups= /mnt env -i PATH=/usr/bin:/bin {variables} sh -ec {script}
"""


def newest_glibc(wheel):
    """Return (the newest version of glibc's symbols in a wheel, the libraries that are neither glibc's nor the wheel's)."""
    newest, strangers = (0, 0), set()
    with zipfile.ZipFile(wheel) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
        for name in archive.namelist():
            data = archive.read(name)
            if not data.startswith(b"\x7fELF"):
                continue
            file = boot.BUILD / "packaging" / "wheel" / "object"
            file.write_bytes(data)
            headers = subprocess.run(["objdump", "-p", file], capture_output=True, text=True, check=True).stdout
            found = re.findall(r"GLIBC_(\d+)\.(\d+)", headers)
            newest = max(newest, *((int(major), int(minor)) for major, minor in found))
            strangers |= {library for library in re.findall(r"NEEDED +(\S+)", headers)
                          if library not in names and not re.match(r"(libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.so\.\d$", library)}
    return newest, strangers


def build(tap, built):
    """Build the wheel. Return whether it is good for machines of that glibc."""
    sh("rm", "-rf", built)
    built.mkdir(parents=True)
    sh(TOP / "packaging/manylinux.sh", built)
    [wheel] = built.glob("*.whl")
    tap.point(wheel.name.endswith("-cp311-abi3-manylinux_2_28_x86_64.whl"), f"wheel: {wheel.name} is for glibc 2.28 and later")
    newest, strangers = newest_glibc(wheel)
    tap.point((0, 0) < newest <= GLIBC, f"wheel: its newest symbol of glibc is {newest[0]}.{newest[1]}")
    tap.point(not strangers, "wheel: it needs glibc alone" + "".join(f", {name}" for name in sorted(strangers)))
    (built / "first.py").write_text(FIRST)


def run(tap, release, built):
    report = Report(tap, release.name)
    root = Root(release, "wheel", built)
    root.install(*BEGINNING)
    if report.script(root, "wheel: it installs without a compiler and without a network", f"unshare --net sh -ec '{INSTALL}'"):
        hour = HOUR.format(where="ip link set lo up\nexport TMESH_RUNTIME_DIR=$(mktemp -d)", folder="/tmp")
        report.script(root, "wheel: alone it keeps memory, loads a model, fetches, has the programs, and names what is missing",
                      f"unshare --net sh -ec {shlex.quote(hour)}", wanted=f"^{SAID}{KEPT}")
        (root.path / "volume").mkdir(exist_ok=True)
        poor(report, root)
    root.remove()


def poor(report, root):
    def script(variables, text):
        return POOR.format(variables=variables, script=shlex.quote(text))

    hour = HOUR.format(where="", folder="/volume")
    report.script(root, "wheel: a container with a volume has all of it", script("TMESH_RUNTIME_DIR=/volume/tmesh", hour), wanted=f"^{SAID}{KEPT}")
    report.script(root, "wheel: in a container where nothing can be written the error names the remedy",
                  script("", "/venv/bin/python -c 'import tmesh; tmesh.put(b\"x\").ref()' || true"),
                  wanted=r"cannot use the runtime directory /tmp/tmesh-3000000000: Read-only file system; set TMESH_RUNTIME_DIR")
