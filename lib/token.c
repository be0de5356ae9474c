// SPDX-License-Identifier: MIT
/* Tokens as text: tm1k-<32 hex> of the module, tm1m-<32 hex>-<32 hex> of a memfd. */
#include "internal.h"

#include <string.h>

#define PREFIX_LEN 5
#define HEX_LEN 32

void tmesh_token_format(char *text, const struct tmesh_token_parts *parts)
{
	/* All of it is sent along by who sends a token as it is: nothing of ours behind it. */
	memset(text, 0, TMESH_TOKEN_SIZE);
	memcpy(text, parts->backend == TMESH_BACKEND_KERNEL ? "tm1k-" : "tm1m-", PREFIX_LEN);
	text += PREFIX_LEN;
	if (parts->backend == TMESH_BACKEND_MEMFD) {
		tmesh_hex(text, parts->name, sizeof(parts->name));
		text += HEX_LEN;
		*text++ = '-';
	}
	tmesh_hex(text, parts->secret, sizeof(parts->secret));
}

/* What the text is not is said, its content never: a token is a key. */
int tmesh_token_parse(const char *text, struct tmesh_token_parts *parts, struct tmesh_error *err)
{
	size_t length = text ? strnlen(text, TMESH_TOKEN_SIZE) : 0;

	if (length == PREFIX_LEN + HEX_LEN && !memcmp(text, "tm1k-", PREFIX_LEN)) {
		parts->backend = TMESH_BACKEND_KERNEL;
		if (tmesh_unhex(parts->secret, text + PREFIX_LEN, sizeof(parts->secret)))
			return 0;
	} else if (length == PREFIX_LEN + 2 * HEX_LEN + 1 && !memcmp(text, "tm1m-", PREFIX_LEN) &&
		   text[PREFIX_LEN + HEX_LEN] == '-') {
		parts->backend = TMESH_BACKEND_MEMFD;
		text += PREFIX_LEN;
		if (tmesh_unhex(parts->name, text, sizeof(parts->name)) &&
		    tmesh_unhex(parts->secret, text + HEX_LEN + 1, sizeof(parts->secret)))
			return 0;
	}
	return tmesh_fail(err, -EPROTO,
			  "not a token: tm1k- with 32 lower-case hex digits, or tm1m- with 32, a "
			  "dash and 32, is expected");
}
