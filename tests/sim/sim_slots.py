#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A slot: one publisher, readers that map its page read-only, and the kernel that counts holders.

Steps are called as in model/slots/slot.c and model/shared/publication.c. The publisher writes its page word by word; a
reader looks at it word by word; between any two words everything else may happen, a SIGKILL too. Opening a generation's
token works while the publisher's side holds it. After its release the opening fails with ENOENT, and the reader looks
again. A reader that was overtaken a few times asks. The publisher's thread answers with its newest generation, and
holds that until the reader is done or dead. So no read is overtaken without an end.
"""

from sim import main, must

WORDS = 3  # of an entry: the token's text
ENTRIES = 2
TRIES = 2  # before a reader asks


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
        self.locked = False  # the slot's lock, of publisher and thread
        self.bundle = 0  # the newest generation, of which the publisher holds the bundle

    def hold(self, generation, who):
        self.held.setdefault(generation, set()).add(who)

    def let_go(self, generation, who):
        must(generation in self.held, "memory went away under a reader")
        self.held[generation].discard(who)
        if not self.held[generation]:
            del self.held[generation]

    def publisher_killed(self):
        self.alive = False
        for generation in list(self.held):
            for who in [who for who in self.held[generation] if who[0] == "p"]:  # and pins
                self.let_go(generation, who)


def slot_publish(world):
    """One generation after another; each yield is a place where it can be killed."""
    page = world.page
    for number in range(1, world.rng.randint(2, 12)):
        world.hold(number, "publisher")
        yield
        while world.locked:
            yield
        world.locked = True
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
        world.bundle = number
        world.locked = False
        yield
        if number > 1:
            world.let_go(number - 1, "publisher")
            yield
        for reader in world.readers:  # board_ring
            if reader.answer_pending:
                slot_answer(world, reader)
            elif reader.subscribed:
                reader.notified = True
            yield


def slot_unpin(world, reader):
    if reader.pinned:
        world.let_go(reader.pinned, f"pin of {reader.name}")
    reader.pinned = 0


def slot_answer(world, reader):
    """The newest generation, which is held for the reader. A notification that was not read may leave no room: then the
    next one is the answer."""
    slot_unpin(world, reader)
    reader.answer_pending = reader.notified and world.rng.random() < 0.5
    if reader.answer_pending or not world.bundle:
        return
    reader.pinned = world.bundle
    world.hold(reader.pinned, f"pin of {reader.name}")
    if world.bug == "no-pin":
        slot_unpin(world, reader)
    reader.answers.append((reader.asks, world.page.entries[world.page.generation % ENTRIES][1]))


def host(world):
    """The publisher's thread: it reads the readers' words, one after the other, and their ends."""
    while True:
        yield
        for reader in world.readers:
            word, number = reader.said[0] if reader.said else (None, 0)
            if word == "ask":
                if world.locked and world.bug != "answer-unlocked":
                    continue
                reader.said.pop(0)
                reader.asks = number
                slot_answer(world, reader)
            elif word == "done":
                reader.said.pop(0)
                reader.answer_pending = False
                if world.bug != "pin-stays":
                    slot_unpin(world, reader)
                if reader.subscribed and world.bug != "no-notification":
                    reader.notified = True  # it may have emptied one while it waited
            elif reader.dead and world.bug != "dead-pin":
                reader.answer_pending = False
                slot_unpin(world, reader)
            yield


class Reader:
    def __init__(self, world, name):
        self.world, self.name = world, name
        self.subscribed = self.notified = self.dead = self.busy = False
        self.said = []  # to the publisher's thread
        self.number = 0  # of its asks
        self.asks = 0  # of these the one that the publisher knows of
        self.answers = []
        self.pinned = 0
        self.answer_pending = False
        self.generation = 0  # that it reads
        self.kept = set()  # that requests hold
        self.last = 0

    def slot_read(self):
        world, page = self.world, self.world.page
        least = world.published
        if world.bug == "drain-late":
            generation = page.generation
            yield
            self.notified = False
        else:
            self.notified = False
            yield
            generation = page.generation
        yield
        tries, asked = 0, 0
        while generation != self.generation:
            if asked:
                self.notified = False  # model_subscription_answer: notifications come on the same socket
                fit = [answer for number, answer in self.answers
                       if number == self.number or world.bug == "any-answer"]
                self.answers.clear()
                if fit:
                    must(fit[0] >= asked, "the answer is older than what the reader knew of")
                    must(fit[0] in world.held or not world.alive, "what was answered is gone")
                    if fit[0] in world.held:
                        self.slot_set_value(fit[0])
                    break
            elif tries == TRIES and world.bug != "no-ask":
                asked = generation
                self.number += 1
                self.said.append(("ask", self.number))
                yield
            tries += not asked  # while it waits for an answer it goes on
            must(tries <= TRIES, "a read is overtaken without an end")
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
            self.slot_set_value(generation)
            break
        if asked:
            self.said.append(("done", 0))
        must(self.generation >= least or not world.alive,
             "a read gave a generation older than one published before it")

    def slot_set_value(self, generation):
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
                self.subscribed = self.notified = True  # model_subscription_poll_fd: the first look is due
                yield
            if self.kept and self.world.rng.random() < 0.3:
                self.drop_one()
                yield
            if self.notified or self.world.rng.random() < 0.2:
                self.busy = True
                yield from self.slot_read()
                self.busy = False
            yield


def run(rng, bug):
    world = World(rng, bug)
    world.readers = [Reader(world, f"reader {i}") for i in range(rng.randint(1, 3))]
    publisher, thread = slot_publish(world), host(world)
    haste = rng.choice((1, 1, 8))  # a publisher that is faster than its readers
    actors = {reader: reader.live() for reader in world.readers}
    for _ in range(rng.randint(40, 250)):
        reader = rng.choice(world.readers)
        if rng.random() < 0.5:
            if world.alive:
                if rng.random() < 0.01:
                    world.publisher_killed()
                else:
                    for _ in range(haste):
                        next(publisher, None)
                    next(thread)
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
            next(thread)
    for reader in world.readers:
        for _ in range(0 if reader.dead else 400):
            next(actors[reader])
            if world.alive:
                next(thread)
            if not reader.notified and not reader.busy and not (world.alive and reader.said):
                break
        if reader.dead:
            continue
        must(not reader.busy, "a read does not end")
        must(not world.alive or reader.generation == world.published,
             "a watcher sleeps and has not seen the newest generation")
        while reader.kept:
            reader.drop_one()
    for _ in range(40 if world.alive else 0):
        next(thread)
    current = {world.published} | {r.generation for r in world.readers if not r.dead}
    must(set(world.held) <= current, "an old generation is still there")


if __name__ == "__main__":
    main("slots", run, {
        "generation-first": "the generation changes after its entry is whole",
        "entry-open": "an entry that is being written says so",
        "no-second-look": "the entry is looked at again after it was copied",
        "drain-late": "the notification is read before the look",
        "give-up": "a generation that is gone means another look",
        "forget-kept": "a generation stays as long as a request holds it",
        "reader-counts": "a dead reader holds nothing",
        "no-ask": "who was overtaken a few times asks",
        "no-pin": "what a reader asked for is held for it",
        "pin-stays": "it is held until the reader is done",
        "dead-pin": "or dead",
        "answer-unlocked": "the newest generation is looked at under the lock",
        "any-answer": "an answer is to what was asked last",
        "no-notification": "a reader that waited for an answer is notified again",
    }, seeds=3000, full=50000)
