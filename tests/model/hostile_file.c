// SPDX-License-Identifier: MIT
/*
 * A process of the same user hands over a file whose server answers no more. It does so as a slot's
 * value, with a reader's word, where its tokens lead, and as a region again and again. Usage:
 * hostile_file PATH. It prints "open" when the file is open, and goes on by a line on its standard
 * input. Then it reports the result of each, in TAP without a plan. It ends when the server does.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <tmesh/slot.h>
#include <unistd.h>

#include "shared/publication.h"
#include "common/foreign.h"
#include "common/hex.h"
#include "wire.h"

#define SLOT_MAGIC 0x56304d54u
#define GIVEN 200

static int file = -1;

static void must(bool good, const char *what)
{
	if (good)
		return;
	printf("not ok - %s\n", what);
	fflush(stdout);
	_exit(1);
}

static int answer_with_the_file(struct model_publication *publication, struct model_answer *answer,
				int *fd, void **pin)
{
	*answer = (struct model_answer){UINT64_MAX, 64};
	*fd = fcntl(file, F_DUPFD_CLOEXEC, 0);
	return 0;
}

/* Tokens whose producer has the file for its index (0), or in its index (1). */
static void token_of(int i, struct tmesh_token_fields *parts, char *token)
{
	*parts = (struct tmesh_token_fields){.backend = TMESH_BACKEND_MEMFD,
					     .name = {0xfa, (uint8_t)i}};
	tmesh_token_format(token, parts);
}

static void lead_to_the_file(struct tmesh_ctx *ctx)
{
	for (int i = 0; i < 2; i++) {
		struct tmesh_index_entry entry = {.rights = TMESH_RIGHTS_ALL};
		char token[TMESH_TOKEN_SIZE], path[33];
		struct tmesh_token_fields parts;
		struct tmesh_index *index;
		int dir;

		token_of(i, &parts, token);
		tmesh_hex(path, parts.name, sizeof(parts.name));
		must(!tmesh_rundir_open(ctx, &dir, NULL) &&
			     !tmesh_index_new(parts.name, 1, 64, false, &index, NULL) &&
			     !tmesh_region_create(ctx, 100, NULL, &entry.region, NULL) &&
			     dup2(file, entry.region->fd) >= 0 &&
			     !tmesh_index_add(&index, &entry, NULL) &&
			     !tmesh_rundir_link(dir, path, i ? tmesh_index_fd(index) : file),
		     "an index");
	}
}

/* As a region, and with messages that are none. */
static void give_regions(int socket)
{
	struct tmesh_wire_region wire = {
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = TMESH_READ,
		.id = 1,
		.bytes = 4096,
	};

	must(!model_socket_send(socket, &wire, sizeof(wire), file), "sending the file");
	wire.version++;
	for (int i = 1; i < GIVEN; i++)
		while (model_socket_send(socket, &wire, sizeof(wire), file))
			usleep(1000);
}

_Noreturn static void be_hostile(struct tmesh_ctx *ctx, const char *path, const char *victim,
				 const int ends[2])
{
	char token[TMESH_TOKEN_SIZE], byte;
	struct model_publication *publication;
	struct model_subscription subscription;
	struct tmesh_slot *slot;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	must(!tmesh_slot_create(ctx, NULL, &slot, NULL) && !tmesh_slot_token(slot, token, NULL) &&
		     !model_subscription_open(&subscription, ctx, victim, SLOT_MAGIC, 64, NULL),
	     "making a slot");
	file = open(path, O_RDONLY | O_CLOEXEC);
	must(file >= 0, "opening the file");
	lead_to_the_file(ctx);
	/* As slot.c begins its object: a count, then the publication. Its newest value is being
	 * written.
	 */
	publication = (struct model_publication *)((char *)slot + 8);
	model_host_lock();
	publication->asked = answer_with_the_file;
	((uint64_t *)publication->addr)[8] = 1;
	model_host_unlock();
	must(write(ends[1], token, sizeof(token)) == sizeof(token), "writing");
	must(read(ends[1], &byte, 1) == 1, "reading");
	must(!model_socket_send(subscription.socket.fd, "W", 1, file), "sending the file");
	must(write(ends[1], &byte, 1) == 1, "writing");
	give_regions(ends[1]);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	char token[TMESH_TOKEN_SIZE], own[TMESH_TOKEN_SIZE], byte = '.';
	struct tmesh_slot_reader *reader, *other;
	struct tmesh_slot_value *value;
	struct tmesh_error err;
	struct tmesh_region *region;
	struct tmesh_slot *slot;
	struct tmesh_ctx *ctx;
	struct tmesh_token_fields parts;
	unsigned int taken = 0;
	int ends[2];
	pid_t child;

	must(argc == 2 && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) &&
		     !tmesh_ctx_open(NULL, &ctx, NULL) &&
		     !tmesh_slot_create(ctx, NULL, &slot, NULL) &&
		     !tmesh_slot_token(slot, own, NULL),
	     "a slot");
	child = fork();
	if (!child) {
		must(!tmesh_ctx_open(NULL, &ctx, NULL), "a context");
		be_hostile(ctx, argv[1], own, ends);
	}
	must(read(ends[0], token, sizeof(token)) == sizeof(token) &&
		     !tmesh_slot_open(ctx, token, &reader, &err),
	     "joining");
	puts("open");
	fflush(stdout);
	getchar();
	printf("%s - a slot's reader refuses a file as a value\n",
	       tmesh_slot_read(reader, &value, &err) == -EPROTO && strstr(err.message, "no memory")
		       ? "ok"
		       : "not ok");
	fflush(stdout);
	must(write(ends[0], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1, "the word");
	/* The one thread takes the word first. */
	for (int i = 0; i < 2; i++)
		must(!tmesh_slot_open(ctx, own, &other, &err),
		     "a file that comes with a word keeps the publisher");
	must(!tmesh_slot_publish(slot, NULL, NULL, &err), "publishing");
	puts("ok - a file that comes with a word keeps the publisher from nothing");
	fflush(stdout);
	for (int i = 0; i < 2; i++) {
		token_of(i, &parts, token);
		for (uint32_t rights = TMESH_READ; rights <= TMESH_RIGHTS_ALL;
		     rights += TMESH_WRITE)
			must(tmesh_region_open(ctx, token, rights, &region, &err) == -ENOENT,
			     "a token leads to the file");
	}
	puts("ok - a file where a token leads keeps no process");
	fflush(stdout);
	for (int i = 0; i < GIVEN; i++) {
		int rc = tmesh_region_recv(ctx, ends[0], &region, &err);

		must(rc == -EPROTO || (rc == -EMFILE && strstr(err.message, "servers of files")),
		     "a file that comes as a region is taken");
		taken += rc == -EPROTO;
	}
	must(taken && taken <= TMESH_FOREIGN_OF_PROCESS, "more is taken than can be closed");
	puts("ok - files that come as regions keep no process, and few of them stay");
	fflush(stdout);
	kill(child, SIGKILL);
	return 0;
}
