/* SPDX-License-Identifier: MIT */
/*
 * Arrow's PyCapsule protocol: a contiguous tensor as an Arrow array over the same memory. Two or
 * more dimensions become nested lists of a fixed size.
 */
#include "binding.h"

#include <stdatomic.h>
#include <stdio.h>

#include "common/arrow_abi.h"

/* bool is missing: Arrow packs it into bits. */
static const char *const formats[DTYPES] = {
	[TMESH_INT8] = "c",    [TMESH_INT16] = "s",   [TMESH_INT32] = "i",   [TMESH_INT64] = "l",
	[TMESH_UINT8] = "C",   [TMESH_UINT16] = "S",  [TMESH_UINT32] = "I",  [TMESH_UINT64] = "L",
	[TMESH_FLOAT16] = "e", [TMESH_FLOAT32] = "f", [TMESH_FLOAT64] = "g",
};

/*
 * Nested arrays: level i is dimension i, and the innermost one has the numbers. A consumer may move
 * a level elsewhere and release the level around it, so all levels share this memory until the last
 * is released.
 */
struct schema {
	struct ArrowSchema levels[TMESH_MAX_DIMS];
	struct ArrowSchema *children[TMESH_MAX_DIMS];
	char formats[TMESH_MAX_DIMS][32];
	atomic_int unreleased; /* levels */
};

struct array {
	struct ArrowArray levels[TMESH_MAX_DIMS];
	struct ArrowArray *children[TMESH_MAX_DIMS];
	const void *buffers[2]; /* no bitmap: no value is null */
	struct late late;
	PyInterpreterState *home;
	struct tensor *tensor;
	bool writable;
	atomic_int unreleased; /* levels */
};

static void schema_release(struct ArrowSchema *self)
{
	struct schema *schema = self->private_data;

	if (self->n_children && self->children[0]->release)
		self->children[0]->release(self->children[0]);
	self->release = NULL;
	if (atomic_fetch_sub(&schema->unreleased, 1) == 1)
		free(schema);
}

static void array_late(struct late *late)
{
	struct array *array = (struct array *)((char *)late - offsetof(struct array, late));

	tensor_view_end(array->tensor, array->writable);
	free(array);
}

/* Release one level. A consumer may call this in any thread, and even after the interpreter has
 * ended. */
static void array_release(struct ArrowArray *self)
{
	struct array *array = self->private_data;

	if (self->n_children && self->children[0]->release)
		self->children[0]->release(self->children[0]);
	self->release = NULL;
	if (atomic_fetch_sub(&array->unreleased, 1) == 1 && !gil_run(&array->late, array->home))
		free(array);
}

static void schema_capsule_free(PyObject *capsule)
{
	struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");

	if (schema->release)
		schema->release(schema);
	free(schema);
}

static void array_capsule_free(PyObject *capsule)
{
	struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
	bool before = gil_hold();

	if (array->release)
		array->release(array);
	gil_unhold(before);
	free(array);
}

static PyObject *schema_capsule(const struct tmesh_layout *layout)
{
	struct ArrowSchema *top = malloc(sizeof(*top));
	struct schema *schema = calloc(1, sizeof(*schema));
	PyObject *capsule;

	if (!top || !schema) {
		free(schema);
		free(top);
		return PyErr_NoMemory();
	}
	for (int i = 0; i < layout->ndim; i++) {
		bool list = i + 1 < layout->ndim;

		if (list) {
			snprintf(schema->formats[i], sizeof(schema->formats[i]), "+w:%lld",
				 (long long)layout->shape[i + 1]);
			schema->children[i] = &schema->levels[i + 1];
		}
		schema->levels[i] = (struct ArrowSchema){
			.format = list ? schema->formats[i] : formats[layout->dtype],
			.name = i ? "item" : "",
			.flags = ARROW_NULLABLE, /* as in the lists of other producers */
			.n_children = list,
			.children = list ? &schema->children[i] : NULL,
			.release = schema_release,
			.private_data = schema,
		};
	}
	schema->unreleased = layout->ndim;
	*top = schema->levels[0];
	capsule = PyCapsule_New(top, "arrow_schema", schema_capsule_free);
	if (!capsule) {
		free(schema);
		free(top);
	}
	return capsule;
}

static PyObject *array_capsule(struct tensor *self)
{
	struct ArrowArray *top = malloc(sizeof(*top));
	const struct tmesh_layout *layout;
	struct array *array = calloc(1, sizeof(*array));
	PyObject *capsule = NULL;
	int64_t length = 1;
	void *data;

	if (!top || !array) {
		PyErr_NoMemory();
		goto fail;
	}
	if (tensor_view_begin(self, VIEW_READ, &data, &array->writable))
		goto fail;
	layout = tmesh_tensor_layout(self->tensor);
	array->tensor = self;
	array->home = PyInterpreterState_Get();
	array->late.run = array_late;
	array->buffers[1] = data;
	for (int i = 0; i < layout->ndim; i++) {
		bool list = i + 1 < layout->ndim;

		length *= layout->shape[i];
		array->children[i] = list ? &array->levels[i + 1] : NULL;
		array->levels[i] = (struct ArrowArray){
			.length = length,
			.n_buffers = list ? 1 : 2,
			.buffers = array->buffers,
			.n_children = list,
			.children = list ? &array->children[i] : NULL,
			.release = array_release,
			.private_data = array,
		};
	}
	array->unreleased = layout->ndim;
	*top = array->levels[0];
	capsule = PyCapsule_New(top, "arrow_array", array_capsule_free);
	if (capsule)
		return capsule;
	tensor_view_end(self, array->writable);
fail:
	free(array);
	free(top);
	return NULL;
}

static bool has_long_list(const struct tmesh_layout *layout)
{
	for (int i = 1; i < layout->ndim; i++)
		if (layout->shape[i] > INT32_MAX)
			return true;
	return false;
}

static int check(struct tensor *self, struct tmesh_layout *layout)
{
	struct state *st = state_of(self);

	if (tensor_layout(self, layout))
		return -1;
	if (!formats[layout->dtype])
		raise_code(st, EOPNOTSUPP,
			   "Arrow has no array of %s over such memory: view it as another dtype",
			   tmesh_dtype_name(layout->dtype));
	else if (!layout->ndim)
		raise_code(st, EOPNOTSUPP, "a scalar is no Arrow array: reshape(1)");
	else if (!tmesh_layout_is_contiguous(layout))
		raise_code(st, EOPNOTSUPP,
			   "Arrow has no strides, and this tensor is not contiguous: take a copy "
			   "(tmesh.put)");
	else if (has_long_list(layout))
		raise_code(st, EOPNOTSUPP, "Arrow's lists have at most 2147483647 elements");
	else
		return 0;
	return -1;
}

PyObject *tensor_arrow(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"requested_schema", NULL};
	struct tensor *self = (struct tensor *)object;
	PyObject *requested = Py_None, *schema, *array;
	struct tmesh_layout layout;

	/* The requested schema is optional: the consumer converts the array if its types differ. */
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:__arrow_c_array__", names, &requested) ||
	    check(self, &layout))
		return NULL;
	schema = schema_capsule(&layout);
	if (!schema)
		return NULL;
	array = array_capsule(self);
	if (!array) {
		Py_DECREF(schema);
		return NULL;
	}
	return Py_BuildValue("NN", schema, array);
}

PyObject *tensor_arrow_schema(PyObject *object, PyObject *unused)
{
	struct tmesh_layout layout;

	if (check((struct tensor *)object, &layout))
		return NULL;
	return schema_capsule(&layout);
}
