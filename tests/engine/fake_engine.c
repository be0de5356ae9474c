// SPDX-License-Identifier: MIT
/*
 * The engine "fake": a fake that says it is one. It runs one graph, y = x + b and twice = 2 * x, on
 * float32, and misbehaves on demand: the file's text names the fault.
 *
 *   plain    y, twice of x[n, 4], b[4]
 *   echoes   says that an output is x's memory
 *   elsewhere  writes y to memory of its own and says so
 *   fails    runs fail
 *   crashes  runs abort
 *   hangs    runs never end; y begins with -1
 *   long     runs end when they are called off; y begins with -1
 *   waits    runs end when there is a file of the graph's name and ".go"; y begins with -1
 *   counts   runs add 1 to y's first element, and do nothing else
 *   open     as plain, and the first dimension of y has no name
 *   bomb     aborts when it is opened
 *   talks    writes to the standard error when it is opened
 *   opens    is opened when there is a file of the graph's name and ".go": as plain, or, where that
 *            says "broken" or "cancelled", not; each try adds a byte to the file ".tries"
 *   closes   is closed when there is a file of the graph's name and ".go", after one ".closing"
 *   tokens   as plain, with x called tokens
 *   probe    runs make system calls that are denied, and fail when one is not (probe.h)
 *   foreign  runs make a system call of another architecture
 *   stuck    is never closed
 *   deafens  runs shut the socket down on which clients connect, and end the process where the
 *            file's second word says so
 *   damages  runs overwrite what the process shares with its supervisor, as the file's second word
 *            says (zeros, ones, random, asleep), and never end
 *
 * Its library says how it begins: "none" and "hangs" do what they say; "opens:FILE" begins when
 * there is such a file, and "fails:FILE" does not begin when there is.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/error.h"
#include "plugin.h"
#include "probe.h"

struct session {
	char mode[32], how[32];
	char go[512];
};

struct binding {
	struct session *session;
	struct plugin_array inputs[2], outputs[2];
	size_t output_count;
	int64_t shapes[2][TMESH_MAX_DIMS];
	float *own[2];
	atomic_bool cancelled;
};

static int open_engine(const struct plugin_open *opts, void **engine, struct tmesh_error *err)
{
	const char *library = opts->library ? opts->library : "";

	if (!strcmp(library, "none"))
		return tmesh_fail(err, -EOPNOTSUPP, "the fake has no library");
	while (!strcmp(library, "hangs"))
		pause();
	while (!strncmp(library, "opens:", 6) && access(library + 6, F_OK))
		usleep(1000);
	if (!strncmp(library, "fails:", 6) && !access(library + 6, F_OK))
		return tmesh_fail(err, -ENOSPC, "the fake has no room in process %d", getpid());
	*engine = calloc(1, 1);
	return 0;
}

static const char *version(void *engine)
{
	return "a fake";
}

static void add_byte(const char *go, const char *suffix)
{
	char path[600];
	FILE *file;

	snprintf(path, sizeof(path), "%.*s%s", (int)(strlen(go) - strlen(".go")), go, suffix);
	/* An engine in a process of its own may not write there. */
	file = fopen(path, "a");
	if (!file)
		return;
	fputc('.', file);
	fclose(file);
}

/* Waits for the word in the file @go. */
static int wait_to_open(const char *go, struct tmesh_error *err)
{
	char word[32] = "";
	FILE *file;

	add_byte(go, ".tries");
	while (!(file = fopen(go, "r")))
		usleep(1000);
	if (fscanf(file, "%31s", word) != 1)
		word[0] = '\0';
	fclose(file);
	if (!strcmp(word, "broken"))
		return tmesh_fail(err, -EPROTO, "the fake does not open it, as its graph asks");
	if (!strcmp(word, "cancelled"))
		return tmesh_fail(err, -ECANCELED, "the fake was called off");
	return 0;
}

static void session_close(void *engine, struct plugin_session *session)
{
	const struct session *own = session->handle;

	if (!strcmp(own->mode, "closes")) {
		add_byte(own->go, ".closing");
		while (access(own->go, F_OK))
			usleep(1000);
	}
	while (!strcmp(own->mode, "stuck"))
		pause();
	free(session->handle);
	free(session->inputs);
	free(session->outputs);
	*session = (struct plugin_session){0};
}

static int session_open(void *engine, const struct plugin_session_opts *opts,
			struct plugin_session *session, struct tmesh_error *err)
{
	struct session *own = calloc(1, sizeof(*own));
	FILE *file = fopen(opts->path, "r");
	bool known = file && fscanf(file, "%31s %31s", own->mode, own->how) >= 1;

	if (file)
		fclose(file);
	if (known && !strcmp(own->mode, "slow")) {
		/* The file changes while it is read. */
		file = fopen(opts->path, "a");
		fputs(" more", file);
		fclose(file);
	}
	if (known && !strcmp(own->mode, "bomb"))
		abort();
	if (known && !strcmp(own->mode, "talks"))
		fputs("the fake talks\n", stderr);
	if (!known || !strcmp(own->mode, "broken")) {
		free(own);
		return tmesh_fail(err, -EPROTO, "no graph of the fake's");
	}
	snprintf(own->go, sizeof(own->go), "%s.go", opts->path);
	if (!strcmp(own->mode, "opens")) {
		int rc = wait_to_open(own->go, err);

		if (rc) {
			free(own);
			return rc;
		}
	}
	session->handle = own;
	session->input_count = session->output_count = 2;
	session->inputs = calloc(2, sizeof(*session->inputs));
	session->outputs = calloc(2, sizeof(*session->outputs));
	session->inputs[0] = (struct plugin_operand){.name = (char *)"x",
						     .dtype = TMESH_FLOAT32,
						     .ndim = 2,
						     .shape = {-1, 4},
						     .dims = {(char *)"n"}};
	if (!strcmp(own->mode, "tokens"))
		session->inputs[0].name = (char *)"tokens";
	session->inputs[1] = (struct plugin_operand){
		.name = (char *)"b", .dtype = TMESH_FLOAT32, .ndim = 1, .shape = {4}};
	session->outputs[0] = session->inputs[0];
	session->outputs[0].name = (char *)"y";
	if (!strcmp(own->mode, "open"))
		session->outputs[0].dims[0] = NULL;
	session->outputs[1] = session->inputs[0];
	session->outputs[1].name = (char *)"twice";
	return 0;
}

static void unbind(void *data)
{
	struct binding *binding = data;

	free(binding->own[0]);
	free(binding->own[1]);
	free(binding);
}

static int bind_values(void *engine, struct plugin_session *session,
		       const struct plugin_array *inputs, size_t input_count,
		       const struct plugin_array *outputs, size_t output_count, void **out,
		       struct tmesh_error *err)
{
	struct binding *binding = calloc(1, sizeof(*binding));

	binding->session = session->handle;
	for (size_t i = 0; i < input_count; i++)
		binding->inputs[inputs[i].operand] = inputs[i];
	binding->output_count = output_count;
	memcpy(binding->shapes[0], binding->inputs[0].shape, sizeof(binding->shapes[0]));
	memcpy(binding->outputs, outputs, output_count * sizeof(*outputs));
	*out = binding;
	return 0;
}

static int rebind(void *data, const struct plugin_array *inputs, const size_t *changed,
		  size_t count, struct tmesh_error *err)
{
	struct binding *binding = data;

	if (!strcmp(binding->session->mode, "fails"))
		return tmesh_fail(err, -EIO, "the fake fails as its graph asks");
	for (size_t i = 0; i < count; i++)
		binding->inputs[inputs[changed[i]].operand] = inputs[changed[i]];
	return 0;
}

/* The status, and the page that says what is under way. */
static void damage(const char *how)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	unsigned int seed = 7;
	char line[512];

	while (maps && fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "/dev/zero (deleted)") && !strstr(line, "tmesh-engine-status"))
			continue;
		if (sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		for (unsigned char *at = (void *)from; at < (unsigned char *)to; at++)
			*at = (unsigned char)(!strcmp(how, "ones")     ? 0xff
					      : !strcmp(how, "random") ? rand_r(&seed)
								       : 0);
		/* All is done, and the process sleeps: WATCH_ASLEEP, wherever it stands. */
		if (!strcmp(how, "asleep") && strstr(line, "/dev/zero"))
			((uint32_t *)from)[6] = 0x736c6570;
	}
	if (maps)
		fclose(maps);
}

/* Have reads and writes of all descriptors wait, also of those that the supervisor shares. */
static _Noreturn void unblock_and_crash(void)
{
	for (int fd = 3; fd < 1024; fd++)
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	abort();
}

static void shut_listeners(const char *how)
{
	for (int fd = 3; fd < 1024; fd++) {
		socklen_t size = sizeof(int);
		int listens = 0;

		if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) && listens)
			shutdown(fd, SHUT_RDWR);
	}
	if (!strcmp(how, "dies"))
		abort();
}

static int run(void *data, struct tmesh_error *err)
{
	struct binding *binding = data;
	const float *x = binding->inputs[0].data, *b = binding->inputs[1].data;
	size_t count = binding->inputs[0].bytes / sizeof(float);

	if (!strcmp(binding->session->mode, "probe") && probe_calls(err))
		return -EIO;
	if (!strcmp(binding->session->mode, "foreign"))
		probe_foreign();
	if (!strcmp(binding->session->mode, "unblocks"))
		unblock_and_crash();
	if (!strcmp(binding->session->mode, "deafens"))
		shut_listeners(binding->session->how);
	if (!strcmp(binding->session->mode, "crashes"))
		abort();
	if (!strcmp(binding->session->mode, "hangs") || !strcmp(binding->session->mode, "long") ||
	    !strcmp(binding->session->mode, "lags") || !strcmp(binding->session->mode, "waits"))
		*(volatile float *)binding->outputs[0].data = -1;
	if (!strcmp(binding->session->mode, "damages"))
		damage(binding->session->how);
	while (!strcmp(binding->session->mode, "hangs") ||
	       !strcmp(binding->session->mode, "damages"))
		pause();
	while (!strcmp(binding->session->mode, "waits") && access(binding->session->go, F_OK))
		usleep(1000);
	while (!strcmp(binding->session->mode, "long") && !atomic_load(&binding->cancelled))
		usleep(1000);
	while (!strcmp(binding->session->mode, "lags") && !atomic_load(&binding->cancelled))
		usleep(1000);
	if (!strcmp(binding->session->mode, "lags")) {
		usleep(200000);
		*(volatile float *)binding->outputs[0].data = -2;
	}
	if (atomic_load(&binding->cancelled))
		return tmesh_fail(err, -EIO, "the fake was cancelled");
	if (!strcmp(binding->session->mode, "fails"))
		return tmesh_fail(err, -EIO, "the fake fails as its graph asks");
	if (!strcmp(binding->session->mode, "counts")) {
		*(float *)binding->outputs[0].data += 1;
		return 0;
	}
	for (size_t o = 0; o < binding->output_count; o++) {
		struct plugin_array *output = &binding->outputs[o];
		bool elsewhere = !output->data || !strcmp(binding->session->mode, "elsewhere");
		float *to = output->data;

		if (elsewhere) {
			free(binding->own[o]);
			to = binding->own[o] = malloc(count * sizeof(float) + 1);
		}
		for (size_t i = 0; i < count; i++)
			to[i] = output->operand ? 2 * x[i] : x[i] + b[i % 4];
	}
	return 0;
}

static void cancel(void *data, bool on)
{
	atomic_store(&((struct binding *)data)->cancelled, on);
}

static int result(void *data, size_t output, struct plugin_result *out, struct tmesh_error *err)
{
	struct binding *binding = data;

	memset(out, 0, sizeof(*out));
	out->dtype = TMESH_FLOAT32;
	out->ndim = 2;
	memcpy(out->shape, binding->shapes[0], sizeof(out->shape));
	out->data = binding->own[output] ? binding->own[output] : binding->outputs[output].data;
	/* As ONNX Runtime, of a graph whose output is its input. */
	if (!strcmp(binding->session->mode, "echoes")) {
		out->data = binding->inputs[0].data;
		return 0;
	}
	if (!binding->outputs[output].data) {
		out->handle = binding->own[output];
		binding->own[output] = NULL;
	}
	return 0;
}

static void release(void *engine, void *handle)
{
	free(handle);
}

extern const struct tmesh_engine_plugin tmesh_engine_plugin;
const struct tmesh_engine_plugin tmesh_engine_plugin = {
	.abi = TMESH_ENGINE_PLUGIN_ABI,
	.alignment = 1,
	.captures = true,
	.open = open_engine,
	.close = free,
	.version = version,
	.session_open = session_open,
	.session_close = session_close,
	.bind = bind_values,
	.run = run,
	.result = result,
	.release = release,
	.unbind = unbind,
	.rebind = rebind,
	.cancel = cancel,
};
