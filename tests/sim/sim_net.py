#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Offers, leases and fetches between machines.

Each machine has a net, which speaks with other nets by messages, and a fetcher, which has the memory.
A home offers sealed memory. A reader's net asks the home's for a lease and gets a key, by which its
fetcher reads piece by piece, without the home's help. One fetch serves all on the reader's machine who
want the same bytes. It is sealed when its checksum is right, and kept. A connection that breaks while
there was progress is made again with a new lease, and reading goes on behind the last good piece.

Messages between two nets keep their order; they may be late or come twice, and a cut loses those on
their way. Reads over a cut just get no answer. Homes, readers and fetchers may be killed, pieces
damaged, offers withdrawn, waits given up, at any moment.

Promises: an opener gets a sealed region with the offered bytes, or an error before its deadline. A machine fetches the
same bytes once, and never twice at a time. No read reaches released memory, and a failed fetch leaves no memory. A
home's leases end, also if a reader was cut off or killed. Without faults every open succeeds.
"""

from sim import main, must

PIECES, LEASE, DEADLINE = 4, 300, 400


class Memory:
    def __init__(self, content):
        self.content, self.free = content, False


class Region:
    def __init__(self, content):
        self.content, self.pieces, self.sealed = content, [], False


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug, self.now, self.numbers, self.faults = rng, bug, 0, 0, 0
        self.wires, self.cuts, self.machines = {}, set(), []

    def number(self):
        self.numbers += 1
        return self.numbers

    def joined(self, one, other):
        return frozenset((one, other)) not in self.cuts

    def send(self, source, target, *message):
        if self.joined(source, target):
            copies = 2 if self.rng.random() < 0.1 else 1
            self.wires.setdefault((source, target), []).extend([message] * copies)

    def read(self, reader, home, key, place):
        """Return the result of a one-sided read: a piece, None for no answer yet, or False for an error."""
        if not self.joined(reader, home):
            return None
        if not home.alive or key not in home.keys:
            return False
        memory = home.keys[key][0]
        must(not memory.free, "a read reaches memory that was given back")
        if self.damage and self.rng.random() < 0.05:
            self.damage -= 1
            return ("damaged", place)
        return (memory.content, place)


class Machine:
    def __init__(self, world):
        self.world, self.alive = world, True
        self.offers, self.keys = {}, {}  # of a home
        self.answers, self.taken, self.fetches = {}, set(), {}
        self.kept, self.regions, self.fetched = {}, [], []

    # The home's net

    def offer(self, content):
        number = self.world.number()
        self.offers[number] = Memory(content)
        return number

    def withdraw(self, number):
        memory = self.offers.pop(number, None)
        if memory is None:
            return
        if self.world.bug == "keys":
            memory.free = True
            yield
        self.keys = {key: lease for key, lease in self.keys.items() if lease[0] is not memory}
        yield
        memory.free = True

    def lapse(self):
        if self.world.bug != "lapse":
            self.keys = {key: lease for key, lease in self.keys.items() if lease[1] > self.world.now}

    def receive(self, source, what, *rest):
        if what == "lease":
            number, offer = rest
            if offer not in self.offers:
                self.world.send(self, source, "answer", number, None)
                return
            key = self.world.number()
            self.keys[key] = (self.offers[offer], self.world.now + LEASE)
            self.world.send(self, source, "answer", number, key)
        elif what == "renew" and rest[0] in self.keys:
            self.keys[rest[0]] = (self.keys[rest[0]][0], self.world.now + LEASE)
        elif what == "done":
            self.keys.pop(rest[0], None)
        elif what == "answer":
            number, key = rest
            if self.world.bug == "number" and self.answers:
                number = min(self.answers)
            if number in self.answers and self.answers[number] is None:
                self.answers[number] = (key,)
                self.taken.add(key)
            elif key is not None and (key not in self.taken or self.world.bug == "twice"):
                self.world.send(self, source, "done", key)

    # The reader's net

    def open(self, home, offer, content):
        """A process that wants the bytes; return the region, or the failure."""
        started = self.world.now
        if content in self.kept:
            return self.kept[content]
        fetch = self.fetches.get(content)
        if fetch is None or self.world.bug == "once":
            fetch = self.fetches[content] = Fetch(self, home, offer, content)
        while fetch.result is None:
            must(self.world.now <= started + (PIECES + 2) * DEADLINE, "an open waits for ever")
            yield
        return fetch.result

    def fetcher_dies(self):
        self.keys = {}
        for fetch in list(self.fetches.values()):
            fetch.fail("gone")


class Fetch:
    def __init__(self, machine, home, offer, content):
        self.machine, self.home, self.offer, self.content = machine, home, offer, content
        self.world, self.result, self.region, self.key = machine.world, None, None, None
        self.life = self.live()
        self.world.lives.append((machine, self.life, self))

    def end(self, result):
        self.result = result
        if self.key is not None:
            self.world.send(self.machine, self.home, "done", self.key)
        if self.machine.fetches.get(self.content) is self:
            del self.machine.fetches[self.content]

    def fail(self, why):
        if self.region and not self.region.sealed and self.world.bug != "leave":
            self.machine.regions.remove(self.region)
        self.end(why)

    def late(self):
        return self.world.now > self.deadline and self.world.bug != "deadline"

    def live(self):
        world, machine = self.world, self.machine
        self.deadline = world.now + DEADLINE
        self.region = region = Region(self.content)
        machine.regions.append(region)
        progress = True
        while len(region.pieces) < PIECES:
            if not progress:
                return self.fail("gone")
            number = world.number()
            machine.answers[number] = None
            world.send(machine, self.home, "lease", number, self.offer)
            while machine.answers[number] is None:
                yield
                if self.late():
                    del machine.answers[number]
                    return self.fail("timeout")
            (self.key,) = machine.answers.pop(number)
            if self.key is None:
                return self.fail("withdrawn")
            progress = False
            while len(region.pieces) < PIECES:
                yield
                if self.late():
                    return self.fail("timeout")
                piece = world.read(machine, self.home, self.key, len(region.pieces))
                if piece is False:
                    break
                if piece is not None:
                    must(not region.sealed, "sealed memory is written to")
                    region.pieces.append(piece)
                    progress = True
                    self.deadline = world.now + DEADLINE
                    world.send(machine, self.home, "renew", self.key)
            if len(region.pieces) < PIECES and world.bug == "resume":
                region.pieces.append(None)
        if world.bug == "early":
            machine.kept[self.content] = region
            yield
        good = region.pieces == [(self.content, place) for place in range(PIECES)]
        if not good and world.bug != "checksum":
            return self.fail("damaged")
        region.sealed = True
        yield
        machine.fetched.append(self.content)
        machine.kept[self.content] = region
        self.end(region)


def run(rng, bug):
    world = World(rng, bug)
    faulty = rng.random() < 0.7
    world.damage = rng.choice((0, 1)) if faulty else 0
    damaged = world.damage
    faults = rng.choice((0, 1, 2, 3)) if faulty else 0
    troubled = bool(world.damage or faults)
    world.lives, waits = [], []
    machines = world.machines = [Machine(world) for _ in range(rng.choice((2, 3, 4)))]
    homes = [(machines[0], machines[0].offer(content), content) for content in "ab"]
    wanted = rng.randrange(2, 7)
    for _ in range(5000):
        world.now += 1
        for machine in machines:
            machine.lapse()
        if wanted and rng.random() < 0.1:
            wanted -= 1
            reader = rng.choice(machines[1:])
            home, offer, content = rng.choice(homes)
            if reader.alive:
                waits.append((reader, reader.open(home, offer, content), content))
        if faults and rng.random() < 0.02:
            faults -= 1
            what = rng.choice(("kill", "fetcher", "cut", "withdraw", "break"))
            victim = rng.choice(machines)
            if what == "kill":
                victim.alive = False
                victim.fetcher_dies()
                victim.kept, victim.regions = {}, []
                world.lives = [life for life in world.lives if life[0] is not victim]
                waits = [wait for wait in waits if wait[0] is not victim]
            elif what == "fetcher":
                victim.fetcher_dies()
            elif what == "cut":
                for machine in machines:
                    if machine is not victim:
                        world.cuts.add(frozenset((victim, machine)))
                        world.wires.pop((victim, machine), None)
                        world.wires.pop((machine, victim), None)
            elif what == "break":
                machines[0].keys = {}
            else:
                home, offer, _content = rng.choice(homes)
                world.lives.append((home, home.withdraw(offer), None))
        if world.cuts and rng.random() < 0.005:
            world.cuts = set()
        pairs = [pair for pair, wire in world.wires.items() if wire]
        if pairs and rng.random() < 0.7:
            source, target = pair = rng.choice(pairs)
            message = world.wires[pair].pop(0)
            if target.alive:
                target.receive(source, *message)
        if world.lives:
            life = rng.choice(world.lives)
            try:
                if life[2] is not None and life[2].result is not None:
                    raise StopIteration
                next(life[1])
            except StopIteration:
                world.lives.remove(life)
        for wait in list(waits):
            try:
                next(wait[1])
            except StopIteration as end:
                waits.remove(wait)
                check_open(end.value, wait[2], troubled, damaged - world.damage)
        for machine in machines:
            running = [life for life in world.lives if life[2] and life[0] is machine and not life[2].result]
            names = [life[2].content for life in running]
            must(len(names) == len(set(names)), "the same bytes are fetched twice at a time")
            must(len(machine.fetched) == len(set(machine.fetched)), "the same bytes are fetched again")
        if not wanted and not waits and not world.lives and not pairs and not faults:
            break
    must(not waits, "an open waits for ever")
    world.now += LEASE + 1
    for machine in machines:
        machine.lapse()
        must(not machine.keys, "a lease never ends")
        must(all(region.sealed for region in machine.regions), "a fetch that failed has left memory")


def check_open(result, content, troubled, damaged):
    if isinstance(result, Region):
        must(result.sealed, "who opens gets memory that is not sealed")
        must(result.pieces == [(content, place) for place in range(PIECES)], "who opens gets wrong bytes")
    else:
        must(troubled, f"an open fails with {result}, and there was no fault")
        must(result != "damaged" or damaged, "good pieces were put in wrong places")


BUGS = {
    "keys": "the end of the keys before memory is given back",
    "lapse": "leases that end by themselves",
    "number": "a look whether the answer belongs to the question",
    "twice": "a look whether an answer that comes again is in use",
    "once": "one fetch for all who want the same",
    "leave": "giving the memory of a failed fetch back",
    "deadline": "the reader's own deadline",
    "resume": "going on behind the last good piece",
    "early": "the seal before others can open",
    "checksum": "a look at the checksum",
}

if __name__ == "__main__":
    main("the net", run, BUGS, 4000, 40000)
