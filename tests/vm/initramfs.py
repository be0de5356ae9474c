# SPDX-License-Identifier: MIT
"""A minimal writer of initramfs archives: cpio, "newc" format."""
import lzma
import stat


class Initramfs:
    def __init__(self):
        self._parts = []
        self._made = set()

    def _entry(self, name, mode, data):
        fields = (len(self._made), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
        self._made.add(name)
        for part in (header, data):
            self._parts.append(part + bytes(-len(part) % 4))

    def add(self, name, data, mode=0o644):
        """Add a file with its parent directories."""
        parents = name.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            directory = "/".join(parents[:depth])
            if directory not in self._made:
                self._entry(directory, stat.S_IFDIR | 0o755, b"")
        self._entry(name, stat.S_IFREG | mode, data)

    def add_file(self, name, path, mode=0o644):
        """Add a file of the host. Unpack Debian's compressed modules for busybox's insmod."""
        data = path.read_bytes()
        self.add(name, lzma.decompress(data) if path.suffix == ".xz" else data, mode)

    def write(self, path):
        self._entry("TRAILER!!!", 0, b"")
        path.write_bytes(b"".join(self._parts))
