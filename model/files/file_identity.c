// SPDX-License-Identifier: MIT
/* The identity of a shared load's files and of its processes. */
#include "model_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void shared_load_name(struct tmesh_ctx *ctx, const struct model_file *files, size_t count,
		      char name[SHARED_LOAD_NAME_ROOM])
{
	uint64_t hash[2], backend = tmesh_ctx_backend(ctx);
	uint64_t(*identity)[7] = calloc(count + 1, sizeof(*identity));

	if (!identity) {
		name[0] = '\0';
		return;
	}
	for (size_t i = 0; i < count; i++) {
		const struct model_file *file = &files[i];
		const uint64_t words[7] = {file->dev,
					   file->ino,
					   file->bytes,
					   (uint64_t)file->mtime_ns,
					   (uint64_t)file->ctime_ns,
					   file->header_hash[0],
					   file->header_hash[1]};

		memcpy(identity[i], words, sizeof(words));
	}
	/* A later version may place tensors otherwise: its region is another. */
	identity[count][0] = backend;
	identity[count][1] = 1;
	model_hash(identity, (count + 1) * sizeof(*identity), hash);
	free(identity);
	snprintf(name, SHARED_LOAD_NAME_ROOM, "model-%016llx%016llx.shared",
		 (unsigned long long)hash[0], (unsigned long long)hash[1]);
}

bool model_is_ours(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & 077);
}

/* Return the PID namespace, in which numbers of processes are valid; 0: unknown. */
static uint32_t pid_space(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : (uint32_t)st.st_ino;
}

void process_self(struct process_id *id)
{
	*id = (struct process_id){(uint32_t)getpid(), pid_space()};
}

/* Read the state from "PID (NAME) STATE ...", in which NAME may have any characters. */
bool process_is_stopped(const struct process_id *id)
{
	char path[64], text[128] = "", *end;
	int fd;

	if (!id->pid || id->space != pid_space())
		return false;
	snprintf(path, sizeof(path), "/proc/%u/stat", id->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	close(fd);
	end = strrchr(text, ')');
	return end && (!strncmp(end, ") T", 3) || !strncmp(end, ") t", 3));
}
