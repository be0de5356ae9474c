#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tool that takes guards out must find them all and change nothing else. It must run the cases that can miss a
guard, leave none of their processes, and resume a stopped search. Prints TAP."""
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases  # noqa: E402: found by the line above
import guards  # noqa: E402
import library  # noqa: E402
import mutate  # noqa: E402
import verdicts  # noqa: E402
from guest import Guests, answers_of, cases_of  # noqa: E402

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
several = next(guard for guard in found if guard.function == "second")

# Write a program whose case "leaves" has a child in a session of its own, "sleeps" never ends, and "fails" fails.
# "misses" fails while guard 3 is out, "broken" then and from then on. Each makes guard 2 true and guard 1 false.
PROGRAM = '''\
#!/bin/sh
printf '\\000\\001\\002' | dd of="$TMESH_MET" conv=notrunc 2>/dev/null
case $TMESH_CASE:$TMESH_MUTANT in
leaves:*)
	setsid sh -c ': >left; exec sleep 60' &
	while [ ! -e left ]; do sleep 0.01; done ;;
sleeps:*) sleep 60 ;;
fails:* | misses:3 | broken:3) false ;;
broken:*) [ ! -e "$0.out" ] ;;
esac
status=$?
[ "$TMESH_MUTANT" != 3 ] || : >"$0.out"
exit $status
'''


class Sample(library.Library):
    """The cases of one program, of which nothing is built."""
    def __init__(self, folder, *tests):
        self.said = []
        cases.ByCases.__init__(self, Path(folder), self.said.append)
        program = self.where / "test_sample"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        self.programs, self.env, self.built, self.tests_of_it = {"sample": program}, dict(os.environ), self, tests
        self.number = {guard: number for number, guard in enumerate(found, 1)}

    def tests(self, name):
        return self.tests_of_it


def of_sample(ask, *tests):
    with tempfile.TemporaryDirectory() as folder:
        return ask(Sample(folder, *tests))


def ran(case, seconds):
    """Return whether a case passes, and which processes it leaves."""
    def ask(sample):
        with library.case_of(sample.programs["sample"], case, sample.env) as it:
            passes, name, folders = it.passes(seconds), it.met.name, (it.here.name, it.runtime.name)
        return passes, library.left_of(name), [path for path in (*folders, "left") if os.path.exists(path)]
    return of_sample(ask)


def told(sample):
    return [(case, *seen) for _, case, *seen in sample.told_cases(["sample"])["sample"]], sample.said


def judge(sample):
    mutant = guards.Mutant(found[2])
    return sample.judge(mutant, [("sample", case, 60) for case in sample.tests("sample")]), sample.said


class Recorded(cases.ByCases):
    """Cases with made-up times and values of guards, which tell the runs of a mutant without running it."""
    cases = {"map": [[300, "slow", ["f: a"], []], [100, "quick", ["f: a"], ["f: b"]]], "seal": [[200, "it", ["f: a"], []]]}

    def __init__(self, enough):
        self.enough = enough

    def tried(self, waiting, jobs):
        yield from waiting.items()


def would_run(name, inverted=False, enough=1000):
    guard = type("Named", (), {"name": name})
    (_, answer), = Recorded(enough).judged([guards.Mutant(guard, inverted)], 1)
    return str(answer) if isinstance(answer, guards.Untried) else [(name, case) for name, case, _ in answer]


class Ending(Guests):
    """Guests made up, which their third mutant ends."""
    def __init__(self):
        self.number = {guard: number for number, guard in enumerate(found)}

    def guest(self, place, runs):
        return {number: runs[number] for number in list(runs)[:3]}


def known(*lines, source=SOURCE, reasons=()):
    """Return the mutants to try, removed and inverted, after a file of verdicts with these lines about guards of this
    source."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdicts"
        path.write_text("\n".join(lines))
        there = guards.find("f.c", source)
        told = verdicts.Verdicts(path, there)
        return [told.wanted(there, lambda guard: guard.text in reasons), told.inverted(there)]


def line(guard, *seen):
    return "\t".join([*verdicts.key(guard), *seen])


def learnt():
    """Write an answer of each kind to a file of verdicts; return its text, and the verdicts read back from it."""
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
    ("the report has the guest's verdict of each mutant",
     answers_of("@ mutant 3\n@ unseen 3\n@ mutant 4i\nnoise\n@ seen 4i the kernel during map\n@ mutant 9\n")
     == {"3": "", "4i": "the kernel during map", "9": "the kernel, which it ended,"}),
    ("a mutant that was cut short since the guest's time was over has no answer, unless it had all of that time",
     [answers_of(text, "did not end") for text in ("@ mutant 3\n@ unseen 3\n@ mutant 4\n", "@ mutant 4\n")]
     == [{"3": ""}, {"4": "the kernel, which it ended,"}]),
    ("a mutant that is to be tried again in a new guest has no answer",
     answers_of("@ mutant 3\n@ unseen 3\n@ mutant 4i\n@ again 4i\n@ done\n") == {"3": ""}),
    ("what one guest did not come to another tries, so many of them at once",
     all(sorted((mutant.guard.name, answer) for mutant, answer in
                Ending().tried({guards.Mutant(guard): guard.name for guard in found}, jobs))
         == sorted((guard.name, guard.name) for guard in found) for jobs in (1, 2))),
    ("the report has the guest's verdict of each case",
     cases_of("@ case map 1 4 7 9 1a | 3 \n@ case map 2 10 | \nnoise\n@ case pins 1 3 7  | 1 2\n@ case pins 2 3 7")
     == {"map": [[4, "1", [7, 9, 26], [3]], [10, "2", [], []]], "pins": [[3, "1", [7], [1, 2]]]}),
    ("cases of C's tests are found, several in a line",
     library.TESTS.findall("#define TEST(name) it(name)\n\tx[] = {cmocka_unit_test(test_a), TEST(test_b),\n\t\t"
                           "cmocka_unit_test_teardown(\n\t\t\ttest_c, t)}") == ["test_a", "test_b", "test_c"]),
    ("cases that make a guard true can miss it, the quickest first, and no others",
     [would_run("f: a"), would_run("f: b")]
     == [[("map", "quick"), ("seal", "it"), ("map", "slow")], "no test makes it true"]),
    ("those that come by can miss an inverted one", [would_run("f: b", True), would_run("f: c", True)]
     == [[("map", "quick")], "no test comes by"]),
    ("the quickest that are enough run, and one at least", [would_run("f: a", enough=seconds) for seconds in (3, 0)]
     == [[("map", "quick"), ("seal", "it")], [("map", "quick")]]),
    ("nothing stays of a case that has ended, whatever it started", ran("leaves", 60) == (True, [], [])),
    ("a case that does not end fails, and nothing stays of it", ran("sleeps", 0.5) == (False, [], [])),
    ("each case that passes with every guard in tells what guards were, and no other",
     of_sample(told, "passes", "fails") == ([("passes", [2], [1])], ["with every guard in: sample fails fails"])),
    ("the first case that fails with a guard out, and not with it in, sees it",
     of_sample(judge, "passes", "misses", "fails") == ("sample misses", [])),
    ("a case that fails with the guard in again is no judge",
     of_sample(judge, "broken") == ("", ["with every guard in: sample broken fails"])),
    ("answers are written down, and read again",
     learnt() == ([line(found[0], "map 1", "-"), line(found[1], "unseen", "map 2"), line(found[2], "unmet", "-"),
                   *[line(guard, "-", "-") for guard in found[3:]]],
                  [["map 1", "-"], ["unseen", "map 2"], ["unmet", "-"], *[["-", "-"]] * (len(found) - 3)])),
    ("a guard that a test misses is not tried again", known(*all_seen) == [[], []]),
    ("a guard that was not tried is", known(*all_seen[:-1]) == [[guards.Mutant(found[-1])], []]),
    ("those without a reason are tried first",
     known(*all_seen[2:], reasons=(found[0].text,))[0] == [guards.Mutant(found[1]), guards.Mutant(found[0])]),
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
    ("a reason of a guard that is gone is named",
     mutate.stale({"f.c: first: !text": "a", "f.c: first: gone": "b", "f.c: sec*": "c"}, [guard.name for guard in found])
     == ["f.c: first: gone"]),
]

# The answer of `git blame --line-porcelain` about four lines. The first two are as old as the commit that was named.
BLAMED = "".join(f"{commit * 40} 7 {line}\nauthor A\n{more}filename f.c\n\tif (x)\n" for commit, line, more in
                 (("a", 1, "boundary\n"), ("a", 2, "boundary\n"), ("b", 3, ""), ("c", 4, "previous d f.c\n")))
POINTS.append(("lines that were written since a commit are known", mutate.changed_lines(BLAMED) == {3, 4}))

print(f"1..{len(POINTS)}")
for at, (title, ok) in enumerate(POINTS, 1):
    point(at, title, ok)
sys.exit(1 if failed else 0)
