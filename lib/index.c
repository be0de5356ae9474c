// SPDX-License-Identifier: MIT
/*
 * Index: which descriptor a token's region has in the producer, in memory that the producer
 * writes and others only read. A process that has it finds a region without waking the
 * producer. docs/internals/rendezvous.md has the layout and the argument why it is safe.
 *
 * It is an open-addressing table with linear probing, at most half full. A bucket's tag is a
 * keyed hash of the token's secret, so that reading the index gives no token away.
 */
#include "common/file_size.h"
#include "wire.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A view of more buckets than any descriptor table has is no index. */
#define BUCKETS_MAX (1u << 24)

struct tmesh_index {
	int fd;
	struct tmesh_index_head *head;
	size_t bytes;
	uint32_t used;
	bool keep_mode;
	struct tmesh_index_entry *entries; /* beside the buckets */
};

static struct tmesh_index_bucket *buckets_of(const struct tmesh_index_head *head)
{
	return (struct tmesh_index_bucket *)((uint8_t *)head + TMESH_INDEX_HEAD);
}

static size_t bytes_of(uint32_t buckets)
{
	return TMESH_INDEX_HEAD + (size_t)buckets * sizeof(struct tmesh_index_bucket);
}

static uint64_t tag_of(const struct tmesh_index_head *head, const uint8_t *secret)
{
	uint64_t tag = tmesh_siphash(head->key, secret, TMESH_SECRET_BYTES);

	return tag ? tag : 1;
}

static int index_map(struct tmesh_index *index, struct tmesh_error *err)
{
	/* Made so by us and for good: it cannot shrink under a reader, and no process can map it
	 * for writing after us. */
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

	if ((!index->keep_mode && fchmod(index->fd, 0600)) ||
	    tmesh_ftruncate(index->fd, (off_t)index->bytes))
		return tmesh_fail_errno(err, "the index of tokens");
	index->head = mmap(NULL, index->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, index->fd, 0);
	if (index->head == MAP_FAILED) {
		index->head = NULL;
		return tmesh_fail_errno(err, "mmap of the index of tokens");
	}
	/* A forked child must not write here. */
	if (madvise(index->head, index->bytes, MADV_DONTFORK) ||
	    fcntl(index->fd, F_ADD_SEALS, seals))
		return tmesh_fail_errno(err, "sealing the index of tokens");
	return 0;
}

int tmesh_index_new(const uint8_t *name, uint64_t number, uint32_t buckets, bool keep_mode,
		    struct tmesh_index **out, struct tmesh_error *err)
{
	struct tmesh_index *index = calloc(1, sizeof(*index));
	int rc;

	if (!index)
		return tmesh_fail(err, -ENOMEM, "no memory for the index of tokens");
	index->bytes = bytes_of(buckets);
	index->keep_mode = keep_mode;
	index->fd = memfd_create(TMESH_INDEX_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	index->entries = calloc(buckets, sizeof(*index->entries));
	if (index->fd < 0)
		rc = tmesh_fail_errno(err, "memfd_create for the index of tokens");
	else if (!index->entries)
		rc = tmesh_fail(err, -ENOMEM, "no memory for the index of tokens");
	else
		rc = index_map(index, err);
	if (!rc)
		rc = tmesh_random(index->head->key, sizeof(index->head->key), err);
	if (rc) {
		tmesh_index_free(index);
		return rc;
	}
	index->head->magic = TMESH_MAGIC_INDEX;
	index->head->version = TMESH_WIRE_VERSION;
	index->head->number = number;
	index->head->buckets = buckets;
	memcpy(index->head->name, name, sizeof(index->head->name));
	*out = index;
	return 0;
}

void tmesh_index_forget(struct tmesh_index *index)
{
	if (index->fd >= 0)
		close(index->fd);
	free(index->entries);
	free(index);
}

void tmesh_index_free(struct tmesh_index *index)
{
	if (index->head) {
		atomic_store(&index->head->closed, 1);
		munmap(index->head, index->bytes);
	}
	tmesh_index_forget(index);
}

int tmesh_index_fd(const struct tmesh_index *index)
{
	return index->fd;
}

uint64_t tmesh_index_number(const struct tmesh_index *index)
{
	return index->head->number;
}

static uint32_t index_find_entry(const struct tmesh_index *index, const uint8_t *secret)
{
	const struct tmesh_index_bucket *buckets = buckets_of(index->head);
	uint32_t mask = index->head->buckets - 1;
	uint64_t tag = tag_of(index->head, secret);
	uint32_t i = (uint32_t)tag & mask;

	for (;; i = (i + 1) & mask) {
		uint64_t there = atomic_load_explicit(&buckets[i].tag, memory_order_relaxed);

		if (there == 0 || (there == tag && memcmp(index->entries[i].secret, secret,
							  TMESH_SECRET_BYTES) == 0))
			return i;
	}
}

static void bucket_begin(struct tmesh_index_bucket *bucket)
{
	uint32_t seq = atomic_load_explicit(&bucket->seq, memory_order_relaxed);

	atomic_store_explicit(&bucket->seq, seq + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
}

static void bucket_end(struct tmesh_index_bucket *bucket)
{
	uint32_t seq = atomic_load_explicit(&bucket->seq, memory_order_relaxed);

	atomic_store_explicit(&bucket->seq, seq + 1, memory_order_release);
}

static void bucket_clear(struct tmesh_index_bucket *bucket)
{
	bucket_begin(bucket);
	atomic_store_explicit(&bucket->tag, 0, memory_order_relaxed);
	bucket_end(bucket);
}

#define COPY(to, from, member)                                                             \
	atomic_store_explicit(&(to)->member,                                               \
			      atomic_load_explicit(&(from)->member, memory_order_relaxed), \
			      memory_order_relaxed)

static void bucket_copy(struct tmesh_index_bucket *to, const struct tmesh_index_bucket *from)
{
	bucket_begin(to);
	COPY(to, from, tag);
	COPY(to, from, fd);
	COPY(to, from, dev);
	COPY(to, from, ino);
	COPY(to, from, id);
	COPY(to, from, bytes);
	COPY(to, from, rights);
	COPY(to, from, kind);
	COPY(to, from, read_only);
	COPY(to, from, writes);
	bucket_end(to);
}

/* Double the index. Readers of the old one see that it is closed and ask for the new one. */
static int grow(struct tmesh_index **index, struct tmesh_error *err)
{
	struct tmesh_index *old = *index, *larger;
	int rc = tmesh_index_new(old->head->name, old->head->number + 1, old->head->buckets * 2,
				 old->keep_mode, &larger, err);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < old->head->buckets; i++) {
		const struct tmesh_index_bucket *from = &buckets_of(old->head)[i];
		struct tmesh_index_bucket *to;
		uint32_t at;

		if (!atomic_load_explicit(&from->tag, memory_order_relaxed))
			continue;
		at = index_find_entry(larger, old->entries[i].secret);
		to = &buckets_of(larger->head)[at];
		bucket_copy(to, from);
		atomic_store_explicit(&to->tag, tag_of(larger->head, old->entries[i].secret),
				      memory_order_relaxed);
		larger->entries[at] = old->entries[i];
	}
	larger->used = old->used;
	tmesh_index_free(old);
	*index = larger;
	return 0;
}

int tmesh_index_add_file(struct tmesh_index **index, const struct tmesh_index_entry *entry,
			 const struct tmesh_index_file *file, struct tmesh_error *err)
{
	struct tmesh_index_bucket *bucket;
	uint32_t at;
	int rc;

	if ((*index)->used >= (*index)->head->buckets / 2) {
		rc = grow(index, err);
		if (rc)
			return rc;
	}
	at = index_find_entry(*index, entry->secret);
	(*index)->entries[at] = *entry;
	(*index)->used++;
	bucket = &buckets_of((*index)->head)[at];
	bucket_begin(bucket);
	atomic_store_explicit(&bucket->fd, (uint32_t)file->fd, memory_order_relaxed);
	atomic_store_explicit(&bucket->read_only, entry->read_only, memory_order_relaxed);
	atomic_store_explicit(&bucket->writes, file->writes, memory_order_relaxed);
	atomic_store_explicit(&bucket->dev, file->dev, memory_order_relaxed);
	atomic_store_explicit(&bucket->ino, file->ino, memory_order_relaxed);
	atomic_store_explicit(&bucket->id, file->id, memory_order_relaxed);
	atomic_store_explicit(&bucket->bytes, file->bytes, memory_order_relaxed);
	atomic_store_explicit(&bucket->rights, entry->rights, memory_order_relaxed);
	atomic_store_explicit(&bucket->kind, file->kind, memory_order_relaxed);
	atomic_store_explicit(&bucket->tag, tag_of((*index)->head, entry->secret),
			      memory_order_relaxed);
	bucket_end(bucket);
	return 0;
}

int tmesh_index_add(struct tmesh_index **index, const struct tmesh_index_entry *entry,
		    struct tmesh_error *err)
{
	struct tmesh_region *region = entry->region;
	struct tmesh_index_file file;

	file = (struct tmesh_index_file){
		.fd = region->fd,
		.kind = region->kind,
		.dev = region->memfd.dev,
		.ino = region->memfd.ino,
		.id = region->id,
		.bytes = region->bytes,
		.writes = region->rights & TMESH_WRITE,
	};
	return tmesh_index_add_file(index, entry, &file, err);
}

const struct tmesh_index_entry *tmesh_index_find(const struct tmesh_index *index,
						 const uint8_t *secret)
{
	uint32_t at = index_find_entry(index, secret);

	if (!atomic_load_explicit(&buckets_of(index->head)[at].tag, memory_order_relaxed))
		return NULL;
	return &index->entries[at];
}

/* Remove an entry and close the gap, so that probing needs no tombstones. A concurrent reader may
 * miss an entry that moves; then it asks the producer. */
void tmesh_index_remove(struct tmesh_index *index, const uint8_t *secret)
{
	struct tmesh_index_bucket *buckets = buckets_of(index->head);
	uint32_t mask = index->head->buckets - 1;
	uint32_t gap = index_find_entry(index, secret);
	uint64_t tag;

	if (!atomic_load_explicit(&buckets[gap].tag, memory_order_relaxed))
		return;
	for (uint32_t i = (gap + 1) & mask;
	     (tag = atomic_load_explicit(&buckets[i].tag, memory_order_relaxed));
	     i = (i + 1) & mask) {
		/* An entry whose home is behind the gap stays. */
		if (((i - (uint32_t)tag) & mask) < ((i - gap) & mask))
			continue;
		bucket_copy(&buckets[gap], &buckets[i]);
		index->entries[gap] = index->entries[i];
		gap = i;
	}
	bucket_clear(&buckets[gap]);
	memset(&index->entries[gap], 0, sizeof(index->entries[gap]));
	index->used--;
}

void tmesh_index_set_writable(struct tmesh_index *index, const uint8_t *secret)
{
	uint32_t at = index_find_entry(index, secret);
	struct tmesh_index_bucket *bucket = &buckets_of(index->head)[at];

	bucket_begin(bucket);
	atomic_store_explicit(&bucket->read_only, 0, memory_order_relaxed);
	bucket_end(bucket);
	index->entries[at].read_only = false;
}

void tmesh_index_set_fd(struct tmesh_index *index, const uint8_t *secret, int fd, bool read_only)
{
	uint32_t at = index_find_entry(index, secret);
	struct tmesh_index_bucket *bucket = &buckets_of(index->head)[at];

	bucket_begin(bucket);
	atomic_store_explicit(&bucket->fd, (uint32_t)fd, memory_order_relaxed);
	atomic_store_explicit(&bucket->read_only, read_only, memory_order_relaxed);
	bucket_end(bucket);
	index->entries[at].read_only = read_only;
}

int tmesh_index_view_open(struct tmesh_index_view *view, int fd)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
	int seals = tmesh_foreign_seals(fd);
	struct tmesh_index_head *head;
	struct stat st;

	/* Only its maker could write it, so its user is checked. */
	if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &st) || st.st_uid != geteuid() ||
	    st.st_size < (off_t)bytes_of(1) || st.st_size > (off_t)bytes_of(BUCKETS_MAX))
		return -EPROTO;
	head = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (head == MAP_FAILED)
		return -errno;
	if (head->magic != TMESH_MAGIC_INDEX || head->version != TMESH_WIRE_VERSION ||
	    (head->buckets & (head->buckets - 1)) ||
	    bytes_of(head->buckets) != (size_t)st.st_size) {
		munmap(head, (size_t)st.st_size);
		return -EPROTO;
	}
	view->head = head;
	view->bytes = (size_t)st.st_size;
	return 0;
}

void tmesh_index_view_close(struct tmesh_index_view *view)
{
	if (view->head)
		munmap(view->head, view->bytes);
	view->head = NULL;
}

static uint32_t buckets_in(const struct tmesh_index_view *view)
{
	return (uint32_t)((view->bytes - TMESH_INDEX_HEAD) / sizeof(struct tmesh_index_bucket));
}

bool tmesh_index_view_names(const struct tmesh_index_view *view, const uint8_t *name)
{
	return memcmp(view->head->name, name, sizeof(view->head->name)) == 0;
}

bool tmesh_index_view_closed(const struct tmesh_index_view *view)
{
	return atomic_load_explicit(&view->head->closed, memory_order_relaxed);
}

bool tmesh_index_hit_holds(const struct tmesh_index_hit *hit)
{
	/* Either this read sees that the entry has gone, or the producer sees this process's open
	 * file. The producer looks for open files after it has removed the entry (memfd_fd.c). */
	atomic_thread_fence(memory_order_seq_cst);
	return atomic_load_explicit(&hit->bucket->seq, memory_order_relaxed) == hit->seq;
}

/* Look for a writer, for display: an entry that moves meanwhile may be missed. */
bool tmesh_index_view_writes(const struct tmesh_index_view *view, int fd, uint64_t dev,
			     uint64_t ino)
{
	const struct tmesh_index_bucket *buckets = buckets_of(view->head);

	for (uint32_t i = 0; i < buckets_in(view); i++)
		if (atomic_load_explicit(&buckets[i].tag, memory_order_relaxed) &&
		    (int)atomic_load_explicit(&buckets[i].fd, memory_order_relaxed) == fd &&
		    atomic_load_explicit(&buckets[i].dev, memory_order_relaxed) == dev &&
		    atomic_load_explicit(&buckets[i].ino, memory_order_relaxed) == ino)
			return atomic_load_explicit(&buckets[i].writes, memory_order_relaxed);
	return false;
}

static bool read_bucket(const struct tmesh_index_bucket *bucket, uint64_t tag,
			struct tmesh_index_hit *hit)
{
	hit->bucket = bucket;
	hit->seq = atomic_load_explicit(&bucket->seq, memory_order_acquire);
	/* Another entry may have moved in since its tag was seen. */
	if (atomic_load_explicit(&bucket->tag, memory_order_relaxed) != tag)
		return false;
	hit->fd = (int)atomic_load_explicit(&bucket->fd, memory_order_relaxed);
	hit->read_only = atomic_load_explicit(&bucket->read_only, memory_order_relaxed);
	hit->dev = atomic_load_explicit(&bucket->dev, memory_order_relaxed);
	hit->ino = atomic_load_explicit(&bucket->ino, memory_order_relaxed);
	hit->region = (struct tmesh_wire_region){
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = atomic_load_explicit(&bucket->rights, memory_order_relaxed),
		.kind = atomic_load_explicit(&bucket->kind, memory_order_relaxed),
		.id = atomic_load_explicit(&bucket->id, memory_order_relaxed),
		.bytes = atomic_load_explicit(&bucket->bytes, memory_order_relaxed),
	};
	return !(hit->seq & 1) && tmesh_index_hit_holds(hit);
}

/* Find a token in a producer's index. The producer writes the table meanwhile and may be hostile.
 * So the search makes at most one round, over as many buckets as the mapping has room for. */
bool tmesh_index_view_find(const struct tmesh_index_view *view, const uint8_t *secret,
			   struct tmesh_index_hit *hit)
{
	const struct tmesh_index_bucket *buckets = buckets_of(view->head);
	uint32_t count = buckets_in(view);
	uint64_t tag = tag_of(view->head, secret);

	for (uint32_t n = 0, i = (uint32_t)tag & (count - 1); n < count;
	     n++, i = (i + 1) & (count - 1)) {
		uint64_t there = atomic_load_explicit(&buckets[i].tag, memory_order_relaxed);

		if (there == 0)
			return false;
		if (there == tag)
			return read_bucket(&buckets[i], tag, hit);
	}
	return false;
}
