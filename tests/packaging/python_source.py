# SPDX-License-Identifier: MIT
"""The Python package from its source distribution, in a clean Debian: what is missing is said, and what was said helps."""
import re
import shutil
import sys

import boot
from cache import sh
from packages import OWN, Report, Root
from releases import TOP

# What python3-dev, the documented beginning, does not bring, and tools of the package index's side.
BEGINNING = ("python3-dev", "python3-venv", "python3-setuptools", "python3-wheel")
INSTALL = "/venv/bin/pip install --quiet --no-index --no-build-isolation --force-reinstall /built/tmesh-*.tar.gz"
# As a user's first program; no NumPy is there.
USE = """/venv/bin/python -I - <<'END'
import tmesh
t = tmesh.put(b"from sources", seal=True)
print(bytes(tmesh.open(t.ref())), tmesh.__version__)
%s
END"""
WITHOUT_MODELS = """
try:
    tmesh.load_model("x")
except tmesh.UnsupportedError as error:
    print(error)
"""
WITH_MODELS = """
slot = tmesh.Slot()
slot.publish(tmesh.bundle({"w": t}))
print(bytes(tmesh.Slot.open(slot.token).read()["w"]))
"""


def wanted(output):
    """The packages that the build asks for, as a user would copy them."""
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
    used = rf"b'from sources' {re.escape(OWN)}"
    report.script(root, "python: it works, and says what models need", USE % WITHOUT_MODELS,
                  wanted=f"{used}.*liburing-dev.*libxxhash-dev|{used}.*libxxhash-dev.*liburing-dev")
    root.install("liburing-dev", "libxxhash-dev")
    report.script(root, "python: with the libraries of models it has those too", f"{INSTALL}\n{USE % WITH_MODELS}",
                  wanted=f"{used}.*b'from sources'")
    root.remove()
