# SPDX-License-Identifier: MIT
"""Debian packages of any suite, fetched beside the host's own apt, which is left alone.

The mirror is the one that the host uses. Lists, state and archives are private.
"""
import functools
import os
import re
import subprocess
import sys

from cache import CACHE, locked, say, sh

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = ("bookworm", "bookworm-backports", "bookworm-security", "trixie", "trixie-backports", "trixie-security")


@functools.cache
def mirrors():
    """(main, security) archive URIs from the host's configured sources."""
    listing = sh("apt-get", "indextargets", "--format", "$(ORIGIN)|$(RELEASE)|$(COMPONENT)|$(REPO_URI)",
                 "Created-By: Packages")
    found = {}
    for line in listing.splitlines():
        origin, release, component, uri = line.split("|")
        if origin in ("Debian", "") and component == "main":
            found.setdefault("security" if "security" in release else "main", uri)
    if len(found) != 2:
        sys.exit("vm: apt's sources name no Debian main archive with its security archive; "
                 f"found {found or 'neither'}")
    return found["main"], found["security"]


@functools.cache
def environment():
    """The environment in which apt-get and apt-cache see our suites; fetches their lists."""
    home = CACHE / "apt"
    for part in ("lists/partial", "archives/partial"):
        (home / part).mkdir(parents=True, exist_ok=True)
    main, security = mirrors()
    (home / "sources.list").write_text("".join(
        f"deb [signed-by={KEYRING}] {security if suite.endswith('-security') else main} {suite} main\n"
        for suite in SUITES))
    (home / "status").touch()
    (home / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{home}/sources.list";\n'
        'Dir::Etc::sourceparts "-";\n'
        'Dir::Etc::preferencesparts "-";\n'
        f'Dir::State::lists "{home}/lists";\n'
        f'Dir::State::status "{home}/status";\n'
        f'Dir::Cache "{home}";\n'
        'APT::Architecture "amd64";\n'
        # The cache may lie below a home that apt's own user cannot enter.
        'APT::Sandbox::User "root";\n')
    env = dict(os.environ, APT_CONFIG=str(home / "apt.conf"))
    say("fetching package lists")
    with locked(home):
        # Else what could not be fetched is told, and what there was before is taken for today's.
        sh("apt-get", "update", "-o", "APT::Update::Error-Mode=any", env=env)
    return env


def apt(*command, **options):
    """A command of apt's in that environment, while no other run takes the lists from under it."""
    env = environment()
    with locked(CACHE / "apt"):
        return sh(*command, env=env, **options)


def index(listing):
    """(package, version, suite) of each line of `apt-cache madison`."""
    found = []
    for line in listing.splitlines():
        package, version, source = (field.strip() for field in line.split("|"))
        found.append((package, version, re.search(r" (\S+)/main ", source)[1]))
    return found


def newest(found, suite, line=""):
    """The release of the newest kernel with headers among (package, version, suite), or None. That of a stable
    suite is the one that its metapackage leads to, for its archive has other lines too; that of a suite with
    backports is the newest that its users can have. line: of this line of kernels alone, as "6.1"."""
    stable = suite.removesuffix("-backports")
    suites = {stable, f"{stable}-security", suite}
    rows = [(package, version) for package, version, where in found if where in suites]
    led_to = {version for package, version in rows if package == "linux-headers-amd64"}
    newest_first = sorted(rows, key=lambda row: [int(n) for n in re.findall(r"\d+", row[1])], reverse=True)
    for package, version in newest_first:
        # Neither of those for clouds nor of real-time ones.
        release = re.fullmatch(r"linux-headers-(\d+\.\d+\.\d+[^-]*(-\d+)?-amd64)", package)
        if release and release[1].startswith(f"{line}." if line else "") and (
                line or suite != stable or version in led_to):
            return release[1]
    return None


def newest_kernel(suite, line=""):
    """newest() of what Debian has today."""
    return newest(index(apt("apt-cache", "madison", *apt("apt-cache", "pkgnames", "linux-headers-").split())), suite, line)


def closure(packages, pattern):
    """These packages and those they depend on, directly or not, whose names match pattern."""
    listing = apt("apt-cache", "depends", "--recurse", "--important", *packages)
    return sorted({name for name in listing.splitlines() if re.fullmatch(pattern, name)})


def version(package):
    """The version that fetch() would take."""
    listing = apt("apt-cache", "policy", package)
    return re.search(r"Candidate: (\S+)", listing).group(1)


def fetch(packages, into):
    """Download packages and unpack them, uninstalled, into a directory."""
    say(f"fetching {' '.join(packages)}")
    downloads = into / "debs"
    downloads.mkdir()
    apt("apt-get", "download", *packages, cwd=downloads)
    for deb in sorted(downloads.iterdir()):
        subprocess.run(["dpkg", "-x", deb, into], check=True)
        deb.unlink()
    downloads.rmdir()
