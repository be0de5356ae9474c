// SPDX-License-Identifier: MIT
/*
 * Inputs of the fuzzer. As text an input is one line with a word for each call. A word is the name
 * of the call and, in hexadecimal, the bytes of its file and of its arguments up to the last that
 * is not 0.
 */
#include "fuzz.h"

static int op_named(const char *name, size_t len)
{
	for (int op = 0; op < fuzz_ops(); op++)
		if (strlen(fuzz_op_name(op)) == len && !memcmp(fuzz_op_name(op), name, len))
			return op;
	return -1;
}

static bool parse_call(struct fuzz_call *c, const char *word, size_t len)
{
	size_t name = strcspn(word, ":");
	unsigned char *byte = &c->fd;
	int op;

	*c = (struct fuzz_call){0};
	op = op_named(word, name < len ? name : len);
	if (op < 0)
		return false;
	c->op = op;
	if (name >= len)
		return true;
	for (word += name + 1, len -= name + 1; len >= 2; word += 2, len -= 2) {
		if (byte == c->arg + FUZZ_ARGS || sscanf(word, "%2hhx", byte++) != 1)
			return false;
	}
	return !len;
}

bool fuzz_parse(struct fuzz_input *in, const char *text)
{
	in->count = 0;
	for (;;) {
		size_t len = strcspn(text, " \n");

		if (len) {
			if (in->count == FUZZ_CALLS)
				return false;
			if (!parse_call(&in->calls[in->count++], text, len))
				return false;
		}
		if (text[len] != ' ')
			return in->count;
		text += len + 1;
	}
}

/* Print an input. It does not use printf(), because it runs for each input. */
void fuzz_print(const struct fuzz_input *in, char text[FUZZ_TEXT])
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < in->count; i++) {
		const struct fuzz_call *c = &in->calls[i];
		const unsigned char *bytes = &c->fd;
		int used = FUZZ_ARGS + 1;

		while (used && !bytes[used - 1])
			used--;
		if (i)
			*text++ = ' ';
		text = stpcpy(text, fuzz_op_name(c->op));
		if (used)
			*text++ = ':';
		for (int b = 0; b < used; b++) {
			*text++ = digits[bytes[b] >> 4];
			*text++ = digits[bytes[b] & 15];
		}
	}
	*text = 0;
}

static unsigned int pick(unsigned int *seed, unsigned int n)
{
	return t_random(seed) % n;
}

/*
 * Return a random byte: mostly 0, which is a sensible value, or a small number, and sometimes any
 * other.
 */
static unsigned char random_byte(unsigned int *seed)
{
	switch (pick(seed, 8)) {
	case 0 ... 3:
		return 0;
	case 4 ... 5:
		return pick(seed, 8);
	default:
		return pick(seed, 256);
	}
}

static void random_call(struct fuzz_call *c, unsigned int *seed)
{
	/* Choose fork rarely: it takes as long as a hundred other calls. */
	do
		c->op = pick(seed, fuzz_ops());
	while (!strcmp(fuzz_op_name(c->op), "fork") && pick(seed, 16));
	c->fd = random_byte(seed);
	for (int i = 0; i < FUZZ_ARGS; i++)
		c->arg[i] = random_byte(seed);
}

void fuzz_random_input(struct fuzz_input *in, unsigned int *seed)
{
	in->count = 1 + pick(seed, FUZZ_CALLS);
	for (int i = 0; i < in->count; i++)
		random_call(&in->calls[i], seed);
}

static void insert(struct fuzz_input *in, int at, struct fuzz_call c)
{
	if (in->count < FUZZ_CALLS)
		in->count++;
	memmove(&in->calls[at + 1], &in->calls[at], (in->count - 1 - at) * sizeof(c));
	in->calls[at] = c;
}

void fuzz_drop(struct fuzz_input *in, int at)
{
	in->count--;
	memmove(&in->calls[at], &in->calls[at + 1], (in->count - at) * sizeof(in->calls[0]));
}

static void mutate_once(struct fuzz_input *in, const struct fuzz_input *other, unsigned int *seed)
{
	int at = pick(seed, in->count), from = pick(seed, other->count);
	struct fuzz_call *c = &in->calls[at], fresh;

	switch (pick(seed, 10)) {
	case 0 ... 3:
		c->arg[pick(seed, FUZZ_ARGS)] = random_byte(seed);
		break;
	case 4:
		c->fd = random_byte(seed);
		break;
	case 5:
		c->arg[pick(seed, FUZZ_ARGS)] ^= 1u << pick(seed, 8);
		break;
	case 6:
		random_call(&fresh, seed);
		insert(in, at, fresh);
		break;
	case 7:
		insert(in, at, other->calls[from]);
		break;
	case 8:
		if (in->count > 1)
			fuzz_drop(in, at);
		break;
	case 9:
		in->count = at + 1;
		while (from < other->count && in->count < FUZZ_CALLS)
			in->calls[in->count++] = other->calls[from++];
		break;
	}
}

void fuzz_mutate(struct fuzz_input *in, const struct fuzz_input *other, unsigned int *seed)
{
	for (unsigned int n = 1 + pick(seed, 4); n; n--)
		mutate_once(in, other, seed);
}
