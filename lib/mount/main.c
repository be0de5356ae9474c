// SPDX-License-Identifier: MIT
/* tmesh-mount: its words, its mount and its end. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/standard.h"
#include "mount.h"

#define PLACE "/run/tmesh"

struct mount tree = {.lock = PTHREAD_MUTEX_INITIALIZER,
		     .arrived = PTHREAD_COND_INITIALIZER,
		     .crowd = PTHREAD_COND_INITIALIZER};

static int usage(int status)
{
	fprintf(status ? stderr : stdout,
		"usage: tmesh-mount [--keepers PATTERN]... [--unmount] [FOLDER]\n\n"
		"Show what users keep as files: FOLDER/UID/NAME/PATH; FOLDER is " PLACE
		" by default.\n"
		"  -k, --keepers PATTERN  where keepers' runtime folders are, %%u for the uid\n"
		"                         (/run/user/%%u/tmesh and /tmp/tmesh-%%u)\n"
		"  -u, --unmount          take away what a tmesh-mount that was killed left there\n"
		"  -V, --version          what it is built with\n");
	return status ? status : tmesh_end_output("tmesh-mount");
}

static int version(void)
{
	printf("tmesh-mount " TMESH_VERSION ", libfuse %s, %s\n", fuse_pkgversion(),
	       PASSTHROUGH ? "passthrough where the kernel has it" : "page cache");
	return tmesh_end_output("tmesh-mount");
}

/* Notify systemd if it has started this program. */
static void notify(const char *text)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t bytes = path ? strlen(path) : 0;
	int fd;

	if (bytes < 2 || bytes >= sizeof(address.sun_path) || (*path != '/' && *path != '@'))
		return;
	memcpy(address.sun_path, path, bytes);
	if (*path == '@')
		address.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&address,
	       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes + (*path == '/')));
	close(fd);
}

/* Make an absolute path without a link in its last component. */
static char *settle(const char *given)
{
	char *path = NULL, *slash, *above, *base;
	size_t length;

	if (*given == '/') {
		path = strdup(given);
	} else {
		char *here = getcwd(NULL, 0);

		if (!here || asprintf(&path, "%s/%s", here, given) < 0)
			path = NULL;
		free(here);
	}
	if (!path)
		return NULL;
	length = strlen(path);
	while (length > 1 && path[length - 1] == '/')
		path[--length] = '\0';
	slash = strrchr(path, '/');
	base = strdup(slash + 1);
	*slash = '\0';
	above = realpath(*path ? path : "/", NULL);
	free(path);
	path = NULL;
	if (above && base && asprintf(&path, "%s/%s", strcmp(above, "/") ? above : "", base) < 0)
		path = NULL;
	free(above);
	free(base);
	return path;
}

/* Return the folder of the user's own keeper, if this is a user's own mount. */
static const char *own_folder(void)
{
	static char path[4096];
	const char *told = getenv("TMESH_RUNTIME_DIR");

	if (told && *told)
		return told;
	told = getenv("XDG_RUNTIME_DIR");
	if (!told || !*told ||
	    (size_t)snprintf(path, sizeof(path), "%s/tmesh", told) >= sizeof(path))
		return NULL;
	return path;
}

static bool others_are_allowed(void)
{
	FILE *file = fopen("/etc/fuse.conf", "re");
	bool allowed = tree.own == 0;
	char line[256];

	while (file && !allowed && fgets(line, sizeof(line), file))
		allowed = !strncmp(line, "user_allow_other", 16);
	if (file)
		fclose(file);
	return allowed;
}

static int add_arguments(struct fuse_args *args)
{
	bool others = others_are_allowed();

	if (!others)
		fprintf(stderr,
			"tmesh-mount: only user %u can read this mount, and a container engine "
			"that "
			"runs as root cannot bind-mount it: add user_allow_other to "
			"/etc/fuse.conf\n",
			(unsigned int)tree.own);
	return fuse_opt_add_arg(args, "tmesh-mount") || fuse_opt_add_arg(args, "-o") ||
	       fuse_opt_add_arg(args, others ? "ro,nosuid,nodev,noexec,default_permissions,"
					       "fsname=tmesh,subtype=tmesh,allow_other"
					     : "ro,nosuid,nodev,noexec,default_permissions,"
					       "fsname=tmesh,subtype=tmesh");
}

static void raise_files(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static int serve(const char *path)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_session *session = NULL;
	int status = 1;

	if (!place_prepare(path))
		return 1;
	if (add_arguments(&args)) {
		fprintf(stderr, "tmesh-mount: no memory\n");
		return 1;
	}
	session = fuse_session_new(&args, &operations, sizeof(operations), NULL);
	fuse_opt_free_args(&args);
	tree.session = session;
	if (!session)
		return 1;
	if (fuse_set_signal_handlers(session) == 0) {
		if (fuse_session_mount(session, path) == 0) {
			if (jobs_watch() == 0) {
				notify("READY=1");
				status = fuse_session_loop(session) < 0;
			}
			notify("STOPPING=1");
			fuse_session_unmount(session);
			place_leave(path);
		} else {
			fprintf(stderr,
				"tmesh-mount: cannot mount %s: it takes /dev/fuse, and root "
				"or fusermount3\n",
				path);
		}
		fuse_remove_signal_handlers(session);
	}
	/* Threads of users may be at work yet: the process ends with them. */
	_exit(status);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {{"keepers", required_argument, NULL, 'k'},
					      {"unmount", no_argument, NULL, 'u'},
					      {"version", no_argument, NULL, 'V'},
					      {"help", no_argument, NULL, 'h'},
					      {NULL, 0, NULL, 0}};
	static const char *keepers[KEEPER_PATTERNS];
	struct tmesh_error err;
	bool unmount = false;
	char *path;
	int key;

	tree.own = geteuid();
	if (tmesh_random(&tree.secret, sizeof(tree.secret), &err)) {
		fprintf(stderr, "tmesh-mount: %s\n", err.message);
		return 1;
	}
	tree.keepers = keepers;
	while ((key = getopt_long(argc, argv, "k:uVh", longs, NULL)) != -1) {
		if (key == 'k' && tree.keeper_count < KEEPER_PATTERNS)
			keepers[tree.keeper_count++] = optarg;
		else if (key == 'u')
			unmount = true;
		else if (key == 'V')
			return version();
		else
			return usage(key == 'h' ? 0 : 2);
	}
	if (optind + 1 < argc)
		return usage(2);
	if (!tree.keeper_count) {
		if (tree.own && own_folder())
			keepers[tree.keeper_count++] = own_folder();
		keepers[tree.keeper_count++] = "/run/user/%u/tmesh";
		keepers[tree.keeper_count++] = "/tmp/tmesh-%u";
	}
	path = settle(optind < argc ? argv[optind] : PLACE);
	if (!path) {
		fprintf(stderr, "tmesh-mount: %s: %s\n", optind < argc ? argv[optind] : PLACE,
			strerror(errno));
		return 1;
	}
	if (unmount) {
		place_leave(path);
		free(path);
		return 0;
	}
	signal(SIGPIPE, SIG_IGN);
	raise_files();
	return serve(path);
}
