/* SPDX-License-Identifier: MIT */
/*
 * The protocol between an engine's process and its clients. docs/reference/engines.md shows the way
 * of a call.
 *
 * The client connects to the Unix socket engine-NAME (SEQPACKET) of the runtime directory. Tokens
 * that the engine gives lead to sockets in the folder engine-NAME.d beside it. The engine sends one
 * welcome. After that the client sends struct wire_cancel by this socket, which the engine reads
 * even during a call, and lifelines to keep. A hang-up ends the link. Calls use two channels and
 * one page. The engine makes all three, so that it never waits for a client to join:
 *
 *   requests  client to engine: struct wire_request.
 *   replies   engine to client: struct wire_reply, one for each request that wants one.
 *   page      struct wire_page: longer texts. The client owns it from a reply to the next request,
 *             else the engine. Each side copies what it reads there once.
 *
 * wire_put_...() write texts into the page and wire_get_...() read them: little-endian, strings and
 * lists with their length before them. Elements of tensors never go this way, only tokens and
 * layouts.
 */
#ifndef TMESH_ENGINE_REMOTE_WIRE_H
#define TMESH_ENGINE_REMOTE_WIRE_H

#include <stdatomic.h>

#include "common/error.h"

#define WIRE_MAGIC UINT32_C(0x32454d54) /* "TME2" */
#define WIRE_SOCKET "engine-"
/* Appended to the socket's name: the folder for the engine's own tokens. */
#define WIRE_FOLDER ".d"
#define WIRE_NAME_LEN 32
/* The time for a cancelled run to end. After it the run's process is ended. */
#define WIRE_STOP_NS UINT64_C(1000000000)
/* The most bytes in the text of one request or reply. */
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
 * From the client: cancel the calls of this link up to @number, running or waiting. The engine
 * answers with the same number and the outcome of that call. Either the call never begins, and its
 * reply, which still comes, has no text. Or it runs or has run, and its reply has the result.
 *
 * With WIRE_LIFELINE and one descriptor: the engine keeps the descriptor open until it has dropped
 * the client. A descriptor that the engine has not read yet stays open as long as the socket.
 */
struct wire_cancel {
	uint32_t magic;
	uint32_t what; /* enum wire_cancel_what; from the client 0 or WIRE_LIFELINE */
	uint64_t number;
};

enum wire_cancel_what {
	WIRE_NEVER_BEGINS = 1,
	WIRE_HAS_BEGUN = 2,
	WIRE_LIFELINE = 3,
};
/* The most lifelines of one client, not counting those that hung up. */
#define WIRE_KEPT 8

struct wire_page {
	/* The engine writes a request's number here before it does anything for it. If the engine
	 * dies, requests with higher numbers were never begun. */
	_Atomic uint64_t begun;
	/* The client writes a request's number here before it sends it. This is for statistics of
	 * waiting calls alone; the engine does not depend on it. */
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
	WIRE_REBIND = 6,      /* id of a binding; values: the inputs to replace */
};

struct wire_request {
	uint32_t op;
	uint32_t id;
	uint64_t number;   /* higher than the one before */
	uint64_t deadline; /* CLOCK_MONOTONIC, ns; 0: none */
	uint32_t bytes;	   /* in the page's text */
	uint32_t reserved;
};

struct wire_reply {
	int32_t code; /* 0, or a negative errno whose message is the page's text */
	uint32_t id;
	uint64_t number; /* of the request */
	uint32_t bytes;	 /* in the page's text */
	uint32_t reserved;
};

/* A text that is written or read. A value that does not fit, or is missing, sets @wrong, and reads
 * return 0 from then on. */
struct wire {
	char *text;
	size_t bytes; /* of room, or of text */
	size_t at;
	bool wrong;
};

void wire_put_u32(struct wire *wire, uint32_t value);
void wire_put_u64(struct wire *wire, uint64_t value);
void wire_put_text(struct wire *wire, const char *text); /* NULL counts as "" */
uint32_t wire_get_u32(struct wire *wire);
uint64_t wire_get_u64(struct wire *wire);
/* Return a string in place, with a zero at its end; "" when wrong. */
const char *wire_get_text(struct wire *wire);

/* A tensor of a list, and whether it is written to. */
struct wire_tensor {
	struct tmesh_tensor *tensor;
	bool write;
};

/*
 * Write a list of tensors: one token for each region, and the layouts. A region's token has the
 * right to write if one of its tensors is written.
 */
int wire_put_tensors(struct wire *wire, const struct wire_tensor *tensors, size_t count,
		     struct tmesh_error *err);
/*
 * Open the tensors of such a list, each region once: at most @max tensors and @max_regions regions.
 * On success @out is an array of @count tensors with references.
 */
int wire_get_tensors(struct wire *wire, struct tmesh_ctx *ctx, size_t max, size_t max_regions,
		     struct wire_tensor **out, size_t *count, size_t *regions,
		     struct tmesh_error *err);
void wire_tensors_free(struct wire_tensor *tensors, size_t count);

/* Return whether the other end of a descriptor hung up. */
bool wire_hung_up(int fd);

/* Return whether @name has 1 to 32 small letters, digits and hyphens. */
bool wire_is_name(const char *name);

#endif /* TMESH_ENGINE_REMOTE_WIRE_H */
