# SPDX-License-Identifier: MIT
"""A kept region is opened without its keeper: lib/keeper/shown.c, lib/keeper/table.c, lib/peer.c.

A keeper shows in an index which of its descriptors each name has, and lends an opening made for this alone. Clients
follow an entry at any pace, duplicate the lent opening or open the file anew, and look at the entry again. They hold
regions by descriptors and mappings, release them or are killed. A client that finds the entry changed begins anew,
once. The keeper takes names, replaces and drops them, looks for holders, and gives up regions without one; it uses its
numbers again for other files. A client has opened the region that its name kept at that time. A held region is known as
held and not given up; a region without a holder can go.
"""

from sim import main, must

BUGS = {
    "recheck": "a client looks at the entry again after it has the file",
    "recheck-again": "and so it does the second time, when the entry has changed meanwhile",
    "own-lent": "what is lent is an opening of its own",
    "take-back": "the keeper lets go of what is lent before it asks",
    "hide": "what is given up is shown no more, and looked at again",
    "mapping": "a mapping holds the file when its descriptor is closed",
}
CLIENTS = 3
NAMES = ("a", "b")
STEPS = 30
LOOKS = 2


class Memory:
    """A sealed region that a name keeps. The kernel knows its openings."""

    def __init__(self, name):
        self.name = name
        self.openings = set()
        self.given_up = False


class Opening:
    """`refs` are descriptors and mappings of it, in whatever process."""

    def __init__(self, memory):
        self.memory, self.refs = memory, 1
        memory.openings.add(self)

    def take(self):
        self.refs += 1
        return self

    def drop(self):
        self.refs -= 1
        if not self.refs:
            self.memory.openings.discard(self)


class Group:
    def __init__(self, world, memory):
        self.memory = memory
        self.own = world.new_fd(Opening(memory))
        self.lent = None


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug = rng, bug
        self.fds = {}  # the keeper's
        self.groups = {}  # by name
        self.index = {}  # name: (number, memory, to be duplicated); another object with each change
        self.time = 0
        self.ends = {}  # memory: when its name kept it no more
        self.holders = [[] for _ in range(CLIENTS)]  # whole opens, with when the entry was seen to stand

    def new_fd(self, opening):
        number = next(n for n in range(100) if n not in self.fds)
        self.fds[number] = opening
        return number

    def close(self, number):
        self.fds.pop(number).drop()

    def held_by_clients(self, memory):
        return any(opening.memory is memory for held in self.holders for opening in held)


def show(world, group):
    world.index[group.memory.name] = (group.own, group.memory, False)


def lend(world, group):
    if group.lent is None:
        own = world.fds[group.own]
        group.lent = world.new_fd(own.take() if world.bug == "own-lent" else Opening(group.memory))
        world.index[group.memory.name] = (group.lent, group.memory, True)


def take_back(world, group):
    """Others may see each of these steps in between."""
    if group.lent is None or world.bug == "take-back":
        return
    show(world, group)
    yield
    world.close(group.lent)
    group.lent = None
    yield


def looks(world, group):
    """The holders that the kernel reports; and those that it must report."""
    yield from take_back(world, group)
    held = bool(group.memory.openings - {world.fds[group.own]})
    must(held or not world.held_by_clients(group.memory), "a process holds it, and it is taken for not held")
    must(not held or world.held_by_clients(group.memory) or any(world.opening), "no process holds it, and it is taken for held")
    return held


def drop(world, group):
    name = group.memory.name
    if world.groups.get(name) is group:
        del world.groups[name]
    if world.index.get(name, (0, None))[1] is group.memory:
        del world.index[name]
    world.ends.setdefault(group.memory, world.time)
    yield
    for number in (group.lent, group.own):
        if number is not None:
            world.close(number)
            yield


def give_up(world, group):
    if (yield from looks(world, group)):
        return
    yield
    if world.bug != "hide":
        world.index.pop(group.memory.name, None)
        yield
        if (yield from looks(world, group)):
            show(world, group)
            return
    must(not world.held_by_clients(group.memory), "a process holds it, and it is given up")
    group.memory.given_up = True
    yield from drop(world, group)


def keeper(world):
    for _ in range(STEPS):
        name = world.rng.choice(NAMES)
        group = world.groups.get(name)
        what = world.rng.random()
        if what < 0.35:
            new = world.groups[name] = Group(world, Memory(name))
            show(world, new)
            if group:
                world.ends[group.memory] = world.time
            yield
            if group:
                yield from drop(world, group)
        elif what < 0.45 and group:
            yield from drop(world, group)
        elif what < 0.7 and group:
            yield from looks(world, group)
        elif group:
            yield from give_up(world, group)
        for one in world.groups.values():
            lend(world, one)
            yield


def opened(world, at, name):
    """Return the opening, or None: then the client asks the keeper."""
    for look in range(LOOKS):
        entry = world.index.get(name)
        if not entry:
            return None
        began = world.time
        yield
        number, memory, lent = entry
        there = world.fds.get(number)
        if there is not None and there.memory is memory:
            opening = there.take() if lent else Opening(there.memory)
            world.opening[at] = opening
            yield
            blind = world.bug == "recheck" or (world.bug == "recheck-again" and look)
            if blind or world.index.get(name) is entry:
                must(not memory.given_up, f"what {name} kept was given up, and is opened")
                must(world.ends.get(memory, began) >= began, f"what {name} kept before is opened")
                return opening
            world.opening[at] = None
            opening.drop()
        elif world.index.get(name) is entry:
            return None
        yield
    return None


def client(world, at):
    while True:
        opening = yield from opened(world, at, world.rng.choice(NAMES))
        if opening:
            world.holders[at].append(opening)
            world.opening[at] = None
            yield
            if world.rng.random() < 0.3:
                if world.bug != "mapping":
                    world.holders[at].append(opening.take())
                yield
                opening.drop()
                if world.bug != "mapping":
                    world.holders[at].remove(opening)
            for _ in range(world.rng.randrange(6)):
                yield
            world.holders[at].remove(opening)
        if opening and opening.refs:
            opening.drop()
        yield


def end(world, at):
    """Killed: the kernel closes the process's descriptors."""
    for opening in filter(None, [*world.holders[at], world.opening[at]]):
        if opening.refs:
            opening.drop()
    world.holders[at].clear()
    world.opening[at] = None


def run(rng, bug):
    world = World(rng, bug)
    world.opening = [None] * CLIENTS  # taken, and not looked at again yet
    keeps = keeper(world)
    clients = [client(world, at) for at in range(CLIENTS)]
    running = True
    while running:
        world.time += 1
        at = rng.randrange(CLIENTS + 2)
        if at >= CLIENTS:
            running = next(keeps, True) is None
        elif rng.random() < 0.02:
            clients[at].close()
            end(world, at)
            clients[at] = client(world, at)
        else:
            next(clients[at])
    for at in range(CLIENTS):
        clients[at].close()
        end(world, at)
    for group in list(world.groups.values()):
        for _ in give_up(world, group):
            pass
    must(not world.groups, "what has no holder does not go")
    must(not world.fds, "descriptors are left")


if __name__ == "__main__":
    main("kept opens", run, BUGS, 4000, 40000)
