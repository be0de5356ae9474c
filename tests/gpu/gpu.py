# SPDX-License-Identifier: MIT
"""Helpers of check.py, bench.py, peer.py and steps.py: the driver by ctypes, frameworks by three verbs, and other
processes that take commands."""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ANSWER_S = 60  # at most, of another process: a framework's first use of a GPU takes long
NON_BLOCKING = 1
NOT_READY = 600

# A kernel that copies pieces of 16 bytes, for any GPU since Turing, the oldest that CUDA 13 supports.
COPY = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry copy(.param .u64 to, .param .u64 source, .param .u64 pieces)
{
	.reg .pred %done;
	.reg .b32 %r<8>;
	.reg .b64 %d<10>;
	ld.param.u64 %d1, [to];
	ld.param.u64 %d2, [source];
	ld.param.u64 %d3, [pieces];
	cvta.to.global.u64 %d1, %d1;
	cvta.to.global.u64 %d2, %d2;
	mov.u32 %r0, %ctaid.x;
	mov.u32 %r1, %ntid.x;
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, %nctaid.x;
	mul.wide.u32 %d4, %r0, %r1;
	cvt.u64.u32 %d5, %r2;
	add.u64 %d4, %d4, %d5;
	mul.wide.u32 %d6, %r3, %r1;
again:
	setp.ge.u64 %done, %d4, %d3;
	@%done bra end;
	shl.b64 %d7, %d4, 4;
	add.u64 %d8, %d2, %d7;
	ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d8];
	add.u64 %d9, %d1, %d7;
	st.global.v4.u32 [%d9], {%r4, %r5, %r6, %r7};
	add.u64 %d4, %d4, %d6;
	bra again;
end:
	ret;
}
"""


class Skip(Exception):
    """The reason that a thing cannot be tried here."""


class Driver:
    """The few calls of the driver that tests make themselves, in device 0's primary context."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.copier = None
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self.context = context.value

    def call(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {text.value.decode() if text.value else code}")

    def name(self):
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, 100, 0)
        return text.value.decode()

    def is_standin(self):
        return self.name().startswith("stand-in")

    def version(self):
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return number.value

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def read(self, pointer, count):
        data = ctypes.create_string_buffer(count)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(count))
        return data.raw

    def write(self, pointer, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def synchronize(self):
        self.call("cuCtxSynchronize")

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        return stream

    def busy(self, stream):
        return self.cuda.cuStreamQuery(stream) == NOT_READY

    def fill(self, pointer, value, count, stream):
        self.call("cuMemsetD8Async", ctypes.c_uint64(pointer), ctypes.c_ubyte(value), ctypes.c_size_t(count), stream)

    def copy(self, to, source, count):
        """By the driver's own copy."""
        self.call("cuMemcpyDtoD_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(count))
        self.synchronize()

    def copy_by_kernel(self, to, source, count):
        if self.copier is None:
            module, self.copier = ctypes.c_void_p(), ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(COPY))
            self.call("cuModuleGetFunction", ctypes.byref(self.copier), module, b"copy")
        values = [ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_uint64(count // 16)]
        params = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        self.call("cuLaunchKernel", self.copier, 1056, 1, 1, 512, 1, 1, 0, None, params, None)
        self.synchronize()


def imported(name):
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        raise Skip(f"{name} cannot be imported: {error}") from None


class Torch:
    def __init__(self):
        self.torch = imported("torch")
        if not self.torch.cuda.is_available():
            raise Skip(f"PyTorch {self.torch.__version__} has no CUDA here")

    def view(self, array):
        return self.torch.from_dlpack(array)

    def fill(self, view, value):
        view.fill_(value)
        return True

    def total(self, view):
        return int(view.sum().item())


class Cupy:
    def __init__(self):
        self.cupy = imported("cupy")
        try:
            self.cupy.cuda.runtime.getDeviceCount()
        except Exception as error:
            raise Skip(f"CuPy {self.cupy.__version__} sees no GPU: {error}") from None

    def view(self, array):
        return self.cupy.asarray(array)

    def fill(self, view, value):
        view.fill(value)
        return True

    def total(self, view):
        return int(view.sum())


class Jax:
    def __init__(self):
        self.jax = imported("jax")
        self.dlpack = imported("jax.dlpack")
        try:
            self.jax.devices("gpu")
        except RuntimeError as error:
            raise Skip(f"JAX {self.jax.__version__} sees no GPU: {error}") from None

    def view(self, array):
        return self.dlpack.from_dlpack(array)

    def fill(self, view, value):
        return False  # its arrays are not written to

    def total(self, view):
        return int(view.sum())


FRAMEWORKS = {"torch": Torch, "cupy": Cupy, "jax": Jax}


class Peer:
    """Another process, peer.py. An error in it is raised here; leaving the block kills it."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "peer.py")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, ref, **order):
        return self.say(ref=ref, **order)

    def say(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], ANSWER_S)[0]:
            raise RuntimeError(f"the other process did not answer in {ANSWER_S} s")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the other process is gone, status {self.process.wait()}")
        answer = json.loads(answer)
        if "error" in answer:
            raise RuntimeError("in the other process: " + answer["error"])
        return answer

    def end(self):
        """End it as a program ends, not by a signal."""
        self.process.stdin.close()
        if self.process.wait(ANSWER_S):
            raise RuntimeError(f"the other process ended with {self.process.returncode}")
        self.process.stdout.close()

    def stop(self):
        """Stop it; it has stopped when this returns."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def kill(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.kill()


def nvidia_smi(*words):
    """The lines that it prints; None where it is not installed, or does not answer."""
    tool = shutil.which("nvidia-smi")
    try:
        return tool and subprocess.run([tool, *words], capture_output=True, text=True,
                                       timeout=ANSWER_S).stdout.splitlines()
    except subprocess.TimeoutExpired:
        return None


def used_mib():
    """Return the memory in use on all GPUs by nvidia-smi, in MiB; None where it does not tell."""
    said = nvidia_smi("--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return sum(map(int, said)) if said and all(line.strip().isdigit() for line in said) else None


@contextlib.contextmanager
def awake():
    """Use the GPU all the time in another process. Else a driver may put it to sleep, and take seconds to wake it. The
    process has no context, and changes no setting."""
    script = "import ctypes, sys; ctypes.CDLL('libcuda.so.1').cuInit(0); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.kill()


def missing():
    """Return why there is nothing to do here, or None. Another process asks: this one keeps no context."""
    script = ("import gpu\ntry:\n    print(gpu.Driver().name())\n"
              "except (OSError, RuntimeError) as error:\n    print('!', error)")
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=ANSWER_S)
    said = done.stdout.strip()
    if done.returncode or not said:
        return f"the CUDA driver cannot be asked: {done.stderr.strip()}"
    if said.startswith("!"):
        return f"there is no usable GPU, or no driver: {said[2:]}"
    if said.startswith("stand-in") and not os.environ.get("TMESH_GPU_STANDIN"):
        return "the driver is a stand-in, which shows nothing about a GPU"
    return None


def seen_on(driver):
    version = driver.version()
    return f"{driver.name()}, driver API {version // 1000}.{version % 1000 // 10}, {time.strftime('%Y-%m-%d')}"


def asked_where():
    """The same, asked in another process, as missing() does."""
    script = "import gpu; print(gpu.seen_on(gpu.Driver()))"
    return subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True,
                          timeout=ANSWER_S).stdout.strip()


def machine():
    """A line each."""
    said = nvidia_smi("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    return [f"Python {sys.version.split()[0]}, Linux {os.uname().release}",
            *(["nvidia-smi: it does not tell"] if said is None else [f"nvidia-smi: {line}" for line in said])]


class Versions:
    """Ask each framework in a process of its own while other things go on. A first import takes long, and makes later
    ones quick."""

    def __init__(self):
        script = "import sys; m = __import__(sys.argv[1]); print(m.__version__)"
        self.asked = {name: subprocess.Popen([sys.executable, "-P", "-c", script, name], stdout=subprocess.PIPE,
                                             stderr=subprocess.STDOUT, text=True, errors="replace")
                      for name in FRAMEWORKS}

    def told(self, wait=0):
        """A line for each that has answered since it was last asked, or will in that time; then the others are
        ended."""
        lines = []
        for name, process in list(self.asked.items()):
            if not wait and process.poll() is None:
                continue
            try:
                said = process.communicate(timeout=max(1, wait))[0].strip().splitlines()
            except subprocess.TimeoutExpired:
                process.kill()
                said = process.communicate()[0].strip().splitlines() + ["it did not answer"]
            lines.append(f"{name}: {(said or ['?'])[-1]}")
            del self.asked[name]
        return lines
