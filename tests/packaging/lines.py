# SPDX-License-Identifier: MIT
"""The install lines of the pages, each as it stands there, in a clean Debian. A page's lines are not copied here."""
import re
import shlex
from dataclasses import dataclass

import boot
import index
from cache import sh
from packages import Report, Root
from releases import OWN, TOP

# A block or a command in the text with one of these installs something.
INSTALLS = re.compile(r"\b(apt|apt-get|pip3?) install\b|\bapt-get build-dep\b|\bdpkg -i\b|\bmake (deb|install)\b|\bpython3? -m venv\b|\bgroupadd\b")
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<fenced>.*?)^```$|(?:^\n)(?P<indented>(?:^    [^\n]*\n)+)|^#+ (?P<heading>[^\n]*)$|`(?P<span>[^`]+)`", re.M | re.S)
# All blocks of these pages are run.
WHOLE = {"docs/howto/install.md"}
# Commands in the text, with what they install.
SPAN = re.compile(r"(sudo )?(apt|apt-get|pip) install [^.]")

# Lines that need a kernel with its module, firmware, or an engine.
APART = (
    (re.compile(r"\bmodprobe\b"), "guests load the module"),
    (re.compile(r"^(sudo )?(mokutil|reboot)\b"), "no machine with Secure Boot has run this"),
    (re.compile(r"\budevadm\b"), "no udev runs in a root; guests have it"),
    (re.compile(r"^vllm "), "vllm-check runs vLLM"),
)

# Pieces that no root runs, by page or by page and heading, and the reason.
ELSEWHERE = {
    ("docs/howto/deploy", None): "deploy-check follows these pages",
    ("docs/howto/install.md", "Kept files"): "it needs systemd; deploy-check runs the service",
    ("docs/howto/install.md", "Containers"): "it needs a container engine; the test of /etc/cdi/tmesh.json reads the file by its rules",
    ("docs/howto/integrations.md", "Ray"): "it brings PyTorch for CUDA, which is gigabytes; python-ray-check installs Ray itself",
    ("docs/howto/integrations.md", "Ray: between machines"): "the sections NIXL and Mooncake have these lines",
    ("docs/howto/integrations.md", "NIXL"): "it brings PyTorch for CUDA, which is gigabytes; python-net-check installs NIXL itself",
    ("docs/howto/integrations.md", "LMCache"): "it brings PyTorch for CUDA, which is gigabytes; python-lmcache-check installs LMCache itself",
    ("bindings/python/README.md", "Ray"): "it brings PyTorch for CUDA, which is gigabytes; python-ray-check installs Ray itself",
}

# Debian's installer puts these on every machine.
MACHINE = ("adduser", "ca-certificates", "sudo", "systemd", "udev")


@dataclass(frozen=True)
class Chain:
    """Pieces that follow each other in one root, and a command that shows that the installed thing works."""
    name: str
    pieces: tuple
    proof: str
    wanted: str


CHAINS = (
    Chain("sources", (("README.md", "Install"), ("README.md", "The module"), ("docs/howto/install.md", "Without packages")),
          "tmeshctl --version; venv/bin/python -c 'import tmesh; print(*tmesh.put([1, 2]).numpy())'",
          rf"{re.escape(OWN)}\n1 2\n"),
    Chain("packages", (("docs/howto/install.md", "Build"), ("docs/howto/install.md", "Install"), ("docs/howto/install.md", "Secure Boot")),
          "tmeshctl --version; dkms status -m tmesh; ls /usr/lib/*/libtmesh-engine.so.0", rf"{re.escape(OWN)}\n.*installed.*libtmesh-engine"),
    Chain("python", (("bindings/python/README.md", "tmesh for Python"), ("bindings/python/README.md", "gRPC"),
                     ("docs/howto/integrations.md", "Mooncake"), ("docs/howto/vllm.md", "Use tmesh in vLLM")),
          "python -c 'import grpc, tmesh; print(*tmesh.put([1, 2]).numpy())'; tmesh-engine --version", rf"1 2\n.*{re.escape(OWN)}\n"),
    Chain("tutorial in Python", (("docs/tutorial/python.md", "1. Install"),),
          "python -c 'import tmesh; print(*tmesh.put([1, 2]).numpy())'", "1 2\n"),
    Chain("tutorial in Elixir", (("docs/tutorial/elixir.md", "1. Install"),),
          "elixir -e '{:ok, _} = Application.ensure_all_started(:tmesh); IO.inspect(Tmesh.ZeroCopy.from_binary!(\"abcd\", [4], :uint8).shape)'",
          r"\[4\]\n"),
    Chain("tutorial in C", (("docs/tutorial/c.md", "1. Install"),),
          "cc examples/c/hold.c $(pkg-config --cflags --libs libtmesh) -o hold && ldd hold", r"libtmesh\.so\.0 => /usr/local/lib"),
    Chain("elixir", (("bindings/beam/README.md", "tmesh for Elixir"), ("bindings/beam/README.md", "In a release")),
          "ls /usr/lib/*/libjansson.so", "libjansson"),
)


@dataclass(frozen=True)
class Piece:
    """A block or a command of a page that installs something."""
    page: str
    heading: str
    lines: tuple


def without_comment(line):
    return re.sub(r"\s+#.*", "", line)


def pages():
    return sorted({*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *TOP.glob("bindings/*/README.md"), *TOP.glob("examples/**/*.md")})


def pieces(page, text):
    """Yield the pieces of a page."""
    heading = ""
    for found in BLOCK.finditer(text):
        if found["heading"]:
            heading = found["heading"]
        elif found["span"]:
            command = " ".join(found["span"].split())
            if SPAN.match(command):
                yield Piece(page, heading, (command,))
        else:
            lines = (found["fenced"] or found["indented"]).splitlines()
            if found["kind"] == "console":
                lines = [line[2:] for line in lines if re.match(r"[$#] ", line)]
            lines = tuple(line.strip() for line in lines)
            if page in WHOLE or any(INSTALLS.search(without_comment(line)) for line in lines):
                yield Piece(page, heading, lines)


def documented():
    return [piece for page in pages() for piece in pieces(str(page.relative_to(TOP)), page.read_text())]


def elsewhere(piece):
    """Return the reason why no root runs a piece."""
    for (page, heading), reason in ELSEWHERE.items():
        if heading == piece.heading and page == piece.page or heading is None and piece.page.startswith(f"{page}/"):
            return reason
    return None


def apart(line):
    """Return the reason why a line needs more than a root."""
    return next((reason for pattern, reason in APART if pattern.search(line)), None)


def known(tap):
    """Check that each piece of the pages is run, in a root or elsewhere. Return the pieces by page and heading."""
    found = {}
    for piece in documented():
        found.setdefault((piece.page, piece.heading), []).append(piece)
    run = [name for chain in CHAINS for name in chain.pieces]
    lines = [line for name in run for piece in found.get(name, ()) for line in piece.lines]
    missing = [piece for pieces_ in found.values() for piece in pieces_
               if (piece.page, piece.heading) not in run and not elsewhere(piece) and
               not all(any(line in other for other in lines) for line in piece.lines)]
    tap.point(not missing, "lines: a root runs each install line of the pages, or another test does")
    for piece in missing:
        tap.note(f"{piece.page}, {piece.heading}: {' / '.join(piece.lines)}")
    gone = [name for name in run if name not in found]
    gone += [name for name in ELSEWHERE if not any(name == (piece.page, piece.heading) or name[1] is None and piece.page.startswith(name[0])
                                                   for pieces_ in found.values() for piece in pieces_)]
    tap.point(not gone, "lines: the pages still have all that the roots run" + "".join(f", {name}" for name in gone))
    return found


def checkout(root):
    """Copy the checkout, as a user has it."""
    sh("rsync", "-a", "--exclude=/build", "--exclude=/.git", "--exclude=__pycache__", "--exclude=_build", f"{TOP}/", root.path / "tmesh")


def configure(root):
    """Make the root a user's machine: sudo keeps a proxy, apt asks no question, and pip knows this machine's index. Stand-ins: uname names a
    kernel of the release, and insmod looks whether its file is there."""
    root.install(*MACHINE)
    (root.path / "etc/apt/apt.conf.d/yes").write_text('APT::Get::Assume-Yes "true";\n')
    (root.path / "etc/sudoers.d/kept").write_text('Defaults env_keep += "http_proxy https_proxy no_proxy DEBIAN_FRONTEND DEB_BUILD_OPTIONS"\n')
    index.configure(root)
    plan = root.run("apt-get", "install", "-s", "linux-headers-amd64")
    kernel = re.search(r"^Inst linux-headers-(\S+-amd64)", plan, re.M)[1]
    for name, text in (("bin/uname", f'[ "$*" != -r ] || exec echo {kernel}\nexec /usr/bin/uname "$@"'), ("sbin/insmod", 'exec test -f "$1"')):
        program = root.path / "usr/local" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)


def script(chain, found):
    """Return a shell's script of a chain: each line as it stands, then a word that it has succeeded. The number of lines that run."""
    text = ["export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin USER=root DEB_BUILD_OPTIONS=nocheck", "cd /tmesh"]
    count = 0
    for name in chain.pieces:
        for piece in found[name]:
            for line in piece.lines:
                if not line or line.startswith("#") or apart(line):
                    continue
                text += [f"echo @ begin {shlex.quote(line)}", line, f"[ $? = 0 ] || exit 1\necho @ end {count}"]
                count += 1
    return "\n".join([*text, "echo @ proof", chain.proof, ""]), count


def follow(report, release, chain, found):
    """Run a chain in a root of its own."""
    root = Root(release, "lines", boot.BUILD / "packaging" / release.suite / "lines-built")
    checkout(root)
    configure(root)
    text, count = script(chain, found)
    # Kept away from the checkout, which is as a user has it.
    (root.path / "root/lines").write_text(text)
    status, output = root.attempt("exec bash /root/lines")
    number = 0
    for name in chain.pieces:
        for piece in found[name]:
            for line in piece.lines:
                where = f"{piece.page}, {piece.heading}: {without_comment(line)}"
                if not line or line.startswith("#"):
                    continue
                if apart(line):
                    report.tap.point(True, f"{report.name}: {where}", skip=apart(line))
                    continue
                report.point(f"@ end {number}\n" in output, where, output)
                if f"@ end {number}\n" not in output:
                    return root.remove()
                number += 1
    proof = output.partition("@ proof\n")[2]
    report.point(status == 0 and number == count and re.search(chain.wanted, proof, re.S), f"lines: {chain.name}: it works", proof)
    return root.remove()


def run(tap, release):
    report = Report(tap, release.name)
    found = known(tap)
    for chain in CHAINS:
        follow(report, release, chain, found)
