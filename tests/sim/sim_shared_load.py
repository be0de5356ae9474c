#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One shared load: processes that load the same file at once read it once.

Steps are called as in model/files/shared_load.c and shared_load_file.c. A file in the runtime directory has locks
that end with their process. The reader's is exclusive. All processes that wait or hold share presence; a process
between looking for a token and giving one shares joining. The file's record says which region is filled and how far.
Each holder of the region has a slot with a token of its own. The token is good while that process lives and holds the
region by the handle that it was made of, as on memfds. A model may be kept, and no longer. The contents of its header
lie in the shared load's file, which stays as long. Any process may be killed between two steps; the model's file may
change at any time.

Promises: a process that loads a model gets a sealed region with every piece of one version of the file, the one whose
header was read. If it has waited long for a stopped reader, it reads for itself. Two never write to one region. Without
a kill or a change there is one copy and one read. The last process to leave removes the file, unless the model is kept;
then the next process finds the file. Files of models no longer kept go with the next read. No process waits for ever.
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
    """The shared load's file: an inode with its record and its locks."""

    def __init__(self):
        self.linked = True
        self.reader = None
        self.present = set()
        self.alone = None  # the process that has presence exclusively
        self.joining = set()
        self.state = "empty"
        self.region = None  # number
        self.done = 0
        self.kept = None  # number
        self.table = False
        self.slots = []  # (process, its handle, region)

    def stays(self):
        return self.state == "done" and self.table and self.kept is not None and self.kept == self.region


class World:
    def __init__(self):
        self.version = 0
        self.files = {}  # by identity, the names in the directory
        self.kept = {}  # by identity
        self.every = []
        self.regions = []
        self.reads = 0
        self.kills = 0
        self.changes = 0
        self.drops = 0

    def drop(self, identity):
        self.drops += 1
        self.kept.pop(identity).holders.discard("keeper")


class Process:
    def __init__(self, world, number, bug, rng):
        self.world, self.number, self.bug, self.rng = world, number, bug, rng
        self.region = None
        self.handle = 0
        self.file = None
        self.alive = True
        self.keeps = rng.random() < 0.3
        self.patient = rng.random() < 0.9  # no reader that it waits for is stopped for so long
        self.result = None

    def hold(self, region):
        if self.region is not region:
            self.handle += 1
            if self.region:
                self.region.holders.discard(self.number)
            self.region = region
            if region:
                region.holders.add(self.number)

    def shared_load_open(self, identity):
        """The file of that name, with presence shared, still linked after that."""
        while True:
            file = self.world.files.get(identity)
            if file is None:
                file = self.world.files[identity] = File()
                self.world.every.append(file)
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

    def shared_load_publish(self):
        """Give a token of one's own, for later processes."""
        self.file.slots = [slot for slot in self.file.slots if slot[0] is not self]
        self.file.slots.append((self, self.handle, self.region))

    def shared_load_find(self):
        """Open the region that the record names, by any token that is good."""
        file = self.file
        if self.region and self.region.number == file.region:
            return True
        for process, handle, region in list(file.slots):
            if process.alive and process.handle == handle and region.number == file.region:
                self.hold(region)
                yield
                return True
        return False

    def shared_load_join(self):
        """The same, and give a token as long as it is filled."""
        file, before = self.file, self.region
        if self.bug != "joining":
            file.joining.add(self.number)
        state = file.state
        found = yield from self.shared_load_find()
        yield
        if found and before is not self.region and state == "reading":
            self.shared_load_publish()
            yield
        file.joining.discard(self.number)
        return found

    def shared_load_give(self):
        """The model's handle has no right to write: it is another one, and needs a token of its own."""
        self.handle += 1
        yield
        self.shared_load_publish()
        yield
        self.result = "model"

    def shared_load_open_finished(self):
        """The record reads that the region is whole: no process need wait for another."""
        file = self.file
        file.joining.add(self.number)
        yield
        found = yield from self.shared_load_find()
        if self.bug == "give":
            file.joining.discard(self.number)
            yield
        if found and self.region.sealed:
            yield from self.shared_load_give()
        file.joining.discard(self.number)

    def shared_load_fill(self, version):
        """Read from the record's progress on; the caller holds the reader's lock."""
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
            file.state, file.region, file.done, file.kept = "empty", None, 0, None
            self.result = "changed"
            return
        yield
        if self.bug == "seal":
            file.state = "done"
            yield
        region.sealed = True
        yield
        file.state = "done"

    def sweep(self, identity):
        """Remove files of other models without a process in them."""
        for other, file in list(self.world.files.items()):
            if other == identity or file.alone is not None or file.present:
                continue
            file.alone = self.number
            yield
            if file.linked and not (file.stays() and other in self.world.kept and self.bug != "asks"):
                file.linked = False
                del self.world.files[other]
            file.alone = None
            yield

    def shared_load_begin(self, version):
        file = self.file
        if version in self.world.kept:
            self.hold(self.world.kept[version])
            yield
            file.region, file.done, file.state = self.region.number, PIECES, "done"
            return
        yield from self.sweep(version)
        region = Region(len(self.world.regions))
        self.world.regions.append(region)
        self.hold(region)
        self.shared_load_publish()
        yield
        file.region, file.done, file.state, file.kept = region.number, 0, "reading", None
        yield
        yield from self.shared_load_fill(version)

    def shared_load_turn(self, version):
        """With the reader's lock."""
        file = self.file
        there = file.state != "empty" and (yield from self.shared_load_join())
        if file.state != "empty" and not there:
            if file.joining:
                return
            yield
            # A process that was joining has given its token by now, or is dead.
            there = self.bug != "again" and (yield from self.shared_load_join())
        if not there:
            yield from self.shared_load_begin(version)
        elif file.state == "reading" and not self.region.sealed:
            yield from self.shared_load_fill(version)
        elif file.state == "reading":
            file.state = "done"
        if not self.result:
            yield from self.shared_load_give()

    def shared_load_watch(self):
        """Another reads, or is stopped while it does."""
        if self.file.state == "reading":
            yield from self.shared_load_join()
        if not self.patient and self.rng.random() < 0.2:
            self.result = "alone"

    def shared_load_wait(self, version):
        file = self.file
        while self.result is None:
            yield
            if file.state == "done":
                yield from self.shared_load_open_finished()
            if self.result:
                return
            if file.reader is not None:
                yield from self.shared_load_watch()
                continue
            file.reader = self.number
            yield
            yield from self.shared_load_turn(version)
            file.reader = None
            yield

    def shared_load_keep(self, identity):
        if identity not in self.world.kept:
            self.world.kept[identity] = self.region
            self.region.holders.add("keeper")
        yield

    def shared_load_remember(self, identity):
        file = self.file
        file.table = True
        yield
        if self.keeps or self.region is self.world.kept.get(identity):
            file.kept = self.region.number

    def shared_load_leave(self, identity):
        """The last one removes the file, unless the model is kept."""
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
            if file.linked and not (file.stays() and self.bug != "stays"):
                file.linked = False
                del self.world.files[identity]
            file.alone = None
        yield
        file.present.discard(self.number)
        self.file = None

    def life(self):
        identity = version = self.world.version
        yield from self.shared_load_open(identity)
        yield from self.shared_load_wait(version)
        if self.result == "model":
            region = self.region
            must(region.sealed, "a model's region is not sealed")
            must(set(region.pieces) == {version}, f"a model of version {version} has {region.pieces}")
            if self.keeps:
                yield from self.shared_load_keep(identity)
            yield from self.shared_load_remember(identity)
            for _ in range(self.rng.randrange(6)):
                yield
        yield from self.shared_load_leave(identity)

    def kill(self):
        """Do the kernel's part: locks go, descriptors go."""
        self.alive = False
        self.world.kills += 1
        self.hold(None)
        for file in self.world.every:
            for holders in (file.present, file.joining):
                holders.discard(self.number)
            if file.reader == self.number:
                file.reader = None
            if file.alone == self.number:
                file.alone = None


def run(rng, bug):
    world = World()
    kills = rng.choice((0, 0, 1, 2))
    changes = rng.choice((0, 0, 0, 1))
    drops = rng.choice((0, 0, 1))
    processes = [Process(world, number, bug, rng) for number in range(rng.randrange(2, 6))]
    lives = {process.number: process.life() for process in processes}
    last = None
    late = {number for number in lives if rng.random() < 0.4}
    for _ in range(6000):
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
        if drops and world.kept and rng.random() < 0.1:
            drops -= 1
            world.drop(next(iter(world.kept)))
        try:
            next(lives[number])
        except StopIteration:
            del lives[number]
        alive = [region for region in world.regions if region.holders]
        if not world.kills and not world.changes:
            must(len(alive) <= 1, "there are two copies, and no process was killed")
    must(not lives, "a process waits for ever")
    for process in processes:
        if process.alive and not world.changes:
            must(process.result == "model" or (process.result == "alone" and not process.patient), f"a process ends with {process.result}")
    if not world.kills:
        must(all(file.stays() for file in world.files.values()), "the last to leave has not removed the file")
        must(world.drops or set(world.kept) <= set(world.files), "what is kept has no file with its table")
    # The next reader, of anything else, removes the useless files.
    for _ in Process(world, -1, bug, rng).sweep("another"):
        pass
    must(set(world.files) <= set(world.kept), "a file stays, and nothing of it is kept")


BUGS = {
    "recheck": "a look whether the file still has its name after the lock",
    "bytes": "bytes that are there before progress says so",
    "verify": "a second look at the model's file",
    "seal": "the seal before the record says done",
    "alone": "being alone before the file is removed",
    "leaving": "being no longer present before the look whether others are",
    "joining": "being seen while joining",
    "again": "a second look for tokens",
    "give": "being seen until one's own token is there",
    "stays": "the file of what is kept",
    "asks": "the question whether it is kept, before the file is removed",
}

if __name__ == "__main__":
    main("one shared load", run, BUGS, 6000, 100000)
