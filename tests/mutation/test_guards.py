#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What takes guards out must find them all and change nothing else: tests of guards.py, printing TAP."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import guards  # noqa: E402: found by the line above
import mutate  # noqa: E402
from module import answers_of, cases_of  # noqa: E402

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
changed = guards.without(SOURCE, found[1])
switched = unswitched = guards.switched(SOURCE, enumerate(found, 1))
for number, guard in enumerate(found, 1):
    operand = SOURCE[guard.start:guard.end]
    unswitched = unswitched.replace(f"TMESH_GUARD({number}, {operand})", operand)
names = [guard.name for path in sorted([*mutate.TOP.glob("lib/**/*.c"), *mutate.TOP.glob("kmod/**/*.c")])
         for guard in guards.find(str(path.relative_to(mutate.TOP)), path.read_text())]
several = next(guard for guard in found if guard.function == "second")

POINTS = [
    ("each guard is found once, by its name", [guard.name for guard in found] == NAMES),
    ("a guard is made false, and nothing else changes",
     changed == SOURCE.replace("size > LIMIT ||", "((size > LIMIT), 0) ||", 1)),
    ("all guards are put behind switches, and nothing else changes",
     "if (TMESH_GUARD(1, !text) || TMESH_GUARD(2, size > LIMIT) ||" in switched and unswitched == SOURCE),
    ("a condition of several lines is all of them", several.lines == range(22, 24)),
    ("what a guest said of each mutant is told",
     answers_of("@ mutant 3\n@ unseen 3\n@ mutant 4\nnoise\n@ seen 4 the kernel during map\n@ mutant 9\n")
     == {3: "", 4: "the kernel during map", 9: "the kernel, which it ended,"}),
    ("what a guest said of each case is told",
     cases_of("@ case map 1 4 7 9 12\n@ case map 2 10\nnoise\n@ case pins 1 3 7\n")
     == {"map": [[4, [7, 9, 12]], [10, []]], "pins": [[3, [7]]]}),
    ("reasons are read", mutate.reasons("# words\na.c: f: x\n  one\n  two\n\nb.c: g: y\n  three\n")
     == {"a.c: f: x": "one two", "b.c: g: y": "three"}),
    ("a reason is about its guard alone, or about all whose names begin so",
     [mutate.reason(name, {"a.c: f: x": "one", "b.c: *": "two"}) for name in ("a.c: f: x", "a.c: f: xy", "b.c: g: y")]
     == ["one", None, "two"]),
    ("each reason in the file stands for a guard that there is",
     all(any(mutate.reason(name, {told: "it"}) for name in names)
         for told in mutate.reasons((mutate.HERE / "reasons.txt").read_text()))),
]

print(f"1..{len(POINTS)}")
for at, (title, ok) in enumerate(POINTS, 1):
    point(at, title, ok)
sys.exit(1 if failed else 0)
