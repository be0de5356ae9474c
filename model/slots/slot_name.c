// SPDX-License-Identifier: MIT
/*
 * Names of slots. A name is a file of the runtime directory with the slot's token. Two of its bytes
 * have OFD locks, which end with the process:
 *
 *  0  owner: the publisher has the name as long as its slot is there
 *  1  hand: taking the name, or removing the file of a publisher that died; for a moment
 *
 * So another publisher can take the name of a killed one at once. A publisher that ends its slot
 * removes the file while it still has the lock. A process that gets the lock then checks that the
 * file is still the one of this name. A reader takes no lock: it uses a record that is whole, and
 * its token can be opened or not.
 *
 * tests/sim/sim_names.py plays this with kills at every step; its steps have the names of the
 * functions here.
 */
#pragma GCC visibility push(default)
#include <tmesh/slot.h>
#pragma GCC visibility pop

#include "common/file_size.h"
#include "slot_name.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../shared/runtime_files.h"
#include "common/label.h"
#include "../shared/listener.h"

#define PREFIX "slot-"
#define LOOK_MAX 256	/* files that a take looks at, whether they are of the dead */
#define NAP_NS 1000000l /* between two tries, while another takes the name */

enum {
	LOCK_OWNER = 0,
	LOCK_HAND = 1
};

struct record {
	uint64_t check; /* of the token */
	char token[TMESH_TOKEN_SIZE];
};

static uint64_t check_of(const char token[TMESH_TOKEN_SIZE])
{
	static const uint64_t key[2] = {0x31736d746d746f6cull, 0x6e616d65};

	return tmesh_siphash(key, token, TMESH_TOKEN_SIZE);
}

int slot_name_check(const char *name, struct tmesh_error *err)
{
	_Static_assert(TMESH_SLOT_NAME_LEN == TMESH_LABEL_LEN, "a name can be a label");
	if (!*name)
		return tmesh_fail(err, -EINVAL, "the slot's name is empty");
	if (tmesh_check_label(name, NULL))
		return tmesh_fail(err, -EINVAL,
				  "a slot's name is at most %d bytes of UTF-8 without control "
				  "characters",
				  TMESH_SLOT_NAME_LEN);
	return 0;
}

/* Keep characters that a file's name can have, so that people can find it. */
static void file_of(const char *name, char file[SLOT_FILE_ROOM])
{
	char *at = file + sprintf(file, PREFIX);

	for (; *name; name++) {
		unsigned char byte = (unsigned char)*name;

		if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
		    (byte >= '0' && byte <= '9') || strchr("-_.", byte))
			*at++ = *name;
		else
			at += sprintf(at, "%%%02X", byte);
	}
	*at = '\0';
}

static bool is_ours(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & 077) && (size_t)st.st_size <= sizeof(struct record);
}

static int refuse(const char *file, struct tmesh_error *err)
{
	return tmesh_fail(err, -EACCES,
			  "%.200s in the runtime directory is no slot's name: not a file of this "
			  "user alone, or too long; remove it",
			  file);
}

/* Open a name's file. -ENOENT comes without a message, since its meaning depends on the caller. */
static int open_file(int dir, const char *file, int flags, struct tmesh_error *err)
{
	int fd = openat(dir, file, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);

	if (fd < 0) {
		int code = errno;

		if (code == ELOOP || code == EISDIR || code == ENXIO || code == EACCES)
			return refuse(file, err);
		return code == ENOENT ? -ENOENT : tmesh_fail_errno(err, "opening a slot's name");
	}
	if (is_ours(fd))
		return fd;
	close(fd);
	return refuse(file, err);
}

static int set_lock(int fd, int byte, int type)
{
	struct flock range = {
		.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	if (!fcntl(fd, F_OFD_SETLK, &range))
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

static bool is_linked(int dir, const char *file, int fd)
{
	struct stat here, there;

	return !fstat(fd, &here) && !fstatat(dir, file, &there, AT_SYMLINK_NOFOLLOW) &&
	       here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

static int have_locks(struct slot_name *own, const char *name, struct tmesh_error *err)
{
	int rc = set_lock(own->file.fd, LOCK_HAND, F_WRLCK);

	if (!rc) {
		rc = set_lock(own->file.fd, LOCK_OWNER, F_WRLCK);
		if (rc == -EAGAIN)
			return tmesh_fail(err, -EEXIST,
					  "a living process, perhaps this one, publishes a slot as "
					  "\"%s\": close that slot, end its process, or take "
					  "another name",
					  name);
	}
	if (!rc && !is_linked(own->dir, own->in_dir, own->file.fd))
		rc = -EAGAIN;
	if (rc && rc != -EAGAIN)
		rc = tmesh_fail(err, rc, "the runtime directory's file system has no locks");
	return rc;
}

static int write_record(struct slot_name *own, const char *token, struct tmesh_error *err)
{
	struct record record = {0};
	ssize_t done;

	memcpy(record.token, token, strnlen(token, sizeof(record.token) - 1));
	record.check = check_of(record.token);
	done = tmesh_pwrite(own->file.fd, &record, sizeof(record), 0);
	if (done == sizeof(record))
		return 0;
	if (done >= 0)
		errno = ENOSPC;
	tmesh_fail_errno(err, "writing a slot's name to the runtime directory");
	unlinkat(own->dir, own->in_dir, 0);
	return err ? err->code : -ENOSPC;
}

/* Try once to take the name. The host's lock is held, so that fork() knows of the descriptor and no
 * child keeps its lock. Return -EAGAIN if another process holds a lock. */
static int try_to_claim(struct slot_name *own, const char *name, const char *token,
			struct tmesh_error *err)
{
	int rc = open_file(own->dir, own->in_dir, O_RDWR | O_CREAT, err);

	if (rc == -ENOENT)
		return tmesh_fail(err, rc,
				  "the runtime directory is gone, and with it the names of slots: "
				  "publish \"%s\" once more, which makes it again",
				  name);
	if (rc < 0)
		return rc;
	model_fd_keep(&own->file, rc);
	rc = have_locks(own, name, err);
	if (!rc)
		rc = write_record(own, token, err);
	if (rc)
		model_fd_close(&own->file);
	else
		set_lock(own->file.fd, LOCK_HAND, F_UNLCK);
	return rc;
}

/* Remove the file of a publisher that died, unless another process works on it. */
static void sweep_one(void *data, const char *file)
{
	const struct slot_name *own = data;
	struct slot_name dead = {.file.fd = -1};
	int fd, dir = own->dir;

	if (!strcmp(file, own->in_dir))
		return;
	model_host_lock();
	fd = open_file(dir, file, O_RDWR, NULL);
	if (fd >= 0) {
		model_fd_keep(&dead.file, fd);
		if (!set_lock(fd, LOCK_HAND, F_WRLCK) && !set_lock(fd, LOCK_OWNER, F_WRLCK) &&
		    is_linked(dir, file, fd))
			unlinkat(dir, file, 0);
		model_fd_close(&dead.file);
	}
	model_host_unlock();
}

int slot_name_claim(struct slot_name *own, struct tmesh_ctx *ctx, const char *name,
		    const char *token, struct tmesh_error *err)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	uint64_t deadline = tmesh_now_ns() + MODEL_WAIT_NS;
	int rc = tmesh_ctx_runtime_dir(ctx, &own->dir, err);

	if (rc)
		return rc;
	file_of(name, own->in_dir);
	do {
		model_host_lock();
		rc = try_to_claim(own, name, token, err);
		model_host_unlock();
		if (rc == -EAGAIN)
			nanosleep(&nap, NULL);
	} while (rc == -EAGAIN && tmesh_now_ns() < deadline);
	if (!rc) {
		model_runtime_files_walk(own->dir, PREFIX, LOOK_MAX, sweep_one, own);
		return 0;
	}
	close(own->dir);
	own->dir = -1;
	return rc == -EAGAIN ? tmesh_fail(err, -ETIMEDOUT,
					  "another process is taking the name \"%s\", and does not "
					  "come to an end: end it, or take another name",
					  name)
			     : rc;
}

void slot_name_give_up(struct slot_name *own)
{
	/* In a forked child the file is closed, and is the parent's. If the file was removed,
	 * another publisher may have the name by now. */
	model_host_lock();
	if (own->file.fd >= 0) {
		if (is_linked(own->dir, own->in_dir, own->file.fd))
			unlinkat(own->dir, own->in_dir, 0);
		model_fd_close(&own->file);
	}
	model_host_unlock();
	if (own->dir >= 0)
		close(own->dir);
	own->dir = -1;
}

int slot_name_find(struct tmesh_ctx *ctx, const char *name, char *token, struct tmesh_error *err)
{
	char file[SLOT_FILE_ROOM];
	struct record record = {0};
	int dir, fd, rc = tmesh_ctx_runtime_dir(ctx, &dir, err);
	ssize_t got = 0;

	if (rc)
		return rc;
	file_of(name, file);
	fd = open_file(dir, file, O_RDONLY, err);
	close(dir);
	if (fd >= 0) {
		got = pread(fd, &record, sizeof(record), 0);
		close(fd);
	} else if (fd != -ENOENT) {
		return fd;
	}
	/* A record that is being written names no slot yet. */
	if (got < 0 || record.check != check_of(record.token))
		return tmesh_fail(err, -ENOENT, "no slot is published as \"%s\"", name);
	record.token[TMESH_TOKEN_SIZE - 1] = '\0';
	memcpy(token, record.token, sizeof(record.token));
	return 0;
}
