# SPDX-License-Identifier: MIT
"""A slow wire between two machines, for kernels without netem. The interfaces of two network namespaces are
TAP devices, and a thread carries their packets, so many seconds late. It tells how many times messages went
to and fro, which is what a long way costs."""

import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import threading
import time

TUNSETIFF, TAP, NO_HEADER = 0x400454CA, 0x0002, 0x1000
FIN, SYN = 1, 2


class Wire:
    def __init__(self, namespaces, seconds):
        self.seconds, self.lock, self.ended = seconds, threading.Lock(), False
        self.ends = []
        try:
            for number, namespace in enumerate(namespaces, 1):
                end = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
                self.ends.append(end)
                name = f"tmw{os.getpid()}"
                fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP | NO_HEADER))
                for words in (f"link set {name} netns {namespace} name eth0", f"-n {namespace} address add 10.77.0.{number}/24 dev eth0",
                              f"-n {namespace} link set eth0 up", f"-n {namespace} link set lo up"):
                    subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)
        except BaseException:
            self.close()
            raise
        self.begin()
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()

    def begin(self):
        """Count from now on."""
        with self.lock:
            # How many legs the longest chain of messages has that has arrived at each end.
            self.legs, self.messages = [0, 0], []
            self.said = time.monotonic()

    def is_quiet(self):
        """No side has sent anything for a second."""
        with self.lock:
            return time.monotonic() - self.said > 1

    def trips(self, end):
        """How many round trips lie behind what has arrived at this end: legs of messages each of which was sent after the one before
        it had come."""
        with self.lock:
            return (self.legs[end] + 1) // 2

    def connections(self):
        """Return the senders, one after the other, of each connection made since, in their order."""
        with self.lock:
            made = {}
            for end, _legs, source, target, _size, syn in self.messages:
                ports = frozenset((source, target))
                if syn and ports not in made:
                    made[ports] = []
                if ports in made and made[ports][-1:] != [end]:
                    made[ports].append(end)
            return [*made.values()]

    def before_connecting(self):
        """Return the senders of messages before any connection was made."""
        with self.lock:
            return {message[0] for message in itertools.takewhile(lambda message: not message[-1], self.messages)}

    def carry(self):
        late, number = [], 0
        while not self.ended:
            now = time.monotonic()
            while late and late[0][0] <= now:
                _when, _number, end, frame, legs = heapq.heappop(late)
                with self.lock:
                    self.legs[end] = max(self.legs[end], legs)
                try:
                    os.write(self.ends[end], frame)
                except OSError:
                    pass  # its interface is down
            ready, _, _ = select.select(self.ends, [], [], max(0, late[0][0] - now) if late else 0.1)
            for end, descriptor in enumerate(self.ends):
                while descriptor in ready:
                    try:
                        frame = os.read(descriptor, 1 << 16)
                    except OSError:
                        break  # there is no more
                    message = tcp_message(frame)
                    with self.lock:
                        legs = self.legs[end] + 1 if message else 0
                        if message:
                            self.messages.append((end, legs, *message))
                            self.said = time.monotonic()
                    number += 1
                    heapq.heappush(late, (time.monotonic() + self.seconds, number, 1 - end, frame, legs))

    def close(self):
        self.ended = True
        if hasattr(self, "thread"):
            self.thread.join()
        for end in self.ends:
            os.close(end)


def tcp_message(frame):
    """Ports and size of what is no mere acknowledgement and no end."""
    if frame[12:14] != b"\x08\0" or frame[23] != 6:
        return None
    tcp = 14 + (frame[14] & 15) * 4
    size = struct.unpack_from(">H", frame, 16)[0] + 14 - tcp - (frame[tcp + 12] >> 4) * 4
    flags = frame[tcp + 13]
    if flags & FIN or not (size or flags & SYN):
        return None
    return *struct.unpack_from(">HH", frame, tcp), size, flags & SYN
