// SPDX-License-Identifier: MIT
/* Ask the caller, while headers are read, whether to go on. */
#include "model_internal.h"

#include <string.h>

int opening_go_on(struct opening *opening, uint64_t bytes, struct tmesh_error *err)
{
	const struct tmesh_model_progress progress = {
		.size = sizeof(progress),
		.bytes_total = opening->bytes,
	};

	if (opening->cancelled)
		return -ECANCELED;
	opening->work += bytes;
	if (!opening->progress || opening->work < MODEL_ASK_WORK)
		return 0;
	opening->work = 0;
	if (!opening->progress(opening->progress_data, &progress))
		return 0;
	opening->cancelled = true;
	return tmesh_fail(err, -ECANCELED, "reading the headers was cancelled");
}

/* A text that is given in pieces. */
struct pieces {
	struct opening *opening;
	const char *at;
	size_t left;
	struct tmesh_error *err;
};

static size_t next_piece(void *to, size_t room, void *data)
{
	struct pieces *pieces = data;
	size_t bytes = pieces->left < room ? pieces->left : room;

	if (opening_go_on(pieces->opening, bytes, pieces->err))
		return (size_t)-1;
	memcpy(to, pieces->at, bytes);
	pieces->at += bytes;
	pieces->left -= bytes;
	return bytes;
}

json_t *opening_json(struct opening *opening, const char *text, size_t bytes, const char *what,
		     int before, struct tmesh_error *err)
{
	struct pieces pieces = {opening, text, bytes, err};
	char quoted[MODEL_QUOTE];
	json_error_t why;
	json_t *root = json_load_callback(next_piece, &pieces,
					  JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);

	if (!root && !opening->cancelled)
		tmesh_fail(err, -EPROTO, "%s is not JSON: %s (at byte %d)", what,
			   model_quote(quoted, why.text), why.position + before);
	return root;
}
