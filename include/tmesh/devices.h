/* SPDX-License-Identifier: MIT */
/*
 * Devices: what this machine has to compute with, and which engines run there. Part of
 * libtmesh-engine; see tmesh/tmesh.h for the conventions of all calls. Since 0.2.
 *
 * A list is a picture of one moment; nothing changes in it. Any number of threads may read it.
 */
#ifndef TMESH_DEVICES_H
#define TMESH_DEVICES_H

#include <tmesh/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_devices;

/* The engine's own library, where the caller knows better than tmesh_engine_context_create(). */
struct tmesh_devices_library {
	const char *engine; /* "ggml" */
	const char *library;
};

struct tmesh_devices_opts {
	size_t size; /* sizeof(struct tmesh_devices_opts) */
	const struct tmesh_devices_library *libraries;
	size_t library_count;
	const char *root; /* a folder that has sys and proc, for tests; NULL: the machine's own */
};

/*
 * The processors of each NUMA node with its memory, the GPUs that libtmesh-cuda tells of where it
 * is installed, and the engines. Each engine that is found is loaded into this process, for good,
 * and asked with small graphs what it can run: a program that is not to have them runs tmeshctl
 * devices. Return: 0 and a reference in @out; -EINVAL (opts), -EIO (the machine tells nothing of
 * its memory), -ENOMEM. That an engine or a GPU cannot be used is no error: the list has the
 * reason.
 */
int tmesh_devices_find(const struct tmesh_devices_opts *opts, struct tmesh_devices **out,
		       struct tmesh_error *err);
struct tmesh_devices *tmesh_devices_ref(struct tmesh_devices *devices);
void tmesh_devices_unref(struct tmesh_devices *devices);

#define TMESH_DEVICES_UNKNOWN UINT64_MAX

struct tmesh_devices_device {
	size_t size; /* in: sizeof(struct tmesh_devices_device) */
	char id[16]; /* "cpu:0": of NUMA node 0; "cuda:0" */
	char name[64];
	enum tmesh_device_type device_type;
	int32_t device_id;
	int32_t node;	      /* the NUMA node; -1: unknown */
	uint32_t processors;  /* of a CPU; else 0 */
	uint64_t memory;      /* bytes */
	uint64_t memory_free; /* bytes that can be had now, caches given up; or UNKNOWN */
	uint64_t engines;     /* a bit for each that runs there, by its index */
	char reason[160];     /* why no engine runs there, or "" */
};
size_t tmesh_devices_count(const struct tmesh_devices *devices);
/* By index. -EINVAL: no such one. */
int tmesh_devices_device(const struct tmesh_devices *devices, size_t index,
			 struct tmesh_devices_device *out, struct tmesh_error *err);

#define TMESH_DEVICES_MAX_ENGINES 16
#define TMESH_DEVICES_OPERATORS 32

struct tmesh_devices_engine {
	size_t size; /* in: sizeof(struct tmesh_devices_engine) */
	char name[40];
	char version[64];  /* of its library; "": it cannot be used */
	char library[256]; /* the file of it; "": unknown */
	char reads[16];	   /* "graph": of tmesh/graph.h; "onnx"; "": unknown */
	char reason[252];  /* why it cannot be used, or "" */
	/* Bits 1 << enum tmesh_dtype: of its inputs and outputs. */
	uint64_t dtypes;
	/* Of an engine that reads "graph", by enum tmesh_graph_op: with which dtypes of the operand
	 * that may have several it runs that; 0: it does not. Tried, not declared. */
	uint64_t operators[TMESH_DEVICES_OPERATORS];
	/* Bits 1 << enum tmesh_device_type: kinds of devices that it was never run on. What it has
	 * for them was compiled, and tried on stand-ins at most. */
	uint64_t never_seen;
};
size_t tmesh_devices_engines(const struct tmesh_devices *devices);
int tmesh_devices_engine(const struct tmesh_devices *devices, size_t index,
			 struct tmesh_devices_engine *out, struct tmesh_error *err);

/* All of it as JSON, to be released with free(); tmeshctl devices --json prints it. NULL: no
 * memory. */
char *tmesh_devices_to_json(const struct tmesh_devices *devices);
/*
 * The list that another process has found, from its JSON: for a process that is not to have the
 * engines, which runs tmeshctl devices --json. What it says of the machine is believed. Return: 0
 * and a reference in @out; -EPROTO (malformed), -ENOMEM.
 */
int tmesh_devices_parse(const char *text, size_t bytes, struct tmesh_devices **out,
			struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_DEVICES_H */
