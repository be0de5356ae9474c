# SPDX-License-Identifier: MIT
"""What is published: a source distribution that builds by itself, and a wheel for every Python."""

import os
from pathlib import Path
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
    """Built far away from the repository, from what the source distribution has."""
    out = tmp_path_factory.mktemp("dist")
    quick = {"PYTHON": sys.executable, "CFLAGS": "-O0 -g0"}
    done = subprocess.run([HERE / "dist.sh", out], env={**os.environ, **quick},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_sources(dist):
    source, = dist.glob("*.tar.gz")
    assert source.name == f"tmesh-{tmesh.__version__}.tar.gz"
    with tarfile.open(source) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    for name in ("setup.py", "ext/binding.h", "ext/_tmesh.map", "tmesh/__init__.py", "README.md",
                 "library/VERSION", "library/lib/region.c", "library/model/load.c", "library/engine/onnx/bind.c",
                 "tmesh/safetensors/torch.py", "library/include/tmesh/tmesh.h",
                 "library/include/uapi/linux/tmesh.h"):
        assert name in names
    assert not [name for name in names if "tests" in name or "/keeper/" in name or name.endswith((".o", ".so"))]


def test_wheel(dist):
    wheel, = dist.glob("*.whl")
    tag, suffix = "cp311-abi3-", ".abi3.so"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # there is no stable ABI
        tag, suffix = "", sysconfig.get_config_var("EXT_SUFFIX")
    assert wheel.name.startswith(f"tmesh-{tmesh.__version__}-{tag}")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for name in ("_tmesh" + suffix, "_tmesh.pyi", "py.typed", "shared_memory.py", "arrow.py", "tmesh-engine-onnx.so"):
        assert f"tmesh/{name}" in names


def test_wheel_for_other_machines(dist):
    pytest.importorskip("auditwheel",
                        reason="auditwheel is not installed: make python-arrow-check")
    wheel, = dist.glob("*.whl")
    assert "manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for library in ("libjansson", "liburing"):
        assert [name for name in names if name.startswith(f"tmesh.libs/{library}")]


def test_wheel_in_an_empty_environment(dist, tmp_path):
    wheel, = dist.glob("*.whl")
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
                    "--no-index", wheel], check=True,
                   env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    program = ("import tmesh, tmesh.shared_memory\n"
               "t = tmesh.put(b'by a wheel', seal=True)\n"
               "print(bytes(tmesh.open(t.ref())), tmesh.__version__)\n")
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True)
    assert done.stdout == f"b'by a wheel' {tmesh.__version__}\n", done.stderr


def build(dist, folder, **environment):
    """What the build of the source distribution says when it fails."""
    source, = dist.glob("*.tar.gz")
    with tarfile.open(source) as tar:
        tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)
    top, = folder.glob("tmesh-*")
    done = subprocess.run([sys.executable, "-W", "ignore", "setup.py", "-q", "build_ext"], cwd=top,
                          env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode
    return done.stderr


@pytest.mark.parametrize("header, packages", [
    ("jansson.h", "libjansson-dev"), ("Python.h", "python3-dev"), (".h", "libc6-dev python3-dev libjansson-dev"),
])
def test_what_is_missing_is_said_before_the_compiler_does(dist, tmp_path, header, packages):
    """On a compiler that does not find it."""
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\ncase \"$*\" in *-E*) ! grep -q '{header}>'; exit;; esac\nexec cc \"$@\"\n")
    compiler.chmod(0o755)
    said = build(dist, tmp_path, CC=str(compiler))
    assert f"sudo apt install {packages}\n" in said and "error:" not in said


@pytest.mark.parametrize("header, package", [("liburing.h", "liburing-dev"), ("xxhash.h", "libxxhash-dev")])
def test_without_the_libraries_of_models_the_rest_is_built(dist, tmp_path, header, package):
    """It goes on to compile, which this compiler refuses."""
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\ncase \"$*\" in *-E*) ! grep -q '{header}>'; exit;; esac\nexit 1\n")
    compiler.chmod(0o755)
    said = build(dist, tmp_path, CC=str(compiler))
    assert f"built without load_model() and tmesh.safetensors. For them, on Debian and Ubuntu: sudo apt install " \
           f"{package}\n" in said and "cannot be compiled here" not in said


def test_no_compiler(dist, tmp_path):
    said = build(dist, tmp_path, CC="no-such-compiler")
    assert "a C compiler" in said and "sudo apt install gcc libc6-dev python3-dev libjansson-dev\n" in said
