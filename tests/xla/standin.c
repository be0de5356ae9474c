// SPDX-License-Identifier: MIT
/*
 * A stand-in for EXLA's libxla_extension.so: a registry of handlers as an XLA of FFI 0.2 has it. It
 * prints its registrations and calls its handlers. It shows nothing about XLA or EXLA.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

#define HANDLERS 4

const struct ffi_api *get_api(void) __asm__("_ZN3xla3ffi12GetXlaFfiApiEv");
struct XLA_FFI_Error *standin_call(const char *name, struct XLA_FFI_CallFrame *frame);
unsigned int standin_count(void);
void standin_set(int major, size_t struct_size, const char *refuses);

static struct {
	char name[64];
	ffi_handler *execute;
} handlers[HANDLERS];
static unsigned int count;
static const char *refused;

static void message(struct ffi_error_message_args *args)
{
	args->message = args->error->text;
}

static void destroy(struct ffi_error_destroy_args *args)
{
	free(args->error);
}

static struct XLA_FFI_Error *fail(const char *text)
{
	struct XLA_FFI_Error *error = calloc(1, sizeof(*error));

	snprintf(error->text, sizeof(error->text), "the stand-in says: %s", text);
	return error;
}

static struct XLA_FFI_Error *add(struct ffi_handler_args *args);

static struct ffi_api api = {
	.struct_size = sizeof(api),
	.version = {sizeof(struct ffi_version), NULL, 0, 2},
	.make_error = host_make_error,
	.error_message = message,
	.error_destroy = destroy,
	.add_handler = add,
};

/* As XLA does, refuse an unknown name, and ask the handler for its version. */
static struct XLA_FFI_Error *add(struct ffi_handler_args *args)
{
	struct ffi_metadata metadata = {.struct_size = sizeof(metadata)};
	struct ffi_metadata_extension extension = {
		{sizeof(extension), FFI_EXTENSION_METADATA, NULL}, &metadata};
	struct ffi_frame frame = {
		.struct_size = sizeof(frame), .extensions = &extension.base, .api = &api};

	if (refused && !strncmp(args->name.at, refused, args->name.bytes))
		return fail("no such thing here");
	if (args->platform.bytes != 4 || memcmp(args->platform.at, "Host", 4))
		return fail("another platform");
	if (count == HANDLERS || args->name.bytes >= sizeof(handlers[0].name))
		return fail("no room");
	if (args->execute((struct XLA_FFI_CallFrame *)&frame))
		return fail("no version");
	if (metadata.version.major != 0 || metadata.version.minor != 2)
		return fail("newer than this host");
	memcpy(handlers[count].name, args->name.at, args->name.bytes);
	handlers[count].name[args->name.bytes] = '\0';
	handlers[count++].execute = args->execute;
	if (getenv("STANDIN_TELLS"))
		fprintf(stderr, "stand-in for XLA: handler %s\n", handlers[count - 1].name);
	return NULL;
}

const struct ffi_api *get_api(void)
{
	return &api;
}

void standin_set(int major, size_t struct_size, const char *refuses)
{
	api.version.major = major;
	api.struct_size = struct_size ? struct_size : sizeof(api);
	refused = refuses;
}

unsigned int standin_count(void)
{
	return count;
}

struct XLA_FFI_Error *standin_call(const char *name, struct XLA_FFI_CallFrame *frame)
{
	for (unsigned int i = 0; i < count; i++)
		if (!strcmp(handlers[i].name, name))
			return handlers[i].execute(frame);
	return fail("nothing of that name");
}
