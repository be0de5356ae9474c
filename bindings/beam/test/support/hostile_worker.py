#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Takes the place of python -m tmesh.worker and breaks its protocol, as $HOSTILE says."""

import ctypes
import fcntl
import itertools
import json
import os
import random
import socket
import sys
import threading
import time

ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
sys.stderr = open(os.devnull, "w")  # being ended is nothing to tell
how = os.environ["HOSTILE"]
name = sys.argv[sys.argv.index("--socket") + 1]



def end_with_input():
    """So that no test leaves one behind."""
    while os.read(0, 4096):
        pass
    os._exit(0)


threading.Thread(target=end_with_input, daemon=True).start()

if how == "exit":
    sys.exit(3)
if how == "silent":
    time.sleep(3600)
if how == "locked":
    # A module that holds the interpreter's lock: the thread above does not run.
    with open(os.environ["PIDS"], "a") as pids:
        print(os.getpid(), file=pids)
    ctypes.PyDLL(None).sleep(60)
if how == "chatty":
    print("x" * 100_000, flush=True)
    time.sleep(3600)
if how == "ready without a socket":
    print("ready", flush=True)
    time.sleep(3600)

server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind("\0" + name[1:])
server.listen(1)
print("ready", flush=True)
sock, _ = server.accept()


def send(message, files=()):
    text = message if isinstance(message, bytes) else (
        message if isinstance(message, str) else json.dumps(message)).encode()
    socket.send_fds(sock, [text], files)


def body(text, size=None, seals=ALL_SEALS, more=()):
    file = os.memfd_create("body", os.MFD_ALLOW_SEALING)
    os.write(file, text)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    send(f'{{"v":1,"body":{len(text) if size is None else size}}}', [file, *more])


HELLO = {"v": 1, "type": "hello", "pid": os.getpid()}
FIRST = {
    "no JSON": "{", "a list": "[]", "not UTF-8": b'{"v":1,"type":"\xff"}', "no type": {"v": 1},
    "other version": {**HELLO, "v": 2}, "hello without pid": {"v": 1, "type": "hello"},
    "pid as text": {**HELLO, "pid": "1"}, "result first": {"v": 1, "type": "result", "id": 1},
    "error first": {"v": 1, "type": "error", "id": None, "error": {"message": "no"}},
    "member twice": '{"v":1,"v":1,"type":"hello","pid":1}', "deep": "[" * 60_000,
    "deep objects": '{"a":' * 10_000 + "1" + "}" * 10_000, "long": "x" * 65_537,
    "big integer": '{"v":1,"type":"hello","pid":123456789012345678901234567890}',
    "big real": '{"v":1,"type":"hello","pid":1e999}',
}

if how in FIRST:
    send(FIRST[how])
    time.sleep(3600)
if how == "body of a pipe":
    send('{"v":1,"body":10}', os.pipe()[:1])
    time.sleep(3600)
if how == "hang in a body":
    path = f"/tmp/tmesh-test-{os.getpid()}"
    os.mkfifo(path)
    file = os.open(path, os.O_RDWR)
    os.unlink(path)
    send('{"v":1,"body":10}', [file])
    time.sleep(3600)
if how == "two descriptors":
    body(json.dumps(HELLO).encode(), more=os.pipe()[:1])
    time.sleep(3600)
if how == "many descriptors":
    send('{"v":1,"body":10}', os.pipe() * 20)
    time.sleep(3600)
if how in ("body of an unanswered file", "bodies of an unanswered file"):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../python/tests"))
    from unanswered import unanswered
    file, _ = unanswered() or (os.pipe()[0], None)  # where there is no FUSE
    send('{"v":1,"body":10}', [file] * (1 if how.startswith("body") else 2))
    time.sleep(3600)
if how == "unsealed body":
    body(json.dumps(HELLO).encode(), seals=0)
    time.sleep(3600)
if how == "body too short":
    body(b"{}", size=100)
    time.sleep(3600)
if how == "body too large":
    body(b"{}", size=1 << 40)
    time.sleep(3600)
if how == "random":
    dice = random.Random(int(os.environ["SEED"]))
    for _ in range(20):
        data = bytearray(json.dumps(HELLO).encode())
        for _ in range(dice.randrange(6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        send(bytes(data))
    time.sleep(3600)

if how == "hello twice":
    send(HELLO)
send(HELLO)
if how == "answer without a call":
    send({"v": 1, "type": "result", "id": 0, "value": 1, "held": False})
call = json.loads(sock.recv(65536))
id = call["id"]
TOKEN = ("tm1k-" + "0" * 32 if os.environ.get("TMESH_BACKEND") == "kernel" else
         "tm1m-" + "0" * 32 + "-" + "0" * 32)
REF = {"v": 1, "id": "0" * 16, "token": TOKEN, "offset": 0,
       "byte_size": 4, "shape": [4], "dtype": "uint8", "strides": [1], "device": "cpu"}
given = call["payload"][0]["ref"] if call["payload"] else REF
OWN = {
    "id of another call": {"type": "result", "id": id + 1, "value": 1, "held": False},
    "id as text": {"type": "result", "id": str(id), "value": 1, "held": False},
    "no value": {"type": "result", "id": id, "held": False},
    "held as text": {"type": "result", "id": id, "value": 1, "held": "yes"},
    "unknown answer": {"type": "no_such_atom_ever_1", "id": id},
    "error without words": {"type": "error", "id": id, "error": {}},
    "error as text": {"type": "error", "id": id, "error": "no"},
    "unknown error": {"type": "error", "id": id, "error": {"type": "no_such_atom_ever_2",
                                                           "message": "m", "exception": []}},
    "item without a stream": {"type": "item", "id": id, "value": 1, "sequence": 0, "held": True},
    "end without a stream": {"type": "end", "id": id},
    "sequence as text": {"type": "item", "id": id, "value": 1, "sequence": "0", "held": True},
}
VALUES = {
    "dead ref": {"__tmesh__": "tensor", "ref": REF},
    "no ref": {"__tmesh__": "tensor"},
    "ref as number": {"__tmesh__": "tensor", "ref": 5},
    "unknown placeholder": {"__tmesh__": "no_such_atom_ever_3"},
    "placeholder as list": {"__tmesh__": []},
    "unknown dtype": {"__tmesh__": "tensor", "ref": {**REF, "dtype": "no_such_atom_ever_4"}},
    "ref beyond its region": {"__tmesh__": "tensor", "ref": {**given, "offset": 1 << 40}},
    "ref too large": {"__tmesh__": "tensor", "ref": {
        **given, "shape": [1 << 40], "byte_size": 1 << 40}},
    "ref wraps": {"__tmesh__": "tensor", "ref": {
        **given, "shape": [1 << 62], "byte_size": 1 << 62, "strides": [1 << 62]}},
    "shape of text": {"__tmesh__": "tensor", "ref": {**given, "shape": ["4"]}},
    "bytes beyond": {"__tmesh__": "bytes", "ref": {**given, "offset": -1}},
    "bad base64": {"__tmesh__": "bytes", "base64": "x"},
    "base64 as number": {"__tmesh__": "bytes", "base64": 5},
    "array of another size": {"__tmesh__": "array", "dtype": "uint8", "shape": [3],
                              "base64": "AA=="},
    "array of no dtype": {"__tmesh__": "array", "dtype": [], "shape": [3], "base64": "AA=="},
    "array of no shape": {"__tmesh__": "array", "dtype": "uint8", "shape": 1, "base64": "AA=="},
    "no table": {"__tmesh__": "table", "ref": given},
    "no table's text": {"__tmesh__": "table", "base64": "AAAA"},
    "table of nothing": {"__tmesh__": "table"},
    "Snakepit's of no kind": {"__snakepit_zero_copy__": True, "ref": given},
    "Snakepit's of an unknown kind": {"__snakepit_zero_copy__": True, "kind": "x", "ref": given},
    "Snakepit's without a ref": {"__snakepit_zero_copy__": True, "kind": "dlpack"},
    "Snakepit's without a name": {"__snakepit_zero_copy__": True, "kind": "dlpack",
                                  "ref": {**given, "token": ""}, "shape": [4]},
    "Snakepit's other dtype": {"__snakepit_zero_copy__": True, "kind": "dlpack", "ref": given,
                               "dtype": "int8"},
    "Snakepit's other shape": {"__snakepit_zero_copy__": True, "kind": "dlpack", "ref": given,
                               "shape": [2, 2]},
    "Snakepit's other bytes": {"__snakepit_zero_copy__": True, "kind": "tensor", "ref": given,
                               "bytes": "4"},
    "Snakepit's other device": {"__snakepit_zero_copy__": True, "kind": "tensor", "ref": given,
                                "device": "cuda:0"},
    "Snakepit's no table": {"__snakepit_zero_copy__": True, "kind": "arrow", "ref": given},
    "Snakepit's table of nothing": {"__snakepit_zero_copy__": True, "kind": "arrow"},
    "float of no name": {"__tmesh__": "float", "value": "no_such_atom_ever_5"},
    "one good, one bad": [{"__tmesh__": "tensor", "ref": given}, {"__tmesh__": "tensor"}],
    "no such atoms": {"no_such_atom_ever_6": ["no_such_atom_ever_7"]},
}
if how in OWN:
    send({"v": 1, **OWN[how]})
elif how in VALUES:
    send({"v": 1, "type": "result", "id": id, "value": VALUES[how], "held": True})
elif how == "deep value":
    send('{"v":1,"type":"result","held":false,"id":%d,"value":%s}' % (id, "[" * 64 + "]" * 64))
elif how == "close":
    sock.close()
elif how in ("flood", "flood of a stream"):
    for n in itertools.count():
        sequence = 0 if how == "flood" else n
        send({"v": 1, "type": "item", "id": id, "value": "x" * 1000, "sequence": sequence, "held": True})
time.sleep(3600)
