#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What takes guards out must find them all, change nothing else, and go on where it was left: tests of guards.py,
mutate.py and verdicts.py, printing TAP."""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import guards  # noqa: E402: found by the line above
import mutate  # noqa: E402
import verdicts  # noqa: E402
from guest import answers_of, cases_of  # noqa: E402

SOURCE = '''\
#if defined(ONE) || defined(TWO)
#define CHECK(x) \\
	if (x) \\
		return -EINVAL
#endif

/* if (a || b) is said here */
static int first(const char *text, size_t size)
{
	if (!text || size > LIMIT || strcmp(text, "a || b") == 0)
		return -EINVAL;
	if ((rc = call(text, (size || 1))))
		return rc;
	if (size > LIMIT)	// if (never)
		return -E2BIG;
	return size && text[0] == '|' ? -EBADMSG : 0;
}

int second(int a,
	   int b)
{
	if (a &&
	    (a > b || b))
		a = 0;
	if (a ? b : !a || !b)
		b = 0;
	return a ? b : 0;
}
'''
NAMES = [
    "f.c: first: !text",
    "f.c: first: size > LIMIT",
    'f.c: first: strcmp(text, "a || b") == 0',
    "f.c: first: (rc = call(text, (size || 1)))",
    "f.c: first: size > LIMIT (2)",
    "f.c: first: size && text[0] == '|'",
    "f.c: second: a && (a > b || b)",
    "f.c: second: a ? b : !a || !b",
]
failed = []


def point(number, name, ok):
    print(f"{'ok' if ok else 'not ok'} {number} - {name}")
    if not ok:
        failed.append(name)


found = guards.find("f.c", SOURCE)
out, inverted = (guards.changed(SOURCE, guards.Mutant(found[1], how)) for how in (False, True))
switched = unswitched = guards.switched(SOURCE, enumerate(found, 1))
for number, guard in enumerate(found, 1):
    operand = SOURCE[guard.start:guard.end]
    unswitched = unswitched.replace(f"TMESH_GUARD({number}, {operand})", operand)
names = [guard.name for path in sorted([*mutate.TOP.glob("lib/**/*.c"), *mutate.TOP.glob("kmod/**/*.c")])
         for guard in guards.find(str(path.relative_to(mutate.TOP)), path.read_text())]
several = next(guard for guard in found if guard.function == "second")



def known(*lines, source=SOURCE, reasons=()):
    """Of a file of verdicts with these lines, about guards of this source: what is to be tried, then inverted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdicts"
        path.write_text("\n".join(lines))
        there = guards.find("f.c", source)
        told = verdicts.Verdicts(path, there)
        return [told.wanted(there, lambda guard: guard.text in reasons), told.inverted(there)]


def line(guard, *seen):
    return "\t".join([*verdicts.key(guard), *seen])


def learnt():
    """What stands in a file of verdicts after an answer of each kind, and what is known when it is read again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdicts"
        told = verdicts.Verdicts(path, found)
        for guard, answer in zip(found, ("map 1", "", guards.Untried("no test makes it true"))):
            told.learn(guards.Mutant(guard), answer)
        told.learn(guards.Mutant(found[1], True), "map 2")
        again = verdicts.Verdicts(path, found)
        return path.read_text().splitlines()[1:], list(again.of.values())


all_seen = [line(guard, "map 1", "-") for guard in found]
second_out = [*all_seen[:1], line(found[1], "unseen", "-"), *all_seen[2:]]
in_second = SOURCE.replace("a = 0;", "a = 1;")

POINTS = [
    ("each guard is found once, by its name", [guard.name for guard in found] == NAMES),
    ("a guard is made false, and nothing else changes",
     out == SOURCE.replace("size > LIMIT ||", "((size > LIMIT), 0) ||", 1)),
    ("a guard is inverted, and nothing else changes",
     inverted == SOURCE.replace("size > LIMIT ||", "!(size > LIMIT) ||", 1)),
    ("all guards are put behind switches, and nothing else changes",
     "if (TMESH_GUARD(1, !text) || TMESH_GUARD(2, size > LIMIT) ||" in switched and unswitched == SOURCE),
    ("a condition of several lines is all of them", several.lines == range(22, 24)),
    ("what a guest said of each mutant is told",
     answers_of("@ mutant 3\n@ unseen 3\n@ mutant 4i\nnoise\n@ seen 4i the kernel during map\n@ mutant 9\n")
     == {"3": "", "4i": "the kernel during map", "9": "the kernel, which it ended,"}),
    ("a mutant that was cut short since the guest's time was over has no answer, unless it had all of that time",
     [answers_of(text, "did not end") for text in ("@ mutant 3\n@ unseen 3\n@ mutant 4\n", "@ mutant 4\n")]
     == [{"3": ""}, {"4": "the kernel, which it ended,"}]),
    ("what a guest said of each case is told",
     cases_of("@ case map 1 4 7 9 1a | 3 \n@ case map 2 10 | \nnoise\n@ case pins 1 3 7  | 1 2\n@ case pins 2 3 7")
     == {"map": [[4, "1", [7, 9, 26], [3]], [10, "2", [], []]], "pins": [[3, "1", [7], [1, 2]]]}),
    ("answers are written down, and read again",
     learnt() == ([line(found[0], "map 1", "-"), line(found[1], "unseen", "map 2"), line(found[2], "unmet", "-"),
                   *[line(guard, "-", "-") for guard in found[3:]]],
                  [["map 1", "-"], ["unseen", "map 2"], ["unmet", "-"], *[["-", "-"]] * (len(found) - 3)])),
    ("a guard that a test misses is not tried again", known(*all_seen) == [[], []]),
    ("a guard that was not tried is", known(*all_seen[:-1]) == [[guards.Mutant(found[-1])], []]),
    ("guards of a function whose words have changed are tried again, and no others",
     [mutant.guard.function for mutant in known(*all_seen, source=in_second)[0]] == ["second", "second"]),
    ("comments and blanks are no words",
     known(*all_seen, source=SOURCE.replace("// if (never)", "/* why */\n").replace("a = 0;", "a  = 0;")) == [[], []]),
    ("a survivor is tried again until there is a reason, and inverted",
     [known(*second_out), known(*second_out, reasons=(found[1].text,))]
     == [[[guards.Mutant(found[1])], [guards.Mutant(found[1], True)]], [[], [guards.Mutant(found[1], True)]]]),
    ("reasons are read", mutate.reasons("# words\na.c: f: x\n  one\n  two\n\nb.c: g: y\n  three\n")
     == {"a.c: f: x": "one two", "b.c: g: y": "three"}),
    ("a reason may be of several guards", mutate.reasons("a.c: f: x\na.c: f: y\n  one\n  two\nb.c: g: y\n  three\n")
     == {"a.c: f: x": "one two", "a.c: f: y": "one two", "b.c: g: y": "three"}),
    ("a reason is about its guard alone, or about all whose names begin so",
     [mutate.reason(name, {"a.c: f: x": "one", "b.c: *": "two"}) for name in ("a.c: f: x", "a.c: f: xy", "b.c: g: y")]
     == ["one", None, "two"]),
    ("each reason in the file stands for a guard that there is",
     all(any(mutate.reason(name, {told: "it"}) for name in names)
         for told in mutate.all_reasons())),
]

print(f"1..{len(POINTS)}")
for at, (title, ok) in enumerate(POINTS, 1):
    point(at, title, ok)
sys.exit(1 if failed else 0)
