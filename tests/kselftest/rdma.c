// SPDX-License-Identifier: MIT
/*
 * RDMA by the kernel's soft RoCE over a dummy network device. Two processes register regions by
 * verbs, and one writes into the memory of the other.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>

#define RDMA_STATIC_PROVIDERS rxe
#include <infiniband/verbs.h>

#include "t.h"

#define BYTES (4 * MB)
#define NETDEV "dummy0"
#define LINK "tmesh_rxe"
#define ADDRESS "10.77.0.1"
#define PORT 1
#define RW (PROT_READ | PROT_WRITE)
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define COMPLETION_SECONDS 60

/* The link */

static void add_attribute(struct nlmsghdr *msg, int type, const char *text)
{
	struct nlattr *a = (struct nlattr *)((char *)msg + NLMSG_ALIGN(msg->nlmsg_len));

	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + strlen(text) + 1;
	strcpy((char *)a + NLA_HDRLEN, text);
	msg->nlmsg_len = NLMSG_ALIGN(msg->nlmsg_len) + NLA_ALIGN(a->nla_len);
}

/* Add a link like `rdma link add LINK type rxe netdev NETDEV`. Return 0 or the error. */
static int add_link(void)
{
	int sock = REQUIRE_OK(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA));
	union {
		struct nlmsghdr head;
		char room[512];
	} msg = {.head = {
			 .nlmsg_len = NLMSG_HDRLEN,
			 .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK),
			 .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
		 }};
	struct nlmsgerr *answer = NLMSG_DATA(&msg.head);

	add_attribute(&msg.head, RDMA_NLDEV_ATTR_DEV_NAME, LINK);
	add_attribute(&msg.head, RDMA_NLDEV_ATTR_LINK_TYPE, "rxe");
	add_attribute(&msg.head, RDMA_NLDEV_ATTR_NDEV_NAME, NETDEV);
	REQUIRE(send(sock, &msg, msg.head.nlmsg_len, 0) == (ssize_t)msg.head.nlmsg_len);
	REQUIRE(recv(sock, &msg, sizeof(msg), 0) > 0 && msg.head.nlmsg_type == NLMSG_ERROR);
	close(sock);
	return -answer->error;
}

static void set_up_link(void)
{
	struct sockaddr_in in = {.sin_family = AF_INET};
	struct ifreq ifr = {.ifr_name = NETDEV};
	int err, sock = REQUIRE_OK(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	inet_pton(AF_INET, ADDRESS, &in.sin_addr);
	memcpy(&ifr.ifr_addr, &in, sizeof(in));
	if (ioctl(sock, SIOCSIFADDR, &ifr))
		t_skip(NETDEV ": %s", strerror(errno));
	REQUIRE_OK(ioctl(sock, SIOCGIFFLAGS, &ifr));
	ifr.ifr_flags |= IFF_UP;
	REQUIRE_OK(ioctl(sock, SIOCSIFFLAGS, &ifr));
	close(sock);
	err = add_link();
	if (err && err != EEXIST)
		t_skip("soft RoCE: %s", strerror(err));
}

/* One end of a connection */

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	union ibv_gid gid;
	int gid_index, sock;
};

/* The keys that the other end needs to write into our memory */
struct target {
	__u64 at;
	__u32 rkey, qp;
};

static void find_gid(struct end *e)
{
	struct in6_addr want;

	inet_pton(AF_INET6, "::ffff:" ADDRESS, &want);
	for (e->gid_index = 0; !ibv_query_gid(e->context, PORT, e->gid_index, &e->gid);
	     e->gid_index++)
		if (!memcmp(&e->gid, &want, sizeof(want)))
			return;
	REQUIRE(!"an address in the table of the link");
}

static struct end open_end(int sock)
{
	struct ibv_device **devices, *device = NULL;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct end e = {.sock = sock};
	int count;

	devices = ibv_get_device_list(&count);
	REQUIRE(devices);
	for (int i = 0; i < count; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), LINK))
			device = devices[i];
	REQUIRE(device);
	e.context = ibv_open_device(device);
	REQUIRE(e.context);
	ibv_free_device_list(devices);
	e.pd = ibv_alloc_pd(e.context);
	e.cq = ibv_create_cq(e.context, 8, NULL, NULL, 0);
	REQUIRE(e.pd && e.cq);
	init.send_cq = init.recv_cq = e.cq;
	e.qp = ibv_create_qp(e.pd, &init);
	REQUIRE(e.qp);
	find_gid(&e);
	return e;
}

static void swap_targets(const struct end *e, struct target mine, struct target *theirs)
{
	mine.qp = e->qp->qp_num;
	REQUIRE(send(e->sock, &mine, sizeof(mine), MSG_NOSIGNAL) == sizeof(mine));
	REQUIRE(recv(e->sock, theirs, sizeof(*theirs), 0) == sizeof(*theirs));
}

static void connect_to(const struct end *e, __u32 qp)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = REMOTE};
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr =
			{
				.is_global = 1,
				.port_num = PORT,
				.grh = {.dgid = e->gid, .sgid_index = e->gid_index, .hop_limit = 1},
			},
	};
	/* Use a timeout of two seconds, because an emulated machine is slow. */
	struct ibv_qp_attr transmit = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 19,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	REQUIRE(!ibv_modify_qp(e->qp, &init,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       IBV_QP_ACCESS_FLAGS));
	REQUIRE(!ibv_modify_qp(e->qp, &receive,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER));
	REQUIRE(!ibv_modify_qp(e->qp, &transmit,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Move all bytes. Return the status of the completion. */
static int move(const struct end *e, int op, struct ibv_mr *mine, const struct target *theirs)
{
	struct ibv_sge piece = {(unsigned long)mine->addr, BYTES, mine->lkey};
	struct ibv_send_wr *bad, wr = {
					 .sg_list = &piece,
					 .num_sge = 1,
					 .opcode = op,
					 .send_flags = IBV_SEND_SIGNALED,
					 .wr.rdma = {theirs->at, theirs->rkey},
				 };
	double until = t_now() + COMPLETION_SECONDS;
	struct ibv_wc done = {.status = IBV_WC_GENERAL_ERR};
	int count = 0;

	REQUIRE(!ibv_post_send(e->qp, &wr, &bad));
	while (!count && t_now() < until) {
		count = ibv_poll_cq(e->cq, 1, &done);
		usleep(100);
	}
	CHECK_EQ(count, 1);
	return done.status;
}

static void fill(unsigned char *p, unsigned int seed)
{
	for (size_t i = 0; i < BYTES / 8; i++)
		((__u64 *)p)[i] = (i + 1) * 0x9e3779b97f4a7c15 * seed;
}

static size_t wrong_words(const unsigned char *p, unsigned int seed)
{
	size_t wrong = 0;

	for (size_t i = 0; i < BYTES / 8; i++)
		wrong += ((__u64 *)p)[i] != (i + 1) * 0x9e3779b97f4a7c15 * seed;
	return wrong;
}

static unsigned char *region(__u32 flags, int *handle)
{
	unsigned char *p;

	*handle = REQUIRE_OK(t_create(t_dev(), BYTES, flags));
	p = t_map(*handle, BYTES, RW);
	REQUIRE(p != MAP_FAILED);
	return p;
}

/* Write into the other's memory, then read the bytes that the other has written meanwhile. */
static void be_active(int sock, __u32 flags)
{
	int handle;
	unsigned char *p = region(flags, &handle);
	struct end e = open_end(sock);
	struct ibv_mr *mr = ibv_reg_mr(e.pd, p, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct target theirs;

	REQUIRE(mr);
	swap_targets(&e, (struct target){0}, &theirs);
	connect_to(&e, theirs.qp);
	fill(p, 1);
	t_say(sock);
	t_hear(sock);
	CHECK_EQ(move(&e, IBV_WR_RDMA_WRITE, mr, &theirs), IBV_WC_SUCCESS);
	t_say(sock);
	t_hear(sock);
	CHECK_EQ(move(&e, IBV_WR_RDMA_READ, mr, &theirs), IBV_WC_SUCCESS);
	CHECK_EQ(wrong_words(p, 2), 0);
	t_say(sock);
	t_hear(sock);
	CHECK_EQ(move(&e, IBV_WR_RDMA_WRITE, mr, &theirs), IBV_WC_SUCCESS);
	t_say(sock);
}

/*
 * Let the other end write and read. A registration is a pin, for the seal and for the revocation.
 */
static void be_passive(int sock, __u32 flags)
{
	int handle;
	unsigned char *p = region(flags, &handle);
	struct end e = open_end(sock);
	struct ibv_mr *mr = ibv_reg_mr(e.pd, p, BYTES, IBV_ACCESS_LOCAL_WRITE | REMOTE);
	struct target theirs;

	REQUIRE(mr);
	swap_targets(&e, (struct target){.at = (unsigned long)p, .rkey = mr->rkey}, &theirs);
	connect_to(&e, theirs.qp);
	t_say(sock);
	t_hear(sock);
	t_hear(sock);
	CHECK_EQ(wrong_words(p, 1), 0);

	munmap(p, BYTES);
	CHECK_ERR(t_seal(handle), EBUSY);
	p = t_map(handle, BYTES, RW);
	REQUIRE(p != MAP_FAILED);
	fill(p, 2);
	t_say(sock);
	t_hear(sock);

	/*
	 * The pages that the device has pinned stay after the revocation, and no process can see
	 * them.
	 */
	CHECK_OK(t_revoke(handle));
	CHECK_EQ(t_read(p), SIGBUS);
	t_say(sock);
	t_hear(sock);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

static void write_between_processes(__u32 flags)
{
	pid_t active, passive;
	int sv[2];

	set_up_link();
	t_pair(sv);
	T_CHILD(active)
		be_active(sv[0], flags);
	T_CHILD(passive)
		be_passive(sv[1], flags);
	t_wait(active);
	t_wait(passive);
}

TEST_CALL(pages, "RDMA writes and reads between regions of two processes: single pages",
	  write_between_processes(TMESH_CREATE_NOHUGE))

TEST(huge, "RDMA writes and reads between regions of two processes: huge pages")
{
	if (!t_has_huge(t_dev()))
		t_skip("no huge pages here");
	write_between_processes(TMESH_CREATE_HUGE);
}

TEST(rights, "memory that a handle may only read is registered for reading alone (6.1: not at all)")
{
	int handle, sv[2], ro;
	unsigned char *p;
	struct ibv_mr *mr;
	struct end e;

	set_up_link();
	t_pair(sv);
	munmap(region(0, &handle), BYTES);
	ro = REQUIRE_OK(t_derive(handle, R_READ, 0));
	p = t_map(ro, BYTES, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	e = open_end(sv[0]);
	CHECK(!ibv_reg_mr(e.pd, p, BYTES, IBV_ACCESS_LOCAL_WRITE));
	CHECK_EQ(errno, EFAULT);
	CHECK(!ibv_reg_mr(e.pd, p, BYTES, IBV_ACCESS_LOCAL_WRITE | REMOTE));
	mr = ibv_reg_mr(e.pd, p, BYTES, IBV_ACCESS_REMOTE_READ);
	if (!t_kernel_at_least(6, 2)) {
		/* soft RoCE always pins for writing. */
		CHECK(!mr);
		CHECK_OK(t_seal(handle));
		return;
	}
	CHECK(mr);
	/* A pin does not record whether it is for reading. */
	CHECK_ERR(t_seal(handle), EBUSY);
	CHECK(mr && !ibv_dereg_mr(mr));
	CHECK_OK(t_seal(handle));
}

/* A driver may refuse dma-bufs. The test notes the result of soft RoCE and does not check it. */
TEST(dmabuf, "an export is registered as a dma-buf, where the driver takes any")
{
	int handle, sv[2], dmabuf, why;
	struct ibv_mr *mr;
	struct end e;

	set_up_link();
	t_pair(sv);
	munmap(region(0, &handle), BYTES);
	dmabuf = REQUIRE_OK(t_export(handle, 0, 0, TMESH_EXPORT_WRITE));
	e = open_end(sv[0]);
	mr = ibv_reg_dmabuf_mr(e.pd, 0, BYTES, 0, dmabuf, IBV_ACCESS_LOCAL_WRITE | REMOTE);
	why = errno;
	t_note("ibv_reg_dmabuf_mr: %s", mr ? "registered" : strerrorname_np(why));
	if (!mr && why == EOPNOTSUPP)
		t_skip("this driver takes no dma-buf: EOPNOTSUPP");
	CHECK(mr);
	CHECK_EQ(t_info(handle).attachments, 1);
	CHECK(mr && !ibv_dereg_mr(mr));
	CHECK_EQ(t_info(handle).attachments, 0);
}
