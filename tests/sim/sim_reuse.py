# SPDX-License-Identifier: MIT
"""Memory that was lent for reading is used again: lib/region_pool.c, lib/memfd_fd.c, lib/index.c.

A producer writes a value, publishes an index entry and withdraws it. It writes the next value into the memory of an
earlier one once the kernel knows of no other holder. Readers follow the entry at any pace, duplicate the producer's
read-only file or open one of their own, and look at the entry again. They read, hand their file on in a message, keep
it, release it or are killed. A reader that has found its entry standing sees its value as long as it holds anything.
Memory whose readers are gone is used again.
"""

from sim import main, must

BUGS = {
    "recheck": "a reader looks at the entry again after it has the file",
    "own-file": "the producer lets go of its read-only file before it asks",
    "ask": "the producer asks the kernel",
    "withdraw": "the entry goes before the producer asks",
    "mapping": "a mapping holds the file when its descriptor is closed",
    "message": "a message under way holds the file",
}
READERS = 3
VALUES = 8
LIMIT = 3  # regions in the pool


class File:
    """An open read-only file: `refs` are descriptors, mappings and messages."""

    def __init__(self, memory):
        self.memory = memory
        self.refs = 1
        memory.files.add(self)

    def take(self):
        self.refs += 1
        return self

    def drop(self):
        self.refs -= 1
        if not self.refs:
            self.memory.files.discard(self)


class Memory:
    def __init__(self):
        self.value = None
        self.files = set()
        self.own = None  # the producer's read-only file, at the region's number


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug = rng, bug
        self.entry = None  # (value, memory)
        self.messages = []  # (file, value)
        self.pool = []
        self.fresh = 0

    def alone(self, memory):
        if self.bug == "ask":
            return True
        own = memory.own
        if self.bug == "own-file":
            # The producer's own file looks like a reader's duplicate of it: it must not count.
            return not memory.files - {own}
        return not memory.files


def producer(world):
    for value in range(VALUES):
        memory = None
        for old in list(world.pool):
            if old.own and world.bug != "own-file":
                old.own.drop()
                old.own = None
            yield
            if world.alone(old):
                world.pool.remove(old)
                memory = old
                break
        if memory is None:
            memory = Memory()
            world.fresh += 1
        yield
        if world.bug == "withdraw":
            world.entry = None
        memory.value = value
        if memory.own:
            memory.own.drop()
        memory.own = File(memory)
        world.entry = (value, memory)
        for _ in range(world.rng.randrange(6)):
            yield
        if world.bug != "withdraw":
            world.entry = None
        yield
        world.pool.append(memory)
        del world.pool[:-LIMIT]


def get(world, held):
    """A file by the entry or from a message, with the value that must be there."""
    if world.messages and world.rng.random() < 0.3:
        file, value = world.messages.pop()
        if world.bug == "message":
            file.take()
        held.append(file)
        return value
    entry = world.entry
    if entry is None:
        return None
    yield
    value, memory = entry
    # Open it by its number: the file there at this moment, or a new opening through /proc.
    file = memory.own.take() if memory.own and world.rng.random() < 0.5 else File(memory)
    held.append(file)
    yield
    if world.bug != "recheck" and world.entry is not entry:
        held.remove(file)
        file.drop()
        return None
    return value


def reader(world, held):
    while True:
        value = yield from get(world, held)
        yield
        if value is None:
            continue
        file = held[-1]
        if world.rng.random() < 0.3:
            # Mapped, and the descriptor closed.
            if world.bug != "mapping":
                held.append(file.take())
            yield
            file.drop()
            if world.bug != "mapping":
                held.remove(file)
        for _ in range(world.rng.randrange(8)):
            must(file.memory.value == value, f"the reader of {value} sees {file.memory.value}")
            yield
        if world.rng.random() < 0.2:
            world.messages.append((file, value))
            if world.bug != "message":
                file.take()
            yield
        held.remove(file)
        if file.refs:
            file.drop()


def run(rng, bug):
    world = World(rng, bug)
    makes = producer(world)
    helds = [[] for _ in range(READERS)]
    readers = [reader(world, held) for held in helds]
    running = True
    while running:
        at = rng.randrange(READERS + 1)
        if at == READERS:
            running = next(makes, True) is None
        elif rng.random() < 0.02:
            # Killed: the kernel closes the process's descriptors.
            for file in helds[at]:
                if file.refs:
                    file.drop()
            helds[at].clear()
            readers[at].close()
            readers[at] = reader(world, helds[at])
        else:
            next(readers[at])
    for held in helds:
        for file in held:
            if file.refs:
                file.drop()
    if bug is None:
        for file, _ in world.messages:
            file.drop()
        for memory in world.pool:
            if memory.own:
                memory.own.drop()
                memory.own = None
            must(world.alone(memory), "memory without a holder does not come back")


if __name__ == "__main__":
    main("lent memory", run, BUGS, 4000, 40000)
