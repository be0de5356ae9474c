/* SPDX-License-Identifier: MIT */
/* The stand-in for ONNX Runtime reports this to a test. */
#ifndef TMESH_STANDIN_ONNXRUNTIME_H
#define TMESH_STANDIN_ONNXRUNTIME_H

#include <stdbool.h>

struct ort_standin {
	int live;	   /* objects that were made and not released */
	int appended;	   /* the device of the last provider that was appended; -1: none */
	int waits;	   /* for outputs */
	int elsewhere;	   /* values that lie in another memory than their session's device */
	bool without;	   /* set by the test: there is no CUDA execution provider */
	const char *fails; /* set by the test: the function whose next call fails */
	/* Set by the test: the weight that a kernel reads on the host, and the one that an
	 * optimization computes with. */
	const char *on_host, *folded;
	bool says_nothing; /* set by the test: no line of the log names a weight */
	int sessions;	   /* that were made */
	int weights;	   /* that the last session uses */
	float first;	   /* of the weight @on_host, as the last session has it */
};

typedef struct ort_standin *ort_standin_fn(void);

#endif /* TMESH_STANDIN_ONNXRUNTIME_H */
