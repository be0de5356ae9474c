# SPDX-License-Identifier: MIT
"""The other side of the demo: an Elixir program and a Python process, with one interface.

ask(request, body) sends bytes and returns the bytes of the answer. Both end with their pipe.
"""

import multiprocessing
import os
import signal
import struct
import subprocess
from multiprocessing import shared_memory
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Elixir:
    """rows.exs, through pipes with packets of a 4-byte length: an Erlang port, seen from here."""

    def __init__(self):
        ebin = ROOT / "build/beam/dev/lib/tmesh/ebin"
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # +Bi: an interrupt is for this side; the other ends when its pipe does.
        self.process = subprocess.Popen(
            ["elixir", "--erl", "-noinput +Bi -logger level warning", "-pa", ebin,
             HERE / "rows.exs", str(theirs_in), str(theirs_out)],
            stdin=subprocess.DEVNULL, pass_fds=(theirs_in, theirs_out),
            env={**os.environ, "LC_ALL": "C.UTF-8"})
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")

    def ask(self, request, body=b""):
        head = request.encode() + b"\n"
        self.output.write(struct.pack(">I", len(head) + len(body)) + head)
        self.output.write(body)
        self.output.flush()
        return self._read(*struct.unpack(">I", self._read(4)))

    def _read(self, count):
        data = self.input.read(count)
        if len(data) < count:
            raise SystemExit("demo: the Elixir side ended early; its words are above")
        return data

    def close(self):
        self.output.close()
        self.process.wait()


class Python:
    """A process with a multiprocessing pipe."""

    def __init__(self):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(other,))
        # An interrupt is for this side here too, from the child's first moment on.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.process.start()
        signal.signal(signal.SIGINT, handler)
        other.close()

    def ask(self, request, body=b""):
        self.pipe.send(request)
        self.pipe.send_bytes(body)
        return self.pipe.recv_bytes()

    def close(self):
        self.pipe.close()
        self.process.join()


def serve(pipe):
    """In the other process: answer each hand-over with the first value that came."""
    import json

    import numpy as np

    import tmesh

    while True:
        try:
            request, body = pipe.recv(), pipe.recv_bytes()
        except (EOFError, OSError):  # between messages, or within one
            return
        if request == "bytes":
            value = np.frombuffer(body, np.float32)[0]
        elif request == "shared_memory":
            name, *shape = json.loads(body)
            segment = shared_memory.SharedMemory(name)
            array = np.ndarray(shape, np.float32, segment.buf)
            value = array[0, 0]
            del array
            segment.close()
        else:
            with tmesh.open(json.loads(body)) as tensor:
                value = tensor.numpy()[0, 0]
        pipe.send_bytes(value.tobytes())
