// SPDX-License-Identifier: MIT
/* ort_api.h beside ONNX Runtime's header, where there is one: compiling is the test. */
#include <stdio.h>

#include "onnx/ort_api.h"

#if __has_include(<onnxruntime_c_api.h>)
#include <onnxruntime_c_api.h>
#define HEADER
#elif __has_include(<onnxruntime/onnxruntime_c_api.h>)
#include <onnxruntime/onnxruntime_c_api.h>
#define HEADER
#endif

#ifdef HEADER
#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #theirs)
#define PLACE(name, symbol, place, result, arguments) \
	SAME((place) * sizeof(void *), offsetof(OrtApi, symbol));
ORT_FUNCTIONS(PLACE)

#define CODE(name) SAME(ORT_CODE_##name, ORT_##name)
CODE(INVALID_ARGUMENT);
CODE(NO_SUCHFILE);
CODE(NO_MODEL);
CODE(INVALID_PROTOBUF);
CODE(NOT_IMPLEMENTED);
CODE(INVALID_GRAPH);

SAME(ORT_LOG_FATAL, ORT_LOGGING_LEVEL_FATAL);
SAME(ORT_DEVICE_ALLOCATOR, OrtDeviceAllocator);
SAME(ORT_MEMORY_DEFAULT, OrtMemTypeDefault);
SAME(ORT_TYPE_TENSOR, ONNX_TYPE_TENSOR);

#define ELEMENT(name) SAME(ORT_ELEMENT_##name, ONNX_TENSOR_ELEMENT_DATA_TYPE_##name)
ELEMENT(FLOAT);
ELEMENT(UINT8);
ELEMENT(INT8);
ELEMENT(UINT16);
ELEMENT(INT16);
ELEMENT(INT32);
ELEMENT(INT64);
ELEMENT(BOOL);
ELEMENT(FLOAT16);
ELEMENT(DOUBLE);
ELEMENT(UINT32);
ELEMENT(UINT64);
ELEMENT(COMPLEX64);
ELEMENT(COMPLEX128);
ELEMENT(BFLOAT16);
ELEMENT(FLOAT8E4M3FN);
ELEMENT(FLOAT8E5M2);
ELEMENT(UINT4);
ELEMENT(INT4);
#endif

int main(void)
{
#ifdef HEADER
	puts("ok 1 - ort_api.h is as ONNX Runtime's header\n1..1");
#else
	puts("ok 1 - ort_api.h # SKIP ONNX Runtime's header is not installed "
	     "(libonnxruntime-dev)\n1..1");
#endif
	return 0;
}
