// SPDX-License-Identifier: MIT
/*
 * A stand-in for libcuda.so.1: the driver's documented semantics on memfds, so that two processes
 * really share, for machines without a GPU. It shows protocols, lifetimes and error paths; it
 * shows nothing about a driver, a GPU or speed.
 *
 * TMESH_STANDIN, a list of words with commas between, sets it up:
 *
 *   devices=N       2 unless said
 *   mib=N           memory of each device, of which one process can have all; 256 unless said
 *   pin=N           MiB from which on one call registers no memory; 512 GiB unless said
 *   version=N       as cuDriverGetVersion() gives; 13000 unless said
 *   without=NAME    vmm, rdma, posix-fd, read-only, ipc-event, dma-buf, host-register, pcie,
 *                   peers, ipc-memory, prot-read, shm (others' events), events (none is left),
 *                   write-value (by streams), nvml, persistence, host-unregister
 *   with=NAME       dma-buf-import, which only few platforms have; host-page-tables; mig: all
 *                   devices are instances of one GPU, whose UUID the older call gives
 *   node=PATH       a file in the place of the devices' nodes: without it there is no device, and
 *                   a process that may not open it gets no memory
 *   fail=SYMBOL/CODE/SKIP   as standin_fail()
 *   broken=CODE     each call fails with it, as the driver's reference allows: with 4 after the
 *                   driver has ended, with 700 to 719 after a kernel has failed
 *
 * Device memory has one address in a process for all who may touch it. Which device may is kept
 * beside, and standin_access() is a kernel that minds it.
 */
#include "standin_internal.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
struct standin_setup standin;

static pid_t initialized; /* the process that has called cuInit(); 0: none has */
static struct {
	unsigned int retained;
	bool active;
	unsigned long long id; /* of the context that is active, or was last */
} primary[STANDIN_DEVICES];
static __thread int current[16];
static __thread unsigned int depth;

/* Calls, and which of them are to fail. */

static struct {
	const char *symbol;
	unsigned long calls;
	int fail;
	unsigned int skip;
	void (*during)(void *data);
	void *during_data;
} table[] = {
#define ROW(member, name, arguments) {.symbol = #name},
	CU_FUNCTIONS(ROW) CU_FUNCTIONS_NEWER(ROW)
#undef ROW
};

/* Return whether the call needs cuInit() in this process, which a fork() does not bring along. */
static bool needs_init(const char *symbol)
{
	if (!strcmp(symbol, "cuGetErrorName") || !strcmp(symbol, "cuDriverGetVersion"))
		return false;
	return strcmp(symbol, "cuInit") ? initialized != getpid()
					: initialized && initialized != getpid();
}

int standin_enter(const char *symbol)
{
	void (*during)(void *data) = NULL;
	void *data = NULL;
	int code = 0;

	pthread_mutex_lock(&standin_lock);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (strcmp(table[i].symbol, symbol))
			continue;
		table[i].calls++;
		during = table[i].during;
		data = table[i].during_data;
		table[i].during = NULL;
		if (table[i].fail && table[i].skip-- == 0) {
			code = table[i].fail;
			table[i].fail = 0;
		}
	}
	pthread_mutex_unlock(&standin_lock);
	if (during)
		during(data);
	if (standin.broken && strcmp(symbol, "cuGetErrorName"))
		return standin.broken;
	return code || !needs_init(symbol) ? code : CU_NOT_INITIALIZED;
}

void standin_during(const char *symbol, void (*during)(void *data), void *data)
{
	pthread_mutex_lock(&standin_lock);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (!strcmp(table[i].symbol, symbol)) {
			table[i].during = during;
			table[i].during_data = data;
		}
	}
	pthread_mutex_unlock(&standin_lock);
}

void standin_fail(const char *symbol, int code, unsigned int skip)
{
	pthread_mutex_lock(&standin_lock);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (!strcmp(table[i].symbol, symbol)) {
			table[i].fail = code;
			table[i].skip = skip;
		}
	}
	pthread_mutex_unlock(&standin_lock);
}

unsigned long standin_calls(const char *symbol)
{
	unsigned long calls = 0;

	pthread_mutex_lock(&standin_lock);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (!strcmp(table[i].symbol, symbol))
			calls = table[i].calls;
	pthread_mutex_unlock(&standin_lock);
	return calls;
}

static void set_up_word(char *word)
{
	char *value = strchr(word, '=');
	char symbol[64];
	unsigned int skip;
	int code;

	if (!value)
		return;
	*value++ = '\0';
	if (!strcmp(word, "devices"))
		standin.devices = atoi(value);
	else if (!strcmp(word, "mib"))
		standin.bytes = strtoull(value, NULL, 10) << 20;
	else if (!strcmp(word, "pin"))
		standin.pin_bytes = strtoull(value, NULL, 10) << 20;
	else if (!strcmp(word, "broken"))
		standin.broken = atoi(value);
	else if (!strcmp(word, "version"))
		standin.version = atoi(value);
	else if (!strcmp(word, "without") && standin.without_count < STANDIN_WITHOUT)
		snprintf(standin.without[standin.without_count++], sizeof(standin.without[0]), "%s",
			 value);
	else if (!strcmp(word, "with") && standin.with_count < STANDIN_WITHOUT)
		snprintf(standin.with[standin.with_count++], sizeof(standin.with[0]), "%s", value);
	else if (!strcmp(word, "node"))
		snprintf(standin.node, sizeof(standin.node), "%s", value);
	else if (!strcmp(word, "fail") && sscanf(value, "%63[^/]/%d/%u", symbol, &code, &skip) == 3)
		standin_fail(symbol, code, skip);
}

void standin_set_up(const char *words)
{
	char *copy = words ? strdup(words) : NULL, *rest = copy;

	standin = (struct standin_setup){
		.devices = 2, .bytes = 256ull << 20, .version = 13000, .pin_bytes = 512ull << 30};
	for (char *word; (word = strsep(&rest, ",")) != NULL;)
		set_up_word(word);
	free(copy);
}

__attribute__((constructor)) static void start(void)
{
	standin_set_up(getenv("TMESH_STANDIN"));
}

bool standin_with(const char *name)
{
	for (unsigned int i = 0; i < standin.with_count; i++)
		if (!strcmp(standin.with[i], name))
			return true;
	return false;
}

bool standin_without(const char *name)
{
	for (unsigned int i = 0; i < standin.without_count; i++)
		if (!strcmp(standin.without[i], name))
			return true;
	return false;
}

cu_result standin_permitted(void)
{
	int fd = standin.node[0] ? open(standin.node, O_RDWR | O_CLOEXEC) : -1;

	if (fd >= 0)
		close(fd);
	return standin.node[0] && fd < 0 ? CU_NOT_PERMITTED : CU_OK;
}

/* Errors, devices, contexts. */

cu_result cuGetErrorName(cu_result code, const char **name)
{
	static const struct {
		cu_result code;
		const char *name;
	} names[] = {
		{CU_OK, "CUDA_SUCCESS"},
		{CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
		{CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
		{CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED"},
		{CU_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY"},
		{CU_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
		{CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
		{CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
		{CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
		{CU_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
		{CU_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
		{CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
		{CU_NOT_READY, "CUDA_ERROR_NOT_READY"},
		{CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
		{CU_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
		{CU_HOST_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
		{CU_HOST_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
		{CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
		{CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
		{CU_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY"},
		{CU_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
		{CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
		{CU_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
		{CU_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
		{CU_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
		{CU_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
		{CU_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
		{CU_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
	};

	ENTER("cuGetErrorName");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i].code == code) {
			*name = names[i].name;
			return CU_OK;
		}
	}
	*name = NULL;
	return CU_INVALID_VALUE;
}

cu_result cuInit(unsigned int flags)
{
	ENTER("cuInit");
	if (standin.devices == 0 || (standin.node[0] && access(standin.node, F_OK)))
		return CU_NO_DEVICE;
	initialized = getpid();
	return CU_OK;
}

void standin_start(void)
{
	initialized = 0;
}

cu_result cuDriverGetVersion(int *version)
{
	ENTER("cuDriverGetVersion");
	*version = standin.version;
	return CU_OK;
}

static bool no_device(int device)
{
	return device < 0 || device >= standin.devices;
}

cu_result cuDeviceGetCount(int *count)
{
	ENTER("cuDeviceGetCount");
	*count = standin.devices;
	return CU_OK;
}

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
	ENTER("cuDeviceGet");
	if (no_device(ordinal))
		return CU_INVALID_DEVICE;
	*device = ordinal;
	return CU_OK;
}

cu_result cuDeviceGetName(char *name, int size, cu_device device)
{
	ENTER("cuDeviceGetName");
	snprintf(name, (size_t)size, "stand-in %d", device);
	return CU_OK;
}

cu_result cuDeviceGetUuid(struct cu_uuid *uuid, cu_device device)
{
	ENTER("cuDeviceGetUuid");
	memset(uuid, 0x5a, sizeof(*uuid));
	uuid->bytes[15] = standin_with("mig") ? 0 : (unsigned char)device;
	return CU_OK;
}

cu_result cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device device)
{
	ENTER("cuDeviceGetUuid_v2");
	memset(uuid, 0x5a, sizeof(*uuid));
	uuid->bytes[15] = (unsigned char)device;
	return CU_OK;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
	ENTER("cuDeviceTotalMem_v2");
	*bytes = standin.bytes;
	return CU_OK;
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
	ENTER("cuDeviceGetAttribute");
	switch (attribute) {
	case CU_ATTR_UNIFIED_ADDRESSING:
	case CU_ATTR_HOST_POINTER:
		*value = 1;
		return CU_OK;
	case CU_ATTR_HOST_PAGE_TABLES:
		*value = standin_with("host-page-tables");
		return CU_OK;
	case CU_ATTR_HOST_REGISTER:
		*value = !standin_without("host-register");
		return CU_OK;
	case CU_ATTR_VMM:
		*value = !standin_without("vmm");
		return CU_OK;
	case CU_ATTR_VMM_RDMA:
		*value = !standin_without("rdma");
		return CU_OK;
	case CU_ATTR_POSIX_FD:
		*value = !standin_without("posix-fd");
		return CU_OK;
	case CU_ATTR_READ_ONLY_HOST_REGISTER:
		*value = !standin_without("read-only");
		return CU_OK;
	case CU_ATTR_DMA_BUF:
		*value = !standin_without("dma-buf");
		return CU_OK;
	case CU_ATTR_WRITE_VALUE:
		*value = !standin_without("write-value");
		return CU_OK;
	case CU_ATTR_IPC_EVENT:
		*value = !standin_without("ipc-event");
		return CU_OK;
	default:
		*value = 0;
		return CU_OK;
	}
}

cu_result cuDeviceCanAccessPeer(int *can, cu_device device, cu_device peer)
{
	ENTER("cuDeviceCanAccessPeer");
	*can = !standin_without("peers");
	return no_device(device) || no_device(peer) ? CU_INVALID_DEVICE : CU_OK;
}

static cu_context context_of(int device)
{
	return (cu_context)&primary[device];
}

cu_context standin_context_of(int device)
{
	return context_of(device);
}

static int device_of(cu_context context)
{
	for (int i = 0; i < standin.devices; i++)
		if (context == context_of(i))
			return i;
	return -1;
}

/* A context that was destroyed and is retained anew has the same address, and another number. */
cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
	static unsigned long long contexts;

	UNSAFE("cuDevicePrimaryCtxRetain");
	if (no_device(device))
		return CU_INVALID_DEVICE;
	pthread_mutex_lock(&standin_lock);
	primary[device].retained++;
	if (!primary[device].active)
		primary[device].id = ++contexts;
	primary[device].active = true;
	pthread_mutex_unlock(&standin_lock);
	*context = context_of(device);
	return CU_OK;
}

cu_result cuDevicePrimaryCtxGetState(cu_device device, unsigned int *flags, int *active)
{
	ENTER("cuDevicePrimaryCtxGetState");
	if (no_device(device))
		return CU_INVALID_DEVICE;
	*flags = 0;
	*active = primary[device].active;
	return CU_OK;
}

/* The last release destroys the context. Its objects stay here, so that a forgotten release is
 * seen, but not the events that other processes may have. */
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
	cu_result rc = CU_INVALID_CONTEXT;

	ENTER("cuDevicePrimaryCtxRelease_v2");
	pthread_mutex_lock(&standin_lock);
	if (!no_device(device) && primary[device].retained) {
		if (--primary[device].retained == 0) {
			primary[device].active = false;
			standin_release_events(device);
		}
		rc = CU_OK;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuCtxPushCurrent_v2(cu_context context)
{
	int device = device_of(context);

	ENTER("cuCtxPushCurrent_v2");
	if (device < 0)
		return CU_INVALID_CONTEXT;
	current[depth++] = device;
	return CU_OK;
}

cu_result cuCtxGetId(cu_context context, unsigned long long *id)
{
	int device = device_of(context);

	ENTER("cuCtxGetId");
	if (device < 0)
		return CU_INVALID_CONTEXT;
	*id = primary[device].id;
	return primary[device].active ? CU_OK : CU_CONTEXT_IS_DESTROYED;
}

cu_result cuCtxPopCurrent_v2(cu_context *context)
{
	ENTER("cuCtxPopCurrent_v2");
	if (!depth)
		return CU_INVALID_CONTEXT;
	depth--;
	*context = context_of(current[depth]);
	return CU_OK;
}

int standin_current(void)
{
	return depth ? current[depth - 1] : -1;
}

cu_result standin_context(void)
{
	if (!depth)
		return CU_INVALID_CONTEXT;
	return primary[standin_current()].active ? CU_OK : CU_CONTEXT_IS_DESTROYED;
}

/* Host memory. */

static struct {
	void *addr;
	size_t bytes;
	int device;    /* whose context registered it */
	bool portable; /* for all contexts */
	bool read_only;
} registered[STANDIN_MAX];

static bool overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
	return (const char *)a < (const char *)b + b_bytes &&
	       (const char *)b < (const char *)a + a_bytes;
}

/* Return whether the whole range is mapped for this access. */
static bool mapped(const void *addr, size_t bytes, bool write)
{
	const char *at = addr, *end = at + bytes;
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long from, to;
	char prot[5], line[512];

	while (maps && at < end && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %4s", &from, &to, prot) != 3 || (char *)to <= at)
			continue;
		if ((char *)from > at || prot[0] != 'r' || (write && prot[1] != 'w'))
			break;
		at = (char *)to;
	}
	if (maps)
		fclose(maps);
	return at >= end;
}

static atomic_ullong copied_on_write;

void standin_look_for_private(const void *addr, size_t bytes, bool read)
{
	unsigned long first = (unsigned long)addr, end = first + bytes, from, to, inode;
	FILE *maps = fopen("/proc/self/maps", "re");
	char prot[5], line[512];

	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %4s %*s %*s %lu", &from, &to, prot, &inode) != 4 ||
		    to <= first || from >= end || !inode || prot[3] != 'p')
			continue;
		from = from < first ? first : from;
		to = to > end ? end : to;
		if (!read || prot[1] == 'w')
			copied_on_write += to - from;
	}
	if (maps)
		fclose(maps);
}

unsigned long long standin_copied_on_write(void)
{
	return copied_on_write;
}

cu_result cuMemHostRegister_v2(void *addr, size_t bytes, unsigned int flags)
{
	bool read_only = flags & CU_HOST_REGISTER_READ_ONLY;
	cu_result rc = CU_OUT_OF_MEMORY;
	int free_one = -1;

	UNSAFE("cuMemHostRegister_v2");
	NEED_CONTEXT();
	if (standin_without("host-register") || (read_only && standin_without("read-only")))
		return CU_NOT_SUPPORTED;
	if (!bytes || !mapped(addr, bytes, !read_only && !standin_with("host-page-tables")))
		return CU_INVALID_VALUE;
	/* The driver's table of the pages must be less than 2 GiB. */
	if (bytes >= standin.pin_bytes)
		return CU_OUT_OF_MEMORY;
	read_only |= !mapped(addr, bytes, true);
	standin_look_for_private(addr, bytes, false);
	pthread_mutex_lock(&standin_lock);
	for (int i = 0; i < STANDIN_MAX; i++) {
		if (!registered[i].addr) {
			free_one = i;
		} else if (overlaps(addr, bytes, registered[i].addr, registered[i].bytes)) {
			rc = CU_HOST_ALREADY_REGISTERED;
			free_one = -1;
			break;
		}
	}
	if (free_one >= 0) {
		registered[free_one].addr = addr;
		registered[free_one].bytes = bytes;
		registered[free_one].device = standin_current();
		registered[free_one].portable = flags & CU_HOST_REGISTER_PORTABLE;
		registered[free_one].read_only = read_only;
		rc = CU_OK;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuMemHostUnregister(void *addr)
{
	cu_result rc = CU_HOST_NOT_REGISTERED;

	UNSAFE("cuMemHostUnregister");
	NEED_CONTEXT();
	if (standin_without("host-unregister"))
		return CU_UNKNOWN;
	pthread_mutex_lock(&standin_lock);
	for (int i = 0; i < STANDIN_MAX; i++) {
		if (addr && registered[i].addr == addr) {
			registered[i].addr = NULL;
			rc = CU_OK;
		}
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuMemHostGetDevicePointer_v2(cu_ptr *ptr, void *addr, unsigned int flags)
{
	ENTER("cuMemHostGetDevicePointer_v2");
	NEED_CONTEXT();
	*ptr = (uintptr_t)addr;
	return standin_host(standin_current(), addr, 1, false) ? CU_OK : CU_INVALID_VALUE;
}

bool standin_host(int device, const void *addr, size_t bytes, bool write)
{
	bool found = false;

	pthread_mutex_lock(&standin_lock);
	for (int i = 0; i < STANDIN_MAX; i++)
		found |= registered[i].addr &&
			 (registered[i].portable || registered[i].device == device) &&
			 (const char *)addr >= (char *)registered[i].addr &&
			 (const char *)addr + bytes <=
				 (char *)registered[i].addr + registered[i].bytes &&
			 !(write && registered[i].read_only);
	pthread_mutex_unlock(&standin_lock);
	return found;
}

/* Physical memory of the VMM calls stays, as in cuCtxDestroy()'s description. */
void standin_reset(int device)
{
	pthread_mutex_lock(&standin_lock);
	primary[device].active = false;
	for (int i = 0; i < STANDIN_MAX; i++)
		if (registered[i].device == device)
			registered[i].addr = NULL;
	standin_reset_memory(device);
	standin_reset_streams(device);
	pthread_mutex_unlock(&standin_lock);
}

unsigned long standin_live(void)
{
	unsigned long live = standin_live_memory() + standin_live_streams();

	pthread_mutex_lock(&standin_lock);
	for (int i = 0; i < STANDIN_MAX; i++)
		live += !!registered[i].addr;
	for (int i = 0; i < standin.devices; i++)
		live += primary[i].retained;
	pthread_mutex_unlock(&standin_lock);
	return live;
}
