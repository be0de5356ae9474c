# SPDX-License-Identifier: MIT
"""The wheel for other machines: what it needs, and what it does alone in a clean Debian and in a poor container."""
import re
import shlex
import subprocess
import zipfile

import boot
import first_hour
import index
from cache import sh
from packages import Report, Root
from releases import TOP

GLIBC = (2, 28)
TAG = "manylinux_{}_{}_x86_64".format(*GLIBC)
BEGINNING = ("python3", "python3-venv", "procps", "iproute2")
INSTALL = "python3 -m venv /venv\n/venv/bin/pip install --quiet --no-index /built/libtmesh-*.whl"

# A sum by each engine, in this process and in tmesh-engine. The model is protobuf by hand: y = Add(x, x), two float32.
ENGINES = r"""
import numpy, pathlib, sys, tmesh, tmesh.engine
def part(number, value):
    return bytes([number * 8, value]) if isinstance(value, int) else bytes([number * 8 + 2, len(value)]) + value
def tensor(name):
    return part(1, name) + part(2, part(1, part(1, 1) + part(2, part(1, part(1, 2)))))
graph = (part(1, part(1, b"x") + part(1, b"x") + part(2, b"y") + part(4, b"Add")) + part(2, b"g") +
         part(11, tensor(b"x")) + part(12, tensor(b"y")))
folder = pathlib.Path(sys.argv[1])
(folder / "g.onnx").write_bytes(part(1, 8) + part(7, graph) + part(8, part(2, 13)))
(folder / "g.graph").write_text("graph g\nx = input : float32[2]\ns = add(x, x)\noutput y = s\n")
for name, file in ("onnx", "g.onnx"), ("ggml", "g.graph"):
    with tmesh.engine.serve(name, models=folder) as server:
        for where, context in ("here", tmesh.engine.Context(name)), ("served", server.connect(timeout=60)):
            y = tmesh.zeros(2, "float32")
            context.graph(folder / file).dispatch({"x": tmesh.put(numpy.array([1, 2], "float32"))}, {"y": y})
            print(name, context.version, where, y.tolist())
"""
# The oldest releases that an extra admits, where Python has wheels of them.
OLDEST = {"bookworm": ("onnxruntime==1.19.0", "libggml-python==0.20.*")}

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


def audited(wheel):
    """Return the oldest platform that a wheel is for, by its files and not by its name."""
    said = sh(boot.BUILD / "manylinux/venv/bin/python", "-m", "auditwheel", "show", wheel)
    return re.search(r'consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"(\S+)"', said)[1]


def build(tap, built):
    """Build the wheel. Return whether it is good for machines of that glibc."""
    sh("rm", "-rf", built)
    built.mkdir(parents=True)
    sh(TOP / "packaging/manylinux.sh", built)
    [wheel] = built.glob("*.whl")
    tap.point(wheel.name.endswith(f"-cp311-abi3-{TAG}.whl"), f"wheel: {wheel.name} is for glibc 2.28 and later")
    platform = audited(wheel)
    tap.point(platform == TAG, f"wheel: by auditwheel it is for {platform}")
    newest, strangers = newest_glibc(wheel)
    tap.point((0, 0) < newest <= GLIBC, f"wheel: its newest symbol of glibc is {newest[0]}.{newest[1]}")
    tap.point(not strangers, "wheel: it needs glibc alone" + "".join(f", {name}" for name in sorted(strangers)))


def run(tap, release, built):
    report = Report(tap, release.name)
    root = Root(release, "wheel", built)
    root.install(*BEGINNING)
    first_hour.put(root)
    if report.script(root, "wheel: it installs without a compiler and without a network", f"unshare --net sh -ec '{INSTALL}'"):
        report.script(root, "wheel: alone it keeps memory, loads a model, fetches, has the programs, and names what is missing",
                      first_hour.offline("/venv/bin"), wanted=first_hour.SAID)
        (root.path / "volume").mkdir(exist_ok=True)
        poor(report, root)
        extras(report, root, OLDEST.get(release.suite, ()))
    root.remove()


def poor(report, root):
    def script(variables, text):
        return POOR.format(variables=variables, script=shlex.quote(text))

    report.script(root, "wheel: a container with a volume has all of it",
                  script("TMESH_RUNTIME_DIR=/volume/tmesh", first_hour.steps("/venv/bin", "/volume")), wanted=first_hour.SAID)
    report.script(root, "wheel: in a container where nothing can be written the error names the remedy",
                  script("", "/venv/bin/python -c 'import tmesh; tmesh.put(b\"x\").ref()' || true"),
                  wanted=r"cannot use the runtime directory /tmp/tmesh-3000000000: Read-only file system; set TMESH_RUNTIME_DIR")


def extras(report, root, oldest):
    """Install the extras of both engines by the package index, then run them without a network."""
    index.configure(root)
    chosen = "oldest" if oldest else "newest"
    if not report.script(root, f"wheel: the {chosen} releases of its extras onnx and ggml install",
                         'wheel=$(echo /built/libtmesh-*.whl)\n/venv/bin/pip install --quiet "$wheel[onnx,ggml]" "$@"', *oldest):
        return
    (root.path / "tmp/engines.py").write_text(ENGINES)
    text = "ip link set lo up\nexport TMESH_RUNTIME_DIR=$(mktemp -d)\n/venv/bin/python /tmp/engines.py /tmp"
    report.script(root, f"wheel: both engines run with the {chosen} releases of their extras, here and served", f"unshare --net sh -ec '{text}'",
                  wanted=r"^onnx \S+ here \[2\.0, 4\.0\]\nonnx \S+ served \[2\.0, 4\.0\]\nggml \S+ here \[2\.0, 4\.0\]\nggml \S+ served \[2\.0, 4\.0\]\n$")
