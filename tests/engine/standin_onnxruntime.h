/* SPDX-License-Identifier: MIT */
/* What the stand-in for ONNX Runtime tells a test. */
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
};

typedef struct ort_standin *ort_standin_fn(void);

#endif /* TMESH_STANDIN_ONNXRUNTIME_H */
