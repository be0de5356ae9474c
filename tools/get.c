// SPDX-License-Identifier: MIT
/* tmeshctl get: a region's bytes, or a tensor's, to a file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <getopt.h>
#include <unistd.h>

#include "tmeshctl.h"

#define PIECE ((size_t)4 << 20)

static const struct option_entry options[] = {
	{"output", 'o', "FILE", "write to FILE (default, and -: standard output)"},
	{"range", 'r', "OFFSET:BYTES", "only these bytes of the region"},
	{NULL},
};

/* Straight from the mapping: memory that vanishes meanwhile is an error, not a signal. */
static int write_out(int fd, const char *name, const char *from, uint64_t bytes)
{
	struct progress progress;
	uint64_t done = 0;

	progress_begin(&progress, "get", bytes);
	while (done < bytes) {
		size_t piece = bytes - done < PIECE ? (size_t)(bytes - done) : PIECE;
		ssize_t wrote = write(fd, from + done, piece);

		if (wrote < 0 && errno == EINTR)
			continue;
		if (wrote < 0) {
			progress_end(&progress);
			return complain_errno(errno == EFAULT ? "the region was revoked" : name);
		}
		done += (uint64_t)wrote;
		progress_update(&progress, done);
	}
	progress_end(&progress);
	return STATUS_OK;
}

/* Which bytes of the region are meant. */
static int choose(const struct target *target, struct tmesh_region *region, uint64_t *offset,
		  uint64_t *bytes)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	const struct tmesh_layout *layout = &target->ref.layout;
	struct tmesh_error err;
	uint64_t end;

	if (tmesh_region_info(region, &info, &err))
		return complain("asking about the region", &err);
	if (target->has_ref) {
		if (info.id != target->id || tmesh_layout_check(layout, info.bytes, bytes, &err)) {
			fprintf(stderr, "tmeshctl: the ref does not fit the region of its token\n");
			return STATUS_FAILED;
		}
		if (!tmesh_layout_is_contiguous(layout)) {
			fprintf(stderr, "tmeshctl: the tensor's elements do not lie together: get "
					"the region by its token\n");
			return STATUS_FAILED;
		}
		*offset = layout->offset;
		return STATUS_OK;
	}
	if (!*bytes && *offset <= info.bytes)
		*bytes = info.bytes - *offset;
	if (__builtin_add_overflow(*offset, *bytes, &end) || end > info.bytes) {
		fprintf(stderr,
			"tmeshctl: %" PRIu64 " bytes at %" PRIu64 " leave the region of %" PRIu64
			"\n",
			*bytes, *offset, info.bytes);
		return STATUS_FAILED;
	}
	return STATUS_OK;
}

static int get(const struct target *target, struct tmesh_region *region, const char *file,
	       uint64_t offset, uint64_t bytes)
{
	struct tmesh_error err;
	int fd = STDOUT_FILENO;
	void *from;
	int status;

	status = choose(target, region, &offset, &bytes);
	if (status)
		return status;
	if (tmesh_region_map(region, TMESH_READ, &from, &err))
		return complain("mapping", &err);
	if (strcmp(file, "-"))
		fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	status = fd < 0 ? complain_errno(file)
			: write_out(fd, file, (const char *)from + offset, bytes);
	/* Some file systems tell of a full disk only now. */
	if (fd >= 0 && close(fd) && !status)
		status = complain_errno(file);
	tmesh_region_unmap(region, TMESH_READ);
	return status;
}

static int run(const struct verb *verb, int argc, char **argv)
{
	uint64_t offset = 0, bytes = 0;
	struct tmesh_region *region;
	const char *file = NULL;
	struct tmesh_ctx *ctx;
	struct target target;
	bool range = false;
	int key, status;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'o':
			file = optarg;
			break;
		case 'r':
			range_option(verb, optarg, &offset, &bytes);
			range = true;
			break;
		}
	}
	verb_expect_words(verb, argc, 1, 1);
	parse_target(verb, argv[optind], &target);
	if (!target.token[0])
		usage_error(verb, "reading needs a token or a ref with one");
	if (target.has_ref && range)
		usage_error(verb, "a ref says which bytes it means: --range goes with a token");
	if (!file && isatty(STDOUT_FILENO))
		usage_error(verb, "bytes would go to the terminal: name a file with -o, or -o -");

	status = open_target(&target, TMESH_READ, &ctx, &region);
	if (status)
		return status;
	status = get(&target, region, file ? file : "-", offset, bytes);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_get = {"get", "TOKEN|REF", "write a region's bytes to a file", options, run};
