# SPDX-License-Identifier: MIT
"""List the files of the project, with git or without it."""

import os
from pathlib import Path
import subprocess

TOP = Path(__file__).resolve().parents[1]
BUILT = {".git", "build", "_build", "deps", "priv", "__pycache__"}


def files(*suffixes):
    """Return the paths of the tracked files; without git, of all files outside the folders that builds make."""
    listed = subprocess.run(["git", "-C", TOP, "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [TOP / name for name in listed.stdout.split("\0") if name]
    else:
        paths = []
        for folder, folders, names in os.walk(TOP):
            folders[:] = sorted(set(folders) - BUILT)
            paths += [Path(folder) / name for name in sorted(names)]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]
