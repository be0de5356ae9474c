// SPDX-License-Identifier: MIT
/* Block types, checked against ggml's own table: an older ggml lacks some of the graphs' types. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/file_size.h"
#include "ggml_internal.h"

/* The header of a GGUF file with one tensor, "t", of one block. Reading it does not read the
 * block. */
struct gguf_file {
	char magic[4];
	uint32_t version;
	uint64_t tensors, values;
	uint64_t name_bytes;
	char name;
	uint8_t rest[31]; /* dimensions, type, offset; up to a multiple of 32 bytes */
} __attribute__((packed));

/*
 * Return whether ggml knows the type's number. Its calls do not check numbers, and none returns how
 * many there are. Its file reader refuses unknown numbers.
 */
static bool has_number(const struct ggml_api *api, const struct graph_quant *quant)
{
	struct gguf_file file = {{'G', 'G', 'U', 'F'}, 3, 1, 0, 1, 't', {0}};
	const uint32_t ndim = 1, type = (uint32_t)quant->gguf;
	const uint64_t elements = quant->block_elements;
	struct gguf_context *read;
	uint8_t *at = file.rest;
	char path[64];
	int fd = memfd_create("tmesh-type", MFD_CLOEXEC);

	if (fd < 0)
		return false;
	at = mempcpy(at, &ndim, sizeof(ndim));
	at = mempcpy(at, &elements, sizeof(elements));
	memcpy(at, &type, sizeof(type));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	read = tmesh_write(fd, &file, sizeof(file)) == sizeof(file)
		       ? api->read_file(path, (struct gguf_params){.no_alloc = true})
		       : NULL;
	if (read)
		api->free_file(read);
	close(fd);
	return read;
}

int ggml_check_quant(const struct ggml_engine *engine, const struct tmesh_graph_node *node,
		     struct tmesh_error *err)
{
	const struct graph_quant *quant = graph_quant(node->quant);
	const struct ggml_api *api = &engine->api;
	unsigned int type;

	if (!quant)
		return 0;
	type = (unsigned int)quant->gguf;
	if (has_number(api, quant) && !strcasecmp(api->type_name(type), quant->name) &&
	    api->blck_size(type) == quant->block_elements &&
	    api->type_size(type) == quant->block_bytes)
		return 0;
	return tmesh_fail(err, -EOPNOTSUPP,
			  "weight \"%s\": ggml %.40s has no type %s: use a newer ggml, or the "
			  "model in another type",
			  node->name, api->version(), quant->name);
}
