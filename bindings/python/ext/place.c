/* SPDX-License-Identifier: MIT */
/* Memory of Tensors that consumers of DLPack use, found again by its address. */
#include "binding.h"

/* Return the list of an address. Most tensors begin on a page of their own. */
static struct place **list_at(struct state *st, const void *data)
{
	return &st->places[((uintptr_t)data >> 12) % PLACE_LISTS];
}

void place_list(struct place *place, struct tensor *tensor, const void *data)
{
	struct place **list = list_at(state_of(tensor), data);

	*place = (struct place){.tensor = tensor, .data = data, .next = *list};
	if (place->next)
		place->next->previous = place;
	*list = place;
}

void place_unlist(struct place *place)
{
	if (place->next)
		place->next->previous = place->previous;
	if (place->previous)
		place->previous->next = place->next;
	else
		*list_at(state_of(place->tensor), place->data) = place->next;
}

PyObject *tensor_again(struct tensor *ours)
{
	return tensor_new(state_of(ours), tmesh_tensor_ref(ours->tensor), ours->root, ours->rights);
}

/* Find the memory in use that begins at @data. */
static struct place *place_at(struct state *st, const void *data)
{
	for (struct place *place = *list_at(st, data); data && place; place = place->next)
		if (place->data == data)
			return place;
	return NULL;
}

struct place *place_around(struct state *st, uintptr_t data)
{
	struct place *found = NULL;
	uint64_t most = 0;

	for (int i = 0; i < PLACE_LISTS; i++)
		for (struct place *place = st->places[i]; place; place = place->next) {
			const struct tmesh_tensor *tensor = place->tensor->tensor;
			uint64_t bytes = tmesh_tensor_bytes(tensor);
			uintptr_t start = (uintptr_t)place->data;

			if (data >= start && data - start < bytes && bytes > most &&
			    tmesh_layout_is_contiguous(tmesh_tensor_layout(tensor))) {
				found = place;
				most = bytes;
			}
		}
	return found;
}

PyObject *module_begins_at(PyObject *module, PyObject *address)
{
	const void *data = PyLong_AsVoidPtr(address);
	struct place *place;

	if (PyErr_Occurred())
		return NULL;
	place = place_at(PyModule_GetState(module), data);
	if (place)
		return tensor_again(place->tensor);
	Py_RETURN_NONE;
}

PyObject *module_containing(PyObject *module, PyObject *address)
{
	const void *data = PyLong_AsVoidPtr(address);
	struct place *place;
	Py_ssize_t offset;

	if (PyErr_Occurred())
		return NULL;
	place = place_around(PyModule_GetState(module), (uintptr_t)data);
	if (!place)
		Py_RETURN_NONE;
	/* Compute this first: the next call may run code that releases the place. */
	offset = (const char *)data - (const char *)place->data;
	return Py_BuildValue("(Nn)", tensor_again(place->tensor), offset);
}

PyObject *module_from_address(PyObject *module, PyObject *address)
{
	struct state *st = PyModule_GetState(module);
	const void *data = PyLong_AsVoidPtr(address);
	struct place *place;

	if (PyErr_Occurred())
		return NULL;
	place = place_at(st, data);
	if (!place)
		place = place_around(st, (uintptr_t)data);
	if (place)
		return tensor_again(place->tensor);
	Py_RETURN_NONE;
}

/* Compare integers only. Converting any other object would run code, which may free the place under
 * comparison. */
static bool same_ints(PyObject *tuple, const int64_t *values, int32_t count)
{
	bool same = PyTuple_Size(tuple) == count;

	for (int32_t i = 0; same && i < count; i++) {
		PyObject *item = PyTuple_GetItem(tuple, i);

		same = PyLong_Check(item) && PyLong_AsLongLong(item) == values[i];
	}
	return same && !PyErr_Occurred();
}

PyObject *module_find(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
	struct state *st = PyModule_GetState(module);
	const void *data;

	if (count != 4 || !PyLong_Check(args[0]) || !PyUnicode_Check(args[1]) ||
	    !PyTuple_Check(args[2]) || !PyTuple_Check(args[3])) {
		PyErr_SetString(PyExc_TypeError,
				"find() takes an address, a dtype, a shape and strides");
		return NULL;
	}
	data = PyLong_AsVoidPtr(args[0]);
	for (struct place *place = *list_at(st, data); data && place; place = place->next) {
		const struct tmesh_layout *layout;

		if (place->data != data || !tmesh_tensor_bytes(place->tensor->tensor))
			continue;
		layout = tmesh_tensor_layout(place->tensor->tensor);
		if (!PyUnicode_CompareWithASCIIString(args[1], tmesh_dtype_name(layout->dtype)) &&
		    same_ints(args[2], layout->shape, layout->ndim) &&
		    same_ints(args[3], layout->strides, layout->ndim))
			return tensor_again(place->tensor);
	}
	if (PyErr_Occurred())
		return NULL;
	Py_RETURN_NONE;
}
