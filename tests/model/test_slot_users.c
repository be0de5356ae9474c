// SPDX-License-Identifier: MIT
/*
 * Another user's processes and a slot. They may know, or have got hold of, its token, its name, its
 * files and its listening. They learn nothing, and its own user's readers go on. Needs root, who
 * can become another user.
 */
#include <grp.h>
#include <poll.h>
#include <tmesh/slot.h>

#include "shared/listener.h"
#include "unit.h"

#define NOBODY 65534
#define NAME "slot of the first user"
#define NAME_FILE "slot-slot%20of%20the%20first%20user"
#define WAIT_MS 60000

static char own_dir[256], elsewhere[] = "/tmp/tmesh-slot-users-XXXXXX";
static struct tmesh_ctx *ctx;
static struct tmesh_slot *slot;
static struct tmesh_slot_reader *reader;
static char token[TMESH_TOKEN_SIZE], ref[4096];
static int listening;
static uint64_t generation;

/* As an exit status, of which one byte is left. */
#define CHECK_HERE(condition)                      \
	do {                                       \
		if (!(condition))                  \
			return __LINE__ % 254 + 1; \
	} while (0)

static void publish(void)
{
	const int64_t shape[] = {1};
	struct tmesh_bundle_entry entry = {.name = "w"};
	struct tmesh_bundle *bundle;
	uint64_t word = generation + 1;

	assert_ok(tmesh_tensor_put(ctx, TMESH_UINT64, 1, shape, &word, NULL, &entry.tensor, err));
	assert_ok(tmesh_bundle_create(ctx, &entry, 1, NULL, &bundle, err));
	assert_ok(tmesh_slot_publish(slot, bundle, &generation, err));
	assert_ok(tmesh_bundle_ref_encode(bundle, TMESH_READ, ref, sizeof(ref), err));
	tmesh_bundle_unref(bundle);
	tmesh_tensor_unref(entry.tensor);
}

static void assert_works(void)
{
	struct tmesh_slot_value *value;

	publish();
	assert_ok(tmesh_slot_read(reader, &value, err));
	assert_int_equal(tmesh_slot_value_generation(value), generation);
}

static struct tmesh_ctx *context_in(const char *dir)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .runtime_dir = dir};
	struct tmesh_ctx *it;

	return tmesh_ctx_open(&opts, &it, NULL) ? NULL : it;
}

/* The result of @act, done by another user's process in a context that was opened before: 0, or the
 * line of the failed check. */
static void assert_as_nobody(const char *dir, int (*act)(struct tmesh_ctx *its))
{
	pid_t pid = fork();

	if (!pid) {
		struct tmesh_ctx *its;

		setenv("TMESH_RUNTIME_DIR", dir, 1);
		its = context_in(dir);
		if (!its || setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY))
			_exit(255);
		_exit(act(its));
	}
	join_child(pid);
	assert_works();
}

/* The other process knows token, name and the bundle's ref, and they lead nowhere. */
static int try_calls(struct tmesh_ctx *its)
{
	struct tmesh_slot_reader *out = NULL;
	struct tmesh_bundle *bundle = NULL;
	int rc;

	CHECK_HERE(tmesh_slot_open(its, token, &out, NULL) == -ENOENT);
	rc = tmesh_slot_open_named(its, NAME, &out, NULL);
	CHECK_HERE(rc == -ENOENT || rc == -EACCES);
	CHECK_HERE(tmesh_bundle_open(its, ref, strlen(ref), TMESH_READ, &bundle, NULL) == -ENOENT);
	CHECK_HERE(!out && !bundle);
	return 0;
}

static int try_files(struct tmesh_ctx *its)
{
	char path[600];

	snprintf(path, sizeof(path), "%s/%s", own_dir, NAME_FILE);
	CHECK_HERE(open(path, O_RDONLY) < 0 && errno == EACCES);
	CHECK_HERE(access(path, F_OK) && errno == EACCES);
	snprintf(path, sizeof(path), "%s/%.32s", own_dir, token + 5);
	CHECK_HERE(access(path, F_OK) && errno == EACCES);
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)getppid());
	CHECK_HERE(!opendir(path));
	return 0;
}

UNIT(test_kept_out)
{
	char path[300];

	assert_as_nobody(own_dir, try_files);
	assert_as_nobody(own_dir, try_calls);
	snprintf(path, sizeof(path), "%s/own", elsewhere);
	assert_as_nobody(path, try_calls);
}

/* The directory keeps others out. Here all that lies there lies where all may go, and is theirs to
 * open as far as its modes are: its owners refuse them themselves. */
UNIT(test_links)
{
	DIR *list = opendir(own_dir);
	struct dirent *entry;
	unsigned int linked = 0;
	char path[600];

	while ((entry = readdir(list))) {
		struct stat st;

		snprintf(path, sizeof(path), "%s/%s", elsewhere, entry->d_name);
		if (linkat(dirfd(list), entry->d_name, AT_FDCWD, path, 0))
			continue;
		linked += strcmp(entry->d_name, NAME_FILE) == 0;
		linked += strncmp(entry->d_name, token + 5, 32) == 0 && strlen(entry->d_name) == 32;
		if (!lstat(path, &st) && S_ISSOCK(st.st_mode))
			assert_int_equal(chmod(path, 0777), 0);
	}
	closedir(list);
	assert_int_equal(linked, 2);
	assert_as_nobody(elsewhere, try_calls);
}

/* A process with the listening's descriptor may bring a socket of its own there: the publisher
 * closes it, and nothing comes. */
static int try_lobby(struct tmesh_ctx *its)
{
	const uint32_t connect_word = 0x4e304d54u;

	for (int i = 0; i < 100; i++) {
		struct pollfd at = {.events = POLLIN};
		char words[64];
		int ends[2], came;

		CHECK_HERE(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
		CHECK_HERE(!model_socket_send(listening, &connect_word, sizeof(connect_word),
					      ends[1]));
		close(ends[1]);
		at.fd = ends[0];
		CHECK_HERE(poll(&at, 1, WAIT_MS) == 1);
		CHECK_HERE(model_socket_recv(ends[0], words, sizeof(words), &came) <= 0);
		close(ends[0]);
	}
	return 0;
}

UNIT(test_lobby)
{
	const struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_region *card;
	struct tmesh_ctx *home;

	assert_ok(tmesh_ctx_open(&opts, &home, err));
	assert_ok(tmesh_region_open(home, token, TMESH_READ | TMESH_WRITE, &card, err));
	assert_ok(tmesh_region_opaque_fd(card, &listening, err));
	assert_as_nobody(elsewhere, try_lobby);
	close(listening);
	tmesh_region_unref(card);
	tmesh_ctx_unref(home);
}

static int setup(void **state)
{
	struct tmesh_slot_opts opts = {.size = sizeof(opts), .name = NAME};

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_slot_create(ctx, &opts, &slot, err));
	assert_ok(tmesh_slot_token(slot, token, err));
	assert_ok(tmesh_slot_open_named(ctx, NAME, &reader, err));
	assert_works();
	return 0;
}

static int teardown(void **state)
{
	tmesh_slot_close(reader);
	tmesh_slot_unref(slot);
	tmesh_ctx_unref(ctx);
	return 0;
}

int main(void)
{
	char command[64];
	int failed;

	if (geteuid())
		return UNIT_SKIP_ALL("only root can be another user, too");
	if (!mkdtemp(elsewhere) || chmod(elsewhere, 0777))
		return 1;
	snprintf(own_dir, sizeof(own_dir), "%s", unit_runtime_dir());
	failed = UNIT_RUN("slot users", setup, teardown);
	snprintf(command, sizeof(command), "rm -rf %s", elsewhere);
	return system(command) || failed;
}
