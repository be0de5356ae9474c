#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tokens that hold: memory stays until it was opened, or its time is over.

Steps are called as in lib/hold.c and lib/server.c. Without the module the opener of a token asks its maker by socket:
the descriptor lies in the opener's socket before the hold ends. On the module the kernel redeems tokens and counts the
redemptions of each region. The maker looks now and then, and the kernel keeps a sealed region beyond its maker's end,
under a name. Makers and readers are killed between any two steps, replies and looks come late. A ref that holds is good
for one opener before its time is over, and n refs of a region for n. A ref that was opened or has expired holds no
memory.
"""

from sim import main, must

TIME = 15  # that a hold lasts


class World:
    def __init__(self, rng, bug, module):
        self.rng, self.bug, self.module = rng, bug, module
        self.now = 0
        self.regions = [Region(self, n) for n in range(2)]
        self.kept = {}  # the kernel's: name: (region, until)
        self.makers = [Maker(self, n) for n in range(2 if module else 1)]
        self.refs = []  # given out, and not opened yet
        self.readers = []

    def tick(self):
        self.now += 1
        for name, (_, until) in list(self.kept.items()):
            if until <= self.now:
                del self.kept[name]


class Region:
    def __init__(self, world, number):
        self.world, self.number = world, number
        self.opens = 0
        self.given = 0  # refs that hold it
        self.makers = set()  # of them

    def lives(self):
        world = self.world
        return any(region is self for region, _ in world.kept.values()) \
            or any(m.alive and m.handles.get(self, 0) for m in world.makers) \
            or any(r.alive and (r.has is self or self in r.socket) for r in world.readers)


class Ref:
    def __init__(self, maker, hold):
        self.maker, self.hold, self.region, self.until = maker, hold, hold.region, hold.until

    def alone(self):
        """No other maker holds the region: an open of its refs would count for this one's, too."""
        return self.maker.world.bug == "shared-name" or self.region.makers == {self.maker}


class Hold:
    def __init__(self, region, until, opens):
        self.region, self.until, self.opens = region, until, opens
        self.held = True


class Maker:
    """A context that holds: its user releases each region at once."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.alive = True
        self.handles = {}  # region: references of this context
        self.holds = []
        self.names = {}  # what it has the kernel keep: region: (name, until)
        self.requests = []  # readers who have asked

    def count(self, region):
        return sum(hold.held for hold in self.holds if hold.region is region)

    def end(self, hold):
        hold.held = False
        region = hold.region
        self.handles[region] -= 1
        if not self.count(region) and region in self.names:
            self.world.kept.pop(self.names.pop(region)[0], None)

    def was_opened(self, hold):
        return self.world.module and hold.region.opens >= hold.opens

    def outlive(self, region, until):
        """Let the kernel keep the region as long as the last of its holds."""
        world = self.world
        if region in self.names and self.names[region][1] >= until:
            return
        if world.bug == "first-time" and region in self.names:
            return
        if world.bug == "shared-name":
            name = region.number
        elif region in self.names:
            name = self.names[region][0]
        else:
            name = (region.number, self.number, world.rng.random())
        # Another name keeps the region already: then it ends with its maker.
        if any(kept is region and other != name for other, (kept, _) in world.kept.items()):
            return
        world.kept[name] = (region, until)
        self.names[region] = (name, until)

    def give(self, region):
        """begin(): under the context's lock, but for the kernel's calls."""
        world = self.world
        self.handles[region] = self.handles.get(region, 0) + 1  # the user's own
        yield
        if world.bug != "old-holds":
            for hold in self.holds:  # end_opened()
                if hold.region is region and hold.held and self.was_opened(hold):
                    self.end(hold)
        until = world.now + TIME
        if world.module:
            self.outlive(region, until)
        opens = region.opens + (1 if world.bug == "one-open" else self.count(region) + 1)
        if world.bug == "opens-before":
            opens -= 1
        ref = Ref(self, Hold(region, until, opens))
        region.makers.add(self)
        region.given += 1
        self.holds.append(ref.hold)
        self.handles[region] += 1
        self.handles[region] -= 1  # the user releases it, and reports that
        if world.bug == "no-reference":
            self.handles[region] -= 1
        world.refs.append(ref)
        yield

    def look(self):
        """end_over(), by the thread."""
        for hold in self.holds:
            if hold.held and (self.was_opened(hold) or hold.until <= self.world.now):
                self.end(hold)
        self.holds = [hold for hold in self.holds if hold.held]

    def serve(self):
        reader, ref = self.requests.pop(0)
        hold = ref.hold
        if not self.handles.get(ref.region):
            reader.answer = "gone"
            return
        if hold.held and self.world.bug == "end-first":
            self.end(hold)
            yield
        must(ref.region.lives(), "a reply has a descriptor of memory that is gone")
        if reader.alive:
            reader.socket.append(ref.region)
            reader.answer = "here"
        yield
        if hold.held:
            self.end(hold)

    def live(self):
        world = self.world
        while True:
            roll = world.rng.random()
            if self.requests and roll < 0.5:
                yield from self.serve()
            elif roll < 0.2:
                other = world.rng.random() < 0.1
                yield from self.give(world.regions[self.number ^ other])
            elif roll < 0.5:
                self.look()
            yield


class Reader:
    def __init__(self, world, ref):
        self.world, self.ref = world, ref
        self.alive, self.has, self.answer = True, None, None
        self.socket = []

    def live(self):
        world, ref = self.world, self.ref
        maker_lived = ref.maker.alive
        in_time = world.now < ref.until
        if world.module:
            if ref.region.lives():
                ref.region.opens += 1
                self.has = ref.region
            else:
                # Unsealed memory, and memory that another name kept, ends with its maker.
                must(not in_time or not ref.alone()
                     or not maker_lived and ref.region not in ref.maker.names,
                     "a ref that holds opens nothing, and its time is not over")
        else:
            if not maker_lived:
                return
            ref.maker.requests.append((self, ref))
            while not self.answer and ref.maker.alive:
                yield
            if self.answer == "here":
                must(ref.region.lives(), "memory went away on its way")
                self.has = ref.region
                self.socket.clear()
            else:
                must(not in_time or world.now >= ref.until or not ref.maker.alive,
                     "a ref that holds opens nothing, and its time is not over")
        yield
        must(not self.has or self.has.lives(), "memory went away under its reader")
        self.has = None


def play(rng, bug, module):
    world = World(rng, bug, module)
    makers = {maker: maker.live() for maker in world.makers}
    readers = {}
    danger = rng.choice([0, 0.01, 0.03])
    for _ in range(rng.randint(50, 300)):
        if rng.random() < 0.2:
            world.tick()
        if world.refs and rng.random() < 0.3:
            ref = world.refs.pop(rng.randrange(len(world.refs)))
            reader = Reader(world, ref)
            world.readers.append(reader)
            readers[reader] = reader.live()
        actor = rng.choice(list(makers) + list(readers))
        if not actor.alive:
            continue
        if rng.random() < danger:
            actor.alive = False
            if actor in makers:
                actor.handles.clear()
            continue
        if next((makers.get(actor) or readers[actor]), "over") == "over":
            del readers[actor]
            world.readers.remove(actor)
    # From here on no process opens anything.
    for maker in [m for m in world.makers if module and m.alive]:
        maker.look()
        for hold in maker.holds:
            must(not hold.held or hold.region.opens < hold.region.given
                 or hold.region.makers != {maker}, "what was opened as often as it was held is held")
    for maker in world.makers:
        while maker.alive and any(h.held for h in maker.holds) and world.now < 1000:
            world.tick()
            maker.look()
    for _ in range(TIME):
        world.tick()
    for reader in world.readers:
        reader.alive = False
    for maker in world.makers:
        own = sum(maker.handles.values()) if maker.alive else 0
        must(own in (0, 1), "what was opened or has expired is held")  # 1: in the middle of a call
    must(not world.kept, "the kernel keeps what no process waits for")


def run(rng, bug):
    play(rng, bug, module=False)
    play(rng, bug, module=True)


if __name__ == "__main__":
    main("holds", run, {
        "end-first": "a hold ends when the reply is in the socket",
        "no-reference": "what a ref holds is there when its maker's user has let go",
        "one-open": "as many holds of a region end as it was opened",
        "opens-before": "an open before the hold does not end it",
        "old-holds": "a hold whose open was not looked at yet is not one more to be waited for",
        "first-time": "the kernel keeps it as long as the last hold",
        "shared-name": "what the one ends the other one did not keep",
    }, seeds=2000, full=50000)
