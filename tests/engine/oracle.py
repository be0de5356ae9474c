# SPDX-License-Identifier: MIT
"""Placement beside HiGHS, which proves what the best is. Prints TAP.

    oracle.py LIBRARY [NODES DEVICES MACHINES SECONDS]

Made-up machines as an integer program, for the model of tmesh/placement.h. Of node i on device d: x[i, d] is 1 or 0, and e[i] is when
it ends; run[i, d] is the device's latency and the node's seconds there.

    smallest z     z >= e[i]
    one device     sum over d of x[i, d] = 1
    memory         sum over i of memory[i] x[i, d] <= memory of d
    begin          e[i] >= sum over d of run[i, d] x[i, d]
    values         e[i] >= e[k] + sum over d of run[i, d] x[i, d] + time[k, a, b] (x[k, a] + x[i, b] - 1)
                   for each input k of i and all devices a, b that differ; and without the time
    one at a time  e[i] >= e[j] + run[i, d] - M (2 - x[i, d] - x[j, d]) for j before i, M what placement found

With NODES and the rest it is a comparison: what HiGHS has after SECONDS, and the bound that it has proved.
"""

import ctypes
import random
import sys
import time


class Device(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_uint64), ("latency", ctypes.c_double)]


class Link(ctypes.Structure):
    _fields_ = [("bandwidth", ctypes.c_double), ("latency", ctypes.c_double)]


class Node(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("memory", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
                ("inputs", ctypes.POINTER(ctypes.c_uint32)), ("input_count", ctypes.c_uint32),
                ("seconds", ctypes.POINTER(ctypes.c_double))]


class Problem(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("devices", ctypes.POINTER(Device)), ("device_count", ctypes.c_size_t),
                ("links", ctypes.POINTER(Link)), ("nodes", ctypes.POINTER(Node)), ("node_count", ctypes.c_size_t),
                ("restarts", ctypes.c_uint32), ("time_ns", ctypes.c_uint64), ("seed", ctypes.c_uint64)]


class Placement(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("seconds", ctypes.c_double), ("greedy", ctypes.c_double),
                ("searches", ctypes.c_uint32), ("bytes_moved", ctypes.c_uint64)]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 256)]


def make(seed, nodes, devices, tight):
    """Memory, latency of devices; bandwidth, latency of links; memory, bytes, inputs, seconds of nodes."""
    draw = random.Random(seed)
    machine = {"devices": [[1 << 30, draw.uniform(1e-6, 1e-5)] for _ in range(devices)],
               "links": [[(draw.uniform(1e9, 2e10), draw.uniform(1e-6, 2e-5)) for _ in range(devices)] for _ in range(devices)],
               "nodes": []}
    for i in range(nodes):
        work = draw.uniform(1e-4, 1e-3)
        inputs = sorted({draw.randrange(i) for _ in range(draw.randint(1, 2))}) if i else []
        seconds = [-1 if d and draw.random() < .1 else work * draw.uniform(.5, 2) for d in range(devices)]
        machine["nodes"].append((draw.randint(1 << 20, 1 << 24), draw.randint(1 << 16, 4 << 20), inputs, seconds))
    if tight:
        for device in machine["devices"]:
            device[0] = sum(node[0] for node in machine["nodes"]) * 3 // (2 * devices)
    return machine


def place(library, machine, milliseconds):
    nodes, devices = len(machine["nodes"]), len(machine["devices"])
    keep = [((ctypes.c_uint32 * len(inputs))(*inputs), (ctypes.c_double * devices)(*seconds))
            for _, _, inputs, seconds in machine["nodes"]]
    problem = Problem(
        ctypes.sizeof(Problem), (Device * devices)(*(Device(*device) for device in machine["devices"])), devices,
        (Link * devices ** 2)(*(Link(*link) for row in machine["links"] for link in row)),
        (Node * nodes)(*(Node(None, memory, count, inputs, len(inputs), seconds)
                         for (memory, count, _, _), (inputs, seconds) in zip(machine["nodes"], keep, strict=True))),
        nodes, 0, milliseconds * 10 ** 6, 0)
    at, found, error = (ctypes.c_uint32 * nodes)(), Placement(ctypes.sizeof(Placement)), Error()
    begin = time.monotonic()
    if library.tmesh_placement_find(ctypes.byref(problem), at, ctypes.byref(found), ctypes.byref(error)):
        raise RuntimeError(error.message.decode())
    return list(at), found, time.monotonic() - begin


def solve(machine, found, seconds):
    """What HiGHS found (None: nothing), and the bound that it proved."""
    import highspy

    nodes, devices = machine["nodes"], machine["devices"]
    every = range(len(devices))
    run = [[devices[d][1] + node[3][d] if node[3][d] >= 0 else None for d in every] for node in nodes]
    model = highspy.Highs()
    model.silent()
    model.setOptionValue("time_limit", float(seconds))
    model.setOptionValue("mip_rel_gap", 1e-6)
    model.setOptionValue("threads", 1)
    model.setOptionValue("random_seed", 1)
    # In milliseconds: a solver's tolerances are absolute.
    scale = 1e3
    x = [[model.addBinary() if run[i][d] is not None else None for d in every] for i in range(len(nodes))]
    e = [model.addVariable(lb=0) for _ in nodes]
    z = model.addVariable(lb=0, obj=1)
    for i, (memory, count, inputs, _) in enumerate(nodes):
        here = [d for d in every if x[i][d] is not None]
        takes = sum(scale * run[i][d] * x[i][d] for d in here)
        model.addConstr(z >= e[i])
        model.addConstr(sum(x[i][d] for d in here) == 1)
        model.addConstr(e[i] >= takes)
        for k in inputs:
            model.addConstr(e[i] >= e[k] + takes)
            for a in every:
                for b in here:
                    if a != b and x[k][a] is not None:
                        bandwidth, latency = machine["links"][a][b]
                        takes_time = scale * (latency + nodes[k][1] / bandwidth)
                        model.addConstr(e[i] >= e[k] + takes + takes_time * x[k][a] + takes_time * x[i][b] - takes_time)
        most = scale * found
        for j in range(i):
            for d in here:
                if x[j][d] is not None:
                    model.addConstr(e[i] >= e[j] + scale * run[i][d] - 2 * most + most * x[i][d] + most * x[j][d])
    for d in every:
        model.addConstr(sum(nodes[i][0] / 2 ** 20 * x[i][d] for i in range(len(nodes)) if x[i][d] is not None)
                        <= devices[d][0] / 2 ** 20)
    model.minimize(z)
    info = model.getInfo()
    best = info.objective_function_value / scale if info.primal_solution_status == 2 else None
    return best, info.mip_dual_bound / scale


def main():
    library = ctypes.CDLL(sys.argv[1])
    try:
        import highspy  # noqa: F401
    except ImportError:
        print("1..0 # SKIP HiGHS cannot be had: the package highspy is not installed")
        return 0
    if len(sys.argv) > 2:
        nodes, devices, machines, seconds = map(int, sys.argv[2:])
        for seed in range(machines):
            machine = make(seed, nodes, devices, False)
            _, found, took = place(library, machine, 0)
            best, bound = solve(machine, found.seconds, seconds)
            _, long, _ = place(library, machine, seconds * 1000)
            print(f"machine {seed}: placement {found.seconds * 1e3:.3f} ms in {took * 1e3:.1f} ms; HiGHS in {seconds} s "
                  f"{best * 1e3 if best else float('nan'):.3f} ms, proved {bound * 1e3:.3f}; {long.seconds * 1e3:.3f} in as long; "
                  f"above the best known {(found.seconds / min(long.seconds, best or 1) - 1) * 100:.2f} %", flush=True)
        return 0
    worst = exact = 0
    failed = []
    sizes = [(8, 2), (9, 3), (10, 3), (10, 4)]
    cases = [(*size, tight, seed) for size in sizes for tight in (False, True) for seed in range(2)]
    for nodes, devices, tight, seed in cases:
        machine = make(1000 * nodes + seed, nodes, devices, tight)
        _, found, _ = place(library, machine, 60000)
        best, bound = solve(machine, found.seconds * (1 + 1e-6), 600)
        what = f"{nodes} nodes, {devices} devices{', little memory' if tight else ''}, {seed}"
        if best is None or best > bound * 1.001:
            print(f"# {what}: HiGHS proved no best: {best}, {bound}")
            failed.append(what)
            continue
        gap = found.seconds / best - 1
        worst, exact = max(worst, gap), exact + (gap < 1e-5)
        # Less than the best is as wrong as more.
        if not -1e-5 < gap < .03:
            print(f"# {what}: {found.seconds} beside {best}")
            failed.append(what)
    print(f"# the best of all in {exact} of {len(cases)}, {worst * 100:.2f} % above it at worst")
    print(f"{'not ok' if failed else 'ok'} 1 - placement beside the best that HiGHS proves\n1..1")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
