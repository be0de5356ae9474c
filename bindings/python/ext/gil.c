/* SPDX-License-Identifier: MIT */
/*
 * Callbacks of DLPack's and Arrow's consumers. A consumer calls them in any thread, with the GIL or
 * without it. PyGILState_Ensure() knows one thread state for each thread. In a subinterpreter that
 * shares the GIL, another thread state has it, so the call would deadlock with itself.
 */
#include "binding.h"

#include <stdatomic.h>

/* Whether a function of ours that has the GIL is further up on this thread's stack. */
static _Thread_local bool held;
/* Callbacks that the next thread with the GIL has to run. */
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

/* Leave @late to a thread that has the GIL; any thread may do so without the GIL. If Python's queue
 * of pending calls is full, a later request, seal() or release() runs it. */
static void defer(struct late *late)
{
	late->next = atomic_load(&left);
	while (!atomic_compare_exchange_weak(&left, &late->next, late))
		;
	Py_AddPendingCall(run_pending, NULL);
}

/*
 * Return 1 if this thread has the GIL. Return 0 if it does not, or if PyGILState_Ensure() would
 * notice that it does. Return -1 if this cannot be known: before Python 3.12 nothing tells which
 * thread state is current. If the thread's own one belongs to another interpreter than @home, that
 * interpreter may be waiting for this call.
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
		/* The callback may drop the GIL. */
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
