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
	*bundle_type, *model_type, *origin_type, *slot_type, *slot_reader_type, *slot_end_type,
	*page_pool_type, *pages_type, *sequence_type, *engine_type, *graph_type, *job_watch_type;

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
		{&bundle_type, "bundle", {.dtor = bundle_dtor}},
		{&model_type, "model", {.dtor = model_dtor}},
		{&origin_type, "origin", {.dtor = origin_dtor}},
		{&slot_type, "slot", {.dtor = slot_dtor}},
		{&slot_reader_type, "slot_reader", {.dtor = slot_reader_dtor}},
		{&page_pool_type, "page_pool", {.dtor = page_pool_dtor}},
		{&pages_type, "pages", {.dtor = pages_dtor}},
		{&sequence_type, "sequence", {.dtor = sequence_dtor}},
		{&graph_type, "graph", {.dtor = graph_dtor}},
		{&engine_type, "engine", {.dtor = engine_dtor}},
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
static ErlNifFunc functions[] = {
	{"janitor", 0, janitor, 0},
	{"held_by", 0, held_by, 0},
	{"sweep", 0, sweep, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"context_open", 1, context_open, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"context_limit", 2, context_limit, 0},
	{"context_backend", 1, context_backend, 0},
	{"context_caps", 1, context_caps, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"context_flush", 1, context_flush, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"context_trim", 1, context_trim, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"context_stats", 1, context_stats, 0},
	{"arena_create", 3, arena_create, 0},
	{"create", 4, tensor_create, 0},
	{"put", 6, tensor_put, 0},
	{"open", 3, tensor_open, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"ref", 3, tensor_ref, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"name", 1, tensor_name, 0},
	{"seal", 1, tensor_seal, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"write", 3, tensor_write, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"info", 1, tensor_info, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"regions", 1, regions, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"holders", 2, holders, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"token_id", 2, token_id, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"keep_region", 4, keep_region, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"open_kept", 3, open_kept, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"keep_folder", 5, keep_folder, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"kept_path", 3, kept_path, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"kept_files", 2, kept_files, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"list_kept", 1, list_kept, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"drop_kept", 2, drop_kept, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"engine_connect", 4, engine_connect, 0},
	{"engine_info", 1, engine_info, 0},
	{"engine_graph", 5, engine_graph, 0},
	{"engine_operands", 1, engine_operands, 0},
	{"engine_bind", 5, engine_bind, 0},
	{"engine_rebind", 4, engine_rebind, 0},
	{"engine_keep", 3, engine_keep, 0},
	{"placed_open", 6, placed_open, 0},
	{"placed_partitions", 1, placed_partitions, 0},
	{"placed_move", 3, placed_move, 0},
	{"placed_at", 2, placed_at, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"placed_bind", 4, placed_bind, 0},
	{"placed_tensor", 2, placed_tensor, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"places_open", 2, places_open, 0},
	{"places_sweep", 2, places_sweep, 0},
	{"places_used", 2, places_used, 0},
	{"places_stats", 1, places_stats, 0},
	{"engine_dispatch", 3, engine_dispatch, 0},
	{"engine_cancellable", 1, engine_cancellable, 0},
	{"engine_cancel", 1, engine_cancel, 0},
	{"engine_tensor", 4, engine_tensor, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"engine_tensor_wrap", 4, engine_tensor_wrap, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"engine_tensor_info", 1, engine_tensor_info, 0},
	{"engine_tensor_read", 1, engine_tensor_read, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"engine_tensor_write", 2, engine_tensor_write, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"engine_tensor_export", 1, engine_tensor_export, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"engine_tensor_destroy", 1, engine_tensor_destroy, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"graph_create", 1, graph_create, 0},
	{"graph_parse", 1, graph_parse, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"graph_read", 1, graph_read, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"graph_add", 4, graph_add, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"graph_write", 4, graph_write, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"slot_create", 4, slot_create, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"slot_publish", 2, slot_publish, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"slot_generation", 1, slot_generation, 0},
	{"slot_open", 2, slot_open, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"slot_open_named", 2, slot_open_named, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"slot_read", 2, slot_read, 0},
	{"slot_watch", 2, slot_watch, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"slot_close", 1, slot_close, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"page_pool_create", 2, page_pool_create, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"page_pool_tenant", 2, page_pool_tenant, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"page_pool_info", 1, page_pool_info, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"page_pool_close", 1, page_pool_close, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_open", 2, pages_open, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_info", 1, pages_info, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_head", 2, pages_head, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_hash", 3, pages_hash, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"pages_sequence", 1, pages_sequence, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_find", 2, pages_find, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_open_sequence", 2, pages_open_sequence, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_unshare", 2, pages_unshare, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_trim", 1, pages_trim, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_slab", 5, pages_slab, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"pages_close", 1, pages_close, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_append", 2, seq_append, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_truncate", 2, seq_truncate, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_fork", 1, seq_fork, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_table", 1, seq_table, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_slot_mapping", 3, seq_slot_mapping, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_read", 5, seq_read, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_write", 5, seq_write, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_gather", 2, seq_gather, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_cache", 2, seq_cache, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_share", 1, seq_share, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"seq_release", 1, seq_release, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"revoke", 1, region_revoke, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"reclaim", 2, reclaim, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"lease", 3, lease, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"touch", 1, touch, 0},
	{"fence_signal", 2, fence_signal, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"fence_wait", 3, fence_wait, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"gather", 6, gather, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"export_dmabuf", 4, export_dmabuf, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"descriptor_close", 1, descriptor_close, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"from_dmabuf", 5, from_dmabuf, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"hand_over", 3, hand_over, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"tensor_recv", 5, tensor_recv, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"bundle_create", 5, bundle_create, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"bundle_open", 3, bundle_open, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"bundle_info", 1, bundle_info, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"bundle_tensor", 2, bundle_tensor, 0},
	{"bundle_ref", 3, bundle_ref, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"bundle_hand_over", 3, bundle_hand_over, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"bundle_recv", 2, bundle_recv, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"bundle_release", 1, bundle_release, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"model_load", 8, model_load, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"model_info", 1, model_info, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"model_metadata", 1, model_metadata, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"model_tensor", 2, model_tensor, 0},
	{"model_bundle", 1, model_bundle, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"model_release", 1, model_release, 0},
	{"model_save", 6, model_save, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"release", 1, tensor_release, 0},
	{"tie", 1, tensor_tie, 0},
	{"local", 1, tensor_local, 0},
	{"to_binary", 2, tensor_to_binary, 0},
	{"arrow_stream", 2, arrow_stream, ERL_NIF_DIRTY_JOB_CPU_BOUND},
	{"ref_encode", 1, ref_encode, 0},
	{"ref_decode", 1, ref_decode, 0},
	{"ref_from_members", 1, ref_from_members, 0},
	{"json_decode", 1, json_decode, 0},
	{"worker_connect", 1, worker_connect, 0},
	{"worker_send", 2, worker_send, 0},
	{"worker_recv", 2, worker_recv, 0},
	{"worker_kill", 1, worker_kill, 0},
	{"worker_close", 1, worker_close, 0},
	{"channel_create", 3, channel_create, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"channel_open", 4, channel_open, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"channel_send", 3, channel_send, 0},
	{"channel_recv", 2, channel_recv, 0},
	{"channel_call", 4, channel_call, 0},
	{"channel_flush", 1, channel_flush, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"channel_wait", 2, channel_wait, 0},
	{"channel_watch", 2, channel_watch, 0},
	{"channel_passed", 2, channel_passed, 0},
	{"channel_gone", 1, channel_gone, 0},
	{"channel_cancel", 1, channel_cancel, 0},
	{"channel_close", 1, channel_close, 0},
	{"gpu_alloc", 4, gpu_alloc, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"gpu_open", 3, gpu_open, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"gpu_ref", 1, gpu_ref, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"gpu_info", 1, gpu_info, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"gpu_release", 1, gpu_release, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"xla_register", 1, xla_register, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"xla_bind", 3, xla_bind, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"xla_unbind", 1, xla_unbind, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"xla_cancel", 1, xla_cancel, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"xla_flush", 2, xla_flush, ERL_NIF_DIRTY_JOB_IO_BOUND},
	{"xla_limit", 1, xla_limit, ERL_NIF_DIRTY_JOB_IO_BOUND},
};

ERL_NIF_INIT(Elixir.Tmesh.Native, functions, load, NULL, upgrade, NULL)
