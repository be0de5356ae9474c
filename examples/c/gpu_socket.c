/* SPDX-License-Identifier: MIT */
/* cc gpu_socket.c $(pkg-config --cflags --libs libtmesh-cuda) -o gpu_socket */
/*
 * Pass GPU memory from one process to another by a Unix socket, without a ref. The parent writes to
 * it, the child maps the same memory and reads it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <tmesh/cuda.h>

#define BYTES (2u << 20)

static int give(struct tmesh_ctx *ctx, struct tmesh_cuda *cuda, int socket, struct tmesh_error *err)
{
	const char text[] = "written by the parent";
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	char done;
	int rc = tmesh_cuda_alloc(cuda, 0, BYTES, TMESH_CUDA_ALONE, &memory, err);

	(void)ctx; /* only the receiver needs a context */
	if (rc)
		return rc;
	rc = tmesh_cuda_write(memory, 0, text, sizeof(text), err);
	if (!rc) /* a reader that waits for the fence sees all work of stream NULL so far */
		rc = tmesh_cuda_record(memory, NULL, err);
	if (!rc)
		rc = tmesh_cuda_region(memory, &region, err);
	if (!rc) {
		rc = tmesh_region_send(region, socket, TMESH_READ | TMESH_WRITE, err);
		tmesh_region_unref(region);
	}
	if (!rc && read(socket, &done, 1) < 0)
		perror("gpu_socket");
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_trim(cuda); /* give cached memory back to the driver at once */
	return rc;
}

static int take(struct tmesh_ctx *ctx, struct tmesh_cuda *cuda, int socket, struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	char text[32] = "";
	int rc = tmesh_region_recv(ctx, socket, &region, err);

	if (rc)
		return rc;
	rc = tmesh_cuda_import(cuda, region, NULL, &memory, err);
	tmesh_region_unref(region);
	if (rc)
		return rc;
	rc = tmesh_cuda_wait(memory, NULL, err);
	if (!rc)
		rc = tmesh_cuda_read(memory, 0, text, sizeof(text), err);
	if (!rc)
		printf("%.*s\n", (int)sizeof(text), text);
	tmesh_cuda_memory_unref(memory);
	return rc;
}

/* The driver does not survive fork(): each process opens its own. */
static int run(int (*part)(struct tmesh_ctx *ctx, struct tmesh_cuda *cuda, int socket,
			   struct tmesh_error *err),
	       int socket)
{
	struct tmesh_cuda *cuda;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc = tmesh_ctx_open(NULL, &ctx, &err);

	if (!rc) {
		rc = tmesh_cuda_open(ctx, NULL, &cuda, &err);
		if (!rc) {
			rc = part(ctx, cuda, socket, &err);
			tmesh_cuda_unref(cuda);
		}
		tmesh_ctx_unref(ctx);
	}
	close(socket);
	if (rc)
		fprintf(stderr, "gpu_socket: %s\n", err.message);
	return rc ? 1 : 0;
}

int main(void)
{
	int sockets[2], status = 1, failed;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) || (child = fork()) < 0) {
		perror("gpu_socket");
		return 1;
	}
	if (!child) {
		close(sockets[0]);
		return run(take, sockets[1]);
	}
	close(sockets[1]);
	failed = run(give, sockets[0]);
	waitpid(child, &status, 0);
	return failed || status;
}
