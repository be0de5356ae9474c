// SPDX-License-Identifier: MIT
/*
 * Landlock. The process may read the model folders that were named, the files of the engine's
 * libraries, and files that describe the system. It may open no other file, and none for writing.
 * In its own folder of the runtime directory it may make sockets, until filter.c forbids that. Open
 * descriptors, and memory that clients hand over, are not affected.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/landlock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine_internal.h"
#include "process.h"

/* Constants of the kernel (linux/landlock.h): the compiler's header may be older than the
 * kernel. */
#define FS_READ_FILE (1ull << 2)
#define FS_READ_DIR (1ull << 3)
#define FS_MAKE_SOCK (1ull << 9)
#define FS_ALL_V1 ((1ull << 13) - 1)
#define FS_REFER (1ull << 13)		      /* ABI 2 */
#define FS_TRUNCATE (1ull << 14)	      /* ABI 3 */
#define NET_ALL ((1ull << 0) | (1ull << 1))   /* ABI 4 */
#define FS_IOCTL_DEV (1ull << 15)	      /* ABI 5 */
#define SCOPE_ALL ((1ull << 0) | (1ull << 1)) /* ABI 6 */

#define READ (FS_READ_FILE | FS_READ_DIR)

struct ruleset {
	uint64_t fs, net, scoped;
};

int confine_abi(void)
{
	return (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
}

/* Return 1 if this process has one thread, 0 if more, -1 on error. Rules bind the calling thread
 * and the threads that it starts later, but not its siblings. */
static int alone(void)
{
	DIR *dir = opendir("/proc/self/task");
	int count = 0;

	if (!dir)
		return -1;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count == 3; /* with . and .. */
}

static int allow(int ruleset, int fd, uint64_t access)
{
	struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};
	struct stat st;

	if (fstat(fd, &st))
		return -1;
	/* The kernel refuses rights on folders for a file. */
	if (!S_ISDIR(st.st_mode))
		rule.allowed_access &= FS_READ_FILE;
	return (int)syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
}

static int allow_path(int ruleset, const char *path, bool needed, struct tmesh_error *err)
{
	int fd = open(path, O_PATH | O_CLOEXEC), rc = 0;

	if (fd < 0)
		return needed ? tmesh_fail_errno(err, path) : 0;
	if (allow(ruleset, fd, READ))
		rc = tmesh_fail_errno(err, path);
	close(fd);
	return rc;
}

/* Files that libraries need. Every program of the system may read them. */
static const char *const system_files[] = {
	"/usr",
	"/lib",
	"/lib64",
	"/etc/ld.so.cache",
	"/dev/null",
	"/dev/urandom",
	"/proc/self",
	"/proc/cpuinfo",
	"/proc/meminfo",
	"/proc/stat",
	"/proc/sys/vm/max_map_count",
	"/proc/sys/vm/overcommit_memory",
	"/sys/devices/system/cpu",
	"/sys/devices/system/node",
	"/sys/fs/cgroup",
	"/sys/kernel/mm/transparent_hugepage",
};

static bool is_library(const char *name)
{
	const char *end = strstr(name, ".so");

	return end && (!end[3] || end[3] == '.');
}

/* Allow each library in @folder by a rule of its own: the folder may be a user's home. */
static int allow_libraries_in(int ruleset, const char *folder, struct tmesh_error *err)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	int rc = 0;

	while (dir && !rc && (entry = readdir(dir))) {
		int fd = is_library(entry->d_name)
				 ? openat(dirfd(dir), entry->d_name, O_PATH | O_CLOEXEC)
				 : -1;
		struct stat st;

		if (fd < 0)
			continue;
		if (!fstat(fd, &st) && S_ISREG(st.st_mode) && allow(ruleset, fd, FS_READ_FILE))
			rc = tmesh_fail_errno(err, entry->d_name);
		close(fd);
	}
	if (dir)
		closedir(dir);
	return rc;
}

/* Allow the files beside an engine's library, which loads others from there. ggml loads its
 * backends from a folder there that contains nothing else. */
static int allow_library(int ruleset, const char *path, struct tmesh_error *err)
{
	char folder[PATH_MAX + sizeof("/ggml")], *slash = NULL;
	int rc;

	if (path && realpath(path, folder))
		slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return 0;
	*slash = '\0';
	rc = allow_libraries_in(ruleset, folder, err);
	strcpy(slash, "/ggml");
	return rc ? rc : allow_path(ruleset, folder, false, err);
}

struct rules {
	int ruleset, rc;
	const char *backend;
	struct tmesh_error *err;
};

static bool allow_plugin(const char *folder, void *data)
{
	struct rules *rules = data;
	char path[2 * PATH_MAX];

	if ((size_t)snprintf(path, sizeof(path), "%s/tmesh-engine-%.64s.so", folder,
			     rules->backend) < sizeof(path))
		rules->rc = allow_path(rules->ruleset, path, false, rules->err);
	return rules->rc;
}

/* Allow the engine's own library and the plug-in. */
static int allow_libraries(int ruleset, const struct options *options, struct tmesh_error *err)
{
	struct rules rules = {.ruleset = ruleset, .backend = options->backend, .err = err};
	int rc = allow_library(ruleset, options->library, err);

	if (!rc)
		rc = allow_library(ruleset, secure_getenv("TMESH_ONNXRUNTIME"), err);
	if (!rc)
		rc = allow_library(ruleset, secure_getenv("TMESH_GGML"), err);
	if (!rc)
		engine_plugin_folders(allow_plugin, &rules);
	return rc ? rc : rules.rc;
}

static int add_rules(int ruleset, const struct options *options, int folder,
		     struct tmesh_error *err)
{
	int rc = 0;

	if (folder >= 0 && allow(ruleset, folder, FS_MAKE_SOCK | FS_READ_DIR))
		rc = tmesh_fail_errno(err, "letting the engine into its own folder");
	for (size_t i = 0; !rc && i < options->folder_count; i++)
		rc = allow_path(ruleset, options->folders[i], true, err);
	for (size_t i = 0; !rc && i < sizeof(system_files) / sizeof(*system_files); i++)
		rc = allow_path(ruleset, system_files[i], false, err);
	return rc ? rc : allow_libraries(ruleset, options, err);
}

static size_t fill(struct ruleset *attr, int abi)
{
	*attr = (struct ruleset){.fs = FS_ALL_V1};
	if (abi >= 2)
		attr->fs |= FS_REFER;
	if (abi >= 3)
		attr->fs |= FS_TRUNCATE;
	if (abi >= 4)
		attr->net = NET_ALL;
	if (abi >= 5)
		attr->fs |= FS_IOCTL_DEV;
	if (abi >= 6)
		attr->scoped = SCOPE_ALL;
	return abi >= 6	  ? sizeof(*attr)
	       : abi >= 4 ? offsetof(struct ruleset, scoped)
			  : offsetof(struct ruleset, net);
}

int confine(const struct options *options, int folder, struct tmesh_error *err)
{
	int abi = confine_abi(), single = alone(), ruleset, rc;
	struct ruleset attr;

	if (abi < 1)
		return tmesh_fail(err, -ENOTSUP,
				  "this kernel has no Landlock, or it is not in its lsm= list: the "
				  "engine could open every file of its user");
	if (single < 0)
		return tmesh_fail(err, -ENOTSUP,
				  "there is no /proc: whether Landlock binds all threads cannot be "
				  "seen");
	if (!single)
		return tmesh_fail(err, -ENOTSUP,
				  "threads run already, which Landlock would not bind: a library "
				  "that is preloaded has started them");
	ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, fill(&attr, abi), 0);
	if (ruleset < 0)
		return tmesh_fail_errno(err, "confining the engine by Landlock");
	rc = add_rules(ruleset, options, folder, err);
	if (!rc && syscall(SYS_landlock_restrict_self, ruleset, 0))
		rc = tmesh_fail_errno(err, "confining the engine by Landlock");
	close(ruleset);
	return rc;
}
