/* SPDX-License-Identifier: MIT */
/* Messages of channels: bytes, a Tensor, or both. */
#include "binding.h"

/* Whether an object may be sent as bytes. An object with a dtype and shape would lose them. */
static bool may_be_bytes(PyObject *object)
{
	return PyBytes_Check(object) || PyByteArray_Check(object) || PyMemoryView_Check(object);
}

static bool is_bytes(PyObject *object, const Py_buffer *view)
{
	return !PyMemoryView_Check(object) ||
	       (view->ndim == 1 && (!view->format || !strcmp(view->format, "B")));
}

static int bytes_into(struct state *st, PyObject *object, size_t room,
		      struct tmesh_message *message)
{
	Py_buffer view = {0};
	int rc = -1;

	if (may_be_bytes(object) && PyObject_GetBuffer(object, &view, PyBUF_FORMAT | PyBUF_ND))
		return -1;
	if (!may_be_bytes(object) || !is_bytes(object, &view)) {
		PyErr_Format(PyExc_TypeError,
			     "%R would arrive as bytes without its dtype and shape: send a tensor, "
			     "as of tmesh.put(), or bytes()",
			     Py_TYPE(object));
	} else if ((size_t)view.len <= room) {
		memcpy(message->data, view.buf, (size_t)view.len);
		message->bytes = (uint32_t)view.len;
		rc = 0;
	} else {
		raise_code(st, EINVAL,
			   "a message has at most %zu bytes%s, not %zd: put() them and send the "
			   "tensor",
			   room, room < TMESH_MESSAGE_BYTES ? " beside its tensor" : "", view.len);
	}
	PyBuffer_Release(&view);
	return rc;
}

/* Convert by Python code first: code of other packages, which may run here, could release the
 * tensor. */
int message_from_object(struct state *st, PyObject *object, struct tmesh_message *message)
{
	message->tensor = NULL;
	message->bytes = 0;
	message->reserved = 0;
	if (Py_TYPE(object) == st->tensor_type) {
		message->tensor = tensor_get((struct tensor *)object);
		return message->tensor ? 0 : -1;
	}
	if (PyTuple_Check(object) && PyTuple_Size(object) == 2 &&
	    Py_TYPE(PyTuple_GetItem(object, 0)) == st->tensor_type) {
		if (bytes_into(st, PyTuple_GetItem(object, 1), TMESH_MESSAGE_TENSOR_BYTES, message))
			return -1;
		message->tensor = tensor_get((struct tensor *)PyTuple_GetItem(object, 0));
		return message->tensor ? 0 : -1;
	}
	if (PyObject_CheckBuffer(object))
		return bytes_into(st, object, TMESH_MESSAGE_BYTES, message);
	PyErr_Format(PyExc_TypeError,
		     "a message is bytes, a tmesh.Tensor, or a tuple of a Tensor and bytes, not %R",
		     Py_TYPE(object));
	return -1;
}

PyObject *object_from_message(struct state *st, struct tmesh_message *message)
{
	PyObject *tensor, *bytes;

	if (!message->tensor)
		return PyBytes_FromStringAndSize((char *)message->data, message->bytes);
	tensor = tensor_new(st, message->tensor, NULL,
			    tmesh_region_rights(tmesh_tensor_region(message->tensor)));
	if (!tensor || !message->bytes)
		return tensor;
	bytes = PyBytes_FromStringAndSize((char *)message->data, message->bytes);
	return bytes ? Py_BuildValue("NN", tensor, bytes) : (Py_DECREF(tensor), NULL);
}
