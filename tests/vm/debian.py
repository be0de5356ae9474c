# SPDX-License-Identifier: MIT
"""Debian packages of any suite, fetched without changing the host's own apt.

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
    """Return the (main, security) archive URIs of the host's sources."""
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
    """Fetch the lists of our suites. Return the environment in which apt-get and apt-cache use them."""
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
        # apt's own user may not be able to enter the home directory of the cache.
        'APT::Sandbox::User "root";\n')
    env = dict(os.environ, APT_CONFIG=str(home / "apt.conf"))
    say("fetching package lists")
    with locked(home):
        # By default apt only warns about a list that it cannot fetch, and then uses the old one as if it were new.
        sh("apt-get", "update", "-o", "APT::Update::Error-Mode=any", env=env)
    return env


def apt(*command, **options):
    """Run a command of apt in that environment, under a lock, so that no other run replaces the lists."""
    env = environment()
    with locked(CACHE / "apt"):
        return sh(*command, env=env, **options)


def index(listing):
    """Return (package, version, suite) of each line of `apt-cache madison`."""
    found = []
    for line in listing.splitlines():
        package, version, source = (field.strip() for field in line.split("|"))
        found.append((package, version, re.search(r" (\S+)/main ", source)[1]))
    return found


def newest(found, suite, line=""):
    """Return the release of the newest kernel with headers among (package, version, suite), or None. For a stable suite
    it is the one that the metapackage depends on, because the archive has other lines too. For a suite with
    backports it is the newest that its users can install. line: restricts the choice to a line of kernels, such as
    "6.1"."""
    stable = suite.removesuffix("-backports")
    suites = {stable, f"{stable}-security", suite}
    rows = [(package, version) for package, version, where in found if where in suites]
    led_to = {version for package, version in rows if package == "linux-headers-amd64"}
    newest_first = sorted(rows, key=lambda row: [int(n) for n in re.findall(r"\d+", row[1])], reverse=True)
    for package, version in newest_first:
        # Skip kernels for clouds and real-time kernels.
        release = re.fullmatch(r"linux-headers-(\d+\.\d+\.\d+[^-]*(-\d+)?-amd64)", package)
        if release and release[1].startswith(f"{line}." if line else "") and (
                line or suite != stable or version in led_to):
            return release[1]
    return None


def newest_kernel(suite, line=""):
    """Return newest() for the kernels that Debian has today."""
    return newest(index(apt("apt-cache", "madison", *apt("apt-cache", "pkgnames", "linux-headers-").split())), suite, line)


def closure(packages, pattern):
    """Return these packages and all of their dependencies whose names match pattern."""
    listing = apt("apt-cache", "depends", "--recurse", "--important", *packages)
    return sorted({name for name in listing.splitlines() if re.fullmatch(pattern, name)})


def version(package):
    """Return the version that fetch() would take."""
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
