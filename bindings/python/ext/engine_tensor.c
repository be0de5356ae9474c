/* SPDX-License-Identifier: MIT */
/* The C part of tmesh.engine.DeviceTensor. */
#include "engine_types.h"

static struct engine_tensor *alloc(struct state *st)
{
	return (struct engine_tensor *)PyType_GenericAlloc(st->engine_types[ENGINE_TENSOR], 0);
}

PyObject *engine_tensor_new(struct state *st, struct tmesh_engine_tensor *tensor)
{
	struct engine_tensor *self = alloc(st);

	if (self)
		self->tensor = tensor;
	else
		tmesh_engine_tensor_unref(tensor);
	return (PyObject *)self;
}

static void end_view(struct engine_tensor *self)
{
	struct tensor *of = self->of;

	self->of = NULL;
	if (of)
		tensor_view_end(of, self->writable);
}

PyObject *engine_tensor_wrap(struct state *st, struct tmesh_engine_context *context,
			     struct tensor *of, bool writable, uint32_t flags)
{
	uint32_t rights = writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	struct engine_tensor *self;
	struct tmesh_error err;
	void *data;

	self = alloc(st);
	if (!self)
		return NULL;
	if (tensor_view_begin(of, writable ? VIEW_WRITE : VIEW_READ, &data, &self->writable)) {
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	self->of = of;
	if (tmesh_engine_tensor_wrap(context, of->tensor, rights, flags, &self->tensor, &err)) {
		raise_error(st, &err);
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	return (PyObject *)self;
}

void engine_tensor_begin(struct engine_tensor *self)
{
	Py_INCREF((PyObject *)self);
	self->running++;
}

void engine_tensor_end(struct engine_tensor *self)
{
	self->running--;
	if (self->destroyed && !self->running)
		end_view(self);
	Py_DECREF((PyObject *)self);
}

static void dealloc(PyObject *object)
{
	struct engine_tensor *self = (struct engine_tensor *)object;

	end_view(self);
	WITHOUT_GIL(tmesh_engine_tensor_unref(self->tensor));
	object_free(object);
}

static PyObject *destroy(PyObject *object, PyObject *unused)
{
	struct engine_tensor *self = (struct engine_tensor *)object;

	self->destroyed = true;
	WITHOUT_GIL(tmesh_engine_tensor_destroy(self->tensor));
	if (!self->running)
		end_view(self);
	Py_RETURN_NONE;
}

static PyObject *info(PyObject *object, PyObject *unused)
{
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct engine_tensor *self = (struct engine_tensor *)object;
	struct tmesh_error err;
	PyObject *shape;

	if (tmesh_engine_tensor_info(self->tensor, &info, &err))
		return raise_error(PyType_GetModuleState(Py_TYPE(object)), &err);
	shape = tuple_from_ints(info.shape, info.ndim);
	if (!shape)
		return NULL;
	return Py_BuildValue(
		"(sNiiiKKis)", tmesh_dtype_name(info.dtype), shape, (int)info.device_type,
		(int)info.flags, (int)(info.rights & TMESH_WRITE ? 1 : 0),
		(unsigned long long)info.bytes, (unsigned long long)(uintptr_t)info.address,
		(int)info.of_engine, info.backend);
}

/* Raise the error of a write. -EPERM means a seal if the memory is sealed; exporting the tensor
 * shows whether it is. */
static void *raise_copy_error(struct state *st, struct engine_tensor *self,
			      const struct tmesh_error *err)
{
	struct tmesh_tensor *tensor;

	if (err->code != -EPERM || tmesh_engine_tensor_export(self->tensor, &tensor, NULL))
		return raise_error(st, err);
	raise_region_error(st, tmesh_tensor_region(tensor), err);
	tmesh_tensor_unref(tensor);
	return NULL;
}

static PyObject *copy(PyObject *object, PyObject *buffer, bool out)
{
	struct engine_tensor *self = (struct engine_tensor *)object;
	struct tmesh_error err;
	Py_buffer view;
	int rc;

	if (PyObject_GetBuffer(buffer, &view, out ? PyBUF_CONTIG : PyBUF_CONTIG_RO))
		return NULL;
	engine_tensor_begin(self);
	WITHOUT_GIL(rc = out ? tmesh_engine_tensor_read(self->tensor, view.buf, (uint64_t)view.len,
							&err)
			     : tmesh_engine_tensor_write(self->tensor, view.buf, (uint64_t)view.len,
							 &err));
	PyBuffer_Release(&view);
	engine_tensor_end(self);
	if (rc)
		return raise_copy_error(PyType_GetModuleState(Py_TYPE(object)), self, &err);
	Py_RETURN_NONE;
}

static PyObject *read_into(PyObject *object, PyObject *buffer)
{
	return copy(object, buffer, true);
}

static PyObject *write_from(PyObject *object, PyObject *buffer)
{
	return copy(object, buffer, false);
}

static PyObject *export(PyObject *object, PyObject *unused)
{
	struct engine_tensor *self = (struct engine_tensor *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	struct tmesh_tensor *tensor;
	struct tmesh_error err;

	if (tmesh_engine_tensor_export(self->tensor, &tensor, &err))
		return raise_error(st, &err);
	if (self->of) {
		/* The Tensor that this one was made of counts the views of that memory. */
		tmesh_tensor_unref(tensor);
		return Py_NewRef((PyObject *)self->of);
	}
	return tensor_new(st, tensor, NULL, ALL_RIGHTS);
}

static PyMethodDef methods[] = {
	{"destroy", destroy, METH_NOARGS, "destroy()\n--\n\nGive its memory up."},
	{"info", info, METH_NOARGS,
	 "info()\n--\n\n(dtype, shape, device, flags, writable by graphs, bytes, address, of the "
	 "engine, backend)."},
	{"read_into", read_into, METH_O, "read_into(buffer, /)\n--\n\nCopy all elements there."},
	{"write_from", write_from, METH_O, "write_from(buffer, /)\n--\n\nCopy all from there."},
	{"export", export, METH_NOARGS, "export()\n--\n\nA Tensor of the same memory."},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "A device tensor; tmesh.engine.DeviceTensor is made of it."},
	{Py_tp_dealloc, dealloc},
	{Py_tp_methods, methods},
	{0},
};

TYPE_SPEC(engine_tensor_spec, "tmesh._tmesh.EngineTensor", struct engine_tensor,
	  Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);
