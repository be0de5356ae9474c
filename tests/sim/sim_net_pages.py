#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A published sequence of pages, and its followers on other machines (Tmesh.Net.Pages).

At home a sequence grows, is cut and is written to. Its pages are copied while others hold them, and used again when
no other does. Each update is a fork, to which the log gives numbers of its own for the pages. A follower asks for one
record at a time, and gets the difference to the last one. It fetches all from the first difference on, two blocks at a
time, and shows the table when it is complete. The log holds the update that a follower got, until it asks for the next.

Messages keep their order. A cut loses those on their way, and both ends notice it; then the follower ends and another
begins. Fetched bytes may be damaged, which their checksum shows: the follower begins anew. Homes and followers may be
killed at any moment.

Promises: a table that is shown is the one of its number, page by page, and stays when the home is gone. No number is
shown before all its pages are here. With time and without faults each follower has the newest. When all have gone, no
page is held at either end.
"""

from sim import main, must

PAGES, PORTION = 12, 2


class Pool:
    """Pages of a machine: their contents, and the number of holders of each."""

    def __init__(self):
        self.content, self.held = [None] * PAGES, [0] * PAGES

    def take(self, content):
        for page in range(PAGES):
            if not self.held[page]:
                self.content[page], self.held[page] = content, 1
                return page
        return None

    def hold(self, pages):
        for page in pages:
            self.held[page] += 1
        return list(pages)

    def let_go(self, pages):
        for page in pages:
            must(self.held[page] > 0, "a page is given back twice")
            self.held[page] -= 1


class Home:
    def __init__(self, world):
        self.world, self.alive, self.pool = world, True, Pool()
        self.sequence, self.contents = [], 0
        self.number, self.fork, self.pages, self.ours, self.next = 0, [], [], {}, 1
        self.history, self.followers = {0: []}, {}

    def live(self):
        """The program: its calls change its sequence and copy the pages that others hold, and publish it now and
        then."""
        rng, pool = self.world.rng, self.pool
        what = rng.random()
        self.contents += 1
        if what < 0.4 and len(self.sequence) < 5:
            page = pool.take(self.contents)
            if page is not None:
                self.sequence.append(page)
        elif what < 0.6 and self.sequence:
            at = rng.randrange(len(self.sequence))
            page = self.sequence[at]
            if pool.held[page] == 1:
                pool.content[page] = self.contents
            else:
                copy = pool.take(self.contents)
                if copy is not None:
                    pool.let_go([page])
                    self.sequence[at] = copy
        elif what < 0.75 and self.sequence:
            keep = rng.randrange(len(self.sequence))
            pool.let_go(self.sequence[keep:])
            del self.sequence[keep:]
        else:
            self.update()

    def update(self):
        fork = self.pool.hold(self.sequence)
        ours = {}
        for page in fork:
            if self.world.bug == "numbers":
                ours[page] = page
            elif page in self.ours:
                ours[page] = self.ours[page]
            else:
                ours[page], self.next = self.next, self.next + 1
        before = self.number, self.fork
        self.number, self.fork, self.ours = self.number + 1, fork, ours
        self.pages = [ours[page] for page in fork]
        self.history[self.number] = [self.pool.content[page] for page in fork]
        self.tidy(*before)
        for follower in [f for f, entry in self.followers.items() if entry["waits"]]:
            self.record(follower, False)

    def tidy(self, number, fork):
        """The update is released with its last follower."""
        if number and (self.world.bug == "held" and number != self.number or number != self.number and not any(
                entry["sent"][0] == number for entry in self.followers.values())):
            self.pool.let_go(fork)

    def record(self, follower, anew):
        entry = self.followers[follower]
        sent = entry["sent"]
        number, pages = (0, []) if anew and self.world.bug != "anew" else (sent[0], sent[2])
        first = same(pages, self.pages)
        entry.update(sent=(self.number, self.fork, self.pages), waits=False)
        self.world.send(follower, "record", number, self.number, first, self.pages[first:])
        if self.world.bug != "held":
            self.tidy(sent[0], sent[1])

    def receive(self, follower, what, *rest):
        if what == "follow":
            self.followers[follower] = {"sent": (0, [], []), "waits": False}
        elif follower not in self.followers:
            pass
        elif what == "next":
            if self.number > rest[0]:
                self.record(follower, rest[0] == 0)
            else:
                self.followers[follower]["waits"] = True
        elif what == "pages":
            _number, fork, _pages = self.followers[follower]["sent"]
            if self.world.bug == "newest":
                fork = self.fork
            contents = [self.pool.content[fork[block]] if block < len(fork) else None for block in rest[0]]
            if self.world.faults and self.world.rng.random() < 0.1:
                contents = None  # damaged
            self.world.send(follower, "contents", contents)

    def gone(self, follower):
        entry = self.followers.get(follower)
        if entry and self.world.bug != "leave":
            del self.followers[follower]
            self.tidy(entry["sent"][0], entry["sent"][1])


class Follower:
    def __init__(self, world, pool):
        self.world, self.pool, self.alive, self.ended = world, pool, True, False
        self.number, self.pages, self.sequence = 0, [], []
        self.building = None
        world.to_home.append((self, "follow"))
        world.to_home.append((self, "next", 0))

    def receive(self, what, *rest):
        if what == "record" and not self.building:
            base, number, first, pages = rest
            if base not in (0, self.number) or first > len(self.pages if base else []):
                self.anew()
                return
            table = (self.pages if base else [])[:first] + pages
            kept = same(self.pages, table)
            self.building = {"number": number, "pages": table, "new": self.pool.hold(self.sequence[:kept]),
                             "missing": list(range(kept, len(table)))}
            if self.world.bug == "half":
                self.show()
            else:
                self.ask()
        elif what == "contents" and self.building:
            if rest[0] is None:
                self.anew()
                return
            blocks = self.building["missing"][:PORTION]
            del self.building["missing"][:PORTION]
            for block, content in zip(blocks, rest[0]):
                page = self.pool.take(content)
                if page is None:
                    self.end()
                    return
                self.building["new"].append(page)
            self.ask()

    def ask(self):
        if self.building["missing"]:
            self.world.to_home.append((self, "pages", self.building["missing"][:PORTION]))
        else:
            self.show()

    def show(self):
        self.pool.let_go(self.sequence)
        self.number, self.pages, self.sequence = (self.building[name] for name in ("number", "pages", "new"))
        self.building = None
        self.check()
        self.world.to_home.append((self, "next", self.number))

    def check(self):
        true = self.world.home.history[self.number]
        must([self.pool.content[page] for page in self.sequence] == true, "a table that is shown is not the one of its number")

    def drop(self):
        if self.building and self.world.bug != "drop":
            self.pool.let_go(self.building["new"])
        self.building = None

    def anew(self):
        self.drop()
        self.world.to_home.append((self, "next", 0))

    def end(self):
        """The home is gone, or cannot be reached: a complete table stays."""
        self.drop()
        self.ended = True
        self.check()

    def close(self):
        self.drop()
        self.pool.let_go(self.sequence)
        self.alive = False


def same(one, other):
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug, self.faults = rng, bug, True
        self.to_home, self.to_follower = [], []
        self.home = Home(self)
        self.machines = [Pool(), Pool()]
        self.followers = [Follower(self, pool) for pool in self.machines]

    def send(self, follower, *message):
        self.to_follower.append((follower, *message))

    def deliver(self):
        wire = self.rng.choice([self.to_home, self.to_follower])
        if not wire:
            return
        # Deliver the first message of one pair.
        follower = self.rng.choice(wire)[0]
        at = next(at for at, message in enumerate(wire) if message[0] is follower)
        _follower, *message = wire.pop(at)
        if wire is self.to_home and self.home.alive:
            self.home.receive(follower, *message)
        elif wire is self.to_follower and follower.alive and not follower.ended:
            follower.receive(*message)

    def cut(self, follower):
        """Messages on their way are lost, and each end's monitor reports the cut."""
        for wire in (self.to_home, self.to_follower):
            wire[:] = [message for message in wire if message[0] is not follower]
        self.home.gone(follower)
        if follower.alive and not follower.ended:
            follower.end()

    def anew(self, at):
        """This machine's follower has ended: its last table is released, and another begins."""
        self.followers[at].close()
        self.followers[at] = Follower(self, self.machines[at])


def run(rng, bug):
    world = World(rng, bug)
    killed = rng.random() < 0.2
    for _ in range(rng.randint(50, 300)):
        if rng.random() < 0.3:
            world.home.live()
        else:
            world.deliver()
        if rng.random() < 0.02:
            at = rng.randrange(2)
            world.cut(world.followers[at])
            world.anew(at)
    if killed:
        for follower in world.followers:
            world.cut(follower)
            must(follower.ended and not follower.building, "a follower of a home that is gone waits for more")
    else:
        world.faults = False
        for _ in range(2000):
            if not world.to_home and not world.to_follower:
                break
            world.deliver()
        for follower in world.followers:
            must(follower.ended or follower.number == world.home.number, "a follower never has the newest table")
    for follower in world.followers:
        follower.check()
        follower.close()
        world.cut(follower)
    home = world.home
    home.pool.let_go(home.sequence)
    home.pool.let_go(home.fork if home.number else [])
    must(not any(home.pool.held), "pages are held at home without a holder")
    must(not any(any(pool.held) for pool in world.machines), "a follower's pages are held without a holder")


if __name__ == "__main__":
    main("pages between machines", run, {
        "numbers": "the log has numbers of its own for pages, never used again",
        "newest": "pages are those of the update that the follower was sent",
        "held": "the update that a follower was sent is held until it asks for the next",
        "half": "a table is shown when all its pages are here",
        "anew": "who begins anew gets the whole table",
        "leave": "what a follower held at home goes with it",
        "drop": "what was half there is given back",
    }, seeds=1000, full=20000)
