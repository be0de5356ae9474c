#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that need an NVIDIA GPU; TAP. Skips, loudly, where there is none. With PyTorch, CuPy and JAX
where they can be imported. A result is for the GPU, driver and date that the last line names, which
is what goes into the table of docs/cuda.md.

TMESH_GPU_STANDIN=1 runs what needs no framework on the stand-in, to test the tests; its results
are labelled so, and are not about a GPU."""

import os
import shutil
import subprocess
import sys
import time
import traceback

import gpu
import tmesh
import tmesh.cuda

tests = []


class Skip(Exception):
    pass


def test(function):
    tests.append(function)
    return function


def need(name):
    try:
        return __import__(name)
    except ImportError as error:
        raise Skip(f"{name} cannot be imported: {error}") from None


def torch_on_gpu():
    torch = need("torch")
    if not torch.cuda.is_available():
        raise Skip("this PyTorch has no CUDA")
    return torch


def torch_pool():
    torch = torch_on_gpu()
    if not hasattr(torch.cuda, "MemPool"):
        raise Skip(f"PyTorch {torch.__version__} has no MemPool")
    plugin = torch.cuda.memory.CUDAPluggableAllocator("libtmesh-cuda-torch.so", "tmesh_torch_malloc",
                                                      "tmesh_torch_free")
    return torch, torch.cuda.MemPool(plugin.allocator())


@test
def region_registered(driver):
    tensor = tmesh.empty((1 << 20,), "uint8")
    tensor.numpy()[:4] = b"host"[0]
    with tmesh.cuda.open(tensor.ref(writable=True), writable=True) as array:
        assert array.kind == "host"
        driver.write(array.pointer, b"from the device")
        driver.call("cuCtxSynchronize")
        assert bytes(tensor.numpy()[:15]) == b"from the device"


@test
def huge_pages_registered(driver):
    try:
        tensor = tmesh.empty((8 << 20,), "uint8", huge=True)
    except (tmesh.OutOfMemoryError, TypeError) as error:
        raise Skip(f"no huge pages: {error}") from None
    with tmesh.cuda.open(tensor.ref(writable=True), writable=True) as array:
        driver.write(array.pointer + (5 << 20), b"huge")
        assert bytes(tensor.numpy()[5 << 20:][:4]) == b"huge"


@test
def sealed_region_read_only(driver):
    tensor = tmesh.put(bytearray(b"sealed bytes"), seal=True)
    try:
        array = tmesh.cuda.open(tensor.ref())
    except tmesh.UnsupportedError as error:
        raise Skip(str(error)) from None
    assert driver.read(array.pointer, 12) == b"sealed bytes" and not array.writable
    array.release()


@test
def two_processes(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8")
    driver.write(array.pointer, b"first" * 20)
    peer = gpu.Peer()
    answer = peer.ask(tmesh.cuda.share(array), write=b"second".hex())
    assert bytes.fromhex(answer["bytes"]).startswith(b"first") and answer["kind"] == "imported"
    peer.ask(tmesh.cuda.share(array), read=False)
    assert driver.read(array.pointer, 6) == b"second"
    peer.kill()


@test
def three_processes_and_a_producer_that_goes(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8")
    driver.write(array.pointer, b"sent on" * 10)
    first, second = gpu.Peer(), gpu.Peer()
    ref = first.ask(tmesh.cuda.share(array), share=True)["ref"]
    array.release()
    answer = second.ask(ref)
    assert bytes.fromhex(answer["bytes"]).startswith(b"sent on")
    first.kill()
    second.kill()


@test
def killed_readers_leak_nothing(driver):
    for _ in range(5):
        array = tmesh.cuda.empty(64 << 20, "uint8", alone=True)
        peer = gpu.Peer()
        peer.ask(tmesh.cuda.share(array))
        array.release()
        peer.kill()


@test
def reclaimed(driver):
    array = tmesh.cuda.empty(1 << 20, "uint8", alone=True)
    peer = gpu.Peer()
    peer.ask(tmesh.cuda.share(array))
    array.reclaim(timeout=10)
    driver.write(array.pointer, b"still mine")
    peer.kill()


@test
def torch_pool_and_training_step(driver):
    torch, pool = torch_pool()
    with torch.cuda.use_mem_pool(pool):
        model = torch.nn.Linear(256, 256, device="cuda")
        out = model(torch.randn(64, 256, device="cuda"))
    out.square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    ref = tmesh.cuda.share(model.weight.data)
    assert ref["cuda"]["kind"] == "vmm"
    peer = gpu.Peer()
    torch.cuda.synchronize()
    assert bytes.fromhex(peer.ask(ref)["bytes"]) == model.weight.data.cpu().numpy().tobytes()[:64]
    peer.kill()


@test
def torch_lends_what_it_has_forgotten(driver):
    torch, pool = torch_pool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.full((64,), 7, dtype=torch.uint8, device="cuda")
        peer = gpu.Peer()
        with tmesh.cuda.lend(tensor) as array:
            pointer = array.pointer
            peer.ask(array.ref())
        del tensor
        others = [torch.zeros(64, dtype=torch.uint8, device="cuda") for _ in range(100)]
        torch.cuda.synchronize()
        assert driver.read(pointer, 64) == b"\x07" * 64
        peer.kill()
        for _ in range(1000):
            if not tmesh.cuda._lent:
                break
            time.sleep(0.01)
        assert not tmesh.cuda._lent
        del others


@test
def torch_opens(driver):
    torch = torch_on_gpu()
    array = tmesh.cuda.empty((4, 8))
    tensor = torch.from_dlpack(array)
    tensor.copy_(torch.arange(32.0).reshape(4, 8))
    torch.cuda.synchronize()
    assert tensor.data_ptr() == array.pointer and float(tensor.sum()) == 496.0


@test
def torch_foreign_by_ipc(driver):
    torch = torch_on_gpu()
    tensor = torch.arange(16, device="cuda", dtype=torch.uint8)
    ref = tmesh.cuda.share(tensor)
    assert ref["cuda"]["kind"] == "ipc"
    peer = gpu.Peer()
    assert bytes.fromhex(peer.ask(ref)["bytes"])[:16] == bytes(range(16))
    peer.kill()


@test
def cupy_opens(driver):
    cupy = need("cupy")
    array = tmesh.cuda.empty(10, "int32")
    view = cupy.asarray(array)
    view[...] = 7
    cupy.cuda.Device().synchronize()
    assert view.data.ptr == array.pointer and driver.read(array.pointer, 4) == b"\x07\0\0\0"


@test
def jax_opens(driver):
    jax = need("jax")
    array = tmesh.cuda.empty(10, "int32")
    driver.write(array.pointer, b"\x05\0\0\0" * 10)
    try:
        view = jax.dlpack.from_dlpack(array)
    except RuntimeError as error:
        raise Skip(f"JAX: {error}") from None
    assert int(view.sum()) == 50


@test
def compute_sanitizer(driver):
    tool = shutil.which("compute-sanitizer")
    if not tool:
        raise Skip("compute-sanitizer is not installed")
    script = ("import tmesh.cuda\na = tmesh.cuda.empty(1000)\nt = tmesh.cuda.share(a)\n"
              "b = tmesh.cuda.open(t)\nb.release()\na.release()\n")
    done = subprocess.run([tool, "--error-exitcode", "9", sys.executable, "-P", "-c", script], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def settled(driver, least):
    """Free memory once it is as much as @least, after at most 10 s."""
    for _ in range(1000):
        tmesh.cuda._library.tmesh_cuda_trim(tmesh.cuda._open())
        if driver.free_bytes() >= least:
            break
        time.sleep(0.01)
    return driver.free_bytes()


def main():
    why = gpu.missing()
    if why:
        print(f"1..0 # SKIP {why}")
        print(f"check-gpu: NOTHING WAS CHECKED: {why}", file=sys.stderr)
        return 0
    driver = gpu.Driver()
    label = "stand-in, not a GPU: " if driver.name().startswith("stand-in") else ""
    failed = False
    print(f"1..{len(tests)}")
    tmesh.cuda.empty(1).release()
    for number, function in enumerate(tests, 1):
        frameworks = any(name in sys.modules for name in ("torch", "cupy", "jax"))
        before = settled(driver, 1 << 62) if number == 1 else driver.free_bytes()
        try:
            function(driver)
            # Frameworks keep memory of their own.
            if not frameworks and not any(name in sys.modules for name in ("torch", "cupy", "jax")):
                after = settled(driver, before)
                assert after >= before, f"{before - after} bytes of the GPU are missing"
            print(f"ok {number} - {label}{function.__name__}", flush=True)
        except Skip as reason:
            print(f"ok {number} - {label}{function.__name__} # SKIP {reason}", flush=True)
        except Exception:
            failed = True
            print(f"not ok {number} - {label}{function.__name__}", flush=True)
            print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), flush=True)
    print(f"# {label}seen on {gpu.seen_on(driver)}", flush=True)
    return failed


if __name__ == "__main__":
    os.environ.setdefault("TMESH_BACKEND", "memfd")
    sys.exit(main())
