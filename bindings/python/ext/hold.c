/* SPDX-License-Identifier: MIT */
/* Memory that this process holds until the receivers of its refs have opened it. */
#include "binding.h"

/* The interval between two checks for signals. */
#define SLICE_NS 50000000

PyObject *module_flush_held(PyObject *module, PyObject *timeout)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_flushed left = {.size = sizeof(left)};
	struct tmesh_error err;
	int64_t ns, end;
	int rc;

	if (timeout_from_object(st, timeout, &ns))
		return NULL;
	if (!st->ctx)
		return Py_BuildValue("ii", 0, 0);
	end = deadline_after(ns);
	do {
		ns = left_until(end);
		WITHOUT_GIL(rc = tmesh_ctx_flush(st->ctx, ns < 0 || ns > SLICE_NS ? SLICE_NS : ns,
						 &left, &err));
		if (PyErr_CheckSignals())
			return NULL;
	} while (rc == -ETIMEDOUT && left_until(end));
	if (rc && rc != -ETIMEDOUT)
		return raise_error(st, &err);
	return Py_BuildValue("KK", (unsigned long long)left.held,
			     (unsigned long long)left.messages);
}

PyObject *module_exit_wait(PyObject *module, PyObject *timeout)
{
	int64_t ns;

	if (timeout_from_object(PyModule_GetState(module), timeout, &ns))
		return NULL;
	WITHOUT_GIL(tmesh_exit_wait(ns));
	Py_RETURN_NONE;
}
