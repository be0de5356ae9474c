#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Graphs on places that several of them want: engine/placed.c, engine/placed_bind.c, engine/places.c.

A place is an engine with so much memory; places of one NUMA node share its memory. A graph has its places by a lease. A
graph that has not run for LEASE is given up, and takes its places again when it runs next. Programs run, move, bind and
let go at any time, a sweeper gives up, and every step of taking places may fail. Values that live on between runs lie
where their places are, or at home when there are none.
"""

from sim import main, must

BUGS = {
    "claim": "room is looked for and taken in one step",
    "give-back": "what was claimed for a move that failed is given back",
    "old-last": "the old places are let go when the new ones are whole",
    "all-bindings": "a move takes all bindings of the graph along",
    "write-back": "values are brought home before their place goes",
    "count": "a copy counts also when the move fails behind it",
    "living": "what goes from part to part in one run is not copied",
    "same-memory": "what lies in the memory of the next place already is not copied",
    "look-again": "who waited for the graph looks again whether it has places",
    "wait-runs": "a place goes when no run uses it",
    "turns": "one program at a time runs a binding",
    "stamp": "a run is a use",
    "stamp-end": "a run is a use at its end too",
    "sweep-again": "the sweeper looks at the last use again when it has the graph",
    "keep-room": "a move keeps the old room until it has left",
    "bind-claim": "a binding claims room for its own values",
    "unbind": "a binding that goes gives its room back",
}
LEASE = 50
HOME = -1
NODES = 3  # of a graph, each with a weight and a value that lives on


class Failed(Exception):
    pass


class Memory:
    def __init__(self, node, size, value=0):
        self.node, self.size, self.value, self.freed = node, size, value, False


class Binding:
    def __init__(self, graph):
        self.graph, self.runs, self.turn, self.callers = graph, 0, False, 0
        self.living = [Memory(HOME, size) for size in graph.living]
        self.bound = None  # by part: [(node, memory)]


class Graph:
    """A graph: many runs share its lock, a change takes it alone."""

    def __init__(self, world):
        rng = world.rng
        self.weights = [rng.randint(1, 6) for _ in range(NODES)]
        self.living = [rng.randint(1, 4) for _ in range(NODES)]
        self.at = [rng.randrange(len(world.room)) for _ in range(NODES)]
        self.plan = None  # a list of parts: (place, nodes); None: given up
        self.claims = [0] * len(world.room)
        self.bindings = [Binding(self)]
        self.readers, self.writer = 0, False
        self.used = 0

    def needs(self, at, bindings, places):
        need = [0] * places
        for node, place in enumerate(at):
            need[place] += self.weights[node] + self.living[node] * bindings
        return need


class World:
    def __init__(self, rng, bug):
        self.rng, self.bug, self.now = rng, bug, 0
        self.ending = False
        self.last = {}  # of each graph: when it was used indeed
        self.node = [rng.choice([HOME, 0, 1]) for _ in range(3)]
        self.room = [rng.choice([15, 30, 1000]) for _ in range(3)]
        self.used = [0] * 3
        self.moved = self.counted = 0
        self.failures = rng.choice([0, 0.02, 0.2])
        self.graphs = [Graph(self) for _ in range(3)]

    def may_fail(self):
        if self.rng.random() < self.failures:
            raise Failed

    def check(self):
        for place, room in enumerate(self.room):
            must(self.used[place] <= room, f"place {place} has {self.used[place]} of {room} bytes in use")
            claimed = sum(graph.claims[place] for graph in self.graphs)
            must(self.used[place] == claimed, f"place {place}: {self.used[place]} bytes in use, {claimed} claimed")
        must(self.moved == self.counted or any(graph.writer for graph in self.graphs), f"{self.moved} bytes were copied, {self.counted} were counted")


def lock(graph, write):
    while graph.writer or (write and graph.readers):
        yield
    if write:
        graph.writer = True
    else:
        graph.readers += 1


def claim(world, graph, wanted):
    """Room at all places, or none of it."""
    for place, size in enumerate(wanted):
        if world.used[place] - graph.claims[place] + size > world.room[place]:
            raise Failed
    if world.bug == "claim":
        yield
    for place, size in enumerate(wanted):
        world.used[place] += size - graph.claims[place]
        graph.claims[place] = size
    yield


def copy(world, memory, node):
    new = Memory(node, memory.size)
    world.may_fail()
    yield
    new.value = memory.value
    world.moved += memory.size
    if world.bug != "count":
        world.counted += memory.size
    yield
    return new


def settle(world, graph, at, bindings):
    """Take these places, with all bindings, or leave everything as it is. Call it under the lock, taken for a
    change."""
    before = list(graph.claims)
    need = graph.needs(at, len(bindings), len(world.room))
    both = need if world.bug == "keep-room" else [max(pair) for pair in zip(before, need)]
    yield from claim(world, graph, both)
    if world.bug == "old-last":
        graph.plan = None
    copied = 0
    try:
        plan = []
        for node, place in enumerate(at):
            if plan and plan[-1][0] == place:
                plan[-1][1].append(node)
                continue
            world.may_fail()  # a part is opened
            plan.append((place, [node]))
            yield
        expected = 0
        living = []
        for binding in bindings:
            new = []
            for node, memory in enumerate(binding.living):
                to = world.node[at[node]]
                if memory.node != to:
                    expected += memory.size
                if memory.node != to or world.bug == "same-memory":
                    memory, copied = (yield from copy(world, memory, to)), copied + memory.size
                new.append(memory)
            if world.bug == "living":
                yield from copy(world, Memory(HOME, 1), HOME)
                copied += 1
            world.may_fail()  # it is bound
            living.append(new)
            yield
    except Failed:
        if world.bug != "give-back":
            for place, size in enumerate(before):
                world.used[place] += size - graph.claims[place]
                graph.claims[place] = size
        else:
            graph.claims = before
        raise
    must(copied == expected, f"{copied} bytes were copied, and {expected} had to be")
    if world.bug == "count":
        world.counted += copied
    # From here on nothing fails.
    for place, size in enumerate(need):
        world.used[place] += size - graph.claims[place]
        graph.claims[place] = size
    graph.plan, graph.at, graph.bindings = plan, at, list(bindings)
    for number, (binding, new) in enumerate(zip(bindings, living)):
        for old, memory in zip(binding.living, new):
            if old is not memory:
                old.freed = True
        binding.living = new
        if number and binding.bound and world.bug == "all-bindings":
            continue
        binding.bound = [[(node, new[node]) for node in nodes] for _, nodes in plan]


def give_up(world, graph):
    """Release everything held at places; values go home. Call it under the lock, taken for a change."""
    living = []
    for binding in graph.bindings:
        new = []
        for memory in binding.living:
            if memory.node != HOME:
                if world.bug == "write-back":
                    new.append(Memory(HOME, memory.size))
                    continue
                memory = yield from copy(world, memory, HOME)
            new.append(memory)
        living.append(new)
    if world.bug == "count":
        world.counted = world.moved
    for binding, new in zip(graph.bindings, living):
        for old, memory in zip(binding.living, new):
            if old is not memory:
                old.freed = True
        binding.living, binding.bound = new, None
    graph.plan = None
    for place, size in enumerate(graph.claims):
        world.used[place] -= size
        graph.claims[place] = 0


def use(world, graph):
    graph.used = world.last[graph] = world.now


def run_one(world, binding):
    binding.callers += 1
    while binding.turn and world.bug != "turns":
        yield
    binding.turn = True
    try:
        yield from run_now(world, binding.graph, binding)
    finally:
        binding.turn = False
        binding.callers -= 1


def run_now(world, graph, binding):
    while True:
        yield from lock(graph, False)
        if graph.plan is not None:
            break
        graph.readers -= 1
        yield
        yield from lock(graph, True)
        try:
            if graph.plan is None or world.bug == "look-again":
                must(graph.plan is None, "places were taken twice")
                yield from settle(world, graph, graph.at, graph.bindings)
                use(world, graph)
        finally:
            graph.writer = False
        yield
    try:
        if world.bug != "stamp":
            graph.used = world.now
        for part in binding.bound:
            for node, memory in part:
                must(graph.plan is not None, "a run is on a place that was given up")
                must(not memory.freed and memory is binding.living[node], "a run writes where its value is no more")
                memory.value += 1
                for _ in range(world.rng.choice([1, 1, 1, 40])):
                    yield
        binding.runs += 1
        for memory in binding.living:
            must(memory.value == binding.runs, f"a value is of run {memory.value}, and {binding.runs} have run")
        world.last[graph] = world.now
        if world.bug not in ("stamp", "stamp-end"):
            graph.used = world.now
    finally:
        graph.readers -= 1


def bind(world, graph):
    binding = Binding(graph)
    yield from lock(graph, True)
    try:
        before = list(graph.claims)
        if graph.plan is None:
            graph.bindings = graph.bindings + [binding]
            return
        if world.bug == "bind-claim":
            graph.bindings.append(binding)
            binding.living = [Memory(world.node[graph.at[n]], size) for n, size in enumerate(graph.living)]
            binding.bound = [[(node, binding.living[node]) for node in nodes] for _, nodes in graph.plan]
            must(before == graph.needs(graph.at, len(graph.bindings), len(world.room)), "a binding has no room of its own")
            return
        yield from settle(world, graph, graph.at, graph.bindings + [binding])
        use(world, graph)
    finally:
        graph.writer = False


def unbind(world, graph):
    yield from lock(graph, True)
    try:
        idle = [binding for binding in graph.bindings if not binding.callers]
        if idle:
            binding = world.rng.choice(idle)
            graph.bindings.remove(binding)
            for memory in binding.living:
                memory.freed = True
            if graph.plan is not None and world.bug != "unbind":
                need = graph.needs(graph.at, len(graph.bindings), len(world.room))
                for place, size in enumerate(need):
                    world.used[place] += size - graph.claims[place]
                    graph.claims[place] = size
            if graph.plan is not None:
                must(graph.claims == graph.needs(graph.at, len(graph.bindings), len(world.room)),
                     "a binding that is gone has room")
    finally:
        graph.writer = False
    yield


def program(world):
    rng = world.rng
    while not world.ending:
        for _ in range(rng.choice([0, 0, 0, 0, 0, LEASE * 3])):
            yield
        graph = rng.choice(world.graphs)
        choice = rng.random()
        try:
            if choice < 0.1:
                if len(graph.bindings) < 3:
                    yield from bind(world, graph)
            elif choice < 0.15:
                yield from unbind(world, graph)
            elif choice < 0.4:
                yield from move(world, graph)
            elif graph.bindings:
                yield from run_one(world, rng.choice(graph.bindings))
        except Failed:
            pass
        yield


def move(world, graph):
    yield from lock(graph, True)
    before, plan = (list(graph.at), list(graph.claims)), graph.plan
    try:
        yield from settle(world, graph, [world.rng.randrange(len(world.room)) for _ in range(NODES)], graph.bindings)
        use(world, graph)
    except Failed:
        must((graph.at, graph.claims) == before and graph.plan is plan, "a move that failed changed something")
        raise
    finally:
        graph.writer = False


def sweeper(world):
    while True:
        yield
        for graph in world.graphs:
            due = graph.plan is not None and world.now >= graph.used + LEASE
            yield
            if not due or graph.writer or (graph.readers and world.bug != "wait-runs"):
                continue
            graph.writer = True
            try:
                if graph.plan is not None and (world.now >= graph.used + LEASE or world.bug == "sweep-again"):
                    last = world.last.get(graph, -LEASE)
                    must(world.now >= last + LEASE, "what was used a moment ago is given up")
                    yield from give_up(world, graph)
            except Failed:
                pass
            finally:
                graph.writer = False


def run(rng, bug):
    world = World(rng, bug)
    threads = [program(world) for _ in range(3)] + [sweeper(world)]
    for _ in range(800):
        world.now += 1
        next(threads[rng.randrange(len(threads))])
        world.check()
    # All programs end; the sweeper goes on, and no step fails from here on.
    world.failures, world.ending = 0, True
    for _ in range(5000):
        if len(threads) > 1:
            threads = [thread for thread in threads if next(thread, thread) is not thread]
    must(len(threads) == 1, "a call never ended")
    for _ in range(8 * LEASE):
        world.now += 1
        next(threads[0])
        world.check()
    for graph in world.graphs:
        must(not graph.readers and not graph.writer, "a lock is held without a holder")
    must(not any(world.used), "a place without users was not given up")
    for graph in world.graphs:
        for binding in graph.bindings:
            for memory in binding.living:
                must(not memory.freed and memory.node == HOME, "a value is lost, or not at home")


if __name__ == "__main__":
    main("graphs on places", run, BUGS, seeds=800, full=20000)
