# SPDX-License-Identifier: MIT
"""256 MiB from one machine to another: libtmesh-net beside iperf3, NIXL and Mooncake over TCP, and Erlang distribution.
A small ref, a home that dies, and a home that does not answer. The machines are network namespaces with veth between
them (tests/net/topology.sh), and the loopback if they cannot be made. All run in turn within one run.

    net_fetch.py BUILD [WAY...]

With ways, 256 MiB are moved by the library and by these.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Series

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = Path(sys.argv[1]).resolve()
TOPOLOGY = ROOT / "tests/net/topology.sh"
BYTES = 256 << 20
SMALL = 4096
ROUNDS = 7
DEADLINE_MS = 200

series = Series("net")


class Place:
    """Two machines."""

    def __init__(self):
        self.name = f"tmb{os.getpid()}"
        up = subprocess.run([TOPOLOGY, "up", self.name, "2"], capture_output=True) if os.geteuid() == 0 else None
        self.apart = up is not None and up.returncode == 0
        if up is not None and not self.apart:
            self.down()
        self.dirs = [tempfile.mkdtemp(prefix="tmesh-bench-") for _ in range(2)]
        self.processes = []

    def down(self):
        subprocess.run([TOPOLOGY, "down", self.name, "2"], capture_output=True)

    def address(self, machine):
        return f"10.77.0.{machine + 1}" if self.apart else "127.0.0.1"

    def start(self, machine, *command, **env):
        inside = ["ip", "netns", "exec", f"{self.name}-{machine + 1}"] if self.apart else []
        process = subprocess.Popen([*inside, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True,
                                   env={**os.environ, "TMESH_RUNTIME_DIR": self.dirs[machine], "TMESH_BACKEND": "memfd", **env})
        self.processes.append(process)
        return process

    def end(self):
        for process in reversed(self.processes):
            process.kill()
            process.communicate()
        if self.apart:
            self.down()
        for one in self.dirs:
            shutil.rmtree(one, ignore_errors=True)


def read(process, mark=""):
    """The next line that begins with the mark, without it."""
    for line in process.stdout:
        if line.startswith(mark):
            return line[len(mark):].strip()
    raise EOFError


def ask(process, line="", mark=""):
    print(line, file=process.stdin, flush=True)
    return read(process, mark)


def ours(place, size):
    home, reader = (place.start(machine, BUILD / "bench/net", *what) for machine, what in
                    enumerate((("home", place.address(0), size), ("reader", place.address(1)))))
    return home, lambda: int(ask(reader, ask(home, "grant"))), reader


def iperf3(place, file=None):
    """It discards the bytes, or with a file writes them there: as a fetch does with its region, but for the
    checksum."""
    port = random.randrange(20000, 30000)
    keep = ("-F", file) if file else ()

    def measure():
        if file:
            file.unlink(missing_ok=True)
        server = place.start(0, "iperf3", "-s", "-1", "-B", place.address(0), "-p", port)
        time.sleep(0.3)  # it does not report that it listens
        client = place.start(1, "iperf3", "-c", place.address(0), "-p", port, "-R", "-n", BYTES, "-J", *keep)
        told = json.loads(client.communicate()[0])["end"]["sum_received"]
        server.kill()
        return int(told["seconds"] * 1e9 * BYTES / told["bytes"])
    return measure


def python(place, mover):
    interpreter = BUILD / "venv-net/bin/python"
    home = place.start(0, interpreter, "-B", HERE / "net_peer.py", mover, "home", place.address(0), BYTES)
    where = read(home, "> ")
    reader = place.start(1, interpreter, "-B", HERE / "net_peer.py", mover, "reader", place.address(1), BYTES)
    ask(reader, where, "> ")
    return lambda: int(ask(reader, "go", "> "))


def nodes(place, *programs, **env):
    """The last of a home and a reader, which run these programs of Elixir's."""
    port = random.randrange(20000, 30000)
    for machine in (0, 1) if place.apart else (0,):
        place.start(machine, "epmd", "-port", port, "-relaxed_command_check")
        until = time.monotonic() + 30
        while place.start(machine, "epmd", "-port", port, "-names").wait() and time.monotonic() < until:
            time.sleep(0.1)
    for machine, words in enumerate(programs):
        node = place.start(machine, "elixir", "--name", f"bench{machine}@{place.address(machine)}", "--cookie", f"c{port}",
                           "--erl", "-start_epmd false", *words, ERL_EPMD_PORT=str(port), **env)
        read(node, "> ")
    return node


def home_of(place):
    return f"bench0@{place.address(0)}"


def erlang(place):
    program = HERE / "net_peer.exs"
    reader = nodes(place, (program, "home", BYTES), (program, "reader", home_of(place)))
    return lambda: int(ask(reader, "go", "> "))


def skip(name, why):
    print(json.dumps({"topic": "net", "name": name, "skip": why}), flush=True)


def large(place, only=()):
    """All run in turn. The others are stopped meanwhile, for some are never idle."""
    ways, processes = {}, {}
    file = Path("/dev/shm", place.name)
    for name, make in (("fetch", lambda: ours(place, BYTES)[1]), ("iperf3", lambda: iperf3(place)),
                       ("iperf3-file", lambda: iperf3(place, file)), ("erlang", lambda: erlang(place)), ("nixl", lambda: python(place, "nixl")), ("mooncake", lambda: python(place, "mooncake"))):
        if only and name not in ("fetch", *only):
            continue
        before = len(place.processes)
        try:
            way = make()
            way()
            ways[name] = way
            processes[name] = [] if name.startswith("iperf3") else place.processes[before:]
        except (OSError, EOFError, ValueError, KeyError) as error:
            skip(name, f"{name} does not run here: {type(error).__name__}")
        stop(place.processes[before:], signal.SIGSTOP)
    for _ in range(3 if only else ROUNDS):
        for name, way in ways.items():
            stop(processes[name], signal.SIGCONT)
            series.add(name, way())
            stop(processes[name], signal.SIGSTOP)


def stop(processes, how):
    for process in processes:
        if process.poll() is None:
            process.send_signal(how)


def small(place):
    """A key that is there, 4 KiB, until the region is sealed; beside a byte there and back by TCP."""
    _, measure, _ = ours(place, SMALL)
    echo = "import socket,sys\ns=socket.create_server((sys.argv[1],0));print(s.getsockname()[1],flush=True)\nc=s.accept()[0]\n" \
           "c.setsockopt(6,1,1)\nwhile (d:=c.recv(1)): c.send(d)"
    ping = "import socket,sys,time\nc=socket.create_connection((sys.argv[1],int(sys.argv[2])));c.setsockopt(6,1,1)\n" \
           "for _ in sys.stdin:\n t=time.perf_counter_ns();c.send(b'x');c.recv(1);print(time.perf_counter_ns()-t,flush=True)"
    server = place.start(0, sys.executable, "-c", echo, place.address(0))
    client = place.start(1, sys.executable, "-c", ping, place.address(0), read(server))
    for turn in range(-5, 50):
        for name, way in (("small", measure), ("round-trip", lambda: int(ask(client)))):
            spent = way()
            if turn >= 0:
                series.add(name, spent)


def opened(place):
    """4 KiB that another node offers, until the first byte; beside a message there and back. Then a ref that another
    process of this node has open already, beside memory that was made here."""
    program = "-pa", BUILD / "beam/dev/lib/tmesh/ebin", HERE / "net_open.exs"
    try:
        reader = nodes(place, (*program, place.address(0), "home"), (*program, place.address(1), "reader", home_of(place)),
                       TMESH_NET=str(BUILD / "tmesh-net"), TMESH_KEEPER=str(BUILD / "tmesh-keeper"))
    except (OSError, EOFError) as error:
        skip("open", f"Tmesh.Net does not run here: {type(error).__name__}")
        return
    for turn in range(-5, 50):
        # A call finds warmer caches after one of its own kind, so each follows a message.
        for name in "open", "message", "beside", "message", "local":
            spent = int(ask(reader, name, "> "))
            if turn >= 0:
                series.add(name, spent)
    try:
        python = place.start(1, BUILD / "venv/bin/python", "-P", HERE / "net_beside.py")
        ask(python, ask(reader, "refs", "> "), "> ")
    except (OSError, EOFError) as error:
        skip("beside-python", f"tmesh's Python package does not run here: {type(error).__name__}")
        return
    for turn in range(-5, 50):
        for name, word in ("beside-python", "fetched"), ("local-python", "made"):
            spent = int(ask(python, word, "> "))
            if turn >= 0:
                series.add(name, spent)


def endings(place):
    """The time until the reader's error: when the home is killed in the middle, and, beyond the reader's deadline, when
    it does not answer."""
    for _ in range(7):
        home, _, reader = ours(place, BYTES)
        print(ask(home, "grant"), 10_000, file=reader.stdin, flush=True)
        time.sleep(0.06)
        killed = time.perf_counter_ns()
        home.kill()
        spent = int(read(reader))
        if spent < 0:  # else all had come before
            series.add("death", time.perf_counter_ns() - killed)
    # The kernel takes the connection, and no process answers.
    home, _, reader = ours(place, SMALL)
    grant = ask(home, "grant")
    home.send_signal(signal.SIGSTOP)
    for _ in range(7):
        series.add("silent", -int(ask(reader, f"{grant} {DEADLINE_MS}")) - DEADLINE_MS * 1_000_000)
    home.send_signal(signal.SIGCONT)


def main():
    if not (BUILD / "bench/net").exists():
        for name in "fetch", "small", "death", "silent":
            skip(name, "libfabric-dev is not installed")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    place = Place()
    print(f"net: {'two network namespaces with veth' if place.apart else 'the loopback: no network namespaces here'}", file=sys.stderr)
    try:
        if sys.argv[2:]:
            large(place, sys.argv[2:])
        else:
            for part in (large, small, opened, endings):
                part(place)
    finally:
        place.end()
    series.print()


if __name__ == "__main__":
    main()
