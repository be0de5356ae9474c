// SPDX-License-Identifier: MIT
/* What devices, their links and engines take: measured. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "costs_internal.h"

#define SAMPLES 9
#define SAMPLES_MAX 1001
#define COPY_BYTES (32ull << 20)
#define SMALL 64      /* bytes of a copy that shows the latency */
#define CHAIN 64      /* nodes more than one */
#define SHORT_RUNS 64 /* of a short run, for a sample */

static const struct tmesh_costs_rate sizes[TMESH_COSTS_RATES] = {
	{.rows = 1, .columns = 512, .inner = 512},
	{.rows = 32, .columns = 512, .inner = 512},
	{.rows = 256, .columns = 512, .inner = 512},
};

struct measuring {
	struct tmesh_costs *costs;
	struct tmesh_ctx *ctx;
	const struct tmesh_costs_opts *opts;
	double *times; /* room for the samples */
};

struct tmesh_costs *costs_new(struct tmesh_devices *devices, struct tmesh_error *err)
{
	struct tmesh_costs *costs = calloc(1, sizeof(*costs));

	if (!costs) {
		tmesh_fail(err, -ENOMEM, "no memory for costs");
		return NULL;
	}
	costs->refs = 1;
	costs->devices = tmesh_devices_ref(devices);
	return costs;
}

struct tmesh_costs *tmesh_costs_ref(struct tmesh_costs *costs)
{
	atomic_fetch_add(&costs->refs, 1);
	return costs;
}

void tmesh_costs_unref(struct tmesh_costs *costs)
{
	if (!costs || atomic_fetch_sub(&costs->refs, 1) != 1)
		return;
	tmesh_devices_unref(costs->devices);
	free(costs);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static uint64_t now(const struct measuring *m)
{
	return m->opts->now_ns ? m->opts->now_ns(m->opts->data) : tmesh_now_ns();
}

/* The median time of @run, in seconds, above 0; @runs of it are one sample. */
static int median(const struct measuring *m, int (*run)(void *data, struct tmesh_error *err),
		  void *data, uint32_t runs, double *out, struct tmesh_error *err)
{
	uint32_t samples = m->costs->samples;

	for (uint32_t i = 0; i <= samples; i++) {
		uint64_t begin = now(m), end;

		for (uint32_t n = 0; n < runs; n++) {
			int rc = run(data, err);

			if (rc)
				return rc;
		}
		end = now(m);
		/* The first one warms up. */
		if (i)
			m->times[i - 1] =
				end > begin ? (double)(end - begin) / 1e9 / runs : 0.5e-9 / runs;
	}
	qsort(m->times, samples, sizeof(*m->times), by_size);
	*out = m->times[samples / 2];
	return 0;
}

struct copy {
	void *from, *to;
	size_t bytes;
};

static int copy(void *data, struct tmesh_error *err)
{
	struct copy *c = data;

	memcpy(c->to, c->from, c->bytes);
	/* So that no copy is left out. */
	__asm__ volatile("" ::: "memory");
	return 0;
}

/* This thread on the processors of a device; false: it may not go there. */
static bool go(const struct tmesh_devices *devices, size_t device)
{
	cpu_set_t set;

	return devices_processors(devices, devices->devices[device].node, &set) &&
	       !sched_setaffinity(0, sizeof(set), &set);
}

/* Memory is of the device whose processors ask for it and write it first. */
static int make_at(struct measuring *m, struct tmesh_region **region, void **memory,
		   struct tmesh_error *err)
{
	int rc = tmesh_region_create(m->ctx, m->costs->bytes, NULL, region, err);

	if (!rc)
		rc = tmesh_region_map(*region, TMESH_READ | TMESH_WRITE, memory, err);
	if (!rc)
		memset(*memory, 1, m->costs->bytes);
	return rc;
}

static int time_copy(struct measuring *m, void *from, void *to, struct tmesh_placement_link *link,
		     struct tmesh_error *err)
{
	struct copy c = {from, to, m->costs->bytes};
	double seconds;
	int rc = median(m, copy, &c, 1, &seconds, err);

	if (rc)
		return rc;
	link->bandwidth = (double)c.bytes / seconds;
	c.bytes = SMALL;
	return median(m, copy, &c, SHORT_RUNS, &link->latency, err);
}

/* Copies are made by the processors that read the value then. @several: nodes. */
static int measure_link(struct measuring *m, size_t from, size_t to, bool several,
			struct tmesh_error *err)
{
	struct tmesh_devices *devices = m->costs->devices;
	struct tmesh_region *regions[2] = {0};
	const size_t at[] = {from, to};
	void *memory[2];
	cpu_set_t before;
	bool there = true;
	int rc = 0;

	if (several && sched_getaffinity(0, sizeof(before), &before))
		return tmesh_fail_errno(err, "which processors this thread may use");
	for (int i = 0; !rc && there && i < 2; i++) {
		there = !several || go(devices, at[i]);
		if (there)
			rc = make_at(m, &regions[i], &memory[i], err);
	}
	if (!rc && there)
		rc = time_copy(m, memory[0], memory[1],
			       &m->costs->links[from * devices->device_count + to], err);
	if (several)
		sched_setaffinity(0, sizeof(before), &before);
	tmesh_region_unref(regions[0]);
	tmesh_region_unref(regions[1]);
	return rc;
}

static int measure_links(struct measuring *m, struct tmesh_error *err)
{
	struct tmesh_devices *devices = m->costs->devices;
	size_t count = devices->device_count, nodes = 0;
	int rc = 0;

	for (size_t i = 0; i < count; i++) {
		const struct tmesh_devices_device *device = &devices->devices[i];

		m->costs->memory_free[i] = device->memory_free;
		if (device->device_type != TMESH_DEVICE_CPU)
			continue;
		nodes++;
		if (device->memory_free / 4 < m->costs->bytes)
			return tmesh_fail(err, -ENOSPC,
					  "copies of %" PRIu64
					  " bytes want four times that free on "
					  "%s, which has %" PRIu64,
					  m->costs->bytes, device->id, device->memory_free);
	}
	for (size_t i = 0; !rc && i < count * count; i++)
		if (devices->devices[i / count].device_type == TMESH_DEVICE_CPU &&
		    devices->devices[i % count].device_type == TMESH_DEVICE_CPU)
			rc = measure_link(m, i / count, i % count, nodes > 1, err);
	return rc;
}

/* A model's file: one without a name, or in the folder that a served engine reads. */
static int put_model(const struct costs_model *model, const char *folder, char *path, size_t bytes,
		     struct tmesh_error *err)
{
	int file;

	if (folder) {
		if ((size_t)snprintf(path, bytes, "%s/cost-XXXXXX", folder) >= bytes)
			return tmesh_fail(err, -ENAMETOOLONG, "%.80s... is too long", folder);
		file = mkostemp(path, O_CLOEXEC);
	} else {
		file = memfd_create("tmesh-cost", MFD_CLOEXEC);
		snprintf(path, bytes, "/proc/self/fd/%d", file);
	}
	if (file < 0)
		return tmesh_fail_errno(err, "making a model's file");
	if (write(file, model->data, model->bytes) != (ssize_t)model->bytes) {
		int rc = tmesh_fail_errno(err, "writing a model");

		close(file);
		if (folder)
			unlink(path);
		return rc;
	}
	return file;
}

static int run_binding(void *data, struct tmesh_error *err)
{
	return tmesh_engine_binding_dispatch(data, err);
}

/* A device tensor for each operand of a graph with fixed shapes; elements are 0. */
static int bind_all(struct tmesh_engine_context *context, struct tmesh_engine_graph *graph,
		    struct tmesh_engine_binding **out, struct tmesh_error *err)
{
	struct tmesh_engine_value values[3] = {0};
	size_t inputs = tmesh_engine_graph_inputs(graph), used = 0;
	int rc = 0;

	if (inputs > 2 || tmesh_engine_graph_outputs(graph) != 1)
		return tmesh_fail(err, -EIO, "the engine does not have the graph as it is");
	for (size_t i = 0; !rc && i <= inputs; i++) {
		struct tmesh_engine_operand operand = {.size = sizeof(operand)};

		rc = i < inputs ? tmesh_engine_graph_input(graph, i, &operand, err)
				: tmesh_engine_graph_output(graph, 0, &operand, err);
		values[i].name = operand.name;
		if (!rc)
			rc = tmesh_engine_tensor_create(context, operand.dtype, operand.ndim,
							operand.shape, 0, &values[i].tensor, err);
		used += !rc;
	}
	if (!rc)
		rc = tmesh_engine_bind(graph, values, inputs, &values[inputs], 1, out, err);
	for (size_t i = 0; i < used; i++)
		tmesh_engine_tensor_unref(values[i].tensor);
	return rc;
}

/* What one dispatch of @model takes; the model is released. */
static int time_model(struct measuring *m, struct tmesh_engine_context *context, const char *folder,
		      struct costs_model *model, uint32_t runs, double *out,
		      struct tmesh_error *err)
{
	struct tmesh_engine_graph_opts opts = {.size = sizeof(opts)};
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_graph *graph;
	char path[4096];
	int rc, file = put_model(model, folder, path, sizeof(path), err);

	free(model->data);
	if (file < 0)
		return file;
	rc = tmesh_engine_graph_open(context, path, &opts, &graph, err);
	if (!rc) {
		rc = bind_all(context, graph, &binding, err);
		if (!rc) {
			rc = median(m, run_binding, binding, runs, out, err);
			tmesh_engine_binding_unref(binding);
		}
		tmesh_engine_graph_unref(graph);
	}
	close(file);
	if (folder)
		unlink(path);
	return rc;
}

static int time_chain(struct measuring *m, struct tmesh_engine_context *context, const char *folder,
		      const char *reads, uint32_t nodes, double *out, struct tmesh_error *err)
{
	struct costs_model model;

	if (!costs_chain(&model, reads, nodes))
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	return time_model(m, context, folder, &model, SHORT_RUNS, out, err);
}

static int measure_rates(struct measuring *m, struct tmesh_engine_context *context,
			 const char *reads, struct tmesh_costs_engine *out, struct tmesh_error *err)
{
	for (size_t i = 0; i < TMESH_COSTS_RATES; i++) {
		struct tmesh_costs_rate *rate = &out->rates[i];
		struct costs_model model;
		double seconds;
		int rc;

		*rate = sizes[i];
		if (!costs_matmul(&model, reads, rate))
			return tmesh_fail(err, -ENOMEM, "no memory for a graph");
		rc = time_model(m, context, NULL, &model, 1, &seconds, err);
		if (rc)
			return rc;
		rate->flops = 2.0 * rate->rows * rate->columns * rate->inner / seconds;
	}
	return 0;
}

static int measure_here(struct measuring *m, const struct tmesh_devices_engine *engine,
			struct tmesh_costs_engine *out, struct tmesh_error *err)
{
	struct tmesh_engine_context_opts opts = {.size = sizeof(opts)};
	struct tmesh_engine_context *context;
	double many;
	int rc;

	if (*engine->library == '/')
		opts.library = engine->library;
	rc = tmesh_engine_context_create(m->ctx, engine->name, &opts, &context, err);
	if (rc)
		return rc;
	rc = time_chain(m, context, NULL, engine->reads, 1, &out->launch, err);
	if (!rc)
		rc = time_chain(m, context, NULL, engine->reads, 1 + CHAIN, &many, err);
	if (!rc) {
		out->node = many > out->launch ? (many - out->launch) / CHAIN : 0;
		rc = measure_rates(m, context, engine->reads, out, err);
	}
	tmesh_engine_context_unref(context);
	return rc;
}

static int measure_served(struct measuring *m, const struct tmesh_costs_served *served,
			  const char *reads, double *out, struct tmesh_error *err)
{
	struct tmesh_engine_connect_opts opts = {.size = sizeof(opts)};
	struct tmesh_engine_context *context;
	int rc = tmesh_engine_connect(m->ctx, served->name, &opts, &context, err);

	if (rc)
		return rc;
	if (strcmp(tmesh_engine_context_backend(context), served->engine))
		rc = tmesh_fail(
			err, -EINVAL, "\"%.32s\" serves the engine \"%.32s\", not \"%.32s\"",
			served->name, tmesh_engine_context_backend(context), served->engine);
	else
		rc = time_chain(m, context, served->folder, reads, 1, out, err);
	tmesh_engine_context_unref(context);
	return rc;
}

static int measure_engines(struct measuring *m, struct tmesh_error *err)
{
	struct tmesh_devices *devices = m->costs->devices;

	for (size_t i = 0; i < devices->engine_count; i++) {
		const struct tmesh_devices_engine *engine = &devices->engines[i];
		struct tmesh_costs_engine *out = &m->costs->engines[i], got = {0};
		struct tmesh_error why;
		int rc = 0;

		if (*engine->reason) {
			snprintf(out->reason, sizeof(out->reason), "it cannot be used");
			continue;
		}
		if (strcmp(engine->reads, "graph") && strcmp(engine->reads, "onnx")) {
			snprintf(out->reason, sizeof(out->reason),
				 "it says of no form of graphs that it reads it");
			continue;
		}
		if (measure_here(m, engine, &got, &why)) {
			snprintf(out->reason, sizeof(out->reason), "%.159s", why.message);
			continue;
		}
		for (size_t n = 0; !rc && n < m->opts->served_count; n++)
			if (!strcmp(m->opts->served[n].engine, engine->name))
				rc = measure_served(m, &m->opts->served[n], engine->reads,
						    &got.launch_served, err);
		if (rc)
			return rc;
		*out = got;
	}
	return 0;
}

static double load_now(void)
{
	double load;

	return getloadavg(&load, 1) == 1 ? load : -1;
}

static int check(const struct tmesh_costs_opts *opts, struct tmesh_error *err)
{
	if (opts->samples > SAMPLES_MAX || opts->reserved)
		return tmesh_fail(err, -EINVAL, "at most %d samples, and reserved is 0",
				  SAMPLES_MAX);
	if (opts->bytes && (opts->bytes < 4096 || opts->bytes > 1ull << 40))
		return tmesh_fail(err, -EINVAL, "a copy has 4 KiB to 1 TiB, not %" PRIu64 " bytes",
				  opts->bytes);
	if (opts->served_count && !opts->served)
		return tmesh_fail(err, -EINVAL, "%zu served engines, and no list of them",
				  opts->served_count);
	for (size_t i = 0; i < opts->served_count; i++)
		if (!opts->served[i].engine || !opts->served[i].name || !opts->served[i].folder)
			return tmesh_fail(err, -EINVAL,
					  "served engine %zu has no engine, no name or no folder",
					  i);
	return 0;
}

int tmesh_costs_measure(struct tmesh_ctx *ctx, struct tmesh_devices *devices,
			const struct tmesh_costs_opts *given, struct tmesh_costs **out,
			struct tmesh_error *err)
{
	double times[SAMPLES_MAX];
	struct tmesh_costs_opts opts;
	struct measuring m = {.ctx = ctx, .opts = &opts, .times = times};
	int rc = tmesh_read_sized(&opts, sizeof(opts), given, err);

	if (!rc)
		rc = check(&opts, err);
	if (rc)
		return rc;
	m.costs = costs_new(devices, err);
	if (!m.costs)
		return -ENOMEM;
	m.costs->when = time(NULL);
	m.costs->load = load_now();
	m.costs->samples = opts.samples ?: SAMPLES;
	m.costs->bytes = opts.bytes ?: COPY_BYTES;
	rc = measure_links(&m, err);
	if (!rc)
		rc = measure_engines(&m, err);
	if (rc)
		tmesh_costs_unref(m.costs);
	else
		*out = m.costs;
	return rc;
}

int tmesh_costs_link(const struct tmesh_costs *costs, size_t from, size_t to,
		     struct tmesh_placement_link *out, struct tmesh_error *err)
{
	size_t count = costs->devices->device_count;

	if (from >= count || to >= count)
		return tmesh_fail(err, -EINVAL, "there is no device %zu of %zu",
				  from >= count ? from : to, count);
	*out = costs->links[from * count + to];
	return 0;
}

int tmesh_costs_engine(const struct tmesh_costs *costs, size_t index,
		       struct tmesh_costs_engine *out, struct tmesh_error *err)
{
	if (index >= costs->devices->engine_count)
		return tmesh_fail(err, -EINVAL, "there is no engine %zu of %zu", index,
				  costs->devices->engine_count);
	return tmesh_write_sized(out, &costs->engines[index], sizeof(*out), err);
}
