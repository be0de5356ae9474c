// SPDX-License-Identifier: MIT
/*
 * The regions (by token) and layouts that messages name by number. Each lane has a table of both,
 * which its producer fills and all consumers read. Receivers keep the ones that they have opened
 * and checked. A message that names nothing new costs a few comparisons at either end.
 */
#include "channel_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layout.h"

int tmesh_channel_tables_new(struct tmesh_channel *channel, struct tmesh_error *err)
{
	const struct channel_shape *shape = &channel->shape;
	bool good;

	if (channel->role == TMESH_CHANNEL_SEND) {
		channel->sent_regions = calloc(shape->regions, sizeof(*channel->sent_regions));
		channel->sent_layouts = calloc(shape->layouts, sizeof(*channel->sent_layouts));
		channel->sent_tensors = calloc(CHANNEL_TENSORS, sizeof(*channel->sent_tensors));
		good = channel->sent_regions && channel->sent_layouts && channel->sent_tensors;
		for (uint32_t i = 0; channel->sent_regions && i < shape->regions; i++)
			channel->sent_regions[i].fd = -1;
	} else {
		channel->known_regions = calloc((size_t)shape->lanes * shape->regions,
						sizeof(*channel->known_regions));
		channel->known_layouts = calloc((size_t)shape->lanes * shape->layouts,
						sizeof(*channel->known_layouts));
		channel->known_tensors = calloc(CHANNEL_TENSORS, sizeof(*channel->known_tensors));
		channel->questions = calloc(shape->lanes, sizeof(*channel->questions));
		good = channel->known_regions && channel->known_layouts && channel->known_tensors &&
		       channel->questions;
		for (uint32_t i = 0; channel->questions && i < shape->lanes; i++)
			channel->questions[i] = TMESH_NO_QUESTION;
	}
	return good ? 0 : tmesh_fail(err, -ENOMEM, "no memory for a channel's tables");
}

void tmesh_channel_questions_drop(struct tmesh_channel *channel)
{
	for (uint32_t i = 0; channel->questions && i < channel->shape.lanes; i++)
		tmesh_question_drop(&channel->questions[i]);
}

void tmesh_channel_tables_free(struct tmesh_channel *channel)
{
	const struct channel_shape *shape = &channel->shape;

	for (uint32_t i = 0; channel->known_tensors && i < CHANNEL_TENSORS; i++)
		tmesh_tensor_unref(channel->known_tensors[i].tensor);
	for (uint32_t i = 0; channel->known_regions && i < shape->lanes * shape->regions; i++)
		tmesh_region_unref(channel->known_regions[i].region);
	for (uint32_t i = 0; channel->sent_regions && i < shape->regions; i++) {
		tmesh_region_unref(channel->sent_regions[i].region);
		if (channel->sent_regions[i].fd >= 0)
			close(channel->sent_regions[i].fd);
	}
	tmesh_channel_questions_drop(channel);
	free(channel->questions);
	free(channel->known_tensors);
	free(channel->known_layouts);
	free(channel->known_regions);
	free(channel->sent_tensors);
	free(channel->sent_layouts);
	free(channel->sent_regions);
}

/* Return whether no receiver needs an entry any more that was last used before @until. In a corrupt
 * channel none does, and sending reports that when the lane looks full. */
static bool taken(struct tmesh_channel *channel, uint64_t until)
{
	return (int64_t)(channel->seen - until) >= 0 || tmesh_channel_look(channel, NULL) ||
	       (int64_t)(channel->seen - until) >= 0;
}

/* Empty the entry and return its region, or NULL; home->lock is held. */
static struct tmesh_region *clear_region(struct tmesh_channel *channel, uint32_t entry)
{
	struct channel_sent_region *sent = &channel->sent_regions[entry];
	struct tmesh_region *region = sent->region;

	if (atomic_load(&sent->stored))
		channel->own_stale = true;
	if (sent->fd >= 0)
		close(sent->fd);
	sent->fd = -1;
	sent->region = NULL;
	atomic_store(&sent->stored, false);
	return region;
}

static int write_region(struct tmesh_channel *channel, struct tmesh_region *region, uint32_t entry,
			struct tmesh_error *err)
{
	struct channel_sent_region *sent = &channel->sent_regions[entry];
	struct tmesh_region *before;
	/* No receiver could write to sealed memory. */
	uint32_t rights = tmesh_region_is_sealed(region) ? TMESH_READ : channel->rights;
	uint64_t words[CHANNEL_R_WORDS] = {tmesh_region_id(region), rights};
	char token[TMESH_TOKEN_SIZE] = "";
	int rc = tmesh_region_token(region, rights, token, err);

	if (rc)
		return rc;
	memcpy(&words[CHANNEL_R_TOKEN], token, sizeof(token));
	channel_copy_in(channel_regions(channel, channel->lane)[entry].words, words,
			CHANNEL_R_WORDS);
	pthread_mutex_lock(&channel->home->lock);
	before = clear_region(channel, entry);
	sent->region = tmesh_region_ref(region);
	pthread_mutex_unlock(&channel->home->lock);
	tmesh_channel_store_region(channel, entry, rights);
	tmesh_channel_drop_later(channel, before);
	return 0;
}

/* Return a list of the regions that were received and that nothing else here uses. The lane's store
 * has none of them once it was updated. */
static struct tmesh_region *collect_received(struct tmesh_channel *channel)
{
	struct channel_region *table = channel_regions(channel, channel->lane);
	struct tmesh_region *list = NULL;

	for (uint32_t i = 0; i < channel->shape.regions; i++) {
		struct channel_sent_region *sent = &channel->sent_regions[i];
		struct tmesh_region *region = sent->region;

		if (!region && sent->fd < 0)
			continue;
		if ((region && atomic_load(&region->refs) != 1) || !taken(channel, sent->until))
			continue;
		pthread_mutex_lock(&channel->home->lock);
		clear_region(channel, i);
		pthread_mutex_unlock(&channel->home->lock);
		/* Receivers that keep the region open unused will close it, too. */
		atomic_store_explicit(&table[i].words[CHANNEL_R_ID], 0, memory_order_relaxed);
		if (region) {
			/* The last reference is ours. */
			region->later = list;
			list = region;
		}
	}
	return list;
}

/* Drop the received regions. If the store cannot be updated now, the next region's update removes
 * them. */
static void drop_received(struct tmesh_channel *channel, struct tmesh_region *list)
{
	if (channel->own_stale) {
		pthread_mutex_lock(&channel->home->lock);
		tmesh_channel_store_update(channel);
		pthread_mutex_unlock(&channel->home->lock);
	}
	while (list) {
		struct tmesh_region *next = list->later;

		tmesh_channel_drop_later(channel, list);
		list = next;
	}
}

void tmesh_channel_let_go(struct tmesh_channel *channel)
{
	drop_received(channel, collect_received(channel));
}

static bool better_place(const struct channel_sent_region *a, const struct channel_sent_region *b)
{
	if (!a->region != !b->region)
		return !a->region;
	return (int64_t)(a->until - b->until) < 0;
}

static int name_region(struct tmesh_channel *channel, struct tmesh_region *region,
		       struct tmesh_error *err)
{
	struct channel_sent_region *sent = channel->sent_regions;
	struct tmesh_region *received;
	uint32_t oldest = 0;
	int rc = -EAGAIN;

	for (uint32_t i = 0; i < channel->shape.regions; i++) {
		if (sent[i].region == region) {
			channel->last_region = i;
			return 0;
		}
	}
	received = collect_received(channel);
	for (uint32_t i = 1; i < channel->shape.regions; i++)
		if (better_place(&sent[i], &sent[oldest]))
			oldest = i;
	if (taken(channel, sent[oldest].until)) {
		channel->last_region = oldest;
		rc = write_region(channel, region, oldest, err);
	}
	/* The store changes once for both. */
	drop_received(channel, received);
	return rc;
}

static bool same_layout(const struct tmesh_layout *a, const struct tmesh_layout *b)
{
	if (a->dtype != b->dtype || a->ndim != b->ndim)
		return false;
	for (int32_t i = 0; i < a->ndim; i++)
		if (a->shape[i] != b->shape[i] || a->strides[i] != b->strides[i])
			return false;
	return true;
}

/* Write a layout. Its version follows the one that is there, so no receiver mistakes it for a dead
 * producer's. */
static void write_layout(struct tmesh_channel *channel, const struct tmesh_layout *layout,
			 uint32_t entry)
{
	struct channel_sent_layout *sent = &channel->sent_layouts[entry];
	atomic_uint_fast64_t *to = channel_layouts(channel, channel->lane)[entry].words;
	uint64_t words[CHANNEL_L_WORDS] = {0};

	sent->version =
		(uint32_t)atomic_load_explicit(&to[CHANNEL_L_VERSION], memory_order_relaxed) + 1;
	if (!sent->version)
		sent->version = 1;
	sent->layout = *layout;
	words[CHANNEL_L_VERSION] = sent->version;
	words[CHANNEL_L_TYPE] = (uint32_t)layout->dtype | (uint64_t)(uint32_t)layout->ndim << 32;
	memcpy(&words[CHANNEL_L_SHAPE], layout->shape, (size_t)layout->ndim * 8);
	memcpy(&words[CHANNEL_L_STRIDES], layout->strides, (size_t)layout->ndim * 8);
	channel_copy_in(to, words, CHANNEL_L_WORDS);
}

static int name_layout(struct tmesh_channel *channel, const struct tmesh_layout *layout)
{
	struct channel_sent_layout *sent = channel->sent_layouts;
	uint32_t oldest = 0;

	for (uint32_t i = 0; i < channel->shape.layouts; i++) {
		if (sent[i].version && same_layout(&sent[i].layout, layout)) {
			channel->last_layout = i;
			return 0;
		}
		if ((int64_t)(sent[i].until - sent[oldest].until) < 0)
			oldest = i;
	}
	if (!taken(channel, sent[oldest].until))
		return -EAGAIN;
	channel->last_layout = oldest;
	write_layout(channel, layout, oldest);
	return 0;
}

int tmesh_channel_name(struct tmesh_channel *channel, const struct tmesh_tensor *tensor,
		       struct channel_sent_tensor *sent, struct tmesh_error *err)
{
	const struct channel_sent_layout *form;
	int rc;

	if (channel->sent_regions[channel->last_region].region != tensor->region) {
		rc = name_region(channel, tensor->region, err);
		if (rc)
			return rc;
	}
	form = &channel->sent_layouts[channel->last_layout];
	if (!form->version || !same_layout(&form->layout, &tensor->layout)) {
		rc = name_layout(channel, &tensor->layout);
		if (rc)
			return rc;
		form = &channel->sent_layouts[channel->last_layout];
	}
	sent->serial = tensor->serial;
	sent->region = channel->last_region;
	sent->layout = channel->last_layout;
	sent->version = form->version;
	sent->payload[CHANNEL_W_REGION] = tmesh_region_id(tensor->region);
	sent->payload[CHANNEL_W_OFFSET] = tensor->layout.offset;
	sent->payload[CHANNEL_W_BYTES] = tensor->bytes;
	sent->payload[CHANNEL_W_NAMES] =
		sent->region | sent->layout << 16 | (uint64_t)sent->version << 32;
	return 0;
}

/* Receiver */

static int nonsense(const char *what, struct tmesh_error *err)
{
	return tmesh_fail(err, -EPROTO, "receive: the sender's message is malformed (%s)", what);
}

static void set_known(struct tmesh_channel *channel, struct channel_known_region *known,
		      struct tmesh_region *region)
{
	pthread_mutex_lock(&channel->home->lock);
	known->region = region;
	pthread_mutex_unlock(&channel->home->lock);
}

/* Take a region out of the tables. Return: the tables' reference. */
static struct tmesh_region *take_known(struct tmesh_channel *channel,
				       struct channel_known_region *known)
{
	struct tmesh_region *region = known->region;

	for (uint32_t i = 0; i < CHANNEL_TENSORS; i++) {
		struct channel_known_tensor *tensor = &channel->known_tensors[i];

		if (tensor->tensor && tmesh_tensor_region(tensor->tensor) == known->region) {
			tmesh_tensor_unref(tensor->tensor);
			tensor->tensor = NULL;
		}
	}
	channel->open_regions--;
	channel->open_bytes -= tmesh_region_bytes(region);
	set_known(channel, known, NULL);
	return region;
}

static void forget_region(struct tmesh_channel *channel, struct channel_known_region *known)
{
	tmesh_region_unref(take_known(channel, known));
}

/* Return whether nothing but this handle uses the region. */
static bool idle(const struct tmesh_channel *channel, const struct channel_known_region *known)
{
	uint32_t refs = 1;

	for (uint32_t i = 0; i < CHANNEL_TENSORS; i++) {
		const struct tmesh_tensor *tensor = channel->known_tensors[i].tensor;

		if (!tensor || tmesh_tensor_region(tensor) != known->region)
			continue;
		if (!tmesh_tensor_alone(tensor))
			return false;
		refs++;
	}
	return atomic_load(&known->region->refs) == refs;
}

/* Close regions if there are too many, which costs an open if one of them comes again. Too many
 * bytes are a reason only if closing frees them. */
static void make_room(struct tmesh_channel *channel, uint64_t bytes)
{
	uint32_t count = channel->shape.lanes * channel->shape.regions;

	for (uint32_t i = 0; i < count; i++) {
		struct channel_known_region *known = &channel->known_regions[channel->hand];
		bool many = channel->open_regions >= channel->max_regions;

		if (!many && channel->open_bytes + bytes <= channel->max_bytes)
			return;
		if (known->region && (many || idle(channel, known)))
			forget_region(channel, known);
		channel->hand = channel->hand + 1 < count ? channel->hand + 1 : 0;
	}
}

/* Close regions that are open only for future messages. Return whether there were any. */
static bool close_idle(struct tmesh_channel *channel)
{
	uint32_t count = channel->shape.lanes * channel->shape.regions;
	bool any = false;

	for (uint32_t i = 0; channel->open_regions && i < count; i++) {
		struct channel_known_region *known = &channel->known_regions[i];

		if (!known->region || !idle(channel, known))
			continue;
		forget_region(channel, known);
		any = true;
	}
	return any;
}

/* Close the regions that their sender has released and whose tensors are not used here. */
static void close_returned(struct tmesh_channel *channel, uint32_t lane,
			   void (*drop)(struct tmesh_channel *channel, struct tmesh_region *region))
{
	struct channel_region *table = channel_regions(channel, channel_lane(channel, lane));
	struct channel_known_region *known = &channel->known_regions[lane * channel->shape.regions];

	for (uint32_t i = 0; i < channel->shape.regions; i++)
		if (known[i].region &&
		    !atomic_load_explicit(&table[i].words[CHANNEL_R_ID], memory_order_relaxed) &&
		    idle(channel, &known[i]))
			drop(channel, take_known(channel, &known[i]));
}

static void drop_now(struct tmesh_channel *channel, struct tmesh_region *region)
{
	tmesh_region_unref(region);
}

void tmesh_channel_close_returned(struct tmesh_channel *channel)
{
	for (uint32_t i = 0; channel->open_regions && i < channel->shape.lanes; i++)
		close_returned(channel, i, tmesh_channel_drop_later);
}

/* Open the region of an entry, whose words are @words. */
static int fetch_region(struct tmesh_channel *channel, uint32_t lane, uint32_t entry,
			const uint64_t *words, struct tmesh_region **region,
			struct tmesh_error *err)
{
	const uint32_t rights = (uint32_t)words[CHANNEL_R_RIGHTS];
	const uint64_t id = words[CHANNEL_R_ID];
	char token[TMESH_TOKEN_SIZE];
	int there, rc;

	memcpy(token, &words[CHANNEL_R_TOKEN], sizeof(token));
	token[sizeof(token) - 1] = '\0';
	channel->questions[lane].until = channel_until(channel);
	rc = tmesh_region_open_asking(channel->ctx, token, rights, &channel->questions[lane],
				      region, err);
	/* Its sender is gone or does not answer in time, or others have received it. */
	if (rc != -ENOENT && rc != -ETIMEDOUT && rc != -EAGAIN)
		return rc;
	there = tmesh_channel_store_open(channel, lane, entry, id, rights, region);
	if (there == -ENOENT)
		return rc;
	if (there)
		return tmesh_fail(
			err, there,
			"receive: the message's region cannot be opened: its sender is gone "
			"or does not answer, and no store has the region");
	tmesh_question_drop(&channel->questions[lane]);
	return 0;
}

static int open_region_now(struct tmesh_channel *channel, uint32_t lane, uint32_t entry,
			   uint64_t id, struct channel_known_region *known, struct tmesh_error *err)
{
	uint64_t words[CHANNEL_R_WORDS];
	struct tmesh_region *region;
	int rc;

	channel_copy_out(words, channel_regions(channel, channel_lane(channel, lane))[entry].words,
			 CHANNEL_R_WORDS);
	if (words[CHANNEL_R_ID] != id)
		return nonsense("region", err);
	if (words[CHANNEL_R_RIGHTS] & ~(uint64_t)(TMESH_READ | TMESH_WRITE))
		return nonsense("rights", err);
	close_returned(channel, lane, drop_now);
	rc = fetch_region(channel, lane, entry, words, &region, err);
	/* Free descriptors of regions that are open only for future messages: this one is needed
	 * now. */
	if ((rc == -EMFILE || rc == -ENFILE) && close_idle(channel))
		rc = fetch_region(channel, lane, entry, words, &region, err);
	if (rc)
		return rc;
	if (tmesh_region_id(region) != id) {
		tmesh_region_unref(region);
		return nonsense("token", err);
	}
	if (known->region)
		forget_region(channel, known);
	make_room(channel, tmesh_region_bytes(region));
	set_known(channel, known, region);
	known->id = id;
	channel->open_regions++;
	channel->open_bytes += tmesh_region_bytes(region);
	return 0;
}

/* Open a region, or report why a handle that must not open regions cannot use it: the error of
 * tmesh_channel_prepare(), or -EINPROGRESS if that has not been called. */
static int open_region(struct tmesh_channel *channel, uint32_t lane, uint32_t entry, uint64_t id,
		       struct channel_known_region *known, struct tmesh_error *err)
{
	uint64_t head =
		atomic_load_explicit(&channel_lane(channel, lane)->head, memory_order_acquire);
	int why = known->refused == id && known->refused_at == head ? known->why : 0;
	char text[64];

	known->why = 0;
	if (channel->opens) {
		why = open_region_now(channel, lane, entry, id, known, err);
		if (why && !channel_passes(why)) {
			known->refused = id;
			known->refused_at = head;
			known->why = why;
		}
		return why;
	}
	if (why)
		return tmesh_fail(err, why,
				  "receive: the message's region cannot be opened: its producer "
				  "has released it, is gone, or described it wrongly (%s)",
				  strerror_r(-why, text, sizeof(text)));
	return tmesh_fail(err, -EINPROGRESS,
			  "receive: the message's region is not open yet: "
			  "tmesh_channel_prepare() opens it");
}

static int read_layout(struct tmesh_channel *channel, uint32_t lane, uint32_t entry,
		       uint32_t version, struct channel_known_layout *known,
		       struct tmesh_error *err)
{
	uint64_t words[CHANNEL_L_WORDS];
	struct channel_known_layout made = {.version = version};

	channel_copy_out(words, channel_layouts(channel, channel_lane(channel, lane))[entry].words,
			 CHANNEL_L_WORDS);
	if (!version || words[CHANNEL_L_VERSION] != version)
		return nonsense("layout", err);
	made.layout.dtype = (enum tmesh_dtype)(uint32_t)words[CHANNEL_L_TYPE];
	made.layout.ndim = (int32_t)(words[CHANNEL_L_TYPE] >> 32);
	memcpy(made.layout.shape, &words[CHANNEL_L_SHAPE], sizeof(made.layout.shape));
	memcpy(made.layout.strides, &words[CHANNEL_L_STRIDES], sizeof(made.layout.strides));
	if (tmesh_layout_measure(&made.layout, &made.bytes, &made.low, &made.high, NULL))
		return nonsense("shape", err);
	*known = made;
	return 0;
}

/* Check the place alone: the layout itself is sound. */
static int check_place(const struct channel_known_layout *form, uint64_t offset, uint64_t bytes,
		       uint64_t region_bytes, struct tmesh_error *err)
{
	uint64_t end;

	if (bytes != form->bytes || offset < 0 - (uint64_t)form->low ||
	    __builtin_add_overflow(offset, (uint64_t)form->high, &end) || end > region_bytes)
		return nonsense("place in the region", err);
	return 0;
}

/* Make @known the tensor of a payload that was found good. */
static int make_tensor(struct channel_known_tensor *known, struct tmesh_region *region,
		       const struct channel_known_layout *form, uint32_t lane,
		       const uint64_t payload[CHANNEL_W_BESIDE], struct tmesh_error *err)
{
	struct tmesh_layout layout = form->layout;
	struct tmesh_tensor *tensor;

	layout.offset = payload[CHANNEL_W_OFFSET];
	if (!known->tensor || !tmesh_tensor_reuse(known->tensor, region, &layout, form->bytes)) {
		int rc = tmesh_tensor_wrap(region, &layout, &tensor, err);

		if (rc)
			return rc;
		tmesh_tensor_unref(known->tensor);
		known->tensor = tensor;
	}
	known->lane = lane;
	memcpy(known->payload, payload, sizeof(known->payload));
	return 0;
}

int tmesh_channel_learn(struct tmesh_channel *channel, uint32_t lane,
			const uint64_t payload[CHANNEL_W_BESIDE],
			struct channel_known_tensor *known, struct tmesh_error *err)
{
	const struct channel_shape *shape = &channel->shape;
	uint32_t region = payload[CHANNEL_W_NAMES] & 0xffff;
	uint32_t layout = payload[CHANNEL_W_NAMES] >> 16 & 0xffff;
	uint32_t version = payload[CHANNEL_W_NAMES] >> 32;
	struct channel_known_region *place;
	struct channel_known_layout *form;
	int rc = 0;

	if (region >= shape->regions || layout >= shape->layouts)
		return nonsense("number of a region or layout", err);
	place = &channel->known_regions[lane * shape->regions + region];
	form = &channel->known_layouts[lane * shape->layouts + layout];
	if (!place->region || place->id != payload[CHANNEL_W_REGION])
		rc = open_region(channel, lane, region, payload[CHANNEL_W_REGION], place, err);
	if (!rc && (!form->version || form->version != version))
		rc = read_layout(channel, lane, layout, version, form, err);
	if (!rc)
		rc = check_place(form, payload[CHANNEL_W_OFFSET], payload[CHANNEL_W_BYTES],
				 tmesh_region_bytes(place->region), err);
	return rc ? rc : make_tensor(known, place->region, form, lane, payload, err);
}
