/* SPDX-License-Identifier: MIT */
/*
 * DLPack's exchange for C (1.3): kernel libraries call these functions instead of __dlpack__().
 * They find them on the type as __dlpack_c_exchange_api__. Two of the functions have no Tensor to
 * start from; they look up the module of the running interpreter.
 */
#include "binding.h"

#include "common/dlpack_abi.h"

/* Return the module's state, borrowed from sys.modules; NULL with an exception. */
static struct state *current_state(void)
{
	PyObject *module = PyImport_ImportModule("tmesh._tmesh");
	struct state *st = module ? PyModule_GetState(module) : NULL;

	Py_XDECREF(module);
	return st;
}

static struct tensor *checked(void *object)
{
	struct state *st = current_state();

	if (!st)
		return NULL;
	if (Py_TYPE((PyObject *)object) != st->tensor_type) {
		PyErr_Format(PyExc_TypeError, "%R is no tmesh.Tensor", object);
		return NULL;
	}
	return object;
}

static int from_object(void *object, struct DLManagedTensorVersioned **out)
{
	struct tensor *self = checked(object);

	*out = self ? tensor_to_managed(self) : NULL;
	return *out ? 0 : -1;
}

static int to_object(struct DLManagedTensorVersioned *managed, void **object)
{
	struct state *st = current_state();

	*object = st ? tensor_from_managed(st, managed) : NULL;
	/* Ownership has passed to us, so free it on failure too. */
	if (managed->deleter)
		end_versioned(managed);
	return *object ? 0 : -1;
}

/* Describe a Tensor. The result is valid as long as the Tensor: its layout never changes and its
 * memory stays mapped. */
static int peek(void *object, struct dl_tensor *out)
{
	struct tensor *self = checked(object);
	struct DLManagedTensorVersioned *managed;
	const struct tmesh_layout *layout;

	managed = self ? tensor_to_managed(self) : NULL;
	if (!managed)
		return -1;
	if (managed->flags & DL_FLAG_READ_ONLY) {
		raise_code(state_of(self), EACCES,
			   "a bare DLTensor cannot say that its memory is read-only");
		end_versioned(managed);
		return -1;
	}
	layout = tmesh_tensor_layout(self->tensor);
	*out = managed->dl_tensor;
	out->shape = (int64_t *)layout->shape;
	out->strides = (int64_t *)layout->strides;
	end_versioned(managed);
	return 0;
}

static int current_stream(int32_t device_type, int32_t device_id, void **stream)
{
	*stream = NULL;
	return 0;
}

/* Report an exception through @set_error: the caller may not use Python. */
static int set_exchange_error(void *error_ctx, void (*set_error)(void *error_ctx, const char *kind,
								 const char *message))
{
	PyObject *type, *value, *traceback, *text;
	const char *message;

	PyErr_Fetch(&type, &value, &traceback);
	text = value ? PyObject_Str(value) : NULL;
	message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
	set_error(error_ctx, "BufferError", message ? message : "tmesh cannot allocate that");
	Py_XDECREF(text);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	PyErr_Clear();
	return -1;
}

/* Make a Tensor like @prototype. Its views end with the managed tensor. */
static int allocate_tensor(struct state *st, const struct dl_tensor *prototype,
			   struct DLManagedTensorVersioned **out)
{
	/* Let the library find the dtype: describe a tensor without elements. */
	int64_t none = 0;
	struct DLManagedTensor like = {
		.dl_tensor =
			{
				.device = {.type = DL_DEVICE_CPU},
				.ndim = 1,
				.dtype = prototype->dtype,
				.shape = &none,
			},
	};
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	enum tmesh_dtype dtype;
	int rc;

	if (!ctx)
		return -1;
	if (prototype->device.type != DL_DEVICE_CPU) {
		raise_code(st, EOPNOTSUPP, "tensors are made on the CPU, not on DLPack device %d",
			   (int)prototype->device.type);
		return -1;
	}
	rc = tmesh_tensor_from_dlpack(ctx, &like, &unsealed, &tensor, &err);
	if (!rc) {
		dtype = tmesh_tensor_layout(tensor)->dtype;
		tmesh_tensor_unref(tensor);
		rc = tmesh_tensor_create(ctx, dtype, prototype->ndim, prototype->shape, NULL,
					 &tensor, &err);
	}
	if (!rc) {
		rc = tmesh_tensor_to_dlpack_versioned(tensor, TMESH_READ | TMESH_WRITE,
						      DLPACK_MAJOR, out, &err);
		tmesh_tensor_unref(tensor);
	}
	if (rc)
		raise_error(st, &err);
	return rc;
}

static int allocate(struct dl_tensor *prototype, struct DLManagedTensorVersioned **out,
		    void *error_ctx,
		    void (*set_error)(void *error_ctx, const char *kind, const char *message))
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct state *st = current_state();
	int rc = 0;

	*out = NULL;
	if (!st || allocate_tensor(st, prototype, out))
		rc = set_exchange_error(error_ctx, set_error);
	PyGILState_Release(gil);
	return rc;
}

static struct dl_exchange exchange = {
	.version = {.major = DLPACK_MAJOR, .minor = DL_EXCHANGE_MINOR},
	.allocate = allocate,
	.from_object = from_object,
	.to_object = to_object,
	.peek = peek,
	.current_stream = current_stream,
};

int exchange_add(PyTypeObject *type)
{
	PyObject *capsule = PyCapsule_New(&exchange, DL_EXCHANGE_CAPSULE, NULL);
	PyObject *name = PyUnicode_FromString("__dlpack_c_exchange_api__");
	int rc = -1;

	/* The type is immutable for all other code. It is still being created here. */
	if (capsule && name)
		rc = PyObject_GenericSetAttr((PyObject *)type, name, capsule);
	if (!rc)
		PyType_Modified(type);
	Py_XDECREF(name);
	Py_XDECREF(capsule);
	return rc;
}
