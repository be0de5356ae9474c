# SPDX-License-Identifier: MIT
"""A user's first hour with an installation, without a network: in each of them it says the same."""
import re
import shlex

from releases import OWN

# The model's file is a header of JSON and eight bytes.
PROGRAM = r"""
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
for part in (lambda: tmesh.engine.Context("onnx"), lambda: tmesh.engine.serve("onnx"),
             lambda: tmesh.engine.Context("ggml"), lambda: tmesh.engine.serve("ggml")):
    try:
        part()
    except tmesh.UnsupportedError as error:
        print("missing", error)
"""
MISSING = "".join(rf"missing [^\n]*Python's package {package} \(the extra {engine} of libtmesh\)[^\n]*\n"
                  for package, engine in (("onnxruntime", "onnx"), ("libggml-python", "ggml")) for way in ("here", "served"))
SHELL = """
{bin}/python3 /tmp/first.py {folder}
{bin}/python3 -c 'import tmesh; print(bytes(tmesh.open_kept("weights")["w"]))'
{bin}/tmeshctl kept
{bin}/tmesh-engine --version
{bin}/tmesh-net --version
{bin}/python3 -m tmesh doctor
{bin}/tmeshctl drop weights
"""
SAID = (rf"^{re.escape(OWN)} memfd\nopened 104857600\n\nloaded \[1\.0, 2\.0\]\nxla loaded\nb'fetched here'\n\n{MISSING}"
        rf"b'kept here'\nNAME .*\nweights .*\ntmesh-engine {re.escape(OWN)}\ntmesh-net {re.escape(OWN)}\n.*memfd backend: works")


def steps(bin_, folder):
    """Return the hour as a shell's script. folder: a place for the model's file."""
    return SHELL.format(bin=bin_, folder=folder)


def offline(bin_):
    """Return a script of the hour in a network namespace that has the loopback alone."""
    text = "ip link set lo up\nexport TMESH_RUNTIME_DIR=$(mktemp -d)\n" + steps(bin_, "/tmp")
    return f"unshare --net sh -ec {shlex.quote(text)}"


def put(root):
    """Put the program into a root."""
    (root.path / "tmp/first.py").write_text(PROGRAM)
