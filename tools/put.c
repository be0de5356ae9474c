// SPDX-License-Identifier: MIT
/*
 * tmeshctl put: copy a file's bytes into a region.
 *
 * The bytes pass through a buffer that stays in the CPU's cache. On memfd that takes about half the
 * time of reading into a mapping, which faults page by page. It also leaves no writable mapping
 * behind, which would prevent sealing.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "npy.h"
#include "tensor_args.h"

#define BUFFER ((size_t)1 << 20)

static const struct option_entry options[] = {
	TENSOR_OPTIONS,
	{"unsealed", 'U', NULL, "leave it writable (default: sealed before any process sees it)"},
	{"npy", 'n', NULL, "it is a .npy file, which says dtype and shape itself"},
	{"hold", 'H', "SECONDS", "return; hold until the ref was opened, at most so long"},
	{NULL},
};

struct source {
	const char *name;
	int fd;
	char *ahead; /* bytes that were read to find the size, or NULL */
	uint64_t ahead_bytes, ahead_used;
	uint64_t header; /* bytes before the elements */
};

/* Read up to @room bytes; fewer only at the end of input. */
static ssize_t source_read(struct source *source, char *to, size_t room)
{
	size_t done = 0;

	if (source->ahead) {
		uint64_t left = source->ahead_bytes - source->ahead_used;

		done = left < room ? (size_t)left : room;
		memcpy(to, source->ahead + source->ahead_used, done);
		source->ahead_used += done;
		return (ssize_t)done;
	}
	while (done < room) {
		ssize_t got = read(source->fd, to + done, room - done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (!got)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

/* Collect a pipe's bytes first, because its size is unknown. */
static int read_ahead(struct source *source)
{
	size_t room = 0, bytes = 0;
	char *data = NULL;
	ssize_t got;

	do {
		char *larger;

		room = room ? 2 * room : BUFFER;
		larger = realloc(data, room);
		if (!larger) {
			free(data);
			return complain_errno(source->name);
		}
		data = larger;
		got = source_read(source, data + bytes, room - bytes);
		if (got < 0) {
			free(data);
			return complain_errno(source->name);
		}
		bytes += (size_t)got;
	} while (bytes == room);
	source->ahead = data;
	source->ahead_bytes = bytes;
	return STATUS_OK;
}

/* Read the header of a .npy file, which replaces --dtype and --shape. */
static int read_npy(struct tensor_args *args, struct source *source)
{
	uint8_t header[NPY_MAX];
	const char *why = "it ends within its .npy header";
	struct npy npy;
	size_t length = 0;
	ssize_t got;

	got = source_read(source, (char *)header, NPY_PREFIX);
	if (got < 0)
		return complain_errno(source->name);
	if (got == NPY_PREFIX)
		length = npy_length(header, &why);
	if (length) {
		size_t rest = length - NPY_PREFIX;

		got = source_read(source, (char *)header + NPY_PREFIX, rest);
		if (got < 0)
			return complain_errno(source->name);
		if (got < (ssize_t)rest)
			why = "it ends within its .npy header";
		else if (npy_parse(header, length, &npy, &why)) {
			args->dtype = npy.dtype;
			args->ndim = npy.ndim;
			memcpy(args->shape, npy.shape, sizeof(args->shape));
			args->has_shape = true;
			source->header = length;
			return STATUS_OK;
		}
	}
	fprintf(stderr, "tmeshctl: %s\n", why);
	return STATUS_FAILED;
}

/* If no shape was given, use one dimension of all the elements. */
static int measure(struct tensor_args *args, struct source *source, uint64_t *bytes)
{
	uint64_t elements, bits = tmesh_dtype_bits(args->dtype), there = 0;
	struct stat st;
	bool known;
	int status = STATUS_OK;

	if (fstat(source->fd, &st))
		return complain_errno(source->name);
	known = S_ISREG(st.st_mode);
	if (!known && !args->has_shape) {
		status = read_ahead(source);
		if (status)
			return status;
	}
	if (known)
		there = (uint64_t)st.st_size < source->header
				? 0
				: (uint64_t)st.st_size - source->header;
	if (!args->has_shape) {
		if (!known)
			there = source->ahead_bytes;
		if (__builtin_mul_overflow(there, 8, &elements) || elements % bits) {
			fprintf(stderr,
				"tmeshctl: its %" PRIu64 " bytes are not a whole number of %s\n",
				there, tmesh_dtype_name(args->dtype));
			return STATUS_FAILED;
		}
		args->ndim = 1;
		args->shape[0] = (int64_t)(elements / bits);
	}
	status = tensor_bytes(args, bytes);
	if (!status && known && there != *bytes) {
		fprintf(stderr,
			"tmeshctl: the file has %" PRIu64 " bytes%s, the shape needs %" PRIu64 "\n",
			there, source->header ? " behind its header" : "", *bytes);
		status = STATUS_FAILED;
	}
	return status;
}

/* Copy one buffer. @done and @bytes serve the error message about a short input. */
static int copy_piece(struct source *source, struct tmesh_region *region, char *buffer,
		      uint64_t done, uint64_t bytes, struct progress *progress)
{
	size_t want = bytes - done < BUFFER ? (size_t)(bytes - done) : BUFFER;
	ssize_t got = source_read(source, buffer, want);
	struct tmesh_error err;

	if (got == (ssize_t)want && !tmesh_region_write(region, done, buffer, want, &err)) {
		progress_update(progress, done + want);
		return STATUS_OK;
	}
	/* The error gets a line of its own. */
	progress_end(progress);
	if (got < 0)
		return complain_errno(source->name);
	if (got == (ssize_t)want)
		return complain("writing to the region", &err);
	fprintf(stderr, "tmeshctl: the input ends after %" PRIu64 " of %" PRIu64 " bytes\n",
		done + (uint64_t)got, bytes);
	return STATUS_FAILED;
}

static int copy_in(struct source *source, struct tmesh_region *region, uint64_t bytes)
{
	char *buffer = malloc(BUFFER);
	struct progress progress;
	int status = STATUS_OK;

	if (!buffer)
		return complain_errno(source->name);
	progress_begin(&progress, "put", bytes);
	for (uint64_t done = 0; done < bytes && !status; done += BUFFER)
		status = copy_piece(source, region, buffer, done, bytes, &progress);
	if (!status) {
		progress_end(&progress);
		if (source_read(source, buffer, 1) > 0) {
			fprintf(stderr,
				"tmeshctl: there is more input than the %" PRIu64
				" bytes of the tensor\n",
				bytes);
			status = STATUS_FAILED;
		}
	}
	free(buffer);
	return status;
}

static int put_tensor(struct tensor_args *args, struct source *source, bool is_npy)
{
	struct tmesh_tensor *tensor;
	struct tmesh_ctx *ctx;
	uint64_t bytes;
	int status = is_npy ? read_npy(args, source) : STATUS_OK;

	if (!status)
		status = measure(args, source, &bytes);
	if (!status)
		status = tensor_new(args, &ctx, &tensor);
	if (status)
		return status;
	status = copy_in(source, tmesh_tensor_region(tensor), bytes);
	if (status)
		tmesh_tensor_unref(tensor);
	else
		status = tensor_hold(args, tensor);
	tmesh_ctx_unref(ctx);
	return status;
}

static int run_verb_put(const struct verb *verb, int argc, char **argv)
{
	struct tensor_args args = TENSOR_ARGS_INIT;
	struct source source = {0};
	bool is_npy = false, described = false;
	int key, status;

	args.seal = true;
	args.hold.command = split_command(verb, &argc, argv);
	while ((key = verb_option(verb, argc, argv)) != -1) {
		is_npy |= key == 'n';
		described |= key == 'd' || key == 's';
		tensor_option(verb, &args, key, optarg);
	}
	verb_expect_words(verb, argc, 1, 1);
	if (is_npy && described)
		usage_error(verb, "a .npy file says itself what it is: --npy excludes --dtype and "
				  "--shape");
	tensor_check(verb, &args);

	source.name = argv[optind];
	source.fd =
		strcmp(source.name, "-") ? open(source.name, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
	if (source.fd < 0)
		return complain_errno(source.name);
	status = hold_begin(&args.hold);
	if (!status)
		status = put_tensor(&args, &source, is_npy);
	free(source.ahead);
	return status;
}

const struct verb verb_put = {"put", "FILE|- [-- COMMAND [ARGUMENT...]]",
			      "put a file's bytes in a region and hold it", options, run_verb_put};
