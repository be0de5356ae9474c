// SPDX-License-Identifier: MIT
/*
 * Engines for doctor. They are read from tmeshctl-devices, a separate program, so that an engine
 * that crashes or prints does not disturb doctor.
 */
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include "doctor_gpu.h"
#include "tmeshctl.h"

#define PROGRAM "tmeshctl-devices"
#define SERVER "tmesh-engine"
#define NAME_LEN 32

static json_t *no_engines(const char *reason)
{
	return json_pack("{s:s, s:[], s:[]}", "reason", reason, "devices", "engines");
}

/* Start @program, beside this one or from PATH. Return: its output to read; -1: it cannot be
 * started. */
static int start(const char *program, char *argument, pid_t *pid)
{
	char path[4096 + NAME_LEN], *words[] = {path, argument, NULL};
	posix_spawn_file_actions_t actions;
	int ends[2], rc;

	own_folder(path, 4096);
	strcat(path, program);
	if (access(path, X_OK))
		strcpy(path, program);
	if (pipe2(ends, O_CLOEXEC))
		return -1;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	rc = posix_spawnp(pid, path, &actions, NULL, words, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	if (!rc)
		return ends[0];
	close(ends[0]);
	errno = rc;
	return -1;
}

int check_confinement(char *line, size_t size)
{
	int status, from;
	size_t length = 0;
	ssize_t got;
	pid_t pid;

	from = start(SERVER, (char *)"--check", &pid);
	if (from < 0)
		return -1;
	while (length < size - 1 && (got = read(from, line + length, size - 1 - length)) > 0)
		length += (size_t)got;
	close(from);
	line[length] = '\0';
	line[strcspn(line, "\n")] = '\0';
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	errno = ENOEXEC;
	return *line && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

json_t *examine_engines(void)
{
	int from, status = 0;
	json_t *told;
	pid_t pid;

	from = start(PROGRAM, (char *)"--json", &pid);
	if (from < 0)
		return no_engines(errno == ENOENT ? "not tried: " PROGRAM " is not installed"
						  : "not tried: " PROGRAM " cannot be started");
	told = json_loadfd(from, 0, NULL);
	close(from);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status || !json_is_array(json_object_get(told, "engines"))) {
		json_decref(told);
		return no_engines("not known: " PROGRAM " failed; run it to see why");
	}
	json_object_set_new(told, "reason", json_null());
	return told;
}

static bool never_seen(const json_t *engine, const char *kind)
{
	const json_t *each;
	size_t i;

	json_array_foreach(json_object_get(engine, "never_seen"), i, each)
		if (!strcmp(json_string_value(each) ?: "", kind))
			return true;
	return false;
}

void print_engines(const json_t *told)
{
	const char *reason = json_string_value(json_object_get(told, "reason"));
	struct table table = {.columns = 5};
	const json_t *engine;
	size_t i;

	if (reason) {
		printf("\nengines: %s\n", reason);
		return;
	}
	printf("\nengines\n");
	json_array_foreach(json_object_get(told, "engines"), i, engine) {
		const char *version = json_string_value(json_object_get(engine, "version"));
		const char *why = json_string_value(json_object_get(engine, "reason"));

		table_addf(&table, "  %s", json_string_value(json_object_get(engine, "name")));
		table_add(&table, why ? "does not work" : "works");
		table_add(&table, version ?: "-");
		table_add(&table, never_seen(engine, "cuda") ? "CUDA: never seen" : "");
		table_add(&table, why ?: "");
	}
	table_print(&table);
}
