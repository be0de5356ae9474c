#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The log: one writer, segments in a ring, followers that hold a copy of a table.

Steps are called as in model/pages/log.c (log_*). The writer stores a record in pieces and then moves the tail; a
follower copies a record in pieces. Anything may happen between two pieces: the writer begins the segment anew, a bit of
the memory flips, one of both is killed. A second part sends the same records over a link that loses, repeats and swaps
them, as a link between machines may. A follower's table is always the table as it was after some record.
"""

from sim import main, must

SEGMENTS = 2
ROOM = 40  # cells of a segment


def checksum(cells):
    total = 17
    for cell in cells:
        total = (total * 31 + cell) % 1000003
    return total


class Memory:
    def __init__(self):
        self.tail = (0, 0)  # segment, offset
        self.cells = [[0] * ROOM for _ in range(SEGMENTS)]


class Writer:
    """Its table is number: value; the records are number, kind, key, value, checksum."""

    def __init__(self, world):
        self.world = world
        self.table = {}
        self.number = 0
        self.history = {0: {}}  # the table after each record

    def log_put(self, segment, offset, kind, key, value):
        """Write one record's cells; they count once the tail is beyond them."""
        self.number += 1
        record = [self.number, kind, key, value]
        record.append(checksum(record))
        cells = self.world.memory.cells[segment % SEGMENTS]
        for i, cell in enumerate(record):
            cells[offset + i] = cell
            if i % 2:
                yield
        return offset + len(record)

    def log_tail(self, segment, offset):
        self.world.memory.tail = (segment, offset)
        self.world.sent.append(self.number)

    def log_append(self, key, value):
        segment, offset = self.world.memory.tail
        changed = {**self.table, key: value}
        if self.world.bug != "state-late":
            self.table = changed
        if offset + 10 > ROOM:  # the record and the mark of the segment's end
            yield from self.log_turn(segment, offset)
            self.table = changed
            return
        self.table = changed
        if self.world.bug == "tail-first":
            self.world.memory.tail = (segment, offset + 5)
        end = yield from self.log_put(segment, offset, 1, key, value)
        self.history[self.number] = self.table
        self.log_tail(segment, end)
        yield

    def log_turn(self, segment, offset):
        """End the segment; the next one begins with the whole table."""
        at = yield from self.log_put(segment, offset, 4, 0, 0)
        self.history[self.number] = None
        self.log_tail(segment, at)
        yield
        segment, at = segment + 1, 0
        self.world.memory.tail = (segment, 0)  # before its first cell changes
        if self.world.bug == "turn-late":
            self.world.memory.tail = (segment - 1, offset + 5)
        yield
        at = yield from self.log_put(segment, at, 2, len(self.table), 0)
        self.history[self.number] = None
        for key, value in sorted(self.table.items()):
            at = yield from self.log_put(segment, at, 1, key, value)
            self.history[self.number] = None
        at = yield from self.log_put(segment, at, 3, 0, 0)
        self.history[self.number] = self.table
        self.log_tail(segment, at)
        yield

    def live(self):
        while True:
            yield from self.log_append(self.world.rng.randint(1, 3), self.world.rng.randint(1, 99))


class Follower:
    def __init__(self, world):
        self.world = world
        self.where = None  # segment, offset: unknown until it resynchronises
        self.lost = True
        self.table, self.number = {}, 0
        self.loading = None
        self.told = []

    def log_resync(self):
        """Begin at the newest segment's start, which has a whole table."""
        self.where = (self.world.memory.tail[0], 0)
        self.lost = False
        self.number = None
        self.loading = {} if self.world.memory.tail[0] else None
        self.table = {} if self.loading is None else None

    def fell(self, why):
        self.told.append(why)
        self.lost = True

    def log_apply(self, record):
        """A whole record: its number must be the next, then it changes the copy."""
        number, kind, key, value = record
        if self.number is not None and number != self.number + 1 and self.world.bug != "no-numbers":
            if number <= self.number:
                return "again"
            self.fell("a number is missing")
            return "gap"
        self.number = number
        if kind == 2:
            self.loading = {}
        elif kind == 3:
            self.table, self.loading = self.loading, None
        elif kind == 1 and self.loading is not None:
            self.loading = {**self.loading, key: value}
        elif kind == 1:
            self.table = {**(self.table or {}), key: value}
        return "new"

    def log_next(self):
        memory = self.world.memory
        segment, offset = self.where
        newest, end = memory.tail
        if newest - segment >= SEGMENTS and self.world.bug != "no-lap":
            self.fell("behind")
            return
        if newest == segment and offset >= end:
            return
        if newest < segment and self.world.bug != "run-ahead":
            return  # it has the end of a segment, and the next has not begun
        cells = memory.cells[segment % SEGMENTS]
        record = []
        for i in range(5):
            if offset + i >= ROOM:
                self.fell("damaged")
                return
            record.append(cells[offset + i])
            yield
        if memory.tail[0] - segment >= SEGMENTS and self.world.bug not in ("no-lap", "no-second-look"):
            self.fell("behind")
            return
        *body, sum_ = record
        if checksum(body) != sum_ and self.world.bug != "no-checksum":
            self.fell("damaged")
            return
        if self.log_apply(body) != "new":
            if not self.lost:
                self.fell("damaged")
            return
        self.where = (segment + 1, 0) if body[1] == 4 else (segment, offset + 5)
        self.check()

    def check(self):
        if self.loading is None and self.table is not None and self.number is not None:
            true = self.world.writer.history.get(self.number, "none")
            must(true is None or true == self.table, "a copy is not the table it says it is")

    def live(self):
        while True:
            if self.lost:
                self.log_resync()
                yield
            yield from self.log_next()
            yield


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug = rng, bug
        self.memory = Memory()
        self.sent = []
        self.writer = Writer(self)
        self.damaged = False

    def damage(self):
        self.damaged = True
        cells = self.rng.choice(self.memory.cells)
        cells[self.rng.randrange(ROOM)] += self.rng.choice([-1, 1, 64])


def shared(rng, bug):
    """One machine: memory that the follower maps read-only."""
    world = World(rng, bug)
    followers = [Follower(world) for _ in range(2)]
    writer, actors = world.writer.live(), [f.live() for f in followers]
    hurry = rng.choice([0.3, 0.6, 0.9])
    harm = rng.random() < 0.3
    for _ in range(rng.randint(100, 600)):
        if rng.random() < hurry:
            next(writer)
        else:
            next(rng.choice(actors))
        if harm and rng.random() < 0.01:
            world.damage()
    if rng.random() < 0.5:  # the writer is killed here; its records stay
        count = world.memory.tail
    else:
        for _ in range(60):  # two segments without harm
            next(writer)
        count = None
    for follower, actor in zip(followers, actors):
        for _ in range(1500):
            next(actor)
            follower.check()
        if count is None and not harm:
            must(not follower.lost or follower.told, "a follower is lost and does not say so")
        if not harm:
            must("damaged" not in follower.told, "a report of damage where there was none")


def link(rng, bug):
    """Two machines: whole records that are lost, repeated and swapped."""
    world = World(rng, bug)
    follower = Follower(world)
    follower.lost, follower.number, follower.table = False, 0, {}
    writer = world.writer.live()
    records, line = 0, []
    for _ in range(rng.randint(50, 300)):
        next(writer)
        if len(world.sent) > records:
            records = len(world.sent)
            segment, end = world.memory.tail
            cells = world.memory.cells[segment % SEGMENTS][end - 5:end]
            line.append(list(cells))
        while line and rng.random() < 0.4:
            at = rng.randrange(len(line)) if rng.random() < 0.1 else 0
            record = line[at] if rng.random() < 0.1 else line.pop(at)
            if rng.random() < 0.03:
                continue  # lost
            if follower.lost:
                follower.lost = False
                follower.number = None
                follower.table, follower.loading = dict(world.writer.table), None
                line.clear()
                follower.number = world.writer.number
                if world.writer.history.get(follower.number) != follower.table:
                    follower.lost = True  # the writer is in the middle of a record
                break
            *body, sum_ = record
            if rng.random() < 0.02:
                body[rng.randrange(4)] += 1
            if checksum(body) != sum_ and world.bug != "no-checksum":
                follower.fell("damaged")
                continue
            if body[1] == 1 or world.bug == "no-numbers":
                follower.log_apply(body)
                follower.check()
            else:
                follower.fell("a snapshot is fetched")


def run(rng, bug):
    shared(rng, bug)
    link(rng, bug)


if __name__ == "__main__":
    main("log", run, {
        "state-late": "a segment's table has the change that made it begin",
        "tail-first": "the tail moves after the record is whole",
        "turn-late": "the tail says that a segment begins before it is written",
        "no-second-look": "the tail is looked at again after a record was copied",
        "no-checksum": "a record's checksum is looked at",
        "no-numbers": "a record's number is looked at",
        "run-ahead": "who has read a segment's end waits for the next to begin",
        "no-lap": "who is a round behind says so",
    }, seeds=3000, full=20000)
