#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A slot: one publisher, readers that map its page read-only, and the kernel that counts holders.

Steps are called as in model/slot.c and model/board.c. The publisher writes its page word by word;
a reader looks at it word by word; between any two words everything else may happen, a SIGKILL
too. Opening a generation's token works while somebody of the publisher's side holds it: what the
publisher has let go is ENOENT, and then the reader looks again.
"""

from sim import main, must

WORDS = 3  # of an entry: the token's text
ENTRIES = 2


class Page:
    def __init__(self):
        self.generation = 0
        self.entries = [[0] * (1 + WORDS) for _ in range(ENTRIES)]  # number, text


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug = rng, bug
        self.page = Page()
        self.held = {}  # generation: holders; the kernel's
        self.published = 0
        self.readers = []
        self.alive = True

    def hold(self, generation, who):
        self.held.setdefault(generation, set()).add(who)

    def let_go(self, generation, who):
        self.held[generation].discard(who)
        if not self.held[generation]:
            del self.held[generation]

    def publisher_killed(self):
        self.alive = False
        for generation in list(self.held):
            if "publisher" in self.held[generation]:
                self.let_go(generation, "publisher")


def slot_publish(world):
    """One generation after another; each yield is a place where it can be killed."""
    page = world.page
    for number in range(1, world.rng.randint(2, 12)):
        world.hold(number, "publisher")
        yield
        entry = page.entries[number % ENTRIES]
        if world.bug == "generation-first":
            page.generation = number
        if world.bug != "entry-open":
            entry[0] = 0
            yield
        for word in range(WORDS):
            entry[1 + word] = number
            yield
        entry[0] = number
        yield
        page.generation = number
        world.published = number
        yield
        if number > 1:
            world.let_go(number - 1, "publisher")
            yield
        for reader in world.readers:  # board_ring
            if reader.subscribed:
                reader.rung = True
            yield


class Reader:
    def __init__(self, world, name):
        self.world, self.name = world, name
        self.subscribed = self.rung = self.dead = self.busy = False
        self.generation = 0  # that it reads
        self.kept = set()  # that requests hold
        self.last = 0

    def slot_read(self):
        world, page = self.world, self.world.page
        least = world.published
        if world.bug == "drain-late":
            generation = page.generation
            yield
            self.rung = False
        else:
            self.rung = False
            yield
            generation = page.generation
        yield
        while generation != self.generation:
            entry = page.entries[generation % ENTRIES]
            number = entry[0]
            yield
            words = []
            for word in range(WORDS):
                words.append(entry[1 + word])
                yield
            if world.bug != "no-second-look" and (number != generation or entry[0] != number):
                generation = page.generation
                yield
                continue
            must(len(set(words)) == 1, "a torn entry was taken for a token")
            if words[0] not in world.held:  # ENOENT
                if not world.alive:
                    break  # EPIPE: the publisher is dead, and its last value with it
                generation = page.generation if world.bug != "give-up" else self.generation
                yield
                continue
            must(words[0] == generation, "a generation has another one's bundle")
            self.slot_take(generation)
            if world.bug == "drain-late":
                break
            yield
            generation = page.generation
            yield
        must(self.generation >= least or not world.alive,
             "a read gave a generation older than one published before it")

    def slot_take(self, generation):
        must(generation > self.last, "a reader saw generations go back")
        self.last = generation
        old, self.generation = self.generation, generation
        self.world.hold(generation, self.name)
        if self.world.rng.random() < 0.4:
            self.kept.add(generation)
        if old and (old not in self.kept or self.world.bug == "forget-kept"):
            self.world.let_go(old, self.name)

    def drop_one(self):
        generation = self.world.rng.choice(sorted(self.kept))
        self.kept.discard(generation)
        if generation != self.generation:
            self.world.let_go(generation, self.name)

    def killed(self):
        self.dead = True
        if self.world.bug == "reader-counts":
            return
        for generation in list(self.world.held):
            if self.name in self.world.held[generation]:
                self.world.let_go(generation, self.name)

    def live(self):
        while True:
            if not self.subscribed:
                self.subscribed = self.rung = True  # board_watch: the first look is due
                yield
            if self.kept and self.world.rng.random() < 0.3:
                self.drop_one()
                yield
            if self.rung or self.world.rng.random() < 0.2:
                self.busy = True
                yield from self.slot_read()
                self.busy = False
            yield


def run(rng, bug):
    world = World(rng, bug)
    world.readers = [Reader(world, f"reader {i}") for i in range(rng.randint(1, 3))]
    publisher = slot_publish(world)
    actors = {reader: reader.live() for reader in world.readers}
    for _ in range(rng.randint(40, 250)):
        reader = rng.choice(world.readers)
        if rng.random() < 0.5:
            if world.alive:
                if rng.random() < 0.01:
                    world.publisher_killed()
                else:
                    next(publisher, None)
        elif not reader.dead:
            if rng.random() < 0.005:
                reader.killed()
            else:
                next(actors[reader])
        for reader in world.readers:
            if not reader.dead:
                for generation in reader.kept | {reader.generation} - {0}:
                    must(generation in world.held, "memory went away under a reader")
    if world.alive:
        for _ in publisher:  # it comes to its end, its last value stays
            pass
    for reader in world.readers:
        for _ in range(0 if reader.dead else 400):
            next(actors[reader])
            if not reader.rung and not reader.busy:
                break
        if reader.dead:
            continue
        must(not reader.busy, "a read does not end")
        must(not world.alive or reader.generation == world.published,
             "a watcher sleeps and has not seen the newest generation")
        while reader.kept:
            reader.drop_one()
    current = {world.published} | {r.generation for r in world.readers if not r.dead}
    must(set(world.held) <= current, "an old generation is still there")


if __name__ == "__main__":
    main("slots", run, {
        "generation-first": "the generation is told after its entry is whole",
        "entry-open": "an entry that is being written says so",
        "no-second-look": "the entry is looked at again after it was copied",
        "drain-late": "the bell is emptied before the look",
        "give-up": "a generation that is gone means another look",
        "forget-kept": "a generation stays as long as a request holds it",
        "reader-counts": "a dead reader holds nothing",
    }, seeds=3000, full=50000)
