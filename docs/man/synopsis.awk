# SPDX-License-Identifier: MIT
# Write a page with the declarations of the functions that it names, from the headers that it includes, at @synopsis@.

/^# / { section = $0 }

section == "# NAME" && / - / {
	name_count = split(substr($0, 1, index($0, " - ") - 1), names, ", ")
}

section == "# SYNOPSIS" {
	for (rest = $0; match(rest, /<tmesh\/[a-z_]+\.h>/); rest = substr(rest, RSTART + RLENGTH))
		headers[++header_count] = substr(rest, RSTART + 1, RLENGTH - 2)
}

$0 == "@synopsis@" {
	for (i = 1; i <= header_count; i++)
		read_header("include/" headers[i])
	print "```"
	for (i = 1; i <= name_count; i++)
		if (names[i] in declared)
			print_broken(declared[names[i]])
	print "```"
	next
}

{ print }

function read_header(path,    line, depth, mark, at) {
	while ((getline line < path) > 0) {
		if (line ~ /^#/ || line ~ /^extern "C"/ || continued) {
			continued = line ~ /\\$/
			continue
		}
		for (text = text line " "; (at = index(text, "/*")) && index(text, "*/");)
			text = substr(text, 1, at - 1) substr(text, index(text, "*/") + 2)
		if (index(text, "/*"))
			continue
		while ((at = match(text, /[;{}]/))) {
			mark = substr(text, at, 1)
			if (!depth && mark != "}")
				declare(substr(text, 1, at - 1))
			depth += (mark == "{") - (mark == "}" && depth)
			text = substr(text, at + 1)
		}
	}
	close(path)
	text = ""
}

# Note a function's declaration.
function declare(statement) {
	gsub(/[ \t]+/, " ", statement)
	sub(/^ /, "", statement)
	sub(/ ?__attribute__.*/, "", statement)
	sub(/^static inline /, "", statement)
	sub(/ $/, "", statement)
	if (match(statement, /tmesh_[a-z0-9_]+\(/))
		declared[substr(statement, RSTART, RLENGTH - 1)] = statement
}

# Print a declaration, broken at its parameters.
function print_broken(statement,    open, count, parameters, i, line) {
	match(statement, /tmesh_[a-z0-9_]+\(/)
	open = RSTART + RLENGTH
	count = split(substr(statement, open), parameters, ", ")
	line = substr(statement, 1, open - 1) parameters[1]
	for (i = 2; i <= count; i++) {
		line = line ","
		if (length(line) + length(parameters[i]) > 74) {
			print line
			line = sprintf("%" (open - 1) "s", "") parameters[i]
		} else {
			line = line " " parameters[i]
		}
	}
	print line ";"
}
