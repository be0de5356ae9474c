#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One flight: processes that load the same file at once read it once.

Steps are called as in model/flight.c. A file in the runtime directory has locks that end with their
process: the reader's, exclusive; presence, shared by all who wait or hold; joining, shared by who is
between looking for a token and giving one. Its record says which region is filled and how far. Each
who holds the region has a slot with a token of its own, which is good while that process lives and
holds the region, as on memfds. Any process may be killed between two steps; the model's file may
change at any time.

What is promised: who gets a model gets a sealed region with every piece of one version of the file,
the one whose header was read; two never write to one region; without a kill or a change there is one
copy and one read; the last to leave removes the file; nobody waits for ever.
"""

from sim import main, must

PIECES = 4


class Region:
    def __init__(self, number):
        self.number = number
        self.pieces = [None] * PIECES
        self.sealed = False
        self.holders = set()


class File:
    """The flight's file: an inode with its record and its locks."""

    def __init__(self):
        self.linked = True
        self.reader = None
        self.present = set()
        self.alone = None  # who has presence exclusively
        self.joining = set()
        self.state = "empty"
        self.region = None  # number
        self.done = 0
        self.slots = []  # (process, region)


class World:
    def __init__(self):
        self.version = 0
        self.files = {}  # by identity, the names in the directory
        self.regions = []
        self.reads = 0
        self.kills = 0
        self.changes = 0
        self.models = []


class Process:
    def __init__(self, world, number, bug, rng):
        self.world, self.number, self.bug, self.rng = world, number, bug, rng
        self.region = None
        self.file = None
        self.alive = True
        self.result = None

    def hold(self, region):
        if self.region is not region:
            if self.region:
                self.region.holders.discard(self.number)
            self.region = region
            if region:
                region.holders.add(self.number)

    def flight_open(self, identity):
        """The file of that name, with presence shared, still linked after that."""
        while True:
            file = self.world.files.get(identity)
            if file is None:
                file = self.world.files[identity] = File()
            yield
            if file.alone is not None:
                yield
                continue
            file.present.add(self.number)
            yield
            if file.linked or self.bug == "recheck":
                self.file = file
                return
            file.present.discard(self.number)

    def flight_publish(self):
        """A token of one's own, for those who come later."""
        self.file.slots = [slot for slot in self.file.slots if slot[0] is not self]
        self.file.slots.append((self, self.region))

    def flight_join(self):
        """Open the region that the record names, by any token that is good."""
        file = self.file
        if self.region and self.region.number == file.region:
            return True
        if self.bug != "joining":
            file.joining.add(self.number)
        yield
        for process, region in list(file.slots):
            if process.alive and process.region is region and region.number == file.region:
                self.hold(region)
                yield
                self.flight_publish()
                break
        yield
        file.joining.discard(self.number)
        return self.region is not None and self.region.number == file.region

    def flight_fill(self, version):
        """Read from where the record says on; the reader's lock is held."""
        file, region = self.file, self.region
        for piece in range(file.done, PIECES):
            if self.bug == "bytes":
                file.done = piece + 1
            yield
            must(file.reader == self.number, "the reader has lost its lock")
            must(not region.sealed, "a sealed region is written to")
            region.pieces[piece] = self.world.version
            self.world.reads += 1
            yield
            file.done = piece + 1
            yield
        if self.world.version != version and self.bug != "verify":
            file.state, file.region, file.done = "empty", None, 0
            return False
        yield
        if self.bug == "seal":
            file.state = "done"
            yield
        region.sealed = True
        yield
        file.state = "done"
        return True

    def flight_leave(self, identity):
        """The last one removes the file."""
        file = self.file
        self.hold(None)
        yield
        file.slots = [slot for slot in file.slots if slot[0] is not self]
        if self.bug != "leaving":
            file.present.discard(self.number)
            yield
        if self.bug == "alone" or (file.alone is None and file.present <= {self.number}):
            file.alone = self.number
            yield
            if file.linked:
                file.linked = False
                del self.world.files[identity]
            file.alone = None
        yield
        file.present.discard(self.number)
        self.file = None

    def life(self):
        identity = version = self.world.version
        yield from self.flight_open(identity)
        file = self.file
        while self.result is None:
            yield
            if file.reader is not None:
                if file.state == "reading":
                    yield from self.flight_join()
                continue
            file.reader = self.number
            yield
            if file.state != "empty" and not (yield from self.flight_join()):
                if not file.joining:
                    yield
                    # Whoever was joining has given its token by now, or is dead.
                    if self.bug == "again" or not (yield from self.flight_join()):
                        file.state = "empty"
            elif file.state == "done":
                self.result = "model"
            elif file.state == "reading":
                good = yield from self.flight_fill(version)
                self.result = "model" if good else "changed"
            if file.state == "empty" and self.result is None:
                region = Region(len(self.world.regions))
                self.world.regions.append(region)
                self.hold(region)
                self.flight_publish()
                yield
                file.region, file.done = region.number, 0
                yield
                file.state = "reading"
                yield
                good = yield from self.flight_fill(version)
                self.result = "model" if good else "changed"
            file.reader = None
            yield
        if self.result == "model":
            region = self.region
            must(region.sealed, "a model's region is not sealed")
            must(set(region.pieces) == {version}, f"a model of version {version} has {region.pieces}")
            for _ in range(self.rng.randrange(6)):
                yield
        yield from self.flight_leave(identity)

    def kill(self):
        """What the kernel does: locks go, descriptors go."""
        self.alive = False
        self.world.kills += 1
        self.hold(None)
        for file in self.world.every:
            file.present.discard(self.number)
            file.joining.discard(self.number)
            if file.reader == self.number:
                file.reader = None
            if file.alone == self.number:
                file.alone = None


def run(rng, bug):
    world = World()
    world.every = []
    kills = rng.choice((0, 0, 1, 2))
    changes = rng.choice((0, 0, 0, 1))
    processes = [Process(world, number, bug, rng) for number in range(rng.randrange(2, 6))]
    lives = {process.number: process.life() for process in processes}
    last = None
    late = {number for number in lives if rng.random() < 0.4}
    for _ in range(4000):
        running = [n for n in lives if n not in late]
        if not running:
            if not late:
                break
            late.pop()
            continue
        if late and rng.random() < 0.05:
            late.pop()
        # Some run for a while before another does.
        number = last if last in running and rng.random() < 0.8 else rng.choice(running)
        last = number
        process = processes[number]
        if kills and rng.random() < 0.02:
            kills -= 1
            process.kill()
            del lives[number]
            continue
        if changes and rng.random() < 0.01:
            changes -= 1
            world.version += 1
            world.changes += 1
        try:
            next(lives[number])
        except StopIteration:
            del lives[number]
        for file in world.files.values():
            if file not in world.every:
                world.every.append(file)
        alive = [region for region in world.regions if region.holders]
        if not world.kills and not world.changes:
            must(len(alive) <= 1, "there are two copies, and nobody was killed")
    must(not lives, "a process waits for ever")
    for process in processes:
        if process.alive and not world.changes:
            must(process.result == "model", f"a process ends with {process.result}")
    if not world.kills:
        must(not world.files, "the last to leave has not removed the file")


BUGS = {
    "recheck": "a look whether the file still has its name after the lock",
    "bytes": "bytes that are there before progress says so",
    "verify": "a second look at the model's file",
    "seal": "the seal before the record says done",
    "alone": "being alone before the file is removed",
    "leaving": "being no longer present before the look whether others are",
    "joining": "being seen while joining",
    "again": "a second look for tokens",
}

if __name__ == "__main__":
    main("one flight", run, BUGS, 6000, 100000)
