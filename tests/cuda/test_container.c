// SPDX-License-Identifier: MIT
/*
 * A consumer in a container: a process in user, mount, PID and IPC namespaces of its own. A process
 * outside hands it refs and regions, without the module, whose tokens end at an IPC namespace
 * (docs/howto/install.md). The devices' node decides whether the container has the devices. The
 * stand-in's events and cuIpc end at a PID namespace, as a driver's may.
 */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include "cuda_unit.h"

#define NOBODY 65534

enum hide {
	NOTHING,
	NODE,
	RUNTIME_DIR,
};

static char node_dir[] = "/tmp/tmesh-standin-XXXXXX";
static char node[sizeof(node_dir) + 8];
static char words[sizeof(node) + 8]; /* that set the stand-in up */

struct container {
	pid_t pid; /* outside; its child is 1 in there */
	int socket;
};

/* The container's answer to each of:
 *
 *   t<ref>     open it
 *   n<ref>     open it, order is seen to
 *   s, S       a region comes after: import it, and wait for its producer
 *   u          let go
 */
struct answer {
	char first; /* byte that a kernel reads, or 'E' */
	struct tmesh_error err;
};

struct inside {
	int socket;
	struct bed bed;
	struct tmesh_cuda_memory *memory;
};

static int import(struct inside *in, bool wait, struct tmesh_cuda_memory **out,
		  struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = tmesh_region_recv(in->bed.ctx, in->socket, &region, err);

	if (rc)
		return rc;
	rc = tmesh_cuda_import(in->bed.cuda, region, NULL, out, err);
	tmesh_region_unref(region);
	if (!rc && wait) {
		rc = tmesh_cuda_wait(*out, NULL, err);
		if (rc)
			tmesh_cuda_memory_unref(*out);
	}
	return rc;
}

static int obey(struct inside *in, const char *message, size_t bytes, struct tmesh_error *err)
{
	struct CUstream_st *stream = *message == 'n' ? TMESH_CUDA_NO_STREAM : NULL;
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	struct tmesh_cuda_opts copts = {.size = sizeof(copts),
					.library = getenv("TMESH_TEST_LIBCUDA")};
	struct tmesh_cuda_memory *memory = NULL;
	struct tmesh_layout layout;
	int rc = in->bed.ctx ? 0 : tmesh_ctx_open(&opts, &in->bed.ctx, err);

	if (!rc && !in->bed.cuda)
		rc = tmesh_cuda_open(in->bed.ctx, &copts, &in->bed.cuda, err);
	if (rc)
		return rc;
	if (*message == 's' || *message == 'S')
		rc = import(in, *message == 'S', &memory, err);
	else if (*message != 'u')
		rc = tmesh_cuda_open_ref(in->bed.cuda, message + 1, bytes - 1, NULL, stream,
					 &memory, &layout, err);
	if (rc)
		return rc;
	/* Opening memory that is open already takes another reference. */
	tmesh_cuda_memory_unref(in->memory);
	in->memory = memory;
	return 0;
}

static void serve(int socket)
{
	struct inside in = {.socket = socket};
	char message[2048];
	ssize_t got;

	((standin_start_fn *)standin_symbol("standin_start"))();
	while ((got = recv(socket, message, sizeof(message), 0)) > 0) {
		struct answer answer = {.first = 'E'};

		if (!obey(&in, message, (size_t)got, &answer.err)) {
			answer.first = '-';
			if (in.memory)
				standin_access(0, tmesh_cuda_pointer(in.memory), &answer.first, 1,
					       false);
		}
		send(socket, &answer, sizeof(answer), 0);
	}
}

static void say(int socket, const char *what)
{
	char text[128];

	snprintf(text, sizeof(text), "%s%s%s", what, *what ? ": " : "",
		 *what ? strerror(errno) : "");
	send(socket, text, strlen(text) + 1, 0);
	if (*what)
		_exit(1);
}

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return done;
}

/* Root in the container is @account outside. Only root outside may map it to another account. */
static bool map_ids(pid_t pid, uid_t account, gid_t group)
{
	char path[64], map[64];

	snprintf(path, sizeof(path), "/proc/%d/setgroups", (int)pid);
	if (!put(path, "deny"))
		return false;
	snprintf(path, sizeof(path), "/proc/%d/gid_map", (int)pid);
	snprintf(map, sizeof(map), "0 %u 1", group);
	if (!put(path, map))
		return false;
	snprintf(path, sizeof(path), "/proc/%d/uid_map", (int)pid);
	snprintf(map, sizeof(map), "0 %u 1", account);
	return put(path, map);
}

static void enter(int socket, enum hide hide)
{
	if (setgid(0) || setuid(0))
		say(socket, "setuid");
	if (fork()) {
		close(socket);
		wait(NULL);
		_exit(0);
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("proc", "/proc", "proc", 0, NULL))
		say(socket, "mount of /proc");
	if (hide && mount("none", hide == NODE ? node_dir : getenv("TMESH_RUNTIME_DIR"), "tmpfs", 0,
			  "mode=700"))
		say(socket, "mount of a tmpfs");
	say(socket, "");
	serve(socket);
	_exit(0);
}

/* Return false, with the reason, if the machine or this container does not allow a new
 * container. */
static bool container_make(struct container *container, uid_t account, enum hide hide,
			   char why[128])
{
	bool own = account == geteuid();
	gid_t group = own ? getegid() : account;
	int ends[2];

	strcpy(why, "the process is gone");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return false;
	fflush(stdout);
	container->pid = fork();
	container->socket = ends[0];
	if (container->pid == 0) {
		close(ends[0]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC))
			say(ends[1], "unshare");
		if (own && !map_ids(getpid(), account, group))
			say(ends[1], "uid_map");
		say(ends[1], "");
		if (recv(ends[1], why, 1, 0) <= 0)
			_exit(1);
		enter(ends[1], hide);
	}
	close(ends[1]);
	if (recv(ends[0], why, 128, 0) > 0 && !*why) {
		strcpy(why, "uid_map from outside");
		if ((own || map_ids(container->pid, account, group)) &&
		    send(ends[0], "", 1, 0) == 1)
			recv(ends[0], why, 128, 0);
	}
	if (!*why)
		return true;
	close(ends[0]);
	waitpid(container->pid, NULL, 0);
	return false;
}

/* Start it before this process has a driver, whose threads it would lack. */
static struct container container_start(uid_t account, enum hide hide)
{
	struct container container;
	char why[128];

	standin_access = standin_symbol("standin_access");
	if (!container_make(&container, account, hide, why))
		fail_msg("no container: %s", why);
	return container;
}

static void container_kill(struct container *container)
{
	kill(container->pid, SIGKILL);
	waitpid(container->pid, NULL, 0);
	close(container->socket);
}

static struct answer ask(struct container *container, char what, const char *text,
			 struct tmesh_region *region)
{
	struct answer answer;
	char message[2048];
	int length = snprintf(message, sizeof(message), "%c%s", what, text);

	assert_int_equal(send(container->socket, message, (size_t)length, 0), length);
	if (region)
		assert_ok(tmesh_region_send(region, container->socket, RW, err));
	assert_int_equal(recv(container->socket, &answer, sizeof(answer), 0), sizeof(answer));
	return answer;
}

static void opens(struct answer answer)
{
	if (answer.first != 'a')
		fail_msg("'%c' %s", answer.first, answer.err.message);
}

static void refused(struct answer answer, int code, const char *word)
{
	if (answer.first != 'E' || answer.err.code != code || !strstr(answer.err.message, word))
		fail_msg("'%c' %d \"%s\"", answer.first, answer.err.code, answer.err.message);
}

/* Outside: allocate memory with an 'a' in it. */
struct outside {
	struct bed bed;
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	char text[TMESH_REF_SIZE];
};

static void outside_open(struct outside *out)
{
	struct tmesh_layout layout = bytes_layout(5000);
	char byte = 'a';

	memset(out, 0, sizeof(*out));
	bed_open(&out->bed, 8 * MIB);
	assert_ok(tmesh_cuda_alloc(out->bed.cuda, 0, 5000, 0, &out->memory, err));
	assert_true(standin_access(0, tmesh_cuda_pointer(out->memory), &byte, 1, true));
	assert_ok(tmesh_cuda_share(out->memory, &layout, NULL, out->text, sizeof(out->text), err));
	assert_ok(tmesh_cuda_region(out->memory, &out->region, err));
}

static void outside_close(struct outside *out)
{
	tmesh_region_unref(out->region);
	tmesh_cuda_memory_unref(out->memory);
	eventually(stats_of(&out->bed).bytes_pending_free == 0);
	bed_close(&out->bed);
}

#define OTHERS_EVENT "cuIpcOpenEventHandle: CUDA_ERROR_INVALID_VALUE"
#define OTHERS_TOKEN "freed (CUDA_ERROR_INVALID_HANDLE): "

/* With the same account and the devices, memory comes through; events and cuIpc do not. The
 * container's host waits instead. */
static void test_same_account(void **state)
{
	struct container container = container_start(geteuid(), NOTHING);
	struct outside out;

	outside_open(&out);
	opens(ask(&container, 't', out.text, NULL));
	opens(ask(&container, 'n', out.text, NULL));
	opens(ask(&container, 't', out.text, NULL));
	assert_int_equal(ask(&container, 'u', "", NULL).first, '-');
	opens(ask(&container, 'S', "", out.region));
	container_kill(&container);
	outside_close(&out);
}

/* The same with a producer whose streams write no numbers: there is no order. */
static void test_without_order(void **state)
{
	struct container container = container_start(geteuid(), NOTHING);
	struct tmesh_layout layout = bytes_layout(5000);
	unsigned long long foreign;
	struct tmesh_region *region;
	char text[TMESH_REF_SIZE], without[sizeof(words) + 32];
	struct outside out;

	snprintf(without, sizeof(without), "%s,without=write-value", words);
	((standin_set_up_fn *)standin_symbol("standin_set_up"))(without);
	outside_open(&out);
	foreign = standin_alloc(5000);
	assert_ok(tmesh_cuda_share_ipc(out.bed.cuda, foreign, &layout, NULL, text, sizeof(text),
				       &region, err));
	refused(ask(&container, 't', out.text, NULL), -EINVAL, OTHERS_EVENT);
	opens(ask(&container, 'n', out.text, NULL));
	/* Memory that is open without an order is not taken for ordered. */
	refused(ask(&container, 't', out.text, NULL), -EINVAL, OTHERS_EVENT);
	refused(ask(&container, 't', text, NULL), -EINVAL,
		"cuIpcOpenMemHandle: CUDA_ERROR_INVALID_VALUE");
	assert_int_equal(ask(&container, 'u', "", NULL).first, '-');
	refused(ask(&container, 'S', "", out.region), -EINVAL, OTHERS_EVENT);
	opens(ask(&container, 's', "", out.region));
	/* The container releases the memory on request, and when it is killed. */
	assert_ok(tmesh_cuda_reclaim(out.memory, 5 * SECOND, err));
	tmesh_region_unref(out.region);
	assert_ok(tmesh_cuda_region(out.memory, &out.region, err));
	opens(ask(&container, 's', "", out.region));
	container_kill(&container);
	tmesh_region_unref(region);
	standin_free(foreign);
	outside_close(&out);
	standin_set_up(words);
}

/* With another account a token gives no right. A region gives one, and so does the devices'
 * node. */
static void test_other_account(void **state)
{
	struct container container = container_start(NOBODY, NOTHING);
	struct outside out;

	outside_open(&out);
	refused(ask(&container, 't', out.text, NULL), -ENOENT, OTHERS_TOKEN);
	refused(ask(&container, 's', "", out.region), -EPERM,
		"cuMemImportFromShareableHandle: CUDA_ERROR_NOT_PERMITTED");
	assert_int_equal(chmod(node, 0666), 0);
	opens(ask(&container, 's', "", out.region));
	assert_int_equal(chmod(node, 0600), 0);
	container_kill(&container);
	outside_close(&out);
}

static void test_without_devices(void **state)
{
	struct container container = container_start(geteuid(), NODE);
	struct outside out;

	outside_open(&out);
	refused(ask(&container, 't', out.text, NULL), -ENODEV, "cuInit: CUDA_ERROR_NO_DEVICE");
	container_kill(&container);
	outside_close(&out);
}

/* Tokens lead to a directory that the container does not have. */
static void test_without_directory(void **state)
{
	struct container container = container_start(geteuid(), RUNTIME_DIR);
	struct outside out;

	outside_open(&out);
	refused(ask(&container, 't', out.text, NULL), -ENOENT, OTHERS_TOKEN);
	opens(ask(&container, 's', "", out.region));
	container_kill(&container);
	outside_close(&out);
}

#define container_test(f)                            \
	{                                            \
		"stand-in: " #f, f, NULL, NULL, NULL \
	}

static int skipped(const char *test, const char *why)
{
	printf("1..1\nok 1 - stand-in: %s # SKIP %s\n", test, why);
	return 0;
}

static int run(void)
{
	const struct CMUnitTest others[] = {
		container_test(test_other_account),
	};
	const struct CMUnitTest tests[] = {
		container_test(test_same_account),
		container_test(test_without_order),
		container_test(test_without_devices),
		container_test(test_without_directory),
	};
	struct container container;
	char why[128];
	int failed;

	if (!container_make(&container, geteuid(), NOTHING, why))
		return skipped("a consumer in a container, which cannot be made here", why);
	container_kill(&container);
	failed = cmocka_run_group_tests_name("cuda container", tests, NULL, NULL);
	if (geteuid())
		return failed + skipped("test_other_account", "not root: no other user to be");
	return failed + cmocka_run_group_tests_name("cuda container of others", others, NULL, NULL);
}

int main(void)
{
	int fd, failed;

	/* Make a directory that all may enter, with a node that root may open. */
	if (!mkdtemp(node_dir) || chmod(node_dir, 0755))
		return 1;
	snprintf(node, sizeof(node), "%s/gpu", node_dir);
	fd = open(node, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	close(fd);
	snprintf(words, sizeof(words), "node=%s", node);
	setenv("TMESH_STANDIN", words, 1);
	failed = run();
	unlink(node);
	rmdir(node_dir);
	return failed;
}
