#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The names of slots: a file for each, whose locks end with their process.

Steps are called as in model/slots/slot_name.c. Processes take a name, give it up, remove the files of the
dead and look a name up; each may be killed between any two steps. A killed process loses its lock
and its slot one after the other, in either order.
"""

from sim import main, must

WORDS = 3  # of a record; the last is its checksum


class Inode:
    def __init__(self):
        self.words = [0] * WORDS
        self.owner = self.hand = None  # processes that hold the two locks


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug = rng, bug
        self.file = None  # the directory's entry: an inode
        self.processes = []
        self.owners = set()  # of whom the name is
        self.looks = []  # calls that are under way
        self.opened = []  # inodes that were ever there

    def has_it(self, process, has):
        """The time from a take's success to the begin of giving up, or to the kill."""
        (self.owners.add if has else self.owners.discard)(process)
        must(len(self.owners) <= 1, "two living publishers have one name")
        for look in self.looks:
            look.saw(self)

    def record(self, number):
        return [number] * (WORDS - 1) + [number * 7 if number else 0]


class Look:
    """The states of the world during a call, to judge its answer by."""

    def __init__(self, world, process):
        self.process = process
        self.throughout = set(world.owners)
        self.ever = set(world.owners)
        self.taken = self.wanted(world)
        world.looks.append(self)

    def wanted(self, world):
        return any(other.wants for other in world.processes if other is not self.process)

    def saw(self, world):
        self.throughout &= world.owners
        self.ever |= world.owners
        self.taken = self.taken or self.wanted(world)


class Process:
    def __init__(self, world, number):
        self.world, self.number = world, number
        self.alive = True  # its slot can be joined
        self.dying = self.ended = False
        self.wants = False  # holds the owner's lock, or did until a moment ago, to publish
        self.steps = self.run()

    def run(self):
        while True:
            what = self.world.rng.randrange(4)
            if what == 0:
                inode = yield from self.name_take()
                if inode:
                    for _ in range(self.world.rng.randrange(12)):
                        yield
                    yield from self.name_give_up(inode)
            elif what == 1:
                yield from self.name_sweep()
            else:
                yield from self.name_find()
            yield

    def open(self, create):
        world = self.world
        if not world.file and create:
            world.file = Inode()
            world.opened.append(world.file)
        return world.file

    def name_take(self):
        world, look = self.world, Look(self.world, self)
        while True:
            inode = self.open(create=True)
            yield
            if world.bug == "write-first":
                inode.words[:] = world.record(self.number)
                yield
            if world.bug != "no-hand":
                if inode.hand:
                    continue
                inode.hand = self
                yield
            linked = world.file is inode
            if world.bug == "link-early":
                yield
            if inode.owner:
                inode.hand = None if inode.hand is self else inode.hand
                world.looks.remove(look)
                must(look.ever or look.taken or inode.owner.wants,
                     "an unused name counts as taken")
                return None
            inode.owner = self
            self.wants = True
            for other in world.looks:
                other.saw(world)
            yield
            if world.bug != "link-early":
                linked = world.file is inode
            if not linked and world.bug != "no-link":
                inode.owner = None
                inode.hand = None if inode.hand is self else inode.hand
                self.wants = False
                yield
                continue
            yield
            for at, word in enumerate(world.record(self.number)):
                inode.words[at] = word
                yield
            inode.hand = None if inode.hand is self else inode.hand
            world.looks.remove(look)
            world.has_it(self, True)
            yield
            return inode

    def name_give_up(self, inode):
        world = self.world
        world.has_it(self, False)
        yield
        if world.bug == "unlock-first":
            inode.owner = None
            yield
        world.file = None
        yield
        inode.owner = None
        self.wants = False

    def name_sweep(self):
        """Remove a name that no process has. Another's take that is under way is left alone."""
        world = self.world
        inode = self.open(create=False)
        yield
        if not inode:
            return
        if world.bug != "no-hand":
            if inode.hand:
                return
            inode.hand = self
            yield
        if not inode.owner or world.bug == "sweep-blind":
            if not inode.owner:
                inode.owner = self
            yield
            if world.file is inode or world.bug == "sweep-another":
                world.file = None
            yield
            inode.owner = None if inode.owner is self else inode.owner
        inode.hand = None if inode.hand is self else inode.hand

    def name_find(self):
        """One look: it must find an owner that has had the name since before it, and nothing else is promised."""
        world, look = self.world, Look(self.world, self)
        found = None
        inode = self.open(create=False)
        yield
        words = []
        for at in range(WORDS if inode else 0):
            words.append(inode.words[at])
            yield
        if inode and world.bug == "no-checksum":
            must(len(set(words[:-1])) == 1, "half of a token was used")
        if inode and words[0] and words == world.record(words[0]):
            found = world.processes[words[0] - 1]
            found = found if found.alive else None  # else there is no slot to join
        world.looks.remove(look)
        must(found or not look.throughout, "a name that was there all the time was not found")
        must(not found or not look.throughout or found in look.throughout,
             "another slot was found than the one that had the name all the time")

    def kill(self):
        """The call of a killed process has no answer to judge."""
        self.dying = True
        self.steps = self.die()
        self.world.looks = [look for look in self.world.looks if look.process is not self]
        self.world.has_it(self, False)

    def die(self):
        """Let the kernel release the process's objects one by one."""
        parts = ["slot", "locks"]
        self.world.rng.shuffle(parts)
        for part in parts:
            yield
            if part == "slot":
                self.alive = False
            for inode in self.world.opened if part == "locks" else ():
                inode.owner = None if inode.owner is self else inode.owner
                inode.hand = None if inode.hand is self else inode.hand
        yield
        self.wants = self.alive = False
        self.ended = True


def run(rng, bug):
    world = World(rng, bug)
    world.processes = [Process(world, number) for number in range(1, rng.randint(2, 4) + 1)]
    for _ in range(rng.randint(50, 400)):
        process = rng.choice(world.processes)
        if process.ended:
            continue
        if not process.dying and rng.random() < 0.01:
            process.kill()
        if next(process.steps, "over") == "over":
            process.ended = True
    settle(world)


def settle(world):
    """All are killed; the next process gets the name at once, and leaves nothing behind."""
    world.looks.clear()
    for process in world.processes:
        if not process.dying:
            process.kill()
        for _ in process.steps:
            pass
    last = Process(world, len(world.processes) + 1)
    world.processes.append(last)
    steps, taken = last.name_take(), None
    for _ in range(100):
        try:
            next(steps)
        except StopIteration as stop:
            taken = stop.value
            break
    must(taken and world.file is taken and taken.words == world.record(last.number),
         "the name of the dead cannot be taken")
    for _ in last.name_give_up(taken):
        pass
    must(not world.file, "a file stays")
    # A name that a dead process left is swept, too.
    world.file = Inode()
    for _ in last.name_sweep():
        pass
    must(not world.file, "a file of the dead stays")
    must(not any(inode.owner or inode.hand for inode in world.opened), "a lock stays")


if __name__ == "__main__":
    main("names", run, {
        "write-first": "the record is written by who has the lock",
        "no-link": "a file that was removed meanwhile is no name",
        "link-early": "whether it was removed is looked at with the lock",
        "no-hand": "who removes the dead's files and who takes one wait for each other",
        "unlock-first": "the file is removed before its lock ends",
        "sweep-blind": "only a file that no process has is removed",
        "sweep-another": "and only when it still has the name",
        "no-checksum": "half a record is none",
    }, seeds=3000, full=50000)
