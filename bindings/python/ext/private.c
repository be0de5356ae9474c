/* SPDX-License-Identifier: MIT */
/* Private views: sealed memory that a program may write to. Other processes do not see the
 * changes. */
#include "binding.h"

/* A private view belongs to the model of its tensor. */
static PyObject *of_model(PyObject *view, struct tensor *of)
{
	if (view)
		((struct tensor *)view)->model = Py_XNewRef(of->root->model);
	return view;
}

PyObject *private_root(struct state *st, struct tmesh_region *region, struct tensor *of)
{
	int64_t bytes = (int64_t)tmesh_region_bytes(region);
	struct tmesh_tensor *tensor;
	struct tmesh_layout layout;
	struct tmesh_region *view;
	struct tmesh_error err;
	int rc;

	if (tmesh_region_private(region, &view, &err))
		return raise_region_error(st, region, &err);
	rc = tmesh_layout_contiguous(&layout, TMESH_UINT8, 1, &bytes, &err);
	if (!rc)
		rc = tmesh_tensor_wrap(view, &layout, &tensor, &err);
	tmesh_region_unref(view);
	if (rc)
		return raise_error(st, &err);
	return of_model(tensor_new(st, tensor, NULL, TMESH_READ | TMESH_WRITE), of);
}

PyObject *tensor_private(PyObject *object, PyObject *unused)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_tensor *tensor = tensor_get(self), *mine;
	struct tmesh_region *view;
	struct tmesh_error err;
	int rc;

	if (!tensor)
		return NULL;
	rc = tmesh_region_private(tmesh_tensor_region(tensor), &view, &err);
	if (!rc) {
		rc = tmesh_tensor_wrap(view, tmesh_tensor_layout(tensor), &mine, &err);
		tmesh_region_unref(view);
	}
	if (rc)
		return raise_region_error(state_of(self), tmesh_tensor_region(tensor), &err);
	return of_model(tensor_new(state_of(self), mine, NULL, TMESH_READ | TMESH_WRITE), self);
}

/* Implement Tensor.torch(): torch.from_dlpack() of a tensor that PyTorch may write to. */
PyObject *tensor_torch(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"private", NULL};
	struct tensor *self = (struct tensor *)object;
	PyObject *torch, *result, *source;
	int private = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:torch", names, &private))
		return NULL;
	if (!tensor_get(self))
		return NULL;
	if (!private && (tensor_is_sealed(self) || !(self->rights & TMESH_WRITE)))
		return raise_code(
			state_of(self), EACCES,
			"PyTorch has no read-only tensors, and a write to this memory would end "
			"the process: torch(private=True) gives a copy-on-write view, "
			"torch.from_dlpack(t.dlpack(allow_readonly=True)) promises not to write");
	torch = PyImport_ImportModule("torch");
	if (!torch)
		return NULL;
	source = private ? tensor_private(object, NULL) : Py_NewRef(object);
	result = source ? PyObject_CallMethod(torch, "from_dlpack", "O", source) : NULL;
	Py_XDECREF(source);
	Py_DECREF(torch);
	return result;
}
