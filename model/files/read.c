// SPDX-License-Identifier: MIT
/*
 * Read the files' bytes into the region. A file is never mapped: if it shrinks, the result is a
 * short read, not a signal. docs/reference/models.md has the measurements behind the choice of
 * method.
 */
#include "model_internal.h"

#include "common/file_size.h"
#include "common/foreign.h"
#include "../shared/host.h"

#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PIECE ((uint64_t)1 << 20)
#define PIECE_LARGE \
	((uint64_t)8 << 20) /* where each request is a journey, unless it is a long one */
#define POPULATED_AT_ONCE ((uint64_t)32 << 20)
#define DEPTH 8
#ifndef PROBE /* smaller in a test */
#define PROBE ((uint64_t)32 << 20)
#define PROBE_LEAST ((uint64_t)512 << 20) /* below, measuring costs more than it gains */
#endif
#define TELL ((uint64_t)32 << 20)
#define TELL_NS UINT64_C(100000000) /* at the latest, once a piece is there */
#define DIRECT_ALIGN 4096u

int load_tell(struct load *load, uint64_t done, bool waiting, struct tmesh_error *err)
{
	struct tmesh_model_progress progress = {
		.size = sizeof(progress),
		.bytes_done = done,
		.bytes_total = load->model->run_bytes,
		.waiting = waiting,
	};

	if (load->opts.progress && load->opts.progress(load->opts.progress_data, &progress))
		return tmesh_fail(err, -ECANCELED, "the loading was cancelled");
	return 0;
}

/* Note that all before @done is in the region. */
static int advance(struct load *load, uint64_t done, struct tmesh_error *err)
{
	uint64_t now = tmesh_now_ns();

	load->done = done;
	ahead_tell(load->ahead, done);
	if (done - load->told < TELL && now - load->told_ns < TELL_NS &&
	    done < load->model->run_bytes)
		return 0;
	load->told = done;
	load->told_ns = now;
	if (load->model->shared)
		shared_load_progress(load->model->shared, done);
	return load_tell(load, done, false, err);
}

int load_verify(const struct load *load, struct tmesh_error *err)
{
	for (size_t i = 0; i < load->model->file_count; i++) {
		const struct model_file *file = &load->model->files[i];
		char quoted[MODEL_QUOTE], text[96];
		struct stat st;

		/* A network file system may fail here because the file is gone. */
		if (fstat(file->fd, &st)) {
			int code = errno;

			return tmesh_fail(err, -code, "looking at %s after it was read: %s",
					  model_quote(quoted, file->path),
					  strerror_r(code, text, sizeof(text)));
		}
		if ((uint64_t)st.st_size != file->bytes || (file->linked && !st.st_nlink) ||
		    st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec != file->mtime_ns ||
		    st.st_ctim.tv_sec * 1000000000ll + st.st_ctim.tv_nsec != file->ctime_ns)
			return tmesh_fail(err, -ESTALE, "%s %s while it was read",
					  model_quote(quoted, file->path),
					  file->linked && !st.st_nlink ? "was removed or replaced"
								       : "changed");
	}
	return 0;
}

static int read_failed(const struct load *load, const struct model_run *run, int rc,
		       struct tmesh_error *err)
{
	char quoted[MODEL_QUOTE], text[96];

	model_quote(quoted, load->model->files[run->file].path);
	if (!rc)
		return tmesh_fail(err, -ESTALE, "%s has shrunk while it was read", quoted);
	return tmesh_fail(err, rc, "reading %s: %s", quoted, strerror_r(-rc, text, sizeof(text)));
}

/* Return the run that has byte @done of all. */
static const struct model_run *run_at(const struct tmesh_model *model, uint64_t done)
{
	size_t low = 0, high = model->run_count;

	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (model->runs[middle].begin <= done)
			low = middle;
		else
			high = middle;
	}
	return &model->runs[low];
}

struct piece load_piece_at(const struct tmesh_model *model, uint64_t done, uint64_t end,
			   uint64_t most)
{
	const struct model_run *run = run_at(model, done);
	uint64_t in = done - run->begin, bytes = run->bytes - in;

	if (bytes > most)
		bytes = most;
	if (bytes > end - done)
		bytes = end - done;
	return (struct piece){run, run->file_offset + in, run->offset + in, bytes};
}

/* Take pages before they are filled: then they can be huge, and taking many at a time is quicker.
 * If the region ends, the read reports it. */
static void populate(struct load *load, const struct piece *piece)
{
	uint64_t end = piece->offset + piece->bytes, rest;

	if (!load->populate || end <= load->populated)
		return;
	rest = load->model->region_bytes - piece->offset;
	if (rest > POPULATED_AT_ONCE)
		rest = POPULATED_AT_ONCE;
	if (rest < piece->bytes)
		rest = piece->bytes;
	tmesh_region_populate(load->region, piece->offset, rest, NULL);
	load->populated = piece->offset + rest;
}

/* Return the size of the next read. A caller that cancels has to wait for the read under way, so a
 * slow device gets smaller reads. */
static uint64_t next_piece(uint64_t most, uint64_t ns)
{
	if (ns > TELL_NS)
		return most > PIECE ? most / 2 : PIECE;
	return most < PIECE_LARGE && ns < TELL_NS / 2 ? most * 2 : most;
}

static int read_plain(struct load *load, uint64_t end, uint8_t *memory, struct tmesh_error *err)
{
	uint64_t most = PIECE;

	while (load->done < end) {
		struct piece piece = load_piece_at(load->model, load->done, end, most);
		uint64_t began = tmesh_now_ns();
		int rc;

		populate(load, &piece);
		for (uint64_t at = 0; at < piece.bytes;) {
			ssize_t got = pread(load->model->files[piece.run->file].fd,
					    memory + piece.offset + at, piece.bytes - at,
					    (off_t)(piece.file_offset + at));

			if (got < 0 && errno == EINTR)
				continue;
			if (got <= 0)
				return read_failed(load, piece.run, got ? -errno : 0, err);
			at += (uint64_t)got;
		}
		most = next_piece(most, tmesh_now_ns() - began);
		rc = advance(load, load->done + piece.bytes, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* Splice from the file to a pipe to the memfd: the page cache's pages are copied only once. */
static int splice_piece(struct load *load, const struct piece *piece, const int pipe_fds[2],
			int out, struct tmesh_error *err)
{
	loff_t from = (loff_t)piece->file_offset;
	off_t to = (off_t)piece->offset;
	uint64_t left = piece->bytes;

	while (left) {
		ssize_t got = splice(load->model->files[piece->run->file].fd, &from, pipe_fds[1],
				     NULL, left, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return read_failed(load, piece->run, got ? -errno : 0, err);
		left -= (uint64_t)got;
		while (got) {
			ssize_t put = tmesh_splice(pipe_fds[0], out, &to, (size_t)got);

			if (put < 0 && errno == EINTR)
				continue;
			if (put <= 0)
				return put ? tmesh_fail_errno(err, "writing to the region")
					   : tmesh_fail(err, -EIO,
							"the region takes no more bytes");
			got -= put;
		}
	}
	return 0;
}

static int read_splice(struct load *load, uint64_t end, uint8_t *memory, struct tmesh_error *err)
{
	int pipe_fds[2], region = tmesh_region_fd(load->region), out, rc = 0;

	if (region < 0)
		return tmesh_fail(err, region, "the region's descriptor cannot be written to");
	/* A file position of our own is not needed, but the right to write is. */
	out = tmesh_foreign_reopen(region, O_WRONLY);
	if (out < 0)
		return tmesh_fail_errno(err, "opening the region to write");
	if (pipe2(pipe_fds, O_CLOEXEC)) {
		rc = tmesh_fail_errno(err, "making a pipe to splice the model by");
		close(out);
		return rc;
	}
	/* A smaller one is as good, and only slower. */
	fcntl(pipe_fds[0], F_SETPIPE_SZ, (int)PIECE);
	while (!rc && load->done < end) {
		struct piece piece = load_piece_at(load->model, load->done, end, PIECE);

		populate(load, &piece);
		rc = splice_piece(load, &piece, pipe_fds, out, err);
		if (!rc)
			rc = advance(load, load->done + piece.bytes, err);
	}
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	close(out);
	return rc;
}

/* A read that the ring has not finished. Reads end in any order; progress counts them in theirs. */
struct request {
	struct piece piece;
	uint64_t got;
	uint64_t begin, want; /* direct: whole blocks around the piece */
	uint8_t *to;
	bool busy, finished;
};

struct ring {
	struct io_uring uring;
	struct request requests[DEPTH];
	uint64_t first, next; /* numbers of requests: oldest unfinished, next to be made */
	uint8_t *buffers;     /* direct */
	int *fds;	      /* direct: the files anew */
};

static int ring_queue(struct load *load, struct ring *ring, struct request *request,
		      struct tmesh_error *err)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
	uint32_t file = request->piece.run->file;
	int rc;

	if (!sqe)
		return tmesh_fail(err, -EBUSY, "io_uring takes no request");
	io_uring_prep_read(sqe, ring->fds ? ring->fds[file] : load->model->files[file].fd,
			   request->to + request->got, (unsigned int)(request->want - request->got),
			   request->begin + request->got);
	io_uring_sqe_set_data(sqe, request);
	rc = io_uring_submit(&ring->uring);
	request->busy = rc >= 0;
	return rc < 0 ? tmesh_fail(err, rc, "io_uring_submit: %s", strerror(-rc)) : 0;
}

static int ring_begin(struct load *load, struct ring *ring, uint64_t at, uint64_t end,
		      uint8_t *memory, uint64_t *bytes, struct tmesh_error *err)
{
	struct request *request = &ring->requests[ring->next % DEPTH];
	struct piece piece = load_piece_at(load->model, at, end, PIECE);

	*request =
		(struct request){.piece = piece, .begin = piece.file_offset, .want = piece.bytes};
	/* In the order of the file: reads end in any order, and a write that is ahead of others
	 * takes small pages. */
	populate(load, &piece);
	if (ring->fds) {
		request->begin &= ~(uint64_t)(DIRECT_ALIGN - 1);
		request->want =
			(piece.file_offset + piece.bytes - request->begin + DIRECT_ALIGN - 1) &
			~(uint64_t)(DIRECT_ALIGN - 1);
		request->to = ring->buffers + ring->next % DEPTH * (PIECE + 2 * DIRECT_ALIGN);
	} else {
		request->to = memory + piece.offset;
	}
	*bytes = piece.bytes;
	ring->next++;
	return ring_queue(load, ring, request, err);
}

/* Take one answer of the ring, and read the rest if it is short. */
static int ring_reap(struct load *load, struct ring *ring, struct tmesh_error *err)
{
	struct io_uring_cqe *cqe;
	struct request *request;
	uint64_t ahead, least;
	int rc;

	do {
		rc = io_uring_wait_cqe(&ring->uring, &cqe);
	} while (rc == -EINTR);
	if (rc)
		return tmesh_fail(err, rc, "io_uring_wait_cqe: %s", strerror(-rc));
	request = io_uring_cqe_get_data(cqe);
	rc = cqe->res;
	io_uring_cqe_seen(&ring->uring, cqe);
	request->busy = false;
	if (rc == -EINTR || rc == -EAGAIN)
		return ring_queue(load, ring, request, err);
	if (rc < 0)
		return read_failed(load, request->piece.run, rc, err);
	request->got += (uint64_t)rc;
	/* The file's end may lie in the last block. */
	ahead = request->piece.file_offset - request->begin;
	least = ahead + request->piece.bytes;
	if (request->got < least) {
		/* O_DIRECT goes on at a whole block only. */
		if (!rc || (ring->fds && request->got % DIRECT_ALIGN))
			return read_failed(load, request->piece.run, 0, err);
		return ring_queue(load, ring, request, err);
	}
	request->finished = true;
	if (!ring->fds)
		return 0;
	load->model->report.bytes_copied += request->piece.bytes;
	return tmesh_region_write(load->region, request->piece.offset, request->to + ahead,
				  request->piece.bytes, err);
}

static int ring_run(struct load *load, struct ring *ring, uint64_t end, uint8_t *memory,
		    struct tmesh_error *err)
{
	uint64_t asked = load->done, bytes;
	int rc = 0;

	while (!rc && load->done < end) {
		while (!rc && asked < end && ring->next - ring->first < DEPTH) {
			rc = ring_begin(load, ring, asked, end, memory, &bytes, err);
			asked += bytes;
		}
		if (!rc)
			rc = ring_reap(load, ring, err);
		while (!rc && ring->first < ring->next &&
		       ring->requests[ring->first % DEPTH].finished) {
			rc = advance(load,
				     load->done + ring->requests[ring->first % DEPTH].piece.bytes,
				     err);
			ring->first++;
		}
	}
	/* The kernel may still write to the memory of those that are on their way. */
	for (unsigned int i = 0; i < DEPTH; i++) {
		while (ring->requests[i].busy) {
			struct io_uring_cqe *cqe;

			if (io_uring_wait_cqe(&ring->uring, &cqe) == 0) {
				((struct request *)io_uring_cqe_get_data(cqe))->busy = false;
				io_uring_cqe_seen(&ring->uring, cqe);
			}
		}
	}
	return rc;
}

/* Read by io_uring. -EOPNOTSUPP: there is no io_uring, or the file system has no O_DIRECT. */
static int read_ring(struct load *load, bool direct, uint64_t end, uint8_t *memory,
		     struct tmesh_error *err)
{
	struct ring ring = {0};
	size_t files = load->model->file_count;
	int rc = io_uring_queue_init(2 * DEPTH, &ring.uring, 0);

	if (rc)
		return tmesh_fail(err, -EOPNOTSUPP, "io_uring cannot be had: %s", strerror(-rc));
	if (direct) {
		ring.fds = malloc(files * sizeof(int));
		ring.buffers = aligned_alloc(DIRECT_ALIGN, DEPTH * (PIECE + 2 * DIRECT_ALIGN));
		if (!ring.fds || !ring.buffers)
			rc = tmesh_fail(err, -ENOMEM, "no memory for buffers");
		for (size_t i = 0; ring.fds && i < files; i++) {
			char path[64];

			ring.fds[i] = -1;
			if (rc)
				continue;
			snprintf(path, sizeof(path), "/proc/self/fd/%d", load->model->files[i].fd);
			ring.fds[i] = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
			if (ring.fds[i] < 0)
				rc = tmesh_fail(err, -EOPNOTSUPP,
						"this file system has no O_DIRECT");
		}
	}
	if (!rc)
		rc = ring_run(load, &ring, end, memory, err);
	for (size_t i = 0; ring.fds && i < files; i++) {
		if (ring.fds[i] >= 0)
			close(ring.fds[i]);
	}
	io_uring_queue_exit(&ring.uring);
	free(ring.fds);
	free(ring.buffers);
	return rc;
}

/* Map the region for filling, out of reach of fork(): a child's writable mapping would prevent a
 * seal as long as the child lives. The host's lock keeps fork() from running meanwhile. The seal
 * makes the mapping anew, and children inherit that one. */
static int map_to_fill(struct load *load, void **memory, struct tmesh_error *err)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	int rc = model_host_ready(err);

	if (!rc)
		rc = tmesh_region_info(load->region, &info, err);
	if (rc)
		return rc;
	model_host_lock();
	/* The mapping alone would take all pages of the region at once. */
	if (load->populate)
		rc = tmesh_region_populate(load->region, 0, 1, err);
	if (!rc)
		rc = tmesh_region_map(load->region, TMESH_READ | TMESH_WRITE, memory, err);
	/* The whole of it: advice for a part would split the mapping within its last huge page. */
	if (!rc && madvise(*memory, info.alloc_bytes, MADV_DONTFORK)) {
		rc = tmesh_fail_errno(err,
				      "keeping the region that is filled from forked children");
		tmesh_region_unmap(load->region, TMESH_READ | TMESH_WRITE);
	}
	model_host_unlock();
	return rc;
}

/* Count the huge pages. On a kernel that makes them by a touch, they are counted where they are
 * mapped. The seal maps a memfd anew. */
static void count_huge(struct load *load)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	if (!tmesh_region_info(load->region, &info, NULL))
		load->model->report.huge_bytes = info.huge_bytes;
}

static void say_small(struct load *load)
{
	uint64_t huge = load->model->report.huge_bytes, bytes = load->model->region_bytes;

	if (load->populate && huge < bytes)
		load_say(load, "; %llu MiB in small pages (see tmeshctl doctor)",
			 (unsigned long long)((bytes - huge) >> 20));
}

static int read_by(struct load *load, enum tmesh_model_method method, uint64_t end,
		   struct tmesh_error *err)
{
	uint64_t before = load->done;
	void *memory = NULL;
	bool maps = method == TMESH_MODEL_URING || method == TMESH_MODEL_READ || load->populate;
	int rc = 0;

	if (maps)
		rc = map_to_fill(load, &memory, err);
	if (rc) {
		ahead_stop(load);
		return rc;
	}
	if (method == TMESH_MODEL_DIRECT)
		ahead_stop(load);
	else if (load->cold && !load->ahead)
		load->ahead = ahead_start(load);
	switch (method) {
	case TMESH_MODEL_SPLICE:
		rc = read_splice(load, end, memory, err);
		break;
	case TMESH_MODEL_URING:
	case TMESH_MODEL_DIRECT:
		rc = read_ring(load, method == TMESH_MODEL_DIRECT, end, memory, err);
		break;
	default:
		rc = read_plain(load, end, memory, err);
	}
	if (rc || load->done >= load->model->run_bytes)
		ahead_stop(load);
	if (load->populate)
		count_huge(load);
	if (maps)
		tmesh_region_unmap(load->region, TMESH_READ | TMESH_WRITE);
	load->model->report.bytes_read += load->done - before;
	return rc;
}

/* Return the percentage of the files that is in the page cache; -1: unknown. */
static int cached_percent(const struct tmesh_model *model)
{
	struct {
		uint64_t off, len;
	} range = {0, 0};
	struct {
		uint64_t cache, dirty, writeback, evicted, recently_evicted;
	} stat;
	uint64_t cached = 0, bytes = 0;

	for (size_t i = 0; i < model->file_count; i++) {
		/* cachestat(2), Linux 6.5 */
		if (syscall(451, model->files[i].fd, &range, &stat, 0))
			return -1;
		cached += stat.cache * tmesh_page_bytes();
		bytes += model->files[i].bytes;
	}
	return bytes ? (int)(cached >= bytes ? 100 : cached * 100 / bytes) : 100;
}

void load_say(struct load *load, const char *fmt, ...)
{
	struct tmesh_model_report *report = &load->model->report;
	size_t length = strlen(report->reason);
	va_list args;

	va_start(args, fmt);
	vsnprintf(report->reason + length, sizeof(report->reason) - length, fmt, args);
	va_end(args);
}

/* Return the best way through the page cache. Into huge pages read() takes less CPU than splice(),
 * which locks and confirms each page of 4 KiB. Into small ones splice() does, for it clears none.
 */
static enum tmesh_model_method buffered_method(const struct load *load)
{
	if (tmesh_ctx_backend(load->ctx) != TMESH_BACKEND_MEMFD)
		return TMESH_MODEL_URING;
	return load->populate ? TMESH_MODEL_READ : TMESH_MODEL_SPLICE;
}

static uint64_t rate(uint64_t bytes, uint64_t ns)
{
	return (uint64_t)((double)bytes * 1e9 / (double)(ns ? ns : 1));
}

/* Choose the faster method for a large file that is not cached. Use the rates measured lately on
 * its file system. Without such rates read one part by each method and compare. */
static int measure(struct load *load, enum tmesh_model_method buffered,
		   enum tmesh_model_method *method, struct tmesh_error *err)
{
	struct tmesh_model_report *report = &load->model->report;
	uint64_t began, from = load->done, age;
	struct tmesh_error why;
	int rc;

	*method = buffered;
	if (rates_recall(load, &report->direct_rate, &report->buffered_rate, &age)) {
		if (report->direct_rate > report->buffered_rate)
			*method = TMESH_MODEL_DIRECT;
		load_say(load,
			 "cold; measured %llu s earlier on this file system: O_DIRECT %llu MB/s, "
			 "buffered %llu MB/s",
			 (unsigned long long)(age / 1000000000),
			 (unsigned long long)(report->direct_rate / 1000000),
			 (unsigned long long)(report->buffered_rate / 1000000));
		return 0;
	}
	began = tmesh_now_ns();
	rc = read_by(load, TMESH_MODEL_DIRECT, from + PROBE, &why);
	if (rc == -EOPNOTSUPP || rc == -EINVAL) {
		load_say(load, "cold; O_DIRECT cannot be had (%.60s)", why.message);
		return 0;
	}
	if (rc) {
		if (err)
			*err = why;
		return rc;
	}
	report->direct_rate = rate(load->done - from, tmesh_now_ns() - began);
	from = load->done;
	began = tmesh_now_ns();
	rc = read_by(load, buffered, from + PROBE, err);
	if (rc)
		return rc;
	report->buffered_rate = rate(load->done - from, tmesh_now_ns() - began);
	if (report->direct_rate > report->buffered_rate)
		*method = TMESH_MODEL_DIRECT;
	rates_remember(load, report->direct_rate, report->buffered_rate);
	load_say(load, "cold; measured on this file: O_DIRECT %llu MB/s, buffered %llu MB/s",
		 (unsigned long long)(report->direct_rate / 1000000),
		 (unsigned long long)(report->buffered_rate / 1000000));
	return 0;
}

static int choose(struct load *load, enum tmesh_model_method *method, struct tmesh_error *err)
{
	struct tmesh_model *model = load->model;
	enum tmesh_model_method buffered = buffered_method(load);
	bool remote = file_system_is_remote(model->files[0].fd, model->report.file_system);
	int cached = cached_percent(model);

	load->cold = !remote && cached >= 0 && cached < 50;
	*method = load->opts.method;
	if (*method) {
		load_say(load, "as asked");
		return 0;
	}
	if (remote) {
		*method = TMESH_MODEL_READ;
		load_say(load, "%s is a network or FUSE file system: pieces of 8 MiB",
			 model->report.file_system);
		return 0;
	}
	*method = buffered;
	if (cached < 0) {
		load_say(load, "buffered: this kernel does not say what is cached");
		return 0;
	}
	if (cached >= 50 || model->run_bytes - load->done < PROBE_LEAST) {
		load_say(load, "buffered: %d %% of it is in the page cache%s", cached,
			 cached < 50 ? ", and it is too small to measure more" : "");
		return 0;
	}
	return measure(load, buffered, method, err);
}

static bool wants_populate(const struct load *load)
{
	return tmesh_ctx_backend(load->ctx) == TMESH_BACKEND_MEMFD &&
	       load->model->region_bytes >= MODEL_HUGE_BYTES && load_huge(load);
}

int load_read(struct load *load, struct tmesh_error *err)
{
	struct tmesh_model_report *report = &load->model->report;
	enum tmesh_model_method method;
	struct tmesh_error why;
	uint64_t began, from;
	int rc;

	if (load->done >= load->model->run_bytes)
		return 0;
	load->told = load->done;
	load->told_ns = tmesh_now_ns();
	load->populate = wants_populate(load);
	for (size_t i = 0; i < load->model->file_count; i++)
		posix_fadvise(load->model->files[i].fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	rc = choose(load, &method, err);
	if (rc)
		return rc;
	report->method = method;
	began = tmesh_now_ns();
	from = load->done;
	rc = read_by(load, method, load->model->run_bytes, &why);
	if (!rc)
		say_small(load);
	if (!rc && report->direct_rate && load->done - from >= PROBE_LEAST / 2)
		rates_correct(load, method == TMESH_MODEL_DIRECT,
			      rate(load->done - from, tmesh_now_ns() - began));
	/* The rates may come from another file, which O_DIRECT can read. */
	if ((rc == -EOPNOTSUPP || (rc == -EINVAL && method == TMESH_MODEL_DIRECT)) &&
	    !load->opts.method) {
		report->method = TMESH_MODEL_READ;
		load_say(load, "; pread instead: %.60s", why.message);
		return read_by(load, TMESH_MODEL_READ, load->model->run_bytes, err);
	}
	if (rc && err)
		*err = why;
	return rc;
}
