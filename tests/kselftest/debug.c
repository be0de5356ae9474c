// SPDX-License-Identifier: MIT
/* What the module shows to who looks after a machine: debugfs and tracepoints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <linux/magic.h>

#include "t.h"

#define DEBUGFS "/sys/kernel/debug"
#define SUMMARY DEBUGFS "/tmesh/summary"
#define REGIONS DEBUGFS "/tmesh/regions"

static void need_filesystem(const char *path, long magic)
{
	struct statfs fs;

	if (statfs(path, &fs) || fs.f_type != magic)
		t_skip("nothing is mounted at %s", path);
}

static unsigned long long summary(const char *what)
{
	char value[40];

	REQUIRE(t_file_value(SUMMARY, what, value, sizeof(value)));
	return strtoull(value, NULL, 10);
}

TEST(permissions, "debugfs: only root reads, nobody writes")
{
	static const char *const names[] = {SUMMARY, REGIONS};
	struct stat st;

	need_filesystem(DEBUGFS, DEBUGFS_MAGIC);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		REQUIRE_OK(stat(names[i], &st));
		CHECK_EQ(st.st_mode, S_IFREG | 0400);
		CHECK_EQ(st.st_uid, 0);
	}
}

TEST(summary, "debugfs: summary counts what all users hold")
{
	unsigned long long regions, bytes, handles, pins;
	int dev = t_dev(), fd, sv[2];
	pid_t pid;

	need_filesystem(DEBUGFS, DEBUGFS_MAGIC);
	regions = summary("regions");
	bytes = summary("bytes");
	handles = summary("handles");
	pins = summary("pins");
	t_pair(sv);
	T_CHILD(pid) {
		t_become(1001, 1001, 0);
		REQUIRE_OK(t_create(t_dev(), 3 * PAGE, 0));
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);
	fd = REQUIRE_OK(t_create(dev, PAGE + 1, 0));
	CHECK_EQ(summary("regions"), regions + 2);
	CHECK_EQ(summary("bytes"), bytes + 5 * PAGE);
	CHECK_EQ(summary("handles"), handles + 2);
	CHECK_EQ(summary("pins"), pins);
	t_say(sv[0]);
	t_wait(pid);
	CHECK_EQ(summary("regions"), regions + 1);
	REQUIRE_OK(t_revoke(fd));
	CHECK_EQ(summary("bytes"), bytes);
	close(fd);
	CHECK_EQ(summary("regions"), regions);
}

/* The line of a region, without its end. */
static void line_of(__u64 id, char *line, size_t room)
{
	FILE *f = fopen(REGIONS, "re");
	int found = 0;
	char next[400];

	REQUIRE(f);
	while (fgets(next, sizeof(next), f)) {
		if (strtoull(next, NULL, 10) != id)
			continue;
		next[strcspn(next, "\n")] = 0;
		snprintf(line, room, "%s", next);
		found++;
	}
	fclose(f);
	REQUIRE(found == 1);
}

TEST(line, "debugfs: regions has a line of a region, which follows it")
{
	struct tmesh_create c = {
		.size = sizeof(c),
		.bytes = 10000,
		.mode = 0640,
		.label = "two words",
	};
	int dev = t_dev(), writable;
	char line[400], want[400];
	__u64 id;

	need_filesystem(DEBUGFS, DEBUGFS_MAGIC);
	REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
	id = c.id;
	REQUIRE_OK(t_derive(c.fd, R_READ, 0));
	REQUIRE_OK(t_export(c.fd, 0, 0, 0));
	writable = REQUIRE_OK(t_export(c.fd, 0, 0, TMESH_EXPORT_WRITE));
	line_of(id, line, sizeof(line));
	snprintf(want, sizeof(want),
		 "%llu 10000 12288 0 0 0 0640 live 2 0 2 0 1 0 %llu two\\040words", id,
		 t_info(c.fd).cgroup_id);
	if (!CHECK(!strcmp(line, want)))
		t_note("%s", line);

	close(writable);
	REQUIRE_OK(t_seal(c.fd));
	REQUIRE_OK(t_derive(c.fd, R_READ, TMESH_DERIVE_PIN));
	line_of(id, line, sizeof(line));
	snprintf(want, sizeof(want),
		 "%llu 10000 12288 0 0 0 0640 sealed 3 1 1 0 0 0 %llu two\\040words", id,
		 t_info(c.fd).cgroup_id);
	if (!CHECK(!strcmp(line, want)))
		t_note("%s", line);
}

TEST(all_lines, "debugfs: regions shows each of many regions once, in order of id")
{
	enum {
		MANY = 300
	};
	static __u64 ids[MANY];
	int dev = t_dev(), n = 0;
	char line[400];
	FILE *f;

	need_filesystem(DEBUGFS, DEBUGFS_MAGIC);
	for (int i = 0; i < MANY; i++)
		ids[i] = t_info(REQUIRE_OK(t_create(dev, PAGE, 0))).id;
	f = fopen(REGIONS, "re");
	REQUIRE(f && fgets(line, sizeof(line), f));
	CHECK(!strncmp(line, "id bytes ", 9));
	while (fgets(line, sizeof(line), f)) {
		__u64 id = strtoull(line, NULL, 10);

		if (id < ids[0])
			continue;
		if (n < MANY)
			CHECK_EQ(id, ids[n]);
		n++;
	}
	fclose(f);
	CHECK_EQ(n, MANY);
}

/* Tracepoints, in a trace of our own */

#define TRACEFS "/sys/kernel/tracing"
#define TRACE TRACEFS "/instances/tmesh-test"

/* How often a line of a trace ends in this. */
static int times(const char *path, const char *what)
{
	FILE *f = fopen(path, "re");
	char line[400];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, what) != NULL;
	if (f)
		fclose(f);
	return n;
}

TEST(traces, "each tracepoint fires once for what it tells of")
{
	static const struct {
		const char *event, *more;
	} wants[] = {
		{"create", " bytes=10000 huge_bytes=0 backing=1"},
		{"open", " rights=0x3 pinning=0"},
		{"derive", " rights=0x1 pinning=1"},
		{"map", " offset=4096 bytes=8192 writable=0"},
		{"export", " offset=4096 bytes=8192 writable=1"},
		{"seal", " result=-16"},
		{"seal", " result=0"},
		{"revoke", ""},
		{"drain", ""},
		{"free", ""},
	};
	__u8 token[TMESH_TOKEN_BYTES];
	int dev = t_dev(), fd, second, export;
	__u64 id;
	void *p;

	need_filesystem(TRACEFS, TRACEFS_MAGIC);
	REQUIRE_OK(mkdir(TRACE, 0700));
	CHECK(t_write_file(TRACE "/events/tmesh/enable", "1"));

	CHECK_OK(fd = t_create(dev, 10000, 0));
	id = t_info(fd).id;
	CHECK_OK(t_token(fd, R_READ | R_WRITE, token));
	CHECK_OK(second = t_open(dev, token, R_READ | R_WRITE, 0));
	close(second);
	p = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
	CHECK(p != MAP_FAILED && !munmap(p, 2 * PAGE));
	CHECK_OK(export = t_export(fd, PAGE, 2 * PAGE, TMESH_EXPORT_WRITE));
	CHECK_ERR(t_seal(fd), EBUSY);
	close(export);
	CHECK_OK(t_seal(fd));
	CHECK_OK(second = t_derive(fd, R_READ, TMESH_DERIVE_PIN));
	close(second);
	CHECK_OK(t_revoke(fd));
	close(fd);

	CHECK(t_write_file(TRACE "/events/tmesh/enable", "0"));
	for (size_t i = 0; i < ARRAY_SIZE(wants); i++) {
		char want[120];

		snprintf(want, sizeof(want), "tmesh_%s: id=%llu%s\n", wants[i].event, id,
			 wants[i].more);
		if (!CHECK_EQ(times(TRACE "/trace", want), 1))
			t_note("not once: %s%s", wants[i].event, wants[i].more);
	}
	CHECK_OK(rmdir(TRACE));
}

int main(void)
{
	return t_main();
}
