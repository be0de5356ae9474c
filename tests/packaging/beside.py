# SPDX-License-Identifier: MIT
"""The wheel beside the Debian packages: each side has its own parts, and both see what the other one keeps."""
import re
import shlex

from kept import NAMES
from packages import Report, Root, files
from releases import OWN

MORE = ("libtmesh-net0", "libtmesh-xla0", "libtmesh-cuda0", "tmesh-net")

# Both sides run this. All libraries are loaded, then the folders of those that are mapped are printed.
SIDE = r"""
import json, os, re, subprocess, sys, threading, tmesh, tmesh.engine, tmesh.fetcher
own, *others = sys.argv[1:]
tmesh.keep({"w": tmesh.put(own.encode())}, own)
print(own, *(bytes(tmesh.open_kept(name)["w"]).decode() for name in others))
tmesh._tmesh.xla_load(threading.main_thread().ident)
tmesh.fetcher.Fetcher("127.0.0.1").close()
try:
    tmesh.engine.Context("onnx")
except tmesh.UnsupportedError:
    pass
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "tmesh" in line and ".so" in line}
print("mapped", *sorted({os.path.dirname(path) for path in mapped}))
"""
STEPS = "\n".join((
    "ip link set lo up",
    "export TMESH_RUNTIME_DIR=$(mktemp -d)",
    "keeper() { for process in /proc/[0-9]*; do readlink $process/exe || true; done | grep keeper; }",
    "echo @ start", "%(first)s /built/side.py first", "keeper",
    "echo @ other", "%(second)s /built/side.py second first", "keeper",
    "echo @ back", "%(first)s /built/side.py third first second", "/usr/bin/tmeshctl kept", "/venv/bin/tmeshctl kept"))
WHEEL, DEBIAN = "/venv/bin/python", "/usr/bin/python3"
FOLDERS = {WHEEL: r"mapped /venv/lib/python3\.\d+/site-packages/tmesh(?: /venv/lib/python3\.\d+/site-packages/libtmesh\.libs)?",
           DEBIAN: r"mapped /usr/lib/python3/dist-packages/tmesh /usr/lib/[a-z0-9_]+-linux-gnu(?: /usr/lib/[a-z0-9_]+-linux-gnu/tmesh)?"}
KEEPERS = {WHEEL: r"/venv/lib/python3\.\d+/site-packages/tmesh/tmesh-keeper", DEBIAN: "/usr/libexec/tmesh-keeper"}


def run(tap, release, built, wheel):
    """built: the Debian packages, wheel: a folder with the wheel."""
    report = Report(tap, release.name)
    root = Root(release, "beside", built)
    root.binds.append((wheel, "/wheel"))
    (built / "side.py").write_text(SIDE)
    root.install("python3-venv", "iproute2", *[path for path in files(built, "own") if path.rpartition("/")[2].partition("_")[0] in NAMES + MORE])
    root.run("python3", "-m", "venv", "/venv")
    root.run("sh", "-c", "/venv/bin/pip install --quiet --no-index /wheel/libtmesh-*.whl")
    for name, first, second in (("the wheel's keeper", WHEEL, DEBIAN), ("the packages' keeper", DEBIAN, WHEEL)):
        status, output = root.attempt(f"exec unshare --net sh -ec {shlex.quote(STEPS % {'first': first, 'second': second})}")
        keeper = rf"{KEEPERS[first]}\n"
        wanted = (rf"^@ start\nfirst\n{FOLDERS[first]}\n{keeper}@ other\nsecond first\n{FOLDERS[second]}\n{keeper}"
                  rf"@ back\nthird first second\n{FOLDERS[first]}\n(NAME.*first .*second .*third .*){{2}}$")
        report.point(status == 0 and re.search(wanted, output, re.S),
                     f"beside: {name} serves the wheel and the packages, and each side loads its own libraries", output)
    report.script(root, "beside: both have their programs", "/usr/bin/tmeshctl --version; /venv/bin/tmeshctl --version",
                  wanted=rf"^[^\n]*{re.escape(OWN)}\n[^\n]*{re.escape(OWN)}\n$")
    root.remove()
