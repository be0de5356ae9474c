// SPDX-License-Identifier: MIT
/* tmesh-net: fetches and offers regions for a program that controls it by stdin and stdout. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/standard.h"

#include "frame.h"
#include "port.h"

#define NAME "tmesh-net"
#define LOCK "net.lock"
#define LOCK_WAIT_NS UINT64_C(5000000000)

static const char usage[] =
	"usage: " NAME " --address ADDRESS [--provider NAME] [--max-bytes BYTES] [--dma-buf]\n"
	"\n"
	"Offer regions of this machine to others, and fetch theirs. Commands and answers are JSON\n"
	"on stdin and stdout, each behind four bytes of length; tmesh-net(1) has them. It ends "
	"with\n"
	"its input. Bytes travel without encryption: trusted networks, or inside WireGuard.\n"
	"\n"
	"  --address ADDRESS  of the interface that leads to the others, in numbers\n"
	"  --provider NAME    of libfabric (tcp)\n"
	"  --max-bytes BYTES  of one fetch (no limit)\n"
	"  --dma-buf          the network card reads what is offered by dma-bufs\n"
	"  --help, --version\n";

static int read_options(int argc, char **argv, struct tmesh_net_opts *opts)
{
	static const struct option options[] = {
		{"address", required_argument, NULL, 'a'},
		{"provider", required_argument, NULL, 'p'},
		{"max-bytes", required_argument, NULL, 'b'},
		{"dma-buf", no_argument, NULL, 'd'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'},
		{0},
	};
	char *end;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'a':
			opts->address = optarg;
			break;
		case 'p':
			opts->provider = optarg;
			break;
		case 'b':
			errno = 0;
			opts->max_bytes = strtoull(optarg, &end, 10);
			if (errno || *end || end == optarg || *optarg == '-' || !opts->max_bytes) {
				fprintf(stderr, NAME ": %s is no number of bytes\n", optarg);
				return 2;
			}
			break;
		case 'd':
			opts->flags |= TMESH_NET_DMABUF;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(tmesh_end_output(NAME));
		case 'v':
			printf(NAME " %s\n", tmesh_version());
			exit(tmesh_end_output(NAME));
		default:
			fputs(usage, stderr);
			return 2;
		}
	}
	if (optind < argc || !opts->address) {
		fputs(usage, stderr);
		return 2;
	}
	return 0;
}

/* Wait a while for the lock: the fetcher of a net that is being restarted may be about to end. */
static int lock_in_time(int fd)
{
	const struct timespec moment = {.tv_nsec = 10000000};
	uint64_t deadline = tmesh_now_ns() + LOCK_WAIT_NS;
	int rc;

	while ((rc = flock(fd, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK &&
	       tmesh_now_ns() < deadline)
		nanosleep(&moment, NULL);
	return rc;
}

/* Allow one fetcher for each runtime directory: two would fetch the same bytes twice. The lock ends
 * with the process. */
static int lock(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	int dir, fd, rc = tmesh_ctx_runtime_dir(ctx, &dir, err);

	if (rc)
		return rc;
	fd = openat(dir, LOCK, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	close(dir);
	if (fd >= 0 && !lock_in_time(fd))
		return 0;
	rc = -errno;
	snprintf(err->message, sizeof(err->message),
		 rc == -EWOULDBLOCK ? "another " NAME " runs for this runtime directory"
				    : "cannot lock " LOCK ": %s",
		 strerror(-rc));
	return rc;
}

static int greet(struct tmesh_ctx *ctx, const struct tmesh_net *net, struct tmesh_error *err)
{
	char link[32], path[PATH_MAX];
	ssize_t length;
	int dir, rc = tmesh_ctx_runtime_dir(ctx, &dir, err);

	if (rc)
		return rc;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
	length = readlink(link, path, sizeof(path) - 1);
	close(dir);
	path[length < 0 ? 0 : length] = 0;
	frame_write(STDOUT_FILENO,
		    json_pack("{si ss si ss ss so}", "v", 1, "type", "hello", "pid", (int)getpid(),
			      "provider", tmesh_net_provider(net), "version", tmesh_version(),
			      "runtime_dir", frame_text(path)));
	return 0;
}

/* Say why the program ends: on stderr for people, and on stdout for the log of the parent
 * program. */
static void say_why(const char *why)
{
	fprintf(stderr, NAME ": %s\n", why);
	frame_write(STDOUT_FILENO, json_pack("{si ss ss}", "v", 1, "type", "end", "message", why));
}

static int serve(struct port *port)
{
	static char text[COMMAND_MAX_BYTES];
	long bytes;

	while ((bytes = frame_read(STDIN_FILENO, text, sizeof(text))) > 0)
		port_message(port, text, bytes);
	if (bytes < 0)
		say_why(bytes == -EPROTO ? "a message on stdin is empty, too long or cut off"
					 : "stdin cannot be read");
	return bytes ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct tmesh_net_opts opts = {.size = sizeof(opts)};
	struct tmesh_error err = {0};
	struct tmesh_ctx *ctx;
	struct tmesh_net *net;
	struct port port;
	int rc = read_options(argc, argv, &opts);

	if (rc)
		return rc;
	signal(SIGPIPE, SIG_IGN);
	/* tmesh-net sends no messages, so the message buffers can be small. It needs progress on
	 * connections more often than 100 times a second. Values from the environment take
	 * precedence. */
	setenv("FI_OFI_RXM_BUFFER_SIZE", "1024", 0);
	setenv("FI_OFI_RXM_CM_PROGRESS_INTERVAL", "500", 0);
	if (tmesh_ctx_open(NULL, &ctx, &err) || lock(ctx, &err) ||
	    tmesh_net_open(ctx, &opts, &net, &err) || greet(ctx, net, &err)) {
		say_why(err.message);
		return 1;
	}
	port_open(&port, ctx, net, STDOUT_FILENO);
	rc = serve(&port);
	port_close(&port);
	return rc;
}
