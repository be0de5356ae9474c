// SPDX-License-Identifier: MIT
/*
 * Parse a .npy header: a magic, a version, a length and a Python dictionary of three entries, such
 * as {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }. The parser is strict: it takes
 * the headers that NumPy writes for plain arrays, and no others.
 */
#include "npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6
#define DAMAGED "its .npy header is damaged"

static const struct {
	const char *descr;
	enum tmesh_dtype dtype;
} dtypes[] = {
	{"'|b1'", TMESH_BOOL},	    {"'|i1'", TMESH_INT8},	  {"'<i2'", TMESH_INT16},
	{"'<i4'", TMESH_INT32},	    {"'<i8'", TMESH_INT64},	  {"'|u1'", TMESH_UINT8},
	{"'<u2'", TMESH_UINT16},    {"'<u4'", TMESH_UINT32},	  {"'<u8'", TMESH_UINT64},
	{"'<f2'", TMESH_FLOAT16},   {"'<f4'", TMESH_FLOAT32},	  {"'<f8'", TMESH_FLOAT64},
	{"'<c8'", TMESH_COMPLEX64}, {"'<c16'", TMESH_COMPLEX128},
};

#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

/* Return the offset of the text. Version 1 has two bytes of length, 2 and 3 have four. */
static size_t text_at(const uint8_t *header)
{
	return header[MAGIC_BYTES] == 1 ? 10 : 12;
}

size_t npy_length(const uint8_t prefix[NPY_PREFIX], const char **why)
{
	size_t text = 0, at;

	*why = "it is not a .npy file";
	if (memcmp(prefix, MAGIC, MAGIC_BYTES))
		return 0;
	*why = "its version of the .npy format is unknown";
	if (prefix[MAGIC_BYTES] < 1 || prefix[MAGIC_BYTES] > 3 || prefix[MAGIC_BYTES + 1])
		return 0;
	at = text_at(prefix);
	for (size_t i = at; i-- > MAGIC_BYTES + 2;)
		text = text << 8 | prefix[i];
	*why = "its .npy header is too short or too long";
	return text < NPY_PREFIX || text > NPY_MAX - at ? 0 : at + text;
}

struct reader {
	const char *at, *end;
};

static void skip_spaces(struct reader *in)
{
	while (in->at < in->end && (*in->at == ' ' || *in->at == '\n'))
		in->at++;
}

/* Skip @text if it comes next, and return whether it did. */
static bool took(struct reader *in, const char *text)
{
	size_t length = strlen(text);

	skip_spaces(in);
	if ((size_t)(in->end - in->at) < length || memcmp(in->at, text, length))
		return false;
	in->at += length;
	return true;
}

static bool read_descr(struct reader *in, struct npy *npy, const char **why)
{
	for (size_t i = 0; i < DTYPES; i++) {
		if (took(in, dtypes[i].descr)) {
			npy->dtype = dtypes[i].dtype;
			return true;
		}
	}
	*why = took(in, "'>") ? "its numbers are big-endian; tmesh takes little-endian ones"
			      : "its elements are not of a type that tmesh has";
	return false;
}

static bool read_order(struct reader *in, const char **why)
{
	*why = "it is in Fortran order; save numpy.ascontiguousarray() of it";
	return took(in, "False");
}

static bool read_number(struct reader *in, int64_t *number)
{
	const char *start;

	skip_spaces(in);
	start = in->at;
	*number = 0;
	for (; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++) {
		if (__builtin_mul_overflow(*number, 10, number) ||
		    __builtin_add_overflow(*number, *in->at - '0', number))
			return false;
	}
	return in->at > start;
}

static bool read_shape(struct reader *in, struct npy *npy, const char **why)
{
	bool more = true;

	*why = "its shape is none";
	if (!took(in, "("))
		return false;
	while (!took(in, ")")) {
		if (npy->ndim == TMESH_MAX_DIMS) {
			*why = "it has too many dimensions";
			return false;
		}
		if (!more || !read_number(in, &npy->shape[npy->ndim++]))
			return false;
		more = took(in, ",");
	}
	/* (3) is a number, not a tuple. */
	return npy->ndim != 1 || more;
}

bool npy_parse(const uint8_t *header, size_t length, struct npy *npy, const char **why)
{
	struct reader in = {(const char *)header + text_at(header), (const char *)header + length};
	bool descr = false, order = false, shape = false, more = true;

	memset(npy, 0, sizeof(*npy));
	*why = DAMAGED;
	if (!took(&in, "{"))
		return false;
	while (!took(&in, "}")) {
		bool good = false;

		if (more && !descr && took(&in, "'descr':"))
			good = descr = read_descr(&in, npy, why);
		else if (more && !order && took(&in, "'fortran_order':"))
			good = order = read_order(&in, why);
		else if (more && !shape && took(&in, "'shape':"))
			good = shape = read_shape(&in, npy, why);
		if (!good)
			return false;
		*why = DAMAGED;
		more = took(&in, ",");
	}
	skip_spaces(&in);
	return descr && order && shape && in.at == in.end;
}

size_t npy_format(uint8_t header[NPY_MAX], const struct npy *npy)
{
	char *text = (char *)header + 10;
	const char *descr = NULL;
	size_t used, total;

	for (size_t i = 0; i < DTYPES && !descr; i++)
		if (dtypes[i].dtype == npy->dtype)
			descr = dtypes[i].descr;
	if (!descr)
		return 0;
	used = (size_t)sprintf(text, "{'descr': %s, 'fortran_order': False, 'shape': (", descr);
	for (int32_t i = 0; i < npy->ndim; i++)
		used += (size_t)sprintf(text + used, "%s%" PRId64, i ? ", " : "", npy->shape[i]);
	used += (size_t)sprintf(text + used, "%s), }", npy->ndim == 1 ? "," : "");
	/* Pad with spaces to the beginning of the data, then end with a newline. */
	total = (10 + used + NPY_ALIGN) / NPY_ALIGN * NPY_ALIGN;
	memset(text + used, ' ', total - 10 - used);
	header[total - 1] = '\n';
	memcpy(header, MAGIC "\x01\x00", MAGIC_BYTES + 2);
	header[8] = (uint8_t)((total - 10) & 0xff);
	header[9] = (uint8_t)((total - 10) >> 8);
	return total;
}
