/* SPDX-License-Identifier: MIT */
/* Other layouts over the same memory: view, reshape, basic indexing. */
#include "binding.h"

static PyObject *over(struct tensor *self, const struct tmesh_layout *layout)
{
	struct tmesh_tensor *tensor = tensor_get(self), *made;
	struct tmesh_error err;

	if (!tensor)
		return NULL;
	if (tmesh_tensor_view(tensor, layout, &made, &err))
		return raise_error(state_of(self), &err);
	return tensor_new(state_of(self), made, self->root, self->rights);
}

static PyObject *over_contiguous(struct tensor *self, enum tmesh_dtype dtype, uint64_t offset,
				 int32_t ndim, const int64_t *shape)
{
	struct tmesh_layout layout;
	struct tmesh_error err;

	if (tmesh_layout_contiguous(&layout, dtype, ndim, shape, &err))
		return raise_error(state_of(self), &err);
	layout.offset = offset;
	return over(self, &layout);
}

PyObject *tensor_transposed(PyObject *object, void *unused)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_layout from, layout;

	if (tensor_layout(self, &from))
		return NULL;
	layout = from;
	for (int32_t i = 0; i < from.ndim; i++) {
		layout.shape[i] = from.shape[from.ndim - 1 - i];
		layout.strides[i] = from.strides[from.ndim - 1 - i];
	}
	return over(self, &layout);
}

PyObject *module_layout(PyObject *module, PyObject *object)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_layout layout;

	if (Py_TYPE(object) != st->tensor_type) {
		PyErr_SetString(PyExc_TypeError, "layout() takes a tmesh.Tensor");
		return NULL;
	}
	if (tensor_layout((struct tensor *)object, &layout))
		return NULL;
	return Py_BuildValue(
		"sNNK", tmesh_dtype_name(layout.dtype), tuple_from_ints(layout.shape, layout.ndim),
		tuple_from_ints(layout.strides, layout.ndim), (unsigned long long)layout.offset);
}

PyObject *module_part(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
	struct state *st = PyModule_GetState(module);
	int64_t shape[TMESH_MAX_DIMS], strides[TMESH_MAX_DIMS];
	int32_t ndim, stride_count;
	struct tmesh_layout layout;
	enum tmesh_dtype dtype;
	struct tmesh_error err;
	uint64_t offset;

	if (count != 5 || Py_TYPE(args[0]) != st->tensor_type) {
		PyErr_SetString(PyExc_TypeError,
				"part() takes a tmesh.Tensor, a dtype, a shape, strides and an "
				"offset");
		return NULL;
	}
	if (dtype_from_object(st, args[1], &dtype) ||
	    shape_from_object(st, args[2], &ndim, shape) ||
	    shape_from_object(st, args[3], &stride_count, strides))
		return NULL;
	offset = PyLong_AsUnsignedLongLong(args[4]);
	if (PyErr_Occurred())
		return NULL;
	if (ndim != stride_count)
		return raise_code(st, EINVAL, "part(): %d dimensions and %d strides", ndim,
				  stride_count);
	if (tmesh_layout_contiguous(&layout, dtype, ndim, shape, &err))
		return raise_error(st, &err);
	for (int32_t i = 0; i < ndim; i++)
		layout.strides[i] = strides[i];
	layout.offset = offset;
	return over((struct tensor *)args[0], &layout);
}

PyObject *tensor_view(PyObject *object, PyObject *dtype)
{
	struct tensor *self = (struct tensor *)object;
	struct state *st = state_of(self);
	struct tmesh_layout layout;
	unsigned int from, to;
	enum tmesh_dtype type;
	int64_t last;

	if (dtype_from_object(st, dtype, &type) || tensor_layout(self, &layout))
		return NULL;
	from = tmesh_dtype_bits(layout.dtype);
	to = tmesh_dtype_bits(type);
	if (from == to) {
		layout.dtype = type;
		return over(self, &layout);
	}
	if (!layout.ndim || !tmesh_layout_is_contiguous(&layout))
		return raise_code(st, EINVAL,
				  "only a contiguous tensor with a dimension can be viewed as "
				  "elements of another size");
	if (__builtin_mul_overflow(layout.shape[layout.ndim - 1], (int64_t)from, &last) ||
	    last % to)
		return raise_code(st, EINVAL,
				  "the last dimension's bytes are no whole number of %s elements",
				  tmesh_dtype_name(type));
	layout.shape[layout.ndim - 1] = last / to;
	return over_contiguous(self, type, layout.offset, layout.ndim, layout.shape);
}

/* Replace one -1 in @shape so that the shape has @count elements. */
static int infer(struct state *st, int32_t ndim, int64_t *shape, int64_t count)
{
	int64_t known = 1;
	int32_t open = -1;

	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] == -1 && open < 0)
			open = i;
		else if (shape[i] < 0 || __builtin_mul_overflow(known, shape[i], &known))
			goto fail;
	}
	if (open >= 0) {
		if (!known || count % known)
			goto fail;
		shape[open] = count / known;
		known = count;
	}
	if (known == count)
		return 0;
fail:
	raise_code(st, EINVAL, "%lld elements do not fit that shape", (long long)count);
	return -1;
}

PyObject *tensor_reshape(PyObject *object, PyObject *args)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_layout layout;
	int64_t shape[TMESH_MAX_DIMS], count = 1;
	struct state *st = state_of(self);
	int32_t ndim;

	if (PyTuple_Size(args) == 1)
		args = PyTuple_GetItem(args, 0);
	if (shape_from_object(st, args, &ndim, shape) || tensor_layout(self, &layout))
		return NULL;
	if (!tmesh_layout_is_contiguous(&layout))
		return raise_code(st, EINVAL,
				  "only contiguous tensors can be reshaped; numpy() can "
				  "copy");
	for (int32_t i = 0; i < layout.ndim; i++)
		count *= layout.shape[i];
	if (infer(st, ndim, shape, count))
		return NULL;
	return over_contiguous(self, layout.dtype, layout.offset, ndim, shape);
}

Py_ssize_t tensor_length(PyObject *object)
{
	struct tensor *self = (struct tensor *)object;

	if (!tensor_get(self))
		return -1;
	if (!self->ndim) {
		PyErr_SetString(
			PyExc_TypeError,
			"a tensor without dimensions has no length: float() or int() takes its "
			"value; torch() gives a whole tensor to PyTorch, and "
			"torch.tensor(t.numpy()) a copy of it");
		return -1;
	}
	return self->shape[0];
}

/* A selection in progress: the next dimension of @from, and the result for those before. */
struct selection {
	const struct tmesh_layout *from;
	int32_t next;
	struct tmesh_layout to;
	uint64_t first; /* elements from the old first element to the new, modulo 2^64 */
};

/* Append a dimension. An index may request more dimensions than a tensor can have; only this call
 * checks that. */
static int append(struct selection *sel, int64_t size, int64_t stride)
{
	if (sel->to.ndim >= TMESH_MAX_DIMS) {
		PyErr_Format(PyExc_IndexError, "a tensor has at most %d dimensions",
			     TMESH_MAX_DIMS);
		return -1;
	}
	sel->to.shape[sel->to.ndim] = size;
	sel->to.strides[sel->to.ndim++] = stride;
	return 0;
}

static int keep(struct selection *sel, Py_ssize_t count)
{
	for (; count > 0 && sel->next < sel->from->ndim; count--, sel->next++)
		if (append(sel, sel->from->shape[sel->next], sel->from->strides[sel->next]))
			return -1;
	return 0;
}

static int pick(struct selection *sel, PyObject *key)
{
	Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
	Py_ssize_t size = (Py_ssize_t)sel->from->shape[sel->next];

	if (index == -1 && PyErr_Occurred())
		return -1;
	if (index < -size || index >= size) {
		PyErr_Format(PyExc_IndexError,
			     "index %zd is out of range for dimension %d of size %zd", index,
			     (int)sel->next, size);
		return -1;
	}
	sel->first += (uint64_t)(index < 0 ? index + size : index) *
		      (uint64_t)sel->from->strides[sel->next];
	sel->next++;
	return 0;
}

static int slice(struct selection *sel, PyObject *key)
{
	Py_ssize_t start, stop, step, count;
	int64_t stride;

	if (PySlice_Unpack(key, &start, &stop, &step))
		return -1;
	count = PySlice_AdjustIndices((Py_ssize_t)sel->from->shape[sel->next], &start, &stop, step);
	stride = sel->from->strides[sel->next++];
	if (count)
		sel->first += (uint64_t)start * (uint64_t)stride;
	/* With one element or none the step has no effect, and could overflow. */
	return append(sel, count,
		      count > 1 ? (int64_t)((uint64_t)stride * (uint64_t)step) : stride);
}

/* Whether an index was refused because it is an array. All arrays have __index__(), which works for
 * those of one integer. If so, clear the exception. */
static bool was_array(PyObject *key)
{
	PyObject *type, *value, *traceback;

	if (!PyErr_ExceptionMatches(PyExc_TypeError))
		return false;
	PyErr_Fetch(&type, &value, &traceback);
	if (!PyObject_HasAttrString(key, "shape")) {
		PyErr_Restore(type, value, traceback);
		return false;
	}
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	return true;
}

/* Apply one key. @keys_left: the number of later keys that take a dimension. */
static int select_key(struct selection *sel, PyObject *key, Py_ssize_t keys_left)
{
	if (key == Py_Ellipsis)
		return keep(sel, sel->from->ndim - sel->next - keys_left);
	if (key == Py_None)
		return append(sel, 1, 1);
	if (sel->next == sel->from->ndim) {
		PyErr_Format(PyExc_IndexError, "more indices than the tensor's %d dimensions",
			     (int)sel->from->ndim);
		return -1;
	}
	if (PySlice_Check(key))
		return slice(sel, key);
	if (PyIndex_Check(key) && !PyBool_Check(key)) {
		if (!pick(sel, key))
			return 0;
		if (!was_array(key))
			return -1;
	}
	PyErr_SetString(PyExc_TypeError,
			"a tensor is indexed by integers, slices, None and one Ellipsis; numpy() "
			"does more");
	return -1;
}

PyObject *tensor_getitem(PyObject *object, PyObject *key)
{
	struct tensor *self = (struct tensor *)object;
	struct selection sel = {0};
	Py_ssize_t count, ellipses = 0, taking = 0;
	PyObject *keys, *result = NULL;
	struct tmesh_layout from;
	unsigned int bits;

	if (tensor_layout(self, &from))
		return NULL;
	sel.from = &from;
	sel.to = from;
	sel.to.ndim = 0;
	bits = tmesh_dtype_bits(sel.from->dtype);
	if (bits < 8)
		return raise_code(state_of(self), EOPNOTSUPP,
				  "elements of 4 bits are packed and cannot be indexed: take "
				  "view(\"uint8\")");

	keys = PyTuple_Check(key) ? Py_NewRef(key) : PyTuple_Pack(1, key);
	if (!keys)
		return NULL;
	count = PyTuple_Size(keys);
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *each = PyTuple_GetItem(keys, i);

		ellipses += each == Py_Ellipsis;
		taking += each != Py_Ellipsis && each != Py_None;
	}
	if (ellipses > 1) {
		PyErr_SetString(PyExc_IndexError, "an index has at most one Ellipsis");
		goto out;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *each = PyTuple_GetItem(keys, i);

		taking -= each != Py_Ellipsis && each != Py_None;
		if (select_key(&sel, each, taking))
			goto out;
	}
	if (keep(&sel, sel.from->ndim - sel.next))
		goto out;
	sel.to.offset += sel.first * (bits / 8);
	result = over(self, &sel.to);
out:
	Py_DECREF(keys);
	return result;
}

/* Return a row. This makes a tensor iterable. */
PyObject *tensor_item(PyObject *object, Py_ssize_t index)
{
	PyObject *key, *item;

	if (tensor_length(object) < 0)
		return NULL;
	key = PyLong_FromSsize_t(index);
	item = key ? tensor_getitem(object, key) : NULL;
	Py_XDECREF(key);
	return item;
}

/* Refuse "in". Python would compare rows by default, and a row is equal only to itself. */
int tensor_contains(PyObject *object, PyObject *value)
{
	PyErr_SetString(PyExc_TypeError, "a tensor does not look for values: numpy() does");
	return -1;
}

/* Assign through an array, which converts values to elements and broadcasts them. */
int tensor_assign(PyObject *object, PyObject *key, PyObject *value)
{
	struct tensor *self = (struct tensor *)object;
	PyObject *names, *none, *array = NULL;
	int rc = -1;

	if (!value) {
		PyErr_SetString(PyExc_TypeError, "elements of a tensor cannot be deleted");
		return -1;
	}
	names = Py_BuildValue("{sO}", "writable", Py_True);
	none = PyTuple_New(0);
	if (names && none)
		array = tensor_numpy((PyObject *)self, none, names);
	if (array)
		rc = PyObject_SetItem(array, key, value);
	Py_XDECREF(array);
	Py_XDECREF(none);
	Py_XDECREF(names);
	return rc;
}
