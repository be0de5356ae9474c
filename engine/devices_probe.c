// SPDX-License-Identifier: MIT
/* Find the operators that an engine runs: try to open a graph of one node for each. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/file_size.h"
#include "devices_internal.h"
#include "graph_internal.h"

/* "%s" stands for the dtype. */
static const char *const graphs[] = {
	[TMESH_GRAPH_MATMUL] =
		"x = input : float32[2,64]\nw = input : %s[32,64]\ny = matmul(x, w)\n",
	[TMESH_GRAPH_RMS_NORM] = "x = input : %s[2,64]\ny = rms_norm(x) eps=1e-05\n",
	[TMESH_GRAPH_LAYER_NORM] = "x = input : %s[2,64]\ny = layer_norm(x) eps=1e-05\n",
	[TMESH_GRAPH_ROPE] =
		"x = input : %s[2,2,64]\np = input : int32[2]\ny = rope(x, p) halves=true\n",
	[TMESH_GRAPH_SOFTMAX] = "x = input : %s[2,64]\ny = softmax(x)\n",
	[TMESH_GRAPH_ADD] = "x = input : %s[2,64]\nz = input : %s[2,64]\ny = add(x, z)\n",
	[TMESH_GRAPH_MUL] = "x = input : %s[2,64]\nz = input : %s[2,64]\ny = mul(x, z)\n",
	[TMESH_GRAPH_SILU] = "x = input : %s[2,64]\ny = silu(x)\n",
	[TMESH_GRAPH_GELU] = "x = input : %s[2,64]\ny = gelu(x)\n",
	[TMESH_GRAPH_GET_ROWS] =
		"x = input : %s[32,64]\nr = input : int32[2]\ny = get_rows(x, r)\n",
	[TMESH_GRAPH_SET_ROWS] = "x = input : %s[32,64]\nn = input : float32[2,64]\n"
				 "r = input : int64[2]\ny = set_rows(x, n, r)\n",
	[TMESH_GRAPH_RESHAPE] = "x = input : %s[2,64]\ny = reshape(x) : %s[64,2]\n",
	[TMESH_GRAPH_TRANSPOSE] = "x = input : %s[2,64]\ny = transpose(x) axes=1,0\n",
	[TMESH_GRAPH_CONCAT] =
		"x = input : %s[2,64]\nz = input : %s[2,64]\ny = concat(x, z) axis=0\n",
	[TMESH_GRAPH_ATTENTION] =
		"q = input : float32[2,4,64]\nk = input : %s[32,2,64]\nv = input : %s[32,2,64]\n"
		"p = input : int32[2]\ny = attention(q, k, v, p)\n",
	[TMESH_GRAPH_LORA] =
		"x = input : float32[2,64]\nw = input : %s[32,64]\na = input : float32[4,64]\n"
		"b = input : float32[32,4]\ny = lora(x, w, a, b)\n",
};
_Static_assert(sizeof(graphs) / sizeof(*graphs) <= TMESH_DEVICES_OPERATORS, "room");

static const enum tmesh_dtype dtypes[] = {TMESH_FLOAT32, TMESH_FLOAT16, TMESH_BFLOAT16};

/* Write the graph to a file in memory; -1: impossible. */
static int write_graph(const char *form, const char *dtype, char *path, size_t size)
{
	int file = memfd_create("tmesh-graph", MFD_CLOEXEC);

	if (file < 0)
		return -1;
		/* Forms with one "%s" ignore the second argument. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
	if (tmesh_dprintf(file, "graph probe\n") < 0 ||
	    tmesh_dprintf(file, form, dtype, dtype) < 0 ||
	    tmesh_dprintf(file, "output o = y\n") < 0) {
#pragma GCC diagnostic pop
		close(file);
		return -1;
	}
	snprintf(path, size, "/proc/self/fd/%d", file);
	return file;
}

static bool runs(const struct tmesh_engine_plugin *plugin, void *engine, const char *form,
		 enum tmesh_dtype dtype)
{
	struct plugin_session session = {0};
	struct plugin_session_opts opts = {0};
	struct tmesh_error err;
	char path[32];
	int file, rc;

	file = write_graph(form, graph_dtype_name(dtype), path, sizeof(path));
	if (file < 0)
		return false;
	opts.path = path;
	rc = plugin->session_open(engine, &opts, &session, &err);
	if (!rc)
		plugin->session_close(engine, &session);
	close(file);
	return !rc;
}

void devices_probe(const struct tmesh_engine_plugin *plugin, void *engine,
		   struct tmesh_devices_engine *out)
{
	for (size_t op = 0; op < sizeof(graphs) / sizeof(*graphs); op++)
		for (size_t i = 0; graphs[op] && i < sizeof(dtypes) / sizeof(*dtypes); i++)
			if (runs(plugin, engine, graphs[op], dtypes[i]))
				out->operators[op] |= 1ull << dtypes[i];
}
