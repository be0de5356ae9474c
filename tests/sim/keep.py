#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The keeper's protocol as a small model, under seeds. Clients crash at any step. A keeper is killed at any step and
restarted with the contents of the store (or without one). Names are raced, and there is a limit. Each step of a process
is one that the code takes without being interrupted; the seed draws the next step, and the next death. After each step
the promises are checked.

    keep.py                  a few thousand seeds (TMESH_TEST_LENGTH=full: many more); prints TAP
    keep.py --seed N         one of them again, with every step told
    keep.py --break WHAT     with a known defect, to see that it is found"""
import argparse
import os
import random
import sys

NAMES = ("a", "b", "c")
LIMIT = 4  # regions; each has size 1
DEFECTS = ("drop-unheard", "half-believed", "drop-before-keep", "visible-half", "evict-held", "no-barrier")


class Broken(Exception):
    pass


class Group:
    def __init__(self, number, name, regions):
        self.id, self.name, self.regions, self.used = number, name, tuple(regions), 0


class World:
    """The state between steps: regions and their holders, the store, and the promises to each client."""

    def __init__(self, seed, defect=None, log=None):
        self.random = random.Random(seed)
        self.defect, self.log = defect, log
        self.stored = self.random.random() < 0.6  # systemd keeps descriptors too
        self.clock = self.next_region = self.next_id = 0
        self.store = {}     # name in the store -> region or manifest
        self.in_flight = []  # to the store: read in order
        self.dropped = set()  # names whose owner knows that they are gone
        self.promised = {}  # name -> regions that its owner knows as kept, not replaced since
        self.keeper = None
        self.clients = []
        self.killed_keepers = 0
        self.alive = True

    def tell(self, *words):
        if self.log is not None:
            self.log.append(" ".join(map(str, words)))

    def tick(self):
        self.clock += 1
        return self.clock

    def holds(self, region):
        return any(region in client.held for client in self.clients)

    # systemd

    def deliver(self):
        """Deliver the oldest message to the store."""
        verb, key, value = self.in_flight.pop(0)
        self.tell("store", verb, key)
        if verb == "put":
            self.store[key] = value
        elif verb == "remove":
            self.store.pop(key, None)
        else:
            value["closed"] = True  # a barrier

    # the keeper

    def start_keeper(self):
        keeper = Keeper(self)
        if self.stored:
            # A new keeper is started once all messages of the dead one have been read.
            while self.in_flight:
                self.deliver()
            keeper.take_back()
        self.keeper = keeper
        self.tell("keeper starts with", sorted(keeper.groups))

    def kill_keeper(self):
        # The store may not read its last messages: it cannot tell which process a gone sender was.
        lost = self.random.randint(0, len(self.in_flight))
        self.tell("keeper killed,", lost, "messages lost")
        del self.in_flight[len(self.in_flight) - lost:]
        self.keeper = None
        self.killed_keepers += 1
        for client in self.clients:
            client.hang_up()
        if not self.stored:
            self.promised.clear()

    # the promises

    def check(self):
        keeper = self.keeper
        if not keeper:
            return
        if sum(len(g.regions) for g in keeper.groups.values()) > LIMIT:
            raise Broken("more is kept than the limit")
        seen = [r for g in keeper.groups.values() for r in g.regions]
        if len(seen) != len(set(seen)):
            raise Broken("a region is kept under two names")
        for name, group in keeper.groups.items():
            if not group.regions or len(group.regions) != group.whole:
                raise Broken(f"{name} is visible half given")
        if keeper.busy:
            return  # in the middle of a step of its own, unseen
        for name in self.dropped & set(keeper.groups):
            raise Broken(f"{name} was dropped, and is back")
        for name, regions in self.promised.items():
            group = keeper.groups.get(name)
            if group is None or group.regions != regions:
                raise Broken(f"{name} was kept, and is not")


class Keeper:
    """One request at a time reaches the table. Its messages to the store take steps of their own, in which it may be
    killed."""

    def __init__(self, world):
        self.world, self.groups, self.busy = world, {}, None

    def take_back(self):
        manifests = {k: v for k, v in self.world.store.items() if k[1] == "m"}
        for (number, _), (name, regions) in sorted(manifests.items()):
            parts = [self.world.store.get((number, i)) for i in range(len(regions))]
            if self.world.defect == "half-believed":
                parts = list(regions) if parts == list(regions) else [p for p in parts if p]
                self.groups[name] = self.group(number, name, parts)
                self.groups[name].whole = len(regions)
                continue
            if parts != list(regions):
                self.forget(number, len(regions))
                continue
            old = self.groups.get(name)
            if old:
                self.forget(old.id, len(old.regions))
            self.groups[name] = self.group(number, name, regions)
        for group in sorted(self.groups.values(), key=lambda g: g.used):
            if sum(len(g.regions) for g in self.groups.values()) > LIMIT and not self.is_held(group):
                # The group given up for another's sake came back, for no client had heard of it.
                del self.groups[group.name]
                self.forget(group.id, len(group.regions))
                self.world.promised.pop(group.name, None)
        known = {g.id for g in self.groups.values()}
        for key in [k for k in self.world.store if k[0] not in known]:
            del self.world.store[key]

    def forget(self, number, count):
        for key in [(number, "m")] + [(number, i) for i in range(count)]:
            self.world.store.pop(key, None)

    def group(self, number, name, regions):
        group = Group(number, name, regions)
        group.whole, group.used = len(regions), self.world.tick()
        return group

    def send(self, verb, key, value=None):
        if self.world.stored:
            self.world.in_flight.append((verb, key, value))

    def remove(self, group):
        self.send("remove", (group.id, "m"))
        for i in range(len(group.regions)):
            self.send("remove", (group.id, i))

    def is_held(self, group):
        return any(self.world.holds(r) for r in group.regions)

    def drop(self, name):
        group = self.groups.pop(name, None)
        if group:
            self.remove(group)
            yield from self.heard("drop-unheard")
        return "dropped"

    def heard(self, defect):
        barrier = {"closed": not self.world.stored or self.world.defect == defect}
        self.send("barrier", None, barrier)
        while not barrier["closed"]:
            yield

    def keep(self, name, regions, replace):
        """A generator: each yield is a moment at which it may be killed. Returns the answer."""
        world, old = self.world, self.groups.get(name)
        if old and not replace:
            return "EEXIST"
        others = [g for g in self.groups.values() if g is not old]
        if any(set(g.regions) & set(regions) for g in others):
            return "EBUSY"
        for group in self.groups.values():
            if self.is_held(group):
                group.used = world.tick()
        loose = [g for g in others if world.defect == "evict-held" or not self.is_held(g)]
        used = sum(len(g.regions) for g in others) + len(regions)
        if used - sum(len(g.regions) for g in loose) > LIMIT:
            return "EDQUOT"
        for group in sorted(loose, key=lambda g: g.used):
            if used <= LIMIT:
                break
            if self.is_held(group):
                raise Broken(f"{group.name} is held and was given up")
            used -= len(group.regions)
            world.promised.pop(group.name, None)
            del self.groups[group.name]
            self.remove(group)
            yield
        world.next_id += 1
        group = self.group(world.next_id, name, regions)
        if old and world.defect == "drop-before-keep":
            del self.groups[name]
            self.remove(old)
            yield
        parts = [((group.id, i), r) for i, r in enumerate(regions)]
        manifest = [((group.id, "m"), (name, group.regions))]
        for key, value in manifest + parts if world.defect == "half-believed" else parts + manifest:
            self.send("put", key, value)
            yield
        yield from self.heard("no-barrier")
        self.groups[name] = group
        if old and world.defect != "drop-before-keep":
            self.remove(old)
        return "ok"


class Client:
    """A client keeps, opens, holds, releases, drops; any step may be its last."""

    def __init__(self, world):
        self.world, self.held, self.work = world, set(), None

    def hang_up(self):
        self.work = None

    def step(self):
        world = self.world
        if self.work:
            try:
                next(self.work)
            except StopIteration:
                self.work = None
            return
        choice = world.random.random()
        if choice < 0.5 and world.keeper:
            self.work = self.keep()
        elif choice < 0.7 and world.keeper and not world.keeper.busy:
            self.open(world.random.choice(NAMES))
        elif choice < 0.85 and self.held:
            self.held.discard(world.random.choice(sorted(self.held)))
        elif choice < 0.9 and world.keeper and not world.keeper.busy:
            self.work = self.drop(world.random.choice(NAMES))

    def keep(self):
        world, keeper = self.world, self.world.keeper
        name = world.random.choice(NAMES)
        replace = world.random.random() < 0.5
        regions = []
        for _ in range(world.random.randint(1, 3)):
            world.next_region += 1
            regions.append(world.next_region)
            self.held.add(world.next_region)
        if self.held and world.random.random() < 0.1:
            regions[0] = min(self.held)
        given = []
        for region in regions:
            given.append(region)
            if world.defect == "visible-half" and not keeper.busy and name not in keeper.groups:
                keeper.groups[name] = keeper.group(0, name, given)
                keeper.groups[name].whole = len(regions)
            yield  # a message: the keeper or this client may end here
        while keeper.busy:
            yield
        keeper.busy = self
        before = world.promised.get(name)
        work = keeper.keep(name, list(dict.fromkeys(regions)), replace)
        # From here on the call goes on by itself, even if the client dies.
        world.running = (work, name, tuple(dict.fromkeys(regions)), before, self)
        while world.running and world.running[0] is work:
            yield

    def open(self, name):
        group = self.world.keeper.groups.get(name)
        if group:
            group.used = self.world.tick()
            self.held |= set(group.regions)

    def drop(self, name):
        world, keeper = self.world, self.world.keeper
        yield
        while keeper.busy:
            yield
        keeper.busy = self
        before = world.promised.pop(name, None)
        work = keeper.drop(name)
        world.running = (work, name, None, before, self)
        while world.running and world.running[0] is work:
            yield


def keeper_step(world):
    work, name, regions, before, client = world.running
    try:
        next(work)
    except StopIteration as end:
        world.tell("keep", name, regions, end.value)
        if end.value == "ok":
            world.promised[name] = regions
            world.dropped.discard(name)
        if end.value == "dropped":
            world.dropped.add(name)
        world.keeper.busy = world.running = None
        return
    # A kill during a replacement may leave the new regions, and so may it leave the old ones.
    world.unsure = name


def run(seed, defect=None, log=None):
    world = World(seed, defect, log)
    world.running = world.unsure = None
    world.start_keeper()
    world.clients = [Client(world) for _ in range(4)]
    for _ in range(200):
        choice = world.random.random()
        if choice < 0.02 and world.keeper:
            if world.running:
                _, name, regions, before, _ = world.running
                world.promised.pop(name, None)
                world.dropped.discard(name)
                world.unsure = (name, regions, before)
            world.running = None
            world.kill_keeper()
        elif choice < 0.1 and not world.keeper:
            world.start_keeper()
            if isinstance(world.unsure, tuple):
                name, regions, before = world.unsure
                group = world.keeper.groups.get(name)
                found = group.regions if group else None
                if world.stored and before and found not in (regions, before):
                    raise Broken(f"{name}: neither the old nor the new one is there")
                if world.stored and found:
                    world.promised[name] = found
            world.unsure = None
        elif choice < 0.15:
            number = world.random.randrange(len(world.clients))
            world.tell("client", number, "killed")
            world.clients[number] = Client(world)
        elif choice < 0.4 and world.in_flight:
            world.deliver()
        elif choice < 0.6 and world.running:
            keeper_step(world)
        else:
            world.random.choice(world.clients).step()
        world.check()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--break", dest="defect", choices=DEFECTS)
    args = parser.parse_args()
    if args.seed is not None:
        log = []
        try:
            run(args.seed, args.defect, log)
        except Broken as broken:
            print("\n".join(log), f"\n{broken}", sep="")
            return 1
        print("\n".join(log))
        return 0
    seeds = 40000 if os.environ.get("TMESH_TEST_LENGTH") == "full" else 4000
    defects = [args.defect] if args.defect else [None, *DEFECTS]
    print(f"1..{len(defects)}")
    status = 0
    for number, defect in enumerate(defects, 1):
        found = None
        for seed in range(seeds):
            try:
                run(seed, defect)
            except Broken as broken:
                found = (seed, broken)
                break
        good = (found is None) == (defect is None)
        what = f"{seeds} seeds keep every promise" if not defect else f"the defect {defect} is found"
        print(f"{'ok' if good else 'not ok'} {number} - {what}"
              + (f" by seed {found[0]}: {found[1]}" if found else ""))
        status |= not good
    return status


if __name__ == "__main__":
    sys.exit(main())
