# SPDX-License-Identifier: MIT
"""The Python package from its source distribution, in a clean Debian: the build names a missing package, and installing
that package helps."""
import re
import shutil
import sys

import boot
from cache import sh
from packages import Report, Root
from releases import OWN, TOP

# Packages beyond python3-dev, the documented beginning, and tools of the package index's side.
BEGINNING = ("python3-dev", "python3-venv", "python3-setuptools", "python3-wheel")
INSTALL = "/venv/bin/pip install --quiet --no-index --no-build-isolation --force-reinstall /built/libtmesh-*.tar.gz"
# As a user's first program; no NumPy is there.
USE = """
export TMESH_RUNTIME_DIR=$(mktemp -d)
/venv/bin/python -I - <<'END'
import tmesh
tmesh.keep({"w": tmesh.put(b"from sources", seal=True)}, "weights")
print(bytes(tmesh.open_kept("weights")["w"]), tmesh.__version__)
END
/venv/bin/tmeshctl kept
/venv/bin/python -m tmesh drop weights
"""


def wanted(output):
    """Return the packages that the build asks for, as a user would copy them."""
    found = re.search(r"sudo apt install ([a-z0-9 -]+)\n", output)
    return found[1].split() if found else []


def run(tap, release):
    report = Report(tap, release.name)
    built = boot.BUILD / "packaging" / release.suite / "source"
    shutil.rmtree(built, ignore_errors=True)
    root = Root(release, "python-source", built)
    sh(sys.executable, "-W", "ignore", "setup.py", "-q", "sdist", "--dist-dir", built, cwd=TOP / "bindings/python")
    root.install(*BEGINNING)
    root.run("python3", "-m", "venv", "--system-site-packages", "/venv")

    status, output = root.attempt(INSTALL)
    packages = wanted(output)
    report.point(status and packages, "python: without a compiler the source distribution says what is missing", output)
    root.install(*packages)
    if not report.script(root, "python: with what it asked for it is installed", INSTALL):
        return root.remove()
    report.script(root, "python: it keeps memory, and has the programs", USE,
                  wanted=rf"b'from sources' {re.escape(OWN)}\n.*\nweights ")
    root.remove()
