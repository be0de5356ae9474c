// SPDX-License-Identifier: MIT
/*
 * Slots. The publication has the newest generation's number and two entries, used in turn. An entry
 * is a generation's number and the ref of its bundle. The publisher writes the entry that is not
 * the newest one's, then the number.
 *
 * A reader that finds a new number copies the entry, checks that the entry is still the same, and
 * opens the bundle. If that fails, the publisher has dropped the bundle and there is a newer one. A
 * reader that was overtaken a few times asks the publisher, which keeps the newest for it.
 *
 * tests/sim/sim_slots.py is the model of this file; its steps have the same names.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_size.h"
#include "../shared/publication.h"
#include "common/foreign.h"

#pragma GCC visibility push(default)
#include <tmesh/slot.h>
#pragma GCC visibility pop

#include "slot_name.h"

#define SLOT_MAGIC 0x56304d54u /* "TM0V" */
#define ENTRIES 2
#define MAX_REF 16384u
#define TRIES 4	     /* of a read, before it asks the publisher */
#define ANSWER_MS 10 /* between two looks of a reader that waits for the answer */

struct entry {
	atomic_uint_fast64_t number; /* 0: it is being written */
	atomic_uint_fast64_t bytes;  /* of the ref; 0: the slot is empty */
	atomic_uint_fast64_t words[];
};

struct head {
	uint64_t max_ref; /* a multiple of 8; constant */
	_Alignas(64) atomic_uint_fast64_t generation;
	_Alignas(64) uint8_t entries[];
};

static size_t entry_bytes(uint64_t max_ref)
{
	return (sizeof(struct entry) + max_ref + 63) & ~(size_t)63;
}

static size_t publication_bytes(uint64_t max_ref)
{
	size_t page = tmesh_page_bytes();

	return (sizeof(struct head) + ENTRIES * entry_bytes(max_ref) + page - 1) / page * page;
}

static struct entry *entry_of(const struct head *head, uint64_t max_ref, uint64_t generation)
{
	return (struct entry *)((uintptr_t)head->entries +
				generation % ENTRIES * entry_bytes(max_ref));
}

/* Publishing */

struct tmesh_slot {
	atomic_uint refs;
	struct model_publication publication;
	struct slot_name name;
	struct head *head;
	uint32_t max_ref;
	pthread_mutex_t lock;	     /* after the host's */
	struct tmesh_bundle *bundle; /* the newest, and of it: under lock */
	uint64_t number;
	size_t bytes; /* of its ref, in its entry */
	char *text;   /* room for a ref; under lock */
};

/* Answer a reader that was overtaken: give it the newest generation and keep that as long as it
 * needs it. */
static int slot_asked(struct model_publication *publication, struct model_answer *answer, int *fd,
		      void **pin)
{
	struct tmesh_slot *slot = (struct tmesh_slot *)((char *)publication -
							offsetof(struct tmesh_slot, publication));
	int rc = 0;

	pthread_mutex_lock(&slot->lock);
	*answer = (struct model_answer){slot->number, slot->bytes};
	if (slot->bytes) {
		const struct entry *entry = entry_of(slot->head, slot->max_ref, slot->number);

		*fd = memfd_create("slot-answer", MFD_CLOEXEC);
		if (*fd < 0 || fchmod(*fd, 0600) ||
		    tmesh_write(*fd, (const void *)entry->words, slot->bytes) !=
			    (ssize_t)slot->bytes)
			rc = -EMFILE;
		else
			*pin = tmesh_bundle_ref(slot->bundle);
	}
	pthread_mutex_unlock(&slot->lock);
	return rc;
}

static void slot_done(void *pin)
{
	tmesh_bundle_unref(pin);
}

static int be_named(struct tmesh_slot *slot, struct tmesh_ctx *ctx, const char *name,
		    struct tmesh_error *err)
{
	char token[TMESH_TOKEN_SIZE] = "";
	int rc = tmesh_slot_token(slot, token, err);

	return rc ? rc : slot_name_claim(&slot->name, ctx, name, token, err);
}

int tmesh_slot_create(struct tmesh_ctx *ctx, const struct tmesh_slot_opts *opts,
		      struct tmesh_slot **out, struct tmesh_error *err)
{
	struct tmesh_slot_opts o;
	struct tmesh_slot *slot;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = tmesh_read_sized(&o, sizeof(o), opts, err);
	if (!rc && (o.reserved || o.max_ref > TMESH_BUNDLE_MAX_REF))
		rc = tmesh_fail(err, -EINVAL, "max_ref is %u; %u is the most, and reserved is 0",
				o.max_ref, TMESH_BUNDLE_MAX_REF);
	if (!rc && o.name)
		rc = slot_name_check(o.name, err);
	if (rc)
		return rc;
	slot = calloc(1, sizeof(*slot));
	if (!slot)
		return tmesh_fail(err, -ENOMEM, "no memory for a slot");
	atomic_init(&slot->refs, 1);
	slot->name = (struct slot_name){.file.fd = -1, .dir = -1};
	slot->max_ref = ((o.max_ref ? o.max_ref : MAX_REF) + 7) & ~7u;
	slot->text = calloc(1, slot->max_ref);
	if (slot->text)
		rc = model_publication_create(&slot->publication, ctx, SLOT_MAGIC,
					      o.label  ? o.label
					      : o.name ? o.name
						       : "slot",
					      publication_bytes(slot->max_ref), err);
	else
		rc = tmesh_fail(err, -ENOMEM, "no memory for a slot");
	if (rc) {
		free(slot->text);
		free(slot);
		return rc;
	}
	pthread_mutex_init(&slot->lock, NULL);
	slot->head = slot->publication.addr;
	slot->head->max_ref = slot->max_ref;
	/* No other process has the token yet. */
	slot->publication.asked = slot_asked;
	slot->publication.done = slot_done;
	rc = o.name ? be_named(slot, ctx, o.name, err) : 0;
	if (rc)
		tmesh_slot_unref(slot);
	else
		*out = slot;
	return rc;
}

struct tmesh_slot *tmesh_slot_ref(struct tmesh_slot *slot)
{
	atomic_fetch_add_explicit(&slot->refs, 1, memory_order_relaxed);
	return slot;
}

void tmesh_slot_unref(struct tmesh_slot *slot)
{
	if (!slot || atomic_fetch_sub_explicit(&slot->refs, 1, memory_order_acq_rel) != 1)
		return;
	slot_name_give_up(&slot->name);
	model_publication_close(&slot->publication);
	tmesh_bundle_unref(slot->bundle);
	free(slot->text);
	free(slot);
}

int tmesh_slot_token(struct tmesh_slot *slot, char *token, struct tmesh_error *err)
{
	if (TMESH_NEED(err, slot, token))
		return -EINVAL;
	return model_publication_token(&slot->publication, token, err);
}

static void slot_publish(struct tmesh_slot *slot, uint64_t number, size_t bytes)
{
	struct entry *entry = entry_of(slot->head, slot->max_ref, number);

	atomic_store_explicit(&entry->number, 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&entry->bytes, bytes, memory_order_relaxed);
	for (size_t i = 0; i < (bytes + 7) / 8; i++) {
		uint64_t word;

		memcpy(&word, slot->text + 8 * i, 8);
		atomic_store_explicit(&entry->words[i], word, memory_order_relaxed);
	}
	atomic_store_explicit(&entry->number, number, memory_order_release);
	atomic_store_explicit(&slot->head->generation, number, memory_order_release);
}

int tmesh_slot_publish(struct tmesh_slot *slot, struct tmesh_bundle *bundle, uint64_t *generation,
		       struct tmesh_error *err)
{
	struct tmesh_bundle *old;
	uint64_t number;
	int rc = TMESH_NEED(err, slot);

	if (!rc)
		rc = model_check_life(slot->publication.life, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&slot->lock);
	memset(slot->text, 0, slot->max_ref);
	if (bundle)
		rc = tmesh_bundle_ref_encode(bundle, TMESH_READ, slot->text, slot->max_ref, err);
	if (rc) {
		pthread_mutex_unlock(&slot->lock);
		return rc == -ENOSPC ? tmesh_fail(err, -EINVAL,
						  "the bundle's ref takes %zu bytes, the slot's "
						  "max_ref is %u: make the slot with more, or put "
						  "the tensors into fewer regions",
						  tmesh_bundle_ref_size(bundle), slot->max_ref)
				     : rc;
	}
	number = ++slot->number;
	slot->bytes = strlen(slot->text);
	slot_publish(slot, number, slot->bytes);
	old = slot->bundle;
	slot->bundle = bundle ? tmesh_bundle_ref(bundle) : NULL;
	pthread_mutex_unlock(&slot->lock);
	tmesh_bundle_unref(old);
	model_publication_notify(&slot->publication);
	if (generation)
		*generation = number;
	return 0;
}

uint64_t tmesh_slot_generation(const struct tmesh_slot *slot)
{
	return slot->publication.life == model_life()
		       ? atomic_load_explicit(&slot->head->generation, memory_order_relaxed)
		       : 0;
}

/* Reading */

/* State shared by a reader's values: it lives as long as any of them. */
struct family {
	atomic_uint refs;
	/* Those that are referenced; under the host's lock, which is held over fork(). */
	struct tmesh_slot_value *values;
};

struct tmesh_slot_value {
	atomic_uint refs;
	uint64_t generation;
	struct tmesh_bundle *bundle;
	struct family *family;
	struct tmesh_slot_value *next, **at; /* under the host's lock */
	size_t bytes;
	char text[];
};

struct tmesh_slot_reader {
	/* A read that finds nothing new uses only these members. */
	const atomic_uint_fast64_t *newest;
	uint64_t generation; /* of @value, or of the slot being empty; 0: nothing was read */
	uint32_t life;
	struct tmesh_slot_value *value; /* NULL: the slot was empty */

	uint64_t max_ref;
	struct model_subscription subscription;
	struct tmesh_ctx *ctx;
	struct family *family;
	char *text; /* room for a ref */
};

static void family_unref(struct family *family)
{
	if (atomic_fetch_sub_explicit(&family->refs, 1, memory_order_acq_rel) != 1)
		return;
	free(family);
}

int tmesh_slot_open(struct tmesh_ctx *ctx, const char *token, struct tmesh_slot_reader **out,
		    struct tmesh_error *err)
{
	struct tmesh_slot_reader *reader;
	struct family *family;
	const struct head *head;
	int rc = TMESH_NEED(err, ctx, token, out);

	if (rc)
		return rc;
	reader = calloc(1, sizeof(*reader));
	family = calloc(1, sizeof(*family));
	if (!reader || !family) {
		free(reader);
		free(family);
		return tmesh_fail(err, -ENOMEM, "no memory for a slot's reader");
	}
	rc = model_subscription_open(&reader->subscription, ctx, token, SLOT_MAGIC, sizeof(*head),
				     err);
	if (!rc) {
		head = reader->subscription.addr;
		reader->max_ref = *(const volatile uint64_t *)&head->max_ref;
		if (!reader->max_ref || reader->max_ref > TMESH_BUNDLE_MAX_REF ||
		    reader->max_ref % 8 ||
		    publication_bytes(reader->max_ref) != reader->subscription.bytes)
			rc = tmesh_fail(err, -EPROTO, "the slot's page is damaged");
		else if (!(reader->text = malloc(reader->max_ref)))
			rc = tmesh_fail(err, -ENOMEM, "no memory for a slot's reader");
		if (rc)
			model_subscription_close(&reader->subscription);
	}
	if (rc) {
		free(reader);
		free(family);
		return rc;
	}
	reader->life = model_life();
	reader->newest = &head->generation;
	reader->ctx = tmesh_ctx_ref(ctx);
	atomic_init(&family->refs, 1);
	reader->family = family;
	*out = reader;
	return 0;
}

int tmesh_slot_open_named(struct tmesh_ctx *ctx, const char *name, struct tmesh_slot_reader **out,
			  struct tmesh_error *err)
{
	char token[TMESH_TOKEN_SIZE];
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = slot_name_check(name ? name : "", err);
	if (!rc)
		rc = slot_name_find(ctx, name, token, err);
	if (rc)
		return rc;
	rc = tmesh_slot_open(ctx, token, out, err);
	/* A killed publisher leaves its name behind. */
	return rc == -ENOENT ? tmesh_fail(err, rc, "no slot is published as \"%s\" any more", name)
			     : rc;
}

void tmesh_slot_close(struct tmesh_slot_reader *reader)
{
	if (!reader)
		return;
	tmesh_slot_value_unref(reader->value);
	model_subscription_close(&reader->subscription);
	tmesh_ctx_unref(reader->ctx);
	family_unref(reader->family);
	free(reader->text);
	free(reader);
}

/* Copy the entry of @generation once; false: it is another one's, or it changes. */
static bool entry_copy(struct tmesh_slot_reader *reader, uint64_t generation, size_t *bytes)
{
	const struct entry *entry =
		entry_of(reader->subscription.addr, reader->max_ref, generation);
	uint64_t length;

	if (atomic_load_explicit(&entry->number, memory_order_acquire) != generation)
		return false;
	length = atomic_load_explicit(&entry->bytes, memory_order_relaxed);
	for (size_t i = 0; length <= reader->max_ref && i < (length + 7) / 8; i++) {
		uint64_t word = atomic_load_explicit(&entry->words[i], memory_order_relaxed);

		memcpy(reader->text + 8 * i, &word, 8);
	}
	atomic_thread_fence(memory_order_acquire);
	*bytes = length;
	return atomic_load_explicit(&entry->number, memory_order_relaxed) == generation;
}

/* Return the bundle of another value of this reader with the same ref, or NULL. */
static struct tmesh_bundle *known_bundle(struct tmesh_slot_reader *reader, size_t bytes)
{
	struct tmesh_bundle *bundle = NULL;
	struct tmesh_slot_value *value;

	model_host_lock();
	for (value = reader->family->values; value && !bundle; value = value->next)
		if (value->bytes == bytes && !memcmp(value->text, reader->text, bytes))
			bundle = tmesh_bundle_ref(value->bundle);
	model_host_unlock();
	return bundle;
}

static int value_new(struct tmesh_slot_reader *reader, uint64_t generation, size_t bytes,
		     struct tmesh_slot_value **out, struct tmesh_error *err)
{
	struct tmesh_slot_value *value = malloc(sizeof(*value) + bytes);
	struct family *family = reader->family;
	int rc = 0;

	if (!value)
		return tmesh_fail(err, -ENOMEM, "no memory for a slot's value");
	value->bundle = known_bundle(reader, bytes);
	if (!value->bundle)
		rc = tmesh_bundle_open(reader->ctx, reader->text, bytes, TMESH_READ, &value->bundle,
				       err);
	if (rc) {
		free(value);
		return rc;
	}
	atomic_init(&value->refs, 1);
	value->generation = generation;
	value->family = family;
	value->bytes = bytes;
	memcpy(value->text, reader->text, bytes);
	atomic_fetch_add_explicit(&family->refs, 1, memory_order_relaxed);
	model_host_lock();
	value->next = family->values;
	value->at = &family->values;
	if (value->next)
		value->next->at = &value->next;
	family->values = value;
	model_host_unlock();
	*out = value;
	return 0;
}

static void slot_set_value(struct tmesh_slot_reader *reader, uint64_t generation,
			   struct tmesh_slot_value *value)
{
	struct tmesh_slot_value *old = reader->value;

	reader->value = value;
	reader->generation = generation;
	tmesh_slot_value_unref(old);
}

/* Open the bundle of the ref in the reader's text. */
static int slot_parse_value(struct tmesh_slot_reader *reader, uint64_t generation, size_t bytes,
			    struct tmesh_error *err)
{
	struct tmesh_slot_value *value = NULL;
	int rc = bytes ? value_new(reader, generation, bytes, &value, err) : 0;

	if (!rc)
		slot_set_value(reader, generation, value);
	return rc;
}

static int damaged(struct tmesh_error *err)
{
	return tmesh_fail(err, -EPROTO, "the slot's page is damaged");
}

/* Try to read once. -EAGAIN: the reader was overtaken, or the entry of @seen is not whole. */
static int slot_try(struct tmesh_slot_reader *reader, uint64_t *seen, struct tmesh_error *err)
{
	size_t bytes;
	int rc;

	*seen = atomic_load_explicit(reader->newest, memory_order_acquire);
	if (*seen == reader->generation)
		return 0;
	if (!*seen)
		return damaged(err);
	if (!entry_copy(reader, *seen, &bytes))
		return -EAGAIN;
	if (bytes > reader->max_ref)
		return damaged(err);
	rc = slot_parse_value(reader, *seen, bytes, err);
	/* If a newer generation has replaced it, the error does not count. */
	return rc && atomic_load(reader->newest) != *seen ? -EAGAIN : rc;
}

/* Read the owner's answer; -EAGAIN: none came yet. @asked: the generation known when the reader
 * asked. */
static int slot_wait_for_answer(struct tmesh_slot_reader *reader, uint64_t asked,
				struct tmesh_error *err)
{
	struct model_answer answer;
	int fd, rc = 0;

	if (!model_subscription_answer(&reader->subscription, ANSWER_MS, &answer, &fd))
		return -EAGAIN;
	if (fd == -EMFILE) {
		errno = EMFILE;
		return tmesh_foreign_fail_errno(err, "taking a slot's value",
						tmesh_giver_at(reader->subscription.socket.fd));
	}
	/* A file that a process may serve was closed on arrival. */
	if (fd >= 0 ? !tmesh_foreign_is_memory(fd) : answer.bytes)
		rc = tmesh_fail(err, -EPROTO,
				"the slot's publisher answered with a file that is no memory: take "
				"no tokens from it");
	else if (answer.number < asked || answer.bytes > reader->max_ref ||
		 (answer.bytes &&
		  pread(fd, reader->text, answer.bytes, 0) != (ssize_t)answer.bytes))
		rc = damaged(err);
	if (fd >= 0)
		close(fd);
	return rc ? rc : slot_parse_value(reader, answer.number, answer.bytes, err);
}

/* Return whether the publisher is gone. A killed publisher closes its files one after another, as
 * its threads come to run, so the value may be gone before the slot. A living publisher answers. */
static bool publisher_is_gone(struct tmesh_slot_reader *reader, uint64_t deadline)
{
	struct model_answer answer;
	bool lives = false;
	int fd = -1;

	model_subscription_ask(&reader->subscription);
	while (!lives && !model_subscription_ended(&reader->subscription, 0) &&
	       tmesh_now_ns() < deadline)
		lives = model_subscription_answer(&reader->subscription, ANSWER_MS, &answer, &fd);
	if (fd >= 0)
		close(fd);
	model_subscription_done(&reader->subscription);
	return !lives && model_subscription_ended(&reader->subscription, 0);
}

/*
 * Read a generation that is not known yet. After a few tries the reader asks, and from then on the
 * publisher keeps its answer for this reader. A publisher that is stopped does not answer, but it
 * publishes nothing either, so a try is not overtaken.
 */
static int slot_read(struct tmesh_slot_reader *reader, struct tmesh_error *err)
{
	uint64_t deadline = tmesh_now_ns() + MODEL_WAIT_NS, asked = 0, seen;
	int rc = model_check_life(reader->life, err);
	bool over = false;

	if (rc)
		return rc;
	model_subscription_settle(&reader->subscription);
	rc = -EAGAIN;
	for (unsigned int tries = 1; rc == -EAGAIN; tries++) {
		rc = slot_try(reader, &seen, err);
		if (rc != -EAGAIN || tries < TRIES)
			continue;
		if (over) {
			rc = damaged(err);
			continue;
		}
		if (!asked) {
			asked = seen;
			model_subscription_ask(&reader->subscription);
		}
		rc = slot_wait_for_answer(reader, asked, err);
		if (rc == -EAGAIN && tmesh_now_ns() > deadline)
			rc = tmesh_fail(err, -ETIMEDOUT,
					"the slot's value is replaced faster than it can be read, "
					"and its publisher does not answer");
		over = model_subscription_ended(&reader->subscription, 0);
	}
	if (asked)
		model_subscription_done(&reader->subscription);
	if ((rc == -ENOENT || rc == -ESTALE) && publisher_is_gone(reader, deadline))
		rc = tmesh_fail(err, -EPIPE,
				"the slot's publisher is gone, and its last value with it");
	return rc;
}

int tmesh_slot_read(struct tmesh_slot_reader *reader, struct tmesh_slot_value **value,
		    struct tmesh_error *err)
{
	if (TMESH_NEED(err, reader, value))
		return -EINVAL;
	if (__builtin_expect(atomic_load_explicit(reader->newest, memory_order_acquire) !=
				     reader->generation,
			     0)) {
		int rc = slot_read(reader, err);

		if (rc)
			return rc;
	}
	if (!reader->value)
		return tmesh_fail(err, -ENOENT,
				  "the slot is empty; publish a value in it, or wait for one");
	*value = reader->value;
	return 0;
}

struct tmesh_slot_value *tmesh_slot_value_ref(struct tmesh_slot_value *value)
{
	atomic_fetch_add_explicit(&value->refs, 1, memory_order_relaxed);
	return value;
}

void tmesh_slot_value_unref(struct tmesh_slot_value *value)
{
	struct family *family;

	if (!value || atomic_fetch_sub_explicit(&value->refs, 1, memory_order_acq_rel) != 1)
		return;
	family = value->family;
	model_host_lock();
	*value->at = value->next;
	if (value->next)
		value->next->at = value->at;
	model_host_unlock();
	tmesh_bundle_unref(value->bundle);
	free(value);
	family_unref(family);
}

uint64_t tmesh_slot_value_generation(const struct tmesh_slot_value *value)
{
	return value->generation;
}

struct tmesh_bundle *tmesh_slot_value_bundle(const struct tmesh_slot_value *value)
{
	return value->bundle;
}

int tmesh_slot_poll_fd(struct tmesh_slot_reader *reader, struct tmesh_error *err)
{
	if (TMESH_NEED(err, reader))
		return -EINVAL;
	return model_subscription_poll_fd(&reader->subscription, err);
}

int tmesh_slot_changed(struct tmesh_slot_reader *reader)
{
	int rc = TMESH_NEED(NULL, reader);

	if (!rc)
		rc = model_check_life(reader->life, NULL);
	if (rc)
		return rc;
	model_subscription_drain(&reader->subscription);
	if (atomic_load_explicit(reader->newest, memory_order_acquire) != reader->generation)
		return 1;
	return model_subscription_ended(&reader->subscription, 0) ? -EPIPE : 0;
}
