# SPDX-License-Identifier: MIT
"""Clean roots of the Debian releases that the packages are for, cached beside those of tests/vm."""
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/vm"))

import debian  # noqa: E402: found by the line above
import roots  # noqa: E402
from cache import CACHE, keep, sh  # noqa: E402

OWN = (TOP / "VERSION").read_text().strip()
ARCHIVES = "/var/cache/apt/archives"


@dataclass(frozen=True)
class Release:
    """A Debian release, and which of tests/vm's kernels DKMS builds the module for: its own, and the newest."""
    name: str
    suite: str
    kernels: tuple
    archives: tuple = ("", "-security", "-backports")

    def fresh(self, path):
        """A fresh copy of the minimal system."""
        sh("rm", "-rf", path)
        sh("cp", "-a", "--reflink=auto", keep(f"packaging/{self.suite}", self.make), path)
        # A root that is lost with the machine needs no fsync().
        (path / "etc/dpkg/dpkg.cfg.d/unsafe").write_text("force-unsafe-io\n")

    def make(self, path):
        roots.bootstrap(path, self.suite, ())
        main, security = debian.mirrors()
        (path / "etc/apt/sources.list").write_text("".join(
            f"deb {security if archive == '-security' else main} {self.suite}{archive} main\n" for archive in self.archives))
        # Downloads go to a cache that apt's own user cannot enter: see binds().
        (path / "etc/apt/apt.conf.d/downloads").write_text('APT::Sandbox::User "root";\n')
        # Testing's lists expire within a week, and a mirror may keep older ones.
        (path / "etc/apt/apt.conf.d/lists").write_text('Acquire::Check-Valid-Until "false";\n')

    def binds(self, user="packaging"):
        """Return the downloads, shared by all roots of a release and kept between runs. apt locks them, so each user at the same time has its own."""
        archives = CACHE / user / f"{self.suite}-archives"
        (archives / "partial").mkdir(parents=True, exist_ok=True)
        return [(archives, ARCHIVES)]


RELEASES = (
    Release("Debian 12", "bookworm", ("6.1", "6.12")),
    Release("Debian 13", "trixie", ("trixie", "newest")),
)
# It has a newer Erlang. There are no packages for it.
TESTING = Release("Debian testing", "forky", (), ("",))
