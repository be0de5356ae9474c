#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check how the project's sentences are written. Prints TAP, one point per room.

words.py             compare each room with tests/words.json, which holds the most that a room may have
words.py --lower     lower the numbers in tests/words.json to what the rooms have now; a number never rises
words.py FILE...     print each sentence of these files that breaks a rule

A sentence is read from Markdown, man pages, comments, docstrings, and strings of at least four words, such as
errors and help texts. CONTRIBUTING.md explains the rules.
"""

import ast
import collections
import io
import json
from pathlib import Path
import re
import subprocess
import sys
import textwrap
import tokenize

import tree

TOP = Path(__file__).resolve().parents[1]
ALLOWED = TOP / "tests/words.json"
LONGEST_SENTENCE = 28
LONGEST_CELL = 12
FEWEST_WORDS = 4
SHOWN = 10

# The name of each rule, what to do, and what breaks it.
SUBJECT = re.compile(r"^(?:Who|Whoever|What|Whatever|Whose|Of|Behind|Beyond)\b(?!.*\?$)")
NOUN = re.compile(
    r"(?<![,)\w] )\b(?:for|to|of|by|and|or|than|that|as|if|tells?|asks?|says?|where|;|:)\s+(?:who|what)\s+"
    r"(?!(?:kind|it|this|that|to|a|the|you|tmesh)\b)\w+|\bwhoever\b|\bthe one who\b", re.IGNORECASE)
SAYING = re.compile(r"\b(?:is|are|was|were|be|been) (?:told|said)\b", re.IGNORECASE)
PERSON = re.compile(r"\b(?:no|some|any|every)body\b", re.IGNORECASE)
RULES = {
    "subject": ("start with a named subject", lambda text: bool(SUBJECT.search(text))),
    "noun": ("name the person or thing instead of 'who' or 'what'", lambda text: bool(NOUN.search(text))),
    "saying": ("say which part reports it, and how", lambda text: bool(SAYING.search(text))),
    "person": ("name the process, user or function instead of 'nobody' or 'somebody'", lambda text: bool(PERSON.search(text))),
    "long": (f"use at most {LONGEST_SENTENCE} words", lambda text: len(text.split()) > LONGEST_SENTENCE),
}
CELL = f"use at most {LONGEST_CELL} words in a cell of a table"


def runs_of(lines, between=" "):
    """Join the lines that follow each other: (line number, text) pairs become (number of the first, whole text)."""
    first, last, words = None, None, []
    for number, text in lines:
        if words and (number != last + 1 or not text):
            yield first, between.join(words)
            words = []
        if text:
            first = first if words else number
            words.append(text)
        last = number
    if words:
        yield first, between.join(words)


def marked(text, mark):
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if line.startswith(mark) and not line.startswith("#!"):
            yield number, line.lstrip(mark).strip()


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def markdown(text):
    """Yield the paragraphs, then the cells of tables as their own kind."""
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    lines = text.split("\n")
    plain = ((number, "" if line.lstrip().startswith(("|", "#", ";", "<!--", ".")) or line.startswith("    ") else line.strip())
             for number, line in enumerate(lines, 1))
    # In a man page an option and its text, which is further to the right, are two items.
    tabs = {number: len(line) - len(line.lstrip("\t")) for number, line in enumerate(lines, 1)}
    items = ((number, "\n" * (tabs[number] != tabs.get(number - 1, 0)) + re.sub(r"^[-*] |^\d+\. ", "\n", line)) if line else (number, line)
             for number, line in plain)
    for number, whole in runs_of(items):
        for part in whole.split("\n"):
            yield number, part, False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            for cell in line.strip().strip("|").split("|"):
                yield number, cell, True


def c_text(text):
    string = r'"(?:[^"\\\n]|\\.)*"'
    pattern = re.compile(rf"/\*(?P<block>.*?)\*/|//(?P<line>[^\n]*)|(?P<strings>{string}(?:\s*(?:PRI\w+\s*)?{string})*)", re.DOTALL)
    lines = []
    for match in pattern.finditer(text):
        number = line_of(text, match.start())
        if match["block"] is not None:
            for paragraph in re.split(r"\n\s*\*?\s*\n", match["block"]):
                yield number, re.sub(r"\n\s*\* ?", "\n", paragraph).strip(" *"), False
        elif match["line"] is not None:
            lines.append((number, match["line"].strip()))
        else:
            yield number, " ".join(re.findall(string, match["strings"])).replace('" "', "").strip('"').replace("\\n", "\n"), False
    for number, whole in runs_of(lines, "\n"):
        yield number, whole, False


def is_program(text):
    """Tell whether a string of several lines is Python code, such as the program of a child process."""
    try:
        return "\n" in text.strip() and bool(ast.parse(textwrap.dedent(text)).body)
    except (SyntaxError, ValueError):
        return False


def without_examples(text):
    """Blank the indented lines, which are examples."""
    lines = textwrap.dedent(text.split("\n", 1)[1]).split("\n") if "\n" in text else []
    return "\n".join([text.split("\n", 1)[0], *("" if line.startswith("    ") else line for line in lines)])


def python_text(text):
    try:
        tree = ast.parse(text)
        comments = [(token.start[0], token.string.lstrip("# ")) for token in tokenize.generate_tokens(io.StringIO(text).readline)
                    if token.type == tokenize.COMMENT and not token.string.startswith("#!")]
    except (SyntaxError, tokenize.TokenError):
        return
    for number, whole in runs_of(comments, "\n"):
        yield number, whole, False
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            value = "".join(part.value if isinstance(part, ast.Constant) else "N" for part in node.values)
            parts.update(node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            value = node.value
        else:
            continue
        if is_program(value):
            continue
        for paragraph in re.split(r"\n\s*\n", without_examples(value)):
            yield node.lineno, paragraph, False


def elixir_text(text):
    for number, whole in runs_of(marked(text, "#"), "\n"):
        yield number, whole, False
    for match in re.finditer(r'"""(.*?)"""', text, re.DOTALL):
        for number, paragraph, cell in markdown(textwrap.dedent(match[1])):
            yield line_of(text, match.start()) + number - 1, paragraph, cell
    rest = re.sub(r'""".*?"""', lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    for match in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', rest):
        yield line_of(rest, match.start()), match[1], False


def shell_text(text):
    for number, whole in runs_of(marked(text, "#"), "\n"):
        yield number, whole, False


def reader(path):
    if path.suffix in (".md", ".scd"):
        return markdown
    if path.suffix in (".c", ".h"):
        return c_text
    if path.suffix in (".py", ".pyi"):
        return python_text
    if path.suffix in (".ex", ".exs"):
        return elixir_text
    if path.suffix in (".sh", ".mk") or path.name in ("Makefile", "Kbuild"):
        return shell_text
    return None


# A sentence ends before a capital, a mark, a number, and before the next item of a list or description of a parameter.
# Examples: "timeout: seconds", "huge=True takes", "@size is", "-EPERM if".
NEXT = re.compile(r"""(?<=[.!?:;])\s+(?=[A-Z`*@"(]|-\ [A-Z`@]|-E[A-Z]|[a-z_]+(?:,\ [a-z_]+)*:\ |[a-z_]+=\w)|(?<=\.)\s+(?=\d)|(?<=\ --)\s+""", re.VERBOSE)
# A word of prose, with the marks around it.
WORD = re.compile(r"""[("'`*_\[]*[A-Za-z][A-Za-z'/-]*[.,;:!?)"'`*_\]]*""")
FEWEST_OF_PROSE = 0.6

# A line that begins an item of a list, or a row of two columns, "EPERM   the memory is sealed".
ITEM = re.compile(r"\n(?=\s*(?:[-@]\s?\w|\S+(?: \S+){0,4} {2,}\S))")


def sentences(paragraph):
    for item in ITEM.split(re.sub(r"SPDX\S* \S+", "", paragraph)):
        for sentence in NEXT.split(re.sub(r"\s+", " ", item).strip()):
            words = sentence.split()
            # Programs, graphs and lists of names in strings are no sentences.
            if len(words) >= FEWEST_WORDS and sum(bool(WORD.fullmatch(word)) for word in words) >= FEWEST_OF_PROSE * len(words):
                yield sentence.strip()


def broken(path):
    """Yield (line, rule, sentence) for each rule that a sentence of the file breaks, and (0, None, number of sentences)."""
    count = 0
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, paragraph, cell in reader(path)(text):
        if cell:
            if len(paragraph.split()) > LONGEST_CELL:
                yield number, "cell", paragraph.strip()
            continue
        for sentence in sentences(paragraph):
            count += 1
            for rule, (_, breaks) in RULES.items():
                if breaks(sentence):
                    yield number, rule, sentence
    yield 0, None, count


def room(path):
    parts = path.relative_to(TOP).parts
    if len(parts) == 1:
        return "top"
    return "/".join(parts[:2]) if parts[0] == "bindings" else parts[0]


def read_files():
    return [path for path in tree.files() if reader(path)]


def changed():
    """Return the files that differ from the last commit but one: their sentences are shown first."""
    said = subprocess.run(["git", "-C", TOP, "diff", "--name-only", "HEAD~1"], capture_output=True, text=True, check=False)
    return {TOP / name for name in said.stdout.split()}


def advice(rule):
    return CELL if rule == "cell" else RULES[rule][0]


def show(path, number, rule, sentence):
    return f"{path.relative_to(TOP)}:{number}: {advice(rule)}: {sentence}"


def check(lower):
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    total = collections.Counter()
    for path in read_files():
        for number, rule, sentence in broken(path):
            if rule is None:
                total[room(path)] += sentence
            else:
                found[room(path)][rule].append((path, number, rule, sentence))
    allowed = json.loads(ALLOWED.read_text()) if ALLOWED.exists() else {}
    rules = [*RULES, "cell"]
    now = {name: {rule: len(found[name][rule]) for rule in rules} for name in sorted(total)}
    if lower:
        least = {name: {rule: min(now[name][rule], allowed.get(name, {}).get(rule, now[name][rule])) for rule in rules}
                 for name in now}
        ALLOWED.write_text("{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(counts)}" for name, counts in least.items()) + "\n}\n")
        return 0
    bad = 0
    recent = changed()
    print(f"1..{len(now)}")
    for point, (name, counts) in enumerate(now.items(), 1):
        over = [rule for rule in rules if counts[rule] > allowed.get(name, {}).get(rule, 0)]
        bad += bool(over)
        shares = ", ".join(f"{rule} {counts[rule]}" for rule in rules)
        print(f"{'not ok' if over else 'ok'} {point} - {name}: {total[name]} sentences: {shares}")
        for rule in over:
            print(f"# {rule}: {counts[rule]} sentences, at most {allowed.get(name, {}).get(rule, 0)}: {advice(rule)}")
            lines = sorted(found[name][rule], key=lambda hit: (hit[0] not in recent, hit[0], hit[1]))
            for hit in lines[:SHOWN]:
                print(f"# {show(*hit)[:300]}")
    return bool(bad)


def main(words):
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if words and words != ["--lower"]:
        hits = [(Path(word).resolve(), *hit) for word in words for hit in broken(Path(word).resolve()) if hit[1]]
        print("\n".join(show(*hit) for hit in hits) or "no sentence breaks a rule")
        return bool(hits)
    return check(bool(words))


sys.exit(main(sys.argv[1:]))
