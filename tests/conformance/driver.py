# SPDX-License-Identifier: MIT
"""One process of the conformance suite, by the Python package. driver.c describes the commands."""

import gc
import io
import json
import os
import socket
import sys

import numpy

import tmesh
from tmesh.pages import Sequence

objects = {}


def told(thing):
    """Return the answer that describes a new object."""
    if isinstance(thing, tmesh.Tensor):
        state = "sealed" if thing.sealed else "writable" if thing.writable else "read-only"
        return f"{thing.dtype} [{','.join(map(str, thing.shape))}] {state}"
    if isinstance(thing, tmesh.Bundle):
        return " ".join([*thing, str(thing.nbytes), thing.metadata])
    if isinstance(thing, Sequence):
        return str(thing.tokens)
    if isinstance(thing, (tmesh.PagePool, tmesh.Pages)):
        keys = ("held", "copies", "bytes_copied") if isinstance(thing, tmesh.Pages) else ("handles", "died")
        return " ".join(str(thing.info()[key]) for key in keys)
    return thing.token if isinstance(thing, (tmesh.Channel, tmesh.Slot)) else ""


def keep(name, thing):
    objects[name] = thing
    return told(thing)


def seconds(ms):
    return int(ms) / 1000


# Return the given options as the package takes them, the others as numbers.
OPTIONS = {"mode": lambda text: int(text, 8), "arena": objects.get, "tensor": objects.get,
           **dict.fromkeys(("label", "metadata", "name"), str),
           **dict.fromkeys(("timeout", "hold", "lifetime"), seconds),
           **dict.fromkeys(("seal", "huge", "replace", "writable", "once"), json.loads)}


def shape(text):
    return tuple(int(n) for n in text.strip("[]").split(",") if n)


def put(dtype, dims, data, **options):
    return tmesh.put(numpy.frombuffer(bytes.fromhex(data), dtype).reshape(shape(dims)), **options)


def open_ref(ref, once=False, **options):
    """Both as text and as the dict for it, which are equivalent; `once` opens a ref that is good for one opening."""
    forms = [ref]
    try:
        forms += [decoded] if not once and isinstance(decoded := json.loads(ref), dict) else []
    except ValueError:
        pass
    came = []
    for form in forms:
        try:
            came.append(tmesh.open(form, **options))
        except tmesh.Error as error:
            came.append(error)
    if len({type(thing) for thing in came}) != 1:
        raise RuntimeError(f"{ref}: {came}")
    if isinstance(came[-1], tmesh.Error):
        raise came[-1]
    return came[-1]


def read(name):
    thing = objects[name]
    if isinstance(thing, Sequence):
        return bytes(thing.page(i)[0] for i in range(len(thing.block_table()))).hex()
    return memoryview(thing).tobytes().hex()


def write(name, offset, data):
    data = bytes.fromhex(data)
    if isinstance(objects[name], Sequence):
        objects[name].page(int(offset), writable=True)[:len(data)] = bytearray(data)
        return
    objects[name].numpy(writable=True).reshape(-1).view("uint8")[int(offset):][:len(data)] = bytearray(data)


def release(name):
    objects.pop(name + ".view", None)
    thing = objects[name]
    (thing.close if hasattr(thing, "close") else thing.release)()


def regions(id):
    for r in tmesh.regions():
        if r["id"] == id:
            state = "revoked" if r["revoked"] else "sealed" if r["sealed"] else "open"
            return f"{r['label']} {r['bytes']} {r['alloc_bytes']} {r['mode']:o} {state}"
    return "none"


def stats():
    """Return the growth of the counters since the last question."""
    before, now = objects.get(stats, {}), tmesh.stats()
    objects[stats] = now
    return " ".join(str(now[key] - before.get(key, 0)) for key in (
        "copies", "bytes_copied", "regions_created", "regions_live"))


def send(name, data, tensor=None, **options):
    data = bytes.fromhex(data)
    objects[name].send(data if tensor is None else (tensor, data), **options)


def recv(name, to="", **options):
    message = objects[name].recv(**options)
    if isinstance(message, bytes):
        return "bytes " + message.hex()
    objects[to], data = message if isinstance(message, tuple) else (message, b"")
    return "tensor " + data.hex()


def lease(name, ms, **options):
    objects[name].lease(seconds(ms), **options)


def part(text):
    name, *place = text.split("/")
    return (objects[name], *map(int, place)) if place else objects[name]


def listen(name):
    at = f"tmesh-conformance-{os.getpid()}-{name}"
    objects[name] = socket.socket(socket.AF_UNIX)
    objects[name].bind("\0" + at)
    objects[name].listen(1)
    return at


def connect(at):
    connected = socket.socket(socket.AF_UNIX)
    connected.connect("\0" + at)
    return connected


def accept(name):
    with objects[name] as listening:
        objects[name] = listening.accept()[0]


def hashes(name, count):
    found = [None]
    for i in range(int(count)):
        found.append(objects[name].hash(range(4 * i, 4 * i + 4), found[-1]))
    return b"".join(found[1:]).hex()


def several(text):
    """Hashes."""
    return [bytes.fromhex(text[at:at + 32]) for at in range(0, len(text), 32)]


def kept(to, name):
    found = tmesh.open_kept(name)
    if isinstance(found, list):
        return ", ".join(keep(f"{to}.{i}", tensor) for i, tensor in enumerate(found))
    return keep(to, found)


def reset():
    for thing in objects.values():
        if hasattr(thing, "close"):
            thing.close()
    objects.clear()
    gc.collect()
    return tmesh.stats()["regions_live"]


# Verbs whose result is kept under the name that comes first, and described in the answer.
MAKERS = {
    "create": lambda dtype, dims, **options: tmesh.zeros(shape(dims), dtype, **options),
    "put": put,
    "open": open_ref,
    "unbundle": tmesh.open,
    "arena": tmesh.Arena,
    "channel": tmesh.Channel,
    "join": tmesh.Channel.open,
    "gather": lambda dtype, dims, *parts, **options: tmesh.gather(map(part, parts), shape(dims), dtype, **options),
    # A private view has a pin.
    "pin": lambda of: objects[of].private(),
    "private": lambda of: objects[of].private(),
    "export": lambda of, **options: io.FileIO(objects[of].export_dmabuf(**options)),
    "import": lambda descriptor, dtype, dims: tmesh.from_dmabuf(objects[descriptor], shape(dims), dtype),
    "connect": connect,
    "take": lambda source, *ticket: objects[source].open_sequence(*ticket) if ticket else tmesh.recv(objects[source]),
    "receive": lambda socket: tmesh.recv_bundle(objects[socket]),
    "bundle": lambda *pairs, **options: tmesh.bundle(dict(zip(pairs[::2], map(objects.get, pairs[1::2]))), **options),
    "member": lambda of, key: objects[of][key],
    "slot": tmesh.Slot,
    "follow": tmesh.Slot.open,
    "named": tmesh.Slot.open_named,
    "value": lambda reader: objects[reader].read(),
    "pool": tmesh.PagePool,
    "pages": tmesh.Pages.open,
    "sequence": lambda pages: objects[pages].sequence(),
    "fork": lambda of: objects[of].fork(),
    "find": lambda pages, text: objects[pages].find(several(text)),
}
OTHERS = {
    "accept": accept,
    "append": lambda name, tokens: objects[name].append(int(tokens)),
    "backend": tmesh.backend,
    "cache": lambda name, text: objects[name].cache(several(text)),
    "cap": lambda name: next(cap["level"] for cap in tmesh.caps() if cap["name"] == name),
    "close": release,
    "drop": tmesh.drop,
    # Nothing is closed.
    "exit": sys.exit,
    "flush": tmesh.flush,
    "hand": lambda socket, thing, **options: objects[thing].send(objects[socket], **options),
    "hashes": hashes,
    "hold": lambda name: keep(name + ".view", objects[name].numpy(writable=True)),
    "holders": lambda id: " ".join(str(holder["pid"]) for holder in tmesh.holders(id)),
    "keep": lambda name, thing, **options: told(tmesh.keep(objects[thing], name, **options)),
    "kept": kept,
    "lease": lease,
    "listen": listen,
    "look": lambda name: told(objects[name]),
    "publish": lambda name, what="": objects[name].publish(objects.get(what)),
    "read": read,
    "reclaim": lambda name, **options: objects[name].reclaim(**options),
    "recv": recv,
    "ref": lambda name, **options: json.dumps(objects[name].ref(**options)),
    "regions": regions,
    "release": release,
    "reset": reset,
    "revoke": lambda name: objects[name].revoke(),
    "seal": lambda name: told(objects[name].seal()),
    "send": send,
    "share": lambda name: objects[name].share(),
    "signal": lambda name, value: objects[name].signal(int(value)),
    "stats": stats,
    "tenant": lambda name, **options: objects[name].tenant(**options),
    "touch": lambda name: objects[name].touch(),
    "truncate": lambda name, tokens: objects[name].truncate(int(tokens)),
    "unpin": lambda name: objects.pop(name).release(),
    "unshare": lambda pages, ticket: objects[pages].unshare(ticket),
    "wait": lambda name, value, **options: objects[name].wait(int(value), **options),
    "write": write,
}


def obey(verb, *fields):
    options = dict(field.split("=", 1) for field in fields if "=" in field)
    options = {key: OPTIONS.get(key, int)(value) for key, value in options.items()}
    fields = [field for field in fields if "=" not in field]
    if verb in MAKERS:
        return keep(fields[0], MAKERS[verb](*fields[1:], **options))
    return OTHERS[verb](*fields, **options)


def main():
    tmesh.configure(max_bytes=64 << 20, timeout=60)
    for line in sys.stdin:
        try:
            answer = obey(*line.rstrip("\n").split("\t"))
            print(f"ok\t{'' if answer is None else answer}", flush=True)
        except tmesh.Error as error:
            print(f"error\t{type(error).__name__}\t{error.strerror}", flush=True)


main()
