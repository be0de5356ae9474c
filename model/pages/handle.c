// SPDX-License-Identifier: MIT
/*
 * A handle on a page pool: its tables and counts, in private memory, and its messages to the owner.
 * The handle counts its own references to each page that the owner gave it; only the first and the
 * last reference may concern the owner. A page that no other handle can have stays here as a spare
 * when it is released. A page that was cached, shared, found or taken goes back.
 */
#include "pages_internal.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 64u      /* pages that are asked for at once */
#define LOW 32u	       /* with fewer, more are asked for ahead */
#define SPARES 192u    /* beyond these half go back */
#define LISTEN_EACH 64 /* pages released between two looks for messages, and messages of a look */
#define LATE 8	       /* messages that are read after the deadline of a wait */
#define BYTES_MAX (1ull << 46)

int pages_check_shape(const struct pages_shape *shape, struct tmesh_error *err)
{
	if (!shape->page_bytes || shape->page_bytes > TMESH_PAGES_MAX_BYTES ||
	    shape->page_bytes % tmesh_page_bytes())
		return tmesh_fail(err, -EINVAL,
				  "page_bytes is %llu; it is a multiple of this machine's pages of "
				  "%llu bytes, up to %u",
				  (unsigned long long)shape->page_bytes,
				  (unsigned long long)tmesh_page_bytes(), TMESH_PAGES_MAX_BYTES);
	if (!shape->page_tokens || shape->page_tokens > 65536)
		return tmesh_fail(err, -EINVAL, "page_tokens is %u; it is 1 to 65,536",
				  shape->page_tokens);
	if (!shape->max_pages || shape->max_pages > TMESH_PAGES_MAX)
		return tmesh_fail(err, -EINVAL, "max_pages is %u; %u is the most", shape->max_pages,
				  TMESH_PAGES_MAX);
	if (!shape->slab_pages || shape->slab_pages > TMESH_PAGES_MAX)
		return tmesh_fail(err, -EINVAL, "slab_pages is %u; %u is the most",
				  shape->slab_pages, TMESH_PAGES_MAX);
	if (!shape->devices || shape->devices > TMESH_PAGES_MAX_DEVICES)
		return tmesh_fail(err, -EINVAL, "devices is %u; %d is the most", shape->devices,
				  TMESH_PAGES_MAX_DEVICES);
	if (!shape->heads || shape->heads > 65536)
		return tmesh_fail(err, -EINVAL, "heads is %u; it is 1 to 65,536", shape->heads);
	if (shape->max_pages * shape->page_bytes > BYTES_MAX)
		return tmesh_fail(err, -EOVERFLOW, "the pool has more than 64 TiB on a device");
	return 0;
}

uint8_t *pages_address_space(uint64_t bytes)
{
	uint8_t *raw = mmap(NULL, bytes + PAGES_HUGE_BYTES, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t ahead;

	if (raw == MAP_FAILED)
		return NULL;
	ahead = -(uintptr_t)raw % PAGES_HUGE_BYTES;
	if (ahead)
		munmap(raw, ahead);
	munmap(raw + ahead + bytes, PAGES_HUGE_BYTES - ahead);
	return raw + ahead;
}

/* The lock, and checks for a forked child */

int pages_enter(struct tmesh_pages *pages, struct tmesh_error *err)
{
	int rc = model_check_life(pages->life, err);

	if (!rc)
		pthread_mutex_lock(&pages->lock);
	return rc;
}

void pages_leave(struct tmesh_pages *pages)
{
	pthread_mutex_unlock(&pages->lock);
}

/* Talking with the owner */

static int owner_gone(struct tmesh_pages *pages, struct tmesh_error *err)
{
	pages->gone = true;
	return tmesh_fail(err, -EPIPE,
			  "the pool's owner is gone, or this handle ended because an answer "
			  "came too late: if the pool still exists, open it again by the "
			  "tenant's token");
}

static bool is_page(const struct tmesh_pages *pages, uint32_t page)
{
	return page < pages->shape.max_pages;
}

/* Return whether a message has the size that its head gives. */
static bool fits(const struct tmesh_pages *pages, ssize_t got, size_t each)
{
	const struct pages_head *head = &pages->message.head;

	return (size_t)got >= sizeof(*head) && head->count <= TMESH_PAGES_MAX_SEQ &&
	       (size_t)got == sizeof(*head) + head->count * each;
}

static void granted(struct tmesh_pages *pages)
{
	const struct pages_message *in = &pages->message;

	pages->wants = false;
	pages->dry = in->head.count == 0;
	for (uint32_t n = 0; n < in->head.count; n++)
		/* Ignore pages that this handle has already: the owner is faulty. */
		if (is_page(pages, in->pages[n]) && !pages->refs_of[in->pages[n]] &&
		    pages->spares < pages->shape.max_pages) {
			bit_clear(pages->shared, in->pages[n]);
			pages->spare[pages->spares++] = in->pages[n];
		}
}

static void page_release(struct tmesh_pages *pages, uint32_t page)
{
	/* Each page is here at most once, unless a faulty owner gave it twice. */
	if (pages->backs < pages->shape.max_pages)
		pages->back[pages->backs++] = page;
}

/* Receive a message, if there is one. Return: its op; -EAGAIN; -EPIPE. */
static int hear(struct tmesh_pages *pages, struct tmesh_error *err)
{
	static const uint8_t each[] = {
		[PAGES_GRANT - PAGES_GRANT] = sizeof(uint32_t),
		[PAGES_SLAB_IS - PAGES_GRANT] = TMESH_TOKEN_SIZE,
		[PAGES_FOUND - PAGES_GRANT] = sizeof(uint32_t),
		[PAGES_TABLE - PAGES_GRANT] = sizeof(uint32_t),
		[PAGES_RECALL - PAGES_GRANT] = 0,
	};
	struct pages_head *head = &pages->message.head;
	ssize_t got;

	got = model_socket_recv(pages->socket.fd, &pages->message, sizeof(pages->message), NULL);
	if (got == -EAGAIN)
		return -EAGAIN;
	if (got < (ssize_t)sizeof(*head) || head->op < PAGES_GRANT || head->op > PAGES_RECALL ||
	    head->pad || head->status > 0 || head->status < -4095 ||
	    !fits(pages, got, each[head->op - PAGES_GRANT]))
		return owner_gone(pages, err);
	if (head->op == PAGES_GRANT)
		granted(pages);
	if (head->op == PAGES_RECALL)
		while (pages->spares)
			page_release(pages, pages->spare[--pages->spares]);
	return (int)head->op;
}

/* A call's wait for an answer, from begin_wait() on */
struct wait {
	uint64_t deadline;
	unsigned int heard, late; /* messages, of them after the deadline */
};

static struct wait begin_wait(void)
{
	return (struct wait){.deadline = tmesh_now_ns() + MODEL_WAIT_NS};
}

/*
 * Wait for a message and read it, as hear(). Other messages do not extend the wait. A process that
 * was stopped until after the deadline finds its answer behind a few of them.
 */
static int hear_next(struct tmesh_pages *pages, struct wait *wait, struct tmesh_error *err)
{
	int rc = -ETIMEDOUT;

	wait->late += tmesh_now_ns() > wait->deadline;
	if (wait->heard++ < PAGES_UNASKED_MAX && wait->late <= LATE)
		while ((rc = hear(pages, err)) == -EAGAIN)
			if (model_socket_wait(pages->socket.fd, POLLIN, wait->deadline)) {
				rc = -ETIMEDOUT;
				break;
			}
	return rc == -ETIMEDOUT ? tmesh_fail(err, rc, "the pool's owner does not answer") : rc;
}

static int say(struct tmesh_pages *pages, const void *data, size_t bytes, uint64_t deadline,
	       struct tmesh_error *err)
{
	int rc;

	if (pages->gone)
		return owner_gone(pages, err);
	while ((rc = model_socket_send(pages->socket.fd, data, bytes, -1)) == -EAGAIN)
		if (!deadline || model_socket_wait(pages->socket.fd, POLLOUT, deadline))
			return tmesh_fail(err, -ETIMEDOUT, "the pool's owner does not listen");
	return rc ? owner_gone(pages, err) : 0;
}

/* Return pages to the owner. @deadline 0: without waiting. */
static int return_back(struct tmesh_pages *pages, uint64_t deadline, struct tmesh_error *err)
{
	while (pages->backs) {
		struct {
			struct pages_head head;
			uint32_t pages[1024];
		} out = {.head = {.op = PAGES_RETURN}};
		int rc;

		out.head.count = pages->backs < 1024 ? pages->backs : 1024;
		memcpy(out.pages, pages->back + pages->backs - out.head.count,
		       out.head.count * sizeof(uint32_t));
		rc = say(pages, &out, sizeof(out.head) + out.head.count * sizeof(uint32_t),
			 deadline, err);
		if (rc)
			return rc;
		pages->backs -= out.head.count;
	}
	return 0;
}

void pages_flush(struct tmesh_pages *pages)
{
	return_back(pages, 0, NULL);
}

int pages_ask(struct tmesh_pages *pages, size_t bytes, enum pages_op answer,
	      struct tmesh_error *err)
{
	struct wait wait = begin_wait();
	int rc = return_back(pages, wait.deadline, err);

	if (!rc)
		rc = say(pages, &pages->message, bytes, wait.deadline, err);
	while (!rc) {
		rc = hear_next(pages, &wait, err);
		if (rc == (int)answer)
			return 0;
		/* An answer to nothing that was asked. */
		if (rc > 0 && rc != PAGES_GRANT && rc != PAGES_RECALL)
			rc = owner_gone(pages, err);
		else if (rc > 0)
			rc = 0;
	}
	/* A late answer would be taken for that to the next question. */
	if (rc == -ETIMEDOUT)
		pages->gone = true;
	return rc;
}

/* Slabs */

static int slab_open(struct tmesh_pages *pages, uint32_t slab, uint32_t device, const char *token,
		     struct tmesh_error *err)
{
	uint64_t bytes = pages->shape.page_bytes * pages->shape.slab_pages;
	struct tmesh_region *region;
	int rc = tmesh_region_open(pages->ctx, token, TMESH_READ | TMESH_WRITE, &region, err);
	int fd;
	void *at;

	if (rc)
		return rc;
	fd = tmesh_region_fd(region);
	if (tmesh_region_bytes(region) < bytes)
		rc = tmesh_fail(err, -EPROTO, "a slab's region is too short");
	else if (fd < 0)
		rc = tmesh_fail(err, fd, "a slab's region has no descriptor");
	if (!rc) {
		at = mmap(pages->base[device] + slab * bytes, bytes, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_FIXED, fd, 0);
		/* A forked child has no pages: it could write to them after we are dead. */
		if (at == MAP_FAILED || madvise(at, bytes, MADV_DONTFORK))
			rc = tmesh_fail_errno(err, "mapping pages");
	}
	if (rc)
		tmesh_region_unref(region);
	else
		pages->regions[slab][device] = region;
	return rc;
}

static int slab_map(struct tmesh_pages *pages, uint32_t slab, struct tmesh_error *err)
{
	char tokens[TMESH_PAGES_MAX_DEVICES][TMESH_TOKEN_SIZE];
	int rc;

	if (pages->regions[slab][pages->shape.devices - 1])
		return 0;
	pages->message.head = (struct pages_head){.op = PAGES_SLAB, .a = slab};
	rc = pages_ask(pages, sizeof(struct pages_head), PAGES_SLAB_IS, err);
	if (!rc &&
	    (pages->message.head.status || pages->message.head.count != pages->shape.devices))
		rc = tmesh_fail(err,
				pages->message.head.status ? pages->message.head.status : -EPROTO,
				"the pool's owner gives no memory for a page of this handle's");
	if (rc)
		return rc;
	memcpy(tokens, pages->message.tokens, sizeof(tokens));
	for (uint32_t d = 0; d < pages->shape.devices && !rc; d++) {
		tokens[d][TMESH_TOKEN_SIZE - 1] = '\0';
		if (!pages->regions[slab][d])
			rc = slab_open(pages, slab, d, tokens[d], err);
	}
	return rc;
}

static int page_map(struct tmesh_pages *pages, uint32_t page, struct tmesh_error *err)
{
	return slab_map(pages, page / pages->shape.slab_pages, err);
}

/* Pages */

/* Ask for pages. @needed 0: ahead of need. */
static int want(struct tmesh_pages *pages, uint32_t needed, uint64_t deadline,
		struct tmesh_error *err)
{
	const struct pages_head head = {
		.op = PAGES_WANT,
		.count = needed > BATCH ? needed : BATCH,
		.a = needed,
	};
	int rc;

	if (pages->wants)
		return 0;
	rc = say(pages, &head, sizeof(head), deadline, err);
	pages->wants = rc == 0;
	return rc;
}

/* Get at least one spare page. The error has the reason if there is none. */
static int page_get_some(struct tmesh_pages *pages, uint32_t count, struct tmesh_error *err)
{
	struct wait wait = begin_wait();
	bool second = false;
	int rc = return_back(pages, wait.deadline, err);

	while (!rc && !pages->spares) {
		/* If there is none, the owner asks others to return theirs, so a second try may
		 * succeed. */
		rc = want(pages, count, wait.deadline, err);
		if (!rc)
			rc = hear_next(pages, &wait, err);
		if (rc == PAGES_GRANT && !pages->message.head.count) {
			int status = pages->message.head.status;

			if (status == -EDQUOT && second)
				return tmesh_fail(
					err, status,
					"all pages of this tenant are held, or kept ready by idle "
					"handles: release sequences, trim those handles, "
					"or make the tenant or its pool with more max_pages");
			if (status && status != -EDQUOT)
				return tmesh_fail(err, status,
						  "the pool's owner has no memory for more pages");
			if (status)
				model_socket_wait(pages->socket.fd, POLLIN,
						  tmesh_now_ns() + 1000000);
			second |= status != 0;
		}
		if (rc > 0 && rc != PAGES_GRANT && rc != PAGES_RECALL)
			rc = owner_gone(pages, err);
		else if (rc > 0)
			rc = return_back(pages, wait.deadline, err);
	}
	if (rc == -ETIMEDOUT)
		pages->gone = true;
	return rc;
}

static void page_unref(struct tmesh_pages *pages, uint32_t page)
{
	if (--pages->refs_of[page])
		return;
	pages->held--;
	if (bit_get(pages->shared, page)) {
		bit_clear(pages->shared, page);
		page_release(pages, page);
	} else if (pages->spares < pages->shape.max_pages) {
		pages->spare[pages->spares++] = page;
	}
	if (++pages->since % LISTEN_EACH)
		return;
	for (unsigned int i = 0; i < LISTEN_EACH && !pages->gone; i++)
		if (hear(pages, NULL) < 0)
			break;
	while (pages->spares > SPARES / 2 && pages->backs < SPARES)
		page_release(pages, pages->spare[--pages->spares]);
	if (pages->backs)
		pages_flush(pages);
}

static int page_get(struct tmesh_pages *pages, uint32_t count, uint32_t *out,
		    struct tmesh_error *err)
{
	int rc = pages->spares ? 0 : page_get_some(pages, count, err);
	uint32_t page;

	if (rc)
		return rc;
	page = pages->spare[--pages->spares];
	/* Hold it before its slab is mapped: messages meanwhile may recall the spares. */
	pages->refs_of[page] = 1;
	pages->held++;
	rc = page_map(pages, page, err);
	if (rc)
		page_unref(pages, page);
	else
		*out = page;
	return rc;
}

void pages_unref(struct tmesh_pages *pages, uint32_t page)
{
	page_unref(pages, page);
}

int pages_alloc(struct tmesh_pages *pages, uint32_t *out, uint32_t count, struct tmesh_error *err)
{
	for (uint32_t n = 0; n < count; n++) {
		int rc = page_get(pages, count - n, &out[n], err);

		if (rc) {
			while (n--)
				page_unref(pages, out[n]);
			return rc;
		}
	}
	/* The sequence will grow, so ask for its next pages ahead. */
	if (pages->spares < LOW && !pages->wants && !pages->dry)
		want(pages, 0, 0, NULL);
	return 0;
}

int pages_adopt(struct tmesh_pages *pages, uint32_t page, struct tmesh_error *err)
{
	int rc;

	if (!is_page(pages, page))
		return tmesh_fail(err, -EPROTO, "the pool's owner names a page that there is not");
	/* Held from here on, whatever comes: a failure lets it go again. */
	bit_set(pages->shared, page);
	if (!pages->refs_of[page]++)
		pages->held++;
	rc = page_map(pages, page, err);
	if (rc)
		page_unref(pages, page);
	return rc;
}

bool pages_alone(const struct tmesh_pages *pages, uint32_t page)
{
	return pages->refs_of[page] == 1 && !bit_get(pages->shared, page);
}

void pages_copy(struct tmesh_pages *pages, uint32_t to, uint32_t from)
{
	uint64_t bytes = pages->shape.page_bytes;

	for (uint32_t d = 0; d < pages->shape.devices; d++)
		memcpy(pages->base[d] + to * bytes, pages->base[d] + from * bytes, bytes);
	pages->copies++;
}

/* Opening and ending */

static void pages_free(struct tmesh_pages *pages)
{
	bool here = pages->life == model_life();
	uint64_t bytes = pages->shape.max_pages * pages->shape.page_bytes;

	if (here) {
		model_host_lock();
		/* Others may have the connection too, by the lifeline. */
		if (pages->socket.fd >= 0)
			shutdown(pages->socket.fd, SHUT_RDWR);
		model_fd_close(&pages->socket);
		model_host_unlock();
	}
	/* In a forked child the mappings were not inherited, and others may use the addresses. */
	for (uint32_t d = 0; here && d < pages->shape.devices; d++)
		if (pages->base[d])
			munmap(pages->base[d], bytes);
	for (uint32_t s = 0; pages->regions && s < pages->slabs; s++)
		for (uint32_t d = 0; d < pages->shape.devices; d++)
			tmesh_region_unref(pages->regions[s][d]);
	table_log_free(pages);
	if (here)
		pthread_mutex_destroy(&pages->lock);
	tmesh_ctx_unref(pages->ctx);
	free(pages->regions);
	free(pages->refs_of);
	free(pages->shared);
	free(pages->spare);
	free(pages->back);
	free(pages);
}

static int welcomed(struct tmesh_pages *pages, struct tmesh_error *err)
{
	struct pages_message *in = &pages->message;
	ssize_t got;

	if (model_socket_wait(pages->socket.fd, POLLIN, tmesh_now_ns() + MODEL_WAIT_NS))
		return tmesh_fail(err, -ETIMEDOUT, "the pool's owner does not answer");
	got = model_socket_recv(pages->socket.fd, in, sizeof(*in), NULL);
	if (got == 0)
		return tmesh_fail(err, -EBUSY, "the pool takes no more handles");
	if (got != sizeof(in->head) + sizeof(in->shape) || in->head.op != PAGES_WELCOME ||
	    in->shape.magic != PAGES_MAGIC || in->shape.version != PAGES_VERSION ||
	    pages_check_shape(&in->shape, NULL) || in->shape.max_pages % in->shape.slab_pages)
		return model_refuse_token(err);
	pages->shape = in->shape;
	pages->slabs = in->shape.max_pages / in->shape.slab_pages;
	return 0;
}

static int make_tables(struct tmesh_pages *pages, struct tmesh_error *err)
{
	uint32_t count = pages->shape.max_pages;

	/* Unused entries cost no memory: calloc() does not touch them. */
	pages->regions = calloc(pages->slabs, sizeof(*pages->regions));
	pages->refs_of = calloc(count, sizeof(*pages->refs_of));
	pages->shared = calloc((count + 63) / 64, sizeof(*pages->shared));
	pages->spare = calloc(count, sizeof(*pages->spare));
	pages->back = calloc(count, sizeof(*pages->back));
	if (!pages->regions || !pages->refs_of || !pages->shared || !pages->spare || !pages->back)
		return tmesh_fail(err, -ENOMEM, "no memory for the tables of %u pages", count);
	for (uint32_t d = 0; d < pages->shape.devices; d++) {
		pages->base[d] = pages_address_space(count * pages->shape.page_bytes);
		if (!pages->base[d])
			return tmesh_fail_errno(err, "address space for a pool of pages");
	}
	return 0;
}

int tmesh_pages_open(struct tmesh_ctx *ctx, const char *token, struct tmesh_pages **out,
		     struct tmesh_error *err)
{
	struct tmesh_pages *pages;
	int socket, rc = model_host_ready(err);

	if (rc)
		return rc;
	pages = calloc(1, sizeof(*pages));
	if (!pages)
		return tmesh_fail(err, -ENOMEM, "no memory for a handle on pages");
	atomic_init(&pages->refs, 1);
	pages->life = model_life();
	pages->seqs_end = &pages->seqs;
	pages->ctx = tmesh_ctx_ref(ctx);
	pages->socket.fd = -1;
	pthread_mutex_init(&pages->lock, NULL);
	rc = model_connect(ctx, token, &socket, err);
	if (!rc) {
		model_host_lock();
		model_fd_keep(&pages->socket, socket);
		model_host_unlock();
		rc = welcomed(pages, err);
	}
	if (!rc)
		rc = make_tables(pages, err);
	if (rc)
		pages_free(pages);
	else
		*out = pages;
	return rc;
}

struct tmesh_pages *tmesh_pages_ref(struct tmesh_pages *pages)
{
	atomic_fetch_add_explicit(&pages->refs, 1, memory_order_relaxed);
	return pages;
}

void tmesh_pages_unref(struct tmesh_pages *pages)
{
	if (pages && atomic_fetch_sub_explicit(&pages->refs, 1, memory_order_acq_rel) == 1)
		pages_free(pages);
}

/* The rest of the public face */

int tmesh_pages_info(struct tmesh_pages *pages, struct tmesh_pages_info *info,
		     struct tmesh_error *err)
{
	struct tmesh_pages_info i;
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	i = (struct tmesh_pages_info){
		.page_bytes = pages->shape.page_bytes,
		.page_tokens = pages->shape.page_tokens,
		.slab_pages = pages->shape.slab_pages,
		.max_pages = pages->shape.max_pages,
		.devices = pages->shape.devices,
		.heads = pages->shape.heads,
		.spare = pages->spares,
		.held = pages->held,
		.copies = pages->copies,
		.bytes_copied = pages->copies * pages->shape.page_bytes * pages->shape.devices,
	};
	pages_leave(pages);
	return tmesh_write_sized(info, &i, sizeof(i), err);
}

int tmesh_pages_head(const struct tmesh_pages *pages, uint32_t head, uint32_t *device,
		     uint32_t *place, struct tmesh_error *err)
{
	if (head >= pages->shape.heads)
		return tmesh_fail(err, -EINVAL,
				  "there is no head %u: the pool's %u heads are numbered from 0",
				  head, pages->shape.heads);
	*device = head % pages->shape.devices;
	*place = head / pages->shape.devices;
	return 0;
}

void *tmesh_pages_base(const struct tmesh_pages *pages, uint32_t device)
{
	return device < pages->shape.devices ? pages->base[device] : NULL;
}

int tmesh_pages_alloc(struct tmesh_pages *pages, uint32_t *page, struct tmesh_error *err)
{
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	rc = pages_alloc(pages, page, 1, err);
	pages_leave(pages);
	return rc;
}

static int check_held(const struct tmesh_pages *pages, uint32_t page, struct tmesh_error *err)
{
	if (!is_page(pages, page) || !pages->refs_of[page])
		return tmesh_fail(err, -EINVAL, "page %u is not this handle's", page);
	return 0;
}

int tmesh_pages_get(struct tmesh_pages *pages, uint32_t page, struct tmesh_error *err)
{
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	rc = check_held(pages, page, err);
	if (!rc)
		pages->refs_of[page]++;
	pages_leave(pages);
	return rc;
}

int tmesh_pages_put(struct tmesh_pages *pages, uint32_t page, struct tmesh_error *err)
{
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	rc = check_held(pages, page, err);
	if (!rc)
		page_unref(pages, page);
	pages_leave(pages);
	return rc;
}

void tmesh_pages_trim(struct tmesh_pages *pages)
{
	struct wait wait;

	if (pages_enter(pages, NULL))
		return;
	wait = begin_wait();
	/* Pages that were asked for ahead would be kept ready when they come. */
	while (pages->wants && !pages->gone && hear_next(pages, &wait, NULL) >= 0)
		;
	for (unsigned int i = 0; i < PAGES_UNASKED_MAX && !pages->gone; i++)
		if (hear(pages, NULL) < 0)
			break;
	while (pages->spares)
		page_release(pages, pages->spare[--pages->spares]);
	pages_flush(pages);
	pages_leave(pages);
}

void tmesh_pages_hash(const struct tmesh_pages *pages, const uint64_t parent[2],
		      const int32_t *tokens, size_t count, uint64_t hash[2])
{
	static const uint64_t none[2];
	uint64_t text[2][3]; /* what was before, and what this is: of fixed length */

	for (int half = 0; half < 2; half++) {
		memcpy(text[half], parent ? parent : none, sizeof(none));
		text[half][2] =
			tmesh_siphash(&pages->shape.key[2 * half], tokens, count * sizeof(*tokens));
	}
	for (int half = 0; half < 2; half++)
		hash[half] =
			tmesh_siphash(&pages->shape.key[2 * half], text[half], sizeof(text[half]));
}
