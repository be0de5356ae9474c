# SPDX-License-Identifier: MIT
"""One process of the conformance suite, by the Python package. driver.c says how it is spoken to."""

import gc
import io
import json
import os
import socket
import sys

import numpy

import tmesh

objects = {}


def look(name):
    t = objects[name]
    state = "sealed" if t.sealed else "writable" if t.writable else "read-only"
    return f"{t.dtype} [{','.join(map(str, t.shape))}] {state}"


def keep(name, thing):
    objects[name] = thing
    return look(name) if isinstance(thing, tmesh.Tensor) else ""


def seconds(ms):
    return int(ms) / 1000


def flags(options):
    """Options as the package takes them: only those that were given."""
    true = "true".__eq__
    known = {"seal": true, "huge": true, "replace": true, "writable": true, "label": str,
             "mode": lambda text: int(text, 8), "slots": int, "producers": int, "bytes": int,
             "arena": objects.get, "timeout": seconds, "hold": seconds, "lifetime": seconds, "offset": int, "limit": int,
             "metadata": str}
    return {key: known[key](value) for key, value in options.items()}


def shape(text):
    return tuple(int(n) for n in text.strip("[]").split(",") if n)


def create(name, dtype, dims, **options):
    return keep(name, tmesh.zeros(shape(dims), dtype, **flags(options)))


def put(name, dtype, dims, data, **options):
    array = numpy.frombuffer(bytes.fromhex(data), dtype).reshape(shape(dims))
    return keep(name, tmesh.put(array, **flags(options)))


def forms(ref):
    """Text, and the dict that it stands for."""
    yield ref
    try:
        decoded = json.loads(ref)
    except ValueError:
        return
    if isinstance(decoded, dict):
        yield decoded


def open_ref(name, ref, once=None, **options):
    """In each form, which all come to the same; once: one that is good for that alone."""
    came = []
    for form in [ref] if once else forms(ref):
        try:
            came.append(tmesh.open(form, **flags(options)))
        except tmesh.Error as error:
            came.append(error)
    if len({type(thing) for thing in came}) != 1:
        raise RuntimeError(f"{ref}: {came}")
    if isinstance(came[-1], tmesh.Error):
        raise came[-1]
    return keep(name, came[-1])


def ref(name, **options):
    return json.dumps(objects[name].ref(**flags(options)))


def flush(**options):
    tmesh.flush(**flags(options))
    return ""


def read(name):
    return memoryview(objects[name]).tobytes().hex()


def write(name, offset, data):
    data = bytes.fromhex(data)
    objects[name].numpy(writable=True).reshape(-1).view("uint8")[int(offset):][:len(data)] = bytearray(data)
    return ""


def hold(name):
    return keep(name + ".view", objects[name].numpy(writable=True))


def seal(name):
    objects[name].seal()
    return ""


def release(name):
    objects.pop(name + ".view", None)
    objects[name].release()
    return ""


def regions(id):
    for r in tmesh.regions():
        if r["id"] == id:
            state = "revoked" if r["revoked"] else "sealed" if r["sealed"] else "open"
            return f"{r['label']} {r['bytes']} {r['alloc_bytes']} {r['mode']:o} {state}"
    return "none"


def holders(id):
    return " ".join(str(holder["pid"]) for holder in tmesh.holders(id))


def cap(name):
    return next(cap["level"] for cap in tmesh.caps() if cap["name"] == name)


def stats():
    """By how much they have grown since they were asked for last."""
    before, now = objects.get(stats, {}), tmesh.stats()
    objects[stats] = now
    return " ".join(str(now[key] - before.get(key, 0)) for key in (
        "copies", "bytes_copied", "regions_created", "regions_live"))


def arena(name, **options):
    return keep(name, tmesh.Arena(**flags(options)))


def channel(name, role, **options):
    keep(name, tmesh.Channel(role, **flags(options)))
    return objects[name].token


def join(name, token, role, **options):
    return keep(name, tmesh.Channel.open(token, role, **flags(options)))


def send(name, data, tensor=None, **options):
    data = bytes.fromhex(data)
    message = (objects[tensor], data) if tensor else data
    objects[name].send(message, **flags(options))
    return ""


def recv(name, to="", **options):
    message = objects[name].recv(**flags(options))
    if isinstance(message, bytes):
        return "bytes " + message.hex()
    got, data = message if isinstance(message, tuple) else (message, b"")
    objects[to] = got
    return "tensor " + data.hex()


def close(name):
    objects[name].close()
    return ""


def revoke(name):
    objects[name].revoke()
    return ""


def reclaim(name, **options):
    objects[name].reclaim(**flags(options))
    return ""


def pin(name, to):
    """A private view has one."""
    objects[to] = objects[name].private()
    return ""


def unpin(name):
    objects.pop(name).release()
    return ""


def lease(name, ms, process=None):
    if process is None:
        objects[name].lease(int(ms) / 1000)
        return ""
    objects[name].lease(int(ms) / 1000 or None, process=int(process))
    return ""


def touch(name):
    objects[name].touch()
    return ""


def signal(name, value):
    objects[name].signal(int(value))
    return ""


def wait(name, value, **options):
    return str(objects[name].wait(int(value), **flags(options)))


def part(text):
    name, *place = text.split("/")
    return (objects[name], *map(int, place)) if place else objects[name]


def gather(name, dtype, dims, *parts, **options):
    return keep(name, tmesh.gather(map(part, parts), shape(dims), dtype, **flags(options)))


def private(name, of):
    keep(name, objects[of].private())
    return ""


def export(name, of, **options):
    return keep(name, io.FileIO(objects[of].export_dmabuf(**flags(options))))


def import_dmabuf(name, descriptor, dtype, dims):
    return keep(name, tmesh.from_dmabuf(objects[descriptor], shape(dims), dtype))


def listen(name):
    objects[name] = socket.socket(socket.AF_UNIX)
    at = f"tmesh-conformance-{os.getpid()}-{name}"
    objects[name].bind("\0" + at)
    objects[name].listen(1)
    return at


def connect(name, at):
    objects[name] = socket.socket(socket.AF_UNIX)
    objects[name].connect("\0" + at)
    return ""


def accept(name):
    with objects[name] as listening:
        objects[name] = listening.accept()[0]
    return ""


def hand(name, tensor, **options):
    objects[tensor].send(objects[name], **flags(options))
    return ""


def take(name, to):
    return keep(to, tmesh.recv(objects[name]))


def receive(name, to):
    """A bundle."""
    return look_bundle(to, tmesh.recv_bundle(objects[name]))


def keep_under(name, tensor, **options):
    tmesh.keep(objects[tensor], name, **flags(options))
    return ""


def kept(to, name):
    found = tmesh.open_kept(name)
    if isinstance(found, tmesh.Bundle):
        return look_bundle(to, found)
    if isinstance(found, list):
        return ", ".join(keep(f"{to}.{i}", tensor) for i, tensor in enumerate(found))
    return keep(to, found)


def slot(to, name=None):
    objects[to] = tmesh.Slot(name=name)
    return objects[to].token


def publish(name, what):
    return str(objects[name].publish(objects[what]))


def named(to, name):
    objects[to] = tmesh.Slot.open_named(name)
    return ""


def value(to, name):
    return look_bundle(to, objects[name].read())


def drop(name):
    """NAME, or all that begin as NAME* does."""
    names = [name]
    if name.endswith("*"):
        names = [one["name"] for one in tmesh.kept() if one["name"].startswith(name[:-1])]
    for name in names:
        tmesh.drop(name)
    return ""


def look_bundle(name, held):
    objects[name] = held
    return " ".join([*held, str(held.nbytes), held.metadata])


def bundle(name, *pairs, **options):
    named = dict(zip(pairs[::2], map(objects.get, pairs[1::2])))
    return look_bundle(name, tmesh.bundle(named, **flags(options)))


def unbundle(name, ref, **options):
    return look_bundle(name, tmesh.open(ref, **flags(options)))


def member(name, of, key):
    return keep(name, objects[of][key])


def reset():
    for thing in objects.values():
        if hasattr(thing, "close"):
            thing.close()
    objects.clear()
    gc.collect()
    return str(tmesh.stats()["regions_live"])


VERBS = {verb.__name__: verb for verb in (
    create, put, ref, flush, look, read, write, hold, seal, release, regions, holders, cap, stats, arena, channel,
    join, send, recv, close, reset, revoke, reclaim, pin, unpin, lease, touch, signal, wait, gather, private, export,
    listen, connect, accept, hand, take, receive, bundle, unbundle, member, kept, drop, slot, publish, named,
    value)} | {
        "open": open_ref, "backend": tmesh.backend, "import": import_dmabuf, "keep": keep_under}


def main():
    tmesh.configure(max_bytes=64 << 20)
    for line in sys.stdin:
        verb, *fields = line.rstrip("\n").split("\t")
        options = [field.split("=", 1) for field in fields if "=" in field]
        try:
            answer = VERBS[verb](*[field for field in fields if "=" not in field], **dict(options))
            print(f"ok\t{answer}", flush=True)
        except tmesh.Error as error:
            print(f"error\t{type(error).__name__}\t{error.strerror}", flush=True)


main()
