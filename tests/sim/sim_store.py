#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The contents of a channel and their holders: the lanes' stores in the channel's store.

Steps are called as in lib/channel_store.c. One lane, one sender after another, receivers that come and go. Each of them
may be killed between any two steps, and the others go on meanwhile. A region lives while a process has it or while it
lies in a store that a process can reach. An accepted region is received as long as a receiver is left, unless it was
counted as held by its sender alone; and nothing stays behind.
"""

from sim import main, must

ENTRIES = 3
SLOTS = 6


class Store:
    """The store of a lane: datagrams, of which readers see the first one."""

    def __init__(self):
        self.lying = []

    def front(self):
        return self.lying[0] if self.lying else {}

    def has(self, region):
        return any(region in items.values() for items in self.lying)


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug = rng, bug
        self.maker_sends = rng.random() < 0.25
        self.slots, self.head = [], 0  # entry, region
        self.table = [0] * ENTRIES  # the region's id
        self.channel = []  # the channel's store: datagrams, each the lane's store or None
        self.locked = None  # the maker's, by whom
        self.counted = set()  # held by its sender alone, and counted so
        self.full = rng.random() < 0.15  # sockets that take nothing now and then
        self.last = 0
        self.closing = False  # no receiver comes from here on
        self.maker = self.sender = None
        self.receivers = []

    def takes(self):
        return not (self.full and self.rng.random() < 0.3)

    def there(self):
        return [r for r in self.receivers if r.alive]

    def unpublished(self):
        return len(self.slots) - self.head >= SLOTS

    def named(self):
        return {entry: region for entry, region in self.slots[self.head:]}

    def lane(self):
        """The lane's store as a reader finds it, or None."""
        return self.channel[0] if self.channel else None

    def lock(self, who):
        while self.locked and self.locked.alive:
            yield
        self.locked = who

    def unlock(self):
        self.locked = None

    def replace(self, lying, item):
        """Replace the store's contents by one datagram; every step may be the last."""
        if not item:
            lying.clear()
            return True
        if not self.takes():
            return False
        if self.bug == "pop-first":
            lying.clear()
            yield
        lying.append(item)
        yield
        while len(lying) > 1:
            lying.pop(0)
            yield
        return True

    def new_lane(self, lying):
        """new_lane(): return a store with these contents, in the place of the lane's last one. None: it could not be
        had, and nothing has changed."""
        store = Store()
        if self.bug == "empty-first":
            yield from self.replace(self.channel, store)
            yield from self.replace(store.lying, dict(lying))
            return store
        if lying and not (yield from self.replace(store.lying, dict(lying))):
            return None
        if not (yield from self.replace(self.channel, store)):
            return None
        return store

    def holders(self, region):
        """Return the present holders, processes and stores."""
        found = [r for r in self.receivers if r.alive and region in r.has.values()]
        found += [r for r in self.receivers if r.alive and r.looks_at and r.looks_at.has(region)]
        sender = self.sender
        if sender and sender.alive and region in sender.sent.values():
            found.append(sender)
        if (self.maker.alive or self.there()) and any(store.has(region) for store in self.channel):
            found.append("a store")
        return found


class Process:
    def __init__(self, world):
        self.world, self.alive = world, True


class Sender(Process):
    """Joined, or the maker itself."""

    def __init__(self, world, store):
        super().__init__(world)
        self.sent, self.until, self.stored = {}, {}, set()  # by entry
        self.store = store  # of its lane; None: it owes what it sends
        self.ended_seen = False
        self.first = world.last
        if store and world.bug != "forget-heir":  # tmesh_channel_store_inherit()
            for entry, region in store.front().items():
                if world.named().get(entry) == region:
                    self.sent[entry] = region
                    self.stored.add(entry)
        for at, (entry, _) in enumerate(world.slots[world.head:], world.head):
            self.until[entry] = at + 1

    def answers(self, entry, region):
        """For tokens of regions that it has not inherited."""
        return self.sent.get(entry) == region and region > self.first

    def items(self):
        return {e: r for e, r in self.sent.items() if e in self.stored}

    def collect(self):
        """Release a received region: the store has nothing of it afterwards."""
        for entry in list(self.sent):
            if self.world.head >= self.until.get(entry, 0) and self.world.rng.random() < 0.8:
                del self.sent[entry]
                self.stored.discard(entry)
                self.world.table[entry] = 0

    def update(self):
        """tmesh_channel_store_update()"""
        if self.store:
            return (yield from self.world.replace(self.store.lying, self.items()))
        if self is not self.world.maker:
            return not self.items()
        if self.items():
            self.store = yield from self.world.new_lane(self.items())
        return self.store or not self.items()

    def store_region(self, entry, region):
        world = self.world
        yield from world.lock(self)
        self.stored.add(entry)
        if not (yield from self.update()):
            self.stored.discard(entry)
            if world.bug != "uncounted":
                world.counted.add(region)
        world.unlock()

    def publish(self, entry):
        self.until[entry] = len(self.world.slots) + 1
        self.world.slots.append((entry, self.sent[entry]))

    def send(self):
        world = self.world
        known = [e for e in self.sent if world.table[e] == self.sent[e]]
        if known and world.rng.random() < 0.3:
            self.publish(world.rng.choice(known))
            return
        self.collect()
        yield
        free = [e for e in range(ENTRIES)
                if e not in self.sent and world.head >= self.until.get(e, 0)]
        if not free:
            yield from world.lock(self)
            yield from self.update()
            world.unlock()
            return
        entry = free[0]
        world.last += 1
        self.sent[entry] = world.table[entry] = world.last
        yield
        if world.bug == "publish-first":
            self.publish(entry)
            yield
        yield from self.store_region(entry, world.last)
        yield
        if world.bug != "publish-first":
            self.publish(entry)

    def live(self):
        while True:
            if not self.world.unpublished():
                yield from self.send()
            yield


class Receiver(Process):
    def __init__(self, world, is_maker=False):
        super().__init__(world)
        self.is_maker = is_maker
        self.has = {}
        self.looks_at = None  # an end of the lane's store

    def open(self, entry, region):
        """Return whether it has the region; every look may come too late."""
        world = self.world
        if self.has.get(entry) == region:
            return True
        sender = world.sender
        if sender and sender.alive and sender.answers(entry, region):
            self.has[entry] = region  # its token
            return True
        yield
        self.looks_at = world.lane()
        yield
        store, self.looks_at = self.looks_at, None
        if store and store.front().get(entry) == region:
            self.has[entry] = region
            return True
        return False

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
            must(region in world.counted, "what was accepted is lost, and was not counted")
            return
        must(self in world.holders(region), "memory went away under a receiver")

    def live(self):
        while True:
            yield from self.receive()
            if self.has and self.world.rng.random() < 0.5:
                del self.has[self.world.rng.choice(sorted(self.has))]
            yield


def named_in_store(world):
    store = world.lane()
    lying = store.front() if store else {}
    named = world.named()
    return {e: r for e, r in lying.items()
            if named.get(e) == r or world.bug == "keep-all"}, lying


def settle(world):
    """tmesh_channel_settle(): the lane has no sender."""
    kept, lying = named_in_store(world)
    if not kept:
        yield from world.replace(world.channel, None)
    elif kept != lying:
        yield from world.new_lane(kept)


def watch(world):
    """The maker's part: new processes, gone processes, and regions to release."""
    maker, rng = world.maker, world.rng
    while True:
        yield from world.lock(maker)
        sender = world.sender
        if not sender.alive and sender is not maker:
            if not sender.ended_seen or world.bug != "no-tidy":
                yield from settle(world)
            sender.ended_seen = True
        if world.closing:
            pass
        elif rng.random() < 0.1 and len(world.receivers) < 4:
            world.receivers.append(joined_receiver(world))
        elif rng.random() < 0.3 and not sender.alive and sender is not maker and world.last < 30:
            kept, _ = named_in_store(world)
            if world.bug == "leave-behind":
                kept = {}
            world.sender = joined(world, (yield from world.new_lane(kept)))
        world.unlock()
        yield


def joined(world, store):
    sender = Sender(world, store)
    sender.steps = sender.live()
    return sender


def joined_receiver(world, is_maker=False):
    receiver = Receiver(world, is_maker)
    receiver.steps = receiver.live()
    return receiver


def kill(world, process):
    process.alive = False
    if world.locked is process:
        world.unlock()


def setup(world):
    if world.maker_sends:
        world.maker = world.sender = joined(world, None)
    else:
        world.maker = joined_receiver(world, is_maker=True)
        world.receivers.append(world.maker)
        store = Store()
        world.channel.append(store)
        world.sender = joined(world, store)
    return watch(world)


def run(rng, bug):
    world = World(rng, bug)
    watcher = setup(world)
    lazy = rng.choice([1, 0.1])  # how soon the maker hears of what has happened
    slow = rng.choice([1, 0.3])  # those who receive
    danger = rng.choice([0, 0.01, 0.03])
    for _ in range(rng.randint(50, 400)):
        actors = {id(p): p for p in [world.sender, *world.receivers] if p and p.alive}
        # A receiver must be left; a maker that receives goes only as the last.
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
        return  # the stores end with the last receiver, or are the sender's
    for _ in range(50):
        next(watcher)
    must(not any(store.front() for store in world.channel), "memory of the dead stays in the store")


if __name__ == "__main__":
    main("store", run, {
        "pop-first": "a datagram is taken away when the next one lies there",
        "empty-first": "a new store has what the last one had before others see it",
        "publish-first": "a region is stored before a message names it",
        "leave-behind": "a lane's next sender gets what messages still name",
        "forget-heir": "a lane's next sender goes on holding what messages still name",
        "uncounted": "what no other process can hold is counted",
        "keep-all": "what no message names any more is not kept",
        "no-tidy": "what was received of the dead is taken out of the store",
    }, seeds=1500, full=50000)
