# SPDX-License-Identifier: MIT
"""The Elixir package in a clean Debian, which builds it with its own Elixir and Erlang/OTP."""
import re

import boot
from cache import sh
from packages import Report, Root
from releases import TOP

OTP = {"bookworm": "25", "trixie": "27", "forky": r"29|[3-9]\d"}
DOCUMENTED = re.compile(r'`\{:tmesh, path: "[^"]*"\}`; it needs (.*?)\.\n', re.S)


def needed():
    """Return the packages that docs/howto/install.md names."""
    return re.findall(r"`([a-z0-9-]+)`", DOCUMENTED.search((TOP / "docs/howto/install.md").read_text())[1])


def run(tap, release):
    report = Report(tap, release.name)
    built = boot.BUILD / "packaging" / release.suite / "elixir-sources"
    sh("rm", "-rf", built)
    built.mkdir(parents=True)
    sh("make", "-s", "-C", TOP, "beam-package", f"BEAM_PACKAGE={built}/tmesh")
    for part in ("lib", "model", "engine", "include", "VERSION", "bindings/beam"):
        (built / "checkout" / part).parent.mkdir(parents=True, exist_ok=True)
        sh("cp", "-a", TOP / part, built / "checkout" / part)
    sh("cp", TOP / "bindings/beam/test/package.exs", built)
    root = Root(release, "elixir", built)
    root.install("elixir", "procps", *needed())
    report.script(root, "elixir: it is the release's OTP", "erl -noshell -eval 'io:put_chars(erlang:system_info(otp_release)), halt().'",
                  wanted=f"^({OTP[release.suite]})$")
    status, output = root.attempt("unshare --net elixir /built/package.exs /built/tmesh /built/checkout/bindings/beam /tmp/stranger")
    points = re.findall(r"^(not ok|ok) \d+ - (.*)$", output, re.M)
    for good, name in points:
        report.point(good == "ok", f"elixir: {name}", output)
    report.point(status == 0 and points, "elixir: all of it ran", output)
    root.remove()
