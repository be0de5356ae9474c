/* SPDX-License-Identifier: MIT */
/* How stable each public header is. `make rooms-check` compares this with the headers and with
 * docs/README.md. */
#ifndef TMESHCTL_MATURITY_H
#define TMESHCTL_MATURITY_H

static const struct {
	const char *header; /* of include/tmesh/, without .h */
	const char *level;
} maturity[] = {
	{"arena", "stable"},
	{"bundle", "stable"},
	{"channel", "stable"},
	{"context", "stable"},
	{"cuda", "never run on the real thing"},
	{"engine", "experimental"},
	{"event", "stable"},
	{"fence", "stable"},
	{"gather", "stable"},
	{"graph", "experimental"},
	{"hold", "stable"},
	{"import", "stable"},
	{"inspect", "stable"},
	{"keep", "stable"},
	{"lease", "stable"},
	{"model", "stable"},
	{"net", "never run on the real thing"},
	{"page_table", "experimental"},
	{"pages", "stable"},
	{"placement", "never run on the real thing"},
	{"region", "stable"},
	{"slot", "stable"},
	{"tensor", "stable"},
	{"tmesh", "stable"},
	{"xla", "experimental"},
};

#endif /* TMESHCTL_MATURITY_H */
