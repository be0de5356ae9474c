/* SPDX-License-Identifier: MIT */
/* cc pages.c $(pkg-config --cflags --libs libtmesh-model) -o pages */
/*
 * An engine's pages, and a router that follows its block tables. `pages` makes a pool, prints the
 * token of its log, and changes a sequence for each line of its input. `pages TOKEN`, in another
 * process, prints the tables as they change until the engine ends.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <tmesh/page_table.h>

/* Run one step of the engine. It has its scratch page to itself, also beside other engines. */
static int step(struct tmesh_pages *pages, struct tmesh_seq *seq, uint32_t scratch,
		struct tmesh_error *err)
{
	int rc = tmesh_pages_get(pages, scratch, err);

	if (rc)
		return rc;
	rc = tmesh_seq_append(seq, 20, err);
	if (!rc)
		fprintf(stderr, "%llu tokens, scratch in page %u\n",
			(unsigned long long)tmesh_seq_tokens(seq), scratch);
	tmesh_pages_put(pages, scratch, NULL);
	return rc;
}

static int changed_by_lines(struct tmesh_pages *pages, struct tmesh_error *err)
{
	uint32_t scratch;
	struct tmesh_seq *seq;
	int rc, c;

	/* Take a page that belongs to no sequence: scratch memory of this handle, which no log
	 * shows. */
	rc = tmesh_pages_alloc(pages, &scratch, err);
	if (rc)
		return rc;
	rc = tmesh_seq_create(pages, &seq, err);
	if (!rc) {
		while (!rc && (c = getchar()) != EOF)
			if (c == '\n')
				rc = step(pages, seq, scratch, err);
		tmesh_seq_free(seq);
	}
	tmesh_pages_put(pages, scratch, NULL);
	return rc;
}

static int engine(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_page_pool_opts opts = {.size = sizeof(opts), .page_tokens = 16};
	char tenant[TMESH_TOKEN_SIZE], log[TMESH_TOKEN_SIZE];
	struct tmesh_page_pool *pool;
	struct tmesh_pages *pages;
	int rc = tmesh_page_pool_create(ctx, &opts, &pool, err);

	if (rc)
		return rc;
	rc = tmesh_page_pool_tenant(pool, 0, tenant, err);
	if (!rc)
		rc = tmesh_pages_open(ctx, tenant, &pages, err);
	if (!rc) {
		rc = tmesh_pages_log(pages, 0, log, err);
		if (!rc) {
			puts(log);
			fflush(stdout);
			rc = changed_by_lines(pages, err);
		}
		tmesh_pages_unref(pages);
	}
	tmesh_page_pool_unref(pool);
	return rc;
}

static void print(const struct tmesh_page_copy *copy)
{
	uint32_t blocks;
	uint64_t tokens;

	for (size_t i = 0; i < tmesh_page_copy_count(copy); i++) {
		uint64_t id = tmesh_page_copy_id(copy, i);

		if (tmesh_page_copy_table(copy, id, &blocks, &tokens))
			printf("sequence %llu: %llu tokens in %u pages\n", (unsigned long long)id,
			       (unsigned long long)tokens, blocks);
	}
	printf("up to record %llu\n", (unsigned long long)tmesh_page_copy_number(copy));
	fflush(stdout);
}

static int router(struct tmesh_ctx *ctx, const char *log, struct tmesh_error *err)
{
	struct tmesh_page_copy *copy;
	struct pollfd due = {.events = POLLIN};
	int rc = tmesh_page_copy_open(ctx, log, &copy, err);

	if (rc)
		return rc;
	due.fd = tmesh_page_copy_poll_fd(copy, err);
	rc = due.fd < 0 ? due.fd : 0;
	while (!rc) {
		rc = tmesh_page_copy_update(copy, err);
		/* The copy fell behind, or a record is damaged: start again from whole tables. */
		if (rc == -ESTALE || rc == -EPROTO)
			rc = tmesh_page_copy_resync(copy, err);
		if (!rc) {
			print(copy);
			poll(&due, 1, -1);
		}
	}
	tmesh_page_copy_close(copy);
	return rc == -EPIPE ? 0 : rc; /* the engine has ended */
}

int main(int argc, char **argv)
{
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc = tmesh_ctx_open(NULL, &ctx, &err);

	if (!rc) {
		rc = argc > 1 ? router(ctx, argv[1], &err) : engine(ctx, &err);
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		fprintf(stderr, "pages: %s\n", err.message);
	return rc ? 1 : 0;
}
