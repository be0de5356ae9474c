#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Listens at a name as a worker does, and sends COUNT messages, each with a file whose server does not answer. Prints
their kind: FUSE, or pipe without FUSE. A first line ends the server. For each line a good message comes."""

import fcntl
import os
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../python/tests"))
from unanswered import unanswered  # noqa: E402: found by the line above

ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
name, count = sys.argv[1], int(sys.argv[2])
server = unanswered()
file, end = server or (os.pipe()[0], lambda: None)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\0" + name)
listener.listen()
print("FUSE" if server else "pipe", flush=True)
peer, _ = listener.accept()
for _ in range(count):
    socket.send_fds(peer, [b'{"v":1,"body":10}'], [file])
body = os.memfd_create("body", os.MFD_ALLOW_SEALING)
os.write(body, b"0123456789")
fcntl.fcntl(body, fcntl.F_ADD_SEALS, ALL_SEALS)
for line, _ in enumerate(sys.stdin):
    if not line:
        end()
    socket.send_fds(peer, [b'{"v":1,"body":10}'], [body])
