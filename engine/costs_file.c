// SPDX-License-Identifier: MIT
/* Costs as JSON: where they are kept, written at once, read with distrust. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/siphash.h"
#include "costs_internal.h"

#define FORM 1 /* of the file */
#define FILE_MAX_BYTES (1 << 20)
#define ADVICE "measure with: tmeshctl devices --measure"

/* What has to be the same when costs are read: an object of devices and one of engines by name, so
 * that their order does not matter. NULL: no memory. */
static json_t *machine_of(const struct tmesh_devices *list)
{
	json_t *devices = json_object(), *engines = json_object();
	struct utsname name;

	for (size_t i = 0; i < list->device_count; i++) {
		const struct tmesh_devices_device *device = &list->devices[i];
		json_t *value = json_pack("{s:o, s:i, s:I}", "name",
					  json_stringn_nocheck(device->name, strlen(device->name)),
					  "processors", (int)device->processors, "memory",
					  (json_int_t)device->memory);

		json_object_set_new(devices, device->id, value);
	}
	for (size_t i = 0; i < list->engine_count; i++)
		if (!*list->engines[i].reason)
			json_object_set_new_nocheck(
				engines, list->engines[i].name,
				json_stringn_nocheck(list->engines[i].version,
						     strlen(list->engines[i].version)));
	uname(&name);
	return json_pack(
		"{s:o, s:o, s:o}", "kernel",
		json_sprintf("%s %s %s %s", name.sysname, name.release, name.version, name.machine),
		"devices", devices, "engines", engines);
}

static json_t *real_or_null(double value)
{
	return value > 0 ? json_real(value) : json_null();
}

static json_t *rates_json(const struct tmesh_costs_engine *engine)
{
	json_t *rates = json_array();

	for (size_t i = 0; i < TMESH_COSTS_RATES; i++) {
		const struct tmesh_costs_rate *rate = &engine->rates[i];

		json_array_append_new(rates,
				      json_pack("{s:i, s:i, s:i, s:f}", "rows", (int)rate->rows,
						"columns", (int)rate->columns, "inner",
						(int)rate->inner, "flops", rate->flops));
	}
	return rates;
}

static json_t *to_json(const struct tmesh_costs *costs)
{
	const struct tmesh_devices *list = costs->devices;
	json_t *memory = json_object(), *links = json_array(), *engines = json_object();
	size_t count = list->device_count;

	for (size_t i = 0; i < count; i++)
		json_object_set_new(memory, list->devices[i].id,
				    costs->memory_free[i] == TMESH_DEVICES_UNKNOWN
					    ? json_null()
					    : json_integer((json_int_t)costs->memory_free[i]));
	for (size_t i = 0; i < count * count; i++)
		json_array_append_new(links,
				      json_pack("{s:s, s:s, s:o, s:o}", "from",
						list->devices[i / count].id, "to",
						list->devices[i % count].id, "bandwidth",
						real_or_null(costs->links[i].bandwidth), "latency",
						real_or_null(costs->links[i].latency)));
	for (size_t i = 0; i < list->engine_count; i++) {
		const struct tmesh_costs_engine *engine = &costs->engines[i];

		if (!(engine->launch > 0))
			continue;
		json_object_set_new_nocheck(engines, list->engines[i].name,
					    json_pack("{s:f, s:o, s:f, s:o}", "launch",
						      engine->launch, "launch_served",
						      real_or_null(engine->launch_served), "node",
						      engine->node, "matmul", rates_json(engine)));
	}
	return json_pack("{s:i, s:o, s:{s:I, s:i, s:s, s:I, s:o}, s:o, s:o, s:o}", "tmesh_costs",
			 FORM, "machine", machine_of(list), "how", "measured",
			 (json_int_t)costs->when, "samples", (int)costs->samples, "counts",
			 "median after one more", "bytes", (json_int_t)costs->bytes, "load",
			 costs->load < 0 ? json_null() : json_real(costs->load), "memory_free",
			 memory, "links", links, "engines", engines);
}

char *tmesh_costs_to_json(const struct tmesh_costs *costs)
{
	json_t *whole = to_json(costs);
	char *text = whole ? json_dumps(whole, JSON_INDENT(1)) : NULL;

	json_decref(whole);
	return text;
}

/* Reading. Each says what is wrong, and gives -EPROTO. */

static bool in(const json_t *value, double most, bool zero, double *out)
{
	*out = json_number_value(value);
	return json_is_number(value) && isfinite(*out) && *out <= most &&
	       (zero ? *out >= 0 : *out > 0);
}

/* The same, and null is 0. */
static bool in_or_null(const json_t *value, double most, double *out)
{
	*out = 0;
	return json_is_null(value) || in(value, most, false, out);
}

#define MOST_RATE 1e18 /* bytes or operations a second */
#define MOST_TIME 1e6

static size_t device_by_id(const struct tmesh_devices *list, const char *id)
{
	size_t i = 0;

	while (i < list->device_count && strcmp(list->devices[i].id, id) != 0)
		i++;
	return i;
}

static int read_links(struct tmesh_costs *costs, json_t *links, json_t *memory,
		      struct tmesh_error *err)
{
	const struct tmesh_devices *list = costs->devices;
	size_t count = list->device_count;
	json_t *item;

	if (json_object_size(memory) != count || json_array_size(links) != count * count)
		return tmesh_fail(err, -EPROTO, "not as many devices and links as the machine has");
	for (size_t i = 0; i < count; i++) {
		json_t *value = json_object_get(memory, list->devices[i].id);

		if (!json_is_null(value) &&
		    (!json_is_integer(value) || json_integer_value(value) < 0))
			return tmesh_fail(err, -EPROTO, "memory_free of %s is no number of bytes",
					  list->devices[i].id);
		costs->memory_free[i] = json_is_null(value) ? TMESH_DEVICES_UNKNOWN
							    : (uint64_t)json_integer_value(value);
	}
	for (size_t i = 0; i < count * count; i++) {
		json_t *bandwidth, *latency;
		const char *from, *to;
		json_error_t wrong;

		item = json_array_get(links, i);
		if (json_unpack_ex(item, &wrong, JSON_STRICT, "{s:s, s:s, s:o, s:o}", "from", &from,
				   "to", &to, "bandwidth", &bandwidth, "latency", &latency))
			return tmesh_fail(err, -EPROTO, "link %zu: %.100s", i, wrong.text);
		if (device_by_id(list, from) != i / count || device_by_id(list, to) != i % count)
			return tmesh_fail(err, -EPROTO, "link %zu is not where it was written", i);
		if (!in_or_null(bandwidth, MOST_RATE, &costs->links[i].bandwidth) ||
		    !in_or_null(latency, MOST_TIME, &costs->links[i].latency) ||
		    json_is_null(bandwidth) != json_is_null(latency))
			return tmesh_fail(err, -EPROTO,
					  "link %zu: its bandwidth or latency cannot be", i);
	}
	return 0;
}

static int read_rates(struct tmesh_costs_engine *engine, const char *name, json_t *rates,
		      struct tmesh_error *err)
{
	if (json_array_size(rates) != TMESH_COSTS_RATES)
		return tmesh_fail(err, -EPROTO, "engine \"%.39s\" has not %d rates", name,
				  TMESH_COSTS_RATES);
	for (size_t i = 0; i < TMESH_COSTS_RATES; i++) {
		struct tmesh_costs_rate *rate = &engine->rates[i];
		int rows, columns, inner;
		json_error_t wrong;
		json_t *flops;

		if (json_unpack_ex(json_array_get(rates, i), &wrong, JSON_STRICT,
				   "{s:i, s:i, s:i, s:o}", "rows", &rows, "columns", &columns,
				   "inner", &inner, "flops", &flops))
			return tmesh_fail(err, -EPROTO, "rate %zu of engine \"%.39s\": %.100s", i,
					  name, wrong.text);
		if (rows < 1 || columns < 1 || inner < 1 ||
		    !in(flops, MOST_RATE, false, &rate->flops) ||
		    (i && (uint32_t)rows <= rate[-1].rows))
			return tmesh_fail(err, -EPROTO, "rate %zu of engine \"%.39s\" cannot be", i,
					  name);
		rate->rows = (uint32_t)rows;
		rate->columns = (uint32_t)columns;
		rate->inner = (uint32_t)inner;
	}
	return 0;
}

static int read_engines(struct tmesh_costs *costs, json_t *engines, struct tmesh_error *err)
{
	const struct tmesh_devices *list = costs->devices;
	size_t found = 0;

	for (size_t i = 0; i < list->engine_count; i++) {
		struct tmesh_costs_engine *engine = &costs->engines[i];
		const char *name = list->engines[i].name;
		json_t *launch, *served, *node, *rates, *item = json_object_get(engines, name);
		json_error_t wrong;
		int rc;

		if (!item || *list->engines[i].reason) {
			snprintf(engine->reason, sizeof(engine->reason), "it was not measured");
			continue;
		}
		found++;
		if (json_unpack_ex(item, &wrong, JSON_STRICT, "{s:o, s:o, s:o, s:o}", "launch",
				   &launch, "launch_served", &served, "node", &node, "matmul",
				   &rates))
			return tmesh_fail(err, -EPROTO, "engine \"%.39s\": %.100s", name,
					  wrong.text);
		if (!in(launch, MOST_TIME, false, &engine->launch) ||
		    !in_or_null(served, MOST_TIME, &engine->launch_served) ||
		    !in(node, MOST_TIME, true, &engine->node))
			return tmesh_fail(err, -EPROTO, "engine \"%.39s\": its times cannot be",
					  name);
		rc = read_rates(engine, name, rates, err);
		if (rc)
			return rc;
	}
	if (!json_is_object(engines) || found != json_object_size(engines))
		return tmesh_fail(err, -EPROTO, "it has engines that this machine has not");
	return 0;
}

/* Where two texts begin to differ, and some bytes before. */
static size_t alike(const char *a, const char *b)
{
	size_t i = 0;

	while (a && b && a[i] && a[i] == b[i])
		i++;
	return i > 12 ? i - 12 : 0;
}

/* 0: the same machine. */
static int same_machine(const struct tmesh_devices *list, const json_t *was,
			struct tmesh_error *err)
{
	static const char *const parts[] = {"kernel", "devices", "engines"};
	json_t *now = machine_of(list);
	int rc = 0;

	if (!now)
		return tmesh_fail(err, -ENOMEM, "no memory for what this machine is");
	if (json_object_size(was) != sizeof(parts) / sizeof(*parts))
		rc = tmesh_fail(err, -EPROTO, "it does not say of which machine it is");
	for (size_t i = 0; !rc && i < sizeof(parts) / sizeof(*parts); i++) {
		const json_t *old = json_object_get(was, parts[i]);
		const json_t *new = json_object_get(now, parts[i]);
		char *before, *here;

		if (old && json_equal(old, new))
			continue;
		before = json_dumps(old, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII |
						 JSON_SORT_KEYS);
		here = json_dumps(new, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII |
					       JSON_SORT_KEYS);
		rc = tmesh_fail(err, -ESTALE, "its %s: %.45s, here: %.45s", parts[i],
				before ? before + alike(before, here) : "missing",
				here ? here + alike(before, here) : "?");
		free(before);
		free(here);
	}
	json_decref(now);
	return rc;
}

static int from_json(struct tmesh_costs *costs, json_t *whole, struct tmesh_error *err)
{
	json_t *machine, *load, *memory, *links, *engines;
	json_int_t when, bytes;
	json_error_t wrong;
	const char *counts;
	int form, samples, rc;

	if (json_unpack_ex(whole, &wrong, JSON_STRICT,
			   "{s:i, s:o, s:{s:I, s:i, s:s, s:I, s:o}, s:o, s:o, s:o}", "tmesh_costs",
			   &form, "machine", &machine, "how", "measured", &when, "samples",
			   &samples, "counts", &counts, "bytes", &bytes, "load", &load,
			   "memory_free", &memory, "links", &links, "engines", &engines))
		return tmesh_fail(err, -EPROTO, "%.120s", wrong.text);
	if (form != FORM)
		return tmesh_fail(err, -EPROTO, "it is of form %d, and this is for form %d", form,
				  FORM);
	/* First, so that a machine that was changed is not said to be a broken file. */
	rc = same_machine(costs->devices, machine, err);
	if (rc)
		return rc;
	if (samples < 1 || bytes < 1 || when < 0)
		return tmesh_fail(err, -EPROTO, "what it says of how it was measured cannot be");
	costs->samples = (uint32_t)samples;
	costs->bytes = (uint64_t)bytes;
	costs->when = when;
	costs->load = -1;
	if (!json_is_null(load) && !in(load, 1e9, true, &costs->load))
		return tmesh_fail(err, -EPROTO, "its load is no number");
	rc = read_links(costs, links, memory, err);
	return rc ?: read_engines(costs, engines, err);
}

int tmesh_costs_path(const struct tmesh_devices *devices, char *path, size_t bytes,
		     struct tmesh_error *err)
{
	static const uint64_t key[2] = {0x746d657368, 0x636f737473};
	const char *cache = secure_getenv("XDG_CACHE_HOME"), *below = "";
	char text[DEVICES_MAX * 96];
	size_t used = 0;

	/* A relative one is to be ignored, says the XDG base directory specification. */
	if (!cache || *cache != '/') {
		cache = secure_getenv("HOME");
		below = "/.cache";
	}
	if (!cache || *cache != '/')
		return tmesh_fail(
			err, -ENOENT,
			"neither XDG_CACHE_HOME nor HOME names a folder to keep costs in");
	for (size_t i = 0; i < devices->device_count; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s %s\n",
					 devices->devices[i].id, devices->devices[i].name);
	if ((size_t)snprintf(path, bytes, "%s%s/tmesh/costs-%016" PRIx64 ".json", cache, below,
			     tmesh_siphash(key, text, used)) >= bytes)
		return tmesh_fail(err, -ERANGE, "the cache's folder has a name that is too long");
	return 0;
}

static int make_folder(const char *folder, struct tmesh_error *err)
{
	if (!mkdir(folder, 0700) || errno == EEXIST)
		return 0;
	return tmesh_fail(err, -errno, "%.150s cannot be made: %s", folder, strerror(errno));
}

/* The two last folders of a path: the cache's and ours. */
static int make_folders(const char *path, struct tmesh_error *err)
{
	char folder[4096];
	char *end;
	int rc = 0;

	snprintf(folder, sizeof(folder), "%s", path);
	end = strrchr(folder, '/');
	*end = '\0';
	end = strrchr(folder, '/');
	*end = '\0';
	if (*folder)
		rc = make_folder(folder, err);
	*end = '/';
	return rc ?: make_folder(folder, err);
}

static int write_all(int file, const char *text, size_t bytes)
{
	while (bytes) {
		ssize_t wrote = write(file, text, bytes);

		if (wrote < 0 && errno == EINTR)
			continue;
		if (wrote < 0)
			return -1;
		text += wrote;
		bytes -= (size_t)wrote;
	}
	return fsync(file);
}

int tmesh_costs_write(const struct tmesh_costs *costs, const char *path, struct tmesh_error *err)
{
	char kept[4000], fresh[4096], *text;
	int file, rc = 0;

	if (!path) {
		rc = tmesh_costs_path(costs->devices, kept, sizeof(kept), err);
		if (rc)
			return rc;
		rc = make_folders(kept, err);
		if (rc)
			return rc;
		path = kept;
	}
	if ((size_t)snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path) >= sizeof(fresh))
		return tmesh_fail(err, -ENAMETOOLONG, "%.60s...: the name is too long", path);
	text = tmesh_costs_to_json(costs);
	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for costs as JSON");
	/* Of mode 0600. */
	file = mkostemp(fresh, O_CLOEXEC);
	if (file < 0) {
		rc = -errno;
		tmesh_fail(err, rc, "%.150s: %s", path, strerror(-rc));
	} else if (write_all(file, text, strlen(text)) || rename(fresh, path)) {
		rc = -errno;
		tmesh_fail(err, rc, "%.150s: %s", path, strerror(-rc));
		unlink(fresh);
	}
	if (file >= 0)
		close(file);
	free(text);
	return rc;
}

/* The text of a file that is this user's alone to write; to be released. */
static int read_file(const char *path, char **out, size_t *bytes, struct tmesh_error *err)
{
	int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat told;
	ssize_t got = 0;
	int rc = 0;

	if (file < 0) {
		rc = -errno;
		return rc == -ENOENT  ? tmesh_fail(err, rc, "nothing was measured on this machine")
		       : rc == -ELOOP ? tmesh_fail(err, -EPERM, "it is a symbolic link")
				      : tmesh_fail(err, rc, "%s", strerror(-rc));
	}
	if (fstat(file, &told))
		rc = tmesh_fail_errno(err, "what it is cannot be seen");
	else if (!S_ISREG(told.st_mode) || told.st_uid != geteuid())
		rc = tmesh_fail(err, -EPERM, "it is no file of this user's");
	else if (told.st_mode & 022)
		rc = tmesh_fail(err, -EPERM, "others may write it (mode %04o)",
				told.st_mode & 07777);
	else if (told.st_size > FILE_MAX_BYTES)
		rc = tmesh_fail(err, -EPROTO, "it has more than %d bytes", FILE_MAX_BYTES);
	*out = rc ? NULL : malloc(FILE_MAX_BYTES + 1);
	if (!rc && !*out)
		rc = tmesh_fail(err, -ENOMEM, "no memory to read it");
	for (*bytes = 0; !rc && *bytes <= FILE_MAX_BYTES; *bytes += (size_t)got) {
		got = read(file, *out + *bytes, FILE_MAX_BYTES + 1 - *bytes);
		if (got < 0)
			rc = tmesh_fail_errno(err, "it cannot be read");
		if (got <= 0)
			break;
	}
	if (!rc && *bytes > FILE_MAX_BYTES)
		rc = tmesh_fail(err, -EPROTO, "it has more than %d bytes", FILE_MAX_BYTES);
	close(file);
	if (rc)
		free(*out);
	return rc;
}

static int parse(struct tmesh_devices *devices, const char *text, size_t bytes,
		 struct tmesh_costs **out, struct tmesh_error *err)
{
	struct tmesh_costs *costs = costs_new(devices, err);
	json_error_t wrong;
	json_t *whole;
	int rc;

	if (!costs)
		return -ENOMEM;
	whole = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &wrong);
	rc = whole ? from_json(costs, whole, err)
		   : tmesh_fail(err, -EPROTO, "line %d: %.100s", wrong.line, wrong.text);
	json_decref(whole);
	if (rc)
		tmesh_costs_unref(costs);
	else
		*out = costs;
	return rc;
}

int tmesh_costs_parse(struct tmesh_devices *devices, const char *text, size_t bytes,
		      struct tmesh_costs **out, struct tmesh_error *err)
{
	struct tmesh_error why;
	int rc = parse(devices, text, bytes, out, &why);

	return rc ? tmesh_fail(err, rc, "costs: %.135s: " ADVICE, why.message) : 0;
}

int tmesh_costs_read(struct tmesh_devices *devices, const char *path, struct tmesh_costs **out,
		     struct tmesh_error *err)
{
	struct tmesh_error why;
	char kept[4000], *text = NULL;
	size_t bytes = 0;
	int rc;

	if (!path) {
		rc = tmesh_costs_path(devices, kept, sizeof(kept), err);
		if (rc)
			return rc;
		path = kept;
	}
	rc = read_file(path, &text, &bytes, &why);
	if (rc)
		return tmesh_fail(err, rc, "%.100s: %.100s: " ADVICE, path, why.message);
	rc = parse(devices, text, bytes, out, &why);
	free(text);
	return rc ? tmesh_fail(err, rc, "%.70s: %.135s: " ADVICE, path, why.message) : 0;
}
