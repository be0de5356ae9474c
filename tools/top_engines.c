// SPDX-License-Identifier: MIT
/* Engines in processes of their own, from the status that each writes. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/engine_status.h"
#include "top_engines.h"

/* the most engines to show */
#define MOST 256
#define NAME_LEN 32
/* Rates cover so many seconds, with the current one. */
#define RATE_SECONDS 5
/* A process that is this late should have been ended by its supervisor. */
#define LATE_NS UINT64_C(1000000000)

/* Extract the name from "engine-NAME.lock"; false: it is another file. */
static bool name_of(const char *file, char *name)
{
	const size_t before = strlen(ENGINE_STATUS_PREFIX), behind = strlen(ENGINE_STATUS_SUFFIX);
	size_t length = strlen(file);

	if (length <= before + behind || length - before - behind > NAME_LEN ||
	    strncmp(file, ENGINE_STATUS_PREFIX, before) != 0 ||
	    strcmp(file + length - behind, ENGINE_STATUS_SUFFIX) != 0)
		return false;
	length -= before + behind;
	memcpy(name, file + before, length);
	name[length] = '\0';
	return true;
}

/* Return a descriptor of the memfd at @path, a link of /proc; -1: there is none. The link may lead
 * to any file of any process. Opening a device or a file of FUSE can have effects, so only a memfd
 * is opened. */
static int open_memfd(const char *path)
{
	int own = memfd_create("tmesh:look", MFD_CLOEXEC), at = open(path, O_PATH | O_CLOEXEC);
	struct stat memfd, there;
	char again[32];
	int fd = -1;

	if (own >= 0 && at >= 0 && !fstat(own, &memfd) && !fstat(at, &there) &&
	    S_ISREG(there.st_mode) && there.st_dev == memfd.st_dev && there.st_uid == geteuid()) {
		snprintf(again, sizeof(again), "/proc/self/fd/%d", at);
		fd = open(again, O_RDONLY | O_CLOEXEC);
	}
	if (own >= 0)
		close(own);
	if (at >= 0)
		close(at);
	return fd;
}

/* Read the status of the supervisor @pid from the memfd that its file names. */
static bool read_memfd(int file, pid_t pid, struct engine_status *status)
{
	struct engine_status_place place;
	bool good = false;
	char path[64];
	int fd;

	if (pread(file, &place, sizeof(place), 0) != (ssize_t)sizeof(place) ||
	    place.magic != ENGINE_STATUS_MAGIC || place.fd > INT32_MAX)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)pid, place.fd);
	fd = open_memfd(path);
	if (fd < 0)
		return false;
	good = pread(fd, status, sizeof(*status), 0) == (ssize_t)sizeof(*status) &&
	       status->magic == ENGINE_STATUS_MAGIC;
	close(fd);
	return good;
}

/* Read a supervisor's status; return false if no supervisor holds the file's lock. @pid is the
 * supervisor's, from the kernel. A supervisor of another PID namespace has no number here and is
 * not shown. */
static bool read_status(int dir, const char *file, struct engine_status *status, pid_t *pid)
{
	/* Any kind of file may have this name: O_NONBLOCK keeps the open from waiting. */
	int fd = openat(dir, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	bool good = false;
	struct stat st;

	if (fd < 0)
		return false;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	    !fcntl(fd, F_GETLK, &lock) && lock.l_type != F_UNLCK && lock.l_pid > 0)
		good = read_memfd(fd, lock.l_pid, status);
	close(fd);
	*pid = lock.l_pid > 0 ? lock.l_pid : 0;
	status->backend[sizeof(status->backend) - 1] = '\0';
	status->version[sizeof(status->version) - 1] = '\0';
	return good;
}

/* Return the state's letter from /proc/PID/stat, and the parent; '\0' if there is no such
 * process. */
static char process_state(pid_t pid, pid_t *parent)
{
	char path[64], text[512], state = '\0';
	const char *behind;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return '\0';
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[got > 0 ? got : 0] = '\0';
	/* The name before it may contain any characters. */
	behind = strrchr(text, ')');
	if (!behind || sscanf(behind, ") %c %d", &state, parent) != 2)
		return '\0';
	return state;
}

static bool stopped(char state)
{
	return state == 'T' || state == 't';
}

/* @pid: of the engine's process, set to 0 if it is not the supervisor's child. */
static const char *state_of(const struct engine_status *status, pid_t supervisor, pid_t *pid,
			    uint64_t now)
{
	pid_t parent = 0;
	char state = *pid ? process_state(*pid, &parent) : '\0';

	/* Do not trust the status alone: the process must be the supervisor's child. Across PID
	 * namespaces the numbers mean nothing. */
	if (!state || !supervisor || parent != supervisor)
		*pid = 0;
	if (supervisor && stopped(process_state(supervisor, &parent)))
		return "hung";
	if (!status->pid || (supervisor && !*pid))
		return "starting";
	if (*pid && stopped(state))
		return "hung";
	if (!status->since_ns)
		return "idle";
	return status->deadline_ns < now && now - status->deadline_ns > LATE_NS ? "hung"
										: "running";
}

static void add_rates(json_t *engine, const struct engine_status *status, uint64_t now)
{
	uint64_t second = now / 1000000000, steps = 0, tokens = 0;
	double seconds = (double)(now % 1000000000) / 1e9 + RATE_SECONDS - 1, up;

	up = status->started_ns < now ? (double)(now - status->started_ns) / 1e9 : 0;
	if (up < seconds)
		seconds = up > 0.1 ? up : 0.1;
	for (size_t i = 0; i < ENGINE_STATUS_SECONDS; i++) {
		const struct engine_status_second *at = &status->recent[i];

		if (at->second > second || second - at->second >= RATE_SECONDS)
			continue;
		steps += at->steps;
		tokens += at->tokens;
	}
	json_object_set_new(engine, "steps_per_second", json_real((double)steps / seconds));
	json_object_set_new(engine, "tokens_per_second", json_real((double)tokens / seconds));
}

/* Clamp to JSON's largest integer. No real count comes near. */
static json_t *number(uint64_t value)
{
	return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

static json_t *process_id(pid_t pid)
{
	return pid ? json_integer(pid) : json_null();
}

static json_t *engine_json(const char *name, const struct engine_status *status, pid_t supervisor)
{
	pid_t pid = status->pid <= INT32_MAX ? (pid_t)status->pid : 0;
	json_t *engine = json_object();
	uint64_t now = tmesh_now_ns();
	const char *state = state_of(status, supervisor, &pid, now);
	uint64_t since = status->since_ns;

	json_object_set_new(engine, "name", json_text(name));
	json_object_set_new(engine, "backend", json_text(status->backend));
	json_object_set_new(engine, "version", json_text(status->version));
	json_object_set_new(engine, "pid", process_id(pid));
	json_object_set_new(engine, "supervisor_pid", process_id(supervisor));
	json_object_set_new(engine, "state", json_string(state));
	json_object_set_new(engine, "call_ns",
			    since && since <= now ? number(now - since) : json_null());
	json_object_set_new(engine, "clients", json_integer(status->clients));
	json_object_set_new(engine, "waiting", json_integer(status->waiting));
	json_object_set_new(engine, "calls", number(status->calls));
	json_object_set_new(engine, "failed_calls", number(status->failed_calls));
	json_object_set_new(engine, "steps", number(status->steps));
	json_object_set_new(engine, "tokens", number(status->tokens));
	add_rates(engine, status, now);
	json_object_set_new(engine, "restarts", json_integer(status->restarts));
	json_object_set_new(engine, "uptime_ns",
			    number(status->started_ns < now ? now - status->started_ns : 0));
	return engine;
}

static int is_status(const struct dirent *entry)
{
	char name[NAME_LEN + 1];

	return name_of(entry->d_name, name);
}

static int by_name(const struct dirent **left, const struct dirent **right)
{
	return strcmp((*left)->d_name, (*right)->d_name);
}

json_t *find_engines(struct tmesh_ctx *ctx)
{
	json_t *engines = json_array();
	struct dirent **entries;
	int dir, count;

	/* Without a usable runtime directory no engine can be served in it. */
	if (tmesh_ctx_runtime_dir(ctx, &dir, NULL))
		return engines;
	count = scandirat(dir, ".", &entries, is_status, by_name);
	for (int i = 0; i < count; i++) {
		struct engine_status status = {0};
		char name[NAME_LEN + 1];
		pid_t supervisor;

		if (json_array_size(engines) < MOST && name_of(entries[i]->d_name, name) &&
		    read_status(dir, entries[i]->d_name, &status, &supervisor))
			json_array_append_new(engines, engine_json(name, &status, supervisor));
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
	close(dir);
	return engines;
}

static long long member(const json_t *engine, const char *name)
{
	return json_integer_value(json_object_get(engine, name));
}

static const char *text(const json_t *engine, const char *name)
{
	return json_string_value(json_object_get(engine, name));
}

void print_served(const json_t *engines)
{
	static const char *const titles[] = {"ENGINE",	"BACKEND",  "PID",	"STATE",
					     "CLIENTS", "WAITING",  "CALLS",	"FAILED",
					     "STEPS/S", "TOKENS/S", "RESTARTS", "VERSION"};
	struct table table = {.columns = 12};
	const json_t *engine;
	size_t i;

	if (!json_array_size(engines))
		return;
	putchar('\n');
	for (unsigned int n = 0; n < table.columns; n++)
		table_add(&table, titles[n]);
	json_array_foreach(engines, i, engine) {
		const json_t *since = json_object_get(engine, "call_ns");

		table_add(&table, text(engine, "name"));
		table_add(&table, text(engine, "backend"));
		if (json_is_null(json_object_get(engine, "pid")))
			table_add(&table, "-");
		else
			table_addf(&table, "%lld", member(engine, "pid"));
		if (json_is_null(since))
			table_add(&table, text(engine, "state"));
		else
			table_addf(&table, "%s %.1f s", text(engine, "state"),
				   (double)json_integer_value(since) / 1e9);
		table_addf(&table, "%lld", member(engine, "clients"));
		table_addf(&table, "%lld", member(engine, "waiting"));
		table_addf(&table, "%lld", member(engine, "calls"));
		table_addf(&table, "%lld", member(engine, "failed_calls"));
		table_addf(&table, "%.1f",
			   json_real_value(json_object_get(engine, "steps_per_second")));
		table_addf(&table, "%.1f",
			   json_real_value(json_object_get(engine, "tokens_per_second")));
		table_addf(&table, "%lld", member(engine, "restarts"));
		table_add(&table, text(engine, "version"));
	}
	table_print(&table);
}
