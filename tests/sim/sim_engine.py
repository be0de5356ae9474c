#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Calls to an engine's process. Clients call and give up. A process crashes in a call, is killed at any moment or
hangs, and a supervisor starts the next. Callers cancel a waiting or running call by a word on the link's socket, which
a thread of the engine's process reads while a call runs.

Steps are those of engine/remote.c (client) and engine/process/ (the rest). A link is one client's connection to one
process: a queue of requests, one of replies, and the page's number of the request that was begun. Between any two
steps everything else may happen.
"""

from sim import main, must

CLIENTS = 3
LIMIT = 60  # steps of the world that a call may run
STOP = 20  # ... once it was called off


class Link:
    def __init__(self, process):
        self.process = process
        self.requests, self.replies = [], []
        self.begun = 0
        self.words = []  # numbers of calls that are called off
        self.cancelled = 0  # up to which the engine knows that
        self.said = []  # what it said to that: (number, never), never: that call will not begin
        self.ended = 0
        self.waited = 0  # turns of others since the first request in the queue came


class Process:
    """The engine's process: one thread."""

    def __init__(self, world):
        self.world, self.alive, self.links = world, True, []
        self.deadline = None
        self.running = None  # (link, number, call)
        self.stop, self.stopped = False, None  # what runs, and since when
        self.steps = self.run()

    def listen(self):
        """The other thread: one step, which its lock makes whole."""
        for link in self.links:
            if not link.words:
                continue
            number = link.words.pop(0)
            if self.world.bug == "any-number":
                number = 1 << 30
            link.cancelled = max(link.cancelled, number)
            runs = self.running and self.running[0] is link
            link.said.append((number, not runs and number > link.ended or self.world.bug == "never-anyway"))
            if self.running and (self.running[0] is link or self.world.bug == "anybody") and \
                    (self.running[1] <= link.cancelled or self.world.bug == "anybody"):
                self.stop, self.stopped = True, self.world.now
                if self.deadline is not None and self.world.bug != "no-stop-watch":
                    self.deadline = min(self.deadline, self.world.now + STOP)

    def run(self):
        world, turn = self.world, 0
        while True:
            yield
            order = self.links[turn % max(1, len(self.links)):] + self.links[:turn % max(1, len(self.links))]
            turn += 1
            for link in order:
                while link.requests and self.alive:
                    yield from self.work(link)
                    if world.bug != "no-turns":
                        break

    def work(self, link):
        world = self.world
        number, call = link.requests.pop(0)
        call.begun = True
        for other in self.links:
            if other is not link and other.requests:
                other.waited += 1
                must(other.waited <= 2 * CLIENTS, "a client waits while others have turn after turn")
        link.waited = 0
        if world.bug != "begun-after":
            link.begun = number
        yield
        if number <= link.cancelled and world.bug != "no-look":
            link.replies.append((number, "cancelled"))
            return
        if call.deadline is not None and world.now >= call.deadline:
            link.ended = number
            link.replies.append((number, "late"))
            return
        self.deadline = world.now + LIMIT if call.deadline is None else min(call.deadline, world.now + LIMIT)
        must(number > link.cancelled, "a call began that had been called off")
        self.running, self.stop, self.stopped = (link, number, call), False, None
        call.runs += 1
        must(call.runs == 1, "a call ran twice")
        call.writer = self
        if call.kind == "crash":
            world.kill(self)
            yield
        while call.kind == "hang":
            yield
        for _ in range(world.rng.randrange(4) + 10 * (call.kind == "long")):
            if self.stop:
                break
            yield
        call.writer, stopped = None, self.stop
        if world.bug == "begun-after":
            link.begun = number
        self.deadline = None
        yield
        link.replies.append((number, "cancelled" if stopped else "done"))
        self.running, link.ended = None, number


class Call:
    def __init__(self, kind, deadline, off=None):
        self.kind, self.deadline = kind, deadline
        self.off = off  # when its caller calls it off
        self.begun, self.runs, self.writer = False, 0, None


class Client:
    def __init__(self, world, name):
        self.world, self.name, self.link, self.number = world, name, None, 0
        self.steps = self.run()
        self.finished = False

    def run(self):
        rng = self.world.rng
        for _ in range(rng.randint(1, 6)):
            kind = rng.choices(["works", "long", "crash", "hang"], [5, 1, 1, 1])[0]
            deadline = self.world.now + rng.randint(5, 40) if rng.random() < 0.4 else None
            off = self.world.now + rng.randint(0, 60) if rng.random() < 0.3 else None
            call = Call(kind, deadline, off)
            result = yield from self.call(call)
            must(result in ("done", "gone", "late", "cancelled"), "a call ended in nothing")
            if result == "done":
                must(call.runs == 1 and kind in ("works", "long"), "a call that did not run is done")
            if result == "cancelled":
                must(off is not None and self.world.now >= off, "a call was called off by no process")
            if result == "gone":
                must(call.begun, "a call failed that no process had begun")
            if result == "late":
                must(deadline is not None and self.world.now >= deadline, "a call was late before its deadline")
            must(call.writer is None or not call.writer.alive, "a call has returned, and its engine still writes")
        self.finished = True

    def call(self, call):
        world = self.world

        def off():
            return call.off is not None and world.now >= call.off

        while True:
            if off():
                return "cancelled"
            told = False
            while self.link is None:
                if world.process and world.process.alive:
                    self.link = Link(world.process)
                    world.process.links.append(self.link)
                    self.number = 0
                yield
            link = self.link
            self.number += 1
            number = self.number
            link.requests.append((number, call))
            yield
            while True:
                # Its replies first: a reply that an engine sent before it died counts.
                if link.replies:
                    got, result = link.replies.pop(0)
                    must(got == number or (got < number and result == "cancelled"), "a reply to another request")
                    if got == number:
                        return result
                    continue
                if told and link.said:
                    got, never = link.said.pop(0)
                    if got == number and never:
                        return "cancelled"
                    continue
                if not link.process.alive and not link.replies:
                    self.link = None
                    late = call.deadline is not None and world.now >= call.deadline
                    if link.begun >= number and world.bug != "again":
                        return "cancelled" if told else "late" if late else "gone"
                    if late:
                        return "late"
                    if world.bug == "never-again":
                        return "gone"
                    break
                if off() and not told:
                    told = True
                    link.words.append(number)
                    if world.bug == "no-wait-off":
                        return "cancelled"
                if call.deadline is not None and world.now >= call.deadline and world.bug == "no-wait":
                    return "late"
                if call.deadline is not None and world.now >= call.deadline + LIMIT * 4 * CLIENTS:
                    must(False, "the supervisor did not end a call that was late")
                yield


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug, self.now = rng, bug, 0
        self.process = self.flood = None
        self.flooded = rng.random() < 0.3  # by one more client, which asks without end
        self.clients = [Client(self, i) for i in range(CLIENTS)]

    def kill(self, process):
        process.alive = False

    def supervise(self):
        process = self.process
        if process is None or not process.alive:
            self.process = Process(self)
            if self.flooded:
                self.flood = Link(self.process)
                self.process.links.append(self.flood)
        elif process.deadline is not None and self.now >= process.deadline + 2 and self.bug != "no-watch":
            self.kill(process)
        if process and process.alive and process.running and process.running[2].writer and process.stopped is not None:
            must(self.now < process.stopped + STOP + 2, "what was called off goes on and on")
        if self.flooded and not self.flood.requests:
            self.flood.requests = [(number, Call("works", None)) for number in range(30)]
            self.flood.replies.clear()


def run(rng, bug):
    world = World(rng, bug)
    kills = 4 if rng.random() < 0.7 else 0
    for _ in range(6000):
        world.now += 1
        if kills and world.process and rng.random() < 0.01:
            kills -= 1
            world.kill(world.process)
        choice = rng.randrange(CLIENTS + 4)
        if choice < CLIENTS:
            client = world.clients[choice]
            if not client.finished:
                next(client.steps, None)
        elif choice == CLIENTS:
            world.supervise()
        elif world.process and world.process.alive:
            if choice == CLIENTS + 1:
                world.process.listen()
            else:
                next(world.process.steps)
        if all(client.finished for client in world.clients):
            return
    must(False, "a call never ended")


if __name__ == "__main__":
    main("calls to an engine", run, {
        "begun-after": "what is begun is written down before it runs",
        "again": "what was begun is not called again",
        "never-again": "what was not begun is called again",
        "no-wait": "a call that is late waits for its engine's end",
        "no-turns": "clients have turns",
        "no-watch": "the supervisor ends what is late",
        "no-look": "what was called off while it waited does not begin",
        "never-anyway": "the answer that it never begins comes only for a call that has not begun",
        "any-number": "a word calls off one call and not the next",
        "anybody": "a word calls off its own client's call",
        "no-stop-watch": "what was called off and does not end is ended",
        "no-wait-off": "a call that is called off waits for its engine's end",
    }, seeds=2000, full=40000)
