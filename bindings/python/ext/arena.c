/* SPDX-License-Identifier: MIT */
/* The Arena type: empty() and put() make many small tensors in one. Several threads may use one of
 * the library's arenas at once. */
#include "binding.h"

struct arena {
	PyObject_HEAD struct tmesh_arena *arena;
};

static PyObject *arena_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"bytes", "label",   "huge", "node", "mode",
				"gid",	 "hold_ms", "pin",  NULL};
	struct state *st = PyType_GetModuleState(type);
	struct region_args region = REGION_ARGS_INIT;
	struct tmesh_region_opts opts;
	unsigned long long bytes = 0;
	struct tmesh_arena *arena;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	struct arena *self;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&$OOOO&OO&p:Arena", names, size_argument,
					 &bytes, &region.label, &region.huge, &region.node,
					 uint_argument, &region.mode, &region.gid, uint_argument,
					 &region.hold_ms, &region.pin) ||
	    region_opts_from_args(st, &region, &opts))
		return NULL;
	ctx = context(st);
	if (!ctx)
		return NULL;
	if (tmesh_arena_create(ctx, bytes, &opts, &arena, &err))
		return raise_error(st, &err);
	self = (struct arena *)PyType_GenericAlloc(type, 0);
	if (self)
		self->arena = arena;
	else
		tmesh_arena_unref(arena);
	return (PyObject *)self;
}

static void arena_dealloc(PyObject *object)
{
	tmesh_arena_unref(((struct arena *)object)->arena);
	object_free(object);
}

int arena_from_object(struct state *st, PyObject *object, struct tmesh_arena **arena)
{
	*arena = NULL;
	if (object == Py_None)
		return 0;
	if (Py_TYPE(object) != st->arena_type) {
		PyErr_Format(PyExc_TypeError, "arena is a tmesh.Arena or None, not %R",
			     Py_TYPE(object));
		return -1;
	}
	*arena = ((struct arena *)object)->arena;
	return 0;
}

static PyType_Slot slots[] = {
	{Py_tp_new, arena_new},
	{Py_tp_dealloc, arena_dealloc},
	{Py_tp_doc,
	 "Arena(bytes=0, *, label=None, huge=False, node=None, mode=0o600, gid=None,\n"
	 "      hold_ms=0, pin=True)\n--\n\n"
	 "Where many small tensors are made one behind the other: empty(..., arena=a) and\n"
	 "put(..., arena=a). A region for each would cost a descriptor, a page and, at every\n"
	 "receiver, an open.\n\n"
	 "bytes: of a region, 0 for 1 MiB; a tensor larger than a quarter of that gets a\n"
	 "region of its own. The other arguments are those of empty(). A process that opens a\n"
	 "ref of one tensor can reach its neighbours, so none can be sealed. Room is given out "
	 "once; a region's\n"
	 "memory is given back with the last of its tensors, wherever they are held.\n"
	 "Errors as of empty()."},
	{0},
};

TYPE_SPEC(arena_spec, "tmesh.Arena", struct arena, 0, slots);
