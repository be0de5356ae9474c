// SPDX-License-Identifier: MIT
/*
 * Another user's processes and an engine. They cannot reach it, nor the memory that its clients
 * hand to it. If they reach its socket they are refused, while its own user's calls go on. Needs
 * root, who can become another user.
 */
#include <grp.h>
#include <poll.h>
#include <sys/un.h>

#include "remote_wire.h"
#include "served.h"

#define NOBODY 65534
#define CALLS 100
#define WAIT_MS 60000

static char elsewhere[] = "/tmp/tmesh-users-XXXXXX";
static char token[TMESH_TOKEN_SIZE];
static char own_dir[256];

/* The result of @act, done by another user's process: 0, or the line of the failed check. */
static pid_t start_as_nobody(int (*act)(void))
{
	pid_t pid = fork();

	if (pid)
		return pid;
	close(input);
	if (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY))
		_exit(255);
	_exit(act());
}

static void assert_as_nobody(int (*act)(void))
{
	pid_t pid = start_as_nobody(act);

	join_child(pid);
}

/* As an exit status, of which one byte is left. */
#define CHECK_HERE(condition)                      \
	do {                                       \
		if (!(condition))                  \
			return __LINE__ % 254 + 1; \
	} while (0)

static int connect_to(const char *path, bool waits)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | (waits ? 0 : SOCK_NONBLOCK), 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (!connect(fd, (struct sockaddr *)&address, sizeof(address)))
		return fd;
	close(fd);
	return -errno;
}

/* With a runtime directory of its own no engine is there, and no token's memory; with the user's
 * neither is let in. */
static int try_libraries(void)
{
	struct tmesh_engine_context *context;
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	char path[300];

	snprintf(path, sizeof(path), "%s/own", elsewhere);
	setenv("TMESH_RUNTIME_DIR", path, 1);
	CHECK_HERE(!tmesh_ctx_open(NULL, &ctx, NULL));
	CHECK_HERE(tmesh_engine_connect(ctx, "unit", NULL, &context, NULL) == -ENOENT);
	CHECK_HERE(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL));
	tmesh_ctx_unref(ctx);
	setenv("TMESH_RUNTIME_DIR", own_dir, 1);
	if (tmesh_ctx_open(NULL, &ctx, NULL))
		return 0;
	CHECK_HERE(tmesh_engine_connect(ctx, "unit", NULL, &context, NULL) == -EACCES);
	CHECK_HERE(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL));
	tmesh_ctx_unref(ctx);
	return 0;
}

static int try_files(void)
{
	char path[300];

	snprintf(path, sizeof(path), "%s/engine-unit", own_dir);
	CHECK_HERE(connect_to(path, true) == -EACCES);
	snprintf(path, sizeof(path), "%s/engine-unit.lock", own_dir);
	CHECK_HERE(open(path, O_RDONLY) < 0 && errno == EACCES);
	return 0;
}

UNIT_SET_UP(test_kept_out)
{
	struct fixture *fix = *state;
	struct tmesh_tensor *tensor;

	assert_ok(tmesh_engine_tensor_export(fix->x, &tensor, err));
	assert_ok(tmesh_region_token(tmesh_tensor_region(tensor), TMESH_READ, token, err));
	tmesh_tensor_unref(tensor);
	assert_as_nobody(try_files);
	assert_as_nobody(try_libraries);
	assert_works(fix);
}

/* Refused, with nothing that opens anything, and hung up on, whatever it says. */
static int be_refused(const char *path)
{
	struct wire_welcome words = {0};
	struct pollfd at = {.events = POLLIN};

	at.fd = connect_to(path, true);
	CHECK_HERE(at.fd >= 0);
	CHECK_HERE(poll(&at, 1, WAIT_MS) == 1);
	CHECK_HERE(recv(at.fd, &words, sizeof(words), 0) == sizeof(words));
	CHECK_HERE(words.code == -EACCES && strstr(words.message, "another user's"));
	if (send(at.fd, "hello", 5, MSG_NOSIGNAL) < 0)
		errno = 0;
	CHECK_HERE(!*words.requests && !*words.replies && !*words.page && !*words.backend);
	CHECK_HERE(poll(&at, 1, WAIT_MS) == 1);
	CHECK_HERE(recv(at.fd, &words, sizeof(words), 0) <= 0);
	close(at.fd);
	return 0;
}

/* Connections by the hundred, of which most read nothing. */
static int flood(void)
{
	char path[64];
	int rc = 0;

	snprintf(path, sizeof(path), "%s/socket", elsewhere);
	for (int i = 0; !rc && i < CALLS; i++) {
		for (int n = 0; n < 4; n++)
			connect_to(path, false);
		rc = be_refused(path);
	}
	return rc;
}

/* The directory keeps others out. Here a link to the socket lies where all may go: the engine
 * itself refuses them. */
UNIT_SET_UP(test_refused)
{
	struct fixture later, *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	int status = -1, dir;
	char path[64];
	pid_t child;

	snprintf(path, sizeof(path), "%s/socket", elsewhere);
	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	assert_int_equal(linkat(dir, "engine-unit", AT_FDCWD, path, 0), 0);
	close(dir);
	assert_int_equal(chmod(path, 0777), 0);
	child = start_as_nobody(flood);
	do
		assert_works(fix);
	while (!waitpid(child, &status, WNOHANG));
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	/* No place was taken, of the four that there are, and it is the same process. */
	join(&later);
	assert_works(&later);
	leave(&later);
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	assert_int_equal(unlink(path), 0);
}

static int listener;

static int listen_there(void)
{
	return listen(listener, 4);
}

/* An impostor listens at the path of this user's engines: the library sends it nothing. */
UNIT_SET_UP(test_impostor)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct tmesh_engine_context *context;
	struct fixture *fix = *state;
	int dir;

	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/engine-impostor",
		 dir);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_as_nobody(listen_there);
	assert_refused(tmesh_engine_connect(fix->ctx, "impostor", NULL, &context, err), -EACCES,
		       "another user's");
	close(listener);
	assert_int_equal(unlinkat(dir, "engine-impostor", 0), 0);
	close(dir);
}

int main(void)
{
	char command[64];
	int failed;

	if (geteuid())
		return UNIT_SKIP_ALL("only root can be another user, too");
	if (make_folder() || !mkdtemp(elsewhere) || chmod(elsewhere, 0777))
		return 1;
	snprintf(own_dir, sizeof(own_dir), "%s", getenv("TMESH_RUNTIME_DIR"));
	failed = UNIT_RUN("users", serve, unserve);
	snprintf(command, sizeof(command), "rm -rf %s", elsewhere);
	return system(command) || remove_folder() || failed;
}
