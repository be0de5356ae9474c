/* SPDX-License-Identifier: MIT */
/*
 * What the files of libtmesh-net share.
 *
 * Locks: a net's lock guards its lists and counters, and is held for no longer than it takes to
 * change them. A grant or an offer that is ended leaves its list first; then its thread is joined
 * and its memory let go without the lock.
 */
#ifndef TMESH_NET_INTERNAL_H
#define TMESH_NET_INTERNAL_H

#include <netinet/in.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "common/error.h"
#include "common/sized.h"

#pragma GCC visibility push(default)
#include <tmesh/net.h>
#pragma GCC visibility pop

#define NET_FI_VERSION FI_VERSION(1, 17)
#define NET_PROVIDER_LEN 32
#define NET_RAW_SIZE 48

/* What a provider may want of registrations: memory that is read into registered, too
 * (FI_MR_LOCAL) and there already (FI_MR_ALLOCATED); keys that it chooses itself; addresses in
 * place of offsets from 0. */
#define NET_MR_MODES (FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR)

/* As libfabric's address vectors take it: that of a socket, or whatever the provider has. */
union net_sockaddr {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	uint8_t raw[NET_RAW_SIZE];
};

/* Where a key is good. */
struct net_place {
	union net_sockaddr at;
	uint64_t base; /* where the memory begins: 0, or its address at home (FI_MR_VIRT_ADDR) */
};

/* One end of libfabric's, used by one thread. */
struct net_endpoint {
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	bool waits; /* else its queue must be looked at again and again */
};

struct net_offer {
	LIST_ENTRY(net_offer) entry;
	struct tmesh_region *region; /* pinned */
	const void *memory;
	uint64_t bytes;
	char id[TMESH_NET_ID_SIZE];
	unsigned int users; /* the list's and each grant's */
};

struct net_grant {
	LIST_ENTRY(net_grant) entry;
	struct net_offer *offer;
	struct net_endpoint endpoint;
	struct fid_mr *mr;
	pthread_t thread;
	atomic_bool end;
	bool ready; /* else it is being opened, and is its maker's */
	char key[TMESH_NET_KEY_SIZE];
	char peer[TMESH_NET_PEER_SIZE];
};

/* A fetch that runs. */
struct net_run {
	LIST_ENTRY(net_run) entry;
	const char *address;
};

struct tmesh_net {
	atomic_uint refs;
	struct tmesh_ctx *ctx;
	struct tmesh_net_opts opts; /* with the defaults filled in; its texts are these: */
	char address[INET6_ADDRSTRLEN];
	char provider[NET_PROVIDER_LEN];
	struct fi_info *home, *reader; /* what libfabric has for either side */
	bool listens;		       /* addresses are those of TCP's listeners */

	pthread_mutex_t lock;
	LIST_HEAD(, net_offer) offers;
	LIST_HEAD(, net_grant) grants;
	LIST_HEAD(, net_run) runs;
	struct tmesh_net_stats stats;
};

/* libfabric's libraries take signals when they are loaded. */
void net_signals_give_back(void);

/* What libfabric left in @code, a negative number of its own. */
int net_fail_fabric(struct tmesh_error *err, const char *what, int code);

/* What libfabric has for that: @caps is FI_READ or FI_REMOTE_READ. It takes its time. */
int net_endpoint_find(const struct tmesh_net_opts *opts, uint64_t caps, struct fi_info **info,
		      struct tmesh_error *err);
int net_endpoint_open(struct fi_info *info, struct net_endpoint *endpoint, struct tmesh_error *err);
void net_endpoint_close(struct net_endpoint *endpoint);
/* The same of one that has a registration, or NULL: no read is under way when that is ended. */
void net_endpoint_shut(struct net_endpoint *endpoint, struct fid_mr *mr);
/* As fi_cq_sread(), also where the provider cannot wait. */
ssize_t net_endpoint_wait(struct net_endpoint *endpoint, struct fi_cq_entry *entries, size_t count,
			  int ms);
/* Whether @info's mr_mode has that. */
bool net_mr_wants(const struct fi_info *info, uint64_t mode);

/* "ofi+PROVIDER://HOST:PORT" of an endpoint, and where the address is none of sockets'
 * "ofi+PROVIDER://0xHEX"; behind it "/BASE" where the provider wants one, in hex. */
int net_address_write(struct net_endpoint *endpoint, const struct fi_info *info, const void *memory,
		      char *text, struct tmesh_error *err);
/* Whether this provider's addresses are those of TCP's listeners. */
bool net_address_listens(const struct fi_info *info);
/* Whether nobody listens there, by an attempt of our own: libfabric tries for ever. It takes at
 * most @ms; false when that is not enough. */
bool net_address_refuses(const union net_sockaddr *address, int ms);
/* Ends this process's connections to there, behind libfabric's back: it tells then of each request
 * that was under way. Its own ways of ending them touch freed memory (seen with 1.17). */
void net_address_shut(const union net_sockaddr *address);
/* The other way: -EINVAL (malformed), -EOPNOTSUPP (not @info's provider). */
int net_address_read(const char *text, const struct fi_info *info, struct net_place *place,
		     struct tmesh_error *err);

/* Exactly @digits lower-case hex digits and a zero. */
int net_check_hex(const char *what, const char *text, size_t digits, struct tmesh_error *err);

/* A piece of a fetch, in a buffer of the window's. */
struct net_piece {
	struct fi_context2 context; /* the first member: libfabric gives it back */
	uint8_t *memory;
	uint64_t offset, bytes;
	bool come;
};

#define NET_PIECE_BYTES (1u << 20)
#define NET_PIECES 8 /* on their way or waiting to be written, at most */

/* Of one fetch, used by its thread. */
struct net_window;
/* @touch: its buffers have pages from the beginning. */
int net_window_open(struct tmesh_region *region, bool touch, struct net_window **out,
		    struct tmesh_error *err);
/* @idle: nobody else writes to its buffers any more. */
void net_window_close(struct net_window *window, bool idle);
/* All of its buffers, in one piece. */
void *net_window_memory(struct net_window *window, size_t *size);
/* Where the next piece can be received, NULL while there is no room. */
struct net_piece *net_window_room(struct net_window *window);
/* That piece was asked for; its offset and bytes are filled in. */
void net_window_asked(struct net_window *window);
/* The next piece in order, NULL if it has not come. */
struct net_piece *net_window_next(struct net_window *window);
/* That piece was summed up, and is written now or later. */
void net_window_summed(struct net_window *window);
/* What was asked for and not summed up is asked for again. */
void net_window_again(struct net_window *window);
/* Wait until at most @pieces are to be written. Return: 0; what tmesh_region_write() said, as soon
 * as it is known. */
int net_window_wait(struct net_window *window, unsigned int pieces, struct tmesh_error *err);

struct net_sum;
int net_sum_begin(struct net_sum **out, struct tmesh_error *err);
void net_sum_add(struct net_sum *sum, const void *data, size_t bytes);
/* Ends the sum; @text may be NULL. */
void net_sum_end(struct net_sum *sum, char text[TMESH_NET_CHECKSUM_SIZE]);
/* -EPROTO where what came is not what was offered. */
int net_sum_check(const char *come, const char *offered, struct tmesh_error *err);

/* Whether all that is wanted was fetched before and is kept here; then it is opened. */
bool net_kept_tensor(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
		     struct tmesh_tensor **out);
bool net_kept_bundle(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
		     struct tmesh_bundle **out);

/* Whether offers can be registered by their dma-bufs: -EOPNOTSUPP. */
int net_dmabuf_check(struct tmesh_ctx *ctx, struct tmesh_error *err);
/* For reads by others, with the key @number where the provider does not choose its own. */
int net_register(struct tmesh_net *net, const struct net_offer *offer, struct fid_domain *domain,
		 uint64_t number, struct fid_mr **mr, struct tmesh_error *err);

void net_offer_put(struct tmesh_net *net, struct net_offer *offer);
/* Ends all grants of @offer, or all if it is NULL. */
void net_grants_end(struct tmesh_net *net, const struct net_offer *offer);

#endif /* TMESH_NET_INTERNAL_H */
