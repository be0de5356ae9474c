/* SPDX-License-Identifier: MIT */
/*
 * Sequences of pages. The library allows one caller at a time. A lock, taken on dirty schedulers
 * alone, serializes calls.
 *
 * No binary points into a page, because other processes may write to it. The kernel copies the
 * bytes of a read. So memory that was taken back gives an error instead of a fault, which would end
 * the VM.
 */
#include "paging.h"

#include <sys/uio.h>
#include <unistd.h>

struct sequence {
	pthread_mutex_t lock;
	struct tmesh_seq *seq; /* NULL: released; @lock guards it and calls with it */
	uint64_t page_bytes;
	struct context *context;
	struct garbage *garbage;
};

static void drop_sequence(void *object)
{
	tmesh_seq_free(object);
}

void sequence_dtor(ErlNifEnv *env, void *object)
{
	struct sequence *sequence = object;

	if (sequence->seq)
		garbage_put(env, sequence->garbage, sequence->seq);
	else
		garbage_free(sequence->garbage);
	enif_release_resource(sequence->context);
	pthread_mutex_destroy(&sequence->lock);
}

static ERL_NIF_TERM make_of(ErlNifEnv *env, struct context *context, uint64_t page_bytes,
			    struct tmesh_seq *seq)
{
	struct sequence *sequence = enif_alloc_resource(sequence_type, sizeof(*sequence));
	uint64_t id = tmesh_seq_id(seq);
	struct tmesh_error err;
	ERL_NIF_TERM term;

	*sequence = (struct sequence){.page_bytes = page_bytes,
				      .context = context,
				      .garbage = garbage_alloc(drop_sequence)};
	enif_keep_resource(context);
	pthread_mutex_init(&sequence->lock, NULL);
	if (sequence->garbage) {
		sequence->seq = seq;
		term = make_ok(env, enif_make_tuple2(env, enif_make_resource(env, sequence),
						     enif_make_uint64(env, id)));
	} else {
		tmesh_seq_free(seq);
		refuse(&err, -ENOMEM, "no memory for a sequence");
		term = make_error(env, &err);
	}
	enif_release_resource(sequence);
	return term;
}

ERL_NIF_TERM make_sequence(ErlNifEnv *env, struct context *context, struct tmesh_pages *pages,
			   struct tmesh_seq *seq)
{
	struct tmesh_pages_info info = {.size = sizeof(info)};
	struct tmesh_error err;

	if (tmesh_pages_info(pages, &info, &err)) {
		tmesh_seq_free(seq);
		return make_error(env, &err);
	}
	return make_of(env, context, info.page_bytes, seq);
}

uint64_t (*get_hashes(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *count,
		      struct tmesh_error *err))[2]
{
	uint64_t(*hashes)[2];
	ErlNifBinary binary;

	if (!enif_inspect_binary(env, term, &binary) || binary.size % HASH_BYTES ||
	    binary.size / HASH_BYTES > TMESH_PAGES_MAX_SEQ) {
		refuse(err, -EINVAL, "hashes have %zu bytes each, and are at most %u", HASH_BYTES,
		       TMESH_PAGES_MAX_SEQ);
		return NULL;
	}
	hashes = enif_alloc(binary.size + 1);
	if (!hashes) {
		refuse(err, -ENOMEM, "no memory for hashes");
		return NULL;
	}
	memcpy(hashes, binary.data, binary.size);
	*count = (uint32_t)(binary.size / HASH_BYTES);
	return hashes;
}

/* Return the sequence of a term, locked, or NULL with @err filled. */
static struct sequence *lock_sequence(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err)
{
	struct sequence *sequence;

	if (!enif_get_resource(env, term, sequence_type, (void **)&sequence)) {
		refuse(err, -EBADF, "not a sequence of this VM");
		return NULL;
	}
	pthread_mutex_lock(&sequence->lock);
	if (sequence->seq)
		return sequence;
	pthread_mutex_unlock(&sequence->lock);
	refuse(err, -EBADF, "the sequence was released");
	return NULL;
}

static ERL_NIF_TERM ok_or_error(ErlNifEnv *env, struct sequence *sequence, int rc,
				const struct tmesh_error *err)
{
	pthread_mutex_unlock(&sequence->lock);
	return rc ? make_error(env, err) : atoms.ok;
}

static ERL_NIF_TERM with_tokens(ErlNifEnv *env, const ERL_NIF_TERM argv[],
				int (*call)(struct tmesh_seq *seq, uint64_t tokens,
					    struct tmesh_error *err))
{
	struct sequence *sequence;
	struct tmesh_error err;
	ErlNifUInt64 tokens;

	if (!enif_get_uint64(env, argv[1], &tokens))
		return make_refusal(env, -EINVAL, "tokens are a number of at least 0");
	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence)
		return make_error(env, &err);
	return ok_or_error(env, sequence, call(sequence->seq, tokens, &err), &err);
}

/* seq_append(sequence, tokens) -> ok */
NIF(seq_append)
{
	return with_tokens(env, argv, tmesh_seq_append);
}

/* seq_truncate(sequence, tokens) -> ok */
NIF(seq_truncate)
{
	return with_tokens(env, argv, tmesh_seq_truncate);
}

/* seq_fork(sequence) -> {ok, {sequence, id}} */
NIF(seq_fork)
{
	struct sequence *sequence;
	struct tmesh_error err;
	struct tmesh_seq *other;
	int rc;

	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence)
		return make_error(env, &err);
	rc = tmesh_seq_fork(sequence->seq, &other, &err);
	pthread_mutex_unlock(&sequence->lock);
	return rc ? make_error(env, &err)
		  : make_of(env, sequence->context, sequence->page_bytes, other);
}

/* seq_table(sequence) -> {ok, {int32 as a binary, tokens}} */
NIF(seq_table)
{
	struct sequence *sequence;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	const int32_t *table;
	unsigned char *data;
	uint64_t tokens;
	uint32_t count;

	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence)
		return make_error(env, &err);
	table = tmesh_seq_table(sequence->seq, &count);
	tokens = tmesh_seq_tokens(sequence->seq);
	data = enif_make_new_binary(env, count * sizeof(*table), &term);
	if (count)
		memcpy(data, table, count * sizeof(*table));
	pthread_mutex_unlock(&sequence->lock);
	return make_ok(env, enif_make_tuple2(env, term, enif_make_uint64(env, tokens)));
}

static int slots(struct tmesh_seq *seq, uint64_t first, uint64_t count, ErlNifBinary *binary,
		 struct tmesh_error *err)
{
	uint64_t tokens = tmesh_seq_tokens(seq);
	int rc;

	if (first > tokens || count > tokens - first)
		return refuse(err, -EINVAL,
			      "the sequence has %llu tokens, not %llu behind token %llu",
			      (unsigned long long)tokens, (unsigned long long)count,
			      (unsigned long long)first);
	if (!enif_alloc_binary(count * sizeof(int64_t), binary))
		return refuse(err, -ENOMEM, "no memory for the places of %llu tokens",
			      (unsigned long long)count);
	rc = tmesh_seq_slot_mapping(seq, first, count, (int64_t *)(void *)binary->data, err);
	if (rc)
		enif_release_binary(binary);
	return rc;
}

/* seq_slot_mapping(sequence, first, count | nil: all) -> {ok, int64 as a binary} */
NIF(seq_slot_mapping)
{
	bool all = enif_is_identical(argv[2], atoms.nil);
	struct sequence *sequence;
	ErlNifUInt64 first, count;
	ErlNifBinary binary;
	struct tmesh_error err;
	uint64_t tokens;
	int rc;

	if (!enif_get_uint64(env, argv[1], &first) ||
	    (!all && !enif_get_uint64(env, argv[2], &count)))
		return make_refusal(env, -EINVAL, "tokens are numbers of at least 0");
	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence)
		return make_error(env, &err);
	tokens = tmesh_seq_tokens(sequence->seq);
	if (all)
		count = first < tokens ? tokens - first : 0;
	rc = slots(sequence->seq, first, count, &binary, &err);
	pthread_mutex_unlock(&sequence->lock);
	return rc ? make_error(env, &err) : make_ok(env, enif_make_binary(env, &binary));
}

/* A part of a page. */
struct place {
	unsigned int index, device;
	ErlNifUInt64 offset, bytes;
};

static bool get_place(ErlNifEnv *env, const ERL_NIF_TERM argv[], struct place *place,
		      struct tmesh_error *err)
{
	return (enif_get_uint(env, argv[1], &place->index) &&
		enif_get_uint(env, argv[2], &place->device) &&
		enif_get_uint64(env, argv[3], &place->offset)) ||
	       refuse(err, -EINVAL, "block, device and offset are numbers of at least 0") == 0;
}

/* Find the address of a place, with @rights on it. */
static int find_place(const struct sequence *sequence, const struct place *place, uint32_t rights,
		      struct iovec *there, struct tmesh_error *err)
{
	void *addr;
	int rc;

	if (place->offset > sequence->page_bytes ||
	    place->bytes > sequence->page_bytes - place->offset)
		return refuse(err, -EINVAL, "a page has %llu bytes, not %llu behind byte %llu",
			      (unsigned long long)sequence->page_bytes,
			      (unsigned long long)place->bytes, (unsigned long long)place->offset);
	rc = tmesh_seq_page(sequence->seq, place->index, place->device, rights, &addr, err);
	*there = (struct iovec){rc ? NULL : (char *)addr + place->offset, place->bytes};
	return rc;
}

static int moved(ssize_t done, uint64_t bytes, struct tmesh_error *err)
{
	if (done == (ssize_t)bytes)
		return 0;
	if (done < 0 && errno != EFAULT)
		return refuse(err, -errno, "the page cannot be copied: %m");
	return refuse(err, -ESTALE, "the page's memory was taken back");
}

static int read_page(const struct sequence *sequence, const struct place *place,
		     ErlNifBinary *binary, struct tmesh_error *err)
{
	struct iovec there, here;
	int rc = find_place(sequence, place, TMESH_READ, &there, err);

	if (rc)
		return rc;
	if (!enif_alloc_binary(place->bytes, binary))
		return refuse(err, -ENOMEM, "no memory for a copy of %llu bytes",
			      (unsigned long long)place->bytes);
	here = (struct iovec){binary->data, binary->size};
	rc = moved(process_vm_readv(getpid(), &here, 1, &there, 1, 0), place->bytes, err);
	if (rc)
		enif_release_binary(binary);
	return rc;
}

/* seq_read(sequence, block, device, offset, bytes | nil: to the end) -> {ok, binary} */
NIF(seq_read)
{
	bool rest = enif_is_identical(argv[4], atoms.nil);
	struct sequence *sequence;
	ErlNifBinary binary;
	struct place place;
	struct tmesh_error err;
	int rc;

	if (!get_place(env, argv, &place, &err))
		return make_error(env, &err);
	if (!rest && !enif_get_uint64(env, argv[4], &place.bytes))
		return make_refusal(env, -EINVAL, "bytes are a number of at least 0");
	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence)
		return make_error(env, &err);
	if (rest)
		place.bytes = place.offset < sequence->page_bytes
				      ? sequence->page_bytes - place.offset
				      : 0;
	rc = read_page(sequence, &place, &binary, &err);
	pthread_mutex_unlock(&sequence->lock);
	return rc ? make_error(env, &err) : make_ok(env, enif_make_binary(env, &binary));
}

/* seq_write(sequence, block, device, offset, binary) -> ok */
NIF(seq_write)
{
	struct sequence *sequence;
	struct iovec there, here;
	ErlNifBinary binary;
	struct place place;
	struct tmesh_error err;
	int rc;

	if (!get_place(env, argv, &place, &err))
		return make_error(env, &err);
	if (!enif_inspect_binary(env, argv[4], &binary))
		return make_refusal(env, -EINVAL, "a write wants a binary");
	place.bytes = binary.size;
	here = (struct iovec){binary.data, binary.size};
	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence)
		return make_error(env, &err);
	rc = find_place(sequence, &place, TMESH_READ | TMESH_WRITE, &there, &err);
	if (!rc)
		rc = moved(process_vm_writev(getpid(), &here, 1, &there, 1, 0), place.bytes, &err);
	return ok_or_error(env, sequence, rc, &err);
}

/* seq_gather(sequence, device) -> {ok, {handle, ref}} */
NIF(seq_gather)
{
	struct tmesh_region *region;
	struct sequence *sequence;
	struct tmesh_error err;
	unsigned int device;
	ERL_NIF_TERM term;
	bool made;
	int rc;

	if (!enif_get_uint(env, argv[1], &device))
		return make_refusal(env, -EINVAL, "a device is a number of at least 0");
	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence)
		return make_error(env, &err);
	rc = tmesh_seq_gather(sequence->seq, device, &region, &err);
	pthread_mutex_unlock(&sequence->lock);
	if (rc)
		return make_error(env, &err);
	made = wrap_region(env, sequence->context, region, &term, &err);
	tmesh_region_unref(region);
	return made ? make_ok(env, term) : make_error(env, &err);
}

/* seq_cache(sequence, consecutive hashes) -> ok */
NIF(seq_cache)
{
	struct sequence *sequence;
	uint64_t(*hashes)[2];
	struct tmesh_error err;
	uint32_t count;
	int rc;

	hashes = get_hashes(env, argv[1], &count, &err);
	if (!hashes)
		return make_error(env, &err);
	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence) {
		enif_free(hashes);
		return make_error(env, &err);
	}
	rc = tmesh_seq_cache(sequence->seq, hashes, count, &err);
	enif_free(hashes);
	return ok_or_error(env, sequence, rc, &err);
}

/* seq_share(sequence) -> {ok, ticket} */
NIF(seq_share)
{
	char ticket[TMESH_PAGES_TICKET_SIZE];
	struct sequence *sequence;
	struct tmesh_error err;
	int rc;

	sequence = lock_sequence(env, argv[0], &err);
	if (!sequence)
		return make_error(env, &err);
	rc = tmesh_seq_share(sequence->seq, ticket, &err);
	pthread_mutex_unlock(&sequence->lock);
	return rc ? make_error(env, &err) : make_ok(env, make_string(env, ticket));
}

/* seq_release(sequence) -> ok, also when repeated */
NIF(seq_release)
{
	struct sequence *sequence;
	struct tmesh_seq *taken;

	if (!enif_get_resource(env, argv[0], sequence_type, (void **)&sequence))
		return make_refusal(env, -EBADF, "not a sequence of this VM");
	pthread_mutex_lock(&sequence->lock);
	taken = sequence->seq;
	sequence->seq = NULL;
	pthread_mutex_unlock(&sequence->lock);
	tmesh_seq_free(taken);
	return atoms.ok;
}
