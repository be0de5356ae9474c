// SPDX-License-Identifier: MIT
/* Infer the dtype and shape of each operator's value, and check its inputs. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph_internal.h"

/* A node and its inputs. */
struct site {
	struct tmesh_graph_node *node;
	const struct tmesh_graph_node *in[TMESH_GRAPH_MAX_INPUTS];
	struct tmesh_error *err;
};

static int wrong(const struct site *site, const char *what)
{
	char all[3 * (GRAPH_SHAPE_TEXT + 80) + 16] = "", shape[GRAPH_SHAPE_TEXT];
	size_t at = 0;

	for (uint32_t i = 0; i < site->node->input_count && i < 3; i++) {
		const struct tmesh_graph_node *in = site->in[i];

		at += (size_t)snprintf(all + at, sizeof(all) - at, "%s\"%.50s\" %s%s",
				       i ? ", " : "; given ", in->name,
				       in->quant ? in->quant : graph_dtype_name(in->dtype),
				       graph_shape_text(in, shape));
	}
	return tmesh_fail(site->err, -EINVAL, "node \"%s\": %s: %s%s", site->node->name,
			  graph_op(site->node->op)->name, what, all);
}

static bool is_float(const struct tmesh_graph_node *node)
{
	return node->dtype == TMESH_FLOAT32 || node->dtype == TMESH_FLOAT16 ||
	       node->dtype == TMESH_BFLOAT16;
}

static int64_t last(const struct tmesh_graph_node *node)
{
	return node->ndim ? node->shape[node->ndim - 1] : 1;
}

static int64_t elements(const struct tmesh_graph_node *node)
{
	int64_t count = 1;

	for (int i = 0; i < node->ndim; i++)
		count *= node->shape[i];
	return count;
}

/* Set the value's shape. Computed values are float32. */
static void becomes(struct site *site, int32_t ndim, const int64_t *shape)
{
	site->node->dtype = TMESH_FLOAT32;
	site->node->ndim = ndim;
	memcpy(site->node->shape, shape, sizeof(*shape) * (size_t)ndim);
}

static bool vector_of(const struct tmesh_graph_node *node, enum tmesh_dtype dtype, int64_t length)
{
	return node->ndim == 1 && node->shape[0] == length && node->dtype == dtype && !node->quant;
}

static int check_shape(const struct tmesh_graph_node *node, struct tmesh_error *err)
{
	int64_t count = 1;

	if (node->ndim < 0 || node->ndim > TMESH_MAX_DIMS)
		return tmesh_fail(err, -EINVAL, "node \"%s\": at most %d dimensions", node->name,
				  TMESH_MAX_DIMS);
	for (int i = 0; i < node->ndim; i++) {
		if (node->shape[i] < 1)
			return tmesh_fail(err, -EINVAL,
					  "node \"%s\": dimension %d is %" PRId64
					  ", at least 1 is needed",
					  node->name, i, node->shape[i]);
		if (__builtin_mul_overflow(count, node->shape[i], &count) ||
		    count > GRAPH_MAX_ELEMENTS)
			return tmesh_fail(err, -EOVERFLOW,
					  "node \"%s\" has more than 2^48 elements", node->name);
	}
	return 0;
}

static int given(struct site *site)
{
	const struct tmesh_graph_node *node = site->node;
	const struct graph_quant *quant = graph_quant(node->quant);

	if (!graph_dtype_name(node->dtype))
		return wrong(site, "its dtype is float32, float16, bfloat16, int32 or int64");
	if (node->quant &&
	    (node->dtype != TMESH_FLOAT32 || !node->ndim || last(node) % quant->block_elements))
		return wrong(site, "blocks are of float32, and a whole number of them is a row");
	return 0;
}

static int matmul(struct site *site)
{
	const struct tmesh_graph_node *a = site->in[0], *b = site->in[1];

	if (a->ndim < 2 || b->ndim < 2 || (b->ndim != 2 && b->ndim != a->ndim) ||
	    last(a) != last(b) || a->dtype != TMESH_FLOAT32 || a->quant || !is_float(b))
		return wrong(site, "it takes a[..., T, K] of float32 and b[..., N, K]");
	for (int i = 0; b->ndim > 2 && i < a->ndim - 2; i++)
		if (a->shape[i] != b->shape[i])
			return wrong(site, "the first dimensions are the same");
	becomes(site, a->ndim, a->shape);
	site->node->shape[a->ndim - 1] = b->shape[b->ndim - 2];
	return 0;
}

static bool matrix_of(const struct tmesh_graph_node *node, int64_t rows, int64_t columns)
{
	return node->ndim == 2 && node->shape[0] == rows && node->shape[1] == columns &&
	       is_float(node);
}

static int lora(struct site *site)
{
	const struct tmesh_graph_node *x = site->in[0], *w = site->in[1], *a = site->in[2];
	int64_t rank = a->ndim ? a->shape[0] : 0;

	if (x->ndim < 2 || x->dtype != TMESH_FLOAT32 || x->quant || w->ndim != 2 ||
	    !matrix_of(w, w->shape[0], last(x)) || !matrix_of(a, rank, last(x)) ||
	    !matrix_of(site->in[3], w->shape[0], rank))
		return wrong(site,
			     "it takes x[..., T, K] of float32, w[N, K], a[R, K] and b[N, R]");
	if (site->node->input_count > 4 && !vector_of(site->in[4], TMESH_FLOAT32, 1))
		return wrong(site, "its scale is float32[1]");
	becomes(site, x->ndim, x->shape);
	site->node->shape[x->ndim - 1] = w->shape[0];
	return 0;
}

static int norm(struct site *site)
{
	const struct tmesh_graph_node *x = site->in[0];

	if (!x->ndim || x->dtype != TMESH_FLOAT32 || x->quant)
		return wrong(site, "it takes x[..., D] of float32");
	for (uint32_t i = 1; i < site->node->input_count; i++)
		if (!vector_of(site->in[i], TMESH_FLOAT32, last(x)))
			return wrong(site, "its scale and bias are float32[D]");
	if (!(site->node->eps >= 0) || !isfinite(site->node->eps))
		return wrong(site, "eps is a number, 0 or more");
	becomes(site, x->ndim, x->shape);
	return 0;
}

static int rope(struct site *site)
{
	const struct tmesh_graph_node *x = site->in[0];
	struct tmesh_graph_node *node = site->node;

	if (x->ndim != 3 || x->dtype != TMESH_FLOAT32 || x->quant ||
	    !vector_of(site->in[1], TMESH_INT32, x->shape[0]))
		return wrong(site, "it takes x[T, H, D] of float32 and positions int32[T]");
	if (!node->dims && last(x) <= UINT32_MAX)
		node->dims = (uint32_t)last(x);
	if (!node->dims || node->dims > last(x) || node->dims % 2)
		return wrong(site, "dims is even and at most D");
	if (!node->base)
		node->base = 10000;
	if (!(node->base > 0) || !isfinite(node->base))
		return wrong(site, "base is above 0");
	if (node->input_count > 2 && !vector_of(site->in[2], TMESH_FLOAT32, node->dims / 2))
		return wrong(site, "its factors are float32[dims / 2]");
	becomes(site, x->ndim, x->shape);
	return 0;
}

static int check_scale(struct site *site)
{
	return isfinite(site->node->scale) ? 0 : wrong(site, "scale is a number");
}

static int one(struct site *site)
{
	const struct tmesh_graph_node *x = site->in[0];

	if (!x->ndim || x->dtype != TMESH_FLOAT32 || x->quant)
		return wrong(site, "it takes x[..., D] of float32");
	becomes(site, x->ndim, x->shape);
	return site->node->op == TMESH_GRAPH_SOFTMAX ? check_scale(site) : 0;
}

static int elementwise(struct site *site)
{
	const struct tmesh_graph_node *a = site->in[0], *b = site->in[1];

	if (a->dtype != TMESH_FLOAT32 || b->dtype != TMESH_FLOAT32 || a->quant || b->quant ||
	    b->ndim > a->ndim)
		return wrong(site, "it takes two of float32, the second with no more dimensions");
	for (int i = 1; i <= b->ndim; i++)
		if (b->shape[b->ndim - i] != 1 && b->shape[b->ndim - i] != a->shape[a->ndim - i])
			return wrong(site, "dimensions of the second are the first's or 1");
	becomes(site, a->ndim, a->shape);
	return 0;
}

static int get_rows(struct site *site)
{
	const struct tmesh_graph_node *table = site->in[0], *rows = site->in[1];

	if (table->ndim != 2 || !is_float(table) || rows->ndim != 1 || rows->dtype != TMESH_INT32)
		return wrong(site, "it takes table[N, D] and rows int32[T]");
	becomes(site, 2, (int64_t[]){rows->shape[0], table->shape[1]});
	return 0;
}

static int set_rows(struct site *site)
{
	const struct tmesh_graph_node *past = site->in[0], *fresh = site->in[1];

	if ((past->op != TMESH_GRAPH_INPUT && past->op != TMESH_GRAPH_SET_ROWS) ||
	    past->ndim != 2 || (past->dtype != TMESH_FLOAT32 && past->dtype != TMESH_FLOAT16) ||
	    fresh->ndim != 2 || fresh->dtype != TMESH_FLOAT32 || fresh->quant ||
	    fresh->shape[1] != past->shape[1] ||
	    !vector_of(site->in[2], TMESH_INT64, fresh->shape[0]))
		return wrong(site, "it takes an input past[C, D] of float32 or float16, new[T, D] "
				   "of float32 and rows int64[T]");
	becomes(site, 2, past->shape);
	site->node->dtype = past->dtype;
	return 0;
}

static int reshape(struct site *site)
{
	int rc = check_shape(site->node, site->err);

	if (rc)
		return rc;
	if (site->in[0]->quant || elements(site->node) != elements(site->in[0]))
		return wrong(site, "the shape has as many elements as before");
	site->node->dtype = site->in[0]->dtype;
	return 0;
}

static int transpose(struct site *site)
{
	const struct tmesh_graph_node *x = site->in[0];
	struct tmesh_graph_node *node = site->node;
	uint32_t seen = 0;

	if (x->quant)
		return wrong(site, "blocks cannot be transposed");
	for (int i = 0; i < x->ndim; i++) {
		if (node->axes[i] < 0 || node->axes[i] >= x->ndim || seen & 1u << node->axes[i])
			return wrong(site, "axes names each dimension once");
		seen |= 1u << node->axes[i];
		node->shape[i] = x->shape[node->axes[i]];
	}
	for (int i = x->ndim; i < TMESH_MAX_DIMS; i++)
		if (node->axes[i])
			return wrong(site, "axes has more dimensions than x");
	node->ndim = x->ndim;
	node->dtype = x->dtype;
	return 0;
}

static int concat(struct site *site)
{
	const struct tmesh_graph_node *first = site->in[0];
	int32_t axis = site->node->axis;
	int64_t sum = 0;

	if (axis < 0 || axis >= first->ndim)
		return wrong(site, "axis is a dimension");
	for (uint32_t i = 0; i < site->node->input_count; i++) {
		const struct tmesh_graph_node *in = site->in[i];

		if (in->ndim != first->ndim || in->dtype != first->dtype || in->quant)
			return wrong(site, "all have one dtype and number of dimensions");
		for (int n = 0; n < first->ndim; n++)
			if (n != axis && in->shape[n] != first->shape[n])
				return wrong(site, "all dimensions but axis are the same");
		sum += in->shape[axis];
	}
	becomes(site, first->ndim, first->shape);
	site->node->dtype = first->dtype;
	site->node->shape[axis] = sum;
	return 0;
}

/* Attention over blocks of rows, found by tables. All rows that the tables may name are a value
 * too, so their elements are limited. */
static int paged(struct site *site)
{
	const struct tmesh_graph_node *q = site->in[0], *k = site->in[1], *v = site->in[2];
	const struct tmesh_graph_node *tables = site->in[4];
	int64_t count;

	if (q->ndim != 3 || k->ndim != 4 || v->ndim != 4 || q->dtype != TMESH_FLOAT32 || q->quant ||
	    (k->dtype != TMESH_FLOAT32 && k->dtype != TMESH_FLOAT16) || k->quant || v->quant ||
	    v->dtype != k->dtype || memcmp(k->shape, v->shape, 4 * sizeof(k->shape[0])) ||
	    q->shape[2] != k->shape[3] || q->shape[1] % k->shape[2] ||
	    !vector_of(site->in[3], TMESH_INT32, q->shape[0]))
		return wrong(site,
			     "with tables it takes q[T, H, D] of float32, k and v[P, B, G, D] "
			     "of float32 or float16, H a multiple of G, and positions int32[T]");
	for (uint32_t i = 4; i < site->node->input_count; i++)
		if (site->in[i]->ndim != 2 || site->in[i]->dtype != TMESH_INT32 ||
		    memcmp(site->in[i]->shape, tables->shape, 2 * sizeof(tables->shape[0])) ||
		    q->shape[0] % tables->shape[0])
			return wrong(site, "its tables are int32[S, M], T a multiple of S");
	if (__builtin_mul_overflow(elements(tables), k->shape[1] * k->shape[2] * k->shape[3],
				   &count) ||
	    count > GRAPH_MAX_ELEMENTS)
		return tmesh_fail(site->err, -EOVERFLOW,
				  "node \"%s\": its tables name more than 2^48 elements",
				  site->node->name);
	becomes(site, 3, q->shape);
	return check_scale(site);
}

static int attention(struct site *site)
{
	const struct tmesh_graph_node *q = site->in[0], *k = site->in[1], *v = site->in[2];

	if (site->node->input_count > 4)
		return paged(site);
	if (q->ndim != 3 || k->ndim != 3 || v->ndim != 3 || q->dtype != TMESH_FLOAT32 || q->quant ||
	    (k->dtype != TMESH_FLOAT32 && k->dtype != TMESH_FLOAT16) || k->quant || v->quant ||
	    v->dtype != k->dtype || memcmp(k->shape, v->shape, 3 * sizeof(k->shape[0])) ||
	    q->shape[2] != k->shape[2] || q->shape[1] % k->shape[1] ||
	    !vector_of(site->in[3], TMESH_INT32, q->shape[0]))
		return wrong(site, "it takes q[T, H, D] of float32, k and v[C, G, D] of float32 or "
				   "float16, H a multiple of G, and positions int32[T]");
	becomes(site, 3, q->shape);
	return check_scale(site);
}

static int infer(struct site *site)
{
	switch (site->node->op) {
	case TMESH_GRAPH_INPUT:
	case TMESH_GRAPH_WEIGHT:
		return given(site);
	case TMESH_GRAPH_MATMUL:
		return matmul(site);
	case TMESH_GRAPH_RMS_NORM:
	case TMESH_GRAPH_LAYER_NORM:
		return norm(site);
	case TMESH_GRAPH_ROPE:
		return rope(site);
	case TMESH_GRAPH_SOFTMAX:
	case TMESH_GRAPH_SILU:
	case TMESH_GRAPH_GELU:
		return one(site);
	case TMESH_GRAPH_ADD:
	case TMESH_GRAPH_MUL:
		return elementwise(site);
	case TMESH_GRAPH_GET_ROWS:
		return get_rows(site);
	case TMESH_GRAPH_SET_ROWS:
		return set_rows(site);
	case TMESH_GRAPH_RESHAPE:
		return reshape(site);
	case TMESH_GRAPH_TRANSPOSE:
		return transpose(site);
	case TMESH_GRAPH_CONCAT:
		return concat(site);
	case TMESH_GRAPH_ATTENTION:
		return attention(site);
	case TMESH_GRAPH_LORA:
		return lora(site);
	}
	return -EINVAL; /* unreachable: tmesh_graph_add() has checked the operator */
}

/* Check that attributes which the operator does not have are zero. */
static int check_attrs(const struct tmesh_graph_node *node, struct tmesh_error *err)
{
	static const int32_t none[TMESH_MAX_DIMS];
	const struct graph_op *op = graph_op(node->op);
	const char *name = NULL;

	if (node->eps && !(op->attrs & ATTR_EPS))
		name = "eps";
	if (node->scale && !(op->attrs & ATTR_SCALE))
		name = "scale";
	if (node->base && !(op->attrs & ATTR_BASE))
		name = "base";
	if (node->dims && !(op->attrs & ATTR_DIMS))
		name = "dims";
	if (node->halves && !(op->attrs & ATTR_HALVES))
		name = "halves";
	if (node->axis && !(op->attrs & ATTR_AXIS))
		name = "axis";
	if (memcmp(node->axes, none, sizeof(none)) && !(op->attrs & ATTR_AXES))
		name = "axes";
	if (node->quant && !(op->attrs & ATTR_QUANT))
		name = "quant";
	if (name)
		return tmesh_fail(err, -EINVAL, "node \"%s\": the operator %s has no attribute %s",
				  node->name, op->name, name);
	if (node->quant && !graph_quant(node->quant))
		return tmesh_fail(err, -EINVAL, "node \"%s\": there is no quantized type \"%.32s\"",
				  node->name, node->quant);
	if (!graph_cache_name(node->cache))
		return tmesh_fail(err, -EINVAL, "node \"%s\": there is no such cache hint",
				  node->name);
	return 0;
}

int graph_infer(const struct tmesh_graph *graph, struct tmesh_graph_node *node,
		struct tmesh_error *err)
{
	const struct graph_op *op = graph_op(node->op);
	struct tmesh_graph_node claimed = *node;
	struct site site = {.node = node, .err = err};
	char is[GRAPH_SHAPE_TEXT], said[GRAPH_SHAPE_TEXT];
	int rc = check_shape(node, err);

	if (!rc)
		rc = check_attrs(node, err);
	if (rc)
		return rc;
	if (node->input_count < op->least || node->input_count > op->most)
		return tmesh_fail(err, -EINVAL, "node \"%s\": %s takes %u to %u inputs, not %u",
				  node->name, op->name, op->least, op->most, node->input_count);
	for (uint32_t i = 0; i < node->input_count; i++) {
		if (node->inputs[i] >= graph->node_count)
			return tmesh_fail(err, -EINVAL, "node \"%s\": there is no node %u",
					  node->name, node->inputs[i]);
		site.in[i] = &graph->nodes[node->inputs[i]];
	}
	rc = infer(&site);
	if (!rc)
		rc = check_shape(node, err);
	if (rc)
		return rc;
	if ((claimed.dtype && claimed.dtype != node->dtype) ||
	    (claimed.ndim &&
	     (claimed.ndim != node->ndim ||
	      memcmp(claimed.shape, node->shape, sizeof(node->shape[0]) * (size_t)node->ndim))))
		return tmesh_fail(
			err, -EINVAL, "node \"%s\" is %s%s, but its description says %s%s",
			node->name, graph_dtype_name(node->dtype), graph_shape_text(node, is),
			graph_dtype_name(claimed.dtype) ?: "", graph_shape_text(&claimed, said));
	for (int i = node->ndim; i < TMESH_MAX_DIMS; i++)
		node->shape[i] = 0;
	return 0;
}
