# SPDX-License-Identifier: MIT
"""python -m tmesh.worker: see --help and docs/worker.md."""

import argparse
import contextlib
import importlib
import os
import sys
import threading

import tmesh

from ._calls import Operations
from ._server import Server

STOP_S = 1.0
SPIN_MAX_US = 100


class Address:
    """The socket's, which goes with the worker: whichever thread ends it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self.listens = False  # else what is there is somebody else's

    def remove(self) -> None:
        """Once: a socket that is there later is the next worker's."""
        with self._lock:
            if self.listens and not self._text.startswith("@"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._text)
            self.listens = False


def take_input() -> int:
    """Standard input under another number. In its place is none from now on: an operation that reads it would
    wait for ever, with every program that it starts, and one that closes it would make this outlive its client."""
    ours = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return ours


def end_with_input(ours: int, stop: threading.Event, address: Address) -> None:
    """Wait for the end of standard input, which is the end of whoever started this, and end: at
    once when idle, in a second when an operation does not return, or the machine is slow."""
    while os.read(ours, 4096):
        pass
    stop.set()
    threading.Event().wait(STOP_S)
    address.remove()
    os._exit(0)


def spin_us(text: str) -> int:
    if not text.isdecimal() or int(text) > SPIN_MAX_US:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {SPIN_MAX_US}")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tmesh.worker",
        description="Run functions of the allowed modules for clients on a Unix socket. Says "
                    "'ready' on standard output once it can be connected to; whatever modules and "
                    "operations print goes to standard error.")
    parser.add_argument("--socket", required=True, metavar="PATH",
                        help="where to listen; @NAME for Linux's abstract namespace")
    parser.add_argument("--allow", action="append", required=True, metavar="MODULE",
                        help="a module whose functions may be called; may be given again")
    parser.add_argument("--until-eof", action="store_true",
                        help="end when standard input ends, as it does with its writer")
    parser.add_argument("--spin-us", type=spin_us, default=0,
                        metavar="N", help="look busily for the next message for N microseconds, at "
                                          f"most {SPIN_MAX_US}, before sleeping until it comes")
    parser.add_argument("--stderr-fd", type=int, metavar="FD",
                        help="a descriptor that becomes standard error once it is ready: what it says until "
                             "then tells whoever started it why it could not")
    args = parser.parse_args()
    if args.stderr_fd is not None:
        os.set_inheritable(args.stderr_fd, False)

    # Kept for that one line: what modules print while they are imported is not to come before it.
    ready = os.dup(1)
    os.dup2(2, 1)
    stopping, address = threading.Event(), Address(args.socket)
    if args.until_eof:
        threading.Thread(target=end_with_input, args=(take_input(), stopping, address), daemon=True).start()
    try:
        operations = Operations(args.allow)
        # Arrays are NumPy's where there is NumPy, whichever modules were asked for.
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")
        tmesh.backend()
        server = Server(args.socket, operations, args.spin_us / 1e6)
        address.listens = True
    except Exception as error:
        print(f"tmesh.worker: {type(error).__name__}: {error}", file=sys.stderr)
        return 2

    def stop() -> None:
        stopping.wait()
        server.stop()

    threading.Thread(target=stop, daemon=True).start()
    # Whoever started it may be gone already.
    with contextlib.suppress(BrokenPipeError):
        os.write(ready, b"ready\n")
    os.close(ready)
    if args.stderr_fd is not None:
        sys.stderr.flush()
        for fd in 1, 2:
            os.dup2(args.stderr_fd, fd)
        os.close(args.stderr_fd)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    address.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
