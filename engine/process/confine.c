// SPDX-License-Identifier: MIT
/*
 * Landlock: from here on this process and its threads open nothing but models below the folders
 * that were named, start no program, open no TCP connection and send no signal out. What it has
 * open already, memory that clients hand over, and sockets of their tokens stay as they are.
 */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine_internal.h"
#include "process.h"

/* Of the kernel's ABI (linux/landlock.h); this compiler's header may be older than the kernel that
 * it runs on. */
#define FS_EXECUTE (1ull << 0)
#define FS_WRITE_FILE (1ull << 1)
#define FS_READ_FILE (1ull << 2)
#define FS_READ_DIR (1ull << 3)
#define FS_ALL_V1 ((1ull << 13) - 1)
#define FS_REFER (1ull << 13)		      /* ABI 2 */
#define FS_TRUNCATE (1ull << 14)	      /* ABI 3 */
#define NET_ALL ((1ull << 0) | (1ull << 1))   /* ABI 4 */
#define FS_IOCTL_DEV (1ull << 15)	      /* ABI 5 */
#define SCOPE_ALL ((1ull << 0) | (1ull << 1)) /* ABI 6 */

/* Rules are each thread's own, and those that it starts have them too. */
static bool alone(void)
{
	DIR *dir = opendir("/proc/self/task");
	int count = 0;

	while (dir && readdir(dir))
		count++;
	if (dir)
		closedir(dir);
	return count == 3; /* with . and .. */
}

struct ruleset {
	uint64_t fs, net, scoped;
};

static int allow(int ruleset, int fd, uint64_t access)
{
	struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};
	struct stat st;

	if (fstat(fd, &st))
		return -1;
	/* What only folders can be asked for is refused for a file. */
	if (!S_ISDIR(st.st_mode))
		rule.allowed_access &=
			FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV;
	return (int)syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
}

static int allow_path(int ruleset, const char *path, uint64_t access, bool needed,
		      struct tmesh_error *err)
{
	int fd = open(path, O_PATH | O_CLOEXEC), rc = 0;

	if (fd < 0)
		return needed ? tmesh_fail_errno(err, path) : 0;
	if (allow(ruleset, fd, access))
		rc = tmesh_fail_errno(err, path);
	close(fd);
	return rc;
}

/* Its own tokens have their sockets there. */
static int allow_runtime(int ruleset, struct tmesh_ctx *ctx, uint64_t access,
			 struct tmesh_error *err)
{
	int dir, rc = tmesh_ctx_runtime_dir(ctx, &dir, err);

	if (rc)
		return rc;
	if (allow(ruleset, dir, access))
		rc = tmesh_fail_errno(err, "letting the engine into the runtime directory");
	close(dir);
	return rc;
}

/* What every program of the system may read, and libraries need: nothing there is a user's. */
static const char *const system_files[] = {
	"/usr",		"/lib",		"/lib64",	  "/etc/ld.so.cache", "/dev/null",
	"/dev/urandom", "/proc/self",	"/proc/cpuinfo",  "/proc/meminfo",    "/proc/stat",
	"/proc/sys",	"/sys/devices", "/sys/fs/cgroup",
};

/* The folder of a file, such as a library, which may load others from beside it. */
static int allow_folder_of(int ruleset, const char *path, struct tmesh_error *err)
{
	char folder[PATH_MAX], *slash = NULL;

	if (path && realpath(path, folder))
		slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return 0;
	*slash = '\0';
	return allow_path(ruleset, folder, FS_READ_FILE | FS_READ_DIR, false, err);
}

struct rules {
	int ruleset, rc;
	struct tmesh_error *err;
};

static bool allow_plugins(const char *folder, void *data)
{
	struct rules *rules = data;

	rules->rc =
		allow_path(rules->ruleset, folder, FS_READ_FILE | FS_READ_DIR, false, rules->err);
	return rules->rc;
}

/* The engine's own, and the plug-in's. */
static int allow_libraries(int ruleset, const struct options *options, struct tmesh_error *err)
{
	struct rules rules = {.ruleset = ruleset, .err = err};
	int rc = allow_folder_of(ruleset, options->library, err);

	if (!rc)
		rc = allow_folder_of(ruleset, secure_getenv("TMESH_ONNXRUNTIME"), err);
	if (!rc)
		rc = allow_folder_of(ruleset, secure_getenv("TMESH_GGML"), err);
	if (!rc)
		rc = allow_folder_of(ruleset, "/proc/self/exe", err);
	if (!rc)
		engine_plugin_folders(allow_plugins, &rules);
	return rc ? rc : rules.rc;
}

static int add_rules(int ruleset, uint64_t all, const struct options *options,
		     struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	int rc = allow_runtime(ruleset, ctx, all & ~FS_EXECUTE, err);

	for (size_t i = 0; !rc && i < options->folder_count; i++)
		rc = allow_path(ruleset, options->folders[i], FS_READ_FILE | FS_READ_DIR, true,
				err);
	for (size_t i = 0; !rc && i < sizeof(system_files) / sizeof(*system_files); i++)
		rc = allow_path(ruleset, system_files[i], FS_READ_FILE | FS_READ_DIR, false, err);
	if (!rc)
		rc = allow_libraries(ruleset, options, err);
	if (!rc)
		rc = allow_path(ruleset, "/dev/tmesh",
				(FS_READ_FILE | FS_WRITE_FILE | FS_IOCTL_DEV) & all, false, err);
	return rc;
}

int confine(const struct options *options, struct tmesh_ctx *ctx, const char **why,
	    struct tmesh_error *err)
{
	int abi =
		(int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	struct ruleset attr = {.fs = FS_ALL_V1};
	size_t size = sizeof(attr.fs);
	int ruleset, rc;

	*why = NULL;
	if (abi < 1) {
		*why = "this kernel has no Landlock: the engine can open every file of its user";
		return 0;
	}
	if (!alone()) {
		*why = "threads run already, which no rules would bind: the engine can open every "
		       "file "
		       "of its user";
		return 0;
	}
	if (abi >= 2)
		attr.fs |= FS_REFER;
	if (abi >= 3)
		attr.fs |= FS_TRUNCATE;
	if (abi >= 4) {
		attr.net = NET_ALL;
		size += sizeof(attr.net);
	}
	if (abi >= 5)
		attr.fs |= FS_IOCTL_DEV;
	if (abi >= 6) {
		attr.scoped = SCOPE_ALL;
		size += sizeof(attr.scoped);
	}
	ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, size, 0);
	if (ruleset < 0)
		return tmesh_fail_errno(err, "confining the engine by Landlock");
	rc = add_rules(ruleset, attr.fs, options, ctx, err);
	if (!rc && syscall(SYS_landlock_restrict_self, ruleset, 0))
		rc = tmesh_fail_errno(err, "confining the engine by Landlock");
	close(ruleset);
	return rc;
}
