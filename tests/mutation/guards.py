# SPDX-License-Identifier: MIT
"""Finds the guards of a C file, and writes the file with one of them taken out or inverted.

A guard is the condition of an `if`, or of a `return CONDITION ? -EWHATEVER : ...`. If its operands are joined by `||`,
each is a guard of its own. A guard is taken out by making it false after it was evaluated. A call in it still happens,
and only the refusal is lost. An inverted one is true where it was false, too.
"""
import hashlib
import re
from dataclasses import dataclass

IF = re.compile(r"\bif\s*(?=\()")
RETURNED = re.compile(r"\breturn\s+(?=[^;]*\?\s*-E[A-Z]+\s*:)")
FUNCTION = re.compile(r"^[A-Za-z_][^\n;={}]*?\b([A-Za-z_]\w*)\([^;{}]*?\)\s*\n\{", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
UNSEEN = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*""",
                    re.DOTALL | re.MULTILINE)
OPENING, CLOSING = "([{", ")]}"


class Untried(Exception):
    """The reason that a guard was not tried."""


@dataclass(frozen=True)
class Guard:
    """One operand: its place in its file's text, and its name in reports."""
    file: str
    function: str
    text: str
    number: int     # of those with the same text in the same function, from 1
    start: int
    end: int
    lines: range    # the whole condition's
    digest: str     # of its function's words: a verdict is valid for this text

    @property
    def name(self):
        return f"{self.file}: {self.function}: {self.text}" + (f" ({self.number})" if self.number > 1 else "")


@dataclass(frozen=True)
class Mutant:
    """A guard that is out, or inverted."""
    guard: Guard
    inverted: bool = False

    @property
    def name(self):
        return self.guard.name + (" [inverted]" if self.inverted else "")


def blank(source):
    """The text with blanks for comments and directives and a letter for those of literals; every other character
    stays where it is."""
    return UNSEEN.sub(lambda found: re.sub(r"[^\n]", "x" if found[0][0] in "\"'" else " ", found[0]), source)


def closing(text, start):
    """Return where the bracket that opens at start is closed."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] in OPENING:
            depth += 1
        elif text[place] in CLOSING:
            depth -= 1
            if not depth:
                return place
    raise ValueError("a bracket that is never closed")


def unbracketed(text, start, end):
    """The characters between start and end that stand in no bracket."""
    depth = 0
    for place in range(start, end):
        if text[place] in OPENING:
            depth += 1
        elif text[place] in CLOSING:
            depth -= 1
        elif not depth:
            yield text[place]


def operands(text, start, end):
    """Return the operands of `||` between start and end that stand in no bracket, as (start, end). The parts of a `? :`
    are no operands of the whole."""
    depth, first = 0, start
    place = start
    if "?" in unbracketed(text, start, end):
        yield start, end
        return
    while place < end:
        if text[place] in OPENING:
            depth += 1
        elif text[place] in CLOSING:
            depth -= 1
        elif not depth and text.startswith("||", place):
            yield first, place
            place += 2
            first = place
            continue
        place += 1
    yield first, end


def conditions(text):
    """Yield each condition that guards something, as (start, end)."""
    for found in IF.finditer(text):
        yield found.end() + 1, closing(text, found.end())
    for found in RETURNED.finditer(text):
        depth = 0
        for place in range(found.end(), len(text)):
            if text[place] in OPENING:
                depth += 1
            elif text[place] in CLOSING:
                depth -= 1
            elif text[place] == "?" and not depth:
                yield found.end(), place
                break


def digest(source):
    """Return a digest that changes with the words of a function, and not with its comments and blanks."""
    return hashlib.sha256(" ".join(COMMENT.sub(" ", source).split()).encode()).hexdigest()[:10]


def find(file, source):
    """The guards of a file's text, in its order."""
    text = blank(source)
    functions = [(found.start(1), found[1], digest(source[found.start():closing(text, found.end() - 1) + 1]))
                 for found in FUNCTION.finditer(text)]
    seen = {}
    found = []
    for start, end in sorted(conditions(text)):
        function, words_of_it = next((told for place, *told in reversed(functions) if place < start), ("", ""))
        if not function:
            continue    # a macro or an inline table: there is no function to be named
        lines = range(text.count("\n", 0, start) + 1, text.count("\n", 0, end) + 2)
        for first, last in operands(text, start, end):
            # Blanks around an operand are none of it.
            first += len(text[first:last]) - len(text[first:last].lstrip())
            last -= len(text[first:last]) - len(text[first:last].rstrip())
            words = " ".join(source[first:last].split())
            number = seen[function, words] = seen.get((function, words), 0) + 1
            found.append(Guard(file, function, words, number, first, last, lines, words_of_it))
    return found


def changed(source, mutant):
    """The file's text with the guard taken out or inverted."""
    guard = mutant.guard
    words = source[guard.start:guard.end]
    return f"{source[:guard.start]}{f'!({words})' if mutant.inverted else f'(({words}), 0)'}{source[guard.end:]}"


def switched(source, numbered):
    """The file's text with each (number, guard) behind a switch: TMESH_GUARD of `mutants.h`."""
    for number, guard in sorted(numbered, key=lambda pair: -pair[1].start):
        source = f"{source[:guard.start]}TMESH_GUARD({number}, {source[guard.start:guard.end]}){source[guard.end:]}"
    return source
