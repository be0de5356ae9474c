# SPDX-License-Identifier: MIT
"""The manifests of packaging/kubernetes, strictly by Kubernetes' own schemas. No cluster runs here."""
import re
import subprocess
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
KUBERNETES = TOP / "packaging/kubernetes"
VALIDATE = TOP / "build/venv-kubernetes/bin/kubernetes-validate"
VERSIONS = ("1.30", "1.37")
# Mistakes that the validator must see: a text of a manifest, and its replacement.
MISTAKES = (
    ("models.yaml", "  updateStrategy:", "  updateStrategies:"),
    ("models.yaml", "sizeLimit: 16Mi", "size: 16Mi"),
    ("models.yaml", "runAsUser: 1000", 'runAsUser: "1000"'),
    ("server.yaml", "    matchLabels:", "    matchLabel:"),
    ("server.yaml", "readinessProbe:", "readyProbe:"),
    ("server.yaml", "containerPort: 8080", "containerPort: http"),
)


def validate(version, *files):
    done = subprocess.run([VALIDATE, "--strict", "-k", version, *files], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def mounts(text):
    """Return the host paths of a manifest, and the paths at which its containers have them."""
    names = dict(re.findall(r"name: (\w+)\n +hostPath: \{path: ([\w/]+)", text))
    return {(path, at) for name, path in names.items() for at in re.findall(rf"name: {name}, mountPath: ([\w/]+)", text)}


def run(tap):
    files = sorted(KUBERNETES.glob("*.yaml"))
    if not VALIDATE.exists():
        tap.point(True, "the manifests are valid, strictly", "kubernetes-validate is not installed: the package index did not answer")
        return
    for version in VERSIONS:
        status, said = validate(version, *files)
        tap.point(not status and said.count(" passed ") == len(files), f"the manifests are valid, strictly, for Kubernetes {version}")
        tap.note(said if status else "")
    with tempfile.TemporaryDirectory() as folder:
        for name, old, new in MISTAKES:
            text = (KUBERNETES / name).read_text()
            changed = Path(folder, name)
            changed.write_text(text.replace(old, new))
            status, _ = validate(VERSIONS[-1], changed)
            tap.point(old in text and status, f"{name} with `{new.strip()}` is refused")
    models, server = ((KUBERNETES / name).read_text() for name in ("models.yaml", "server.yaml"))
    tap.point(("/run/tmesh", "/run/tmesh") in mounts(models) & mounts(server), "the DaemonSet and the server share /run/tmesh of the node")
