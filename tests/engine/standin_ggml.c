// SPDX-License-Identifier: MIT
/*
 * A stand-in for a libggml that was built with GGML_CUDA. It is linked with the real one, and gives
 * out its backend for the CPU as two GPUs. Memory is the driver's stand-in's, which is the host's.
 * As ggml's for CUDA it runs no nodes of others, and asks no caller whether to end. Its attention
 * uses memory behind its value, and it reads behind weights of blocks. Its results are the CPU's:
 * no test here shows CUDA's kernels.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/ggml_api.h"
#include "standin_ggml.h"

#define GPUS 2
#define ENTRIES 64
#define ROOM 4096 /* that attention uses */
#define Q8_0 8
#define ALLOC_FAILED (-2)
#define FAILED (-1)

#define DECLARE(name, result, arguments) result ggml_##name arguments;
GGML_FUNCTIONS(DECLARE)

static struct ggml_standin told = {.device = -1, .behind = 540};

/* A tensor that wants more memory than its bytes, or that is not run here. */
static struct entry {
	const struct ggml_context *context;
	const struct ggml_tensor *tensor;
	size_t more;
	bool weight, refused, numbers;
} entries[ENTRIES];

static struct {
	struct ggml_backend *backend;
	char *device;
} backends[ENTRIES];

static struct {
	struct ggml_backend_buffer *buffer;
	char *base;
	size_t bytes;
} buffers[ENTRIES];

/* Placeholders for ggml's objects of the GPUs: no code looks into them. */
static char cuda, devices[GPUS];

ggml_standin_fn ggml_standin;

struct ggml_standin *ggml_standin(void)
{
	return &told;
}

static void *real(const char *name)
{
	static void *library;
	void *found;

	if (!library)
		library = dlopen("libggml.so.0", RTLD_NOW | RTLD_NOLOAD);
	found = library ? dlsym(library, name) : NULL;
	if (!found)
		abort();
	return found;
}

#define REAL(name) ((__typeof__(&ggml_##name))real("ggml_" #name))

static bool failing(const char *name)
{
	if (!told.fails || strcmp(told.fails, name) != 0 || told.after-- > 0)
		return false;
	told.fails = NULL;
	return true;
}

static void enter(const struct entry *entry)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (!entries[i].tensor) {
			entries[i] = *entry;
			return;
		}
	abort();
}

static const struct entry *entry_of(const struct ggml_tensor *tensor)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (entries[i].tensor == tensor)
			return &entries[i];
	return NULL;
}

static char *device_of(const struct ggml_backend *backend)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (backend && backends[i].backend == backend)
			return backends[i].device;
	return NULL;
}

void ggml_free(struct ggml_context *context)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (entries[i].context == context)
			entries[i] = (struct entry){0};
	REAL(free)(context);
}

const char *ggml_type_name(unsigned int type)
{
	return told.lacks_type && type == told.lacks_type ? "removed" : REAL(type_name)(type);
}

struct ggml_tensor *ggml_new_tensor_4d(struct ggml_context *context, unsigned int type, int64_t a,
				       int64_t b, int64_t c, int64_t d)
{
	struct ggml_tensor *tensor = REAL(new_tensor_4d)(context, type, a, b, c, d);

	if (type == Q8_0 && told.behind)
		enter(&(struct entry){context, tensor, told.behind, .weight = true});
	return tensor;
}

struct ggml_tensor *ggml_flash_attn_ext(struct ggml_context *context, struct ggml_tensor *q,
					struct ggml_tensor *k, struct ggml_tensor *v,
					struct ggml_tensor *mask, float scale, float bias,
					float softcap)
{
	struct ggml_tensor *tensor =
		REAL(flash_attn_ext)(context, q, k, v, mask, scale, bias, softcap);

	enter(&(struct entry){context, tensor, .more = ROOM});
	return tensor;
}

struct ggml_tensor *ggml_get_rows(struct ggml_context *context, struct ggml_tensor *from,
				  struct ggml_tensor *numbers)
{
	enter(&(struct entry){context, numbers, .numbers = true});
	return REAL(get_rows)(context, from, numbers);
}

struct ggml_tensor *ggml_silu(struct ggml_context *context, struct ggml_tensor *x)
{
	struct ggml_tensor *tensor = REAL(silu)(context, x);

	if (told.lacks_silu)
		enter(&(struct entry){context, tensor, .refused = true});
	return tensor;
}

struct ggml_tensor *ggml_custom_4d(struct ggml_context *context, unsigned int type, int64_t a,
				   int64_t b, int64_t c, int64_t d, struct ggml_tensor **arguments,
				   int count, ggml_custom_function run, int tasks, void *data)
{
	struct ggml_tensor *tensor =
		REAL(custom_4d)(context, type, a, b, c, d, arguments, count, run, tasks, data);

	enter(&(struct entry){context, tensor, .refused = true});
	return tensor;
}

bool ggml_backend_supports_op(struct ggml_backend *backend, const struct ggml_tensor *tensor)
{
	const struct entry *entry = entry_of(tensor);

	return !(device_of(backend) && entry && entry->refused) &&
	       REAL(backend_supports_op)(backend, tensor);
}

struct ggml_backend_reg *ggml_backend_reg_by_name(const char *name)
{
	if (strcmp(name, "CUDA") != 0)
		return REAL(backend_reg_by_name)(name);
	return told.without ? NULL : (struct ggml_backend_reg *)&cuda;
}

size_t ggml_backend_reg_dev_count(struct ggml_backend_reg *reg)
{
	return (char *)reg == &cuda ? GPUS : REAL(backend_reg_dev_count)(reg);
}

struct ggml_backend_device *ggml_backend_reg_dev_get(struct ggml_backend_reg *reg, size_t index)
{
	if ((char *)reg != &cuda)
		return REAL(backend_reg_dev_get)(reg, index);
	if (index >= GPUS)
		abort();
	return (struct ggml_backend_device *)&devices[index];
}

static bool is_gpu(const struct ggml_backend_device *device)
{
	return (const char *)device >= devices && (const char *)device < devices + GPUS;
}

struct ggml_backend_reg *ggml_backend_dev_backend_reg(struct ggml_backend_device *device)
{
	return is_gpu(device) ? (struct ggml_backend_reg *)&cuda
			      : REAL(backend_dev_backend_reg)(device);
}

void *ggml_backend_reg_get_proc_address(struct ggml_backend_reg *reg, const char *name)
{
	return (char *)reg == &cuda ? NULL : REAL(backend_reg_get_proc_address)(reg, name);
}

struct ggml_backend *ggml_backend_dev_init(struct ggml_backend_device *device, const char *words)
{
	ggml_threads_function set_threads;
	struct ggml_backend *backend;

	if (!is_gpu(device))
		return REAL(backend_dev_init)(device, words);
	if (failing("backend_dev_init"))
		return NULL;
	backend = REAL(backend_init_by_type)(GGML_DEVICE_CPU, NULL);
	*(void **)&set_threads = REAL(backend_reg_get_proc_address)(
		REAL(backend_dev_backend_reg)(REAL(backend_get_device)(backend)),
		"ggml_backend_set_n_threads");
	set_threads(backend, 1);
	for (size_t i = 0; i < ENTRIES; i++)
		if (!backends[i].backend) {
			backends[i].backend = backend;
			backends[i].device = (char *)device;
			told.device = (int)((char *)device - devices);
			told.backends++;
			return backend;
		}
	abort();
}

void ggml_backend_free(struct ggml_backend *backend)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (backend && backends[i].backend == backend) {
			backends[i].backend = NULL;
			told.backends--;
		}
	REAL(backend_free)(backend);
}

struct ggml_backend_device *ggml_backend_get_device(struct ggml_backend *backend)
{
	char *device = device_of(backend);

	return device ? (struct ggml_backend_device *)device : REAL(backend_get_device)(backend);
}

struct ggml_backend_buffer_type *ggml_backend_dev_buffer_type(struct ggml_backend_device *device)
{
	struct ggml_backend *backend;
	struct ggml_backend_buffer_type *type;

	if (!is_gpu(device))
		return REAL(backend_dev_buffer_type)(device);
	backend = REAL(backend_init_by_type)(GGML_DEVICE_CPU, NULL);
	type = REAL(backend_get_default_buffer_type)(backend);
	REAL(backend_free)(backend);
	return type;
}

struct ggml_backend_buffer *ggml_backend_buft_alloc_buffer(struct ggml_backend_buffer_type *type,
							   size_t bytes)
{
	struct ggml_backend_buffer *buffer;

	if (failing("backend_buft_alloc_buffer"))
		return NULL;
	buffer = REAL(backend_buft_alloc_buffer)(type, bytes);
	for (size_t i = 0; i < ENTRIES; i++)
		if (!buffers[i].buffer) {
			buffers[i].buffer = buffer;
			buffers[i].base = REAL(backend_buffer_get_base)(buffer);
			buffers[i].bytes = bytes;
			told.buffers++;
			return buffer;
		}
	abort();
}

void ggml_backend_buffer_free(struct ggml_backend_buffer *buffer)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (buffer && buffers[i].buffer == buffer) {
			buffers[i].buffer = NULL;
			told.buffers--;
		}
	REAL(backend_buffer_free)(buffer);
}

size_t ggml_backend_buft_get_alloc_size(struct ggml_backend_buffer_type *type,
					const struct ggml_tensor *tensor)
{
	const struct entry *entry = entry_of(tensor);

	return REAL(backend_buft_get_alloc_size)(type, tensor) + (entry ? entry->more : 0);
}

int ggml_backend_tensor_alloc(struct ggml_backend_buffer *buffer, struct ggml_tensor *tensor,
			      void *address)
{
	static struct ggml_backend_buffer *all;

	if (failing("backend_tensor_alloc"))
		return ALLOC_FAILED;
	if (!told.hides)
		return REAL(backend_tensor_alloc)(buffer, tensor, address);
	if (!all)
		all = REAL(backend_cpu_buffer_from_ptr)((void *)(uintptr_t)4096,
							PTRDIFF_MAX - 4096);
	return REAL(backend_tensor_alloc)(all, tensor, address);
}

void ggml_backend_tensor_get(const struct ggml_tensor *tensor, void *data, size_t offset,
			     size_t bytes)
{
	told.gets++;
	if (told.reading)
		told.reading();
	REAL(backend_tensor_get)(tensor, data, offset, bytes);
}

void ggml_backend_tensor_set(struct ggml_tensor *tensor, const void *data, size_t offset,
			     size_t bytes)
{
	told.sets++;
	REAL(backend_tensor_set)(tensor, data, offset, bytes);
}

static void look_at_numbers(const struct ggml_tensor *numbers)
{
	const int32_t *data = REAL(get_data)(numbers);

	for (size_t i = 0; data && i < REAL(nbytes)(numbers) / sizeof(*data); i++)
		told.rows |= data[i] < 32 ? 1u << data[i] : 0;
}

/* Whether the memory is one that was allocated here. */
static bool is_own(const char *data, size_t bytes)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (buffers[i].buffer && data >= buffers[i].base &&
		    data + bytes <= buffers[i].base + buffers[i].bytes)
			return true;
	return false;
}

static void look(const struct entry *entry)
{
	const char *data = REAL(get_data)(entry->tensor);
	size_t bytes = REAL(nbytes)(entry->tensor);

	if (!data)
		return;
	if (!entry->weight)
		told.outside += !is_own(data, bytes + entry->more);
	for (size_t i = 0; entry->weight && i < entry->more; i++)
		if (data[bytes + i]) {
			told.dirty++;
			return;
		}
}

int ggml_backend_graph_compute(struct ggml_backend *backend, struct ggml_cgraph *graph)
{
	if (!device_of(backend))
		return REAL(backend_graph_compute)(backend, graph);
	if (failing("backend_graph_compute"))
		return FAILED;
	if (told.during)
		told.during();
	for (size_t i = 0; i < ENTRIES; i++)
		if (entries[i].tensor && entries[i].numbers)
			look_at_numbers(entries[i].tensor);
		else if (entries[i].tensor && entries[i].more)
			look(&entries[i]);
	return REAL(backend_graph_compute)(backend, graph);
}
