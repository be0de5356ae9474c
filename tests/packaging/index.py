# SPDX-License-Identifier: MIT
"""The package index in a root, as this machine's pip knows it."""
import re
import subprocess
import sys
from pathlib import Path

from cache import CACHE


def configure(root):
    """Make pip in a root use this machine's index, and keep what it has once fetched."""
    cache = CACHE / "packaging" / "pip"
    cache.mkdir(parents=True, exist_ok=True)
    root.binds.append((cache, "/root/.cache/pip"))
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    certificates = re.search(r"cert='(.*)'", listed)
    (root.path / "etc/pip.conf").write_text("[global]\n" + "".join(
        f"{key} = {value}\n" for key, value in re.findall(r"^global\.([a-z-]+)='(.*)'$", listed, re.M) if key != "cert") +
        ("cert = /etc/pip-certificates.pem\n" if certificates else ""))
    if certificates:
        (root.path / "etc/pip-certificates.pem").write_bytes(Path(certificates[1]).read_bytes())
