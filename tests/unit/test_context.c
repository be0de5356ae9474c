// SPDX-License-Identifier: MIT
/* Contexts: the backend's choice, options, capabilities, limits, counters. */
#include "common/sized.h"
#include "common/utf8.h"
#include "common/utf8.h"
#include "unit.h"

static int logged;
static char last_log[512];

static void note(void *data, enum tmesh_log_level level, const char *message)
{
	assert_ptr_equal(data, &logged);
	logged++;
	snprintf(last_log, sizeof(last_log), "%d %s", (int)level, message);
}

static bool have_module(void)
{
	return access("/dev/tmesh", F_OK) == 0;
}

UNIT(test_choice)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .log = note, .log_data = &logged};
	const char *named = unit_on_kernel() ? "kernel" : "memfd";
	struct tmesh_ctx *ctx = (void *)&opts;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_string_equal(tmesh_backend_name(tmesh_ctx_backend(ctx)), named);
	tmesh_ctx_unref(ctx);

	setenv("TMESH_BACKEND", "floppy", 1);
	assert_refused(tmesh_ctx_open(NULL, &ctx, err), -EINVAL, "kernel and memfd");
	setenv("TMESH_BACKEND", "kernel", 1);
	if (have_module()) {
		assert_ok(tmesh_ctx_open(NULL, &ctx, err));
		assert_int_equal(tmesh_ctx_backend(ctx), TMESH_BACKEND_KERNEL);
		tmesh_ctx_unref(ctx);
	} else {
		assert_refused(tmesh_ctx_open(NULL, &ctx, err), -ENOENT, "not loaded");
	}
	setenv("TMESH_BACKEND", "", 1); /* as if it were not set */
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	tmesh_ctx_unref(ctx);
	setenv("TMESH_BACKEND", "floppy", 1);
	opts.backend = TMESH_BACKEND_MEMFD; /* the option is asked first */
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_int_equal(tmesh_ctx_backend(ctx), TMESH_BACKEND_MEMFD);
	tmesh_ctx_unref(ctx);
	unsetenv("TMESH_BACKEND");

	opts.backend = 7;
	assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "unknown backend");
	opts.backend = TMESH_BACKEND_AUTO;
	logged = 0;
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_true(logged > 0);
	assert_int_equal(tmesh_ctx_backend(ctx),
			 have_module() ? TMESH_BACKEND_KERNEL : TMESH_BACKEND_MEMFD);
	assert_non_null(strstr(last_log, tmesh_backend_name(tmesh_ctx_backend(ctx))));
	tmesh_ctx_unref(ctx);
	setenv("TMESH_BACKEND", named, 1);
}

/* The requested backend is never replaced. */
UNIT(test_module)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_KERNEL};
	struct tmesh_ctx *ctx;

	if (!have_module()) {
		assert_refused(tmesh_ctx_open(&opts, &ctx, err), -ENOENT, "not loaded");
		return;
	}
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_int_equal(tmesh_ctx_backend(ctx), TMESH_BACKEND_KERNEL);
	tmesh_ctx_unref(ctx);
}

UNIT(test_options)
{
	struct {
		struct tmesh_ctx_opts opts;
		uint64_t more;
	} newer = {.opts = {.size = sizeof(newer)}};
	struct tmesh_ctx_opts opts = {.size = 4};
	struct tmesh_ctx *ctx;

	assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "size");
	opts.size = offsetof(struct tmesh_ctx_opts, runtime_dir); /* an older caller */
	opts.runtime_dir = (const char *)1;
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	tmesh_ctx_unref(ctx);
	assert_ok(tmesh_ctx_open(&newer.opts, &ctx, err));
	tmesh_ctx_unref(ctx);
	opts = (struct tmesh_ctx_opts){.size = sizeof(opts), .taken = (enum tmesh_taken)7};
	assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "policy");
	newer.more = 1;
	assert_refused(tmesh_ctx_open(&newer.opts, &ctx, err), -EINVAL, "does not know");
	/* A size that was never set: not to be read along. */
	newer.more = 0;
	newer.opts.size = 4097;
	assert_refused(tmesh_ctx_open(&newer.opts, &ctx, err), -EINVAL, "size");
}

/* A caller that knows more members than this library reads 0 in those. */
UNIT(test_newer_caller)
{
	struct {
		struct tmesh_stats stats;
		uint64_t more;
	} newer;
	struct tmesh_ctx *ctx;

	memset(&newer, 0xff, sizeof(newer));
	newer.stats.size = sizeof(newer);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_int_equal(tmesh_stats(ctx, &newer.stats), 0);
	assert_int_equal(newer.stats.size, sizeof(newer));
	assert_int_equal(newer.stats.regions_live, 0);
	assert_int_equal(newer.more, 0);
	tmesh_ctx_unref(ctx);
}

/* The timeout of poll(): 0 only once the time has passed, and no value that it takes for "for
 * ever". */
UNIT(test_poll_ms)
{
	uint64_t deadline = tmesh_now_ns() + 3000000;

	while (tmesh_poll_ms(deadline))
		;
	assert_true(tmesh_now_ns() >= deadline);
	assert_int_equal(tmesh_poll_ms(0), 0);
	assert_int_equal(tmesh_poll_ms(tmesh_now_ns() + ((uint64_t)1 << 52)), 1000000000);
	assert_int_equal(tmesh_poll_ms(UINT64_MAX), 1000000000);
}

/* The largest number means to wait for ever. */
UNIT(test_longest_timeout)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .timeout_ns = -1};
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	int pair[2];

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	if (fork() == 0) {
		usleep(50000);
		unit_leave(0);
	}
	close(pair[0]);
	assert_refused(tmesh_region_recv(ctx, pair[1], &region, err), -EPIPE, "other end");
	wait(NULL);
	close(pair[1]);
	tmesh_ctx_unref(ctx);
}

/* Text of strangers: a byte that is no UTF-8 ends it, and nothing behind its last byte is read. */
UNIT(test_utf8)
{
	static const struct {
		const char *text;
		size_t bytes, good;
		bool controls;
	} texts[] = {
		{"plain", 5, 5, false},
		{"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, 9, false},
		{"a\xc3\xa9", 2, 1, false}, /* cut off, and whole behind that */
		{"a\xe2\x82\xac", 3, 1, false},
		{"a\xf0\x9f\x98\x80", 4, 1, false},
		{"a\xc3(", 3, 1, false}, /* no continuation */
		{"a\xe2\x82(", 4, 1, false},
		{"a\xe2(\xac", 4, 1, false},
		{"a\xc0\xaf", 3, 1, false}, /* longer than need be */
		{"a\xe0\x80\xaf", 4, 1, false},
		{"a\xed\xa0\x80", 4, 1, false},	    /* half a pair */
		{"a\xf4\x90\x80\x80", 5, 1, false}, /* past the last */
		{"a\xff", 2, 1, false},
		{"a\x80", 2, 1, false},
		{"a\tb", 3, 1, false},
		{"a\tb", 3, 3, true},
		{"a\x7f", 2, 1, false},
		{"a\x7f", 2, 2, true},
		{"a\xc2\x85", 3, 1, false},
		{"a\xc2\x85", 3, 3, true},
		{"a\0b", 3, 1, true},
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (tmesh_utf8_span(texts[i].text, texts[i].bytes, texts[i].controls) !=
		    texts[i].good)
			fail_msg("text %zu: %zu bytes, not %zu", i,
				 tmesh_utf8_span(texts[i].text, texts[i].bytes, texts[i].controls),
				 texts[i].good);
}

/* Arrays for callers whose elements have another size. */
UNIT(test_elements)
{
	struct element {
		size_t size;
		uint64_t value, more;
	} want[3];
	void *array = calloc(3, 16);
	uint64_t *pairs = array;

	assert_non_null(array);
	for (uint64_t i = 0; i < 3; i++) {
		want[i] = (struct element){sizeof(want[i]), i + 1, 0};
		pairs[2 * i + 1] = i + 1;
	}
	assert_refused(tmesh_resize_elements(&array, 3, 16, 4, true, err), -EINVAL, "size");
	assert_refused(tmesh_resize_elements(&array, 3, 16, 16 + 4097, true, err), -EINVAL, "size");
	assert_refused(tmesh_resize_elements(&array, SIZE_MAX / 24 + 1, 16, 24, true, err), -ENOMEM,
		       "memory");
	assert_ptr_equal(array, pairs);
	assert_ok(tmesh_resize_elements(&array, 3, 16, sizeof(want[0]), true, err));
	assert_memory_equal(array, want, sizeof(want));
	assert_ok(tmesh_resize_elements(&array, 3, sizeof(want[0]), 16, false, err));
	pairs = array;
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(pairs[2 * i + 1], i + 1);
	free(array);
}

/* A structure that is none is not written to. */
UNIT(test_no_structure)
{
	struct tmesh_stats stats = {.size = sizeof(stats) + 4097}, before = stats;

	assert_int_equal(tmesh_stats(*state, NULL), -EINVAL);
	assert_refused(tmesh_write_sized(NULL, &before, sizeof(before), err), -EINVAL,
		       "no structure");
	assert_int_equal(tmesh_stats(*state, &stats), -EINVAL);
	stats.size = before.size = 7;
	assert_int_equal(tmesh_stats(*state, &stats), -EINVAL);
	assert_memory_equal(&stats, &before, sizeof(stats));
}

UNIT(test_names)
{
	assert_string_equal(tmesh_backend_name(TMESH_BACKEND_KERNEL), "kernel");
	assert_string_equal(tmesh_backend_name(TMESH_BACKEND_MEMFD), "memfd");
	assert_null(tmesh_backend_name(9));
	assert_string_equal(tmesh_version(), "0.1.0");
}

/* Every promise has a name and a reason, and every "no" names the change that would make it a
 * "yes". */
UNIT(test_caps)
{
	static const char *const names[] = {
		"zero-copy",  "crash-cleanup", "read-only", "seal",	     "seal-devices",
		"revoke",     "pin",	       "holders",   "dmabuf-export", "dmabuf-export-sealed",
		"huge-pages", "numa",	       "quota",	    "direct-io",     "open-without-wake",
		"lease",      "user-memory",   "import",    "gather",	     "fence",
	};
	const struct tmesh_cap *caps, *again;
	size_t count;

	assert_int_equal(tmesh_caps(*state, &caps, &count), 0);
	assert_int_equal(count, sizeof(names) / sizeof(names[0]));
	for (size_t i = 0; i < count; i++) {
		assert_string_equal(caps[i].name, names[i]);
		assert_true(strlen(caps[i].reason) > 10);
		if (caps[i].level == TMESH_CAP_NO && !strcmp(caps[i].name, "revoke"))
			assert_non_null(strstr(caps[i].reason, "module"));
	}
	assert_int_equal(tmesh_caps(*state, &again, &count), 0);
	assert_ptr_equal(caps, again);
	/* Elements as no caller has them. */
	again = NULL;
	assert_int_equal(tmesh_caps_sized(*state, 0, &again, &count), -EINVAL);
	assert_int_equal(tmesh_caps_sized(*state, 1 << 20, &again, &count), -EINVAL);
	assert_null(again);
}

/* A promise of nodes is kept: where there is none no region is on one. */
UNIT(test_caps_node)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_NODE};
	struct tmesh_region *region = NULL;
	const struct tmesh_cap *caps;
	size_t count, at = 0;
	int rc;

	assert_int_equal(tmesh_caps(*state, &caps, &count), 0);
	while (strcmp(caps[at].name, "numa"))
		at++;
	rc = tmesh_region_create(*state, 1, &opts, &region, NULL);
	assert_int_equal(rc == 0, caps[at].level != TMESH_CAP_NO);
	tmesh_region_unref(region);
}

/* A request for a descriptor that there is none for names the remedy, and who can take it. */
UNIT(test_words_of_no_descriptor)
{
	struct tmesh_error why;

	errno = EMFILE;
	assert_int_equal(tmesh_fail_errno(&why, "opening it"), -EMFILE);
	assert_int_equal(why.code, -EMFILE);
	assert_string_equal(why.message,
			    "opening it: this process has no descriptor left: release what is not "
			    "needed, put small tensors into an arena, or raise RLIMIT_NOFILE "
			    "(ulimit -n)");
	errno = ENFILE;
	assert_int_equal(tmesh_fail_errno(&why, "opening it"), -ENFILE);
	assert_int_equal(why.code, -ENFILE);
	assert_string_equal(why.message,
			    "opening it: this machine has no descriptor left for any process; "
			    "root raises their number by sysctl fs.file-max");
	errno = EPERM;
	assert_int_equal(tmesh_fail_errno(&why, "opening it"), -EPERM);
	assert_string_equal(why.message, "opening it: Operation not permitted");
}

/* Regions leave descriptors to others: those below the limit, which are then to be had. */
UNIT(test_spare_files)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .spare_files = 16};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel_opts few = {.size = sizeof(few)};
	struct tmesh_region *made[128], *named, *more = NULL, **kept;
	size_t there;
	struct tmesh_channel *channel, *other = NULL;
	int taken[16], count = 0;
	struct rlimit usual, low;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 1, NULL, &named, err));
	assert_ok(tmesh_region_token(named, TMESH_READ, token, err));
	/* Everything but a channel's own descriptors is there. */
	assert_ok(tmesh_channel_create(ctx, TMESH_CHANNEL_SEND, &few, &channel, err));
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	low = usual;
	low.rlim_cur = (rlim_t)dup(0) + 64;
	close((int)low.rlim_cur - 64);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	while (count < 128 && !tmesh_region_create(ctx, 1, NULL, &made[count], NULL))
		count++;
	assert_refused(tmesh_region_create(ctx, 1, NULL, &more, err), -EMFILE, "RLIMIT_NOFILE");
	assert_refused(tmesh_region_derive(named, TMESH_READ, &more, err), -EMFILE, "left to");
	assert_refused(tmesh_region_open(ctx, token, TMESH_READ, &more, err), -EMFILE, "left to");
	assert_refused(tmesh_region_recv(ctx, 0, &more, err), -EMFILE, "left to");
	assert_refused(tmesh_region_from_memfd(ctx, 0, 1, NULL, &more, err), -EMFILE, "left to");
	assert_refused(tmesh_channel_create(ctx, TMESH_CHANNEL_SEND, &few, &other, err), -EMFILE,
		       "left to");
	if (!unit_on_kernel())
		assert_refused(tmesh_kept_open(ctx, "none", TMESH_KEPT_OWN, TMESH_READ, &kept,
					       &there, err),
			       -EMFILE, "left to");
	assert_null(more);
	assert_null(other);
	for (int i = 0; i < 16; i++)
		assert_true((taken[i] = dup(0)) >= 0);
	for (int i = 0; i < 16; i++)
		close(taken[i]);
	/* One given back is one to be had. */
	tmesh_region_unref(made[--count]);
	assert_ok(tmesh_region_create(ctx, 1, NULL, &made[count], err));
	count++;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
	while (count)
		tmesh_region_unref(made[--count]);
	tmesh_channel_unref(channel);
	tmesh_region_unref(named);
	tmesh_ctx_unref(ctx);
}

UNIT(test_quota)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.max_bytes = 3 * 4096,
		.region_pool_bytes = TMESH_NO_REGION_POOL,
	};
	const struct tmesh_region_opts nowhere = {
		.size = sizeof(nowhere),
		.flags = TMESH_REGION_NODE,
		.node = 900,
	};
	struct tmesh_region *one, *two, *none = NULL;
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_refused(tmesh_region_create(ctx, 3 * 4096 + 1, NULL, &none, err), -EDQUOT,
		       "max_bytes");
	assert_ok(tmesh_region_create(ctx, 4097, NULL, &one, err));
	assert_refused(tmesh_region_create(ctx, 4097, NULL, &none, err), -EDQUOT, "max_bytes");
	assert_null(none);
	assert_ok(tmesh_region_create(ctx, 1, NULL, &two, err));
	assert_refused(tmesh_region_create(ctx, 1, NULL, &none, err), -EDQUOT, "12288");
	tmesh_region_unref(one);
	assert_ok(tmesh_region_create(ctx, 8192, NULL, &one, err));
	assert_int_equal(tmesh_stats(ctx, &stats), 0);
	assert_int_equal(stats.regions_created, 3);
	assert_int_equal(stats.regions_live, 2);
	assert_int_equal(stats.bytes_live, 3 * 4096);
	tmesh_region_unref(one);
	tmesh_region_unref(two);
	assert_int_equal(tmesh_stats(ctx, &stats), 0);
	assert_int_equal(stats.regions_live, 0);
	assert_int_equal(stats.bytes_live, 0);

	/* A failed region does not count. */
	for (int i = 0; i < 4; i++)
		assert_int_equal(tmesh_region_create(ctx, 8192, &nowhere, &none, NULL), -EINVAL);

	/* Less than there is takes nothing away, and lets nothing new come. */
	assert_ok(tmesh_region_create(ctx, 8192, NULL, &one, err));
	tmesh_ctx_limit(ctx, 4096);
	assert_refused(tmesh_region_create(ctx, 1, NULL, &none, err), -EDQUOT, "4096");
	tmesh_ctx_limit(ctx, 0);
	assert_ok(tmesh_region_create(ctx, 1 << 20, NULL, &two, err));
	tmesh_region_unref(one);
	tmesh_region_unref(two);
	tmesh_ctx_unref(ctx);
}

static void expect_live(struct tmesh_ctx *ctx, uint64_t regions, uint64_t bytes)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_stats(ctx, &stats), 0);
	assert_int_equal(stats.regions_live, regions);
	assert_int_equal(stats.bytes_live, bytes);
}

/* A region is one, whatever number of handles there are on it, and is charged until the last of
 * them is gone, in whatever order they go. */
UNIT(test_handles_count_once)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .max_bytes = 4 * 4096};
	struct tmesh_region *region, *handles[3], *none;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	for (int first = 0; first < 4; first++) {
		assert_ok(tmesh_region_create(ctx, 3 * 4096, NULL, &region, err));
		assert_ok(tmesh_region_seal(region, err));
		assert_ok(tmesh_region_pin(region, &handles[0], err));
		assert_ok(tmesh_region_derive(region, TMESH_READ, &handles[1], err));
		assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
		assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &handles[2], err));
		expect_live(ctx, 1, 3 * 4096);
		for (int i = 0; i < 4; i++) {
			int which = (first + i) % 4;

			assert_refused(tmesh_region_create(ctx, 2 * 4096, NULL, &none, err),
				       -EDQUOT, "max_bytes");
			tmesh_region_unref(which == 3 ? region : handles[which]);
			expect_live(ctx, i < 3, i < 3 ? 3 * 4096 : 0);
		}
	}
	tmesh_ctx_unref(ctx);
}

/* More regions than the table begins with are all found. */
UNIT(test_many_live)
{
	enum {
		COUNT = 300
	};
	struct tmesh_region *regions[COUNT], *twins[COUNT];
	struct tmesh_ctx *ctx = new_ctx();

	for (int i = 0; i < COUNT; i++)
		assert_ok(tmesh_region_create(ctx, 4096, NULL, &regions[i], err));
	for (int i = 0; i < COUNT; i++)
		assert_ok(tmesh_region_derive(regions[i], TMESH_READ, &twins[i], err));
	expect_live(ctx, COUNT, COUNT * 4096);
	for (int i = 0; i < COUNT; i++)
		tmesh_region_unref(i % 2 ? regions[i] : twins[i]);
	expect_live(ctx, COUNT, COUNT * 4096);
	for (int i = 0; i < COUNT; i++)
		tmesh_region_unref(i % 2 ? twins[i] : regions[i]);
	expect_live(ctx, 0, 0);
	tmesh_ctx_unref(ctx);
}

/* The module's accounts, of this user and of its IPC namespace; memfds have none. */
UNIT(test_limits)
{
	struct tmesh_limits before = {.size = sizeof(before)}, after = before;
	struct tmesh_region *region, *kept;

	if (!unit_on_kernel()) {
		assert_refused(tmesh_limits(*state, &before, err), -EOPNOTSUPP, "per user");
		return;
	}
	assert_ok(tmesh_limits(*state, &before, err));
	assert_ok(tmesh_region_create(*state, 4097, NULL, &region, err));
	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_pin(region, &kept, err));
	assert_ok(tmesh_limits(*state, &after, err));
	assert_int_equal(after.used_bytes - before.used_bytes, 8192);
	assert_int_equal(after.used_regions - before.used_regions, 1);
	assert_int_equal(after.used_handles - before.used_handles, 2);
	assert_int_equal(after.used_pins - before.used_pins, 1);
	assert_int_equal(after.used_bytes_ipc_ns - before.used_bytes_ipc_ns, 8192);
	assert_int_equal(after.used_pins_ipc_ns - before.used_pins_ipc_ns, 1);
	assert_true(after.max_bytes >= after.max_bytes_per_uid);
	assert_true(after.max_regions >= after.max_regions_per_uid);
	assert_true(after.max_handles >= after.max_handles_per_uid);
	assert_true(after.max_pins >= after.max_pins_per_uid && after.max_pins_per_uid);
	tmesh_region_unref(kept);
	tmesh_region_unref(region);
}

/* A region keeps its context. */
UNIT(test_lifetime)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	void *addr;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 100, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	/* No process guesses its ids. */
	assert_memory_not_equal(ctx->id_key, (uint8_t[sizeof(ctx->id_key)]){0},
				sizeof(ctx->id_key));
	assert_ptr_equal(tmesh_ctx_ref(ctx), ctx);
	tmesh_ctx_unref(ctx);
	tmesh_ctx_unref(ctx);
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	memset(addr, 1, 100);
	tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
	tmesh_region_unref(region);
	assert_refused(tmesh_region_open(*state, token, TMESH_READ, &region, err), -ENOENT, "gone");
	tmesh_ctx_unref(NULL);
	tmesh_region_unref(NULL);
}

/* However long a text is, the message has whole characters. */
UNIT(test_whole_characters)
{
	struct tmesh_error err;
	char text[1024];

	for (size_t before = 0; before < 8; before++) {
		memset(text, 'x', before);
		text[before] = '\0';
		while (strlen(text) < 600)
			strcat(text, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
		assert_int_equal(tmesh_fail(&err, -EIO, "%s", text), -EIO);
		assert_in_range(strlen(err.message), sizeof(err.message) - 4,
				sizeof(err.message) - 1);
		assert_int_equal(tmesh_utf8_span(err.message, strlen(err.message), false),
				 strlen(err.message));
	}
	/* Bytes that are no characters are not cut. */
	memset(text, 0x80, 600);
	text[600] = '\0';
	tmesh_fail(&err, -EIO, "%s", text);
	assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
}

UNIT_MAIN("context", unit_ctx_setup, unit_ctx_teardown)
