/* SPDX-License-Identifier: MIT */
/*
 * The name of a slot: a file of the runtime directory that has the slot's token. The publisher owns
 * the name as long as it holds the file's lock.
 */
#ifndef MODEL_SLOT_NAME_H
#define MODEL_SLOT_NAME_H

#include "../shared/host.h"

/* "slot-" and the name, of which each byte may have become three. */
#define SLOT_FILE_ROOM (5 + 3 * TMESH_SLOT_NAME_LEN + 1)

struct slot_name {
	struct model_fd file; /* -1: there is no name, or it is the parent's */
	int dir;	      /* -1: there is no name */
	char in_dir[SLOT_FILE_ROOM];
};

/* Return -EINVAL if it is too long, empty, or not UTF-8 without control characters. */
int slot_name_check(const char *name, struct tmesh_error *err);
/* Take a name; @own has none yet. -EEXIST: a living process has it. The host's lock is not held,
 * here and in slot_name_give_up(). */
int slot_name_claim(struct slot_name *own, struct tmesh_ctx *ctx, const char *name,
		    const char *token, struct tmesh_error *err);
void slot_name_give_up(struct slot_name *own);
/* Find the token, TMESH_TOKEN_SIZE bytes, of the slot that has this name. -ENOENT: none has. */
int slot_name_find(struct tmesh_ctx *ctx, const char *name, char *token, struct tmesh_error *err);

#endif /* MODEL_SLOT_NAME_H */
