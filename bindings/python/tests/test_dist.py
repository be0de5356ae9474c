# SPDX-License-Identifier: MIT
"""The published files: a source distribution that builds by itself, and a wheel for every Python."""

import contextlib
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest

import tmesh

HERE = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.skipif(os.environ.get("TMESH_BACKEND") == "kernel",
                       reason="a wheel is the same on every backend, and compiles for minutes in "
                              "an emulated machine"),
    pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler"),
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build far from the repository, from the files of the source distribution alone."""
    out = tmp_path_factory.mktemp("dist")
    quick = {"PYTHON": sys.executable, "CFLAGS": "-O0 -g0"}
    done = subprocess.run([HERE / "dist.sh", out], env={**os.environ, **quick},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


PROGRAMS = ("tmeshctl", "tmeshctl-load", "tmeshctl-model", "tmeshctl-devices", "tmeshctl-graph", "tmesh-keeper", "tmesh-engine")
LIBRARIES = ("libtmesh-wheel.so.0", "libtmesh-xla.so.0", "libtmesh-cuda.so.0", "libtmesh-cuda-torch.so", "libtmesh-cuda-hook.so",
             "tmesh-engine-onnx.so", "tmesh-engine-ggml.so")


def test_sources(dist):
    source, = dist.glob("*.tar.gz")
    assert source.name == f"libtmesh-{tmesh.__version__}.tar.gz"
    with tarfile.open(source) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    for name in ("setup.py", "ext/binding.h", "ext/_tmesh.map", "tmesh/__init__.py", "README.md",
                 "library/VERSION", "library/Makefile", "library/lib/region.c", "library/lib/keeper/main.c",
                 "library/model/files/load.c", "library/engine/onnx/bind.c", "library/tools/main.c",
                 "tmesh/safetensors/torch.py", "library/include/tmesh/tmesh.h", "library/include/uapi/linux/tmesh.h"):
        assert name in names
    assert not [name for name in names if "tests" in name or name.endswith((".o", ".so"))]


def test_wheel(dist):
    wheel, = dist.glob("*.whl")
    tag, suffix = "cp311-abi3-", ".abi3.so"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # this Python has no stable ABI
        tag, suffix = "", sysconfig.get_config_var("EXT_SUFFIX")
    assert wheel.name.startswith(f"libtmesh-{tmesh.__version__}-{tag}")
    with zipfile.ZipFile(wheel) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    for name in ("_tmesh" + suffix, "_tmesh.pyi", "py.typed", "shared_memory.py", "arrow.py", *PROGRAMS, *LIBRARIES):
        assert f"tmesh/{name}" in modes
    for name in PROGRAMS:
        assert modes[f"tmesh/{name}"] & 0o111


def test_wheel_for_other_machines(dist):
    pytest.importorskip("auditwheel",
                        reason="auditwheel is not installed: make python-arrow-check")
    wheel, = dist.glob("*.whl")
    assert "manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for library in ("libjansson", "liburing"):
        assert [name for name in names if name.startswith(f"libtmesh.libs/{library}")]


def test_extras(dist):
    """The wheel says which releases of other packages it works with."""
    wheel, = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        name, = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    assert {"torch", "onnx", "ggml", "ray", "vllm"} <= {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra")}
    assert [line for line in lines if re.match(r"Requires-Dist: vllm.*0\.32.*extra == .vllm", line)]


@pytest.fixture(scope="module")
def alone(dist, tmp_path_factory):
    """An environment that has the wheel alone. Return its folder of programs and the variables of a process in it."""
    folder = tmp_path_factory.mktemp("alone")
    wheel, = dist.glob("*.whl")
    venv.create(folder / "venv")
    programs = folder / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet", "--no-index", wheel],
                   check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    yield programs, {"PATH": "/usr/bin:/bin", "TMESH_RUNTIME_DIR": str(folder / "runtime")}


def run(alone, *command):
    programs, environment = alone
    done = subprocess.run([programs / command[0], *command[1:]], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_in_an_empty_environment(alone):
    program = ("import tmesh, tmesh.shared_memory\n"
               "t = tmesh.put(b'by a wheel', seal=True)\n"
               "print(bytes(tmesh.open(t.ref())), tmesh.__version__)\n")
    assert run(alone, "python", "-I", "-c", program) == f"b'by a wheel' {tmesh.__version__}\n"


def test_wheel_keeps_memory_and_has_the_programs(alone):
    """The keeper is the wheel's, and the memory outlives the process that kept it."""
    run(alone, "python", "-c", "import tmesh; tmesh.keep({'w': tmesh.put(b'kept')}, 'weights')")
    try:
        keepers = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # others' processes end meanwhile
                if (entry / "cmdline").read_bytes().endswith(alone[1]["TMESH_RUNTIME_DIR"].encode() + b"\0"):
                    keepers.append(os.readlink(entry / "exe"))
        assert keepers == [str(next(alone[0].parent.glob("lib/python*/site-packages/tmesh/tmesh-keeper")))]
        assert "weights" in run(alone, "tmeshctl", "kept")
        assert run(alone, "python", "-c", "import tmesh; print(bytes(tmesh.open_kept('weights')['w']))") == "b'kept'\n"
    finally:
        run(alone, "python", "-m", "tmesh", "drop", "weights")
    assert "memfd backend: works" in run(alone, "python", "-m", "tmesh", "doctor")
    assert "cpu:0" in run(alone, "tmeshctl", "devices")
    assert run(alone, "tmesh-engine", "--version") == f"tmesh-engine {tmesh.__version__}\n"


def test_wheel_loads_its_own_libraries(alone):
    """libtmesh-xla is loaded from the package, with the package's libtmesh and no other."""
    program = ("import re, threading, tmesh\n"
               "tmesh._tmesh.xla_load(threading.main_thread().ident)\n"
               "print(*sorted(set(re.findall(r'/(libtmesh[^/\\s]*)\\n', open('/proc/self/maps').read()))))\n")
    assert run(alone, "python", "-c", program) == "libtmesh-wheel.so.0 libtmesh-xla.so.0\n"


def test_a_program_that_is_missing_is_named(alone):
    """tmesh-net comes with libfabric alone. Without it the script names the package and the target."""
    programs, environment = alone
    package = next(programs.parent.glob("lib/python*/site-packages/tmesh"))
    if (package / "tmesh-net").exists():
        (package / "tmesh-net").unlink()
    done = subprocess.run([programs / "tmesh-net"], env={**environment, "PATH": f"{programs}:/bin"}, capture_output=True, text=True)
    if not shutil.which("tmesh-net", path="/bin"):
        assert done.returncode == 1
        assert done.stderr == ("tmesh-net: this Python package was installed without the program tmesh-net; install it by "
                               "`sudo apt install tmesh-net`, or in the sources by `sudo make net install-net`\n")


def test_a_library_that_is_missing_is_named(tmp_path):
    """An extension whose library is gone, as a wheel without auditwheel on another machine."""
    package = tmp_path / "tmesh"
    shutil.copytree(Path(tmesh.__file__).parent, package, ignore=shutil.ignore_patterns("_tmesh*.so", "__pycache__"))
    for name, flags in (("libgone.so.2", ["-Wl,-soname,libgone.so.2"]),
                        (package / "_tmesh.abi3.so", ["-Wl,--no-as-needed", "-L.", "-l:libgone.so.2"])):
        subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", name, *flags], cwd=tmp_path, check=True)
    (tmp_path / "libgone.so.2").unlink()
    done = subprocess.run([sys.executable, "-c", "import tmesh"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: cannot import tmesh: libgone.so.2 is missing, and this build of libtmesh does not contain it. Install it "
        "(Debian: sudo apt install libgone2)")


def build(dist, folder, **environment):
    """Build the source distribution and return the output of the failure."""
    source, = dist.glob("*.tar.gz")
    with tarfile.open(source) as tar:
        tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)
    top, = folder.glob("libtmesh-*")
    done = subprocess.run([sys.executable, "-W", "ignore", "setup.py", "-q", "build_ext"], cwd=top,
                          env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode
    return done.stderr


@pytest.mark.parametrize("header, packages", [
    ("jansson.h", "libjansson-dev"), ("Python.h", "python3-dev"), ("liburing.h", "liburing-dev"), ("xxhash.h", "libxxhash-dev"),
    (".h", "libc6-dev python3-dev libjansson-dev liburing-dev libxxhash-dev"),
])
def test_what_is_missing_is_said_before_the_compiler_does(dist, tmp_path, header, packages):
    """Hide a header from the compiler."""
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\ncase \"$*\" in *-E*) ! grep -q '{header}>'; exit;; esac\nexec cc \"$@\"\n")
    compiler.chmod(0o755)
    said = build(dist, tmp_path, CC=str(compiler))
    assert f"sudo apt install {packages}\n" in said and "error:" not in said


def test_no_compiler(dist, tmp_path):
    said = build(dist, tmp_path, CC="no-such-compiler")
    assert "a C compiler" in said
    assert "sudo apt install gcc libc6-dev python3-dev libjansson-dev liburing-dev libxxhash-dev\n" in said


def test_no_make(dist, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cc").symlink_to("/usr/bin/cc")
    assert "sudo apt install make pkg-config\n" in build(dist, tmp_path, CC="cc", PATH=str(tmp_path / "bin"))
