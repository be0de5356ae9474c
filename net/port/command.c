// SPDX-License-Identifier: MIT
/* Parse the commands to tmesh-net. They come from a program of the same user, and are checked all
 * the same. */
#include "command.h"

#include <errno.h>
#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/hex.h"

struct member {
	const char *name;
	size_t offset;
	size_t size; /* of a text; 0: a number */
	int64_t least;
};

#define TEXT(name)                                                                            \
	{                                                                                     \
#name, offsetof(struct command, name), sizeof(((struct command *)0)->name), 0 \
	}
#define NUMBER(name, least)                                     \
	{                                                       \
#name, offsetof(struct command, name), 0, least \
	}
#define MEMBERS 6

static const struct {
	const char *name;
	struct member members[MEMBERS];
	bool data;
} types[] = {
	[COMMAND_OFFER] = {"offer", {TEXT(token)}},
	[COMMAND_WITHDRAW] = {"withdraw", {TEXT(offer)}},
	[COMMAND_COPY] = {"copy", {TEXT(offer)}},
	[COMMAND_GRANT] = {"grant", {TEXT(offer), TEXT(peer)}},
	[COMMAND_REVOKE] = {"revoke", {TEXT(key)}},
	[COMMAND_FIND] = {"find", {TEXT(checksum), NUMBER(bytes, 1)}},
	[COMMAND_FETCH] = {"fetch",
			   {TEXT(address), TEXT(key), TEXT(checksum), NUMBER(bytes, 1),
			    NUMBER(timeout_ms, 1)}},
	[COMMAND_STORE] = {"store", {TEXT(checksum)}, true},
	[COMMAND_CANCEL] = {"cancel", {NUMBER(of, 0)}},
	[COMMAND_RELEASE] = {"release", {NUMBER(of, 0)}},
	[COMMAND_STATS] = {"stats", {{0}}},
};
#define TYPES (sizeof(types) / sizeof(types[0]))

static int read_number(const json_t *object, const char *name, int64_t least, int64_t *number,
		       struct tmesh_error *err)
{
	const json_t *value = json_object_get(object, name);

	if (!json_is_integer(value) || json_integer_value(value) < least)
		return tmesh_fail(err, -EPROTO, "\"%s\" is no whole number of at least %lld", name,
				  (long long)least);
	*number = json_integer_value(value);
	return 0;
}

static int read_text(const json_t *object, const struct member *member, char *text,
		     struct tmesh_error *err)
{
	const json_t *value = json_object_get(object, member->name);
	size_t bytes = json_string_length(value);

	if (!json_is_string(value) || !bytes || bytes >= member->size)
		return tmesh_fail(err, -EPROTO, "\"%s\" is no text of 1 to %zu bytes", member->name,
				  member->size - 1);
	/* The parser refuses zeros inside. */
	memcpy(text, json_string_value(value), bytes + 1);
	return 0;
}

static int read_data(const json_t *object, struct command *command, struct tmesh_error *err)
{
	const json_t *value = json_object_get(object, "data");
	size_t digits = json_string_length(value), bytes = digits / 2;

	if (!bytes || digits % 2 || bytes > TMESH_NET_SMALL_BYTES)
		return tmesh_fail(err, -EPROTO, "\"data\" is not the hex of 1 to %d bytes",
				  TMESH_NET_SMALL_BYTES);
	command->data = malloc(bytes);
	command->bytes = bytes;
	if (!command->data)
		return tmesh_fail(err, -ENOMEM, "no memory for a command");
	if (tmesh_unhex(command->data, json_string_value(value), bytes))
		return 0;
	free(command->data);
	command->data = NULL;
	return tmesh_fail(err, -EPROTO, "\"data\" is no lower-case hex");
}

static int read_members(const json_t *object, struct command *command, struct tmesh_error *err)
{
	const struct member *member = types[command->type].members;
	size_t count = 3; /* v, type, id */
	int rc = 0;

	for (; !rc && member->name; member++, count++) {
		char *place = (char *)command + member->offset;

		if (member->size)
			rc = read_text(object, member, place, err);
		else
			rc = read_number(object, member->name, member->least, (int64_t *)place,
					 err);
	}
	count += types[command->type].data;
	if (!rc && json_object_size(object) != count)
		rc = tmesh_fail(err, -EPROTO, "a member that \"%s\" has not",
				types[command->type].name);
	if (!rc && types[command->type].data)
		rc = read_data(object, command, err);
	return rc;
}

static int read_object(const json_t *object, struct command *command, int64_t *id,
		       struct tmesh_error *err)
{
	const char *type = json_string_value(json_object_get(object, "type"));
	int64_t version;
	int rc = read_number(object, "id", 0, &command->id, err);

	if (rc)
		return rc;
	*id = command->id;
	rc = read_number(object, "v", 1, &version, err);
	if (rc)
		return rc;
	if (version != 1)
		return tmesh_fail(err, -EPROTO, "a message of version %lld, and not 1",
				  (long long)version);
	for (size_t i = 0; type && i < TYPES; i++) {
		if (strcmp(type, types[i].name))
			continue;
		command->type = i;
		return read_members(object, command, err);
	}
	return tmesh_fail(err, -EPROTO, "no command has that \"type\"");
}

int command_read(const char *text, size_t bytes, struct command *command, int64_t *id,
		 struct tmesh_error *err)
{
	json_error_t error;
	json_t *object;
	int rc;

	memset(command, 0, sizeof(*command));
	*id = -1;
	if (bytes > COMMAND_MAX_BYTES)
		return tmesh_fail(err, -EPROTO, "a message of %zu bytes", bytes);
	object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
	if (!object)
		return tmesh_fail(err, -EPROTO, "not JSON: %s", error.text);
	if (json_is_object(object))
		rc = read_object(object, command, id, err);
	else
		rc = tmesh_fail(err, -EPROTO, "not a JSON object");
	json_decref(object);
	return rc;
}
