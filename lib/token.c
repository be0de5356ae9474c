// SPDX-License-Identifier: MIT
/* Tokens: minting those of memfd regions (the module mints its own), and their text: tm1k-<32 hex>
 * of the module, tm1m-<32 hex>-<32 hex> of a memfd. */
#include "memfd.h"
#include "wire.h"

#include <string.h>

#define PREFIX_LEN 5
#define HEX_LEN 32

void tmesh_token_format(char *text, const struct tmesh_token_fields *parts)
{
	/* A caller may send all of the buffer, so no old bytes may follow the token. */
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

/* Parse a token. An error describes the defect but never shows the text: a token is a key. */
int tmesh_token_parse(const char *text, struct tmesh_token_fields *parts, struct tmesh_error *err)
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

int tmesh_token_mint(struct tmesh_region *region, uint32_t rights, struct tmesh_token_fields *token,
		     struct tmesh_error *err)
{
	struct tmesh_ctx *ctx = region->ctx;
	struct tmesh_index_entry entry = {.region = region, .rights = rights};
	/* READ is in every set: the other two bits count. */
	unsigned int set = rights >> 1;
	int rc = tmesh_server_ready(ctx, err);

	if (rc)
		return rc;
	if (!region->memfd.tokens[set].given) {
		rc = tmesh_random(entry.secret, sizeof(entry.secret), err);
		if (rc)
			return rc;
		/* Others duplicate a read-only one in a third of the time that opening takes. */
		entry.read_only = tmesh_memfd_reads_only(region) ||
				  (rights == TMESH_READ && tmesh_memfd_lower(region));
		rc = tmesh_server_add(ctx, &entry, err);
		if (rc)
			return rc;
		memcpy(region->memfd.tokens[set].secret, entry.secret, sizeof(entry.secret));
		region->memfd.tokens[set].given = true;
	}
	token->backend = TMESH_BACKEND_MEMFD;
	memcpy(token->name, tmesh_server_name(ctx), sizeof(token->name));
	memcpy(token->secret, region->memfd.tokens[set].secret, sizeof(token->secret));
	return 0;
}
