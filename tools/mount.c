// SPDX-License-Identifier: MIT
/* tmeshctl mount, umount: the module's file system of kept files. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "common/kept_mount.h"
#include "tmeshctl.h"

#define PLACE "/run/tmesh"

static const struct option_entry no_options[] = {{NULL}};
static const struct option_entry umount_options[] = {
	{"lazy", 'l', NULL, "take the mount away now; open files stay good until they are closed"},
	{NULL},
};

/* Return the folder that the user named, or the one in which the library looks for paths. */
static const char *place_of(const struct verb *verb, int argc, char **argv)
{
	const char *told = secure_getenv("TMESH_MOUNT");

	verb_expect_words(verb, argc, 0, 1);
	return optind < argc ? argv[optind] : told && *told ? told : PLACE;
}

static int refuse(const char *verb, const char *place, const char *why)
{
	fprintf(stderr, "tmeshctl: cannot %s %s: %s\n", verb, place, why);
	return STATUS_FAILED;
}

static int refuse_errno(const char *verb, const char *place)
{
	return refuse(verb, place, strerror(errno));
}

static bool is_type(const char *place, const char *type)
{
	char found[TMESH_MOUNT_TYPE_SIZE];

	tmesh_mount_type(place, found);
	return !strcmp(found, type);
}

/* Return whether the kernel has the file system "tmesh". */
static bool is_registered(void)
{
	FILE *file = fopen("/proc/filesystems", "re");
	bool found = false;
	char line[128];

	while (file && !found && fgets(line, sizeof(line), file))
		found = !strcmp(line, "nodev\ttmesh\n");
	if (file)
		fclose(file);
	return found;
}

static bool is_empty(const char *place)
{
	struct dirent *entry = NULL;
	DIR *folder = opendir(place);
	bool empty = folder;

	while (folder && empty && (entry = readdir(folder)))
		empty = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
	if (folder)
		closedir(folder);
	return empty;
}

/* Return whether another file system is mounted on the folder. */
static bool is_taken(const char *place, const struct stat *st)
{
	struct stat above;
	char path[4096];

	snprintf(path, sizeof(path), "%s/..", place);
	return !stat(path, &above) && above.st_dev != st->st_dev;
}

/* Check that a mount hides nothing. */
static int check_place(const char *place)
{
	struct stat st;

	/* stat() would wait for a tmesh-mount that is stopped. */
	if (is_type(place, TMESH_MOUNT_FUSE))
		return refuse("mount", place,
			      "tmesh-mount has it: systemctl disable --now tmesh-mount, or name "
			      "another folder");
	if (stat(place, &st))
		return refuse_errno("mount", place);
	if (!S_ISDIR(st.st_mode))
		return refuse("mount", place, "it is no folder; name one");
	if (is_type(place, TMESH_MOUNT_MODULE))
		return refuse("mount", place,
			      "kept files are mounted there already; tmeshctl umount ends that");
	if (is_taken(place, &st))
		return refuse("mount", place,
			      "another file system is mounted there; name another folder");
	if (!is_empty(place))
		return refuse("mount", place, "it is not empty; empty it, or name another folder");
	return STATUS_OK;
}

static int mount_at(const char *place)
{
	int status = check_place(place);

	if (status)
		return status;
	if (!mount("none", place, "tmesh", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
		return STATUS_OK;
	return errno == EPERM ? refuse("mount", place, "it takes root (CAP_SYS_ADMIN)")
			      : refuse_errno("mount", place);
}

static int run_mount(const struct verb *verb, int argc, char **argv)
{
	const char *place;
	bool made;
	int status;

	while (verb_option(verb, argc, argv) != -1)
		;
	place = place_of(verb, argc, argv);
	if (geteuid())
		return refuse("mount", place, "it takes root: sudo tmeshctl mount");
	if (!is_registered())
		return refuse("mount", place,
			      access("/sys/module/tmesh", F_OK)
				      ? "the module tmesh is not loaded: modprobe tmesh; without "
					"the module, tmesh-mount shows kept files"
				      : "the loaded module tmesh has no file system: update it");
	made = !mkdir(place, 0755);
	if (!made && errno != EEXIST)
		return refuse_errno("mount", place);
	status = mount_at(place);
	if (status && made)
		rmdir(place);
	return status;
}

const struct verb verb_mount = {"mount", "[FOLDER]",
				"show what the module keeps as files (root), in " PLACE, no_options,
				run_mount};

static int run_umount(const struct verb *verb, int argc, char **argv)
{
	int flags = UMOUNT_NOFOLLOW;
	const char *place;

	while (verb_option(verb, argc, argv) != -1)
		flags |= MNT_DETACH;
	place = place_of(verb, argc, argv);
	if (!is_type(place, TMESH_MOUNT_MODULE))
		return refuse("unmount", place,
			      "no file system tmesh is mounted there; name the folder of one");
	if (!umount2(place, flags))
		return STATUS_OK;
	switch (errno) {
	case EPERM:
		return refuse("unmount", place, "it takes root: sudo tmeshctl umount");
	case EBUSY:
		return refuse("unmount", place,
			      "processes use files there (fuser -vm names them); end them, or "
			      "--lazy");
	case EINVAL:
		return refuse("unmount", place, "it is below a mount; name the mount's folder");
	default:
		return refuse_errno("unmount", place);
	}
}

const struct verb verb_umount = {"umount", "[FOLDER]", "end that", umount_options, run_umount};
