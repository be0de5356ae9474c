// SPDX-License-Identifier: MIT
/* The handlers on a stand-in host: data that is passed, calls that are refused, and the code of
 * each refusal. */
#include "unit.h"

#include "host.h"

#define F32 11
#define INT4 21
#define TOKEN 17

static struct tmesh_ctx *ctx;
static struct tmesh_channel *inbox, *outbox; /* this side's ends of "out" and "in" */
static char out_token[TMESH_TOKEN_SIZE], in_token[TMESH_TOKEN_SIZE];

static struct tmesh_channel *channel_new(enum tmesh_channel_role role, char *token)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 8, .producers = 4};
	struct tmesh_channel *channel;

	assert_ok(tmesh_channel_create(ctx, role, &opts, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	return channel;
}

/* Also when the test fails before it has another. */
static void channel_drop(struct tmesh_channel **channel)
{
	tmesh_channel_unref(*channel);
	*channel = NULL;
}

static int setup(void **state)
{
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	inbox = channel_new(TMESH_CHANNEL_RECV, out_token);
	outbox = channel_new(TMESH_CHANNEL_SEND, in_token);
	assert_ok(tmesh_xla_bind("out", out_token, TMESH_CHANNEL_SEND, err));
	assert_ok(tmesh_xla_bind("in", in_token, TMESH_CHANNEL_RECV, err));
	return 0;
}

static int teardown(void **state)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_ok(tmesh_xla_unbind("out", err));
	assert_ok(tmesh_xla_unbind("in", err));
	channel_drop(&inbox);
	channel_drop(&outbox);
	tmesh_ctx_unref(ctx);
	/* No memory stays after any test. */
	assert_ok(tmesh_xla_stats(&stats, err));
	assert_int_equal(stats.regions_live, 0);
	return 0;
}

#define assert_call(host, handler, code_, word)                                        \
	do {                                                                           \
		assert_int_equal(host_call(host, handler), code_);                     \
		if (!strstr(host_error.text, word))                                    \
			fail_msg("\"%s\" does not say \"%s\"", host_error.text, word); \
	} while (0)

static void put(float first, int64_t count)
{
	struct tmesh_message message = {0};
	float data[16] = {first};

	assert_ok(
		tmesh_tensor_put(ctx, TMESH_FLOAT32, 1, &count, data, NULL, &message.tensor, err));
	assert_ok(tmesh_channel_send(outbox, &message, 60000000000, err));
	tmesh_tensor_unref(message.tensor);
}

static struct tmesh_tensor *take(void)
{
	struct tmesh_message message = {0};

	assert_ok(tmesh_channel_recv(inbox, &message, 60000000000, err));
	assert_non_null(message.tensor);
	return message.tensor;
}

static float take_float(void)
{
	struct tmesh_tensor *tensor = take();
	float data[16] = {0};

	assert_true(tmesh_tensor_bytes(tensor) <= sizeof(data));
	assert_ok(tmesh_tensor_read(tensor, data, tmesh_tensor_bytes(tensor), err));
	tmesh_tensor_unref(tensor);
	return data[0];
}

/* A pop of float32[count] into @data. */
static void pop_frame(struct host *host, uint32_t *sequence, float *data, int64_t *count,
		      int64_t timeout_ms)
{
	host_init(host, "in", timeout_ms);
	host_operand(host, FFI_U32, sequence, 0, NULL);
	host_result(host, FFI_U32, sequence, 0, NULL);
	host_result(host, F32, data, 1, count);
}

static void push_frame(struct host *host, float *data, int64_t *count, int64_t timeout_ms)
{
	host_init(host, "out", timeout_ms);
	host_operand(host, F32, data, 1, count);
}

static int version_told(int major, int minor, struct ffi_version *told)
{
	struct ffi_metadata metadata = {.struct_size = sizeof(metadata), .traits = 7};
	struct ffi_metadata_extension extension = {
		{sizeof(extension), FFI_EXTENSION_METADATA, NULL}, &metadata};
	struct host host;
	int code;

	host_init(&host, NULL, 0);
	host.api.version.major = major;
	host.api.version.minor = minor;
	if (minor < 0)
		host.frame.api = NULL;
	host.frame.extensions = &extension.base;
	code = host_call(&host, tmesh_xla_push);
	assert_int_equal(metadata.traits, 0);
	*told = metadata.version;
	return code;
}

UNIT_SET_UP(test_version_is_the_lower)
{
	struct ffi_version told;
	struct host host;

	/* This host asks without a table of functions. */
	assert_int_equal(version_told(0, -1, &told), 0);
	assert_int_equal(told.major, 0);
	assert_int_equal(told.minor, 1);
	assert_int_equal(version_told(0, 1, &told), 0);
	assert_int_equal(told.minor, 1);
	assert_int_equal(version_told(0, FFI_MINOR + 1, &told), 0);
	assert_int_equal(told.minor, FFI_MINOR);
	/* The host keeps its other handlers; a call reports the mismatch. */
	assert_int_equal(version_told(1, 0, &told), 0);
	assert_int_equal(told.major, 1);
	assert_int_equal(told.minor, 0);
	host_init(&host, "out", 0);
	host.api.version.major = 1;
	assert_call(&host, tmesh_xla_push, FFI_UNIMPLEMENTED, "FFI 1.3, and libtmesh-xla 0.3");
}

UNIT_SET_UP(test_push)
{
	float first[3] = {1.5f}, second[1] = {2.5f};
	int64_t three = 3, one = 1, none[2] = {0, 4};
	uint32_t sequence = 41, next = 0;
	struct tmesh_tensor *tensor;
	struct host host;

	host_init(&host, "out", 1000);
	host_operand(&host, FFI_U32, &sequence, 0, NULL);
	host_operand(&host, F32, first, 1, &three);
	host_operand(&host, F32, second, 1, &one);
	host_operand(&host, F32, NULL, 2, none);
	host_result(&host, FFI_U32, &next, 0, NULL);
	assert_int_equal(host_call(&host, tmesh_xla_push), 0);
	assert_int_equal(next, 42);
	assert_int_equal(sequence, 41);
	assert_true(take_float() == 1.5f);
	assert_true(take_float() == 2.5f);
	tensor = take();
	assert_int_equal(tmesh_tensor_bytes(tensor), 0);
	assert_int_equal(tmesh_tensor_layout(tensor)->shape[1], 4);
	tmesh_tensor_unref(tensor);

	/* Without the sequence a uint32 is a tensor as any other. */
	host_init(&host, "out", 1000);
	host_operand(&host, FFI_U32, &sequence, 0, NULL);
	assert_int_equal(host_call(&host, tmesh_xla_push), 0);
	tensor = take();
	assert_int_equal(tmesh_tensor_layout(tensor)->dtype, TMESH_UINT32);
	tmesh_tensor_unref(tensor);
}

UNIT_SET_UP(test_pop)
{
	uint32_t sequence = UINT32_MAX;
	int64_t count = 3, one = 1;
	float data[3], other;
	struct host host;

	put(1.5f, 3);
	pop_frame(&host, &sequence, data, &count, 1000);
	assert_int_equal(host_call(&host, tmesh_xla_pop), 0);
	assert_int_equal(sequence, 0); /* it is aliased, and wraps */
	assert_true(data[0] == 1.5f);

	put(2.5f, 3);
	put(3.5f, 1);
	host_init(&host, "in", 1000);
	host_result(&host, F32, data, 1, &count);
	host_result(&host, F32, &other, 1, &one);
	assert_int_equal(host_call(&host, tmesh_xla_pop), 0);
	assert_true(data[0] == 2.5f && other == 3.5f);
}

UNIT_SET_UP(test_every_type)
{
	static const int numbers[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 18, 19, 20};
	unsigned char data[2 * 16] = {0};
	int64_t count = 2;
	struct host host;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct tmesh_tensor *tensor;

		host_init(&host, "out", 1000);
		host_operand(&host, numbers[i], data, 1, &count);
		assert_int_equal(host_call(&host, tmesh_xla_push), 0);
		tensor = take();
		assert_string_equal(tmesh_dtype_name(tmesh_tensor_layout(tensor)->dtype),
				    xla_dtype_name(numbers[i]));
		tmesh_tensor_unref(tensor);
	}
	host_init(&host, "out", 1000);
	host_operand(&host, INT4, data, 1, &count);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "XLA's int4");
	host.in[0].dtype = TOKEN;
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "XLA's token");
	host.in[0].dtype = 1000;
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "type 1000");
	host.in[0].dtype = -1;
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "type -1");
}

UNIT_SET_UP(test_bad_shapes)
{
	int64_t dims[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
	float data = 0;
	struct host host;

	host_init(&host, "out", 1000);
	host_operand(&host, F32, &data, 9, dims);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "at most 8 dimensions, not 9");
	host.in[0].rank = -1;
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "not -1");
	host.in[0].rank = 2;
	dims[1] = -1;
	assert_int_equal(host_call(&host, tmesh_xla_push), FFI_INVALID_ARGUMENT);
	dims[0] = dims[1] = INT64_MAX;
	assert_int_equal(host_call(&host, tmesh_xla_push), FFI_INVALID_ARGUMENT);
}

UNIT_SET_UP(test_bad_attributes)
{
	char name[TMESH_XLA_NAME_MAX + 2];
	int64_t count = 1;
	float data = 0;
	struct host host;

	host_init(&host, NULL, 1000);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "channel is missing");
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	host_init(&host, name, 1000);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "1 to 127 bytes");
	host_init(&host, "", 1000);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "1 to 127 bytes");
	host_init(&host, "a\nb", 1000);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "control characters");
	host_init(&host, "out", 1000);
	host.attr_types[0] = FFI_ATTR_SCALAR;
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "channel must be a string");
	push_frame(&host, &data, &count, -1);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "not -1");
	push_frame(&host, &data, &count, TMESH_XLA_TIMEOUT_MS_MAX + 1LL);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "a week");
	push_frame(&host, &data, &count, 1000);
	host.timeout.dtype = F32;
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "timeout_ms must be an int64");
	push_frame(&host, &data, &count, 1000);
	host_attr(&host, "tiemout", FFI_ATTR_SCALAR, &host.timeout);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "no attribute tiemout");
}

UNIT_SET_UP(test_bad_sequence)
{
	uint32_t sequence = 0, next = 7;
	int64_t count = 1;
	float data = 0;
	struct host host;

	push_frame(&host, &data, &count, 1000);
	host_result(&host, FFI_U32, &next, 0, NULL);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT,
		    "first operand must be the sequence");
	host.in[0].rank = 0;
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT,
		    "first operand must be the sequence");
	host_init(&host, "out", 1000);
	host_result(&host, FFI_U32, &next, 0, NULL);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT,
		    "first operand must be the sequence");
	host_init(&host, "in", 1000);
	host_operand(&host, FFI_U32, &sequence, 0, NULL);
	host_result(&host, FFI_U32, &next, 1, &count);
	assert_call(&host, tmesh_xla_pop, FFI_INVALID_ARGUMENT,
		    "first result must be the sequence");
	host_init(&host, "in", 1000);
	host_operand(&host, FFI_U32, &sequence, 0, NULL);
	host_operand(&host, FFI_U32, &sequence, 0, NULL);
	host_result(&host, FFI_U32, &next, 0, NULL);
	assert_call(&host, tmesh_xla_pop, FFI_INVALID_ARGUMENT, "at most one operand");
	push_frame(&host, &data, &count, 1000);
	host_result(&host, FFI_U32, &next, 0, NULL);
	host_result(&host, FFI_U32, &next, 0, NULL);
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "at most one result");
	push_frame(&host, &data, &count, 1000);
	host.in_types[0] = 2;
	assert_call(&host, tmesh_xla_push, FFI_INVALID_ARGUMENT, "is not a buffer");
	assert_int_equal(next, 7);
}

UNIT_SET_UP(test_names)
{
	int64_t count = 1;
	float data = 0;
	struct host host;

	push_frame(&host, &data, &count, 0);
	host.channel = (struct ffi_text){"nobody", 6};
	assert_call(&host, tmesh_xla_push, FFI_NOT_FOUND, "\"nobody\"");
	host.channel = (struct ffi_text){"in", 2};
	assert_call(&host, tmesh_xla_push, FFI_FAILED_PRECONDITION, "bound for receiving");
	host_init(&host, "out", 0);
	host_result(&host, F32, &data, 1, &count);
	assert_call(&host, tmesh_xla_pop, FFI_FAILED_PRECONDITION, "bound for sending");

	assert_refused(tmesh_xla_bind("", out_token, TMESH_CHANNEL_SEND, err), -EINVAL, "1 to 127");
	assert_refused(tmesh_xla_bind(NULL, out_token, TMESH_CHANNEL_SEND, err), -EINVAL,
		       "1 to 127");
	assert_refused(tmesh_xla_bind("a\tb", out_token, TMESH_CHANNEL_SEND, err), -EINVAL,
		       "UTF-8");
	assert_refused(tmesh_xla_bind("out", "nonsense", TMESH_CHANNEL_SEND, err), -EPROTO, "");
	assert_refused(tmesh_xla_bind("out", out_token, 7, err), -EINVAL, "");
	assert_refused(tmesh_xla_unbind("nobody", err), -ENOENT, "nobody");
	assert_refused(tmesh_xla_cancel("nobody", err), -ENOENT, "nobody");
	assert_refused(tmesh_xla_flush("nobody", 0, err), -ENOENT, "nobody");
	assert_refused(tmesh_xla_flush("in", 0, err), -EBADF, "receiving");
	/* The refused call has changed nothing. */
	push_frame(&host, &data, &count, 1000);
	assert_int_equal(host_call(&host, tmesh_xla_push), 0);
	take_float();
}

UNIT_SET_UP(test_another_message)
{
	struct tmesh_message bytes = {.bytes = 5};
	uint32_t sequence = 7;
	int64_t count = 3;
	float data[3];
	struct host host;

	pop_frame(&host, &sequence, data, &count, 1000);
	put(1, 4);
	assert_call(&host, tmesh_xla_pop, FFI_INVALID_ARGUMENT,
		    "expects float32[3], and float32[4] came");
	put(1, 3);
	host.out[1].rank = 0;
	assert_call(&host, tmesh_xla_pop, FFI_INVALID_ARGUMENT,
		    "expects float32[], and float32[3] came");
	put(1, 3);
	host.out[1].rank = 1;
	host.out[1].dtype = 4;
	assert_call(&host, tmesh_xla_pop, FFI_INVALID_ARGUMENT,
		    "expects int32[3], and float32[3] came");
	assert_ok(tmesh_channel_send(outbox, &bytes, 0, err));
	assert_call(&host, tmesh_xla_pop, FFI_INVALID_ARGUMENT, "5 bytes without a tensor");
	assert_int_equal(sequence, 7);
	/* The next call starts behind them. */
	put(8, 3);
	host.out[1].dtype = F32;
	assert_int_equal(host_call(&host, tmesh_xla_pop), 0);
	assert_true(data[0] == 8 && sequence == 8);
}

UNIT_SET_UP(test_timeouts)
{
	uint32_t sequence = 0;
	int64_t count = 1;
	float data = 0;
	struct host host;
	int sent = 0;

	pop_frame(&host, &sequence, &data, &count, 30);
	assert_call(&host, tmesh_xla_pop, FFI_DEADLINE_EXCEEDED, "no message came in time");
	pop_frame(&host, &sequence, &data, &count, 0);
	assert_call(&host, tmesh_xla_pop, FFI_DEADLINE_EXCEEDED, "no message came in time");
	push_frame(&host, &data, &count, 0);
	while (!host_call(&host, tmesh_xla_push) && sent < 1000)
		sent++;
	assert_int_equal(sent, 8); /* so many slots there are */
	assert_call(&host, tmesh_xla_push, FFI_DEADLINE_EXCEEDED, "stayed full");
	assert_refused(tmesh_xla_flush("out", 30000000, err), -ETIMEDOUT, "");
	while (sent--)
		take_float();
	assert_ok(tmesh_xla_flush("out", 60000000000, err));
}

UNIT_SET_UP(test_other_end_closed)
{
	uint32_t sequence = 0;
	int64_t count = 1;
	float data = 0;
	struct host host;
	int code;

	/* Also a reason to bind anew, which makes them work again. */
	channel_drop(&inbox);
	channel_drop(&outbox);
	push_frame(&host, &data, &count, 60000);
	/* A thread notices it: messages sent before that have room. */
	while (!(code = host_call(&host, tmesh_xla_push)))
		;
	assert_int_equal(code, FFI_UNAVAILABLE);
	pop_frame(&host, &sequence, &data, &count, 60000);
	assert_call(&host, tmesh_xla_pop, FFI_UNAVAILABLE, "");
	inbox = channel_new(TMESH_CHANNEL_RECV, out_token);
	outbox = channel_new(TMESH_CHANNEL_SEND, in_token);
	assert_ok(tmesh_xla_bind("out", out_token, TMESH_CHANNEL_SEND, err));
	assert_ok(tmesh_xla_bind("in", in_token, TMESH_CHANNEL_RECV, err));
	push_frame(&host, &data, &count, 60000);
	assert_int_equal(host_call(&host, tmesh_xla_push), 0);
	take_float();
}

/* In a child, where cmocka would go on with the other tests. */
#define CHECK_HERE(condition)     \
	do {                      \
		if (!(condition)) \
			_exit(1); \
	} while (0)

/* Start a process that makes a channel, writes its token, and sends a tensor on request. */
static pid_t producer(int told, int tells)
{
	struct tmesh_message message = {0};
	char token[TMESH_TOKEN_SIZE], go;
	int64_t count = 1;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK_HERE(tmesh_ctx_open(NULL, &ctx, NULL) == 0);
	CHECK_HERE(tmesh_channel_create(ctx, TMESH_CHANNEL_SEND, NULL, &outbox, NULL) == 0);
	CHECK_HERE(tmesh_channel_token(outbox, token, NULL) == 0);
	CHECK_HERE(write(tells, token, sizeof(token)) == sizeof(token) && read(told, &go, 1) == 1);
	CHECK_HERE(tmesh_tensor_create(ctx, TMESH_FLOAT32, 1, &count, NULL, &message.tensor,
				       NULL) == 0);
	/* It has no descriptor left to give: this process alone has the memory. */
	CHECK_HERE(tmesh_region_token(tmesh_tensor_region(message.tensor), TMESH_READ, token,
				      NULL) == 0);
	CHECK_HERE(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0}) == 0);
	CHECK_HERE(tmesh_channel_send(outbox, &message, 0, NULL) == 0 && write(tells, "", 1) == 1);
	for (;;)
		pause();
}

/* A tensor that the sender could not put into shared memory is lost when the sender is killed. */
UNIT_SET_UP(test_memory_gone)
{
	struct tmesh_channel *other;
	char token[TMESH_TOKEN_SIZE], sent;
	int64_t count = 1;
	uint32_t sequence = 0;
	int go[2], said[2];
	struct host host;
	float data = 0;
	pid_t child;

	assert_int_equal(pipe(go) | pipe(said), 0);
	child = producer(go[0], said[1]);
	assert_int_equal(read(said[0], token, sizeof(token)), sizeof(token));
	assert_ok(tmesh_xla_bind("in", token, TMESH_CHANNEL_RECV, err));
	assert_ok(tmesh_channel_open(ctx, token, TMESH_CHANNEL_RECV, NULL, &other, err));
	assert_int_equal(write(go[1], "", 1), 1);
	assert_int_equal(read(said[0], &sent, 1), 1);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	pop_frame(&host, &sequence, &data, &count, 1000);
	assert_int_equal(host_call(&host, tmesh_xla_pop), FFI_DATA_LOSS);
	tmesh_channel_unref(other);
	for (int i = 0; i < 2; i++) {
		close(go[i]);
		close(said[i]);
	}
}

UNIT_SET_UP(test_large)
{
	int64_t count = 1 << 20;
	float *data = calloc((size_t)count, sizeof(*data)),
	      *back = calloc((size_t)count, sizeof(*back));
	struct tmesh_message message = {0};
	struct tmesh_stats before = {.size = sizeof(before)}, after = before;
	uint32_t sequence = 0;
	struct host host;

	for (int64_t i = 0; i < count; i++)
		data[i] = (float)i;
	assert_ok(tmesh_xla_stats(&before, err));
	push_frame(&host, data, &count, 1000);
	assert_int_equal(host_call(&host, tmesh_xla_push), 0);
	message.tensor = take();
	assert_ok(tmesh_channel_send(outbox, &message, 0, err));
	pop_frame(&host, &sequence, back, &count, 1000);
	assert_int_equal(host_call(&host, tmesh_xla_pop), 0);
	assert_memory_equal(data, back, (size_t)count * sizeof(*data));
	/* One copy each way. */
	assert_ok(tmesh_xla_stats(&after, err));
	assert_int_equal(after.copies - before.copies, 2);
	assert_int_equal(after.bytes_copied - before.bytes_copied,
			 2 * (size_t)count * sizeof(*data));
	tmesh_tensor_unref(message.tensor);
	free(data);
	free(back);
}

UNIT_MAIN("tests", NULL, NULL)
