/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of libtmesh-net share.
 *
 * Locks: a net's lock guards its lists and counters, and is held only while they change, or while
 * an address's connections are shut down. To end a grant or an offer, take it from its list first,
 * then join its thread and free its memory without the lock.
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

/* The modes of registration that a provider may require. Memory that is read into is registered
 * (FI_MR_LOCAL) and has its pages (FI_MR_ALLOCATED). The provider chooses the keys
 * (FI_MR_PROV_KEY). Reads name addresses, not offsets from 0 (FI_MR_VIRT_ADDR). */
#define NET_MR_MODES (FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR)

/* An address as libfabric's address vectors take it: a socket address or the provider's own
 * form. */
union net_sockaddr {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	uint8_t raw[NET_RAW_SIZE];
};

/* The place that a key belongs to. */
struct net_place {
	union net_sockaddr at;
	uint64_t base; /* where the memory begins: 0, or its address at home (FI_MR_VIRT_ADDR) */
};

/* An endpoint of libfabric, used by one thread. */
struct net_endpoint {
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	bool waits; /* if false, its queue can only be polled */
};

struct net_offer {
	LIST_ENTRY(net_offer) entry;
	struct tmesh_region *region; /* pinned */
	const void *memory;
	uint64_t bytes;
	char id[TMESH_NET_ID_SIZE];
	unsigned int users; /* one of the list and one of each grant */
};

struct net_grant {
	LIST_ENTRY(net_grant) entry;
	struct net_offer *offer;
	struct net_endpoint endpoint;
	struct fid_mr *mr;
	pthread_t thread;
	atomic_bool end;
	bool ready; /* if false, it is being opened and belongs to its maker */
	char key[TMESH_NET_KEY_SIZE];
	char peer[TMESH_NET_PEER_SIZE];
};

/* A fetch that runs. */
struct net_run {
	LIST_ENTRY(net_run) entry;
	const char *address;
	bool ends; /* it needs its connection no more */
};

struct tmesh_net {
	atomic_uint refs;
	struct tmesh_ctx *ctx;
	struct tmesh_net_opts opts; /* with the defaults filled in; its texts are these: */
	char address[INET6_ADDRSTRLEN];
	char provider[NET_PROVIDER_LEN];
	struct fi_info *home, *reader; /* the provider's properties for either side */
	bool listens;		       /* addresses are those of TCP's listeners */

	pthread_mutex_t lock;
	LIST_HEAD(, net_offer) offers;
	LIST_HEAD(, net_grant) grants;
	LIST_HEAD(, net_run) runs;
	struct tmesh_net_stats stats;
};

/* Restore the signal handlers that libfabric's libraries replace when they are loaded. */
void net_signals_give_back(void);

/* Set @err from @code, a negative error number of libfabric. */
int net_fail_fabric(struct tmesh_error *err, const char *what, int code);

/* Find a provider for @opts and @caps, which is FI_READ or FI_REMOTE_READ. This can take long. */
int net_endpoint_find(const struct tmesh_net_opts *opts, uint64_t caps, struct fi_info **info,
		      struct tmesh_error *err);
int net_endpoint_open(struct fi_info *info, struct net_endpoint *endpoint, struct tmesh_error *err);
void net_endpoint_close(struct net_endpoint *endpoint);
/* Close an endpoint with a registration, which may be NULL. No read is under way when the
 * registration ends. */
void net_endpoint_shut(struct net_endpoint *endpoint, struct fid_mr *mr);
/* Wait like fi_cq_sread(), also if the provider cannot block. */
ssize_t net_endpoint_wait(struct net_endpoint *endpoint, struct fi_cq_entry *entries, size_t count,
			  int ms);
/* Return whether @info's mr_mode includes @mode. */
bool net_mr_wants(const struct fi_info *info, uint64_t mode);

/* Write an endpoint's address as text: "ofi+PROVIDER://HOST:PORT", or "ofi+PROVIDER://0xHEX" if it
 * is no socket address. "/BASE" in hex follows if the provider requires one. */
int net_address_write(struct net_endpoint *endpoint, const struct fi_info *info, const void *memory,
		      char *text, struct tmesh_error *err);
/* Return whether this provider's addresses are those of TCP listeners. */
bool net_address_listens(const struct fi_info *info);
/* Return whether the host refuses connections to @address, by an attempt of our own: libfabric
 * retries for ever. Return false if the answer takes longer than @ms. */
bool net_address_refuses(const union net_sockaddr *address, int ms);
/* Return 0 if there is a route from @info's own address to @home, else the errno that says why not.
 * Only the kernel's routing table is asked; no packet is sent. */
int net_address_way(const struct fi_info *info, const union net_sockaddr *home);
/* Shut down all of this process's connections to @address without libfabric, which then completes
 * each request that was under way with an error. Its own ways to end them touch freed memory (seen
 * with 1.17). */
void net_address_shut(const union net_sockaddr *address);
/* Parse an address. Return: 0; -EINVAL (malformed), -EOPNOTSUPP (not @info's provider). */
int net_address_read(const char *text, const struct fi_info *info, struct net_place *place,
		     struct tmesh_error *err);

/* Check that @text is exactly @digits lower-case hex digits. */
int net_check_hex(const char *what, const char *text, size_t digits, struct tmesh_error *err);

/* A piece of a fetch, in one of the window's buffers. */
struct net_piece {
	struct fi_context2 context; /* the first member, because libfabric returns its address */
	uint8_t *memory;
	uint64_t offset, bytes;
	bool come;
};

#define NET_PIECE_BYTES (1u << 20)
#define NET_PIECES 8 /* the most pieces under way or waiting to be written */

/* The window of one fetch, used by its thread. */
struct net_window;
/* Open a window. @touch: allocate its buffers' pages now. */
int net_window_open(struct tmesh_region *region, bool touch, struct net_window **out,
		    struct tmesh_error *err);
/* Close a window. @idle: no one else writes to its buffers any more; if false, they are leaked. */
void net_window_close(struct net_window *window, bool idle);
/* Return the memory of all buffers, which is contiguous. */
void *net_window_memory(struct net_window *window, size_t *size);
/* Return the piece to receive into next, or NULL while there is no room. */
struct net_piece *net_window_room(struct net_window *window);
/* Count that piece as requested; its offset and bytes are filled in. */
void net_window_asked(struct net_window *window);
/* Return the next piece in order, or NULL if it has not come. */
struct net_piece *net_window_next(struct net_window *window);
/* Count that piece as summed up. It is written now or later. */
void net_window_summed(struct net_window *window);
/* Forget the pieces that were requested but not summed up. They are requested again. */
void net_window_again(struct net_window *window);
/* Wait until at most @pieces remain to be written. Return: 0; the error of tmesh_region_write(), as
 * soon as there is one. */
int net_window_wait(struct net_window *window, unsigned int pieces, struct tmesh_error *err);

struct net_sum;
int net_sum_begin(struct net_sum **out, struct tmesh_error *err);
void net_sum_add(struct net_sum *sum, const void *data, size_t bytes);
/* End the sum and free it; @text may be NULL. */
void net_sum_end(struct net_sum *sum, char text[TMESH_NET_CHECKSUM_SIZE]);
/* Return -EPROTO if the received bytes are not those that were offered. */
int net_sum_check(const char *come, const char *offered, struct tmesh_error *err);

/* Open @wanted from the regions that are kept here. Return false if any part is missing. */
bool net_kept_tensor(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
		     struct tmesh_tensor **out);
bool net_kept_bundle(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
		     struct tmesh_bundle **out);

/* Return -EOPNOTSUPP if offers cannot be registered by their dma-bufs. */
int net_dmabuf_check(struct tmesh_ctx *ctx, struct tmesh_error *err);
/* Register @offer for remote reads, with the key @number if the provider does not choose its
 * own. */
int net_register(struct tmesh_net *net, const struct net_offer *offer, struct fid_domain *domain,
		 uint64_t number, struct fid_mr **mr, struct tmesh_error *err);

void net_offer_put(struct tmesh_net *net, struct net_offer *offer);
/* End all grants of @offer, or all grants if it is NULL. */
void net_grants_end(struct tmesh_net *net, const struct net_offer *offer);

#endif /* TMESH_NET_INTERNAL_H */
