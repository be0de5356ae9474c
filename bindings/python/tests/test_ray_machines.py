# SPDX-License-Identifier: MIT
"""tmesh.ray between two of Ray's nodes in network namespaces, by Ray's own way and by movers. Each node has a boot id
and a runtime directory of its own. Needs root."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from conftest import EMULATED

if EMULATED:
    pytest.skip("Ray takes minutes to start in an emulated machine", allow_module_level=True)
pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ray", reason="Ray is not installed: make python-ray-check")

HERE = Path(__file__).resolve().parent
TOPOLOGY = HERE.parents[2] / "tests/net/topology.sh"
RAY = Path(sys.executable).with_name("ray")
# A boot id belongs to the kernel, so the second machine sees another file in its place.
INSIDE = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


class Machines:
    def __init__(self, name):
        self.name = name
        # Both nodes use one folder: Ray takes the head's for all. A socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="tmesh-rm-", dir="/tmp"))
        self.nodes = []

    def command(self, number, *words):
        boot = self.folder / f"boot-{number}"
        boot.write_text(f"0000000{number}-0000-4000-8000-000000000000\n")
        return ["ip", "netns", "exec", f"{self.name}-{number}", "sh", "-c", INSIDE, str(boot), *map(str, words)]

    def environment(self, number):
        runtime = self.folder / f"run-{number}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        # Without variables of proxies, which cannot be reached here.
        return {**{key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")},
                "TMESH_RUNTIME_DIR": str(runtime), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

    def start(self, number, *words):
        log = open(self.folder / f"node-{number}.log", "wb")
        with log:
            self.nodes.append(subprocess.Popen(
                self.command(number, RAY, "start", "--block", "--num-cpus=1", f"--node-ip-address=10.77.0.{number}",
                             f"--object-store-memory={80 << 20}", *words),
                env=self.environment(number), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True))
        while b"Ray runtime started" not in (told := (self.folder / f"node-{number}.log").read_bytes()):
            assert self.nodes[-1].poll() is None, told.decode()
            time.sleep(0.2)

    def end(self):
        for number in 1, 2:
            pids = subprocess.run(["ip", "netns", "pids", f"{self.name}-{number}"], capture_output=True, text=True, check=False).stdout
            for pid in pids.split():
                with contextlib.suppress(ProcessLookupError):  # it has ended since
                    os.kill(int(pid), signal.SIGKILL)
        for node in self.nodes:
            node.wait()
        subprocess.run([TOPOLOGY, "down", self.name, "2"], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def machines():
    name = f"tmr{os.getpid()}"
    if os.geteuid() or subprocess.run([TOPOLOGY, "up", name, "2"], capture_output=True, check=False).returncode:
        subprocess.run([TOPOLOGY, "down", name, "2"], capture_output=True, check=False)
        pytest.skip("network namespaces cannot be made here: root, and a kernel with veth and bridge, can")
    both = Machines(name)
    try:
        both.start(1, "--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={both.folder / 'ray'}", '--resources={"first": 9}')
        both.start(2, "--address=10.77.0.1:6379", '--resources={"second": 9}')
        yield both
    finally:
        both.end()


@pytest.mark.parametrize("mover", ["fetcher", "nixl", "mooncake"])
def test_from_one_to_the_other(machines, mover):
    """The named mover fetches equal bytes. A receiver keeps them when the source has died, and a later one gets an
    error. The fetcher also reports a wrong key, a withdrawn offer, and a missing library."""
    if mover == "fetcher" and not os.environ.get("TMESH_NET_LIBRARY"):
        pytest.skip("TMESH_NET_LIBRARY names no libtmesh-net: make python-ray-check")
    driver = subprocess.Popen(machines.command(1, sys.executable, "-P", HERE / "ray_driver.py", "10.77.0.1:6379", mover),
                              env=machines.environment(1), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said = []
    for line in driver.stdout:
        if not line.startswith("> "):
            continue
        said.append(line[2:].strip())
        if said[-1].startswith("source "):
            os.kill(int(said[-1].split()[1]), signal.SIGKILL)
            driver.stdin.write("\n")
            driver.stdin.flush()
    driver.stdin.close()
    driver.stdout.close()
    assert driver.wait() == 0
    if mover == "fetcher":
        assert said.pop(3) == "wrong key GoneError" and said.pop(3) == "withdrawn GoneError", said
        assert said.pop(3).startswith("absent UnsupportedError the fetcher needs libtmesh-net: /nowhere.so:"), said
    assert said[:3] == ["apart True", f"torch True ['{mover}']", "tmesh True"], said
    assert said[4] == f"held True ['{mover}']" and said[5].startswith("late ") and said[5] != "late came", said
