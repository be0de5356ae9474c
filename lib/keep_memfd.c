// SPDX-License-Identifier: MIT
/* Keeping on memfd: questions to the keeper. keeper.h has the messages. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "keep_internal.h"
#include "keeper.h"
#include "paths.h"

/* A keeper answers only after systemd has stored the descriptors. */
#define MORE_PATIENCE_NS UINT64_C(3000000000)

static int check_user(const struct tmesh_ctx *ctx, uid_t uid, struct tmesh_error *err)
{
	if (uid == TMESH_KEPT_OWN || uid == ctx->uid)
		return 0;
	return tmesh_fail(err, -EOPNOTSUPP,
			  "cannot open kept memory of user %u: memfd regions are for one user; "
			  "TMESH_KEPT_OWN names your own, another user's needs the module",
			  (unsigned int)uid);
}

static int check_opts(const struct tmesh_keep_opts *opts, struct tmesh_error *err)
{
	/* Files are shown to others by tmesh-mount. */
	if (opts->file_count)
		return 0;
	if (opts->mode != 0600 || (opts->flags & TMESH_KEEPING_GID))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "memfd regions are for one user: mode 0%o%s needs the module",
				  opts->mode,
				  opts->flags & TMESH_KEEPING_GID ? " with a group" : "");
	return 0;
}

static void fill_request(struct tmesh_keeper_request *request, enum tmesh_keeper_op op,
			 const char *name)
{
	*request = (struct tmesh_keeper_request){
		.magic = TMESH_MAGIC_KEEP,
		.version = TMESH_WIRE_VERSION,
		.op = op,
		.rights = TMESH_READ,
	};
	if (name)
		memcpy(request->name, name, strlen(name));
}

/* Report the keeper's refusal. */
static int refused(const struct tmesh_keeper_request *request,
		   const struct tmesh_keeper_reply *reply, struct tmesh_error *err)
{
	int rc = reply->status;

	switch (rc) {
	case -ENOENT:
		return tmesh_fail(err, rc, "nothing is kept as \"%s\"", request->name);
	case -EEXIST:
		return tmesh_fail(err, rc, "\"%s\" is kept already: replace it, or drop it first",
				  request->name);
	case -EBUSY:
		return tmesh_fail(
			err, rc,
			"a region is kept under another name already: drop that one first "
			"(tmeshctl kept lists them)");
	case -EDQUOT:
		return tmesh_fail(err, rc,
				  "keeping %" PRIu64 " more bytes passes the keeper's limit of "
				  "%" PRIu64 " (TMESH_KEEPER_BYTES), of which %" PRIu64
				  " are in use and too few of them not held",
				  reply->need, reply->limit, reply->used);
	case -EACCES:
		return tmesh_fail(err, rc, "\"%s\" was not kept with all the rights asked for",
				  request->name);
	case -EINVAL:
		return tmesh_fail(err, rc,
				  "the keeper takes sealed memory of this user, each region once: "
				  "region %" PRIu32 " is not",
				  reply->where);
	case -ESTALE:
		return tmesh_fail(err, rc, "\"%s\" was replaced meanwhile", request->name);
	case -EAGAIN:
		return tmesh_fail(
			err, -EBUSY,
			"the keeper cannot open region %" PRIu32 ": a process has a file "
			"lease (F_SETLEASE) on its memory; end that process, or try again",
			reply->where);
	case -ENFILE:
	case -EMFILE:
		return tmesh_fail(
			err, -EMFILE,
			"the keeper has no descriptor left, or waits for servers of files "
			"that peers sent: drop something, raise its RLIMIT_NOFILE, or end "
			"those peers");
	case -ETIMEDOUT:
		return tmesh_fail(err, rc, "systemd did not take the keeper's descriptors in time");
	default:
		errno = rc < 0 && rc > -4096 ? -rc : EPROTO;
		return tmesh_fail_errno(err, "the keeper");
	}
}

/* Receive a reply. @paths: the descriptor that may come with it, or -1; NULL: none may. */
static int recv_reply(const struct tmesh_ctx *ctx, int fd,
		      const struct tmesh_keeper_request *request, struct tmesh_keeper_reply *reply,
		      int *paths, struct tmesh_error *err)
{
	uint64_t deadline = tmesh_now_ns() + ctx->timeout_ns + MORE_PATIENCE_NS;
	int rc;

	if (paths) {
		*paths = -1;
		rc = tmesh_wire_recv(fd, reply, sizeof(*reply), paths, 1, deadline);
		if (rc < 0)
			tmesh_fail(err, rc, "the keeper did not give a table of paths");
	} else {
		rc = tmesh_wire_recv_plain(fd, reply, sizeof(*reply), deadline, err);
	}
	if (rc == -EPIPE)
		return tmesh_fail(err, rc, "the keeper ended before it answered");
	if (rc < 0)
		return rc;
	if (reply->magic == TMESH_MAGIC_KEEP && reply->version != TMESH_WIRE_VERSION)
		return tmesh_fail(err, -EPROTO,
				  "this user's keeper is of another release of tmesh (protocol "
				  "%" PRIu32 ", here %d): drop its groups by that release's "
				  "tmeshctl, or set TMESH_RUNTIME_DIR",
				  reply->version, TMESH_WIRE_VERSION);
	if (reply->magic != TMESH_MAGIC_KEEP || reply->status > 0)
		return tmesh_fail(err, -EPROTO, "the keeper gave a malformed answer");
	return reply->status ? refused(request, reply, err) : 0;
}

/* Ask, and get the answer's head; the connection stays open for the rest. */
static int ask_for_paths(struct tmesh_ctx *ctx, const struct tmesh_keeper_request *request, int *fd,
			 struct tmesh_keeper_reply *reply, int *paths, struct tmesh_error *err)
{
	int rc = tmesh_keeper_connect(ctx, false, fd, err);

	if (rc)
		return rc;
	rc = tmesh_wire_send_waiting(ctx, *fd, request, sizeof(*request), NULL, 0, err);
	if (!rc)
		rc = recv_reply(ctx, *fd, request, reply, paths, err);
	if (rc)
		close(*fd);
	return rc;
}

static int keeper_ask(struct tmesh_ctx *ctx, const struct tmesh_keeper_request *request, int *fd,
		      struct tmesh_keeper_reply *reply, struct tmesh_error *err)
{
	return ask_for_paths(ctx, request, fd, reply, NULL, err);
}

static int memfd_keep(struct tmesh_ctx *ctx, const char *name, struct tmesh_region *const *regions,
		      uint32_t count, const struct tmesh_keep_opts *opts,
		      const struct tmesh_paths *paths, struct tmesh_error *err)
{
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply;
	int fd, table = -1, rc = check_opts(opts, err);

	if (!rc && paths) {
		table = tmesh_paths_seal(paths, err);
		rc = table < 0 ? table : 0;
	}
	if (!rc)
		rc = tmesh_keeper_connect(ctx, true, &fd, err);
	if (rc)
		goto close_table;
	fill_request(&request, TMESH_KEEPER_KEEP, name);
	request.flags = opts->flags & TMESH_KEEPING_REPLACE;
	request.lifetime_ns = opts->lifetime_ns;
	request.count = count;
	request.mode = opts->mode;
	request.gid = opts->flags & TMESH_KEEPING_GID ? opts->gid : getegid();
	if (paths)
		request.flags |= TMESH_KEEPER_PATHS;
	rc = tmesh_wire_send_waiting(ctx, fd, &request, sizeof(request), &table, paths != NULL,
				     err);
	for (uint32_t i = 0; !rc && i < count; i++) {
		bool opaque = regions[i]->kind & TMESH_KIND_OPAQUE;

		rc = tmesh_region_send(
			regions[i], fd,
			opaque ? regions[i]->rights & (TMESH_READ | TMESH_WRITE) : TMESH_READ, err);
	}
	if (!rc)
		rc = recv_reply(ctx, fd, &request, &reply, NULL, err);
	close(fd);
close_table:
	if (table >= 0)
		close(table);
	return rc;
}

/* Report a name under which nothing is kept, in the same words with a keeper and without. */
static int nothing_kept(int rc, const char *name, struct tmesh_error *err)
{
	if (rc == -ENOENT)
		return tmesh_fail(err, rc, "nothing is kept as \"%s\"", name);
	return rc;
}

/* Open a kept region by the keeper's index. The keeper takes no part, so the file's time of access
 * shows the use. The kernel would set it only to the last tick. */
static bool take_shown(struct tmesh_region *region, const char *name)
{
	struct timespec used[2] = {[1] = {.tv_nsec = UTIME_OMIT}};
	uint8_t keeper[16], key[TMESH_SECRET_BYTES];
	char path[PATH_MAX];
	struct stat st;

	if (tmesh_rundir_path(region->ctx, path, sizeof(path), NULL) || lstat(path, &st) ||
	    st.st_uid != region->ctx->uid)
		return false;
	tmesh_keeper_name(st.st_dev, st.st_ino, keeper);
	tmesh_keeper_key(name, key);
	if (!tmesh_peer_open_region(region, keeper, key, TMESH_READ))
		return false;
	clock_gettime(CLOCK_REALTIME, &used[0]);
	futimens(region->fd, used);
	return true;
}

/* Open by the keeper's index, without a question. False: the keeper has to be asked. */
static bool open_shown(struct tmesh_ctx *ctx, const char *name, struct tmesh_region ***out)
{
	struct tmesh_region **regions = calloc(1, sizeof(*regions));
	struct tmesh_region *region = regions ? tmesh_region_new(ctx, NULL) : NULL;

	if (region &&
	    tmesh_region_opened(region, take_shown(region, name) ? 0 : -ENOENT, regions) == 0) {
		*out = regions;
		return true;
	}
	free(regions);
	return false;
}

static int memfd_kept_open(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint32_t rights,
			   struct tmesh_region ***out, size_t *count, struct tmesh_error *err)
{
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply;
	struct tmesh_region **regions;
	uint32_t got = 0;
	int fd, rc = check_user(ctx, uid, err);

	if (!rc)
		rc = tmesh_spare_files(ctx, err);
	if (rc)
		return rc;
	if (rights == TMESH_READ && open_shown(ctx, name, out)) {
		*count = 1;
		return 0;
	}
	fill_request(&request, TMESH_KEEPER_OPEN, name);
	request.rights = rights;
	rc = keeper_ask(ctx, &request, &fd, &reply, err);
	if (rc)
		return nothing_kept(rc, name, err);
	if (!reply.count || reply.count > TMESH_KEPT_MAX_REGIONS) {
		close(fd);
		return tmesh_fail(err, -EPROTO, "the keeper answered with %" PRIu32 " regions",
				  reply.count);
	}
	regions = calloc(reply.count, sizeof(struct tmesh_region *));
	if (!regions)
		rc = tmesh_fail(err, -ENOMEM, "no memory for what is kept");
	while (!rc && got < reply.count) {
		rc = tmesh_region_recv(ctx, fd, &regions[got], err);
		got += !rc;
	}
	close(fd);
	if (rc) {
		while (got)
			tmesh_region_unref(regions[--got]);
		free(regions);
		return rc;
	}
	*out = regions;
	*count = got;
	return 0;
}

static int memfd_paths(struct tmesh_ctx *ctx, const char *name, uid_t uid, struct tmesh_paths **out,
		       uint64_t *id, struct tmesh_error *err)
{
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply;
	struct tmesh_keeper_row row;
	int fd, paths, rc = check_user(ctx, uid, err);
	size_t length;

	if (rc)
		return rc;
	fill_request(&request, TMESH_KEEPER_FIND, name);
	request.flags = TMESH_KEEPER_PATHS;
	rc = ask_for_paths(ctx, &request, &fd, &reply, &paths, err);
	if (rc)
		return nothing_kept(rc, name, err);
	rc = tmesh_wire_recv_plain(fd, &row, sizeof(row), tmesh_now_ns() + ctx->timeout_ns, err);
	close(fd);
	if (!rc && paths < 0)
		rc = tmesh_fail(err, -ENODATA, "\"%s\" was kept without files: it has no paths",
				name);
	if (!rc) {
		*id = reply.id;
		*out = tmesh_paths_read(paths, ctx->uid, row.count, TMESH_PATHS_MAX, &length);
		if (!*out)
			rc = tmesh_fail_errno(err, "the keeper's table of paths");
	}
	if (paths >= 0)
		close(paths);
	return rc;
}

static int memfd_open_region(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint64_t id,
			     uint32_t number, struct tmesh_region **region, struct tmesh_error *err)
{
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply;
	int fd, rc = check_user(ctx, uid, err);

	if (!rc)
		rc = tmesh_spare_files(ctx, err);
	if (rc)
		return rc;
	fill_request(&request, TMESH_KEEPER_OPEN_REGION, name);
	request.id = id;
	request.region = number;
	rc = keeper_ask(ctx, &request, &fd, &reply, err);
	if (rc)
		return nothing_kept(rc, name, err);
	rc = tmesh_region_recv(ctx, fd, region, err);
	close(fd);
	return rc;
}

static void fill_info(struct tmesh_kept_info *info, const struct tmesh_keeper_row *row,
		      const struct tmesh_ctx *ctx)
{
	*info = (struct tmesh_kept_info){
		.size = sizeof(*info),
		.id = row->id,
		.backend = TMESH_BACKEND_MEMFD,
		.count = row->count,
		.held = row->held,
		.bytes = row->bytes,
		.kept_ns = row->kept_ns,
		.used_ns = row->used_ns,
		.expires_ns = row->expires_ns,
		.uid = ctx->uid,
		.gid = row->gid,
		.mode = row->mode,
	};
	memcpy(info->name, row->name, sizeof(info->name));
	info->name[TMESH_KEPT_NAME_LEN] = '\0';
}

static int memfd_kept_list(struct tmesh_ctx *ctx, struct tmesh_kept_info **out, size_t *count,
			   struct tmesh_error *err)
{
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply = {0};
	struct tmesh_kept_info *infos;
	int fd, rc;

	fill_request(&request, TMESH_KEEPER_LIST, NULL);
	rc = keeper_ask(ctx, &request, &fd, &reply, err);
	if (rc == -ENOENT) {
		*out = NULL;
		*count = 0;
		return 0;
	}
	if (rc)
		return rc;
	if (reply.count > TMESH_KEEPER_MAX_NAMES) {
		close(fd);
		return tmesh_fail(err, -EPROTO, "the keeper answered with %" PRIu32 " names",
				  reply.count);
	}
	infos = calloc(reply.count ? reply.count : 1, sizeof(*infos));
	if (!infos)
		rc = tmesh_fail(err, -ENOMEM, "no memory for the list of what is kept");
	for (uint32_t i = 0; !rc && i < reply.count; i++) {
		struct tmesh_keeper_row row;

		rc = tmesh_wire_recv_plain(fd, &row, sizeof(row), tmesh_now_ns() + ctx->timeout_ns,
					   err);
		if (!rc)
			fill_info(&infos[i], &row, ctx);
	}
	close(fd);
	if (rc) {
		free(infos);
		return rc;
	}
	*out = infos;
	*count = reply.count;
	return 0;
}

static int memfd_kept_drop(struct tmesh_ctx *ctx, const char *name, struct tmesh_error *err)
{
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply;
	int fd, rc;

	fill_request(&request, TMESH_KEEPER_DROP, name);
	rc = keeper_ask(ctx, &request, &fd, &reply, err);
	if (rc)
		return nothing_kept(rc, name, err);
	close(fd);
	return 0;
}

static int memfd_keeper_info(struct tmesh_ctx *ctx, struct tmesh_keeper_info *info,
			     struct tmesh_error *err)
{
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply;
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int fd, rc;

	fill_request(&request, TMESH_KEEPER_STATUS, NULL);
	rc = keeper_ask(ctx, &request, &fd, &reply, err);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0)
		info->pid = peer.pid;
	close(fd);
	info->survives_kill = reply.flags & TMESH_KEEPER_STORED;
	info->pressure = reply.flags & TMESH_KEEPER_PRESSURE;
	info->names = reply.count;
	info->used_bytes = reply.used;
	info->max_bytes = reply.limit;
	return 0;
}

const struct tmesh_keep_ops tmesh_memfd_keep_ops = {
	.keep = memfd_keep,
	.open = memfd_kept_open,
	.paths = memfd_paths,
	.open_region = memfd_open_region,
	.list = memfd_kept_list,
	.drop = memfd_kept_drop,
	.info = memfd_keeper_info,
};
