// SPDX-License-Identifier: MIT
/*
 * Models and the limit of a real control group, of version 1 or 2: a load that exceeds it is
 * refused, where the kernel would kill the loader.
 */
#include <sched.h>
#include <sys/mount.h>
#include <tmesh/model.h>

#include "unit.h"

#define MIB (1 << 20)
#define MODEL_MIB 64

static char folder[] = "/tmp/tmesh-room-XXXXXX";
static char group[128], name[32], model_path[64];
static bool second; /* the version of control groups that has memory */

static bool put(const char *file, const char *text)
{
	char path[192];
	int fd, rc;

	snprintf(path, sizeof(path), "%s/%s", group, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	rc = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return rc;
}

static bool limit(int mib)
{
	char text[32];

	snprintf(text, sizeof(text), "%d", mib * MIB);
	return put(second ? "memory.max" : "memory.limit_in_bytes", text);
}

/* Return NULL, or why there is no group. Mounts are those of this process alone. */
static const char *make_group(void)
{
	static const char root[] = "/sys/fs/cgroup";

	if (geteuid())
		return "not root: only root limits a control group";
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return "no mounts of its own can be had here";
	second = access("/sys/fs/cgroup/memory/cgroup.procs", F_OK);
	if (second && access("/sys/fs/cgroup/cgroup.controllers", F_OK) &&
	    mount("cgroup2", root, "cgroup2", 0, NULL))
		return "no control groups are mounted, nor can they be";
	snprintf(name, sizeof(name), "/tmesh-room-%d", getpid());
	snprintf(group, sizeof(group), "%s", root);
	if (second)
		put("cgroup.subtree_control", "+memory");
	snprintf(group, sizeof(group), "%s%s%s", root, second ? "" : "/memory", name);
	if (mkdir(group, 0755))
		return "no control group can be made here";
	if (!limit(1024) || (second && !put("memory.swap.max", "0"))) {
		rmdir(group);
		return "control groups limit no memory here";
	}
	return NULL;
}

static void make_model(void)
{
	char header[256] = "";
	uint64_t length;
	FILE *file;

	snprintf(header + sizeof(length), sizeof(header) - sizeof(length),
		 "{\"w\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
		 MODEL_MIB * MIB, MODEL_MIB * MIB);
	length = strlen(header + sizeof(length));
	memcpy(header, &length, sizeof(length));
	snprintf(model_path, sizeof(model_path), "%s/w.safetensors", folder);
	file = fopen(model_path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(header, sizeof(length) + length, 1, file), 1);
	assert_int_equal(fflush(file), 0);
	assert_int_equal(
		ftruncate(fileno(file), (off_t)(sizeof(length) + length + MODEL_MIB * MIB)), 0);
	fclose(file);
}

/* Load the model in a process of the group. Return: a negative errno, or the signal that killed it;
 * the message is in @why. */
static int load(char *why, size_t size)
{
	const struct tmesh_ctx_opts memfd = {.size = sizeof(memfd), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = TMESH_MODEL_ALONE};
	int ends[2], status;
	ssize_t got;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (!pid) {
		struct tmesh_error error = {0};
		struct tmesh_model *model;
		struct tmesh_ctx *ctx;
		int rc = put("cgroup.procs", "0") ? 0 : -EPERM;

		if (!rc)
			rc = tmesh_ctx_open(&memfd, &ctx, &error);
		if (!rc)
			rc = tmesh_model_load(ctx, model_path, &opts, &model, &error);
		if (write(ends[1], error.message, strlen(error.message)) < 0)
			_exit(255);
		_exit(-rc);
	}
	close(ends[1]);
	got = read(ends[0], why, size - 1);
	why[got > 0 ? got : 0] = '\0';
	close(ends[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

UNIT(test_limit)
{
	char why[512], words[128];

	make_model();
	assert_true(limit(MODEL_MIB / 2));
	assert_int_equal(load(why, sizeof(why)), -ENOMEM);
	snprintf(words, sizeof(words), "the control group %s (%s 32 MiB) has room for", name,
		 second ? "memory.max" : "memory.limit_in_bytes");
	if (!strstr(why, words))
		print_message("# %s\n", why);
	assert_non_null(strstr(why, words));
	assert_true(limit(4 * MODEL_MIB));
	assert_int_equal(load(why, sizeof(why)), 0);
}

int main(void)
{
	const char *why = make_group();
	char remove[64];
	int failed;

	if (why)
		return UNIT_SKIP_ALL(why);
	if (!mkdtemp(folder))
		return 1;
	print_message("# control groups of version %d\n", second ? 2 : 1);
	failed = UNIT_RUN("tests", NULL, NULL);
	snprintf(remove, sizeof(remove), "rm -rf %s", folder);
	return system(remove) || rmdir(group) || failed;
}
