// SPDX-License-Identifier: MIT
/*
 * An engine that attacks its user from inside (evil_engine.c), one case for each kind of call:
 * confined it reaches nothing, and all that was attacked is as before. Without confinement the same
 * attacks succeed, where this machine lets its user do such a thing at all.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "evil.h"
#include "served.h"

#define SECRET "what no client may know"
#define VARIABLE "TOP_SECRET_OF_THE_USER"
#define INHERITED 77
/* It is named as a producer's socket, and leads to another. */
#define LINK "00112233445566778899aabbccddee77"
#define REFUSED 78
#define NOT_TAKEN 126 /* this machine does not let go of it */

/* Whether an attack succeeds without confinement. */
enum expect {
	DONE,	 /* always */
	BY_ROOT, /* as root, who is not kept from it by Yama or a sysctl */
	PERHAPS, /* it depends on the kernel */
	NEVER,	 /* tmesh-engine never leaves it to an engine */
};

struct attack {
	const char *name, *on;
	enum expect expect;
};

/* Words beginning with @ are victims. */
static const struct attack attacks[] = {
	{"read_file", "@secret", DONE},
	{"write_file", "@secret", DONE},
	{"write_file", "@model", DONE},
	{"write_file", "/dev/null", DONE},
	{"truncate_by_open", "@secret", DONE},
	{"truncate_by_open", "@model", DONE},
	{"create_file", "@home", DONE},
	{"create_file", "@models", DONE},
	{"create_file", "@runtime", DONE},
	{"create_file", "@own", DONE},
	{"make_nameless", "@home", PERHAPS},
	{"truncate_path", "@secret", DONE},
	{"truncate_path", "@lock", DONE},
	{"unlink_path", "@secret", DONE},
	{"unlink_path", "@socket", DONE},
	{"rename_path", "@secret", DONE},
	{"rename_path", "@socket", DONE},
	{"link_path", "@secret", DONE},
	{"symlink_path", "@secret", DONE},
	{"symlink_path", "@socket", DONE},
	{"make_folder", "@secret", DONE},
	{"make_node", "@secret", DONE},
	{"change_mode", "@secret", DONE},
	{"change_mode", "@model", DONE},
	{"change_mode_by_fd", "@model", DONE},
	{"change_mode_anew", "@secret", PERHAPS},
	{"change_owner", "@secret", DONE},
	{"change_times", "@secret", DONE},
	{"change_old_times", "@secret", DONE},
	{"set_attribute", "@secret", PERHAPS},
	{"lock_file", "@model", DONE},
	{"watch_folder", "@home", DONE},
	{"name_by_handle", "@secret", PERHAPS},
	{"connect_stream", "@agent", DONE},
	{"connect_datagram", "@notify", DONE},
	{"connect_abstract", "@abstract", DONE},
	{"send_by_pair", "@notify", DONE},
	{"send_by_own_pair", "@notify", DONE},
	{"connect_tcp", "@port", DONE},
	{"open_netlink", "", DONE},
	{"bind_socket", "@socket", DONE},
	{"ask_for_socket", "engine-other", NEVER},
	{"ask_for_socket", LINK, NEVER},
	{"overwrite_segment", "@key", DONE},
	{"leave_segment", "", DONE},
	{"read_queue", "@key", DONE},
	{"take_semaphore", "@key", DONE},
	{"open_posix_queue", "@queue", PERHAPS},
	{"signal_other", "@pid", DONE},
	{"signal_thread", "@pid", DONE},
	{"signal_by_thread", "@pid", DONE},
	{"queue_signal", "@pid", DONE},
	{"signal_group", "", DONE},
	{"signal_by_owner", "@pid", DONE},
	{"trace", "@pid", BY_ROOT},
	{"read_memory", "@pid @address", BY_ROOT},
	{"write_memory", "@pid @address", BY_ROOT},
	{"open_of_process", "@pid environ", DONE},
	{"open_of_process", "@pid mem", BY_ROOT},
	{"open_of_process", "@pid maps", DONE},
	{"open_of_process", "@supervisor environ", DONE},
	{"take_descriptor", "@pid", BY_ROOT},
	{"move_to_core", "@pid", DONE},
	{"schedule", "@pid", DONE},
	{"schedule_anew", "@pid", DONE},
	{"renice", "@pid", DONE},
	{"renice_io", "@pid", DONE},
	{"limit_other", "@pid", DONE},
	{"join_group", "", DONE},
	{"ignore_end", "", DONE},
	{"leave_session", "", PERHAPS},
	{"start_process", "", DONE},
	{"start_by_clone3", "", DONE},
	{"start_program", "/bin/true", DONE},
	{"use_io_uring", "", PERHAPS},
	{"use_userfaults", "", PERHAPS},
	{"use_bpf", "", PERHAPS},
	{"use_perf", "", PERHAPS},
	{"use_keys", "", PERHAPS},
	{"add_key", "", PERHAPS},
	{"change_namespace", "", PERHAPS},
	{"mount_over", "@mount", BY_ROOT},
	{"mount_anew", "", BY_ROOT},
	{"clone_tree", "@home", BY_ROOT},
	{"list_mounts", "", PERHAPS},
	{"change_personality", "", DONE},
	{"hide_memory", "", PERHAPS},
	{"type_into_terminal", "", PERHAPS},
	{"read_inherited", "77", NEVER},
	{"read_from_error", "", NEVER},
	{"read_variable", VARIABLE, DONE},
	{"use_capabilities", "", BY_ROOT},
};

#define COUNT (sizeof(attacks) / sizeof(*attacks))

static volatile char victims_byte = 'v';
static bool confined;
static uint32_t first_pid; /* of the engine */

struct victims {
	struct tmesh_ctx *ctx;
	struct tmesh_engine_context *context;
	char home[64], secret[80], agent[80], notify[80], mount[80], model[80], models[64];
	char runtime[200], lock[224], socket[224], link[240], own[224], abstract[48], queue[48];
	int sockets[5];
	uint16_t port;
	key_t key;
	int segment, messages, semaphore;
	mqd_t posix;
	pid_t pid;
	char *data;
	struct stat before[5];
};

static int listen_at(int type, const char *path, bool abstract)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	size_t size = sizeof(address);

	snprintf(address.sun_path + abstract, sizeof(address.sun_path) - abstract, "%s", path);
	if (abstract)
		size = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, (socklen_t)size), 0);
	if (type != SOCK_DGRAM)
		assert_int_equal(listen(fd, 4), 0);
	return fd;
}

static int listen_tcp(uint16_t *port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(address);

	assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
	*port = ntohs(address.sin_port);
	return fd;
}

static void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void fill_paths(struct victims *own)
{
	snprintf(own->home, sizeof(own->home), "%s/home", folder);
	snprintf(own->models, sizeof(own->models), "%s/models", folder);
	snprintf(own->secret, sizeof(own->secret), "%s/secret", own->home);
	snprintf(own->agent, sizeof(own->agent), "%s/agent", own->home);
	snprintf(own->notify, sizeof(own->notify), "%s/notify", own->home);
	snprintf(own->mount, sizeof(own->mount), "%s/mount", own->home);
	snprintf(own->model, sizeof(own->model), "%s/model", own->models);
	snprintf(own->runtime, sizeof(own->runtime), "%s", getenv("TMESH_RUNTIME_DIR"));
	snprintf(own->socket, sizeof(own->socket), "%s/engine-other", own->runtime);
	snprintf(own->link, sizeof(own->link), "%s/%s", own->runtime, LINK);
	snprintf(own->lock, sizeof(own->lock), "%s/engine-other.lock", own->runtime);
	snprintf(own->own, sizeof(own->own), "%s/engine-unit.d", own->runtime);
	snprintf(own->abstract, sizeof(own->abstract), "tmesh-evil-%d", (int)getpid());
	snprintf(own->queue, sizeof(own->queue), "/tmesh-evil-%d", (int)getpid());
	own->key = (key_t)(0x54000000 | getpid());
}

static void make_objects(struct victims *own)
{
	struct {
		long type;
		char text[8];
	} message = {.type = 1};

	own->segment = shmget(own->key, 4096, IPC_CREAT | 0600);
	own->data = shmat(own->segment, NULL, 0);
	strcpy(own->data, SECRET);
	own->messages = msgget(own->key, IPC_CREAT | 0600);
	assert_int_equal(msgsnd(own->messages, &message, sizeof(message.text), IPC_NOWAIT), 0);
	own->semaphore = semget(own->key, 1, IPC_CREAT | 0600);
	assert_int_equal(semctl(own->semaphore, 0, SETVAL, 1), 0);
	own->posix = mq_open(own->queue, O_RDWR | O_CREAT, 0600, NULL);
	own->pid = fork();
	if (own->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		pause();
}

static const char *files_of_victims(const struct victims *own, int i)
{
	const char *const files[] = {own->secret, own->model, own->lock, own->home, own->socket};

	return i < 5 ? files[i] : NULL;
}

static int set_up(void **state)
{
	const struct attack *attack = *state;
	struct victims *own = calloc(1, sizeof(*own));

	fill_paths(own);
	mkdir(own->home, 0700);
	mkdir(own->mount, 0700);
	write_to(own->secret, SECRET);
	write_to(own->model, SECRET);
	write_to(own->lock, SECRET);
	own->sockets[0] = listen_at(SOCK_STREAM, own->agent, false);
	own->sockets[1] = listen_at(SOCK_DGRAM, own->notify, false);
	own->sockets[2] = listen_at(SOCK_STREAM, own->abstract, true);
	own->sockets[3] = listen_at(SOCK_SEQPACKET, own->socket, false);
	own->sockets[4] = listen_tcp(&own->port);
	assert_int_equal(symlink("engine-other", own->link), 0);
	make_objects(own);
	assert_ok(tmesh_ctx_open(NULL, &own->ctx, err));
	assert_ok(tmesh_engine_connect(own->ctx, "unit", NULL, &own->context, err));
	*state = (void *[]){own, (void *)attack};
	*state = memcpy(malloc(2 * sizeof(void *)), *state, 2 * sizeof(void *));
	return 0;
}

static int tear_down(void **state)
{
	struct victims *own = ((void **)*state)[0];
	char command[1200];

	free(*state);
	tmesh_engine_context_unref(own->context);
	tmesh_ctx_unref(own->ctx);
	kill(own->pid, SIGKILL);
	waitpid(own->pid, NULL, 0);
	for (int i = 0; i < 5; i++)
		close(own->sockets[i]);
	shmdt(own->data);
	shmctl(own->segment, IPC_RMID, NULL);
	msgctl(own->messages, IPC_RMID, NULL);
	semctl(own->semaphore, 0, IPC_RMID);
	if (own->posix != (mqd_t)-1)
		mq_close(own->posix);
	mq_unlink(own->queue);
	umount2(own->mount, MNT_DETACH);
	unlink(own->link);
	snprintf(command, sizeof(command), "rm -rf %s %s/made %s* %s/made %s/made", own->home,
		 own->runtime, own->socket, own->own, own->models);
	free(own);
	return system(command);
}

/* The words of an attack, with victims for names. */
static void write_words(const struct victims *own, const char *on, char *out, size_t size)
{
	char words[128], *word, *save;

	*out = '\0';
	snprintf(words, sizeof(words), "%s", on);
	for (word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		const struct {
			const char *name, *path;
		} all[] = {
			{"@secret", own->secret},   {"@model", own->model},
			{"@home", own->home},	    {"@models", own->models},
			{"@lock", own->lock},	    {"@socket", own->socket},
			{"@agent", own->agent},	    {"@notify", own->notify},
			{"@mount", own->mount},	    {"@abstract", own->abstract},
			{"@queue", own->queue},	    {"@own", own->own},
			{"@runtime", own->runtime},
		};
		const struct {
			const char *name;
			unsigned long value;
		} numbers[] = {{"@port", own->port},
			       {"@key", (unsigned long)own->key},
			       {"@pid", (unsigned long)own->pid},
			       {"@supervisor", (unsigned long)supervisor},
			       {"@address", (unsigned long)&victims_byte}};
		char number[32];

		for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
			if (!strcmp(word, all[i].name))
				word = (char *)all[i].path;
		for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
			if (!strcmp(word, numbers[i].name)) {
				snprintf(number, sizeof(number), "%lu", numbers[i].value);
				word = number;
			}
		strncat(out, " ", size - strlen(out) - 1);
		strncat(out, word, size - strlen(out) - 1);
	}
}

static void look(struct victims *own)
{
	for (int i = 0; i < 5; i++)
		assert_int_equal(lstat(files_of_victims(own, i), &own->before[i]), 0);
}

static void assert_untouched(const struct victims *own)
{
	struct msqid_ds messages;
	struct rlimit limit;
	struct stat now;
	cpu_set_t set;

	for (int i = 0; i < 5; i++) {
		const struct stat *before = &own->before[i];

		assert_int_equal(lstat(files_of_victims(own, i), &now), 0);
		assert_int_equal(now.st_ino, before->st_ino);
		assert_int_equal(now.st_mode, before->st_mode);
		assert_int_equal(now.st_nlink, before->st_nlink);
		assert_int_equal(now.st_size, before->st_size);
		assert_memory_equal(&now.st_mtim, &before->st_mtim, sizeof(now.st_mtim));
		assert_memory_equal(&now.st_ctim, &before->st_ctim, sizeof(now.st_ctim));
	}
	for (int i = 0; i < 5; i++)
		assert_int_equal(recv(own->sockets[i], &now, 1, MSG_DONTWAIT), -1);
	assert_string_equal(own->data, SECRET);
	assert_int_equal(msgctl(own->messages, IPC_STAT, &messages), 0);
	assert_int_equal(messages.msg_qnum, 1);
	assert_int_equal(semctl(own->semaphore, 0, GETVAL), 1);
	assert_int_equal(getpriority(PRIO_PROCESS, (id_t)own->pid), getpriority(PRIO_PROCESS, 0));
	assert_int_equal(sched_getscheduler(own->pid), sched_getscheduler(0));
	assert_int_equal(sched_getaffinity(own->pid, sizeof(set), &set), 0);
	assert_int_equal(CPU_COUNT(&set), sysconf(_SC_NPROCESSORS_ONLN));
	assert_int_equal(prlimit(own->pid, RLIMIT_NOFILE, NULL, &limit), 0);
	assert_int_not_equal(limit.rlim_cur, 64);
	assert_int_equal(kill(own->pid, 0), 0);
}

static void test_attack(void **state)
{
	struct victims *own = ((void **)*state)[0];
	const struct attack *attack = ((void **)*state)[1];
	struct tmesh_engine_graph *graph;
	struct tmesh_error error = {0};
	char words[512], text[640];
	bool done;
	int rc;

	write_words(own, attack->on, words, sizeof(words));
	snprintf(text, sizeof(text), "%s%s\n", attack->name, words);
	look(own);
	rc = tmesh_engine_graph_open(own->context, file("attack", text), NULL, &graph, &error);
	/* A process that has become another program says nothing. */
	done = rc == -EIO || rc == -EPIPE;
	if (!done && rc != -EACCES)
		fail_msg("%s: %d, %s", attack->name, rc, error.message);
	if (confined) {
		if (done)
			fail_msg("%s%s: %s", attack->name, words, error.message);
		assert_untouched(own);
		assert_int_equal(tmesh_engine_context_pid(own->context), first_pid);
		return;
	}
	if (attack->expect == DONE || (attack->expect == BY_ROOT && !geteuid())) {
		if (!done)
			fail_msg("%s%s: %s", attack->name, words, error.message);
	} else if (attack->expect == NEVER) {
		assert_false(done);
	} else if (!done) {
		printf("# %s%s: not even without confinement\n", attack->name, words);
	}
}

static int serve_evil(void **state)
{
	char models[64], errors[64], line[256];
	char *argv[] = {(char *)"tmesh-engine",
			(char *)"--engine=evil",
			(char *)"--limit=600",
			(char *)"--with-input",
			(char *)"--models",
			models,
			(char *)"unit",
			confined ? NULL : (char *)"--unconfined",
			NULL};
	int saved = dup(STDERR_FILENO), fd, other;
	struct tmesh_engine_context *context;
	struct tmesh_ctx *ctx;

	snprintf(models, sizeof(models), "%s/models", folder);
	snprintf(errors, sizeof(errors), "%s/errors", folder);
	/* Descriptors that the program is started with; one that can be read as standard error. */
	fd = open(errors, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	other = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	dup2(other, INHERITED);
	close(other);
	dup2(fd, STDERR_FILENO);
	close(fd);
	setenv(VARIABLE, "1", 1);
	supervisor = run_program(argv, &input, line, sizeof(line));
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(INHERITED);
	if (strcmp(line, "ready unit\n") != 0) {
		printf("# %s", line);
		return 1;
	}
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_engine_connect(ctx, "unit", NULL, &context, err));
	first_pid = tmesh_engine_context_pid(context);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	return 0;
}

static int run_attacks(const char *name)
{
	static char names[COUNT][64];
	static struct CMUnitTest tests[COUNT];

	for (size_t i = 0; i < COUNT; i++) {
		snprintf(names[i], sizeof(names[i]), "%s %s", attacks[i].name, attacks[i].on);
		tests[i] = (struct CMUnitTest){.name = names[i],
					       .test_func = test_attack,
					       .setup_func = set_up,
					       .teardown_func = tear_down,
					       .initial_state = (void *)&attacks[i]};
	}
	return cmocka_run_group_tests_name(name, tests, serve_evil, unserve);
}

/* In a child: the system call @number does not exist, with @argument as its first where that is not
 * -1. */
static void take_call(int number, int argument)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)number, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)argument, 0, argument != -1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(*code), .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(NOT_TAKEN);
}

static void take_landlock(void)
{
	take_call(SYS_landlock_create_ruleset, -1);
}

static void take_seccomp(void)
{
	take_call(SYS_seccomp, -1);
}

static void take_proc(void)
{
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/proc", "tmpfs", 0, NULL))
		_exit(NOT_TAKEN);
}

/* The program's exit status, and its first words. */
static int run_without(void (*take)(void), bool unconfined, char *line, size_t size)
{
	char *argv[] = {(char *)"tmesh-engine",
			(char *)"--engine=evil",
			(char *)"--with-input",
			(char *)"without",
			unconfined ? (char *)"--unconfined" : NULL,
			NULL};
	int out[2], in[2], status;
	ssize_t got;
	pid_t pid;

	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		take();
		execv(getenv("TMESH_ENGINE_PROGRAM"), argv);
		_exit(127);
	}
	close(out[1]);
	close(in[0]);
	got = read(out[0], line, size - 1);
	line[got > 0 ? got : 0] = '\0';
	close(out[0]);
	close(in[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* The program names what is missing, and serves nothing unconfined without --unconfined. */
static void test_refused(void **state)
{
	const struct {
		void (*take)(void);
		const char *named;
	} cases[] = {{take_landlock, "Landlock"}, {take_seccomp, "seccomp"}, {take_proc, "/proc"}};
	char line[256];
	int status;
#if defined(__SANITIZE_ADDRESS__)
	bool mounts = false; /* its search for leaks needs /proc */
#else
	bool mounts = !geteuid();
#endif

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (cases[i].take == take_proc && !mounts)
			continue;
		status = run_without(cases[i].take, false, line, sizeof(line));
		if (status == NOT_TAKEN && cases[i].take == take_proc) {
			printf("# no mounts of its own can be had here: not tried without /proc\n");
			continue;
		}
		assert_int_equal(status, REFUSED);
		assert_non_null(strstr(line, cases[i].named));
		assert_non_null(strstr(line, "--unconfined"));
		if (cases[i].take == take_proc)
			continue;
		assert_int_equal(run_without(cases[i].take, true, line, sizeof(line)), 0);
		assert_string_equal(line, "ready without\n");
	}
}

/* Return the exit status of --check, whose line doctor shows. */
static int can_confine(void)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		execl(getenv("TMESH_ENGINE_PROGRAM"), "tmesh-engine", "--check", NULL);
		_exit(127);
	}
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* It lies in a folder of its own. */
static int find_evil(void)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/evil", getenv("TMESH_ENGINE_PATH"));
	return setenv("TMESH_ENGINE_PATH", path, 1);
}

int main(void)
{
	const struct CMUnitTest refused[] = {TEST(test_refused)};
	int failed = 0, check;

	if (make_folder() || find_evil())
		return 1;
	fflush(stdout);
	check = can_confine();
	confined = true;
	if (check == 0)
		failed = run_attacks("attacks");
	else if (check == REFUSED)
		printf("# the lines above name the rest\n");
	else
		failed = 1;
	failed += cmocka_run_group_tests_name("attacks, refused", refused, NULL, NULL);
	confined = false;
	failed += run_attacks("attacks, unconfined");
	return remove_folder() || failed;
}
