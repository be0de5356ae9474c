# SPDX-License-Identifier: MIT
"""Machines that have users, clocks, IPC and disks of their own, for test_machines.py."""

import os

from machines import SECONDS, eventually


def test_alone(home, reader):
    """Two machines have nothing in common but a wire: neither users nor clocks, IPC, network or disks, as far as this kernel has them."""
    def seen(machine):
        pid = next(machine.processes("beam.smp"))
        spaces = {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in ("ipc", "net", "time")}
        return {**spaces, "user": os.stat(f"/proc/{pid}").st_uid, "disk": os.stat(machine.dir).st_dev}
    here = {**{name: os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "net", "time")}, "user": 0, "disk": os.stat("/").st_dev}
    all_of_them = [seen(home), seen(reader), here]
    for name in here:
        if {"time": "clocks", "user": "users"}.get(name) not in home.missing:
            assert len({one[name] for one in all_of_them}) == 3, (name, all_of_them)


def test_full_disks(home, reader):
    """On full disks fetches come as ever, for they are made of memory. A program that begins anew there reports the missing
    room, and goes on when there is room."""
    # A home or reader with memory of its own has a socket on the disk.
    offer, digest = home.offer(1000, "room")
    assert reader.ask("open", 1, SECONDS * 1000, offer) == digest
    for one in (home, reader):
        one.fill_disk()
    try:
        for size in (3000, 5_000_001):
            offer, digest = home.offer(size, f"full{size}")
            assert reader.ask("open", 2, SECONDS * 1000, offer) == digest
        assert reader.ask("clean") == "ok"
        reader.kill("tmesh-net")
        eventually(lambda: reader.stats(), lambda: "another fetcher")
        assert (answer := reader.ask("open", 1, SECONDS * 1000, offer)) == "error:system", answer
        reader.nothing_left()
    finally:
        for one in (home, reader):
            one.empty_disk()
    assert (answer := reader.ask("open", 1, SECONDS * 1000, offer)) == digest, answer
