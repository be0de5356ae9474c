#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a channel has accepted and who holds it: connections, the lane's shelf, the maker.

Steps are called as in lib/channel_hand.c and lib/channel_shelf.c. One lane, one sender after another,
receivers that come and go; every one of them may be killed between any two steps, and what somebody
else does may fall between them. A region lives while a process has it or while it lies in a socket of
which somebody has the far end. What was accepted is received as long as anybody is left to receive it,
but for what was counted as held by its sender alone; and nothing stays behind.
"""

from sim import main, must

ENTRIES = 3
SLOTS = 6


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug = rng, bug
        self.maker_sends = rng.random() < 0.25
        self.slots, self.head = [], 0  # entry, region
        self.table = [{"id": 0, "with maker": 0} for _ in range(ENTRIES)]
        self.alone = False  # head->state: the maker alone receives
        self.shelf = []  # snapshots: {entry: region}
        self.locked = None  # the maker's, by whom
        self.counted = set()  # held by its sender alone, and told so
        self.full = rng.random() < 0.15  # sockets that take nothing now and then
        self.last = 0
        self.closing = False  # nobody comes any more
        self.maker = self.sender = None
        self.receivers = []

    def takes(self):
        return not (self.full and self.rng.random() < 0.3)

    def there(self):
        """Who receives, the maker included where it does."""
        return [r for r in self.receivers if r.alive]

    def consumers(self):
        return len(self.there())

    def unpublished(self):
        return len(self.slots) - self.head >= SLOTS

    def named(self):
        return {entry: region for entry, region in self.slots[self.head:]}

    def lock(self, who):
        while self.locked and self.locked.alive:
            yield
        self.locked = who

    def unlock(self):
        self.locked = None

    def replace(self, lying):
        """One snapshot takes the place of what lies there; every step may be the last."""
        if not lying:
            self.shelf.clear()
            return True
        if not self.takes():
            return False
        if self.bug == "pop-first":
            self.shelf.clear()
            yield
        self.shelf.append(dict(lying))
        yield
        while len(self.shelf) > 1:
            self.shelf.pop(0)
            yield
        return True

    def holders(self, region):
        """Who has it now, processes and sockets."""
        found = [r for r in self.receivers if r.alive and region in r.has.values()]
        found += [r for r in self.receivers if r.alive and region in (i for _, i in r.conn + r.handed)]
        sender = self.sender
        if sender and sender.alive and region in sender.sent.values():
            found.append(sender)
        if (self.maker.alive or self.there()) and any(region in s.values() for s in self.shelf):
            found.append("the shelf")
        return found


class Process:
    def __init__(self, world):
        self.world, self.alive = world, True
        self.busy = False


class Sender(Process):
    """Joined, or the maker itself."""

    def __init__(self, world):
        super().__init__(world)
        self.sent, self.until, self.held = {}, {}, {}  # by entry
        self.ended_seen = False
        self.handed_to = None
        if world.shelf and world.bug != "forget-heir":  # tmesh_channel_shelf_inherit()
            for entry, region in world.shelf[0].items():
                if world.named().get(entry) == region:
                    self.sent[entry], self.held[entry] = region, "shelf"
        for at, (entry, _) in enumerate(world.slots[world.head:], world.head):
            self.until[entry] = at + 1

    def receiver_of(self):
        world = self.world
        if world.maker_sends:
            there = world.there()
            return there[0] if len(there) == 1 else None
        return world.receivers[0] if world.alone else None

    def on_shelf(self):
        return {e: r for e, r in self.sent.items() if self.held.get(e) == "shelf"}

    def collect(self):
        """What was received: nothing of it lies on the shelf afterwards."""
        for entry in list(self.sent):
            if self.world.head >= self.until.get(entry, 0) and self.world.rng.random() < 0.8:
                del self.sent[entry]
                self.held.pop(entry, None)
                self.world.table[entry]["id"] = 0

    def hand_over(self, entry, region):
        world = self.world
        yield from world.lock(self)
        to = self.receiver_of()
        if not world.maker_sends:
            yield  # the state may be another one by now
        if to and to.alive and world.takes():
            to.conn.append((entry, region))
            self.held[entry], self.handed_to = "there", to
            world.unlock()
            yield
            if not world.maker_sends:
                world.table[entry]["with maker"] = region
        else:
            self.held[entry] = "shelf"
            if not (yield from world.replace(self.on_shelf())):
                self.held[entry] = "here"
                if world.bug != "uncounted":
                    world.counted.add(region)
            world.unlock()

    def send(self):
        world = self.world
        known = [e for e in self.sent if self.held.get(e) and world.table[e]["id"] == self.sent[e]]
        if known and world.rng.random() < 0.3:
            entry = world.rng.choice(known)
        else:
            self.collect()
            yield
            free = [e for e in range(ENTRIES)
                    if e not in self.sent and world.head >= self.until.get(e, 0)]
            if not free:
                yield from world.replace(self.on_shelf())
                return
            entry = free[0]
            world.last += 1
            self.sent[entry] = world.last
            world.table[entry] = {"id": world.last, "with maker": 0}
            yield
            if world.bug == "publish-first":
                self.until[entry] = len(world.slots) + 1
                world.slots.append((entry, world.last))
                yield
            yield from self.hand_over(entry, world.last)
            yield
            if world.bug == "publish-first":
                return
        self.until[entry] = len(world.slots) + 1
        world.slots.append((entry, self.sent[entry]))

    def share(self):
        """tmesh_channel_shelve_handed(): another receiver comes."""
        moved = [e for e in self.sent if self.held.get(e) == "there"]
        for entry in moved:
            self.held[entry] = "shelf"
        if not (yield from self.world.replace(self.on_shelf())):
            for entry in moved:
                self.held[entry] = "there"
                self.world.counted.add(self.sent[entry])

    def live(self):
        while True:
            if not self.world.unpublished():
                yield from self.send()
            yield


class Receiver(Process):
    def __init__(self, world, is_maker=False):
        super().__init__(world)
        self.is_maker = is_maker
        self.conn, self.handed, self.has = [], [], {}
        self.was_handed = set()

    def take_conn(self):
        for entry, region in self.conn:
            self.handed = [(e, r) for e, r in self.handed if e != entry] + [(entry, region)]
        self.conn.clear()

    def open(self, entry, region):
        """Gives whether it has it; every look may come too late."""
        world = self.world
        if self.has.get(entry) == region:
            return True
        self.take_conn()
        if (entry, region) in self.handed:
            self.handed.remove((entry, region))
            self.was_handed.add(region)
            self.has[entry] = region
            return True
        yield
        sender = world.sender
        if sender and sender.alive and sender.sent.get(entry) == region and region in sender.made:
            self.has[entry] = region  # its token
            return True
        while True:
            with_maker = world.table[entry]["with maker"] == region and not self.is_maker
            yield
            if world.shelf and world.shelf[0].get(entry) == region:
                self.has[entry] = region
                return True
            if world.bug == "look-then-ask":
                yield
                with_maker = world.table[entry]["with maker"] == region and not self.is_maker
            if not with_maker or not world.maker.alive or world.bug == "early-lost":
                return False
            if world.table[entry]["id"] != region:
                return False
            yield

    def receive(self):
        world = self.world
        at = world.head
        if at >= len(world.slots):
            return
        entry, region = world.slots[at]
        yield
        has = yield from self.open(entry, region)
        yield
        if world.head != at:
            return  # another one had it
        world.head += 1
        if not has:
            must(region in world.counted, "what was accepted is lost, and nobody has counted it")
            return
        must(self in world.holders(region), "memory went away under a receiver")

    def close(self, entry):
        """Room for others. What it was handed goes back where it lay, while its sender counts on that."""
        region = self.has.pop(entry)
        if region in self.was_handed and self.world.bug != "close-handed" \
                and self.world.table[entry]["id"] == region:
            self.handed.append((entry, region))

    def live(self):
        while True:
            yield from self.receive()
            if self.has and self.world.rng.random() < 0.5:
                self.close(self.world.rng.choice(sorted(self.has)))
            yield


def settle(world, shared):
    """tmesh_channel_settle(): the lane has no sender."""
    maker = world.maker
    lying = {e: r for e, r in (world.shelf[0] if world.shelf else {}).items()
             if world.named().get(e) == r}
    if shared:
        for entry, region in world.named().items():
            if (entry, region) in maker.handed or \
                    (maker.has.get(entry) == region and world.bug != "unopened-only"):
                lying[entry] = region
    if lying != (world.shelf[0] if world.shelf else {}):
        if not (yield from world.replace(lying)):
            return
    if shared:
        for entry in world.table:
            entry["with maker"] = 0


def watch(world):
    """The maker's: who comes, who has gone, and what is to be given back."""
    maker, rng = world.maker, world.rng
    while True:
        yield from world.lock(maker)
        shared = not world.maker_sends and world.consumers() > 1
        sender = world.sender
        world.alone = not world.maker_sends and world.consumers() == 1
        if sender and not sender.alive and sender is not maker:
            if not sender.ended_seen:
                if not world.maker_sends:
                    maker.take_conn()
                sender.ended_seen = True
                yield from settle(world, shared)
            elif world.bug != "no-tidy":
                yield from settle(world, shared)
        if not world.maker_sends:
            named = world.named()
            gone = not world.sender.alive
            maker.handed = [(e, r) for e, r in maker.handed if world.table[e]["id"] == r
                            and not (gone and named.get(e) != r)]
        if world.closing:
            pass
        elif rng.random() < 0.1 and len(world.receivers) < 4:
            yield from admit_receiver(world)
        elif rng.random() < 0.3 and sender and not sender.alive and sender is not maker \
                and world.last < 30:
            yield from settle(world, not world.maker_sends)
            world.sender = joined(world)
        world.unlock()
        yield


def joined(world):
    sender = Sender(world)
    sender.made = Made(sender)
    sender.steps = sender.live()
    return sender


class Made:
    """Regions whose tokens this sender answers for: those that it has not inherited."""

    def __init__(self, sender):
        self.first = sender.world.last

    def __contains__(self, region):
        return region > self.first


def admit_receiver(world):
    maker = world.maker
    if world.maker_sends:
        if world.bug != "anyone":
            yield from maker.share()
    else:
        maker.take_conn()
        if world.bug == "drop-second":
            maker.handed.clear()
        if not world.sender or not world.sender.alive:
            yield from settle(world, True)
    receiver = Receiver(world)
    receiver.steps = receiver.live()
    world.receivers.append(receiver)
    world.alone = False


def kill(world, process):
    process.alive = False
    if world.locked is process:
        world.unlock()


def setup(world):
    if world.maker_sends:
        world.maker = world.sender = Sender(world)
        world.maker.made = Made(world.maker)
    else:
        world.maker = Receiver(world, is_maker=True)
        world.receivers.append(world.maker)
        world.alone = True
        world.sender = joined(world)
    world.maker.steps = world.maker.live()
    return watch(world)


def run(rng, bug):
    world = World(rng, bug)
    watcher = setup(world)
    lazy = rng.choice([1, 0.1])  # how soon the maker hears of what has happened
    slow = rng.choice([1, 0.3])  # those who receive
    danger = rng.choice([0, 0.01, 0.03])
    for _ in range(rng.randint(50, 400)):
        actors = {id(p): p for p in [world.sender, *world.receivers] if p and p.alive}
        # Somebody is left to receive; a maker that receives goes only as the last.
        for process in list(actors.values()):
            others = [r for r in world.there() if r is not process]
            if rng.random() < danger and (others if process in world.receivers
                                          else world.there()) and process is not world.maker:
                kill(world, process)
        if world.maker_sends and world.maker.alive and world.there() and rng.random() < danger / 2:
            kill(world, world.maker)
        turns = [p.steps for p in actors.values() if p.alive
                 and (p not in world.receivers or rng.random() < slow)]
        if world.maker.alive and (rng.random() < lazy or not turns):
            turns.append(watcher)
        if not turns:
            continue
        next(rng.choice(turns))
    finish(world, watcher)


def finish(world, watcher):
    """The sender is killed at last. Everything is received, and nothing is left of it."""
    if world.sender.alive and (world.sender is not world.maker or world.there()):
        kill(world, world.sender)
    world.closing = True
    for _ in range(600):
        if world.maker.alive:
            next(watcher)
        for receiver in world.there():
            next(receiver.steps)
    if not world.there():
        return
    must(world.head == len(world.slots), "what was accepted is not received")
    if not world.maker.alive or world.sender.alive:
        return  # the shelf ends with the last receiver, or is its sender's
    for _ in range(50):
        next(watcher)
    must(not any(world.shelf), "memory of the dead stays on the shelf")
    must(not world.maker.handed, "memory of the dead stays with the maker")


if __name__ == "__main__":
    main("hand", run, {
        "pop-first": "a snapshot is taken from the shelf when the next one lies there",
        "publish-first": "a region is handed over before a message names it",
        "anyone": "what one receiver was handed is not what another one has",
        "drop-second": "the maker goes on having what it alone was handed",
        "close-handed": "what was handed over and is closed for room is had all the same",
        "unopened-only": "the maker has handed on what it has opened, too",
        "early-lost": "what is with the maker is waited for",
        "look-then-ask": "who asks whether it is with the maker asks before looking at the shelf",
        "forget-heir": "a lane's next sender goes on holding what messages still name",
        "uncounted": "what nobody else can hold is counted",
        "no-tidy": "what was received of the dead is taken from the shelf",
    }, seeds=1500, full=50000)
