/* SPDX-License-Identifier: MIT */
/*
 * Costs of the module beside the costs of the same work without it, measured in turn in the same
 * run. Benches print lines of JSON: medians of 20. On an emulated processor only the ratios are
 * meaningful.
 */
#ifndef TMESH_KSELFTEST_BENCH_H
#define TMESH_KSELFTEST_BENCH_H

#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 20

static inline void report(const char *name, double value, const char *unit)
{
	printf("{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"%s\"}\n", name, value, unit);
	fflush(stdout);
}

static inline int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline double median(double values[ROUNDS])
{
	qsort(values, ROUNDS, sizeof(*values), ascending);
	return (values[ROUNDS / 2 - 1] + values[ROUNDS / 2]) / 2;
}

/* Measure both in turn. Report both in microseconds, and their ratio. */
static inline void compare(const char *name, double (*subject)(void), const char *floor_name,
			   double (*floor)(void))
{
	double a[ROUNDS], b[ROUNDS], x, y;
	char line[120];

	for (int i = 0; i < ROUNDS; i++) {
		a[i] = subject();
		b[i] = floor();
	}
	x = median(a);
	y = median(b);
	report(name, x * 1e6, "us");
	report(floor_name, y * 1e6, "us");
	snprintf(line, sizeof(line), "%s / %s", name, floor_name);
	report(line, x / y, "ratio");
}

#endif
