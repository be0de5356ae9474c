# SPDX-License-Identifier: MIT
"""The programs and files for loading models from network file systems, in a guest without a root of its own."""
import hashlib
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

from boot import BUILD
from modules import TOP

# Modules of the guest's kernel. 9p is served by the host, NFS by the guest itself.
MODULES = ("9p", "9pnet_virtio", "nfsd", "nfsv4")
PROGRAMS = [BUILD / name for name in ("tmeshctl", "tmeshctl-load", "tmesh-keeper", "tests/keep/kept_hash",
                                      "tests/model/faults.so")]
TENSORS, TENSOR_BYTES = 8, 3 << 20


def guest(where):
    """Make the files in a folder. Return the arguments for boot.run()."""
    path, expected = model(where)
    share = where / "share"
    shutil.rmtree(share, ignore_errors=True)
    share.mkdir()
    return {"programs": [*PROGRAMS, TOP / "tests/model/netfs.sh"], "libraries": libraries(PROGRAMS),
            "files": [path, expected], "shares": [(share, "model"), (share, "other")], "modules": MODULES}


def model(where):
    """Write a model whose pages all differ, and the expected output of kept_hash."""
    header = {f"t{i}": {"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES]}
              for i in range(TENSORS)}
    text = json.dumps(header).encode()
    data = random.Random(1).randbytes(TENSORS * TENSOR_BYTES)
    path, expected = where / "model.safetensors", where / "expected"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    expected.write_text(f"{TENSORS} {hashlib.sha256(data).hexdigest()}  -\n")
    return path, expected


def libraries(programs):
    """Return the shared libraries of programs, and their dynamic linker."""
    told = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    return [Path(path) for path in sorted(set(re.findall(r"(/\S+) \(0x", told)))]
