/* SPDX-License-Identifier: MIT */
/*
 * What consumers of DLPack and Arrow call when they are done: in any thread, with the GIL or
 * without it. PyGILState_Ensure() knows one thread state for each thread; in a subinterpreter
 * that shares the GIL another one has it, and the call would wait for itself for ever.
 */
#include "binding.h"

#include <stdatomic.h>

/* What is called below a function of ours that has the GIL. */
static _Thread_local bool held;
/* What is left to do by whoever has the GIL next. */
static _Atomic(struct late *) left;

bool gil_hold(void)
{
	bool before = held;

	held = true;
	return before;
}

void gil_unhold(bool before)
{
	held = before;
}

void gil_run_late(void)
{
	struct late *late = atomic_exchange(&left, NULL), *next;

	for (; late; late = next) {
		next = late->next;
		late->run(late);
	}
}

static int run_pending(void *unused)
{
	gil_run_late();
	return 0;
}

/* Any thread may ask for it, and without the GIL. Where there is no room for the request a later
 * one, seal() or release() does it. */
static void defer(struct late *late)
{
	late->next = atomic_load(&left);
	while (!atomic_compare_exchange_weak(&left, &late->next, late))
		;
	Py_AddPendingCall(run_pending, NULL);
}

/*
 * Whether this thread has the GIL: 1, 0 if it has it not or PyGILState_Ensure() would see it, or
 * -1 where that cannot be known. Before Python 3.12 a thread state is nobody's in particular, so
 * where the thread's own is another interpreter's than @home, that may be waiting for us.
 */
static int has_gil(PyInterpreterState *home)
{
	PyThreadState *own;

	if (held)
		return 1;
	if (Py_Version >= 0x030C0000)
		return PyThreadState_GetDict() != NULL;
	own = PyGILState_GetThisThreadState();
	return own && PyThreadState_GetInterpreter(own) != home ? -1 : 0;
}

bool gil_run(struct late *late, PyInterpreterState *home)
{
	PyGILState_STATE gil;
	bool before;

	if (!Py_IsInitialized())
		return false;
	switch (has_gil(home)) {
	case 1:
		/* It may let go of the GIL. */
		before = held;
		held = false;
		late->run(late);
		held = before;
		break;
	case 0:
		gil = PyGILState_Ensure();
		late->run(late);
		PyGILState_Release(gil);
		break;
	default:
		defer(late);
	}
	return true;
}
