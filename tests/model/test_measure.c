// SPDX-License-Identifier: MIT
/*
 * A large file that is in no cache: both ways are measured, and the faster one goes on. Within an
 * hour no process measures again on that file system. The limits are smaller here, so the source of
 * the reader is part of this program.
 */
#define PROBE ((uint64_t)1 << 20)
#define PROBE_LEAST ((uint64_t)4 << 20)
#include <liburing.h>
#include <stdbool.h>
#include <stdlib.h>

#define AT_ONCE 8 /* requests of a ring */

static bool refuses; /* what is asked of a ring */
static bool turned;  /* the first requests end the last one first */

static int compare(const void *a, const void *b)
{
	const struct io_uring_cqe *one = a, *two = b;

	return (one->user_data < two->user_data) - (one->user_data > two->user_data);
}

static int wait_for_answer(struct io_uring *ring, struct io_uring_cqe **answer)
{
	int rc = turned ? io_uring_wait_cqe_nr(ring, answer, AT_ONCE)
			: io_uring_wait_cqe(ring, answer);

	/* The ring's requests have their order, and its answers begin at the first one's place. */
	if (!rc && turned)
		qsort(*answer, AT_ONCE, sizeof(**answer), compare);
	turned = false;
	if (!rc && refuses)
		(*answer)->res = -EINVAL;
	return rc;
}
#define io_uring_wait_cqe wait_for_answer
#include "files/read.c"
_Static_assert(AT_ONCE == DEPTH, "all requests of a ring");

#include <linux/magic.h>
#include <sys/vfs.h>

#include "unit.h"

/* The file that is opened in place of /dev/null. */
static const char *null_is;

int open(const char *name, int flags, ...)
{
	if (null_is && !strcmp(name, "/dev/null"))
		name = null_is;
	return (int)syscall(SYS_openat, AT_FDCWD, name, flags, 0600);
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int not_made; /* why huge pages were not made; 0: all were */

int madvise(void *addr, size_t bytes, int advice)
{
	int rc = (int)syscall(SYS_madvise, addr, bytes, advice);

	if (rc && advice == MADV_COLLAPSE)
		not_made = errno;
	return rc;
}

/* Not a multiple of 2 MiB: the last huge page of the region has unused bytes. */
#define BYTES ((size_t)12500000)

static char path[96], rates[256];

static uint8_t byte_at(size_t at)
{
	return (uint8_t)(at / 512 * 17 + at);
}

static int make_model(void **state)
{
	static const char json[] =
		"{\"w\":{\"dtype\":\"U8\",\"shape\":[12500000],\"data_offsets\":[0,12500000]}}";
	uint64_t length = sizeof(json) - 1;
	uint8_t *data = malloc(BYTES);
	struct stat st;
	int fd;

	strcpy(path, "/tmp/tmesh-measure-XXXXXX");
	fd = mkstemp(path);
	for (size_t i = 0; i < BYTES; i++)
		data[i] = byte_at(i);
	if (fd < 0 || write(fd, &length, 8) != 8 || write(fd, json, length) != (ssize_t)length ||
	    write(fd, data, BYTES) != (ssize_t)BYTES || fstat(fd, &st) || fsync(fd))
		return -1;
	close(fd);
	free(data);
	snprintf(rates, sizeof(rates), "%s/rates-%llx-%d", unit_runtime_dir(),
		 (unsigned long long)st.st_dev,
		 unit_on_kernel() ? TMESH_BACKEND_KERNEL : TMESH_BACKEND_MEMFD);
	return 0;
}

static int remove_model(void **state)
{
	return unlink(path);
}

/* Out of the page cache, as far as the kernel does so. */
static void make_cold(void)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	close(fd);
}

static enum tmesh_model_method asked;

static void load(struct tmesh_model_report *report)
{
	struct tmesh_model_load_opts opts = {
		.size = sizeof(opts), .flags = TMESH_MODEL_ALONE, .method = asked};
	struct tmesh_tensor *tensor;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	void *data;

	make_cold();
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_model_load(ctx, path, &opts, &model, err));
	*report = (struct tmesh_model_report){.size = sizeof(*report)};
	assert_ok(tmesh_model_report(model, report, err));
	assert_int_equal(report->bytes_read, BYTES);
	assert_ok(tmesh_model_tensor_open(model, 0, &tensor, err));
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	for (size_t i = 0; i < BYTES; i++)
		assert_int_equal(((uint8_t *)data)[i], byte_at(i));
	tmesh_tensor_unref(tensor);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
}

static bool measured(const struct tmesh_model_report *report)
{
	enum tmesh_model_method faster = report->direct_rate > report->buffered_rate
						 ? TMESH_MODEL_DIRECT
					 : unit_on_kernel() ? TMESH_MODEL_URING
							    : TMESH_MODEL_READ;

	return strstr(report->reason, "measured on this file: ") && report->direct_rate &&
	       report->buffered_rate && report->method == faster;
}

static bool recalled(const struct tmesh_model_report *report, uint64_t direct, uint64_t buffered)
{
	return strstr(report->reason, "earlier on this file system: ") &&
	       report->direct_rate == direct && report->buffered_rate == buffered;
}

static void put(size_t at, uint64_t value)
{
	int fd = open(rates, O_RDWR | O_CLOEXEC);

	assert_int_equal(pwrite(fd, &value, sizeof(value), (off_t)at), sizeof(value));
	close(fd);
}

static uint64_t get(size_t at)
{
	int fd = open(rates, O_RDONLY | O_CLOEXEC);
	uint64_t value = 0;

	assert_int_equal(pread(fd, &value, sizeof(value), (off_t)at), sizeof(value));
	close(fd);
	return value;
}

static void test_measure(void **state)
{
	struct tmesh_model_report report;
	uint64_t kept[6], direct, buffered;
	int fd;

	load(&report);
	assert_true(measured(&report));
	/* The duration of the rest of the load is better evidence of the chosen way. */
	direct = get(32);
	buffered = get(40);
	if (report.method == TMESH_MODEL_DIRECT)
		assert_true(direct != report.direct_rate && buffered == report.buffered_rate);
	else
		assert_true(direct == report.direct_rate && buffered != report.buffered_rate);
	load(&report);
	assert_true(recalled(&report, direct, buffered));

	/* The faster way is taken, whichever process measured it. */
	put(32, 2000000000);
	put(40, 1000000000);
	load(&report);
	assert_true(recalled(&report, 2000000000, 1000000000));
	assert_int_equal(report.method, TMESH_MODEL_DIRECT);
	put(32, 2000000000);
	put(40, 3000000000);
	load(&report);
	assert_true(recalled(&report, 2000000000, 3000000000));
	assert_int_not_equal(report.method, TMESH_MODEL_DIRECT);

	/* Anything else is measured again, and written anew. */
	fd = open(rates, O_RDONLY | O_CLOEXEC);
	assert_int_equal(pread(fd, kept, sizeof(kept), 0), sizeof(kept));
	close(fd);
	for (int wrong = 0; wrong < 10; wrong++) {
		const uint64_t hour = UINT64_C(3601) * 1000000000;
		uint64_t bad[6];

		memcpy(bad, kept, sizeof(bad));
		switch (wrong) {
		case 0: /* an hour and more ago */
			bad[2] -= bad[2] < hour ? bad[2] : hour;
			bad[3] -= hour;
			break;
		case 1: /* of another boot: one clock began anew */
			bad[2] /= 2;
			break;
		case 2:
			bad[2] += hour;
			break;
		case 3:
			bad[3] += hour;
			break;
		case 4:
			bad[4] = 0;
			break;
		case 5:
			bad[5] = UINT64_MAX;
			break;
		case 6:
			bad[0]++;
			break;
		case 7:
			bad[1]++;
			break;
		default:
			break;
		}
		for (size_t i = 0; i < 6; i++)
			put(8 * i, bad[i]);
		if (wrong == 8)
			assert_int_equal(truncate(rates, 40), 0);
		if (wrong == 9)
			assert_int_equal(chmod(rates, 0644), 0);
		load(&report);
		if (!measured(&report))
			fail_msg("%d: %s", wrong, report.reason);
		if (wrong == 9)
			assert_int_equal(unlink(rates), 0);
		else
			load(&report);
		if (wrong != 9 && !strstr(report.reason, "earlier"))
			fail_msg("%d: %s", wrong, report.reason);
	}
}

/* The measurement is of another file, and this one cannot be read so: it is read all the same. */
static void test_other_file(void **state)
{
	struct tmesh_model_report report;

	load(&report);
	put(32, 2000000000);
	put(40, 1000000000);
	refuses = true;
	load(&report);
	refuses = false;
	assert_true(recalled(&report, 2000000000, 1000000000));
	assert_int_equal(report.method, TMESH_MODEL_READ);
	assert_non_null(strstr(report.reason, "pread instead"));
}

/* Reading ahead throws the file away into /dev/null. A file that has its name, as in a root that
 * was made by hand, gets nothing of it. */
static void test_no_null(void **state)
{
	char name[] = "/tmp/tmesh-null-XXXXXX";
	struct tmesh_model_report report;
	int fd = mkstemp(name);
	struct stat st;

	load(&report);
	put(32, 1000000000);
	put(40, 2000000000);
	null_is = name;
	load(&report);
	assert_true(recalled(&report, 1000000000, 2000000000));
	null_is = "/nonexistent";
	load(&report);
	null_is = NULL;
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 0);
	close(fd);
	unlink(name);
}

/* Whether there are two ways: a file that is memory itself is never read by O_DIRECT. */
static bool has_disk(void)
{
	struct statfs fs;
	int fd = open("/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);

	if (fd < 0)
		return false;
	close(fd);
	return statfs("/tmp", &fs) || fs.f_type != TMPFS_MAGIC;
}

/* The report tells of huge pages where there are any. The last one, which is not full, is one of
 * them. Where the machine has none left, that is not an invalid argument. */
static void has_huge(enum tmesh_model_method method)
{
	struct tmesh_model_report report;

	not_made = 0;
	asked = method;
	load(&report);
	asked = TMESH_MODEL_AUTO;
	assert_int_equal(report.method, method);
	assert_int_not_equal(not_made, EINVAL);
	if (not_made)
		skip();
	assert_int_equal(report.huge_bytes, 12 << 20);
}

static void test_huge(void **state)
{
	has_huge(TMESH_MODEL_READ);
}

/* Direct reads end in any order, and their pages are huge all the same. */
static void test_huge_direct(void **state)
{
	if (!has_disk())
		skip();
	turned = true;
	has_huge(TMESH_MODEL_DIRECT);
}

static bool has_huge_pages(void)
{
	char text[128] = "";
	int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	if (read(fd, text, sizeof(text) - 1) <= 0)
		text[0] = '\0';
	close(fd);
	return *text && !strstr(text, "[deny]");
}

int main(void)
{
	const struct CMUnitTest measuring[] = {
		TEST(test_measure),
		TEST(test_other_file),
		TEST(test_no_null),
	};
	const struct CMUnitTest huge[] = {TEST(test_huge), TEST(test_huge_direct)};
	int failed = has_disk() ? cmocka_run_group_tests_name("model measure", measuring,
							      make_model, remove_model)
				: UNIT_SKIP(measuring, "/tmp has no direct I/O");

	if (unit_on_kernel())
		return failed + UNIT_SKIP(huge, "the module's huge pages are kselftest's");
	return failed +
	       (has_huge_pages()
			? cmocka_run_group_tests_name("model huge pages", huge, make_model,
						      remove_model)
			: UNIT_SKIP(huge, "this kernel makes no huge pages of shared memory"));
}
