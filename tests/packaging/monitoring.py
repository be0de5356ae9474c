# SPDX-License-Identifier: MIT
"""The files of packaging/monitoring, by Debian's own Prometheus and node exporter, unpacked and not installed."""
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

import debian
from cache import keep

TOP = Path(__file__).resolve().parents[2]
MONITORING = TOP / "packaging/monitoring"
PATIENCE_S = 120


def programs():
    """Return the folder of the programs, of the packages of this machine's Debian: libraries are the machine's."""
    suite = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)[1]
    wanted = [f"{name}/{suite}" for name in ("prometheus", "prometheus-node-exporter")]
    return keep(f"prometheus-{suite}", lambda path: debian.fetch(wanted, path)) / "usr/bin"


def promtool(bin_, *words):
    done = subprocess.run([bin_ / "promtool", *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def alerts(tap, bin_, folder):
    """Test when the alerts fire, on series that were written for it; and each alert with its limit removed."""
    rules = folder / "tmesh.rules.yml"
    shutil.copy(MONITORING / rules.name, rules)
    shutil.copy(TOP / "tests/packaging/alerts.test.yml", folder)
    text = rules.read_text()
    tap.point(text.count("- alert: ") == 2, "tmesh.rules.yml has two alerts")
    status, said = promtool(bin_, "test", "rules", folder / "alerts.test.yml")
    tap.point(not status, "the alerts fire when they should, and then alone")
    tap.note(said if status else "")
    for name, old, new in (("TmeshMemoryHigh", "> 0.7 * sum", "> 0.8 * sum"), ("TmeshMetricsOld", "> 120", "> 1200"),
                           ("a machine without the file", "unless on", "and on")):
        assert old in text, old
        rules.write_text(text.replace(old, new))
        status, _ = promtool(bin_, "test", "rules", folder / "alerts.test.yml")
        tap.point(status, f"the test of the alerts sees a mistake in {name}")
    rules.write_text(text)


def expressions(dashboard):
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def running(*command, log):
    with open(log, "w") as to:
        process = subprocess.Popen([str(word) for word in command], stdout=to, stderr=to)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def ask(at, path, **query):
    """Return the data of an answer of Prometheus' API, or None if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{at}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def until(what):
    end = time.monotonic() + PATIENCE_S
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def scraped(tap, bin_, folder):
    """Have a region's size go from tmeshctl to a query of the dashboard, and the rules loaded."""
    tmeshctl = TOP / "build/tmeshctl"
    textfiles, runtime = folder / "textfiles", folder / "runtime"
    textfiles.mkdir()
    runtime.mkdir(mode=0o700)
    env = {**os.environ, "TMESH_BACKEND": "memfd", "TMESH_RUNTIME_DIR": str(runtime)}
    # The command line of the unit, in the test's own folder.
    unit = (TOP / "packaging/systemd/tmesh-metrics.service.in").read_text()
    script = re.search(r"^ExecStart=/bin/sh -ec '(.*)'$", unit, re.M)[1].replace("@bindir@", str(tmeshctl.parent))
    holder = subprocess.Popen([tmeshctl, "create", "--label", "scraped", "3MiB", "--", "sh", "-c", "echo; read _"], env=env,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    try:
        done = subprocess.run(["sh", "-ec", script], cwd=textfiles, env=env, capture_output=True, text=True)
        tap.point(not done.returncode and [path.name for path in textfiles.iterdir()] == ["tmesh.prom"],
                  "the unit's command writes tmesh.prom")
        tap.note(done.stderr)
        wrote = (textfiles / "tmesh.prom").read_text()
    finally:
        holder.communicate(b"\n")
    node, at = port(), port()
    (folder / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["tmesh.rules.yml"],
        "scrape_configs": [{"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{node}"]}]}]}))
    status, said = promtool(bin_, "check", "config", folder / "prometheus.yml")
    tap.point(not status, "promtool accepts a configuration with the rules")
    tap.note(said if status else "")
    dashboard = json.loads((MONITORING / "tmesh.dashboard.json").read_text())
    with running(bin_ / "prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile", "--collector.meminfo",
                 f"--collector.textfile.directory={textfiles}", f"--web.listen-address=127.0.0.1:{node}",
                 log=folder / "exporter.log"), \
         running(bin_ / "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{at}", log=folder / "prometheus.log"):
        up = until(lambda: (ask(at, "query", query="node_textfile_scrape_error == 0 and on (instance) tmesh_regions") or {}).get("result"))
        tap.point(up, "Prometheus scrapes the metrics, and the exporter finds no error in them")
        if not up:
            tap.note((folder / "exporter.log").read_text()[-2000:] + (folder / "prometheus.log").read_text()[-2000:])
        for line in ('tmesh_memory_bytes{backend="memfd",state="open"}', 'tmesh_regions{backend="memfd",state="open"}'):
            told = re.search(rf"^{re.escape(line)} (\d+)$", wrote, re.M)[1]
            got = (ask(at, "query", query=line) or {"result": []})["result"]
            same = float(told) and [float(each["value"][1]) for each in got] == [float(told)]
            tap.point(same, f"it has tmeshctl's value of {line}")
            tap.note("" if same else f"tmeshctl: {told}, Prometheus: {got}")
        for expression in expressions(dashboard):
            got = (ask(at, "query", query=expression.replace("$instance", ".*")) or {"result": []})["result"]
            tap.point(got, f"the dashboard's {expression} has values")
        names = [rule["name"] for group in (ask(at, "rules") or {"groups": []})["groups"] for rule in group["rules"]
                 if rule["health"] == "ok"]
        tap.point(sorted(names) == ["TmeshMemoryHigh", "TmeshMetricsOld"], "it evaluates both alerts")


def run(tap):
    bin_ = programs()
    with tempfile.TemporaryDirectory() as folder:
        alerts(tap, bin_, Path(folder))
        scraped(tap, bin_, Path(folder))
