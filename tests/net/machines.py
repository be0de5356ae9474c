# SPDX-License-Identifier: MIT
"""Machines as processes with runtime directories of their own, for test_machines.py and programs.py."""

import contextlib
import errno
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(sys.argv[1]).resolve()
PYTHON = sys.argv[2]  # one that has the package
FULL = os.environ.get("TMESH_TEST_LENGTH") == "full"
EBIN = BUILD / "beam/dev/lib/tmesh/ebin"
SECRET = f"c{random.randrange(10**12)}"
EMULATED = os.environ.get("TMESH_BACKEND") == "kernel"  # a guest, which is ten times slower
SECONDS = 600 if EMULATED else 300  # the longest that anything here may take; nothing is measured
GROUP = 61000  # whose members may open /dev/tmesh, where users are apart

reported = []  # of each test, whether it failed


def report(name, wrong=None, skip=None):
    reported.append(bool(wrong))
    print(f"{'not ok' if wrong else 'ok'} {len(reported)} - {name}" + (f" # SKIP {skip}" if skip else ""), flush=True)
    for line in (wrong or "").splitlines():
        print(f"# {line}", flush=True)


def eventually(condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what()} did not come about"
        time.sleep(0.05)


def still(stopped, running):
    """Wait until the bytes of the stopped fetchers have arrived, and the running ones have taken them."""
    def left():
        # Count these sockets alone: a row has the bytes to be sent and to be read, and the socket's number.
        total = 0
        for machine, side in [*((one, 0) for one in stopped), *((one, 1) for one in running)]:
            for pid in machine.processes("tmesh-net"):
                own = set()
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        own.add(os.readlink(link))
                for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
                    words = row.split()
                    if f"socket:[{words[9]}]" in own and words[3] != "0A":  # of one that listens it is who waits
                        total += int(words[4].split(":")[side], 16)
        return total
    eventually(lambda: not left(), lambda: f"an end of what is in the sockets, {left()} bytes,")
    time.sleep(0.5)  # and have counted it


def alone(number, backend):
    """Return a command that gives the programs of machine `number` their own user, IPC namespace and clocks.
    The time of day is the same; the first machine's other clocks are a hundred days ahead. Also return the
    user's number, and the parts that this kernel lacks."""
    uid, missing = 61000 + number, []
    groups = ["--groups", str(GROUP)] if backend == "kernel" else ["--clear-groups"]
    user = ["setpriv", "--reuid", str(uid), "--regid", str(uid), *groups]
    seconds = str(8_640_000 if number == 1 else number)
    clocks = ["--time", "--monotonic", seconds, "--boottime", seconds]

    def works(*command):
        return not subprocess.run(command, capture_output=True).returncode
    if not works("unshare", "--ipc", *clocks, "--fork", "true"):
        clocks, missing = [], [*missing, "clocks"]
    if not works(*user, "test", "-x", str(BUILD / "tmesh-net"), "-a", "-r", str(HERE / "machine.exs")):
        uid, user, missing = 0, [], [*missing, "users"]
    return ["unshare", "--ipc", *clocks, "--fork", "--kill-child", *user], uid, missing


class Machine:
    def __init__(self, name, address, netns, epmd_port, tls=None, backend="memfd", number=None, lease_ms=10_000):
        """With a `number`, alone() and with a small disk of its own."""
        self.address, self.epmd_port, self.backend, self.lease_ms = address, epmd_port, backend, lease_ms
        self.tls = f" -proto_dist inet_tls -ssl_dist_optfile {tls}" if tls else ""
        self.inside = ["ip", "netns", "exec", netns] if netns else []
        # A token of the module opens in one IPC namespace, and other machines do not share ours.
        if backend == "kernel" and number is None:
            self.inside += ["unshare", "--ipc"]
        self.node = f"{name}@{address}"
        self.dir = Path(tempfile.mkdtemp(prefix="tmesh-net-"))
        self.disk = number is not None
        if self.disk:
            alone_by, uid, self.missing = alone(number, backend)
            self.inside += alone_by
            for what in self.missing:
                print(f"# {self.node} has no {what} of its own here", flush=True)
            if backend == "kernel":
                os.chown("/dev/tmesh", 0, GROUP)  # as the rule for udev does
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=256k,nr_inodes=64,mode=700,uid={uid},gid={uid}", "tmesh-net", str(self.dir)],
                           check=True)
        self.beam = None
        self.last = ""  # answer
        self.start()

    def start(self):
        env = self.env = {**os.environ, "TMESH_BACKEND": self.backend, "TMESH_RUNTIME_DIR": str(self.dir),
               "TMESH_NET": str(BUILD / "tmesh-net"), "TMESH_KEEPER": str(BUILD / "tmesh-keeper"),
               "ERL_EPMD_PORT": str(self.epmd_port), "HOME": str(self.dir), "TMESH_TEST_LEASE_MS": str(self.lease_ms)}
        # Distribution gives up who says nothing, and with him his leases: not while eventually() waits for these to end by themselves.
        ticktime = f" -kernel net_ticktime {4 * SECONDS}"
        self.log = open(f"{self.dir}.log", "ab")
        self.beam = subprocess.Popen(
            [*self.inside, "elixir", "--name", self.node, "--cookie", SECRET, "--erl", f"-start_epmd false{self.tls}{ticktime}",
             "-pa", str(EBIN), str(HERE / "machine.exs"), self.address],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.read()

    def read(self):
        for line in self.beam.stdout:
            if line.startswith("> "):
                self.last = line[2:].strip()
                return self.last
            self.log.write(line.encode())
        raise AssertionError(f"{self.node} has ended: {Path(f'{self.dir}.log').read_text()[-2000:]}")

    def send(self, *words):
        print(*words, file=self.beam.stdin, flush=True)

    def ask(self, *words):
        self.send(*words)
        return self.read()

    def waiting(self, *command):
        """A program of this machine that is not waited for."""
        return subprocess.Popen([*self.inside, *command], env=self.env, stdout=subprocess.DEVNULL)

    def opened_by(self, *command):
        """Return a program's result on this machine, as the digest of its output or as its error."""
        done = subprocess.run([*self.inside, *command], env=self.env, capture_output=True, timeout=SECONDS)
        return f"error:{done.stderr.decode()}" if done.returncode else hashlib.md5(done.stdout).hexdigest()

    def offer(self, size, seed):
        return self.ask("offer", size, seed).split()

    def stats(self):
        """Nothing while the fetcher is between two lives."""
        answer = self.ask("stats")
        return {} if answer.startswith("error") else {name: int(number) for name, number in (word.split("=") for word in answer.split())}

    def processes(self, command):
        """Yield the processes of this machine, by the runtime directory in their environment."""
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                if (proc / "comm").read_text().strip() == command[:15] and \
                        f"TMESH_RUNTIME_DIR={self.dir}\0".encode() in (proc / "environ").read_bytes():
                    yield int(proc.name)
            except OSError:
                pass

    def kill(self, command):
        self.signal(command, signal.SIGKILL)

    def signal(self, command, number):
        for pid in self.processes(command):
            os.kill(pid, number)

    def die(self):
        """As when the power goes: the node and its fetcher at once."""
        for command in ("beam.smp", "tmesh-net"):
            self.kill(command)
        self.beam.kill()
        self.beam.wait()

    def regions(self):
        """How many descriptors of regions this machine's processes have."""
        links = []
        for command in ("beam.smp", "tmesh-net", "tmesh-keeper"):
            for pid in self.processes(command):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    try:
                        links.append(os.readlink(link))
                    except OSError:
                        pass
        region = "/memfd:tmesh", "/tmesh"  # the module's have no other name
        return [link for link in links if link.startswith(region) and "index" not in link]

    def fill_disk(self):
        """Not a byte more goes on it, and not a file."""
        assert self.disk
        for number in range(65):
            try:
                with open(self.dir / f"full{number}", "wb", buffering=0) as file:
                    while not number:
                        file.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                if number:
                    return
        raise AssertionError("the disk takes as many files as one likes")

    def empty_disk(self):
        for file in self.dir.glob("full*"):
            file.unlink()

    def nothing_left(self):
        left = []

        def clean():
            self.ask("clean")
            stats = self.stats()
            if not stats:
                return False
            left[:] = stats["offers"], stats["keys"], stats["fetches"], self.regions(), int(self.ask("kept"))
            return not any(left)
        eventually(clean, lambda: f"an end of everything on {self.node}: {left}")

    def end(self):
        self.signal("tmesh-net", signal.SIGCONT)
        if self.beam.poll() is None:
            try:
                self.ask("clean")
                self.beam.stdin.close()
                self.beam.wait(SECONDS)
            except (AssertionError, OSError, subprocess.TimeoutExpired):
                self.beam.kill()
        for command in ("beam.smp", "tmesh-net", "tmesh-keeper"):
            self.kill(command)
        self.log.close()
        if self.disk:
            subprocess.run(["umount", "-l", str(self.dir)], check=True)
        Path(f"{self.dir}.log").unlink()
        shutil.rmtree(self.dir, ignore_errors=True)


def epmd(inside, port):
    """Once it answers: a node that begins before does not."""
    daemon = subprocess.Popen([*inside, "epmd", "-port", str(port), "-relaxed_command_check"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers():
        assert daemon.poll() is None, f"epmd has ended: is the port {port} another one's?"
        return not subprocess.run([*inside, "epmd", "-port", str(port), "-names"], capture_output=True).returncode
    eventually(answers, lambda: f"epmd at the port {port}")
    return daemon


def epmd_here():
    """At a port that no process has here, which is given with it: other suites and programs have some, too."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as free:
            try:
                free.bind(("", port))
            except OSError:
                continue
        return epmd([], port), port


def connect(one, other):
    """Erlang gives a handshake seven seconds, and a slow machine takes more now and then."""
    eventually(lambda: one.ask("connect", other.node) == "true", lambda: f"a connection of {one.node} and {other.node}")


@contextlib.contextmanager
def machines_apart(place, network="10.77.0", more=(), backends=("memfd", "memfd"), each_alone=False, names=("home", "reader"), lease_ms=10_000):
    """Make machines in namespaces, the first two connected, and the function that calls topology.sh on them.
    None where the kernel has no such thing."""
    name, topology = f"tmn{os.getpid()}", str(HERE / "topology.sh")

    def do(what, *words):
        return subprocess.run([topology, what, name, *words], capture_output=True, text=True, check=True)

    machines, daemons = [], []
    count = str(len(backends))
    try:
        try:
            do("up", count)
            for words in more:
                do(*words)
        except subprocess.CalledProcessError as error:
            # A guest is booted for what it has: there it is a failure.
            assert not EMULATED, error.stderr
            report(place, skip=f"not on this kernel: {' '.join(error.stderr.split())}")
            yield None
            return
        for number, backend in enumerate(backends, 1):
            inside = ["ip", "netns", "exec", f"{name}-{number}"]
            daemons.append(epmd(inside, 4369))
            machines.append(Machine(names[number - 1], f"{network}.{number}", f"{name}-{number}", 4369,
                                    backend=backend, number=number if each_alone else None, lease_ms=lease_ms))
        connect(machines[1], machines[0])
        yield *machines, do
    finally:
        for machine in machines:
            machine.end()
        for daemon in daemons:
            daemon.kill()
            daemon.wait()
        do("down", count)
