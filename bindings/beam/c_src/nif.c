/* SPDX-License-Identifier: MIT */
/*
 * Loading, code upgrade and the table of functions.
 *
 * The library is linked with -z nodelete. Purging the module never unmaps it, because libtmesh's
 * threads and the destructors of living binaries still run in it. Loading the module again finds
 * the same image with its state. An upgrade to *another* image is refused: its copy of libtmesh
 * must not work on objects of this one. The running code stays.
 */
#include "nif.h"

#include <stdio.h>

ErlNifResourceType *context_type, *handle_type, *pinned_type, *worker_socket_type, *channel_type,
	*channel_end_type, *arrow_stream_type, *gpu_type, *arena_type, *descriptor_type,
	*object_type, *model_type, *origin_type, *slot_reader_type, *slot_end_type, *sequence_type,
	*graph_type, *job_watch_type;

/* The address of this byte identifies the image. */
static char image;

/* Register the resource types. Their names contain the image, so that another image never takes
 * over objects of this one. */
static int open_types(ErlNifEnv *env)
{
	const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
	const struct {
		ErlNifResourceType **type;
		const char *name;
		ErlNifResourceTypeInit init;
	} types[] = {
		{&context_type, "context", {.dtor = context_dtor}},
		{&handle_type, "handle", {.dtor = handle_dtor}},
		{&pinned_type, "pinned", {.dtor = pinned_dtor}},
		{&arrow_stream_type, "arrow_stream", {.dtor = arrow_stream_dtor}},
		{&worker_socket_type,
		 "worker_socket",
		 {.dtor = worker_socket_dtor,
		  .stop = worker_socket_stop,
		  .down = worker_socket_down}},
		{&channel_type, "channel", {.dtor = channel_dtor}},
		{&channel_end_type,
		 "channel_end",
		 {.dtor = channel_end_dtor, .stop = channel_end_stop, .down = channel_end_down}},
		{&gpu_type, "gpu", {.dtor = gpu_dtor}},
		{&arena_type, "arena", {.dtor = arena_dtor}},
		{&descriptor_type, "descriptor", {.dtor = descriptor_dtor}},
		{&object_type, "object", {.dtor = object_dtor}},
		{&model_type, "model", {.dtor = model_dtor}},
		{&origin_type, "origin", {.dtor = origin_dtor}},
		{&slot_reader_type, "slot_reader", {.dtor = slot_reader_dtor}},
		{&sequence_type, "sequence", {.dtor = sequence_dtor}},
		{&graph_type, "graph", {.dtor = graph_dtor}},
		{&job_watch_type, "job_watch", {.down = job_watch_down}},
		{&slot_end_type, "slot_end", {.dtor = slot_end_dtor, .stop = slot_end_stop}},
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		char name[64];

		snprintf(name, sizeof(name), "tmesh_%s@%p", types[i].name, (void *)&image);
		*types[i].type = enif_open_resource_type_x(env, name, &types[i].init, flags, NULL);
		if (!*types[i].type)
			return 1;
	}
	return 0;
}

static int load(ErlNifEnv *env, void **priv_data, ERL_NIF_TERM load_info)
{
	*priv_data = &image;
	make_atoms(env);
	return open_types(env);
}

static int upgrade(ErlNifEnv *env, void **priv_data, void **old_priv_data, ERL_NIF_TERM load_info)
{
	if (*old_priv_data != &image)
		return 1;
	return load(env, priv_data, load_info);
}

/* CPU-bound: copying. I/O-bound: calls that may ask the kernel or wait for a peer. */
#define IO ERL_NIF_DIRTY_JOB_IO_BOUND
#define CPU ERL_NIF_DIRTY_JOB_CPU_BOUND
static ErlNifFunc functions[] = {
#define FUNCTION(name, function, arity, scheduler) {#name, arity, function, scheduler},
#include "functions.h"
};

ERL_NIF_INIT(Elixir.Tmesh.Native, functions, load, NULL, upgrade, NULL)
