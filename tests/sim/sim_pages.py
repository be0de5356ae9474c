#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Page references: an owner with the truth, clients with tables of their own, messages between.

Steps are called as in the C code: model/pages/allocator.c (owner_*) and model/pages/handle.c, model/pages/sequence.c
(page_*, seq_*). A C function's work in one process's own memory is one step here; a process is killed between any two
of them. Messages of one client stay in order, as a socket keeps them; everything else happens in any order. Some
clients are damaged: they repeat earlier messages, in another order, and send numbers that are not theirs.
"""

from sim import main, must

TENANTS = 2
SLAB = 6  # pages
SPARE = 2  # pages that a client keeps for itself
MAX_SLABS = 3


class Owner:
    def __init__(self, bug):
        self.bug = bug
        self.tenant_of = []  # of each page
        self.free = [[] for _ in range(TENANTS)]
        self.holders = []  # of each page: the clients that have it
        self.pins = []  # of each page: its tickets, and 1 while it is cached
        self.cache = [{} for _ in range(TENANTS)]  # hash: page
        self.hash_of = {}
        self.tickets = {}  # number: (client, pages)
        self.number = 0

    def page_slab_add(self, tenant):
        if len(self.tenant_of) // SLAB >= MAX_SLABS:
            return
        for _ in range(SLAB):
            self.free[tenant].append(len(self.tenant_of))
            self.tenant_of.append(tenant)
            self.holders.append(set())
            self.pins.append(0)

    def owner_evict(self, tenant):
        for key, page in list(self.cache[tenant].items()):
            if not self.holders[page] and self.pins[page] == 1 or self.bug == "evict-held":
                del self.cache[tenant][key]
                del self.hash_of[page]
                self.page_unpin(page)
                return

    def page_idle(self, page):
        if not self.holders[page] and not self.pins[page]:
            self.free[self.tenant_of[page]].append(page)

    def page_unpin(self, page):
        self.pins[page] -= 1
        if self.bug == "evict-held":
            self.free[self.tenant_of[page]].append(page)
        else:
            self.page_idle(page)

    def holds(self, client, page):
        return 0 <= page < len(self.holders) and client in self.holders[page]

    def owner_want(self, client, count):
        tenant, got = client.tenant, []
        for _ in range(count):
            if not self.free[tenant]:
                self.page_slab_add(tenant)
            if not self.free[tenant]:
                self.owner_evict(tenant)
            if not self.free[tenant]:
                break
            page = self.free[tenant].pop()
            self.holders[page].add(client)
            got.append(page)
        if not got:
            for other in client.world.clients:
                if other is not client and other.tenant == tenant and not other.dead:
                    other.inbox.append(("recall",))
        client.inbox.append(("grant", got))

    def owner_return(self, client, pages):
        for page in pages:
            if self.bug != "trust-returns" and not self.holds(client, page):
                continue  # counted as refused
            if self.bug == "trust-returns":
                if not 0 <= page < len(self.holders):
                    continue
                self.holders[page].clear()
            self.holders[page].discard(client)
            self.page_idle(page)

    def owner_cache(self, client, key, page):
        if self.bug != "trust-puts" and not self.holds(client, page):
            return
        if not 0 <= page < len(self.holders):
            return
        if key in self.cache[client.tenant] or page in self.hash_of:
            return
        self.cache[client.tenant][key] = page
        self.hash_of[page] = key
        self.pins[page] += 1

    def owner_find(self, client, keys):
        got = []
        for key in keys:
            page = self.cache[client.tenant].get(key)
            if page is None:
                break
            if self.bug != "find-without-hold":
                self.holders[page].add(client)
            got.append(page)
        client.inbox.append(("found", got))

    def owner_share(self, client, pages):
        if self.bug != "trust-shares" and not all(self.holds(client, page) for page in pages):
            client.inbox.append(("ticket", None))
            return
        pages = [page for page in pages if 0 <= page < len(self.holders)]
        self.number += 1
        self.tickets[self.number] = (client, pages)
        for page in pages:
            self.pins[page] += 1
        client.inbox.append(("ticket", self.number))

    def owner_open_ticket(self, client, number):
        maker, pages = self.tickets.get(number, (None, []))
        if maker is None or (maker.tenant != client.tenant and self.bug != "any-tenant"):
            client.inbox.append(("table", None))
            return
        for page in pages:
            self.holders[page].add(client)
        client.inbox.append(("table", list(pages)))

    def ticket_end(self, number):
        _, pages = self.tickets.pop(number)
        for page in pages:
            self.page_unpin(page)

    def owner_unshare(self, client, number):
        if number in self.tickets and self.tickets[number][0] is client:
            self.ticket_end(number)

    def owner_gone(self, client):
        if self.bug == "no-reclaim":
            return
        for number in [n for n, (maker, _) in self.tickets.items() if maker is client]:
            self.ticket_end(number)
        for page, holders in enumerate(self.holders):
            if client in holders:
                holders.discard(client)
                self.page_idle(page)


class Client:
    def __init__(self, world, tenant, damaged):
        self.world = world
        self.tenant = tenant
        self.damaged = damaged
        self.dead = False
        self.seen = False  # its end, by the owner
        self.inbox, self.outbox, self.sent = [], [], []
        self.waits = None  # for the answer to this question
        self.refs, self.shared, self.spare, self.back = {}, set(), [], []
        self.seqs = []  # of [page, content]
        self.tickets = []

    def send(self, *message):
        self.outbox.append(message)
        self.sent.append(message)

    def page_get(self):
        """Return a page of its own, or None: then the client asks for some."""
        if not self.spare:
            if self.waits is None:
                self.send("want", self.world.rng.randint(1, 3))
                self.waits = "grant"
            return None
        page = self.spare.pop()
        must(page not in self.refs, "a page was given out twice to one client")
        self.refs[page] = 1
        return page

    def page_unref(self, page):
        self.refs[page] -= 1
        if self.refs[page]:
            return
        del self.refs[page]
        if page in self.shared and self.world.bug != "spare-shared":
            self.shared.discard(page)
            self.back.append(page)
        elif len(self.spare) < SPARE:
            self.shared.discard(page)
            self.spare.append(page)
        else:
            self.back.append(page)

    def pages_flush(self):
        if self.back:
            self.send("return", self.back)
            self.back = []

    def pages_ask(self, *message):
        """Return released pages before a question, whose answer may give them again."""
        if self.world.bug != "return-late":
            self.pages_flush()
        self.send(*message)

    def page_alone(self, page):
        if self.world.bug == "write-shared":
            return self.refs[page] == 1
        return self.refs[page] == 1 and page not in self.shared

    def page_adopt(self, page):
        self.refs[page] = self.refs.get(page, 0) + 1
        self.shared.add(page)

    def seq_append(self, seq):
        page = self.page_get()
        if page is not None:
            content = self.world.write(page)
            seq.append([page, content])

    def seq_write(self, seq):
        """Write to a block; to a copy of it if others have it too."""
        block = self.world.rng.choice(seq)
        if not self.page_alone(block[0]):
            page = self.page_get()
            if page is None:
                return
            self.page_unref(block[0])
            block[0] = page
        block[1] = self.world.write(block[0])

    def seq_fork(self, seq):
        for page, _ in seq:
            self.refs[page] += 1
        self.seqs.append([list(block) for block in seq])

    def seq_free(self, seq):
        self.seqs.remove(seq)
        for page, _ in seq:
            self.page_unref(page)

    def seq_cache(self, seq):
        page, content = seq[0]
        self.shared.add(page)
        self.send("cache", ("key", content), page)

    def seq_find(self):
        if self.waits is None:
            self.pages_ask("find", [("key", self.world.rng.choice(self.world.written))])
            self.waits = "found"

    def seq_share(self, seq):
        if self.waits is None:
            for page, _ in seq:
                self.shared.add(page)
            self.pages_ask("share", [page for page, _ in seq])
            self.waits = ("ticket", [list(block) for block in seq])

    def seq_open(self):
        if self.waits is None and self.world.tickets:
            number, contents = self.world.rng.choice(self.world.tickets)
            self.pages_ask("open_ticket", number)
            self.waits = ("table", contents)

    def receive(self):
        kind, *rest = self.inbox.pop(0)
        if kind == "recall":
            self.back += self.spare
            self.spare = []
            self.pages_flush()
        elif kind == "grant":
            self.waits = None
            self.spare.extend(rest[0])
        elif kind == "found":
            asked = self.sent_last("find")
            self.waits = None
            for page, key in zip(rest[0], asked):
                self.page_adopt(page)
                self.seqs.append([[page, key[1]]])
        elif kind == "ticket":
            contents = [content for _, content in self.waits[1]]
            self.waits = None
            must(rest[0] is not None, "a client may not share what is its own")
            self.tickets.append(rest[0])
            self.world.tickets.append((rest[0], contents))
        elif kind == "table":
            contents, self.waits = self.waits[1], None
            if rest[0] is not None:
                for page in rest[0]:
                    self.page_adopt(page)
                self.seqs.append([[p, c] for p, c in zip(rest[0], contents)])

    def sent_last(self, kind):
        return [message for message in self.sent if message[0] == kind][-1][1]

    def step(self):
        rng = self.world.rng
        if self.waits not in (None, "grant") and self.world.bug != "no-wait":
            if self.inbox:  # the handle's lock is held until the answer is there
                self.receive()
            return
        if self.inbox and rng.random() < 0.5:
            self.receive()
            return
        if rng.random() < 0.1:
            self.pages_flush()
        if not self.seqs:
            self.seqs.append([])
        seq = rng.choice(self.seqs)
        what = rng.random()
        if what < 0.35:
            self.seq_append(seq)
        elif what < 0.45 and len(self.seqs) > 1:
            self.seq_free(seq)
        elif what < 0.47 and self.tickets:
            self.send("unshare", self.tickets.pop())
        elif what < 0.55 and self.world.written:
            self.seq_find()
        elif what < 0.63:
            self.seq_open()
        elif seq and what < 0.73:
            self.seq_fork(seq)
        elif seq and what < 0.83:
            self.seq_write(seq)
        elif seq and what < 0.91:
            self.seq_cache(seq)
        elif seq:
            self.seq_share(seq)

    def misbehave(self):
        """Do anything but write to a page: memory of one tenant allows so much."""
        rng, pages = self.world.rng, range(-1, MAX_SLABS * SLAB + 1)
        some = [rng.choice(pages) for _ in range(rng.randint(1, 3))]
        what = rng.choice(["again", "return", "cache", "share", "open_ticket", "unshare", "want"])
        if what == "again" and self.sent:
            self.outbox.insert(rng.randint(0, len(self.outbox)), rng.choice(self.sent))
        elif what == "cache":
            # Use a key of its own: nonsense cached under another's key harms that tenant.
            self.send("cache", ("key", -rng.randint(1, 50)), some[0])
        elif what == "want":
            self.send("want", 2)
        elif what in ("open_ticket", "unshare"):
            self.send(what, rng.randint(1, 5))
        elif what != "again":
            self.send(what, some)


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug = rng, bug
        self.owner = Owner(bug)
        self.memory = {}
        self.written = []
        self.tickets = []
        self.clients = [Client(self, rng.randrange(TENANTS), rng.random() < 0.25)
                        for _ in range(rng.randint(2, 4))]

    def write(self, page):
        self.written.append(len(self.written) + 1)
        self.memory[page] = self.written[-1]
        return self.written[-1]

    def deliver(self, client):
        kind, *rest = client.outbox.pop(0)
        getattr(self.owner, "owner_" + kind)(client, *rest)

    def kill(self, client):
        client.dead = True
        client.outbox = client.outbox[:self.rng.randint(0, len(client.outbox))]

    def honest(self):
        return [c for c in self.clients if not c.dead and not c.damaged]

    def check(self):
        """A client reads the values written to its table, whatever others do."""
        for client in self.honest():
            for seq in client.seqs:
                for page, content in seq:
                    must(self.owner.tenant_of[page] == client.tenant,
                         "a table names another tenant's page")
                    must(self.memory.get(page) == content,
                         "a page has other content than its table says")

    def settle(self):
        """All messages arrive; then the references are exactly those of the tables."""
        for client in self.clients:
            if client.damaged:
                self.kill(client)
            while client.outbox or (client.inbox and not client.dead):
                if client.outbox:
                    self.deliver(client)
                else:
                    client.receive()
            if client.dead and not client.seen:
                client.seen = True
                self.owner.owner_gone(client)
        for client in self.honest():
            client.pages_flush()
            while client.outbox or client.inbox:
                if client.outbox:
                    self.deliver(client)
                else:
                    client.receive()
        for page, holders in enumerate(self.owner.holders):
            true = {c for c in self.honest() if page in c.refs or page in c.spare}
            must(holders == true, "the owner's holders are not those whose tables name the page")
            tickets = sum(pages.count(page) for _, pages in self.owner.tickets.values())
            cached = page in self.owner.hash_of
            must(self.owner.pins[page] == tickets + cached, "pins are not tickets and cache")
            free = self.owner.free[self.owner.tenant_of[page]].count(page)
            must(free == (0 if true or tickets or cached else 1),
                 "a page is free and held, neither, or free twice")


def run(rng, bug):
    world = World(rng, bug)
    for _ in range(rng.randint(30, 150)):
        client = rng.choice(world.clients)
        if client.dead:
            if client.outbox:
                world.deliver(client)
            elif not client.seen:
                client.seen = True
                world.owner.owner_gone(client)
        elif rng.random() < 0.01:
            world.kill(client)
        elif client.outbox and rng.random() < 0.5:
            world.deliver(client)
        elif client.damaged:
            client.misbehave()
        else:
            client.step()
        world.check()
    world.settle()
    for client in world.clients:
        if not client.dead:
            world.kill(client)
    world.settle()
    cached = sum(map(len, world.owner.cache))
    free = sum(map(len, world.owner.free))
    must(free + cached == len(world.owner.holders), "pages are lost when all are dead")


if __name__ == "__main__":
    main("pages", run, {
        "trust-returns": "only who holds a page returns it",
        "trust-puts": "only who holds a page caches it",
        "trust-shares": "only who holds pages shares them",
        "find-without-hold": "who finds a page holds it",
        "any-tenant": "a ticket is good for its tenant alone",
        "no-reclaim": "a dead client's pages come back",
        "spare-shared": "what others may have goes back to the owner",
        "write-shared": "what others may have is copied before it is written",
        "return-late": "what was let go is returned before a question",
        "no-wait": "nothing is returned between a question and its answer",
        "evict-held": "only what has no holder is evicted",
    }, seeds=3000, full=50000)
