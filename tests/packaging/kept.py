# SPDX-License-Identifier: MIT
"""Kept memory while the packages are upgraded, downgraded, removed and purged, in a clean Debian."""
import re

from packages import NEWER, Report, Root, files
from releases import OWN

# All but the module's sources, the tests and what needs more packages.
NAMES = ("libtmesh0", "libtmesh-model0", "libtmesh-engine0", "tmesh-tools", "python3-tmesh")

# One shell: its processes, and so the keeper, end with it.
STEPS = r"""
export TMESH_RUNTIME_DIR=/tmp/runtime
cd /tmp
cat >life.py <<'END'
import json, pathlib, struct, sys, tmesh
step, *kept = sys.argv[1:]
path = pathlib.Path("/tmp/model.safetensors")
if not path.exists():
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
model = tmesh.load_model(path, keep=True)
print(step, tmesh.__version__, bytes(model["w"]) == struct.pack("<2f", 1, 2), *(bytes(tmesh.open_kept(name)["w"]).decode() for name in kept))
print("region", model["w"].ref()["id"])
tmesh.keep({"w": tmesh.put(step.encode())}, step)
END
keepers() { for process in /proc/[0-9]*; do readlink $process/exe || true; done | grep keeper; }
say() { tmeshctl --version; tmeshctl kept; keepers | sed 's/^/running /'; }
python3 life.py first
say
echo '@ upgrade'
dpkg -i {newer} >log 2>&1 || { cat log; exit 1; }
python3 life.py second first
say
echo '@ downgrade'
dpkg -i {own} >log 2>&1 || { cat log; exit 1; }
python3 life.py third first second
say
echo '@ upgrade by apt'
apt-get -qq install -y {newer} >log 2>&1 || { cat log; exit 1; }
python3 life.py fourth first second third
echo '@ downgrade by apt'
apt-get -qq install -y --allow-downgrades {own} >log 2>&1 || { cat log; exit 1; }
python3 life.py fifth first second third fourth
say
echo '@ removal'
dpkg -r python3-tmesh tmesh-tools >log 2>&1 || { cat log; exit 1; }
keepers
echo '@ purge'
dpkg -P tmesh-tools >log 2>&1 || { cat log; exit 1; }
for round in $(seq 600); do keepers >/dev/null || break; sleep 0.1; done
keepers || echo none
"""
RUNNING = r"running /usr/libexec/tmesh-keeper"


def script(built):
    def chosen(name):
        return " ".join(path for path in files(built, name) if path.rpartition("/")[2].partition("_")[0] in NAMES)

    return STEPS.replace("{own}", chosen("own")).replace("{newer}", chosen("newer"))


def parts(output):
    """Return the outputs of the steps by their names."""
    first, *rest = re.split(r"^@ (.*)\n", output, flags=re.M)
    return {"start": first, **dict(zip(rest[::2], rest[1::2]))}


def run(tap, release, built):
    report = Report(tap, release.name)
    root = Root(release, "kept", built)
    root.install(*[path for path in files(built, "own") if path.rpartition("/")[2].partition("_")[0] in NAMES])
    status, output = root.attempt(script(built))
    said = parts(output)
    regions = set(re.findall(r"^region (.*)$", output, re.M))
    own, newer = re.escape(OWN), re.escape(NEWER)
    for step, wanted, text in (
            ("start", rf"^first {own} True\n.*{own}\n.*first .*{RUNNING}\n", "kept: a model and a bundle are kept"),
            ("upgrade", rf"^second {newer} True first\n.*{newer}\n.*second .*{RUNNING} \(deleted\)\n",
             "kept: an upgrade keeps both, by the old keeper, which serves the new programs"),
            ("downgrade", rf"^third {own} True first second\n.*{own}\n.*third .*{RUNNING} \(deleted\)\n", "kept: so does a downgrade"),
            ("upgrade by apt", rf"^fourth {newer} True first second third\n", "kept: so does apt's upgrade"),
            ("downgrade by apt", rf"^fifth {own} True first second third fourth\n.*{own}\n", "kept: so does apt's downgrade"),
            ("removal", r"^/usr/libexec/tmesh-keeper \(deleted\)\n$", "kept: a removal of the programs leaves the keeper"),
            ("purge", "^none\n$", "kept: a purge ends it")):
        report.point(re.search(wanted, said.get(step, ""), re.S), text, output)
    report.point(status == 0 and len(regions) == 1, "kept: the model was in one region all the time", output)
    root.remove()
