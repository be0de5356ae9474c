// SPDX-License-Identifier: MIT
/* The driver's verbs beyond tensors and channels: leases, revocation, fences, memory in other
 * forms, hand-over, bundles, kept regions, slots. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "driver.h"

/* Taking back, leases, fences. */
static int take_back(void)
{
	return tmesh_region_revoke(region(), &why);
}

static int reclaim(void)
{
	return tmesh_region_reclaim(region(), (uint64_t)timeout_ns(), NULL, &why);
}

static int pin(void)
{
	struct tmesh_region *it;
	int rc = tmesh_region_pin(region(), &it, &why);

	if (!rc)
		keep(field(2), (struct object){.pin = it});
	return rc;
}

static int lease(void)
{
	uint64_t ns = strtoull(field(2), NULL, 10) * MS;
	int rc, pidfd;

	if (!option("process"))
		return tmesh_lease_set(region(), ns, TMESH_TAKEN_ZERO, &why);
	pidfd = (int)syscall(SYS_pidfd_open, (pid_t)number("process"), 0);
	if (pidfd < 0)
		give_up("no such process");
	rc = tmesh_lease_bind(region(), pidfd, ns, TMESH_TAKEN_ZERO, &why);
	close(pidfd);
	return rc;
}

/* The one call without a message. */
static int touch(void)
{
	int rc = tmesh_lease_touch(region());

	if (rc)
		snprintf(why.message, sizeof(why.message), "the lease has lapsed");
	return rc;
}

static int signal_fence(void)
{
	return tmesh_fence_signal(region(), strtoull(field(2), NULL, 10), &why);
}

static int wait_for_fence(void)
{
	uint64_t reached;
	int rc = tmesh_fence_wait(region(), strtoull(field(2), NULL, 10), timeout_ns(), &reached,
				  &why);

	if (!rc)
		say("%" PRIu64, reached);
	return rc;
}

/* Memory in other forms: a part is a tensor's region, or "tensor/offset/bytes" of it. */
static int gather(void)
{
	struct tmesh_gather_extent extents[8] = {0};
	struct tmesh_layout layout;
	struct tmesh_tensor *it;
	struct tmesh_region *view;
	int64_t shape[16];
	int32_t ndim = numbers(field(3), shape);
	size_t n = 0;
	int rc;

	for (int i = 4; i < count && !strchr(fields[i], '='); i++, n++) {
		char *rest = fields[i];
		struct tmesh_region_info info = {.size = sizeof(info)};

		extents[n].region = tmesh_tensor_region(find(strsep(&rest, "/"))->tensor);
		rc = tmesh_region_info(extents[n].region, &info, &why);
		if (rc)
			return rc;
		extents[n].bytes = info.alloc_bytes;
		if (rest) {
			extents[n].offset = strtoull(strsep(&rest, "/"), NULL, 10);
			extents[n].bytes = strtoull(rest, NULL, 10);
		}
	}
	rc = tmesh_region_gather(ctx, extents, n, flag("writable") ? RW : TMESH_READ, NULL, &view,
				 &why);
	if (rc)
		return rc;
	rc = tmesh_layout_contiguous(&layout, tmesh_dtype_from_name(field(2)), ndim, shape, &why);
	if (!rc)
		rc = tmesh_tensor_wrap(view, &layout, &it, &why);
	tmesh_region_unref(view);
	return made(rc, &it);
}

static int private_view(void)
{
	struct tmesh_tensor *it;
	struct tmesh_region *view;
	int rc = tmesh_region_private(tmesh_tensor_region(find(field(2))->tensor), &view, &why);

	if (rc)
		return rc;
	rc = tmesh_tensor_wrap(view, tmesh_tensor_layout(find(field(2))->tensor), &it, &why);
	tmesh_region_unref(view);
	if (!rc)
		keep(field(1), (struct object){.tensor = it});
	return rc;
}

static int export(void)
{
	int fd, rc = tmesh_region_export_dmabuf(tmesh_tensor_region(find(field(2))->tensor),
						number("offset"), number("bytes"),
						flag("writable") ? RW : TMESH_READ, &fd, &why);

	if (!rc)
		keep(field(1), (struct object){.fd = fd});
	return rc;
}

static int import(void)
{
	struct tmesh_region *it;
	int rc = tmesh_region_from_dmabuf(ctx, find(field(2))->fd, NULL, &it, &why);

	if (!rc)
		give_up("there is no other exporter");
	return rc;
}

/* Hand-over by a socket. Its name is in no folder. */
static int meet(int (*way)(int, const struct sockaddr *, socklen_t), const char *name)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(at.sun_path + 1, name, sizeof(at.sun_path) - 2);
	if (fd < 0 || way(fd, (struct sockaddr *)&at,
			  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))))
		give_up("a socket");
	return fd;
}

static int listen_at(void)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "tmesh-conformance-%d-%s", (int)getpid(), field(1));
	fd = meet(bind, name);
	if (listen(fd, 1))
		give_up("a socket");
	keep(field(1), (struct object){.fd = fd});
	say("%s", name);
	return 0;
}

static int connect_to(void)
{
	keep(field(1), (struct object){.fd = meet(connect, field(2))});
	return 0;
}

static int accept_one(void)
{
	keep(field(1), (struct object){.fd = accept(find(field(1))->fd, NULL, NULL)});
	return 0;
}

static int hand(void)
{
	struct tmesh_bundle *bundle = find(field(2))->bundle;

	if (bundle)
		return tmesh_bundle_send(bundle, find(field(1))->fd,
					 flag("writable") ? RW : TMESH_READ, &why);
	return tmesh_region_send(tmesh_tensor_region(find(field(2))->tensor), find(field(1))->fd,
				 flag("writable") ? RW : TMESH_READ, &why);
}

/* A region as its maker described it, and no longer the caller's. */
static int described(const char *name, struct tmesh_region *it)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_tensor *out;
	struct tmesh_ref ref;
	int rc = tmesh_region_info(it, &info, &why);

	if (!rc)
		rc = tmesh_ref_decode(info.description, strlen(info.description), &ref, &why);
	if (!rc)
		rc = tmesh_tensor_wrap(it, &ref.layout, &out, &why);
	tmesh_region_unref(it);
	if (rc)
		return rc;
	keep(name, (struct object){.tensor = out});
	return look_at(out);
}

static int take(void)
{
	struct tmesh_region *it;
	int rc = tmesh_region_recv(ctx, find(field(1))->fd, &it, &why);

	return rc ? rc : described(field(2), it);
}

/* Bundles: names, each with its tensor behind it. */
static int say_bundle(const char *name, int rc, struct tmesh_bundle **it)
{
	if (rc)
		return rc;
	keep(name, (struct object){.bundle = *it});
	for (size_t i = 0; i < tmesh_bundle_count(*it); i++)
		say("%s ", tmesh_bundle_name(*it, i));
	say("%" PRIu64 " %s", tmesh_bundle_bytes(*it), tmesh_bundle_metadata(*it, NULL));
	return 0;
}

/* Kept under a name. */
static int keep_under(void)
{
	struct tmesh_keep_opts opts = {
		.size = sizeof(opts),
		.flags = flag("replace") ? TMESH_KEEPING_REPLACE : 0,
		.lifetime_ns = number("lifetime") * MS,
	};
	struct tmesh_region *all[8];
	size_t n = 0;

	if (find(field(2))->bundle)
		return tmesh_keep_bundle(ctx, field(1), find(field(2))->bundle, &opts, &why);
	for (int i = 2; i < count && !strchr(fields[i], '='); i++)
		all[n++] = tmesh_tensor_region(find(fields[i])->tensor);
	return tmesh_keep(ctx, field(1), all, n, &opts, &why);
}

static int open_kept(void)
{
	struct tmesh_region **all;
	struct tmesh_bundle *bundle;
	char name[32];
	size_t n;
	int rc = tmesh_kept_open_bundle(ctx, field(2), TMESH_KEPT_OWN, &bundle, &why);

	if (rc != -EPROTO)
		return say_bundle(field(1), rc, &bundle);
	rc = tmesh_kept_open(ctx, field(2), TMESH_KEPT_OWN, TMESH_READ, &all, &n, &why);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < n; i++) {
		snprintf(name, sizeof(name), n > 1 ? "%s.%zu" : "%s", field(1), i);
		rc = described(name, all[i]);
		say(i + 1 < n ? ", " : "");
	}
	free(all);
	return rc;
}

/* NAME, or all that begin as NAME* does. */
static int drop_kept(void)
{
	size_t length = strlen(field(1)), n = 0;
	struct tmesh_kept_info *all;
	int rc;

	if (!length || field(1)[length - 1] != '*')
		return tmesh_kept_drop(ctx, field(1), &why);
	rc = tmesh_kept_list(ctx, &all, &n, &why);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < n; i++)
		if (strncmp(all[i].name, field(1), length - 1) == 0)
			rc = tmesh_kept_drop(ctx, all[i].name, &why);
	free(all);
	return rc;
}

/* The one that this suite has started on memfd. */
void end_keeper(void)
{
	struct tmesh_keeper_info info = {.size = sizeof(info)};

	if (!tmesh_keeper_info(ctx, &info, &why) && info.pid)
		kill(info.pid, SIGTERM);
}

static int take_bundle(void)
{
	struct tmesh_bundle *it;

	return say_bundle(field(2), tmesh_bundle_recv(ctx, find(field(1))->fd, &it, &why), &it);
}

static int bundle(void)
{
	struct tmesh_bundle_opts opts = {.size = sizeof(opts), .metadata = option("metadata")};
	struct tmesh_bundle_entry entries[8] = {0};
	struct tmesh_bundle *it;
	size_t n = 0;

	opts.metadata_bytes = opts.metadata ? strlen(opts.metadata) : 0;
	if (option("seal") && !flag("seal"))
		opts.flags |= TMESH_BUNDLE_UNSEALED;
	for (int i = 2; i + 1 < count && !strchr(fields[i], '='); i += 2)
		entries[n++] = (struct tmesh_bundle_entry){.name = fields[i],
							   .tensor = find(fields[i + 1])->tensor};
	return say_bundle(field(1), tmesh_bundle_create(ctx, entries, n, &opts, &it, &why), &it);
}

static int unbundle(void)
{
	struct tmesh_bundle *it;

	return say_bundle(field(1),
			  tmesh_bundle_open(ctx, field(2), strlen(field(2)),
					    flag("writable") ? RW : TMESH_READ, &it, &why),
			  &it);
}

static int member(void)
{
	struct tmesh_bundle *it = find(field(2))->bundle;
	struct tmesh_tensor *out;
	size_t i;
	int rc = tmesh_bundle_find(it, field(3), &i, &why);

	return made(rc ? rc : tmesh_bundle_tensor(it, i, &out, &why), &out);
}

/* Slots */
static int slot(void)
{
	struct tmesh_slot_opts opts = {.size = sizeof(opts), .name = option("name")};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_slot *it;
	int rc = tmesh_slot_create(ctx, &opts, &it, &why);

	if (rc)
		return rc;
	keep(field(1), (struct object){.slot = it});
	rc = tmesh_slot_token(it, token, &why);
	if (!rc)
		say("%s", token);
	return rc;
}

static int publish(void)
{
	uint64_t generation;
	int rc =
		tmesh_slot_publish(find(field(1))->slot, find(field(2))->bundle, &generation, &why);

	if (!rc)
		say("%" PRIu64, generation);
	return rc;
}

static int open_named(void)
{
	struct tmesh_slot_reader *it;
	int rc = tmesh_slot_open_named(ctx, field(2), &it, &why);

	if (!rc)
		keep(field(1), (struct object){.reader = it});
	return rc;
}

static int value(void)
{
	struct tmesh_slot_value *newest;
	struct tmesh_bundle *it = NULL;
	int rc = tmesh_slot_read(find(field(2))->reader, &newest, &why);

	if (!rc)
		it = tmesh_bundle_ref(tmesh_slot_value_bundle(newest));
	return say_bundle(field(1), rc, &it);
}

const struct verb reach_verbs[] = {
	{"revoke", take_back},
	{"reclaim", reclaim},
	{"pin", pin},
	{"lease", lease},
	{"touch", touch},
	{"signal", signal_fence},
	{"wait", wait_for_fence},
	{"gather", gather},
	{"private", private_view},
	{"export", export},
	{"import", import},
	{"listen", listen_at},
	{"connect", connect_to},
	{"accept", accept_one},
	{"hand", hand},
	{"take", take},
	{"bundle", bundle},
	{"unbundle", unbundle},
	{"member", member},
	{"keep", keep_under},
	{"kept", open_kept},
	{"drop", drop_kept},
	{"slot", slot},
	{"publish", publish},
	{"named", open_named},
	{"value", value},
	{"receive", take_bundle},
	{NULL},
};
