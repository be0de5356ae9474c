# SPDX-License-Identifier: MIT
"""Compare a root's files before and after installing and removing packages."""
import hashlib
import os
import re
import stat

# Left out: file systems of the host, and places for temporary files.
APART = {"proc", "sys", "dev", "run", "tmp", "built", "examples", "var/cache/apt", "var/lib/apt", "var/log", "var/tmp"}

# Files that other packages write when one is installed or removed, and the pattern of their own.
OTHERS = re.compile("|".join((
    r"etc/(group|gshadow|passwd|shadow)-?",              # the group stays: check.py asks for it
    r"etc/\.pwd\.lock",                                  # systemd-sysusers
    r"(usr/)?lib/modules/[^/]+/modules\.[a-z.]+",        # depmod writes its indices anew
    r"var/cache/(debconf/.*|ldconfig/aux-cache|man/.*)",
    r"etc/ld\.so\.cache",
    r"var/lib/dpkg/(status(-old)?|available(-old)?|lock(-frontend)?|triggers/.*)",
    r"var/lib/dkms/(mok\.(key|pub|crt))",                # DKMS makes its key when first it signs
    r"root/\.cache(/.*)?",
)))


def describe(path):
    info = os.lstat(path)
    content = ""
    if stat.S_ISLNK(info.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(info.st_mode):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    return info.st_mode, info.st_uid, info.st_gid, content


def snapshot(root):
    """Return all files of a root: path to mode, owner and content."""
    found = {}
    for folder, folders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        folders[:] = [name for name in folders if os.path.normpath(f"{inside}/{name}") not in APART]
        for name in (*folders, *names):
            path = os.path.normpath(f"{inside}/{name}")
            found[path] = describe(f"{folder}/{name}")
    return found


def differences(before, after):
    """Return lines that name the new, gone and changed files."""
    found = [f"{'new' if path not in before else 'gone' if path not in after else 'changed'}: {path}"
             for path in sorted(before.keys() | after.keys())
             if before.get(path) != after.get(path) and not OTHERS.fullmatch(path)]
    return found
