// SPDX-License-Identifier: MIT
/* An unchanged program with the toolkit's own static CUDA runtime. It prints the runtime's error:
 * the stand-in driver lacks the private tables that the runtime asks for next. */
#include <stddef.h>
#include <stdio.h>

int cudaMalloc(void **pointer, size_t bytes);

int main(void)
{
	void *pointer;

	printf("%d\n", cudaMalloc(&pointer, 1000));
	return 0;
}
