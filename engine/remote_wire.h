/* SPDX-License-Identifier: MIT */
/*
 * Between a client of an engine's process and that process. docs/engines.md has the way of a call.
 *
 * The client connects to the Unix socket engine-NAME (SEQPACKET) of the runtime directory. The
 * engine sends one welcome; from then on the socket carries struct wire_cancel from the client, for
 * the engine to read while a call runs, and descriptors to keep: its hang-up is the end. Calls go
 * by two channels and one page, all three made by the engine, so that it never waits for a client
 * to join:
 *
 *   requests  client to engine: struct wire_request
 *   replies   engine to client: struct wire_reply, one for each request that wants one
 *   page      struct wire_page: what is too long for a message. It is the client's from a reply to
 *             the next request, else the engine's. Each side copies what it reads there once.
 *
 * Texts in the page are made by wire_put_...() and read by wire_get_...(): little-endian, texts and
 * lists with their length before them. Elements of tensors never go this way: tokens and layouts
 * do.
 */
#ifndef TMESH_ENGINE_REMOTE_WIRE_H
#define TMESH_ENGINE_REMOTE_WIRE_H

#include <stdatomic.h>

#include "common/error.h"

#define WIRE_MAGIC UINT32_C(0x32454d54) /* "TME2" */
#define WIRE_SOCKET "engine-"
#define WIRE_NAME_LEN 32
/* A run that was called off and does not end has its process ended after this long. */
#define WIRE_STOP_NS UINT64_C(1000000000)
/* Room for the text of one request or reply. */
#define WIRE_TEXT ((1u << 20) - 64)

struct wire_welcome {
	uint32_t magic;
	int32_t code; /* 0, or a negative errno with @message */
	uint32_t pid;
	uint32_t reserved;
	char backend[WIRE_NAME_LEN + 1];
	char version[63];
	char requests[TMESH_TOKEN_SIZE];
	char replies[TMESH_TOKEN_SIZE];
	char page[TMESH_TOKEN_SIZE];
	char message[252];
};

/*
 * From the client: the calls of this link up to @number are called off, the one that runs, and one
 * that waits. The engine answers with the same and what comes of that one: it never begins, and its
 * reply, which will come, has no text; or it runs or has run, and its reply tells.
 *
 * With WIRE_KEEP and one descriptor: the engine has that open until it has dropped the client. What
 * it has not read yet is open too, as long as the socket is.
 */
struct wire_cancel {
	uint32_t magic;
	uint32_t what; /* enum wire_cancel_what; of the client 0 or WIRE_KEEP */
	uint64_t number;
};

enum wire_cancel_what {
	WIRE_NEVER_BEGINS = 1,
	WIRE_HAS_BEGUN = 2,
	WIRE_KEEP = 3,
};
/* Descriptors that one client may have kept, those that hung up not counted. */
#define WIRE_KEPT 8

struct wire_page {
	/* By the engine, before it does anything for a request: the request's number. What has a
	 * higher one when the engine dies was never begun. */
	_Atomic uint64_t begun;
	/* By the client, before it sends a request: the request's number. For those who want to
	 * know whether one waits; the engine does nothing by it. */
	_Atomic uint64_t asked;
	uint64_t reserved[6];
	char text[WIRE_TEXT];
};

enum wire_op {
	WIRE_GRAPH_OPEN = 1,  /* path, flags, weights; gives an id, and text: inputs and outputs */
	WIRE_GRAPH_CLOSE = 2, /* id; no reply */
	WIRE_BIND = 3,	      /* id of a graph; values; gives an id */
	WIRE_UNBIND = 4,      /* id; no reply */
	WIRE_RUN = 5,	      /* id of a binding */
	WIRE_REBIND = 6,      /* id of a binding; values: inputs in others' place */
};

struct wire_request {
	uint32_t op;
	uint32_t id;
	uint64_t number;   /* each one higher than the last */
	uint64_t deadline; /* CLOCK_MONOTONIC, ns; 0: none */
	uint32_t bytes;	   /* in the page's text */
	uint32_t reserved;
};

struct wire_reply {
	int32_t code; /* 0, or a negative errno: its message is the page's text */
	uint32_t id;
	uint64_t number; /* of the request */
	uint32_t bytes;	 /* in the page's text */
	uint32_t reserved;
};

/* A text that is written, or read. What does not fit, or is not there, sets @wrong, and what is
 * read then is 0. */
struct wire {
	char *text;
	size_t bytes; /* of room, or of text */
	size_t at;
	bool wrong;
};

void wire_put_u32(struct wire *wire, uint32_t value);
void wire_put_u64(struct wire *wire, uint64_t value);
void wire_put_text(struct wire *wire, const char *text); /* NULL as "" */
uint32_t wire_get_u32(struct wire *wire);
uint64_t wire_get_u64(struct wire *wire);
/* A text in place, with a zero behind it; "" when wrong. */
const char *wire_get_text(struct wire *wire);

/* A tensor of a list: the place, and whether it is written to. */
struct wire_tensor {
	struct tmesh_tensor *tensor;
	bool write;
};

/*
 * A list of tensors as tokens of their regions, one for each region, and layouts. A region has the
 * right to be written when one of its tensors is.
 */
int wire_put_tensors(struct wire *wire, const struct wire_tensor *tensors, size_t count,
		     struct tmesh_error *err);
/*
 * Open what such a list names, each region once; at most @max tensors, and @max_regions regions. On
 * success @out is an array of @count tensors with references.
 */
int wire_get_tensors(struct wire *wire, struct tmesh_ctx *ctx, size_t max, size_t max_regions,
		     struct wire_tensor **out, size_t *count, size_t *regions,
		     struct tmesh_error *err);
void wire_tensors_free(struct wire_tensor *tensors, size_t count);

/* Whether the other end of a descriptor is gone. */
bool wire_hung_up(int fd);

/* 1 to 32 small letters, digits and hyphens. */
bool wire_is_name(const char *name);

#endif /* TMESH_ENGINE_REMOTE_WIRE_H */
