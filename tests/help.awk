# SPDX-License-Identifier: MIT
#
# Print the targets of Makefiles with their descriptions: awk -f help.awk [-v suites=1] MAKEFILE...
#
# A description follows the target's line after `##`. One that begins with [Section] belongs to the targets that
# most people need; suites=1 adds the others. awk is part of every Debian, so help works before `make deps`.
BEGIN { count = split("First Build Test Measure Install Package", sections, " ") }

/\\$/ { held = held substr($0, 1, length($0) - 1); next }
{ line = held $0; held = "" }

line ~ /^[a-z0-9._-]+:.*## / {
	target = substr(line, 1, index(line, ":") - 1)
	text = substr(line, index(line, "## ") + 3)
	section = ""
	if (text ~ /^\[[A-Z][a-z]*\] /) {
		section = substr(text, 2, index(text, "]") - 2)
		text = substr(text, index(text, "]") + 2)
	}
	targets[section] = targets[section] sprintf("  %-26s %s\n", target, wrapped(text))
}

# Lines of at most 76 columns, the second and later ones indented.
function wrapped(text,    words, n, i, out, width) {
	n = split(text, words, " ")
	for (i = 1; i <= n; i++) {
		if (width && width + length(words[i]) > 76) {
			out = out "\n" sprintf("%29s", "")
			width = 0
		} else if (width) {
			out = out " "
		}
		out = out words[i]
		width += length(words[i]) + 1
	}
	return out
}

END {
	print "Targets of make. V=1 shows the commands of a build."
	for (i = 1; i <= count; i++)
		printf "\n%s:\n%s", sections[i], targets[sections[i]]
	if (suites)
		printf "\nSuites and parts:\n%s", targets[""]
	else
		print "\n`make help SUITES=1` lists the suites, too; each runs alone, as in `make unit-check`."
}
