/* SPDX-License-Identifier: MIT */
/*
 * tmesh-engine (TMESH_ENGINE_PROGRAM) with the engine "fake", served as "unit", and a client of it:
 * for the tests of engines in processes of their own.
 */
#ifndef TMESH_TEST_SERVED_H
#define TMESH_TEST_SERVED_H

#include <sys/un.h>

#include "common/engine_status.h"
#include "fixture.h"
#include "remote_wire.h"

#define CLIENTS 4
#define MS UINT64_C(1000000)

static char folder[] = "/tmp/tmesh-served-XXXXXX";
static pid_t supervisor;
static int input = -1;
/* The default limit is out of reach of a slow machine, and no test is about it. */
static const char *served_limit = "--limit=600";

static inline const char *file(const char *name, const char *text)
{
	static char path[128];
	FILE *out;

	snprintf(path, sizeof(path), "%s/models/%s", folder, name);
	out = fopen(path, "w");
	assert_non_null(out);
	fputs(text, out);
	fclose(out);
	return path;
}

/* tmesh-engine with these arguments, up to a NULL; its first line is in @line. */
static inline pid_t run_program(char *const *argv, int *stdin_end, char *line, size_t size)
{
	int out[2], in[2];
	ssize_t got;
	pid_t pid;

	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		execv(getenv("TMESH_ENGINE_PROGRAM"), argv);
		_exit(127);
	}
	close(out[1]);
	close(in[0]);
	got = read(out[0], line, size - 1);
	line[got > 0 ? got : 0] = '\0';
	close(out[0]);
	*stdin_end = in[1];
	return pid;
}

static inline void end_program(pid_t pid, int stdin_end)
{
	close(stdin_end);
	join_child(pid);
}

static inline int serve(void **state)
{
	char models[64], line[64];
	char *argv[] = {(char *)"tmesh-engine",	  (char *)"--engine=fake",
			(char *)"--clients=4",	  (char *)served_limit,
			(char *)"--patience=600", (char *)"--with-input",
			(char *)"--models",	  models,
			(char *)"unit",		  NULL};

	snprintf(models, sizeof(models), "%s/models", folder);
	supervisor = run_program(argv, &input, line, sizeof(line));
	return strcmp(line, "ready unit\n");
}

static inline int unserve(void **state)
{
	end_program(supervisor, input);
	return 0;
}

/* With a context, graph and tensors of it. */
static inline void fill(struct fixture *fix)
{
	assert_ok(tmesh_engine_graph_open(fix->context, file("graph", "plain"), NULL, &fix->graph,
					  err));
	fill_tensors(fix);
}

static inline void join(struct fixture *fix)
{
	assert_ok(tmesh_ctx_open(NULL, &fix->ctx, err));
	assert_ok(tmesh_engine_connect(fix->ctx, "unit", NULL, &fix->context, err));
	fill(fix);
}

/* Open a graph of @mode where calls may not take long, by the client's or the engine's word. On a
 * slow machine it is tried again. */
static inline struct tmesh_engine_graph *open_timed(struct fixture *fix, const char *mode)
{
	struct tmesh_engine_graph *graph;
	int rc = -ETIMEDOUT;

	for (int i = 0; i < 100 && (rc == -ETIMEDOUT || rc == -EPIPE); i++)
		rc = tmesh_engine_graph_open(fix->context, file(mode, mode), NULL, &graph, NULL);
	assert_int_equal(rc, 0);
	return graph;
}

/* The same for a binding of @graph. */
static inline struct tmesh_engine_binding *bind_timed(struct fixture *fix,
						      struct tmesh_engine_graph *graph)
{
	struct tmesh_engine_binding *binding;
	int rc = -ETIMEDOUT;

	for (int i = 0; i < 100 && (rc == -ETIMEDOUT || rc == -EPIPE); i++)
		rc = tmesh_engine_bind(graph, fix->inputs, 2, fix->outputs, 1, &binding, NULL);
	assert_int_equal(rc, 0);
	return binding;
}

/* A client whose calls may not take long, with a graph of @mode. */
static inline void join_timed(struct fixture *fix, uint64_t timeout_ns, const char *mode)
{
	const struct tmesh_engine_connect_opts opts = {.size = sizeof(opts),
						       .timeout_ns = timeout_ns};
	int rc = -ETIMEDOUT;

	assert_ok(tmesh_ctx_open(NULL, &fix->ctx, err));
	for (int i = 0; i < 100 && rc == -ETIMEDOUT; i++)
		rc = tmesh_engine_connect(fix->ctx, "unit", &opts, &fix->context, NULL);
	assert_int_equal(rc, 0);
	fix->graph = open_timed(fix, mode);
	fill_tensors(fix);
}

static inline int setup(void **state)
{
	*state = calloc(1, sizeof(struct fixture));
	join(*state);
	return 0;
}

static inline int teardown(void **state)
{
	leave(*state);
	free(*state);
	return 0;
}

static inline int dispatch_of(struct fixture *fix, const char *mode, struct tmesh_error *error)
{
	struct tmesh_engine_graph *graph;
	int rc;

	assert_ok(tmesh_engine_graph_open(fix->context, file(mode, mode), NULL, &graph, err));
	rc = tmesh_engine_dispatch(graph, fix->inputs, 2, fix->outputs, 1, error);
	tmesh_engine_graph_unref(graph);
	return rc;
}

static inline void assert_y(struct fixture *fix)
{
	const float zeros[8] = {0};

	expect_sum(fix);
	assert_ok(tmesh_engine_tensor_write(fix->y, zeros, sizeof(zeros), err));
}

static inline void assert_works(struct fixture *fix)
{
	assert_ok(dispatch(fix, err));
	assert_y(fix);
}

/* The fake says so in the output's first element. */
static inline void await_run(struct fixture *fix)
{
	float y[8] = {0};

	for (int i = 0; i < 60000 && y[0] != -1; i++) {
		usleep(1000);
		assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
	}
	assert_true(y[0] == -1);
	memset(y, 0, sizeof(y));
	assert_ok(tmesh_engine_tensor_write(fix->y, y, sizeof(y), err));
}

static inline unsigned int files_of(uint32_t pid)
{
	unsigned int count = 0;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%u/fd", pid);
	dir = opendir(path);
	while (dir && readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* Map the status of "unit", until munmap(). */
static inline const struct engine_status *map_status(struct fixture *fix)
{
	struct engine_status_place place;
	char path[64];
	void *status;
	int dir, fd;

	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	fd = openat(dir, ENGINE_STATUS_PREFIX "unit" ENGINE_STATUS_SUFFIX, O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, &place, sizeof(place)), sizeof(place));
	close(fd);
	snprintf(path, sizeof(path), "/proc/%d/fd/%u", supervisor, place.fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	status = mmap(NULL, sizeof(struct engine_status), PROT_READ, MAP_SHARED, fd, 0);
	assert_true(status != MAP_FAILED);
	close(fd);
	close(dir);
	return status;
}

/* Until the next calls of so many clients wait for their turns. */
static inline void await_waiting(struct fixture *fix, uint32_t count)
{
	const struct engine_status *status = map_status(fix);

	for (int i = 0; i < 60000 && status->waiting != count; i++)
		usleep(1000);
	assert_int_equal(status->waiting, count);
	munmap((void *)status, sizeof(*status));
}

/* Check that a client works whose calls, or whose engine's, have a short limit. */
static inline void assert_works_at_last(struct fixture *fix)
{
	int rc = -ETIMEDOUT;

	for (int i = 0; i < 100 && (rc == -ETIMEDOUT || rc == -EPIPE); i++)
		rc = dispatch(fix, NULL);
	assert_int_equal(rc, 0);
	assert_y(fix);
}

/* In main(), around the groups. */
static inline int make_folder(void)
{
	char path[64];

	if (!mkdtemp(folder))
		return 1;
	snprintf(path, sizeof(path), "%s/models", folder);
	return mkdir(path, 0700);
}

static inline int remove_folder(void)
{
	char path[64];

	snprintf(path, sizeof(path), "rm -rf %s", folder);
	return system(path);
}

/* A context in which the engine's own tokens are opened. */
static inline struct tmesh_ctx *ctx_of_engine(struct fixture *fix)
{
	struct tmesh_ctx *ctx;
	char path[300];
	const struct tmesh_ctx_opts opts = {.size = sizeof(opts), .runtime_dir = path};

	snprintf(path, sizeof(path), "%s/" WIRE_SOCKET "unit" WIRE_FOLDER,
		 getenv("TMESH_RUNTIME_DIR"));
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	return ctx;
}

/* A link to the engine, without a context: for clients that speak the protocol badly. */
static inline int raw(struct fixture *fix)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int dir, fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/engine-unit", dir);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	close(dir);
	return fd;
}

/* A word to keep what comes with it: @fd so often. */
static inline bool send_fds(int socket, int fd, unsigned int count)
{
	struct wire_cancel words = {.magic = WIRE_MAGIC, .what = WIRE_LIFELINE};
	struct iovec vector = {.iov_base = &words, .iov_len = sizeof(words)};
	union {
		char room[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control = {.align = {.cmsg_len = CMSG_LEN(count * sizeof(int)),
			       .cmsg_level = SOL_SOCKET,
			       .cmsg_type = SCM_RIGHTS}};
	struct msghdr message = {.msg_iov = &vector,
				 .msg_iovlen = 1,
				 .msg_control = control.room,
				 .msg_controllen = CMSG_SPACE(count * sizeof(int))};

	for (unsigned int i = 0; i < count; i++)
		memcpy(CMSG_DATA(&control.align) + i * sizeof(fd), &fd, sizeof(fd));
	return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(words);
}

#endif /* TMESH_TEST_SERVED_H */
