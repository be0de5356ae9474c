# SPDX-License-Identifier: MIT
"""python -m tmesh.worker: see --help and docs/reference/worker.md."""

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
    """The socket's address, which any thread that ends the worker removes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self.listens = False  # otherwise the file at the path is another process's

    def remove(self) -> None:
        """Remove it once: a later socket at the path is the next worker's."""
        with self._lock:
            if self.listens and not self._text.startswith("@"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._text)
            self.listens = False


def take_input() -> int:
    """Move standard input to another descriptor, and replace it by /dev/null. Otherwise an operation that reads it
    would wait forever, and so would each program that it starts. One that closes it would let this process outlive
    its client."""
    ours = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return ours


def end_with_input(ours: int, stop: threading.Event, address: Address) -> None:
    """Wait for the end of standard input, which shows that the starting process has ended, and then end. This
    takes no time when idle, and a second if an operation does not return or the machine is slow."""
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
                        help="a descriptor that becomes standard error once the worker is ready; until then the "
                             "standard error shows why a start failed")
    args = parser.parse_args()
    if args.stderr_fd is not None:
        os.set_inheritable(args.stderr_fd, False)

    # Standard output, for one line only: output of modules that are imported must not come before it.
    ready = os.dup(1)
    os.dup2(2, 1)
    stopping, address = threading.Event(), Address(args.socket)
    if args.until_eof:
        threading.Thread(target=end_with_input, args=(take_input(), stopping, address), daemon=True).start()
    try:
        operations = Operations(args.allow)
        # If NumPy is installed, import it: arguments are then its arrays, even if no module has imported it.
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
    # The process that started this one may have ended already.
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
