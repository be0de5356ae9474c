/* SPDX-License-Identifier: MIT */
/* What the two files of the driver share. */
#ifndef CONFORMANCE_DRIVER_H
#define CONFORMANCE_DRIVER_H

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include <tmesh/slot.h>
#include <tmesh/tmesh.h>

#define MS INT64_C(1000000)
#define MIB (UINT64_C(1) << 20)
#define RW (TMESH_READ | TMESH_WRITE)

/* What a name stands for: one of these. */
struct object {
	char name[32];
	struct tmesh_tensor *tensor;
	struct tmesh_channel *channel;
	struct tmesh_arena *arena;
	struct tmesh_bundle *bundle;
	struct tmesh_region *pin;
	struct tmesh_slot *slot;
	struct tmesh_slot_reader *reader;
	int fd; /* 0: none */
};

struct verb {
	const char *name;
	/* 0 or a negative errno, as the library gives it. */
	int (*run)(void);
};

extern struct tmesh_ctx *ctx;
extern struct tmesh_error why;
/* The command. */
extern char *fields[16];
extern int count;

/* More of the value that is answered. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);
_Noreturn void give_up(const char *what);

const char *field(int i);
const char *option(const char *key);
bool flag(const char *key);
uint64_t number(const char *key);
int64_t timeout_ns(void);
/* "[2,3]" */
int32_t numbers(const char *text, int64_t out[16]);

struct object *find(const char *name);
/* What the command is about. */
struct tmesh_tensor *tensor(void);
struct tmesh_region *region(void);
void keep(const char *name, struct object made);
/* "uint8 [2,3] sealed" */
int look_at(struct tmesh_tensor *it);
/* What a call has made is kept and shown. */
int made(int rc, struct tmesh_tensor **it);

/* driver_reach.c: ends with a verb without a name. */
extern const struct verb reach_verbs[];
void end_keeper(void);

#endif /* CONFORMANCE_DRIVER_H */
