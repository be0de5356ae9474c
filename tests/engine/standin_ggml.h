/* SPDX-License-Identifier: MIT */
/* The stand-in for a libggml with CUDA reports this to a test. */
#ifndef TMESH_STANDIN_GGML_H
#define TMESH_STANDIN_GGML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_standin {
	int backends, buffers; /* made and not freed: of GPUs; of all */
	int device;	       /* of the last backend; -1: none */
	int gets, sets;	       /* of memory, by ggml's own calls */
	int outside;	       /* values in memory of others that is too small for its kernels */
	int dirty;	       /* weights behind which not all that is read is zeros */
	uint32_t rows;	       /* a bit for each number below 32 of a row that get_rows took */
	bool without;	       /* set by the test, as all below: there is no backend for CUDA */
	bool hides;	       /* a tensor has another buffer than it was given */
	bool lacks_silu;
	unsigned int lacks_type; /* as an older one, another of that number; 0: none */
	size_t behind;		 /* how far it reads behind weights of blocks */
	const char *fails;	 /* the function that fails, after @after more calls */
	int after;
	void (*reading)(void); /* called where memory is read by ggml's call */
	void (*during)(void);  /* called where a run begins */
};

typedef struct ggml_standin *ggml_standin_fn(void);

#endif /* TMESH_STANDIN_GGML_H */
