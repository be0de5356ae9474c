#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Stock engines, nothing patched, on a kept folder: two processes, equal results, one copy, and no disk after all were killed.

    stock.py BUILD_DIR ENGINE_PYTHON PACKAGES
    stock.py BUILD_DIR ENGINE_PYTHON PACKAGES MORE_PACKAGES TORCH_PYTHON [--table FILE]

The first tests ONNX Runtime and llama.cpp, the second all engines. With TMESH_BACKEND=kernel the module keeps and shows the files, else a
keeper and tmesh-mount do. Prints TAP, with a comment for each row of stock_table.py. --table writes these rows into FILE."""
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
BUILD, ENGINE, LLAMA = sys.argv[1:4]
MORE, TORCH = sys.argv[4:6] or (None, None)
TABLE = sys.argv[7] if sys.argv[6:7] == ["--table"] else None
sys.argv[2:] = []
sys.path[:0] = [HERE, os.path.join(HERE, "../keep")]
import stock_table
import test_keep
import test_mount
from mounts import ModuleMount
from test_keep import tool

PATIENCE = test_keep.PATIENCE
ON_MODULE = os.environ.get("TMESH_BACKEND") == "kernel"
Mount = ModuleMount if ON_MODULE else test_mount.Mount

OF_TORCH = "transformers", "safetensors"
rows = []


def python(kind):
    return TORCH if kind in OF_TORCH else ENGINE


def environment(kind=None):
    packages = "" if kind in OF_TORCH else ":".join(filter(None, (LLAMA, MORE)))
    return os.environ | {"PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}


class Worker:
    """A process with an engine on a model."""

    def __init__(self, kind, path):
        self.process = subprocess.Popen([python(kind), "-B", os.path.join(HERE, "stock_worker.py"), kind, path], env=environment(kind),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert line, f"{kind} on {path} failed"
        self.said = json.loads(line)

    def shares(self):
        """(RSS, PSS) of the model's mappings, KiB."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        said = json.loads(self.process.stdout.readline())
        return said["rss_kib"], said["pss_kib"]

    def kill(self):
        self.process.kill()
        self.process.wait()


def plain(kind, path):
    """Return what a worker says of an ordinary file, and how much of the file it has in place."""
    worker = Worker(kind, path)
    rss, _ = worker.shares()
    worker.kill()
    return worker.said, rss


def check(mount, folder, kind, source, model, title, bytes_in_place):
    """Two processes on the kept folder. Then the source is gone, all processes but a keeper are killed, and one is started again."""
    beside, _ = plain(kind, os.path.join(source, model))
    wanted, name = beside["result"], kind
    tool("keep", "--folder", source, name)
    path = mount.path(name, model)
    shutil.rmtree(source)
    workers = [Worker(kind, path) for _ in range(2)]
    assert [worker.said["result"] for worker in workers] == [wanted] * 2, kind
    shares = [worker.shares() for worker in workers]
    for rss, pss in shares:
        assert rss * 1024 >= bytes_in_place * 9 // 10, (kind, rss, bytes_in_place)
        assert pss * 10 <= rss * 6, (kind, rss, pss)  # half of it, but for pages at the edges
    own = [worker.said["own_kib"] for worker in workers]
    rows.append((title, beside["version"], shares[0], beside["own_kib"], min(own)))
    for worker in workers:
        worker.kill()
    mount.end(test_mount.signal.SIGKILL)
    mount.start()
    again = Worker(kind, path)
    assert again.said["result"] == wanted
    again.kill()


def make(kind, folder, *words):
    """Return the folder with a kind's model."""
    source = os.path.join(folder, kind)
    subprocess.run([python(kind), "-B", os.path.join(HERE, "stock_models.py"), kind, source, *words],
                   check=True, timeout=PATIENCE, env=environment(kind), stdout=subprocess.DEVNULL)
    return source


def prepare(*words):
    # The engine's Python has ONNX Runtime, and tmesh's has tmesh: one of both, without its native part.
    program = ("import importlib.util as u, sys, types\n"
               "def load(name, path):\n"
               "    spec = u.spec_from_file_location(name, path)\n"
               "    sys.modules[name] = module = u.module_from_spec(spec)\n"
               "    spec.loader.exec_module(module)\n"
               "    return module\n"
               "sys.modules['tmesh'] = types.ModuleType('tmesh')\n"
               "sys.modules['tmesh'].__path__ = []\n"
               "load('tmesh.errors', sys.argv[1] + '/errors.py')\n"
               "sys.exit(load('tmesh.prepare', sys.argv[1] + '/prepare.py').main(sys.argv[2:]))\n")
    return subprocess.run([ENGINE, "-B", "-c", program, os.path.join(TOP, "bindings/python/tmesh"), "onnx", *words],
                          capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)


def test_onnx(folder):
    """ONNX Runtime with external data, and with weights that tmesh.prepare has packed"""
    onnx, prepared = make("onnx", folder), os.path.join(folder, "prepared")
    done = prepare(os.path.join(onnx, "m.onnx"), prepared)
    assert done.returncode == 0 and sorted(os.listdir(prepared)) == ["m.onnx", "m.onnx.data"], done.stderr
    for words, why in (((os.path.join(onnx, "none"), prepared + "2"), "no such file"),
                       ((os.path.join(onnx, "m.onnx"), prepared), "not empty"),
                       ((os.path.join(onnx, "m.data"), prepared + "2"), "refuses it")):
        done = prepare(*words)
        assert done.returncode == 1 and why in done.stderr, done
        assert not os.path.exists(prepared + "2") and not [n for n in os.listdir(folder) if n.startswith(".prepare")]
    with Mount(folder) as mount:
        beside, beside_rss = plain("onnx", os.path.join(onnx, "m.onnx"))
        wanted = beside["result"]
        tool("keep", "--folder", onnx, "onnx")
        kept = [Worker("onnx", mount.path("onnx/m.onnx")) for _ in range(2)]
        assert [worker.said["result"] for worker in kept] == [wanted] * 2
        own = kept[0].said["own_kib"]
        rows.append(("ONNX Runtime, external data", beside["version"], kept[0].shares(), beside["own_kib"], own))
        for worker in kept:
            worker.kill()
        check(mount, folder, "prepared", prepared, "m.onnx", "ONNX Runtime, prepared", 16 << 20)
        packed = Worker("prepared", mount.path("prepared/m.onnx"))
        assert packed.said["result"] == wanted
        assert packed.said["own_kib"] < own, (packed.said, own)
        packed.kill()


def test_llama(folder):
    """llama.cpp in a stock wheel"""
    gguf = make("gguf", folder, os.path.join(TOP, "examples/small_model/small.gguf"))
    size = os.stat(os.path.join(gguf, "m.gguf")).st_size
    with Mount(folder) as mount:
        check(mount, folder, "llama", gguf, "m.gguf", "llama.cpp (cyllama), F16", size * 9 // 10)


def test_lora(folder):
    """llama.cpp's server, with a LoRA adapter that is kept with the model"""
    example = os.path.join(TOP, "examples/small_model/small.gguf")
    source, without = make("lora", folder, example), make("gguf", folder, example)
    assert plain("lora", os.path.join(source, "m.gguf"))[0]["result"] != plain("lora", os.path.join(without, "m.gguf"))[0]["result"]
    size = os.stat(os.path.join(source, "m.gguf")).st_size
    with Mount(folder) as mount:
        check(mount, folder, "lora", source, "m.gguf", "llama.cpp's server, F16 with LoRA", size * 9 // 10)


def test_ctranslate2(folder):
    """CTranslate2, which reads and copies"""
    source = make("ctranslate2", folder)
    with Mount(folder) as mount:
        check(mount, folder, "ctranslate2", source, "model.bin", "CTranslate2", 0)


def test_openvino(folder):
    """OpenVINO on its IR"""
    source = make("openvino", folder)
    with Mount(folder) as mount:
        check(mount, folder, "openvino", source, "m.xml", "OpenVINO, IR", 16 << 20)


def test_genai(folder):
    """onnxruntime-genai on a decoder that tmesh.prepare has packed"""
    source, prepared = make("genai", folder), os.path.join(folder, "prepared")
    done = prepare(os.path.join(source, "model.onnx"), prepared)
    assert done.returncode == 0, done.stderr
    shutil.copy(os.path.join(source, "genai_config.json"), prepared)
    with Mount(folder) as mount:
        # Five products of matrices read all of their weights; the embedding is read where tokens are.
        check(mount, folder, "genai", prepared, "model.onnx", "onnxruntime-genai, prepared", (4000 + 4 * 512) * 512 * 4)


def test_transformers(folder):
    """transformers on safetensors in several files"""
    source = make("transformers", folder)
    size = sum(os.stat(os.path.join(source, name)).st_size for name in os.listdir(source))
    with Mount(folder) as mount:
        check(mount, folder, "transformers", source, "config.json", "transformers, safetensors in several files", size * 8 // 10)


def test_safetensors(folder):
    """safe_open with tensors of PyTorch"""
    source = make("transformers", folder)
    first = next(name for name in sorted(os.listdir(source)) if name.endswith(".safetensors"))
    size = os.stat(os.path.join(source, first)).st_size
    with Mount(folder) as mount:
        check(mount, folder, "safetensors", source, first, "safetensors, `safe_open`", size * 9 // 10)


def way():
    if ON_MODULE:
        return "the module"
    return "passthrough" if test_mount.expected_way() == b"passthrough" else "the page cache"


def why_not():
    if os.geteuid():
        return "needs root"
    if not ON_MODULE and not os.path.exists(os.path.join(BUILD, "tmesh-mount")):
        return "tmesh-mount is not built: libfuse3-dev"
    if not ON_MODULE and test_mount.errno_of(lambda: os.close(os.open("/dev/fuse", os.O_RDWR))):
        return "this machine has no /dev/fuse"
    for kind, modules in (("onnx", "onnx, onnxruntime, gguf, cyllama"), ("openvino", "openvino, onnxruntime_genai, xllamacpp, ctranslate2"),
                          ("transformers", "torch, transformers, safetensors, accelerate"))[:3 if MORE else 1]:
        if subprocess.run([python(kind), "-c", "import " + modules], env=environment(kind), capture_output=True, check=False).returncode:
            return f"this machine, or the package index, does not have all of {modules}"
    return None


if __name__ == "__main__":
    os.environ |= {"TMESH_BACKEND": "kernel" if ON_MODULE else "memfd", "TMESH_KEEPER": test_keep.KEEPER}
    for name in ("NOTIFY_SOCKET", "TMESH_RUNTIME_DIR"):
        os.environ.pop(name, None)
    tests = [test_onnx, test_llama]
    if MORE:
        tests += [test_lora, test_ctranslate2, test_openvino, test_genai, test_transformers, test_safetensors]
    why = why_not()
    if why:
        print(f"1..{len(tests)}")
        for number, test in enumerate(tests, 1):
            print(f"ok {number} - {test.__doc__} # SKIP {why}")
        sys.exit(0)
    status = test_keep.main(tests)
    lines = [stock_table.row(title, version, way(), shares, own, beside) for title, version, shares, beside, own in rows]
    print("".join(f"# {line}\n" for line in lines), end="")
    if TABLE and not status:
        stock_table.write(TABLE, "engines", "make mount-engines-table", f"Linux {os.uname().release}", lines)
    sys.exit(status)
