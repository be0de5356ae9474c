// SPDX-License-Identifier: MIT
/*
 * The other side of the Elixir tests: reads commands from stdin, one a line, answers each with
 * one line, ends with its input.
 *
 *   put N        a sealed uint8 tensor of N bytes, each its index modulo 251: its ref
 *   channel      a channel that it sends to: its token
 *   map JSON     hold a writable mapping of a tensor
 *   attack PID   try to shrink, punch and overwrite everything PID has open, by /proc: how
 *                many descriptors it could open, of how many there are
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tmesh/channel.h>
#include <tmesh/tmesh.h>

static struct tmesh_ctx *ctx;

static void answer(int rc, const struct tmesh_error *err)
{
	if (rc)
		printf("%s %s\n", strerrorname_np(-rc), err->message);
	else
		printf("ok\n");
}

static void put(const char *arg)
{
	int64_t bytes = strtoll(arg, NULL, 10);
	unsigned char *data = malloc((size_t)bytes + 1);
	struct tmesh_tensor *tensor;
	char text[TMESH_REF_SIZE];
	struct tmesh_error err;
	int rc;

	for (int64_t i = 0; i < bytes; i++)
		data[i] = (unsigned char)(i % 251);
	/* Earlier tensors stay until the process ends. */
	rc = tmesh_tensor_put(ctx, TMESH_UINT8, 1, &bytes, data, NULL, &tensor, &err);
	free(data);
	if (!rc)
		rc = tmesh_tensor_ref_encode(tensor, TMESH_READ, text, sizeof(text), &err);
	if (rc)
		answer(rc, &err);
	else
		printf("%s\n", text);
}

static void channel(void)
{
	const struct tmesh_channel_opts opts = {.size = sizeof(opts)};
	struct tmesh_channel *made;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_error err;
	int rc;

	/* It stays until the process ends. */
	rc = tmesh_channel_create(ctx, TMESH_CHANNEL_SEND, &opts, &made, &err);
	if (!rc)
		rc = tmesh_channel_token(made, token, &err);
	if (rc)
		answer(rc, &err);
	else
		printf("%s\n", token);
}

static void map(const char *json)
{
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	struct tmesh_ref ref;
	void *data;
	int rc;

	rc = tmesh_ref_decode(json, strlen(json), &ref, &err);
	if (!rc)
		rc = tmesh_tensor_open(ctx, &ref, TMESH_READ | TMESH_WRITE, &tensor, &err);
	if (!rc)
		rc = tmesh_tensor_data(tensor, TMESH_READ | TMESH_WRITE, &data, &err);
	answer(rc, &err);
}

/* All of it must fail on a region; what it does to other files of a test is nothing. */
static bool attack_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return false;
	if (ftruncate(fd, 0) || ftruncate(fd, 1))
		errno = 0;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096))
		errno = 0;
	if (pwrite(fd, "attacked", 8, 0) < 0)
		errno = 0;
	close(fd);
	return true;
}

static void attack(const char *pid)
{
	unsigned int opened = 0, seen = 0;
	char path[320], target[256];
	struct dirent *entry;
	ssize_t length;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		target[length > 0 ? length : 0] = '\0';
		if (!strstr(target, "memfd:") && !strstr(target, "tmesh"))
			continue;
		seen++;
		opened += attack_file(path);
	}
	if (dir)
		closedir(dir);
	printf("%u of %u\n", opened, seen);
}

static void obey(const char *verb, const char *arg)
{
	if (!strcmp(verb, "put"))
		put(arg);
	else if (!strcmp(verb, "channel"))
		channel();
	else if (!strcmp(verb, "map"))
		map(arg);
	else if (!strcmp(verb, "attack"))
		attack(arg);
	else
		printf("no such command: %s\n", verb);
}

int main(void)
{
	struct tmesh_error err;
	size_t size = 0;
	char *line = NULL;
	char *arg;
	int rc;

	rc = tmesh_ctx_open(NULL, &ctx, &err);
	if (rc) {
		answer(rc, &err);
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (getline(&line, &size, stdin) > 0) {
		line[strcspn(line, "\n")] = '\0';
		arg = strchr(line, ' ');
		if (arg)
			*arg++ = '\0';
		obey(line, arg ? arg : "");
	}
	free(line);
	return 0;
}
