/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-net: bytes of sealed regions from one machine to another. See tmesh/tmesh.h for the
 * conventions of all calls; link with -ltmesh-net. Since 0.1.
 * Maturity: never run on the real thing.
 *
 * The home offers a sealed region and grants a key for it. A process that has the key and the
 * address fetches the bytes into a region of its own, by one-sided reads of libfabric. The caller
 * brings keys and addresses to the other end, and sets how long a key lasts.
 * docs/reference/net.md describes Tmesh.Net, which does both by Erlang distribution.
 *
 * Nothing is encrypted, and a key is sent in the clear: trusted networks, or inside WireGuard.
 *
 * A net belongs to the process that opened it: a child of fork() does not use it.
 */
#ifndef TMESH_NET_H
#define TMESH_NET_H

#include <tmesh/bundle.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_net;

/* Texts with their terminating zeros. */
#define TMESH_NET_ID_SIZE 33	   /* of an offer: 128 random bits in hex */
#define TMESH_NET_KEY_SIZE 17	   /* 64 random bits in hex */
#define TMESH_NET_CHECKSUM_SIZE 33 /* XXH3 of 128 bits in hex */
#define TMESH_NET_ADDRESS_SIZE 128 /* "ofi+tcp;ofi_rxm://192.0.2.1:41233" */
#define TMESH_NET_PEER_SIZE 256	   /* a peer's name */

/* Most bytes for a message of the caller's own: tmesh_net_copy(), tmesh_net_store(). */
#define TMESH_NET_SMALL_BYTES 65536

/* The network card reads offered regions by a dma-buf. If it cannot do so, the net is not opened.
 * It takes the module, a provider such as "verbs" or "efa", and libfabric from 1.20 on. Never seen.
 */
#define TMESH_NET_DMABUF (1u << 0)

struct tmesh_net_opts {
	size_t size;	      /* sizeof(struct tmesh_net_opts) */
	const char *address;  /* of an interface of this machine, in numbers: "192.0.2.1", "::1".
			       * Others reach it there and nowhere else: "0.0.0.0" is none */
	const char *provider; /* of libfabric; NULL: "tcp". docs/reference/net.md has what others
				 promise */
	uint64_t max_bytes;   /* of one fetch; 0: no limit but those of regions */
	uint32_t max_offers;  /* 0: 4096 */
	uint32_t max_keys;    /* granted at once to all peers together; 0: 256 */
	uint32_t max_keys_per_peer;	  /* 0: 64 */
	uint32_t max_fetches;		  /* at once; 0: 16 */
	uint32_t max_fetches_per_address; /* 0: 8 */
	uint32_t flags;			  /* TMESH_NET_ */
};

/*
 * Return: 0 and a reference in @out; -EINVAL (opts; an address that no interface of this machine
 * has), -ENOMEM. For libfabric: -EOPNOTSUPP (it has no such provider at that address, or no
 * dma-bufs; the message names them).
 */
int tmesh_net_open(struct tmesh_ctx *ctx, const struct tmesh_net_opts *opts, struct tmesh_net **out,
		   struct tmesh_error *err);
struct tmesh_net *tmesh_net_ref(struct tmesh_net *net);
/* The last reference ends all keys and offers. No call may be running then. */
void tmesh_net_unref(struct tmesh_net *net);
/* Return libfabric's name of the provider that carries the bytes: "tcp;ofi_rxm". Both ends must
 * have the same. It lives as long as the net. */
const char *tmesh_net_provider(const struct tmesh_net *net);

struct tmesh_net_offer_info {
	size_t size; /* in: sizeof(struct tmesh_net_offer_info) */
	uint64_t bytes;
	char id[TMESH_NET_ID_SIZE];
	char checksum[TMESH_NET_CHECKSUM_SIZE];
};

/*
 * Offer a sealed region. The net pins it until the offer is withdrawn, and reads it once for its
 * checksum.
 * Return: 0; -EINVAL (not sealed), -EDQUOT (max_offers), -EPERM, -EOPNOTSUPP (as
 * tmesh_region_pin(), tmesh_region_map()), -ENOMEM.
 */
int tmesh_net_offer(struct tmesh_net *net, struct tmesh_region *region,
		    struct tmesh_net_offer_info *info, struct tmesh_error *err);
/* End an offer with all its keys: on return no peer reads the memory any more, and it is let go.
 * Return: 0; -ENOENT, -EINVAL. */
int tmesh_net_withdraw(struct tmesh_net *net, const char *id, struct tmesh_error *err);

/*
 * Grant @peer, a name for the limit max_keys_per_peer, a key of its own to an offer, at an address
 * of its own: @key has TMESH_NET_KEY_SIZE bytes, @address TMESH_NET_ADDRESS_SIZE. It reads alone.
 * Return: 0; -ENOENT (no such offer), -EINVAL (@peer, @id), -EDQUOT (max_keys,
 * max_keys_per_peer), -EMFILE, -ENOMEM, -EIO (libfabric's words are in the message).
 */
int tmesh_net_grant(struct tmesh_net *net, const char *id, const char *peer, char *key,
		    char *address, struct tmesh_error *err);
/* End a key: on return no process reads by it any more. Return: 0; -ENOENT, -EINVAL. */
int tmesh_net_revoke(struct tmesh_net *net, const char *key, struct tmesh_error *err);

struct tmesh_net_source {
	size_t size; /* sizeof(struct tmesh_net_source) */
	const char *address;
	const char *key;
	const char *checksum;
	uint64_t bytes; /* at least 1 */
};

struct tmesh_net_fetch_opts {
	size_t size;	    /* sizeof(struct tmesh_net_fetch_opts) */
	const char *label;  /* of the region; NULL: none */
	int64_t timeout_ns; /* longest time without any byte; 0: 10 s; negative: no limit */
	/* Called by the fetching thread at least every 50 ms while it waits, with the bytes that
	 * are there. Anything but 0 gives the fetch up. No lock is held: it may call this library,
	 * but does not end the net. It may fork(): the child calls exec() or _exit(). NULL: none.
	 */
	int (*progress)(void *data, uint64_t bytes);
	void *data;
};

/*
 * Fetch the region that a key opens into a new region, which is sealed. Pieces are asked for ahead
 * and summed up in order. If the connection breaks after some progress, it is made again, and the
 * fetch goes on behind the last piece that has arrived. Until it is handed on, @out is the caller's
 * alone; after an error there is no region. A home that does not answer is known only by its
 * silence.
 *
 * Return: 0; -EINVAL (source, opts; this net's own address does not lead to the home); -ETIMEDOUT;
 * -ECANCELED (by @progress). For limits: -EDQUOT (max_bytes, max_fetches, max_fetches_per_address,
 * or the context's), -ENOMEM, -EMFILE. For the home: -EPIPE (it or its key is gone, or the key is
 * wrong), -EOPNOTSUPP (an address of another provider), -EPROTO (the checksum differs), -EIO. Also
 * the errors of tmesh_region_write().
 */
int tmesh_net_fetch(struct tmesh_net *net, const struct tmesh_net_source *source,
		    const struct tmesh_net_fetch_opts *opts, struct tmesh_region **out,
		    struct tmesh_error *err);

/*
 * Copy a small offer's bytes to @data, which has room for @size; small offers need no key and no
 * fetch. @bytes are set to how many there are. Return: 0; -ENOENT (no such offer), -EOVERFLOW (more
 * than @size or TMESH_NET_SMALL_BYTES), -EINVAL.
 */
int tmesh_net_copy(struct tmesh_net *net, const char *id, void *data, size_t size, size_t *bytes,
		   struct tmesh_error *err);
/*
 * Make a new sealed region of bytes that a home has sent. It counts as a fetch.
 * Return: 0; -EINVAL (none, more than TMESH_NET_SMALL_BYTES, @checksum), -EPROTO (the checksum
 * differs), -EDQUOT (max_bytes, or the context's), -ENOMEM, and the errors of
 * tmesh_region_write().
 */
int tmesh_net_store(struct tmesh_net *net, const void *data, size_t bytes, const char *checksum,
		    struct tmesh_region **out, struct tmesh_error *err);

/*
 * Opening by the machine's Tmesh.Net (docs/reference/net.md). A program that has an Elixir node's
 * offer, or knows its name, asks a node of its own machine. That node runs for the same user and
 * runtime directory. Memory that is on this machine already is opened without a fetch. Memory that
 * this machine has fetched and keeps is opened without a question to the node, also while none
 * runs. No struct tmesh_net is needed.
 */
struct tmesh_net_wanted {
	size_t size;	 /* sizeof(struct tmesh_net_wanted) */
	const char *ref; /* an offer's JSON, of @ref_bytes bytes; or NULL, and */
	size_t ref_bytes;
	const char *name;   /* as given to Tmesh.Net.publish/2 */
	int64_t timeout_ns; /* longest time without an answer or a byte; 0: 10 s; negative: no limit
			     */
};

/*
 * Return: 0; -EINVAL (@wanted: one of ref and name, and not both; no UTF-8); -EPROTO (not an offer;
 * the other call opens it; damaged). For the node: -ENOENT (no Tmesh.Net serves this runtime
 * directory; the message names the ref's home), -EACCES (another user serves the socket),
 * -ETIMEDOUT. For the name: -ENOENT (it is unknown or was withdrawn), -EEXIST (two things have it).
 * For the home: -EPIPE (it or the net has ended). Also -EDQUOT, -ENOMEM, -EMFILE, and the errors of
 * tmesh_tensor_open() and tmesh_bundle_open().
 */
int tmesh_net_open_tensor(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
			  struct tmesh_tensor **out, struct tmesh_error *err);
int tmesh_net_open_bundle(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
			  struct tmesh_bundle **out, struct tmesh_error *err);

struct tmesh_net_stats {
	size_t size;	  /* in: sizeof(struct tmesh_net_stats) */
	uint64_t offers;  /* now */
	uint64_t keys;	  /* granted now */
	uint64_t fetches; /* running now */
	uint64_t fetched; /* since the net was opened */
	uint64_t failed;
	uint64_t resumed; /* connections that were made again */
	uint64_t bytes_fetched;
};
int tmesh_net_stats(struct tmesh_net *net, struct tmesh_net_stats *stats);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_NET_H */
