#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How Tmesh.Net grows: up to 1,000 machines that all want one model by its name, on a network of numbers.

A machine has a wire of so many bytes a second in each direction. The readers of a home share its wire equally, and no
read gets more than an eighth of its reader's. A net asks for eight regions at a time. A home grants 256 keys at a time,
64 of them to one reader, and is busy for others. They ask again later, each time twice as long after, up to 5 s. A
message takes LATENCY and is handled at once: the number of messages is the result. The engine's own, its ticks and its
groups, are counted on paper (docs/reference/net.md).

Prints TAP, and a table as comments. The same seed gives the same numbers.
"""

import heapq
import random
import sys

WIRE, LATENCY = 10e9 / 8, 100e-6
AT_ONCE, KEYS, KEYS_PER_PEER = 8, 256, 64
AGAIN, AGAIN_MOST = 0.1, 5.0
RENEWALS = 10.0  # a second, of a read that runs


class Home:
    """Reads share the wire: each has its share of `given` bytes, and ends at so many."""

    def __init__(self):
        self.reads, self.ends, self.given, self.since, self.version = {}, [], 0.0, 0.0, 0
        self.per_peer, self.messages, self.most_keys, self.sent = {}, 0, 0, 0.0

    def rate(self):
        return min(WIRE / max(1, len(self.reads)), WIRE / AT_ONCE)

    def go_on(self, now):
        self.given += (now - self.since) * self.rate()
        self.since = now
        self.version += 1


class World:
    def __init__(self, machines, homes, regions, region_bytes, seed, backoff=True, keys=KEYS):
        self.rng, self.events, self.number, self.now = random.Random(seed), [], 0, 0.0
        self.homes = [Home() for _ in range(homes)]
        self.regions, self.region_bytes, self.backoff, self.keys = regions, region_bytes, backoff, keys
        self.left, self.todo, self.done_at, self.asked, self.renewals = {}, {}, {}, 0, 0.0
        for reader in range(machines - homes):
            self.begin(reader)

    def at(self, time, *what):
        self.number += 1
        heapq.heappush(self.events, (time, self.number, what))

    def begin(self, reader):
        # One question to each home: which region has it under that name?
        for home in self.homes:
            home.messages += 2
        self.left[reader], self.todo[reader] = self.regions, list(range(self.regions))
        for _ in range(min(AT_ONCE, self.regions)):
            self.next_region(reader, 2 * LATENCY)

    def next_region(self, reader, delay):
        if self.todo[reader]:
            self.ask(reader, self.todo[reader].pop(), 0, delay)

    def ask(self, reader, region, times, delay):
        self.at(self.now + delay + LATENCY, "lease", reader, region, times)

    def lease(self, reader, region, times):
        self.asked += 1
        # Each region has another home first; the next where that one is busy.
        for turn in range(len(self.homes)):
            home = self.homes[(reader + region + turn) % len(self.homes)]
            home.messages += 2
            if len(home.reads) < self.keys and home.per_peer.get(reader, 0) < KEYS_PER_PEER:
                home.go_on(self.now)
                home.reads[reader, region] = self.now
                home.per_peer[reader] = home.per_peer.get(reader, 0) + 1
                home.most_keys = max(home.most_keys, len(home.reads))
                heapq.heappush(home.ends, (home.given + self.region_bytes, reader, region))
                self.wake(home)
                return
        wait = min(AGAIN_MOST, AGAIN * 2 ** times) if self.backoff else AGAIN
        self.ask(reader, region, times + 1, wait * self.rng.uniform(0.5, 1))

    def wake(self, home):
        if home.ends:
            self.at(self.now + max(0.0, home.ends[0][0] - home.given) / home.rate(), "end", home, home.version)

    def end(self, home, version):
        if version != home.version:
            return
        home.go_on(self.now)
        while home.ends and home.ends[0][0] <= home.given + 1:
            _bytes, reader, region = heapq.heappop(home.ends)
            renewals = (self.now - home.reads.pop((reader, region))) * RENEWALS
            home.per_peer[reader] -= 1
            home.sent += self.region_bytes
            home.messages += 1 + renewals  # done
            self.renewals += renewals
            self.left[reader] -= 1
            if not self.left[reader]:
                self.done_at[reader] = self.now
            self.next_region(reader, LATENCY)
        self.wake(home)

    def play(self):
        while self.events:
            self.now, _number, what = heapq.heappop(self.events)
            getattr(self, what[0])(*what[1:])
        return self


def waves(machines, regions, region_bytes):
    """Each machine publishes the regions that it has opened, and a wave is twice as many as there are homes."""
    homes, seconds, messages = 1, 0.0, 0
    while homes < machines:
        many = min(machines, 3 * homes)
        world = World(many, homes, regions, region_bytes, homes).play()
        seconds += world.now
        messages = max(messages, *(home.messages / world.now for home in world.homes))
        homes = many
    return seconds, messages


failed = count = 0


def report(name, wrong):
    global failed, count
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}" + (f": {wrong}" if wrong else ""), flush=True)


def main():
    regions, region_bytes = 8, 64 << 20
    print("# machines homes  seconds  of the wire's  keys held  messages/s of a home  asked again")
    for machines, homes in ((2, 1), (10, 1), (100, 1), (100, 4), (1000, 1), (1000, 4), (1000, 16)):
        world = World(machines, homes, regions, region_bytes, 1).play()
        readers = machines - homes
        least = max(regions * region_bytes * readers / homes, regions * region_bytes) / WIRE
        per_second = max(home.messages for home in world.homes) / world.now
        again = world.asked - readers * regions
        print(f"# {machines:8} {homes:5} {world.now:8.1f} {world.now / least:14.2f} "
              f"{max(home.most_keys for home in world.homes):10} {per_second:21.0f} {again:12}")
        wrong = ""
        if len(world.done_at) != readers:
            wrong = f"{readers - len(world.done_at)} never have it"
        elif sum(home.sent for home in world.homes) != readers * regions * region_bytes:
            wrong = "bytes are sent twice, or not at all"
        elif max(home.most_keys for home in world.homes) > KEYS:
            wrong = "a home holds more keys than its limit"
        elif world.now > 1.5 * least + 2 * AGAIN_MOST:
            wrong = f"{world.now:.1f} s for what the wires could do in {least:.1f}"
        elif per_second > 6000:
            wrong = f"{per_second:.0f} messages a second at a home"
        report(f"{machines} machines, {homes} of them homes", wrong)
    seconds, messages = waves(1000, regions, region_bytes)
    print(f"#     1000 in waves: {seconds:.1f} s, {messages:.0f} messages/s of a home")
    report("in waves it takes the logarithm", "" if seconds < 30 else f"{seconds:.1f} s")
    storm, patient = (World(300, 1, 2, region_bytes, 1, backoff).play() for backoff in (False, True))
    times = storm.asked / patient.asked
    report("without waiting longer each time there are many more questions", "" if times > 2 else f"{times:.1f} times as many")
    alone = World(300, 1, 2, region_bytes, 1, keys=1 << 30).play()
    report("without a home's limit it holds a key of each read", "" if alone.homes[0].most_keys > KEYS else "no")
    print(f"1..{count}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
