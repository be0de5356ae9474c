// SPDX-License-Identifier: MIT
/* tmeshctl get: write a region's bytes, or a tensor's, to a file. */
#include <fcntl.h>

#include "common/file_size.h"
#include "npy.h"
#include "tmeshctl.h"

#define PIECE ((size_t)4 << 20)

static const struct option_entry options[] = {
	{"output", 'o', "FILE", "write to FILE (default, and -: standard output)"},
	{"range", 'r', "OFFSET:BYTES", "only these bytes of the region"},
	{"npy", 'n', NULL, "write a .npy file"},
	{NULL},
};

/* The bytes of the region to write, with or without a header. */
struct piece {
	uint64_t offset, bytes;
	bool npy;
	uint8_t header[NPY_MAX];
	size_t header_bytes;
};

/* Write straight from the mapping: if its memory vanishes, write() fails and no signal comes. */
static int write_out(int fd, const char *name, const char *from, uint64_t bytes)
{
	struct progress progress;
	uint64_t done = 0;

	progress_begin(&progress, "get", bytes);
	while (done < bytes) {
		size_t piece = bytes - done < PIECE ? (size_t)(bytes - done) : PIECE;
		ssize_t wrote = tmesh_write(fd, from + done, piece);

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

/* Choose the bytes of a tensor in the region. */
static int choose_tensor(const struct tmesh_layout *layout, const struct tmesh_region_info *info,
			 const char *what, struct piece *piece)
{
	struct npy npy = {.dtype = layout->dtype, .ndim = layout->ndim};

	if (tmesh_layout_check(layout, info->bytes, &piece->bytes, NULL)) {
		fprintf(stderr, "tmeshctl: the %s does not fit the region of the token\n", what);
		return STATUS_FAILED;
	}
	if (!tmesh_layout_is_contiguous(layout)) {
		fprintf(stderr, "tmeshctl: the tensor's elements do not lie together: get "
				"the region by its token\n");
		return STATUS_FAILED;
	}
	piece->offset = layout->offset;
	if (!piece->npy)
		return STATUS_OK;
	memcpy(npy.shape, layout->shape, sizeof(npy.shape));
	piece->header_bytes = npy_format(piece->header, &npy);
	if (piece->header_bytes)
		return STATUS_OK;
	fprintf(stderr, "tmeshctl: NumPy has no %s\n", tmesh_dtype_name(layout->dtype));
	return STATUS_FAILED;
}

/* Choose the bytes of the region that @target names. */
static int choose(const struct target *target, struct tmesh_region *region, struct piece *piece)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_error err;
	struct tmesh_ref ref;
	uint64_t end;

	if (tmesh_region_info(region, &info, &err))
		return complain("asking about the region", &err);
	if (target->has_ref && info.id != target->id) {
		fprintf(stderr, "tmeshctl: the ref does not fit the region of the token\n");
		return STATUS_FAILED;
	}
	if (target->has_ref)
		return choose_tensor(&target->ref.layout, &info, "ref", piece);
	if (piece->npy) {
		if (!tmesh_ref_decode(info.description, strlen(info.description), &ref, NULL))
			return choose_tensor(&ref.layout, &info, "description", piece);
		fprintf(stderr,
			"tmeshctl: the region does not describe a tensor: get it by a ref\n");
		return STATUS_FAILED;
	}
	if (!piece->bytes && piece->offset <= info.bytes)
		piece->bytes = info.bytes - piece->offset;
	if (__builtin_add_overflow(piece->offset, piece->bytes, &end) || end > info.bytes) {
		fprintf(stderr,
			"tmeshctl: %" PRIu64 " bytes at %" PRIu64 " leave the region of %" PRIu64
			"\n",
			piece->bytes, piece->offset, info.bytes);
		return STATUS_FAILED;
	}
	return STATUS_OK;
}

static int write_piece(int fd, const char *name, const char *from, const struct piece *piece)
{
	int status = write_out(fd, name, (const char *)piece->header, piece->header_bytes);

	return status ? status : write_out(fd, name, from + piece->offset, piece->bytes);
}

static int get(const struct target *target, struct tmesh_region *region, const char *file,
	       struct piece *piece)
{
	struct tmesh_error err;
	int fd = STDOUT_FILENO;
	void *from;
	int status;

	status = choose(target, region, piece);
	if (status)
		return status;
	if (tmesh_region_map(region, TMESH_READ, &from, &err))
		return complain("mapping", &err);
	if (strcmp(file, "-"))
		fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	status = fd < 0 ? complain_errno(file) : write_piece(fd, file, from, piece);
	/* Some file systems report a full disk only now. */
	if (fd >= 0 && close(fd) && !status)
		status = complain_errno(file);
	tmesh_region_unmap(region, TMESH_READ);
	return status;
}

static int run_verb_get(const struct verb *verb, int argc, char **argv)
{
	struct piece piece = {0};
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
			range_option(verb, optarg, &piece.offset, &piece.bytes);
			range = true;
			break;
		case 'n':
			piece.npy = true;
			break;
		}
	}
	verb_expect_words(verb, argc, 1, 1);
	parse_target(verb, argv[optind], &target);
	if (!target.token[0])
		usage_error(verb, "reading needs a token or a ref with one");
	if (target.has_ref && range)
		usage_error(verb, "a ref says which bytes it means: --range goes with a token");
	if (piece.npy && range)
		usage_error(verb, "a .npy file holds a whole tensor: --npy excludes --range");
	if (!file && isatty(STDOUT_FILENO))
		usage_error(verb, "bytes would go to the terminal: name a file with -o, or -o -");

	status = open_target(&target, TMESH_READ, &ctx, &region);
	if (status)
		return status;
	status = get(&target, region, file ? file : "-", &piece);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_get = {"get", "TOKEN|REF", "write a region's bytes to a file", options,
			      run_verb_get};
