/* SPDX-License-Identifier: MIT */
/*
 * Graphs and bindings of engines. A value is (name, where, dtype, shape, in_place). "where" is an
 * EngineTensor or an object with a contiguous buffer of that dtype and shape. None lets the engine
 * allocate an output.
 */
#include "engine_types.h"

struct engine_graph {
	PyObject_HEAD struct tmesh_engine_graph *graph;
};

/* The values of a dispatch, held while it runs or is bound. */
struct values {
	size_t inputs, count;
	struct tmesh_engine_value *list; /* inputs, then outputs */
	Py_buffer *buffers;		 /* obj is NULL for values without a buffer */
	struct engine_tensor **tensors;	 /* with references; NULL for values without a device
					  * tensor */
	PyObject *source;		 /* the tuples, which own the names' texts */
};

struct engine_binding {
	PyObject_HEAD struct tmesh_engine_binding *binding;
	struct values values;
	int runs; /* runs that have not ended; -1: it is being rebound */
};

static void values_free(struct values *values)
{
	for (size_t i = 0; i < values->count; i++) {
		if (values->buffers && values->buffers[i].obj)
			PyBuffer_Release(&values->buffers[i]);
		if (values->tensors)
			Py_XDECREF((PyObject *)values->tensors[i]);
	}
	PyMem_Free(values->list);
	PyMem_Free(values->buffers);
	PyMem_Free(values->tensors);
	Py_XDECREF(values->source);
	*values = (struct values){0};
}

/* Take a buffer that has as many bytes as a tensor of this type. */
static int take_buffer(struct state *st, struct values *values, size_t i, PyObject *where,
		       PyObject *type, PyObject *dims)
{
	struct tmesh_engine_value *value = &values->list[i];
	bool out = i >= values->inputs;
	struct tmesh_layout layout;
	struct tmesh_error err;
	uint64_t bytes;

	if (dtype_from_object(st, type, &value->dtype) ||
	    shape_from_object(st, dims, &value->ndim, value->shape) ||
	    PyObject_GetBuffer(where, &values->buffers[i], out ? PyBUF_CONTIG : PyBUF_CONTIG_RO))
		return -1;
	if (tmesh_layout_contiguous(&layout, value->dtype, value->ndim, value->shape, &err) ||
	    tmesh_layout_check(&layout, UINT64_MAX, &bytes, &err)) {
		raise_error(st, &err);
		return -1;
	}
	if (bytes != (uint64_t)values->buffers[i].len) {
		raise_code(st, EINVAL, "\"%s\" has a buffer of %zd bytes, and its shape makes %llu",
			   value->name, values->buffers[i].len, (unsigned long long)bytes);
		return -1;
	}
	value->data = values->buffers[i].buf;
	return 0;
}

static int take_one(struct state *st, struct values *values, size_t i, PyObject *item)
{
	struct tmesh_engine_value *value = &values->list[i];
	PyObject *where, *type, *dims;

	if (!PyArg_ParseTuple(item, "sOOOz;a value is (name, where, dtype, shape, in_place)",
			      &value->name, &where, &type, &dims, &value->in_place))
		return -1;
	if (where == Py_None)
		return 0;
	if (Py_TYPE(where) != st->engine_types[ENGINE_TENSOR])
		return take_buffer(st, values, i, where, type, dims);
	values->tensors[i] = (struct engine_tensor *)Py_NewRef(where);
	value->tensor = values->tensors[i]->tensor;
	return 0;
}

/* Take (inputs, outputs), each a tuple of values, and for a dispatch a Cancellable or None. */
static int values_parse(struct state *st, PyObject *args, struct values *values,
			PyObject **cancellable)
{
	PyObject *parts[2], *more = Py_None;

	*values = (struct values){0};
	if (!PyArg_ParseTuple(args, cancellable ? "O!O!O" : "O!O!", &PyTuple_Type, &parts[0],
			      &PyTuple_Type, &parts[1], &more))
		return -1;
	if (cancellable)
		*cancellable = more;
	values->inputs = (size_t)PyTuple_Size(parts[0]);
	values->count = values->inputs + (size_t)PyTuple_Size(parts[1]);
	values->list = PyMem_Calloc(values->count + 1, sizeof(*values->list));
	values->buffers = PyMem_Calloc(values->count + 1, sizeof(*values->buffers));
	values->tensors = PyMem_Calloc(values->count + 1, sizeof(*values->tensors));
	values->source = Py_NewRef(args);
	if (!values->list || !values->buffers || !values->tensors) {
		values_free(values);
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < values->count; i++) {
		bool in = i < values->inputs;
		PyObject *item = PyTuple_GetItem(parts[in ? 0 : 1],
						 (Py_ssize_t)(in ? i : i - values->inputs));

		if (!PyTuple_Check(item)) {
			PyErr_SetString(PyExc_TypeError, "values are tuples");
			values_free(values);
			return -1;
		}
		if (take_one(st, values, i, item)) {
			values_free(values);
			return -1;
		}
	}
	return 0;
}

static void values_begin(const struct values *values)
{
	for (size_t i = 0; i < values->count; i++)
		if (values->tensors[i])
			engine_tensor_begin(values->tensors[i]);
}

static void values_end(const struct values *values)
{
	for (size_t i = 0; i < values->count; i++)
		if (values->tensors[i])
			engine_tensor_end(values->tensors[i]);
}

static void unbind(struct tmesh_engine_binding *binding)
{
	if (!binding)
		return;
	WITHOUT_GIL(tmesh_engine_binding_unref(binding));
}

static PyObject *graph_dispatch(PyObject *object, PyObject *args)
{
	struct engine_graph *self = (struct engine_graph *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	PyObject *results, *cancellable;
	struct engine_dispatch dispatch;
	struct tmesh_error err;
	struct values values;
	bool ran = false;
	int rc;

	if (values_parse(st, args, &values, &cancellable))
		return NULL;
	values_begin(&values);
	rc = engine_dispatch_begin(st, cancellable, &dispatch);
	if (!rc) {
		rc = tmesh_engine_dispatch_cancellable(
			self->graph, values.list, values.inputs, values.list + values.inputs,
			values.count - values.inputs, dispatch.cancellable, &err);
		ran = !rc;
		rc = engine_dispatch_end(st, &dispatch, rc, &err);
	}
	values_end(&values);
	if (rc) {
		/* A signal's handler may have raised after the run. */
		for (size_t i = values.inputs; ran && i < values.count; i++)
			if (!values.tensors[i] && !values.buffers[i].obj)
				tmesh_engine_tensor_unref(values.list[i].tensor);
		values_free(&values);
		return NULL;
	}
	results = PyList_New(0);
	for (size_t i = values.inputs; i < values.count; i++) {
		PyObject *result;

		/* Tensors of the engine are new references. */
		if (values.tensors[i] || values.buffers[i].obj)
			result = Py_NewRef(Py_None);
		else
			result = engine_tensor_new(st, values.list[i].tensor);
		if (!result || !results || PyList_Append(results, result))
			Py_CLEAR(results);
		Py_XDECREF(result);
	}
	values_free(&values);
	return results;
}

static PyObject *graph_bind(PyObject *object, PyObject *args)
{
	struct engine_graph *self = (struct engine_graph *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	struct tmesh_engine_binding *binding = NULL;
	struct engine_binding *made = NULL;
	struct engine_call call;
	struct tmesh_error err;
	struct values values;
	int rc;

	if (values_parse(st, args, &values, NULL))
		return NULL;
	values_begin(&values);
	rc = engine_call_begin(st, &call);
	if (!rc) {
		rc = tmesh_engine_bind(self->graph, values.list, values.inputs,
				       values.list + values.inputs, values.count - values.inputs,
				       &binding, &err);
		if (rc)
			binding = NULL;
		rc = engine_call_end(st, &call, rc, &err);
	}
	values_end(&values);
	if (!rc)
		made = (struct engine_binding *)PyType_GenericAlloc(
			st->engine_types[ENGINE_BINDING], 0);
	if (made) {
		made->binding = binding;
		made->values = values;
	} else {
		unbind(binding);
		values_free(&values);
	}
	return (PyObject *)made;
}

static PyObject *binding_dispatch(PyObject *object, PyObject *cancellable)
{
	struct engine_binding *self = (struct engine_binding *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	struct engine_dispatch dispatch;
	struct tmesh_error err;
	int rc;

	if (!self->binding)
		return raise_named(st, "ReleasedError", EBADF, "the binding was collected");
	if (self->runs < 0)
		return raise_code(st, EBUSY, "the binding is being rebound");
	self->runs++;
	values_begin(&self->values);
	rc = engine_dispatch_begin(st, cancellable, &dispatch);
	if (!rc) {
		rc = tmesh_engine_binding_dispatch_cancellable(self->binding, dispatch.cancellable,
							       &err);
		rc = engine_dispatch_end(st, &dispatch, rc, &err);
	}
	values_end(&self->values);
	self->runs--;
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

/* Exchange the values of @fresh with those held under the same names. */
static void values_exchange(struct values *held, struct values *fresh)
{
	for (size_t i = 0; i < fresh->count; i++)
		for (size_t n = 0; n < held->inputs; n++)
			if (!strcmp(held->list[n].name, fresh->list[i].name)) {
				Py_buffer buffer = held->buffers[n];
				struct engine_tensor *tensor = held->tensors[n];

				held->buffers[n] = fresh->buffers[i];
				held->tensors[n] = fresh->tensors[i];
				fresh->buffers[i] = buffer;
				fresh->tensors[i] = tensor;
				break;
			}
}

static PyObject *binding_rebind(PyObject *object, PyObject *args)
{
	struct engine_binding *self = (struct engine_binding *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	PyObject *inputs, *none, *both;
	struct engine_call call;
	struct tmesh_error err;
	struct values fresh;
	bool done = false;
	int rc;

	if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &inputs))
		return NULL;
	none = PyTuple_New(0);
	both = none ? PyTuple_Pack(2, inputs, none) : NULL;
	Py_XDECREF(none);
	rc = both ? values_parse(st, both, &fresh, NULL) : -1;
	Py_XDECREF(both);
	if (rc)
		return NULL;
	if (self->runs || !self->binding) {
		values_free(&fresh);
		return self->binding ? raise_code(st, EBUSY, "the binding runs, in another thread")
				     : raise_named(st, "ReleasedError", EBADF,
						   "the binding was collected");
	}
	self->runs = -1;
	values_begin(&fresh);
	rc = engine_call_begin(st, &call);
	if (!rc) {
		rc = tmesh_engine_binding_rebind(self->binding, fresh.list, fresh.count, &err);
		done = !rc;
		rc = engine_call_end(st, &call, rc, &err);
	}
	values_end(&fresh);
	self->runs = 0;
	if (done)
		values_exchange(&self->values, &fresh);
	values_free(&fresh);
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

/* Visit the exporters of buffers: one of them may refer to the binding. */
static int binding_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct values *values = &((struct engine_binding *)object)->values;

	Py_VISIT(Py_TYPE(object));
	for (size_t i = 0; i < values->count; i++) {
		Py_VISIT(values->buffers[i].obj);
		Py_VISIT((PyObject *)values->tensors[i]);
	}
	Py_VISIT(values->source);
	return 0;
}

static int binding_clear(PyObject *object)
{
	struct engine_binding *self = (struct engine_binding *)object;
	struct tmesh_engine_binding *binding = self->binding;
	struct values values = self->values;

	self->binding = NULL;
	self->values = (struct values){0};
	unbind(binding);
	values_free(&values);
	return 0;
}

static void binding_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	PyObject_GC_UnTrack(object);
	binding_clear(object);
	PyObject_GC_Del(object);
	Py_DECREF(type);
}

static PyObject *operand(struct state *st, const struct tmesh_engine_operand *operand)
{
	PyObject *dims = PyTuple_New(operand->ndim);

	for (int32_t i = 0; dims && i < operand->ndim; i++) {
		PyObject *dim = operand->shape[i] >= 0 ? PyLong_FromLongLong(operand->shape[i])
				: operand->dims[i]     ? PyUnicode_FromString(operand->dims[i])
						       : Py_NewRef(Py_None);

		if (!dim || PyTuple_SetItem(dims, i, dim))
			Py_CLEAR(dims);
	}
	if (!dims)
		return NULL;
	return Py_BuildValue("(ssN)", operand->name, tmesh_dtype_name(operand->dtype), dims);
}

static PyObject *operands(PyObject *object, bool output)
{
	struct engine_graph *self = (struct engine_graph *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	size_t count =
		(output ? tmesh_engine_graph_outputs : tmesh_engine_graph_inputs)(self->graph);
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < count; i++) {
		struct tmesh_engine_operand found = {.size = sizeof(found)};
		struct tmesh_error err;

		if ((output ? tmesh_engine_graph_output : tmesh_engine_graph_input)(self->graph, i,
										    &found, &err)) {
			Py_DECREF(list);
			return raise_error(st, &err);
		}
		list_add(&list, operand(st, &found));
	}
	return list;
}

static PyObject *inputs(PyObject *object, PyObject *unused)
{
	return operands(object, false);
}

static PyObject *outputs(PyObject *object, PyObject *unused)
{
	return operands(object, true);
}

/* Drop the GIL: an engine's library may close a session with the graph. */
static void let_graph_go(struct tmesh_engine_graph *graph)
{
	if (!graph)
		return;
	WITHOUT_GIL(tmesh_engine_graph_unref(graph));
}

PyObject *engine_graph_open(struct state *st, struct tmesh_engine_context *context, PyObject *path,
			    PyObject *weights, bool prepack)
{
	struct tmesh_engine_graph_opts opts = {.size = sizeof(opts),
					       .flags = prepack ? TMESH_ENGINE_PREPACK : 0,
					       .weight_count = (size_t)PyTuple_Size(weights)};
	struct tmesh_engine_weight *list = PyMem_Calloc(opts.weight_count + 1, sizeof(*list));
	struct tmesh_engine_graph *graph = NULL;
	struct engine_graph *self = NULL;
	struct engine_call call;
	struct tmesh_error err;
	size_t taken = 0;
	int rc = -1;

	if (!list)
		return PyErr_NoMemory();
	opts.weights = list;
	for (; taken < opts.weight_count; taken++) {
		PyObject *item = PyTuple_GetItem(weights, (Py_ssize_t)taken), *tensor;
		struct tmesh_tensor *own;

		if (!PyArg_ParseTuple(item, "sO!", &list[taken].name, st->tensor_type, &tensor))
			goto out;
		own = tensor_get((struct tensor *)tensor);
		if (!own)
			goto out;
		list[taken].tensor = tmesh_tensor_ref(own);
	}
	rc = engine_call_begin(st, &call);
	if (rc)
		goto out;
	rc = tmesh_engine_graph_open(context, PyBytes_AsString(path), &opts, &graph, &err);
	if (rc)
		graph = NULL;
	rc = engine_call_end(st, &call, rc, &err);
out:
	while (taken)
		tmesh_tensor_unref(list[--taken].tensor);
	PyMem_Free(list);
	if (!rc)
		self = (struct engine_graph *)PyType_GenericAlloc(st->engine_types[ENGINE_GRAPH],
								  0);
	if (self)
		self->graph = graph;
	else
		let_graph_go(graph);
	return (PyObject *)self;
}

static void graph_dealloc(PyObject *object)
{
	let_graph_go(((struct engine_graph *)object)->graph);
	object_free(object);
}

static PyMethodDef graph_methods[] = {
	{"inputs", inputs, METH_NOARGS,
	 "inputs()\n--\n\n[(name, dtype, dims)]; a dim is a number, a name or None."},
	{"outputs", outputs, METH_NOARGS, "outputs()\n--\n\nAs inputs()."},
	{"dispatch", graph_dispatch, METH_VARARGS,
	 "dispatch(inputs, outputs, cancellable, /)\n--\n\n"
	 "Run it. A list: for each output an EngineTensor if it was left to the engine, else "
	 "None."},
	{"bind", graph_bind, METH_VARARGS, "bind(inputs, outputs, /)\n--\n\nAn EngineBinding."},
	{NULL},
};

static PyType_Slot graph_slots[] = {
	{Py_tp_doc, "A graph; tmesh.engine.Graph is made of it."},
	{Py_tp_dealloc, graph_dealloc},
	{Py_tp_methods, graph_methods},
	{0},
};

TYPE_SPEC(engine_graph_spec, "tmesh._tmesh.EngineGraph", struct engine_graph,
	  Py_TPFLAGS_DISALLOW_INSTANTIATION, graph_slots);

static PyMethodDef binding_methods[] = {
	{"dispatch", binding_dispatch, METH_O, "dispatch(cancellable, /)\n--\n\nRun it."},
	{"rebind", binding_rebind, METH_VARARGS,
	 "rebind(inputs, /)\n--\n\nInputs in others' place."},
	{NULL},
};

static PyType_Slot binding_slots[] = {
	{Py_tp_doc, "The native part of tmesh.engine.Binding."},
	{Py_tp_dealloc, binding_dealloc},
	{Py_tp_traverse, binding_traverse},
	{Py_tp_clear, binding_clear},
	{Py_tp_methods, binding_methods},
	{0},
};

TYPE_SPEC(engine_binding_spec, "tmesh._tmesh.EngineBinding", struct engine_binding,
	  Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, binding_slots);
