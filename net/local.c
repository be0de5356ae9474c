// SPDX-License-Identifier: MIT
/*
 * Requests to the machine's Tmesh.Net by net.sock in the runtime directory.
 * bindings/beam/lib/tmesh/net/local.ex describes the protocol. Its answers are checked like those
 * of any stranger.
 */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/error_names.h"
#include "net_internal.h"

#define SOCKET "net.sock"
#define ANSWER_MAX (1u << 20) /* more than the longest ref */
#define NSEC UINT64_C(1000000000)
#define DEFAULT_NS (10 * NSEC)
/* Tmesh.Net sends a sign of life every second. */
#ifndef SILENCE_NS /* shorter in a test */
#define SILENCE_NS (30 * NSEC)
#endif

/* The names of errors in its answers. */
static const struct {
	int code;
	const char *word;
} errors[] = {
#define X(code, name) {code, #code},
	TMESH_ERROR_NAMES(X)
#undef X
};

static int no_net(const struct tmesh_net_wanted *wanted, struct tmesh_error *err)
{
	json_t *ref = wanted->ref ? json_loadb(wanted->ref, wanted->ref_bytes, 0, NULL) : NULL;
	const char *home = json_string_value(json_object_get(ref, "home"));

	if (home)
		tmesh_fail(err, -ENOENT,
			   "no Tmesh.Net serves this runtime directory; the ref's home is %.200s",
			   home);
	else
		tmesh_fail(err, -ENOENT,
			   "no Tmesh.Net serves this runtime directory: an Elixir node of this "
			   "user that runs it does");
	json_decref(ref);
	return -ENOENT;
}

static uint64_t timeout_of(const struct tmesh_net_wanted *wanted)
{
	if (wanted->timeout_ns < 0)
		return INT64_MAX;
	return wanted->timeout_ns ? (uint64_t)wanted->timeout_ns : DEFAULT_NS;
}

/* Connect, and try again on EAGAIN: the listener's queue is full, and the kernel does not notify
 * when it has room. */
static int connect_in_time(int fd, const struct sockaddr_un *address, uint64_t patience)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	uint64_t start = tmesh_now_ns();

	while (connect(fd, (const struct sockaddr *)address, sizeof(*address))) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (tmesh_now_ns() - start >= patience)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
	return 0;
}

static int connect_error(int rc, const struct tmesh_net_wanted *wanted, struct tmesh_error *err)
{
	switch (rc) {
	case -ENOENT:
	case -ECONNREFUSED:
		return no_net(wanted, err);
	case -ETIMEDOUT:
		return tmesh_fail(err, rc, "Tmesh.Net does not answer: it takes no connection");
	default:
		errno = -rc;
		return tmesh_fail_errno(err, "connecting to Tmesh.Net");
	}
}

static int connect_net(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted, int *out,
		       struct tmesh_error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer = {0};
	socklen_t length = sizeof(peer);
	int dir, fd, rc = tmesh_ctx_runtime_dir(ctx, &dir, err);

	if (rc)
		return rc;
	/* This form has no limit on the length of the directory's path. */
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" SOCKET, dir);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		rc = tmesh_fail_errno(err, "making a socket to Tmesh.Net");
	else if ((rc = connect_in_time(fd, &address, timeout_of(wanted))))
		rc = connect_error(rc, wanted, err);
	else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
		rc = tmesh_fail_errno(err, "asking which user serves " SOCKET);
	else if (peer.uid != geteuid() && peer.uid != 0)
		rc = tmesh_fail(err, -EACCES, "user %u serves " SOCKET ", and not this one",
				(unsigned int)peer.uid);
	close(dir);
	if (rc && fd >= 0)
		close(fd);
	if (!rc)
		*out = fd;
	return rc;
}

/* Send or receive all @count bytes. Fail if that takes longer than @patience, also if some bytes
 * move: a peer could send a message a byte at a time, for a year. */
static int transfer(int fd, char *bytes, size_t count, bool out, uint64_t patience,
		    struct tmesh_error *err)
{
	uint64_t deadline = tmesh_now_ns() + patience;

	while (count) {
		struct pollfd ready = {.fd = fd, .events = out ? POLLOUT : POLLIN};
		uint64_t now = tmesh_now_ns();
		ssize_t done;

		if (now >= deadline)
			return tmesh_fail(err, -ETIMEDOUT, "Tmesh.Net does not answer");
		if (poll(&ready, 1, (deadline - now) / 1000000 + 1) <= 0)
			continue;
		done = out ? send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT)
			   : recv(fd, bytes, count, MSG_DONTWAIT);
		if (done < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (done <= 0)
			return tmesh_fail(err, -EPIPE, "Tmesh.Net ended meanwhile");
		bytes += done;
		count -= done;
	}
	return 0;
}

static int local_ask(int fd, const struct tmesh_net_wanted *wanted, struct tmesh_error *err)
{
	uint64_t timeout = timeout_of(wanted);
	json_int_t ms = timeout / 1000000 > INT32_MAX ? INT32_MAX : timeout / 1000000;
	json_t *what = wanted->ref ? json_loadb(wanted->ref, wanted->ref_bytes,
						JSON_REJECT_DUPLICATES, NULL)
				   : json_string(wanted->name);
	json_t *request;
	size_t length;
	char *text;
	int rc;

	if (!what)
		return wanted->ref ? tmesh_fail(err, -EPROTO,
						"not an offer: the text is no JSON; "
						"Tmesh.Net.offer/1 makes offers")
				   : tmesh_fail(err, -EINVAL, "a name is UTF-8");
	request = json_pack("{si ss sI so}", "v", 1, "type", "open", "timeout_ms", ms ? ms : 1,
			    wanted->ref ? "ref" : "name", what);
	text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	json_decref(request);
	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for a request");
	length = strlen(text);
	if (length > UINT32_MAX / 2) {
		rc = tmesh_fail(err, -EPROTO, "an offer of %zu bytes", length);
	} else {
		char head[4] = {length >> 24, length >> 16, length >> 8, length};

		rc = transfer(fd, head, sizeof(head), true, SILENCE_NS, err);
		if (!rc)
			rc = transfer(fd, text, length, true, SILENCE_NS, err);
	}
	free(text);
	return rc;
}

static int read_answer(int fd, json_t **out, struct tmesh_error *err)
{
	unsigned char head[4];
	size_t length;
	json_t *answer;
	char *text;
	int rc = transfer(fd, (char *)head, sizeof(head), false, SILENCE_NS, err);

	if (rc)
		return rc;
	length = (size_t)head[0] << 24 | head[1] << 16 | head[2] << 8 | head[3];
	if (!length || length > ANSWER_MAX)
		return tmesh_fail(err, -EPROTO, "an answer of %zu bytes", length);
	text = malloc(length);
	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for an answer");
	rc = transfer(fd, text, length, false, SILENCE_NS, err);
	answer = rc ? NULL : json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	if (!rc && !json_is_object(answer)) {
		json_decref(answer);
		rc = tmesh_fail(err, -EPROTO, "Tmesh.Net's answer is no JSON object");
	}
	if (!rc)
		*out = answer;
	return rc;
}

static int told_error(const json_t *answer, struct tmesh_error *err)
{
	const char *name = json_string_value(json_object_get(answer, "errno"));
	const char *message = json_string_value(json_object_get(answer, "message"));
	int code = EIO;

	for (size_t i = 0; name && i < sizeof(errors) / sizeof(errors[0]); i++)
		if (!strcmp(errors[i].word, name))
			code = errors[i].code;
	return tmesh_fail(err, -code, "%s", message ? message : "Tmesh.Net gave no reason");
}

/* Wait for the ref. Tmesh.Net holds it until @fd is closed. */
static int await(int fd, char **ref, struct tmesh_error *err)
{
	for (;;) {
		const char *type;
		json_t *answer = NULL;
		int rc = read_answer(fd, &answer, err);

		if (rc)
			return rc;
		type = json_string_value(json_object_get(answer, "type"));
		if (type && !strcmp(type, "waiting")) {
			json_decref(answer);
			continue;
		}
		if (type && !strcmp(type, "error")) {
			rc = told_error(answer, err);
		} else if (type && !strcmp(type, "opened")) {
			*ref = json_dumps(json_object_get(answer, "ref"), JSON_COMPACT);
			if (!*ref)
				rc = tmesh_fail(err, -EPROTO, "Tmesh.Net opens, and gives no ref");
		} else {
			rc = tmesh_fail(err, -EPROTO, "Tmesh.Net is of another version");
		}
		json_decref(answer);
		return rc;
	}
}

static int read_wanted(struct tmesh_net_wanted *wanted, const struct tmesh_net_wanted *given,
		       struct tmesh_error *err)
{
	int rc = tmesh_read_sized(wanted, sizeof(*wanted), given, err);

	if (!rc && !wanted->ref == !wanted->name)
		rc = tmesh_fail(err, -EINVAL, "either an offer or a name is needed");
	return rc;
}

static int get(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted, int *fd, char **ref,
	       struct tmesh_error *err)
{
	int rc = connect_net(ctx, wanted, fd, err);

	if (rc)
		return rc;
	rc = local_ask(*fd, wanted, err);
	if (!rc)
		rc = await(*fd, ref, err);
	if (rc)
		close(*fd);
	return rc;
}

int tmesh_net_open_tensor(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *given,
			  struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_net_wanted wanted;
	struct tmesh_ref ref;
	char *text;
	int fd, rc = read_wanted(&wanted, given, err);

	if (rc || net_kept_tensor(ctx, &wanted, out))
		return rc;
	rc = get(ctx, &wanted, &fd, &text, err);
	if (rc)
		return rc;
	rc = tmesh_ref_decode(text, strlen(text), &ref, err);
	if (!rc)
		rc = tmesh_tensor_open(ctx, &ref, TMESH_READ, out, err);
	free(text);
	close(fd);
	return rc;
}

int tmesh_net_open_bundle(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *given,
			  struct tmesh_bundle **out, struct tmesh_error *err)
{
	struct tmesh_net_wanted wanted;
	char *text;
	int fd, rc = read_wanted(&wanted, given, err);

	if (rc || net_kept_bundle(ctx, &wanted, out))
		return rc;
	rc = get(ctx, &wanted, &fd, &text, err);
	if (rc)
		return rc;
	rc = tmesh_bundle_open(ctx, text, strlen(text), TMESH_READ, out, err);
	free(text);
	close(fd);
	return rc;
}
