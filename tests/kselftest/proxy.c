// SPDX-License-Identifier: MIT
/*
 * Proxies, observed by /dev/peer, a driver that is both the exporter and the importer.
 */
#include "lease.h"
#include "peer.h"

#define BYTES (PEER_PAGES * PAGE)

/* Make a region around a dma-buf of the peer, and set @original to that. */
static int region(int peer, unsigned int flags, int *original)
{
	struct tmesh_import i = {.size = sizeof(i)};

	*original = i.source = REQUIRE_OK(ioctl(peer, PEER_EXPORT, flags));
	REQUIRE_OK(ioctl(t_dev(), TMESH_IMPORT, &i));
	CHECK_EQ(i.bytes, BYTES);
	return i.fd;
}

static struct peer_import seen;

static int attach(int peer, int dmabuf, unsigned int flags)
{
	memset(&seen, 0, sizeof(seen));
	seen.dmabuf = dmabuf;
	seen.flags = flags;
	return ioctl(peer, PEER_IMPORT, &seen);
}

/* Return the address that the exporter gives a page. */
static __u64 address_of(unsigned int page)
{
	unsigned int part = 0;

	for (; page >= part % 5 + 1; part++)
		page -= part % 5 + 1;
	return ((part + 1ull) << 32) + page * PAGE;
}

/* Test whether the device got the addresses of exactly these pages, in order. */
static bool saw(unsigned int first, unsigned int pages)
{
	unsigned int page = first;

	for (unsigned int i = 0; i < seen.count; i++) {
		const struct peer_part *part = &seen.parts[i];

		for (__u64 at = 0; at < part->bytes; at += PAGE, page++)
			if (page >= first + pages || part->address + at != address_of(page))
				return false;
		if (part->bytes % PAGE || !part->bytes)
			return false;
	}
	return page == first + pages;
}

static void try_slices(unsigned int export_flags, unsigned int import_flags)
{
	int peer = open_peer(), original, h = region(peer, export_flags, &original), fd, bad = 0;

	REQUIRE_OK(attach(peer, original, import_flags));
	REQUIRE(saw(0, PEER_PAGES));
	for (unsigned int first = 0; first < PEER_PAGES; first += 3) {
		for (unsigned int pages = 1; pages <= PEER_PAGES - first; pages++) {
			fd = REQUIRE_OK(
				t_export(h, first * PAGE, pages * PAGE, TMESH_EXPORT_WRITE));
			REQUIRE_OK(attach(peer, fd, import_flags));
			if (!saw(first, pages) && !bad++)
				t_note("%u pages from %u on", pages, first);
			close(fd);
		}
	}
	CHECK_EQ(bad, 0);
	CHECK_EQ(t_info(h).attachments, 1);
	close(peer);
	CHECK_EQ(t_info(h).attachments, 0);
	CHECK_EQ(t_info(h).exports, 0);
	CHECK_EQ(ioctl(open_peer(), PEER_PINS), 0);
}

TEST_CALL(slices, "a device gets the addresses of exactly its slice", try_slices(0, PEER_WRITES))
TEST_CALL(slices_told, "so does a dynamic device", try_slices(0, PEER_WRITES | PEER_TOLD))
TEST_CALL(slices_moves,
	  "the same of memory that moves, which is pinned for a device that is not told",
	  try_slices(PEER_MOVES, PEER_WRITES))
TEST_CALL(slices_moves_told, "the same of memory that moves and a dynamic device",
	  try_slices(PEER_MOVES, PEER_WRITES | PEER_TOLD))

TEST(moves, "what the original tells its importers reaches those of the proxies")
{
	int peer = open_peer(), other = open_peer(), original, h, whole, slice;

	h = region(peer, PEER_MOVES, &original);
	whole = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	slice = REQUIRE_OK(t_export(h, PAGE, PAGE, TMESH_EXPORT_WRITE));
	REQUIRE_OK(attach(peer, whole, PEER_TOLD | PEER_WRITES));
	REQUIRE_OK(attach(other, slice, PEER_TOLD | PEER_WRITES));
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 0);
	REQUIRE_OK(ioctl(peer, PEER_MOVE, original));
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 1);
	CHECK_EQ(ioctl(other, PEER_TOLD_TIMES), 1);
	/*
	 * A move notification through the proxy reaches the devices attached to the proxy, and no
	 * others.
	 */
	REQUIRE_OK(attach(peer, original, PEER_TOLD | PEER_WRITES));
	CHECK_OK(t_revoke(h));
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 0);
	CHECK_EQ(ioctl(other, PEER_TOLD_TIMES), 2);
	CHECK_ERR(attach(peer, whole, PEER_TOLD | PEER_WRITES), ESTALE);
	REQUIRE_OK(ioctl(other, PEER_MOVE, original));
	CHECK_EQ(ioctl(other, PEER_TOLD_TIMES), 3);
}

TEST(moves_not, "a device is not told of moves where the original's exporter notifies no importer")
{
	int peer = open_peer(), original, h, fd;

	if (t_kernel_at_least(7, 0))
		t_skip("this kernel lets each exporter tell");
	h = region(peer, 0, &original);
	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	REQUIRE_OK(attach(peer, fd, PEER_TOLD | PEER_WRITES));
	REQUIRE_OK(ioctl(peer, PEER_MOVE, original));
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 0);
}

TEST(lapse, "a lapsed lease reaches the devices of its proxies, and those of no others")
{
	int peer = open_peer(), other = open_peer(), original, h, leased, mine, its;
	pid_t pid = sleeper();
	struct lease l;

	h = region(peer, PEER_MOVES, &original);
	leased = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	l = lease_bind(leased, pid);
	mine = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	its = REQUIRE_OK(t_export(leased, PAGE, PAGE, TMESH_EXPORT_WRITE));
	REQUIRE_OK(attach(peer, mine, PEER_TOLD | PEER_WRITES));
	REQUIRE_OK(attach(other, its, PEER_TOLD | PEER_WRITES));
	kill_and_reap(pid);
	await_end(&l, leased);
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 0);
	CHECK_EQ(ioctl(other, PEER_TOLD_TIMES), 1);
	CHECK_ERR(attach(other, its, PEER_TOLD | PEER_WRITES), ESTALE);
	CHECK_ERR(t_export(leased, 0, 0, 0), ESTALE);
	CHECK_OK(attach(other, mine, PEER_TOLD | PEER_WRITES));
}

TEST(listed, "the devices of a proxy are listed with what they have mapped")
{
	int peer = open_peer(), original, h = region(peer, 0, &original), fd;
	struct tmesh_holder hs[4];
	struct tmesh_holders list = {
		.size = sizeof(list),
		.entries = (__u64)(unsigned long)hs,
		.entry_bytes = sizeof(hs[0]),
		.count = ARRAY_SIZE(hs),
	};

	fd = REQUIRE_OK(t_export(h, 2 * PAGE, 5 * PAGE, 0));
	REQUIRE_OK(attach(peer, fd, 0));
	REQUIRE_OK(ioctl(h, TMESH_HOLDERS, &list));
	REQUIRE(list.count == 3);
	CHECK_EQ(hs[2].kind, TMESH_HOLDER_DEVICE);
	CHECK_EQ(hs[2].rights, R_READ);
	CHECK_EQ(hs[2].offset, 2 * PAGE);
	CHECK_EQ(hs[2].bytes, 5 * PAGE);
	CHECK_EQ(hs[2].mapped, 1);
	CHECK(!strcmp((char *)hs[2].device, "peer"));
}

TEST(pins, "a static device pins the original for as long as it is attached")
{
	int peer = open_peer(), other = open_peer(), original, h, fd;

	h = region(peer, PEER_MOVES, &original);
	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	CHECK_EQ(ioctl(other, PEER_PINS), 0);
	REQUIRE_OK(attach(peer, fd, PEER_WRITES));
	CHECK_EQ(ioctl(other, PEER_PINS), 1);
	close(peer);
	CHECK_EQ(ioctl(other, PEER_PINS), 0);
}

TEST(read_only, "a read-only proxy is mapped for reading alone")
{
	int peer = open_peer(), original, h = region(peer, 0, &original), fd;

	fd = REQUIRE_OK(t_export(h, 2 * PAGE, 5 * PAGE, 0));
	CHECK_ERR(attach(peer, fd, PEER_WRITES), EACCES);
	CHECK_EQ(t_info(h).attachments, 0);
	CHECK_OK(attach(peer, fd, 0));
	CHECK(saw(2, 5));
}

TEST(refuses, "what the exporter refuses is refused with its error")
{
	int peer = open_peer(), original, h = region(peer, PEER_REFUSES, &original), fd;

	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	CHECK_ERR(attach(peer, original, 0), ENXIO);
	CHECK_ERR(attach(peer, fd, 0), ENXIO);
	CHECK_ERR(attach(peer, fd, PEER_TOLD | PEER_WRITES), ENXIO);
	CHECK_EQ(t_info(h).attachments, 0);
	/* It has no mmap. */
	CHECK_EQ((long)t_map(original, PAGE, PROT_READ), -1);
	CHECK_EQ((long)t_map(h, PAGE, PROT_READ), -1);
	CHECK_EQ((long)t_map(fd, PAGE, PROT_READ), -1);
	CHECK_OK(t_revoke(h));

	h = region(peer, PEER_MAPS_NOT, &original);
	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	CHECK_ERR(attach(peer, fd, PEER_WRITES), ENXIO);
	CHECK_EQ(t_info(h).attachments, 0);
}

TEST(half, "what the exporter maps but in part is mapped as far as it goes: EIO beyond")
{
	int peer = open_peer(), original, h = region(peer, PEER_MAPS_HALF, &original), fd;

	fd = REQUIRE_OK(t_export(h, 0, BYTES / 2, TMESH_EXPORT_WRITE));
	CHECK_OK(attach(peer, fd, PEER_WRITES));
	CHECK(saw(0, PEER_PAGES / 2));
	fd = REQUIRE_OK(t_export(h, PAGE, BYTES / 2, TMESH_EXPORT_WRITE));
	CHECK_ERR(attach(peer, fd, PEER_WRITES), EIO);
	CHECK_EQ(t_info(h).attachments, 0);
}

TEST(odd, "a dma-buf that is no whole pages, or cannot be read, is not imported")
{
	struct tmesh_import i = {.size = sizeof(i)};
	int dev = t_dev(), peer = open_peer();

	i.source = REQUIRE_OK(ioctl(peer, PEER_EXPORT, PEER_NOT_WHOLE));
	CHECK_ERR(ioctl(dev, TMESH_IMPORT, &i), EOPNOTSUPP);
	i.source = REQUIRE_OK(ioctl(peer, PEER_EXPORT, PEER_WRITE_ONLY));
	CHECK_ERR(ioctl(dev, TMESH_IMPORT, &i), EACCES);
	CHECK_EQ(t_listed(dev), 0);
}

TEST(keeps, "a device keeps what it has mapped after a revocation, and the region shows it")
{
	int peer = open_peer(), original, h = region(peer, 0, &original), fd;
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.flags = TMESH_REVOKE_WAIT,
		.timeout_ns = 1000000,
	};

	fd = REQUIRE_OK(t_export(h, PAGE, 9 * PAGE, TMESH_EXPORT_WRITE));
	REQUIRE_OK(attach(peer, fd, PEER_WRITES));
	close(original);
	CHECK_ERR(ioctl(h, TMESH_REVOKE, &r), ETIMEDOUT);
	CHECK_EQ(r.pinned_bytes, 9 * PAGE);
	CHECK_EQ(r.attachments, 1);
	close(peer);
	r.timeout_ns = 120000000000;
	CHECK_OK(ioctl(h, TMESH_REVOKE, &r));
	CHECK_EQ(r.pinned_bytes, 0);
}
