// SPDX-License-Identifier: MIT
/*
 * Operations on kept regions and their files, of which each allocation and each copy to or from
 * user space fails in turn.
 */
#include <sys/sendfile.h>

#include "failnth.h"
#include "files.h"

static void drop_new(long ret)
{
	kept_drop(set.dev, "new");
}

static int opened[2];

static long open_kept(void)
{
	return kept_open(set.dev, "kept", R_READ, 0, opened, 2);
}

static void close_opened(long ret)
{
	close(opened[0]);
	close(opened[1]);
}

static long open_part(void)
{
	struct tmesh_kept_open o = {
		.size = sizeof(o),
		.flags = TMESH_KEPT_PART,
		.name = "kept",
		.fds = ADDRESS(opened),
		.count = 1,
		.rights = R_READ,
		.first = 1,
	};

	return ioctl(set.dev, TMESH_KEPT_OPEN, &o) ? -1 : opened[0];
}

static long keep_and_drop(void)
{
	long ret = keep(set.dev, "new", &set.sealed, 1, 0);

	if (ret)
		return ret;
	ret = kept_drop(set.dev, "new");
	if (ret) {
		int code = errno;

		/* The retry succeeded. Drop the name before the next point. */
		kept_drop(set.dev, "new");
		errno = code;
	}
	return ret;
}

static long write_private(int handle)
{
	unsigned char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, handle, 0);
	int sig;

	if (p == MAP_FAILED)
		return -1;
	sig = t_read(p);
	for (size_t i = 0; i < 4; i++)
		sig |= t_write(p + i * PAGE, 1);
	munmap(p, 4 * PAGE);
	if (sig)
		errno = ENOMEM;
	return sig ? -1 : 0;
}

SWEEP(keep, "KEEP", drop_new, keep(set.dev, "new", &set.sealed, 1, 0))
SWEEP(keep_again, "KEEP in place of another", nothing,
      keep(set.dev, "kept", set.kept, 2, TMESH_KEEP_REPLACE))
SWEEP(kept_open, "KEPT_OPEN", close_opened, open_kept())
SWEEP(kept_open_part, "KEPT_OPEN of one region", close_fd, open_part())
SWEEP(kept_list, "KEPT_LIST", nothing, kept_list(set.dev, 0, &(struct tmesh_kept){0}, 1))
SWEEP(kept_drop, "KEEP, KEPT_DROP", drop_new, keep_and_drop())
SWEEP(private, "private mmap, faults and first writes", nothing, write_private(set.kept[0]))

/* Keep a table of three files of the first region. */
static long keep_table(const char *name, __u32 flags)
{
	struct kept_files *f = no_files();

	files_add(f, "a/b", 0, 0, 4 * PAGE);
	files_add(f, "a/c", 0, 0, PAGE);
	files_add(f, "d", 0, 0, 0);
	return keep_files(set.dev, name, set.kept, 1, f, 0600, flags);
}

static long keep_table_and_drop(void)
{
	long ret = keep_table("kept", TMESH_KEEP_REPLACE);

	if (ret)
		return ret;
	ret = keep(set.dev, "kept", set.kept, 2, TMESH_KEEP_REPLACE);
	if (ret) {
		int code = errno;

		/* The retry succeeds. Put the name back before the next point. */
		keep(set.dev, "kept", set.kept, 2, TMESH_KEEP_REPLACE);
		errno = code;
	}
	return ret;
}

static unsigned char buffer[40 * PAGE];

/* Open, read and map a file. Report the first error. */
static long use_file(int fd)
{
	int ret, err;

	if (fd < 0)
		return -1;
	ret = read(fd, buffer, 1) == 1 && sendfile(set.null, fd, NULL, 1) == 1 ? 0 : -1;
	if (!ret)
		ret = write_private(fd) ? -1 : 0;
	err = errno;
	close(fd);
	errno = err;
	return ret;
}

static long list_folder(int fd)
{
	long ret, err;

	if (fd < 0)
		return -1;
	do
		ret = syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
	while (ret > 0);
	err = errno;
	close(fd);
	errno = err;
	return ret;
}

/* Use a new mount, so that no dentry of it is cached. */
static long on_mount(long (*use)(void))
{
	long ret;
	int err;

	if (mount("none", MOUNT, "tmesh", 0, NULL))
		return -1;
	ret = use();
	err = errno;
	/* The failure may hit this call as well, once. */
	if (umount2(MOUNT, MNT_DETACH))
		REQUIRE_OK(umount2(MOUNT, MNT_DETACH));
	errno = err;
	return ret;
}

static long read_table(void)
{
	struct tmesh_file table[3];
	struct tmesh_kept_files k = {
		.size = sizeof(k),
		.name = "files",
		.files = ADDRESS(table),
		.paths = ADDRESS(buffer),
		.path_bytes = sizeof(buffer),
		.file_count = ARRAY_SIZE(table),
		.file_bytes = sizeof(table[0]),
	};

	return ioctl(set.dev, TMESH_KEPT_FILES, &k);
}

static long mounted(void)
{
	return 0;
}

static long read_file(void)
{
	return use_file(open(MOUNT "/0/files/a/b", O_RDONLY | O_CLOEXEC));
}

static long describe_file(void)
{
	struct tmesh_file file;
	struct tmesh_kept_files k = {
		.size = sizeof(k),
		.flags = TMESH_KEPT_FD,
		.files = ADDRESS(&file),
		.file_count = 1,
		.file_bytes = sizeof(file),
		.fd = open(MOUNT "/0/files/a/b", O_RDONLY | O_CLOEXEC),
	};
	int ret, err;

	if (k.fd < 0)
		return -1;
	ret = ioctl(set.dev, TMESH_KEPT_FILES, &k);
	err = errno;
	close(k.fd);
	errno = err;
	return ret;
}

static long list_folders(void)
{
	static const char *const folders[] = {MOUNT, MOUNT "/0", MOUNT "/0/files",
					      MOUNT "/0/files/a"};
	long ret = 0;

	for (size_t i = 0; i < ARRAY_SIZE(folders) && !ret; i++)
		ret = list_folder(open(folders[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	return ret;
}

#define SWEEP_FILES(ident, title, call)             \
	static long op_##ident(void)                \
	{                                           \
		return call;                        \
	}                                           \
	TEST(ident, title)                          \
	{                                           \
		set_up();                           \
		mkdir(MOUNT, 0755);                 \
		kept_drop(set.dev, "kept");         \
		REQUIRE_OK(keep_table("files", 0)); \
		sweep(op_##ident, nothing);         \
		kept_drop(set.dev, "files");        \
		tear_down();                        \
	}

SWEEP(keep_files, "KEEP of files in place of others, and KEEP without files in place of those",
      nothing, keep_table_and_drop())
SWEEP_FILES(mount_files, "mount of the file system", on_mount(mounted))
SWEEP_FILES(table_files, "KEPT_FILES of a name", read_table())
SWEEP_FILES(describe_file, "KEPT_FILES of an open file", on_mount(describe_file))
SWEEP_FILES(read_files, "look-up, open, read, splice, mmap and faults of a kept file",
	    on_mount(read_file))
SWEEP_FILES(list_files, "listing of kept files", on_mount(list_folders))

int main(int argc, char **argv)
{
	return failnth_main(argv);
}
