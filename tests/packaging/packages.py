# SPDX-License-Identifier: MIT
"""The life of the packages in a clean Debian: built, installed, used, upgraded, removed, purged."""
import lzma
import re
import subprocess
import sys
from pathlib import Path

import boot
import first_hour
import kernels
import modules
import roots
from cache import locked, sh
from judge import judge
from releases import OWN, TOP
from traces import differences, snapshot

sys.path.insert(0, str(TOP / "tests"))
from readme import EXAMPLE  # noqa: E402: found by the line above

NEWER = "99"    # the version of the packages that OWN's are upgraded to

# A removed package leaves these until it is purged: a file of its own, and by Debian's scripts which units are enabled.
CONFIGURATION = re.compile("new: (" + "|".join((
    r"etc/cdi(/tmesh\.json)?",
    r"etc/systemd/(system|user)/[a-z-]+\.target\.wants(/tmesh-[a-z]+\.(service|timer))?",
    r"var/lib/systemd/deb-systemd-(user-)?helper-enabled(/([a-z-]+\.target\.wants(/tmesh-[a-z]+\.(service|timer))?|tmesh-[a-z]+\.(service|timer)\.dsh-also))?",
)) + ")")

# The examples of docs/howto/languages.md, against the installed packages.
USE = """
cd /examples
rm -f stop ref
cc -Wall -Werror share.c $(pkg-config --cflags --libs libtmesh) -o share
mkfifo stop
./share <stop >ref &
exec 3>stop
while ! [ -s ref ]; do sleep 0.1; done
python3 read.py "$(cat ref)"
tmeshctl ls
echo >&3
wait $!
"""

# As a distribution builds: the source package is unpacked and gives the binary packages.
BUILD = """
cd "/built/$1"
export DEB_BUILD_OPTIONS=$2
(cd tmesh-*/ && dpkg-buildpackage -S -us -uc)
rm -r tmesh-*/
dpkg-source -x tmesh_*.dsc
(cd tmesh-*/ && dpkg-buildpackage -b -us -uc)
"""


class Root:
    """A root of a release, with the built packages at /built."""

    def __init__(self, release, name, built):
        self.path = boot.BUILD / "packaging" / release.suite / name
        self.binds = [*release.binds(), (built, "/built")]
        built.mkdir(parents=True, exist_ok=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        release.fresh(self.path)
        self.run("apt-get", "-qq", "update")

    def attempt(self, script, *arguments):
        """Return the exit status and all output of a shell script."""
        done = roots.attempt(self.path, "sh", "-ec", f"exec 2>&1\n{script}", "sh", *arguments, binds=self.binds)
        return done.returncode, done.stdout

    def run(self, *command):
        return roots.run(self.path, *command, binds=self.binds)

    def install(self, *packages):
        self.run("apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages)

    def remove(self):
        sh("rm", "-rf", self.path)


class Report:
    """Points of one release."""

    def __init__(self, tap, name):
        self.tap = tap
        self.name = name

    def point(self, ok, text, why=""):
        self.tap.point(ok, f"{self.name}: {text}")
        if not ok:
            self.tap.note(why[-4000:])

    def script(self, root, text, script, *arguments, wanted=""):
        """Report a point for a script that must succeed and print matching text."""
        status, output = root.attempt(script, *arguments)
        good = status == 0 and re.search(wanted, output, re.S)
        self.point(good, text, f"status {status}\n{output}")
        return bool(good)


def sources(folder, version):
    """Make the tree that packages of a version are built from."""
    sh("make", "-s", "-C", TOP, "deb-source", f"DEB_OUT={folder}")
    [tree] = folder.iterdir()
    (tree / "VERSION").write_text(f"{version}\n")
    changelog = tree / "debian/changelog"
    changelog.write_text(changelog.read_text().replace(f"tmesh ({OWN})", f"tmesh ({version})", 1))


def folder(release):
    """Return the folder of the built packages."""
    return boot.BUILD / "packaging" / release.suite / "built"


def build(tap, release):
    """Build the packages, and newer ones to upgrade to. Return whether there are any."""
    report = Report(tap, release.name)
    built = folder(release)
    sh("rm", "-rf", built)
    root = Root(release, "build", built)
    sources(built / "own", OWN)
    sources(built / "newer", NEWER)
    # A build machine has only these packages and the build dependencies of the sources.
    root.install("build-essential", "lintian")
    root.run("sh", "-c", "apt-get -qq build-dep -y --no-install-recommends /built/own/tmesh-*")
    # The newer ones are of the same sources, whose tests have run by then.
    good = all([report.script(root, f"the packages build from their source package, as version {version}", BUILD, name, options)
                for name, version, options in (("own", OWN, ""), ("newer", NEWER, "nocheck"))])
    report.script(root, "lintian has nothing to say of the packages and of their source package",
                  "lintian --allow-root --fail-on error,warning /built/own/*.changes", wanted="^$")
    root.remove()
    return good


def files(built, name):
    """Return the packages as the root sees them, without the debugging symbols."""
    return [f"/built/{name}/{path.name}" for path in sorted((built / name).glob("*.deb")) if "-dbgsym" not in path.name]


def prepare(root, release, built):
    """Install the packages' dependencies and their users' tools; return the releases of the kernels."""
    found = [kernels.prepare(name).release for name in release.kernels]
    wanted = [f"linux-headers-{name}" for name in found]
    plan = root.run("apt-get", "install", "-s", "--no-install-recommends", *files(built, "own"), *wanted,
                    "gcc", "iproute2", "libc6-dev", "openssl", "pkg-config", "python3-numpy")
    ours = {Path(name).name.partition("_")[0] for name in files(built, "own")}
    root.install(*sorted(set(re.findall(r"^Inst (\S+)", plan, re.M)) - ours))
    examples = root.path / "examples"
    examples.mkdir()
    for name, text in EXAMPLE.findall((TOP / "docs/howto/languages.md").read_text()):
        (examples / name).write_text(text)
    return found


def installed(report, root, version, releases):
    """Check the files and programs with the packages installed."""
    for name in releases:
        report.script(root, f"DKMS has built, signed and installed the module for {name}",
                      'dkms status -m tmesh -v "$1" -k "$2"; modinfo "/lib/modules/$2/updates/dkms/tmesh.ko"*',
                      version, name, wanted=rf": installed.*license: *GPL.*vermagic: *{re.escape(name)} "
                      ".*signer: *DKMS module signing key")
    report.script(root, "DKMS refuses a kernel that is too old, and says why",
                  '! dkms build -m tmesh -v "$1" -k 6.0.0-amd64 --kernelsourcedir /usr/src/linux-headers-*',
                  version, wanted="BUILD_EXCLUSIVE")
    report.script(root, "the group is there", "getent group tmesh", wanted="^tmesh:x:[0-9]+:$")
    report.script(root, "the udev rule and the CDI specification are there",
                  "cat /usr/lib/udev/rules.d/60-tmesh.rules /etc/cdi/tmesh.json", wanted='GROUP="tmesh".*/dev/tmesh')
    report.script(root, "pkg-config knows the library", "pkg-config --modversion libtmesh", wanted=f"^{version}$")
    report.script(root, "tmeshctl and the Python module use the packaged library",
                  "ldd /usr/bin/tmeshctl /usr/lib/python3/dist-packages/tmesh/_tmesh*.so",
                  wanted="libtmesh.so.0 => /.*libtmesh.so.0 => /")
    report.script(root, "Python imports tmesh", "python3 -c 'import tmesh; print(tmesh.__version__)'",
                  wanted=f"^{version}\n$")
    report.script(root, "tmeshctl doctor runs", "tmeshctl doctor", wanted="memfd")
    report.script(root, "the examples of docs/howto/languages.md in C and Python work", USE, wanted=r"\[ 6\. 15\.\].*float32")
    report.script(root, "the tests' programs run, and say that there is no module here",
                  "/usr/libexec/tmesh-tests/abi || true", wanted="/dev/tmesh")


def guests(report, tap, root, names):
    """Load the modules that DKMS built into the very kernels."""
    for name in names:
        release = kernels.prepare(name).release
        [packed] = (root.path / f"lib/modules/{release}").rglob("tmesh.ko*")
        data = packed.read_bytes()
        module = root.path.with_name(release) / "tmesh.ko"
        module.parent.mkdir(exist_ok=True)
        module.write_bytes(lzma.decompress(data) if packed.suffix == ".xz" else data)
        programs = [root.path / "usr/libexec/tmesh-tests" / program for program in ("abi", "create")]
        logs = boot.logs(name, "packaging")
        with locked(logs):
            peer, _ = modules.of_tests(kernels.prepare(name), "peer", logs)
            judge(tap, f"{report.name}: {name}", boot.run(name, "packaging", script="kselftest", module=module,
                                                          programs=programs, files=[peer]))


def run(tap, release):
    report = Report(tap, release.name)
    built = folder(release)
    own, newer = files(built, "own"), files(built, "newer")

    root = Root(release, "root", built)
    kernel_releases = prepare(root, release, built)
    before = snapshot(root.path)
    report.script(root, "the packages install where their dependencies are", 'dpkg -i "$@"', *own)
    installed(report, root, OWN, kernel_releases)
    first_hour.put(root)
    report.script(root, "alone and without a network they keep memory, load a model, fetch, have the programs, and name what is missing",
                  first_hour.offline("/usr/bin"), wanted=first_hour.SAID)
    guests(report, tap, root, release.kernels)

    once = snapshot(root.path)
    report.script(root, "they install over themselves", 'dpkg -i "$@"', *own)
    # DKMS has built the modules again, at another time.
    twice = [line for line in differences(once, snapshot(root.path)) if not re.match("changed: .*/dkms/", line)]
    report.point(not twice, "which changes nothing", "\n".join(twice))
    report.script(root, "they are upgraded", 'dpkg -i "$@"', *newer)
    installed(report, root, NEWER, kernel_releases)
    report.script(root, "nothing of the old version is left",
                  'ls -d /usr/src/tmesh-* /var/lib/dkms/tmesh/[0-9]*', wanted=rf"^/usr/src/tmesh-{NEWER}\n[^\n]*/{NEWER}\n$")

    # By the line of docs/howto/install.md.
    report.script(root, "they are downgraded", 'apt-get -qq install -y --only-upgrade --allow-downgrades "$@"', *own)
    installed(report, root, OWN, kernel_releases)
    again = [line for line in differences(once, snapshot(root.path)) if not re.match("changed: .*/dkms/", line)]
    report.point(not again, "which leaves what was there before the upgrade", "\n".join(again))

    names = [Path(name).name.partition("_")[0] for name in newer]
    report.script(root, "they are removed", 'dpkg -r "$@"', *names)
    left = [line for line in differences(before, snapshot(root.path)) if "/dpkg/info/" not in line]
    others = [line for line in left if not CONFIGURATION.fullmatch(line)]
    report.point("new: etc/cdi/tmesh.json" in left and not others, "which leaves configuration only", "\n".join(others or left))
    report.script(root, "they are purged", 'dpkg -P "$@"', *names)
    left = differences(before, snapshot(root.path))
    report.point(not left, "which leaves no trace but the group", "\n".join(left))
    report.script(root, "the group stays, as Debian wants it", "getent group tmesh")
    root.remove()
