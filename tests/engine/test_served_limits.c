// SPDX-License-Identifier: MIT
/*
 * The limits of an engine's clients, and its own: quotas, descriptors, memory, space. A limit that
 * is reached is its call's error; the engine and the other clients go on.
 */
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/un.h>

#include "common/clock.h"
#include "raw.h"

/* The second stat() of the file "held", which the opener of the graph makes, waits. */
static sem_t reached, released;
static atomic_uint stats_of_held;

/* In the place of the C library's. */
int stat(const char *restrict path, struct stat *restrict out)
{
	if (strstr(path, "/held") && atomic_fetch_add(&stats_of_held, 1) == 1) {
		sem_post(&reached);
		while (sem_wait(&released))
			;
	}
	return fstatat(AT_FDCWD, path, out, 0);
}

/* Graphs that one client may have open: one more is refused, and nothing else. */
static void test_graph_quota(void **state)
{
	enum {
		GRAPHS = 1024
	};
	struct tmesh_engine_graph *graphs[GRAPHS];
	struct fixture other, *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct tmesh_error error;
	char name[32];

	join(&other);
	for (int i = 0; i < GRAPHS; i++) {
		int rc;

		snprintf(name, sizeof(name), "graph-%d", i);
		rc = tmesh_engine_graph_open(fix->context, file(name, "plain"), NULL, &graphs[i],
					     &error);
		/* The fixture has one. */
		assert_int_equal(rc, i < GRAPHS - 1 ? 0 : -EDQUOT);
	}
	assert_non_null(strstr(error.message, "at most 1024 open at a time"));
	assert_works(fix);
	assert_works(&other);
	/* Sessions without a client are kept, so many and no more. */
	for (int i = 0; i < GRAPHS - 1; i++)
		tmesh_engine_graph_unref(graphs[i]);
	assert_ok(tmesh_engine_graph_open(fix->context, file("graph-1023", "plain"), NULL,
					  &graphs[0], err));
	tmesh_engine_graph_unref(graphs[0]);
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	leave(&other);
}

static void *take_one(void *data)
{
	int fd = accept4(*(int *)data, NULL, NULL, SOCK_CLOEXEC);
	char byte;

	/* Until the client has hung up. */
	assert_int_equal(recv(fd, &byte, 1, 0), 0);
	close(fd);
	return NULL;
}

/* A socket where no process takes connections, also when no more of them fit in its queue; and one
 * where a process takes them and says nothing. */
static void test_silent(void **state)
{
	const struct tmesh_engine_connect_opts opts = {.size = sizeof(opts), .timeout_ns = 50 * MS};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct tmesh_engine_context *context;
	struct fixture *fix = *state;
	int dir, listener;
	pthread_t thread;

	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/engine-silent", dir);
	for (int full = 0; full < 2; full++) {
		listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
		assert_int_equal(listen(listener, full ? 0 : 4), 0);
		if (!full)
			pthread_create(&thread, NULL, take_one, &listener);
		for (int i = 0; i < (full ? 3 : 1); i++)
			assert_refused(
				tmesh_engine_connect(fix->ctx, "silent", &opts, &context, err),
				-ETIMEDOUT, "accepted no connection before the deadline");
		if (!full)
			pthread_join(thread, NULL);
		close(listener);
		/* The engine that was there is gone. */
		assert_refused(tmesh_engine_connect(fix->ctx, "silent", &opts, &context, err),
			       -ENOENT, "where one was: tmesh-engine serves one");
		assert_int_equal(unlinkat(dir, "engine-silent", 0), 0);
	}
	close(dir);
}

static bool is_there(int dir, const char *name)
{
	return !faccessat(dir, name, F_OK, 0);
}

/* A program that ends, or does not even start, leaves nothing in the runtime directory. */
static void test_leaves_nothing(void **state)
{
	char models[64], line[256];
	char *argv[] = {(char *)"tmesh-engine",
			(char *)"--engine=fake",
			(char *)"--with-input",
			(char *)"--models",
			models,
			(char *)"short",
			NULL};
	struct fixture *fix = *state;
	int dir, end, status;
	pid_t pid;

	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	snprintf(models, sizeof(models), "%s/models", folder);
	pid = run_program(argv, &end, line, sizeof(line));
	assert_string_equal(line, "ready short\n");
	assert_true(is_there(dir, "engine-short.lock"));
	end_program(pid, end);
	assert_false(is_there(dir, "engine-short"));
	assert_false(is_there(dir, "engine-short.lock"));
	argv[1] = (char *)"--engine=old";
	pid = run_program(argv, &end, line, sizeof(line));
	close(end);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	assert_false(is_there(dir, "engine-short.lock"));
	close(dir);
}

/* Stops @pid where it takes a lock. */
static void stop_at_lock(pid_t pid)
{
	struct __ptrace_syscall_info info = {0};
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(
		ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
	while (info.op != PTRACE_SYSCALL_INFO_ENTRY || info.entry.nr != SYS_fcntl ||
	       info.entry.args[1] != F_SETLK) {
		assert_int_equal(ptrace(PTRACE_SYSCALL, pid, 0, 0), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSTOPPED(status));
		info.op = 0;
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			assert_true(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) > 0);
	}
}

/* The one before ends between the next one's open() and its lock: that is on no file then. */
static void test_taken_over(void **state)
{
	char models[64], line[64] = "";
	char *argv[] = {(char *)"tmesh-engine",
			(char *)"--engine=fake",
			(char *)"--with-input",
			(char *)"--models",
			models,
			(char *)"next",
			NULL};
	struct fixture *fix = *state;
	int in[2], out[2], dir;
	pid_t pid;

	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	snprintf(models, sizeof(models), "%s/models", folder);
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		execv(getenv("TMESH_ENGINE_PROGRAM"), argv);
		_exit(127);
	}
	stop_at_lock(pid);
	assert_int_equal(unlinkat(dir, "engine-next.lock", 0), 0);
	assert_int_equal(ptrace(PTRACE_DETACH, pid, 0, 0), 0);
	close(in[0]);
	close(out[1]);
	assert_true(read(out[0], line, sizeof(line) - 1) > 0);
	assert_string_equal(line, "ready next\n");
	assert_true(is_there(dir, "engine-next.lock"));
	close(out[0]);
	end_program(pid, in[1]);
	close(dir);
}

struct opener {
	struct tmesh_engine_context *context;
	char path[128];
	int rc;
};

static void *open_held(void *data)
{
	struct opener *own = data;
	struct tmesh_engine_graph *graph;

	own->rc = tmesh_engine_graph_open(own->context, own->path, NULL, &graph, NULL);
	sem_post(&reached); /* also when its time was up before the file was looked at again */
	if (!own->rc)
		tmesh_engine_graph_unref(graph);
	return NULL;
}

/* A call that waits for another call's open has its own deadline. */
static void test_shared_deadline(void **state)
{
	struct opener own = {.rc = -ETIMEDOUT};
	struct tmesh_engine_graph *graph;
	struct fixture fix;
	pthread_t thread;

	join_timed(&fix, 300 * MS, "plain");
	own.context = fix.context;
	strcpy(own.path, file("held", "plain"));
	while (own.rc) {
		assert_int_equal(sem_init(&reached, 0, 0), 0);
		assert_int_equal(sem_init(&released, 0, 0), 0);
		stats_of_held = 0;
		assert_int_equal(pthread_create(&thread, NULL, open_held, &own), 0);
		while (sem_wait(&reached))
			;
		if (stats_of_held == 2)
			assert_refused(
				tmesh_engine_graph_open(fix.context, own.path, NULL, &graph, err),
				-ETIMEDOUT, "another call");
		sem_post(&released);
		pthread_join(thread, NULL);
		/* A slow machine. */
		assert_true(!own.rc || own.rc == -ETIMEDOUT || own.rc == -EPIPE);
	}
	leave(&fix);
}

/* A graph with other operands has replaced the graph of a binding, and the engine was started anew.
 * Each call reports that, and leaves no graph open in the engine. */
static void test_replaced_quota(void **state)
{
	struct fixture *fix = *state;
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_graph *graph;
	const char *path = file("replaced", "plain");

	assert_ok(tmesh_engine_graph_open(fix->context, path, NULL, &graph, err));
	assert_ok(tmesh_engine_bind(graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	file("replaced", "tokens");
	assert_int_equal(kill((pid_t)tmesh_engine_context_pid(fix->context), SIGKILL), 0);
	for (int i = 0; i < 1100; i++)
		assert_refused(tmesh_engine_binding_dispatch(binding, err), -ESTALE,
			       "open it again");
	/* The graph is there again as it was. */
	file("replaced", "plain");
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_y(fix);
	tmesh_engine_binding_unref(binding);
	tmesh_engine_graph_unref(graph);
	assert_works(fix);
}

struct runner {
	struct tmesh_engine_binding *binding;
	struct tmesh_error error;
	pthread_t thread;
};

static void *run_it(void *data)
{
	struct runner *runner = data;

	return (void *)(intptr_t)tmesh_engine_binding_dispatch(runner->binding, &runner->error);
}

/* A call that waits for other threads' runs of its binding has its own deadline, too. */
static void test_binding_deadline(void **state)
{
	struct tmesh_engine_binding *binding;
	struct runner runners[3];
	struct fixture fix;
	int late = 0;
	void *rc;

	join_timed(&fix, 1000 * MS, "hangs");
	binding = bind_timed(&fix, fix.graph);
	/* Each of the others may get the turn just before its own deadline: a thread that began
	 * later has a later one. */
	for (int tries = 0; tries < 60 && !late; tries++) {
		for (int i = 0; i < 3; i++) {
			runners[i] = (struct runner){.binding = binding};
			pthread_create(&runners[i].thread, NULL, run_it, &runners[i]);
		}
		for (int i = 0; i < 3; i++) {
			pthread_join(runners[i].thread, &rc);
			assert_int_equal((intptr_t)rc, -ETIMEDOUT);
			late += strstr(runners[i].error.message, "other runs of this binding") !=
				NULL;
		}
	}
	assert_true(late);
	tmesh_engine_binding_unref(binding);
	leave(&fix);
}

/* A session whose file is gone, as that of a part of a graph is, goes with its weights. */
static void test_file_gone(void **state)
{
	struct fixture *fix = *state;
	struct tmesh_engine_weight weight = {.name = "w"};
	const struct tmesh_engine_graph_opts opts = {
		.size = sizeof(opts), .weights = &weight, .weight_count = 1};
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	unsigned int before, now = 0;
	const char *path;

	assert_works(fix);
	before = files_of(pid);
	for (int i = 0; i < 8; i++) {
		struct tmesh_engine_graph *graph;

		path = file("part", "plain");
		assert_ok(tmesh_tensor_create(fix->ctx, TMESH_FLOAT32, 1, shape_b, NULL,
					      &weight.tensor, err));
		assert_ok(tmesh_region_seal(tmesh_tensor_region(weight.tensor), err));
		assert_ok(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err));
		assert_int_equal(unlink(path), 0);
		tmesh_engine_graph_unref(graph);
		tmesh_tensor_unref(weight.tensor);
	}
	/* The engine's library gives descriptors back beside its calls. */
	for (int i = 0; i < 3000 && (now = files_of(pid)) > before; i++) {
		usleep(10000);
		assert_works(fix);
	}
	assert_true(now <= before);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

static char program[512];

/* An engine that may have few descriptors and little memory. */
static int serve_limited(void **state)
{
	char script[600];
	int rc;

	snprintf(script, sizeof(script), "#!/bin/sh\nulimit -n 320\n%sexec %s \"$@\"\n",
#if defined(__SANITIZE_ADDRESS__)
		 "", /* it reserves terabytes */
#else
		 "ulimit -v 700000\n",
#endif
		 getenv("TMESH_ENGINE_PROGRAM"));
	snprintf(program, sizeof(program), "%s", getenv("TMESH_ENGINE_PROGRAM"));
	chmod(file("limited", script), 0700);
	setenv("TMESH_ENGINE_PROGRAM", file("limited", script), 1);
	rc = serve(state);
	setenv("TMESH_ENGINE_PROGRAM", program, 1);
	return rc;
}

/* A client that has used up its part of the engine's descriptors is refused more; what it has, and
 * other clients, go on. */
static void test_region_quota(void **state)
{
	struct tmesh_engine_binding *bindings[16] = {0};
	struct fixture other, *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct tmesh_engine_tensor *y = fix->y;
	struct tmesh_error error;
	int count = 0, rc = 0;

	join(&other);
	for (; !rc && count < 16; count++) {
		assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape_x, FLAGS,
						     &fix->outputs[0].tensor, err));
		rc = tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1,
				       &bindings[count], &error);
		tmesh_engine_tensor_unref(fix->outputs[0].tensor);
	}
	fix->outputs[0].tensor = y;
	assert_int_equal(rc, -EDQUOT);
	assert_non_null(strstr(error.message, "this client may open"));
	assert_true(count > 1);
	assert_ok(tmesh_engine_binding_dispatch(bindings[0], err));
	assert_works(&other);
	for (int i = 0; i < count - 1; i++)
		tmesh_engine_binding_unref(bindings[i]);
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	leave(&other);
}

/* A request for a graph with @count weights. */
static int try_graph(struct raw *raw, const struct wire_tensor *weights, size_t count, uint32_t *id)
{
	struct wire text = raw_text(raw);
	struct wire_reply reply;
	char name[16];

	wire_put_text(&text, file("graph", "plain"));
	wire_put_u32(&text, 0);
	wire_put_u32(&text, (uint32_t)count);
	for (size_t i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "w%zu", i);
		wire_put_text(&text, name);
	}
	assert_ok(wire_put_tensors(&text, weights, count, err));
	assert_int_equal(raw_try(raw, WIRE_GRAPH_OPEN, 0, (uint32_t)text.at), 0);
	raw_reply(raw, &reply);
	*id = reply.id;
	return reply.code;
}

/* A client that closes its graphs, and has bindings of them: their weights are still its own. */
static void test_closed_quota(void **state)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context), graph;
	struct wire_tensor values[3], weights[2];
	static const char *const names[] = {"x", "b", "y"};
	struct tmesh_tensor *whole;
	struct tmesh_layout layout;
	const int64_t bytes = 4096;
	struct raw raw;
	int rounds = 0;

	assert_ok(tmesh_tensor_create(fix->ctx, TMESH_UINT8, 1, &bytes, NULL, &whole, err));
	for (int i = 0; i < 3; i++) {
		assert_ok(tmesh_layout_contiguous(&layout, TMESH_FLOAT32, i == 1 ? 1 : 2,
						  i == 1 ? shape_b : shape_x, err));
		layout.offset = 1024 * (uint64_t)i;
		values[i] = (struct wire_tensor){.write = i == 2};
		assert_ok(tmesh_tensor_wrap(tmesh_tensor_region(whole), &layout, &values[i].tensor,
					    err));
	}
	raw_join(&raw, fix);
	for (; rounds < 16; rounds++) {
		struct wire text;
		int rc;

		for (int i = 0; i < 2; i++) {
			weights[i].write = false;
			assert_ok(tmesh_tensor_create(fix->ctx, TMESH_FLOAT32, 1, shape_b, NULL,
						      &weights[i].tensor, err));
			assert_ok(tmesh_region_seal(tmesh_tensor_region(weights[i].tensor), err));
		}
		rc = try_graph(&raw, weights, 2, &graph);
		wire_tensors_free(memcpy(malloc(sizeof(weights)), weights, sizeof(weights)), 2);
		if (rc) {
			assert_int_equal(rc, -EDQUOT);
			break;
		}
		text = raw_text(&raw);
		wire_put_u32(&text, 2);
		wire_put_u32(&text, 3);
		for (int i = 0; i < 3; i++) {
			wire_put_text(&text, names[i]);
			wire_put_text(&text, "");
		}
		assert_ok(wire_put_tensors(&text, values, 3, err));
		raw_call(&raw, WIRE_BIND, graph, &text);
		assert_int_equal(raw_try(&raw, WIRE_GRAPH_CLOSE, graph, 0), 0);
	}
	/* The process itself uses 256 of the 320 descriptors. A client gets a fifth of the others,
	 * two for each region: it has six. */
	assert_int_equal(rounds, 2);
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	raw_leave(&raw);
	for (int i = 0; i < 3; i++)
		tmesh_tensor_unref(values[i].tensor);
	tmesh_tensor_unref(whole);
}

/* There is no descriptor left for a client: it is refused by the one that is spared for that, and
 * those that are there go on. */
static void test_no_descriptors(void **state)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_context *more;
	struct rlimit all, few;

	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	assert_int_equal(prlimit((pid_t)pid, RLIMIT_NOFILE, NULL, &all), 0);
	/* Fewer than it has open, and more than it polls: poll() has the same limit. */
	few = (struct rlimit){.rlim_cur = 8, .rlim_max = all.rlim_max};
	assert_int_equal(prlimit((pid_t)pid, RLIMIT_NOFILE, &few, NULL), 0);
	for (int i = 0; i < 5; i++) {
		assert_refused(tmesh_engine_connect(fix->ctx, "unit", NULL, &more, err), -EMFILE,
			       "no descriptor left");
		assert_ok(tmesh_engine_binding_dispatch(binding, err));
	}
	assert_int_equal(prlimit((pid_t)pid, RLIMIT_NOFILE, &all, NULL), 0);
	assert_ok(tmesh_engine_connect(fix->ctx, "unit", NULL, &more, err));
	tmesh_engine_context_unref(more);
	tmesh_engine_binding_unref(binding);
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

/* Return the processor time that @pid has used, in ns. */
static uint64_t used_by(uint32_t pid)
{
	struct timespec used;
	clockid_t clock;

	assert_int_equal(clock_getcpuclockid((pid_t)pid, &clock), 0);
	assert_int_equal(clock_gettime(clock, &used), 0);
	return (uint64_t)used.tv_sec * 1000 * MS + (uint64_t)used.tv_nsec;
}

static void await_clients(struct fixture *fix, uint32_t count)
{
	const struct engine_status *status = map_status(fix);

	for (int i = 0; i < 60000 && status->clients != count; i++)
		usleep(1000);
	assert_int_equal(status->clients, count);
	munmap((void *)status, sizeof(*status));
}

static void limit_files(uint32_t pid, rlim_t count)
{
	struct rlimit files;

	assert_int_equal(prlimit((pid_t)pid, RLIMIT_NOFILE, NULL, &files), 0);
	files.rlim_cur = count ? count : files.rlim_max;
	assert_int_equal(prlimit((pid_t)pid, RLIMIT_NOFILE, &files, NULL), 0);
}

/* Not even the spare descriptor can be used: a client waits, and the engine sleeps between its
 * attempts. Once descriptors can be had, it takes the client and has a spare one again. */
static void test_no_spare(void **state)
{
	const struct tmesh_engine_connect_opts opts = {.size = sizeof(opts), .timeout_ns = 50 * MS};
	struct tmesh_engine_context *context;
	uint64_t before, began;
	struct fixture fix;
	uint32_t pid;

	join(&fix);
	pid = tmesh_engine_context_pid(fix.context);
	tmesh_ctx_ref(fix.ctx);
	leave(&fix);
	/* poll() has the same limit: the listener and the question fit, and no client. */
	await_clients(&fix, 0);
	limit_files(pid, 3);
	before = used_by(pid);
	began = tmesh_now_ns();
	for (int i = 0; i < 10; i++)
		assert_int_equal(tmesh_engine_connect(fix.ctx, "unit", &opts, &context, NULL),
				 -ETIMEDOUT);
	assert_true(used_by(pid) - before < (tmesh_now_ns() - began) / 2);
	limit_files(pid, 0);
	assert_ok(tmesh_engine_connect(fix.ctx, "unit", NULL, &context, err));
	assert_int_equal(tmesh_engine_context_pid(context), pid);
	limit_files(pid, 8);
	assert_refused(tmesh_engine_connect(fix.ctx, "unit", NULL, &context, err), -EMFILE,
		       "no descriptor left");
	limit_files(pid, 0);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(fix.ctx);
}

/* Memory that the engine has no address space for: that call's error alone. */
static void test_no_memory(void **state)
{
	const int64_t shape[] = {64 << 20, 4};
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct tmesh_engine_tensor *x = fix->x, *y = fix->y;

	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape, FLAGS,
					     &fix->inputs[0].tensor, err));
	fix->outputs[0].tensor = fix->inputs[0].tensor;
	fix->outputs[0].in_place = "x";
	assert_int_equal(dispatch(fix, NULL), -ENOMEM);
	tmesh_engine_tensor_unref(fix->inputs[0].tensor);
	fix->inputs[0].tensor = x;
	fix->outputs[0].tensor = y;
	fix->outputs[0].in_place = NULL;
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

static char small[64], larger[512];

/* The runtime directory is small, in mounts of this process and its children alone. */
static int serve_small(void **state)
{
	const char *before = getenv("TMESH_RUNTIME_DIR");

	snprintf(larger, sizeof(larger), "%s", before ? before : "");
	snprintf(small, sizeof(small), "%s/small", folder);
	if (mkdir(small, 0700) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tmpfs", small, "tmpfs", 0, "size=64k,nr_inodes=64,mode=0700"))
		return 1;
	setenv("TMESH_RUNTIME_DIR", small, 1);
	return serve(state);
}

static int unserve_small(void **state)
{
	int rc = unserve(state);

	setenv("TMESH_RUNTIME_DIR", larger, 1);
	return rc || umount2(small, MNT_DETACH);
}

/* Nothing more can be written there, and no file made. */
static void fill_up(void)
{
	static const char zeros[4096];
	char path[96];
	int fd;

	snprintf(path, sizeof(path), "%s/fill", small);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	while (write(fd, zeros, sizeof(zeros)) > 0)
		;
	assert_int_equal(errno, ENOSPC);
	close(fd);
	for (int i = 0; i < 1000; i++) {
		snprintf(path, sizeof(path), "%s/fill-%d", small, i);
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0)
			break;
		close(fd);
	}
	assert_int_equal(errno, ENOSPC);
}

static void make_room(void)
{
	char path[128];

	snprintf(path, sizeof(path), "rm -f %s/fill*", small);
	assert_int_equal(system(path), 0);
}

/* A call that has begun needs no room. A new call fails for lack of room, and later there is some.
 */
static void test_full(void **state)
{
	char *argv[] = {(char *)"tmesh-engine", (char *)"--engine=fake", (char *)"--with-input",
			(char *)"second", NULL};
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	int end, status;
	char line[256];

	assert_works(fix);
	fill_up();
	assert_works(fix);
	for (int i = 0; i < 2; i++) {
		pid_t other = run_program(argv, &end, line, sizeof(line));

		close(end);
		assert_int_equal(waitpid(other, &status, 0), other);
		assert_int_equal(WEXITSTATUS(status), i ? 0 : 1);
		if (i)
			assert_string_equal(line, "ready second\n");
		else
			assert_non_null(strstr(line, "No space left on device"));
		if (!i)
			make_room();
	}
	fill_up();
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	/* The previous engine's end makes room for the next process. */
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	assert_works(fix);
	make_room();
	assert_int_not_equal(tmesh_engine_context_pid(fix->context), pid);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_SET_UP(test_file_gone),	  TEST_SET_UP(test_graph_quota),
		TEST(test_shared_deadline),	  TEST(test_binding_deadline),
		TEST_SET_UP(test_silent),	  TEST_SET_UP(test_replaced_quota),
		TEST_SET_UP(test_leaves_nothing), TEST_SET_UP(test_taken_over),
	};
	const struct CMUnitTest limited[] = {
		TEST_SET_UP(test_region_quota),
		TEST_SET_UP(test_closed_quota),
		TEST_SET_UP(test_no_descriptors),
		TEST(test_no_spare),
	};
	const struct CMUnitTest memory[] = {TEST_SET_UP(test_no_memory)};
	const struct CMUnitTest full[] = {TEST_SET_UP(test_full)};
	int failed;

	if (make_folder())
		return 1;
	failed = cmocka_run_group_tests_name("limits", tests, serve, unserve);
	failed += cmocka_run_group_tests_name("limits, few descriptors", limited, serve_limited,
					      unserve);
#if defined(__SANITIZE_ADDRESS__)
	failed += UNIT_SKIP(memory, "the address sanitizer reserves more than any limit");
#else
	failed += cmocka_run_group_tests_name("limits, little memory", memory, serve_limited,
					      unserve);
#endif
	if (geteuid())
		failed += UNIT_SKIP(full, "not root: only root mounts a small file system");
	else if (unshare(CLONE_NEWNS))
		failed += UNIT_SKIP(full, "no mounts of one's own can be had here");
	else
		failed += cmocka_run_group_tests_name("limits, no space", full, serve_small,
						      unserve_small);
	return remove_folder() || failed;
}
