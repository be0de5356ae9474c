// SPDX-License-Identifier: MIT
/* The index of tokens: its readers' checks, and its growth. */
#include "unit.h"
#include "wire.h"

/* An index that is none is not looked at. */
UNIT(test_bad_index)
{
	struct tmesh_index_view view = {0};
	struct tmesh_index_head head = {
		.magic = TMESH_MAGIC_INDEX,
		.version = TMESH_WIRE_VERSION,
		.number = 1,
		.buckets = 64,
	};
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
	const size_t bucket = sizeof(struct tmesh_index_bucket),
		     bytes = TMESH_INDEX_HEAD + 64 * bucket;
	FILE *plain = tmpfile();
	int fd;

#define INDEX(size, seals_, change, code)                                  \
	do {                                                               \
		struct tmesh_index_head h = head;                          \
		change;                                                    \
		fd = memfd(size, 0);                                       \
		assert_int_equal(pwrite(fd, &h, sizeof(h), 0), sizeof(h)); \
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals_), 0);       \
		assert_int_equal(tmesh_index_view_open(&view, fd), code);  \
		tmesh_index_view_close(&view);                             \
		close(fd);                                                 \
	} while (0)
	INDEX(bytes, seals, (void)h, 0);
	INDEX(bytes, F_SEAL_SHRINK, (void)h, -EPROTO);
	INDEX(bytes, seals, h.magic = 0, -EPROTO);
	INDEX(bytes, seals, h.version = 9, -EPROTO);
	INDEX(TMESH_INDEX_HEAD + 63 * bucket, seals, h.buckets = 63, -EPROTO);
	INDEX(TMESH_INDEX_HEAD + bucket, seals, h.buckets = 1, 0);
	INDEX(TMESH_INDEX_HEAD, seals, h.buckets = 0, -EPROTO);
	INDEX(TMESH_INDEX_HEAD + (bucket << 25), seals, h.buckets = 1 << 25, -EPROTO);
	INDEX(bytes, seals, h.buckets = 0, -EPROTO);
	INDEX(bytes, seals, h.buckets = 128, -EPROTO);
	INDEX(sizeof(head), seals, (void)h, -EPROTO);
	/* A file that cannot be sealed could be cut off under its reader. */
	fd = fileno(plain);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(pwrite(fd, &head, sizeof(head), 0), sizeof(head));
	assert_int_equal(tmesh_index_view_open(&view, fd), -EPROTO);
	fclose(plain);
}

/* Its maker writes to it all the time, and need not be honest. */
UNIT(test_index_changes)
{
	static const uint8_t secret[TMESH_SECRET_BYTES] = "sixteen letters";
	const size_t bytes = TMESH_INDEX_HEAD + 64 * sizeof(struct tmesh_index_bucket);
	struct tmesh_index_view view = {0};
	struct tmesh_index_bucket *buckets;
	struct tmesh_index_head *head;
	struct tmesh_index_hit hit;
	int fd = memfd(bytes, 0);
	uint64_t tag;

	head = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(head != MAP_FAILED);
	head->magic = TMESH_MAGIC_INDEX;
	head->version = TMESH_WIRE_VERSION;
	head->buckets = 64;
	buckets = (struct tmesh_index_bucket *)((uint8_t *)head + TMESH_INDEX_HEAD);
	tag = tmesh_siphash(head->key, secret, sizeof(secret));
	buckets[tag % 64].tag = tag;
	buckets[tag % 64].fd = 5;
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE),
			 0);
	assert_int_equal(tmesh_index_view_open(&view, fd), 0);
	assert_true(tmesh_index_view_find(&view, secret, &hit));
	assert_int_equal(hit.fd, 5);
	/* An entry that is being written is not read, and an entry that was read is known to be
	 * old. */
	assert_true(tmesh_index_hit_holds(&hit));
	buckets[tag % 64].seq++;
	assert_false(tmesh_index_hit_holds(&hit));
	assert_false(tmesh_index_view_find(&view, secret, &hit));
	buckets[tag % 64].seq++;
	assert_true(tmesh_index_view_find(&view, secret, &hit));
	/* One round, over what is mapped. */
	head->buckets = 1u << 30;
	for (int i = 0; i < 64; i++)
		buckets[i].tag = tag + 1;
	alarm(600);
	assert_false(tmesh_index_view_find(&view, secret, &hit));
	alarm(0);
	tmesh_index_view_close(&view);
	munmap(head, bytes);
	close(fd);
}

/* A reader's finding does not hold once the entry changes, or is another one. */
UNIT(test_index_says_so)
{
	static const uint8_t name[16] = {0x12};
	struct tmesh_index_entry entry = {.rights = TMESH_READ, .read_only = true};
	struct tmesh_index_view view = {0};
	struct tmesh_index_hit hit;
	struct tmesh_index *index;
	unsigned int before;
	struct stat st;

	assert_ok(tmesh_region_create(*state, 100, NULL, &entry.region, err));
	before = unit_open_fds();
	assert_ok(tmesh_index_new(name, 1, 64, false, &index, err));
	assert_int_equal(fstat(tmesh_index_fd(index), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_ok(tmesh_index_add(&index, &entry, err));
	assert_int_equal(tmesh_index_view_open(&view, tmesh_index_fd(index)), 0);
	/* Without a key of its own its tags would tell tokens to who guesses. */
	assert_true(view.head->key[0] || view.head->key[1]);
	assert_true(tmesh_index_view_find(&view, entry.secret, &hit) && hit.read_only);
	tmesh_index_set_writable(index, entry.secret);
	assert_false(tmesh_index_hit_holds(&hit));
	assert_true(tmesh_index_view_find(&view, entry.secret, &hit) && !hit.read_only);
	tmesh_index_set_fd(index, entry.secret, 77, true);
	assert_false(tmesh_index_hit_holds(&hit));
	assert_true(tmesh_index_view_find(&view, entry.secret, &hit) && hit.read_only &&
		    hit.fd == 77);
	tmesh_index_remove(index, entry.secret);
	assert_false(tmesh_index_hit_holds(&hit));
	assert_false(tmesh_index_view_find(&view, entry.secret, &hit));
	assert_false(tmesh_index_view_closed(&view));
	tmesh_index_free(index);
	assert_true(tmesh_index_view_closed(&view));
	tmesh_index_view_close(&view);
	assert_int_equal(unit_open_fds(), before);
	tmesh_region_unref(entry.region);
}

/* The index grows with the present tokens, not with past ones. The search for a missing token ends,
 * however full the index is. */
UNIT(test_index_grows)
{
	static const uint8_t name[16] = {0x12}, absent[TMESH_SECRET_BYTES] = {0xff};
	struct tmesh_index_entry entry = {.rights = TMESH_READ};
	struct tmesh_index *index;
	uint64_t number;

	assert_ok(tmesh_region_create(*state, 100, NULL, &entry.region, err));
	assert_ok(tmesh_index_new(name, 1, 16, false, &index, err));
	/* A missing token takes no place with it when it goes. */
	tmesh_index_remove(index, absent);
	assert_ok(tmesh_index_add(&index, &entry, err));
	assert_int_equal(tmesh_index_number(index), 1);
	tmesh_index_remove(index, entry.secret);
	alarm(600);
	for (uint8_t i = 0; i < 100; i++) {
		entry.secret[0] = i;
		assert_ok(tmesh_index_add(&index, &entry, err));
		assert_null(tmesh_index_find(index, absent));
	}
	alarm(0);
	number = tmesh_index_number(index);
	for (int round = 0; round < 20; round++) {
		for (uint8_t i = 0; i < 100; i++) {
			entry.secret[0] = i;
			assert_non_null(tmesh_index_find(index, entry.secret));
			assert_ptr_equal(tmesh_index_find(index, entry.secret)->region,
					 entry.region);
			tmesh_index_remove(index, entry.secret);
			assert_null(tmesh_index_find(index, entry.secret));
		}
		for (uint8_t i = 0; i < 100; i++) {
			entry.secret[0] = i;
			assert_ok(tmesh_index_add(&index, &entry, err));
		}
	}
	assert_int_equal(tmesh_index_number(index), number);
	tmesh_index_free(index);
	tmesh_region_unref(entry.region);
}

UNIT_MAIN("index", unit_memfd_ctx_setup, unit_ctx_teardown)
