#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Hold C, Python and Elixir to the same promises, and print TAP.

usage: tests/conformance/run.py LANGUAGE=COMMAND... [-- PROMISE...]

promises/*.txt state each promise once: the steps of up to three processes, and their results. Every process is a
driver; all drivers take the same commands, whatever their language. A promise of one process runs in each language, a
promise of two in each pair. A promise of three runs so that each pair stands at each two of its places
(TMESH_TEST_LENGTH=full: each three). On the module, which is in an emulated machine, each language stands once at each
place of a promise, beside another one from promise to promise. A process killed there is of the first language: SIGKILL
acts alike on all, and Elixir takes a quarter of a minute to start. The processes are kept from promise to promise, and
must hold nothing in between.

    promise WORDS           what is promised; the lines below are its steps
    only a=c,python         the languages that a process of this promise may have
    needs revoke            skipped where the backend has it not, by its own word; lacks revoke: where it has
    a: put t uint8 [2] "ab" -> uint8 [2] sealed
                            process a does it; the answer, word for word. Bytes stand in quotes
    a: ref t -> $r{offset=0}
                            the answer becomes $r, or must be equal to it; a ref has these members
    b: open o $r{offset=9} ! protocol
                            an error, by its word in tests/vocabulary.md; of a changed ref
    b> recv c               process b does it while others go on, until
    b< -> bytes "x"         its answer
    until b: open o $r ! not found
                            again and again until it is so
    each 1 2 [3,4]          the deeper steps below, with each in the place of *
    [memfd] a: ...          on this backend, or [a=c], [a!=elixir] in these languages alone
    kill a, stop a, continue a, starve a (of descriptors), feed a
    end a                   it ends as programs of its language do, and has closed nothing; ended a: it has

In a step, @a is the process id of a; $r.token is a member of $r, and $r{token=?} has another last digit.
"""

import collections
import contextlib
import itertools
import json
import os
import pathlib
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# An emulated machine beside others takes minutes for a second's work.
ANSWER_S = 300
TOKEN = re.compile(r'''(?:"(?:\\.|[^"\\])*"|\{[^}]*\}|\[[^\]]*\]|[^\s"{\[])+''')
VARIABLE = re.compile(r"\$(\w+)(?:\.(\w+))?(\{[^}]*\})?")
# The first word of these verbs names a new object, which `release` releases.
OPENS = {"open", "unbundle", "kept"}
COLUMNS = {"c": 1, "python": 2, "elixir": 3}

Step = collections.namedtuple("Step", "where condition text body")
Promise = collections.namedtuple("Promise", "name only caps steps")


class Broken(Exception):
    """A promise was not kept."""


def words_of_errors():
    """Return each language's names of errors: {(language, its name): words}, from tests/vocabulary.md."""
    text = (HERE.parent.parent / "tests/vocabulary.md").read_text()
    table = text.split("<!-- errors -->")[1].split("<!-- /errors -->")[0]
    words = collections.defaultdict(set)
    for line in table.strip().splitlines()[2:]:
        cells = [cell.strip().replace("`", "") for cell in line.strip("| ").split("|")]
        for language, column in COLUMNS.items():
            for name in cells[column].split(", "):
                words[language, name].add(cells[0])
    return words


def read_steps(lines, depth):
    """Return the steps of at least this depth, taken from (where, depth, text) lines."""
    steps = []
    while lines and lines[0][1] >= depth:
        where, at, text = lines.pop(0)
        condition, text = re.fullmatch(r"(?:\[([^\]]*)\] )?(.*)", text).groups()
        body = read_steps(lines, at + 1) if text.startswith("each ") else []
        steps.append(Step(where, condition, text, body))
    return steps


def read_promises():
    promises = []
    for path in sorted((HERE / "promises").glob("*.txt")):
        lines = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                lines.append((f"{path.name}:{number}", len(line) - len(line.lstrip()), line.strip()))
        while lines:
            where, depth, text = lines.pop(0)
            if depth or not text.startswith("promise "):
                sys.exit(f"{where}: a promise is expected")
            only, caps = {}, []
            while lines and (of := re.fullmatch(r"(only|needs|lacks) (\S+)", lines[0][2])):
                lines.pop(0)
                if of[1] == "only":
                    process, languages = of[2].split("=")
                    only[process] = languages.split(",")
                else:
                    caps.append((of[2], of[1] == "needs"))
            promises.append(Promise(f"{path.stem}: {text.removeprefix('promise ')}", only, caps, read_steps(lines, 1)))
    return promises


class Driver:
    """One process."""

    def __init__(self, language, command):
        self.language = language
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.pid = self.process.pid
        self.buffer = b""
        self.limits = None

    def tell(self, fields):
        self.process.stdin.write("\t".join(fields).encode() + b"\n")

    def answer(self):
        """A list of fields."""
        end = time.monotonic() + ANSWER_S
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
            more = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not more:
                raise Broken(f"the {self.language} process " + ("has ended" if ready else "does not answer"))
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\n", 1)
        if b"\t" not in line:
            raise Broken(f"the {self.language} process answers: {line.decode()}")
        return line.decode().split("\t")

    def ask(self, *fields):
        self.tell(fields)
        kind, *value = self.answer()
        if kind != "ok":
            raise Broken(f"{fields[0]}: {value}")
        return value[0]

    def starve(self):
        """Lower the process's limit of descriptors: from now on it gets none."""
        self.limits = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        taken = {int(name) for name in os.listdir(f"/proc/{self.pid}/fd")}
        free = next(number for number in itertools.count() if number not in taken)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (free, self.limits[1]))

    def feed(self):
        if self.limits:
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, self.limits)
            self.limits = None

    def reset(self):
        """Let the process release everything; garbage may take its time."""
        self.feed()
        end = time.monotonic() + ANSWER_S
        while (live := self.ask("reset")) != "0":
            if time.monotonic() > end:
                raise Broken(f"the {self.language} process still has {live} regions")
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def leave(self):
        """Tell the process to end, and give it the time to do so if it waits for no other."""
        self.tell(["exit"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)

    def ended(self):
        """Check that the process has ended as commanded."""
        if status := self.process.wait(ANSWER_S):
            raise Broken(f"the {self.language} process has ended with {status}")

    def end(self):
        """Close its input, and return its exit status once it has ended."""
        self.process.stdin.close()
        return self.process.wait(ANSWER_S)


class Pool:
    """Running processes of each language, as many as a promise needs."""

    def __init__(self, commands):
        self.commands = commands
        self.free = collections.defaultdict(list)

    def take(self, language):
        # Start one more than needed: a language takes its time to start.
        while len(self.free[language]) < 2:
            self.free[language].append(Driver(language, self.commands[language]))
        return self.free[language].pop(0)

    def give(self, driver):
        self.free[driver.language].insert(0, driver)

    def has(self, cap):
        """Return whether the backend has this capability, on this machine."""
        driver = self.take(next(iter(self.commands)))
        level = driver.ask("cap", cap)
        self.give(driver)
        if not level:
            sys.exit(f"there is no capability {cap}")
        return level != "no"

    def end(self):
        for driver in itertools.chain(*self.free.values()):
            yield driver.language, driver.end()


def changed(text, change):
    """A ref with other members."""
    ref = json.loads(text)
    for part in TOKEN.findall(change.strip("{}")):
        key, value = part.split("=", 1)
        if value == "?":
            ref[key] = ref[key][:-1] + ("1" if ref[key][-1] == "0" else "0")
        elif value == "-":
            del ref[key]
        else:
            ref[key] = json.loads(value)
    return json.dumps(ref, separators=(",", ":"))


class Run:
    """One promise among these processes."""

    def __init__(self, promise, drivers, backend, words):
        self.promise, self.drivers, self.backend, self.words = promise, drivers, backend, words
        self.variables = {}

    def steps(self, steps, star=None):
        for step in steps:
            try:
                if self.holds(step.condition):
                    self.step(step, step.text if star is None else step.text.replace("*", star))
            except Broken as error:
                raise Broken(f"{step.where}: {step.text}" + (f" (*: {star})" if star else "") + f"\n{error}") from None

    def holds(self, condition):
        for part in (condition or "").split():
            if part in ("kernel", "memfd"):
                good = part == self.backend
            else:
                process, unlike, languages = re.fullmatch(r"(\w+)(!?)=(.*)", part).groups()
                good = (self.drivers[process].language in languages.split(",")) != bool(unlike)
            if not good:
                return False
        return True

    def step(self, step, text):
        if step.body:
            for star in TOKEN.findall(text)[1:]:
                self.steps(step.body, star)
        elif act := re.fullmatch(r"(until )?(\w)([:<>])(?: (.*))?", text):
            until, process, kind, rest = act.groups()
            self.act(self.drivers[process], kind, rest or "", bool(until))
        else:
            verb, process = text.split()
            driver = self.drivers[process]
            {"kill": driver.kill, "starve": driver.starve, "feed": driver.feed,
             "end": driver.leave, "ended": driver.ended,
             "stop": lambda: os.kill(driver.pid, signal.SIGSTOP),
             "continue": lambda: os.kill(driver.pid, signal.SIGCONT)}[verb]()

    def act(self, driver, kind, text, until):
        command, sign, wanted = re.fullmatch(r"(.*?)(?:(?:^| )(->|!) (.*))?", text).groups()
        fields = [self.value(token) for token in TOKEN.findall(command)]
        end = time.monotonic() + ANSWER_S
        while True:
            if kind != "<":
                driver.tell(fields)
            if kind == ">":
                return
            answer = driver.answer()
            try:
                return self.compare(driver, answer, sign, wanted)
            except Broken:
                if not until or time.monotonic() > end:
                    raise
            # An object opened against the expectation would keep the memory alive.
            if fields[0] in OPENS and answer[0] != "error":
                driver.tell(["release", fields[1]])
                driver.answer()
            time.sleep(0.05)

    def value(self, token):
        """Return the value of a word of a step."""
        if token.startswith('"'):
            return json.loads(token).encode("latin-1").hex()
        token = re.sub(r"@(\w)\b", lambda found: str(self.drivers[found[1]].pid), token)
        return VARIABLE.sub(self.variable, token) if "$" in token else token.replace('"', "")

    def variable(self, found):
        name, member, change = found.groups()
        text = self.variables[name]
        if change:
            text = changed(text, change)
        return json.loads(text)[member] if member else text

    def compare(self, driver, answer, sign, wanted):
        kind, value, *message = answer
        told = f"the answer ({driver.language}): {' '.join(answer)}"
        if sign == "!":
            if kind != "error" or wanted not in self.words[driver.language, value]:
                raise Broken(told)
            if len(message[0]) < 10:
                raise Broken(f"{told}\nno message")
        elif kind != "ok":
            raise Broken(told)
        elif sign and (bound := re.fullmatch(r"\$(\w+)(\{[^}]*\})?", wanted)):
            name, members = bound.groups()
            if members and json.loads(value) != json.loads(changed(value, members)):
                raise Broken(told)
            if self.variables.setdefault(name, value) != value:
                raise Broken(f"{told}\n${name}: {self.variables[name]}")
        elif sign:
            if " ".join(self.value(token) for token in TOKEN.findall(wanted)).strip() != value.strip():
                raise Broken(told)


def processes(steps):
    """Return the number of a promise's processes: those named by its steps, from a on."""
    text = " ".join(step.text + steps_text(step.body) for step in steps)
    return max(ord(name) for name in re.findall(r"\b([abc])[:<>]", text)) - ord("a") + 1


def steps_text(steps):
    return "".join(f" {step.text}{steps_text(step.body)}" for step in steps)


def mixtures(promise, languages, turn, backend):
    """Yield the languages of a promise's processes, for each of its runs."""
    count = processes(promise.steps)
    may = [[language for language in languages if language in promise.only.get(name, languages)]
           for name in "abc"[:count]]
    if os.environ.get("TMESH_TEST_LENGTH") == "full":
        yield from itertools.product(*may)
    elif backend == "kernel":
        killed = re.findall(r"\bkill ([abc])\b", steps_text(promise.steps))
        may = [these[:1] if name in killed else these for name, these in zip("abc", may)]
        yield from dict.fromkeys(tuple(these[(i + place * turn) % len(these)] for place, these in enumerate(may))
                                 for i in range(len(languages)))
    elif count == 3 and not promise.only:
        for i, j in itertools.product(range(len(languages)), repeat=2):
            yield languages[i], languages[j], languages[(i + j) % len(languages)]
    else:
        yield from itertools.product(*may)


def run(promise, mixture, pool, backend, words):
    """Return the failure of a promise, or nothing."""
    drivers = {name: pool.take(language) for name, language in zip("abc", mixture)}
    try:
        run = Run(promise, drivers, backend, words)
        run.steps(promise.steps)
        for driver in drivers.values():
            if driver.process.poll() is None:
                driver.reset()
                pool.give(driver)
    except (Broken, OSError, subprocess.TimeoutExpired) as error:
        for driver in drivers.values():
            driver.kill()
        return str(error) or "?"


def main():
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names = arguments[end + 1:]
    commands = {language: shlex.split(command) for language, command in
                (argument.split("=", 1) for argument in arguments[:end])}
    backend = os.environ.get("TMESH_BACKEND", "memfd")
    # The languages must agree on places by themselves: with the temporary directory alone.
    for name in [name for name in os.environ if name.startswith("XDG_") or name == "HOME" or
                 name.startswith("TMESH_") and name not in ("TMESH_KEEPER", "TMESH_TEST_LENGTH")]:
        del os.environ[name]
    # It is the only backend without the module.
    if backend != "memfd" or os.path.exists("/dev/tmesh"):
        os.environ["TMESH_BACKEND"] = backend
    os.environ["ERL_CRASH_DUMP_BYTES"] = "0"
    words, count, failed = words_of_errors(), 0, False

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        # An ending process waits for the next one, however slow the machine.
        os.environ["TMESH_EXIT_WAIT"] = "600"
        # Released memory must be gone, also for the next promise.
        os.environ["TMESH_REGION_POOL"] = "0"
        pool = Pool(commands)

        def point(name, trouble):
            nonlocal count, failed
            count, failed = count + 1, failed or bool(trouble)
            print(f"{'not ok' if trouble else 'ok'} {count} - {name}")
            print("".join(f"# {line}\n" for line in (trouble or "").splitlines()), end="", flush=True)

        for turn, promise in enumerate(read_promises()):
            if names and not any(name in promise.name for name in names):
                continue
            if wrong := [f"the backend {'lacks' if wanted else 'has'} {cap}" for cap, wanted in promise.caps
                         if pool.has(cap) != wanted]:
                point(f"{promise.name} # SKIP {wrong[0]}", None)
                continue
            for mixture in mixtures(promise, list(commands), turn, backend):
                trouble = run(promise, mixture, pool, backend, words)
                point(f"{promise.name} ({', '.join(mixture)})", trouble)
        for language, status in pool.end():
            point(f"a process ends in peace ({language})", status and f"its status: {status}")
    print(f"1..{count}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
