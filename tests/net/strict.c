// SPDX-License-Identifier: MIT
/*
 * A provider with all requirements of verbs and efa, made of libfabric's tcp. It requires
 * registered memory to read into (FI_MR_LOCAL), with pages behind it (FI_MR_ALLOCATED). Its keys
 * are of its own choice (FI_MR_PROV_KEY), and addresses of memory replace offsets
 * (FI_MR_VIRT_ADDR). A breach fails the read or the registration. Linked with --wrap=fi_getinfo and
 * --wrap=fi_fabric; the calls behind those are replaced in the tables of operations.
 */
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MODES (FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR)
#define REGISTRATIONS 256

int __real_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		      const struct fi_info *hints, struct fi_info **info);
int __wrap_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		      const struct fi_info *hints, struct fi_info **info);
int __real_fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int __wrap_fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);

/* Home and reader are one process: the registrations of all domains. */
struct registration {
	const struct fid_mr *mr;
	uintptr_t memory;
	size_t bytes;
	uint64_t access, key;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct registration registrations[REGISTRATIONS];
static uint64_t next_key = 0x1000;

/* The functions of tcp, as they were. */
static struct fi_ops_fabric fabric_ops;
static struct fi_ops_domain domain_ops;
static struct fi_ops_mr mr_ops;
static struct fi_ops_rma rma_ops;
static struct fi_ops mr_fid_ops;
static const struct fi_ops_fabric *real_fabric;
static const struct fi_ops_domain *real_domain;
static const struct fi_ops_mr *real_mr;
static const struct fi_ops_rma *real_rma;
static const struct fi_ops *real_mr_fid;

int __wrap_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		      const struct fi_info *hints, struct fi_info **info)
{
	int rc;

	/* As of verbs: nothing for who does not know these. */
	if (hints && hints->domain_attr && (hints->domain_attr->mr_mode & MODES) != MODES)
		return -FI_ENODATA;
	rc = __real_fi_getinfo(version, node, service, flags, hints, info);
	for (struct fi_info *one = rc ? NULL : *info; one; one = one->next)
		one->domain_attr->mr_mode |= MODES;
	return rc;
}

static bool all_there(uintptr_t memory, size_t bytes)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), first = memory & ~(page - 1);
	size_t pages = (memory + bytes - first + page - 1) / page;
	unsigned char *there = malloc(pages);
	bool all = !mincore((void *)first, pages * page, there);

	for (size_t i = 0; all && i < pages; i++)
		all = there[i] & 1;
	free(there);
	return all;
}

static int mr_close(struct fid *fid)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < REGISTRATIONS; i++)
		if (registrations[i].mr && &registrations[i].mr->fid == fid)
			registrations[i].mr = NULL;
	pthread_mutex_unlock(&lock);
	return real_mr_fid->close(fid);
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset,
		  uint64_t requested_key, uint64_t flags, struct fid_mr **mr, void *context)
{
	struct registration *place = NULL;
	int rc;

	if (!all_there((uintptr_t)buf, len))
		return -FI_EFAULT;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; !place && i < REGISTRATIONS; i++)
		if (!registrations[i].mr)
			place = &registrations[i];
	/* Small numbers, one after the other, as some hardware has them. */
	rc = place ? real_mr->reg(fid, buf, len, access, offset, ++next_key, flags, mr, context)
		   : -FI_ENOMEM;
	if (!rc) {
		*place = (struct registration){*mr, (uintptr_t)buf, len, access, next_key};
		if (!real_mr_fid) {
			real_mr_fid = (*mr)->fid.ops;
			mr_fid_ops = *real_mr_fid;
			mr_fid_ops.close = mr_close;
		}
		(*mr)->fid.ops = &mr_fid_ops;
		(*mr)->mem_desc = *mr;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static ssize_t rma_read(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from,
			uint64_t addr, uint64_t key, void *context)
{
	bool local = false;
	uint64_t base = UINT64_MAX;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < REGISTRATIONS; i++) {
		const struct registration *one = &registrations[i];

		if (!one->mr)
			continue;
		if (one->mr == desc && one->access & FI_READ && (uintptr_t)buf >= one->memory &&
		    (uintptr_t)buf + len <= one->memory + one->bytes)
			local = true;
		if (one->key == key && one->access & FI_REMOTE_READ)
			base = one->memory;
	}
	pthread_mutex_unlock(&lock);
	if (!local)
		return -FI_EINVAL;
	/* A key that is none is tcp's to refuse. */
	if (base == UINT64_MAX)
		base = addr;
	return addr < base ? -FI_EINVAL
			   : real_rma->read(ep, buf, len, NULL, from, addr - base, key, context);
}

static int open_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
			 void *context)
{
	struct fi_info *plain = fi_dupinfo(info);
	int rc;

	plain->domain_attr->mr_mode &= ~MODES;
	rc = real_domain->endpoint(domain, plain, ep, context);
	fi_freeinfo(plain);
	if (rc)
		return rc;
	if (!real_rma) {
		real_rma = (*ep)->rma;
		rma_ops = *real_rma;
		rma_ops.read = rma_read;
	}
	(*ep)->rma = &rma_ops;
	return 0;
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
		       void *context)
{
	struct fi_info *plain = fi_dupinfo(info);
	int rc;

	plain->domain_attr->mr_mode &= ~MODES;
	rc = real_fabric->domain(fabric, plain, domain, context);
	fi_freeinfo(plain);
	if (rc)
		return rc;
	pthread_mutex_lock(&lock);
	if (!real_domain) {
		real_domain = (*domain)->ops;
		real_mr = (*domain)->mr;
		domain_ops = *real_domain;
		domain_ops.endpoint = open_endpoint;
		mr_ops = *real_mr;
		mr_ops.reg = mr_reg;
	}
	pthread_mutex_unlock(&lock);
	(*domain)->ops = &domain_ops;
	(*domain)->mr = &mr_ops;
	return 0;
}

int __wrap_fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	int rc = __real_fi_fabric(attr, fabric, context);

	if (rc)
		return rc;
	pthread_mutex_lock(&lock);
	if (!real_fabric) {
		real_fabric = (*fabric)->ops;
		fabric_ops = *real_fabric;
		fabric_ops.domain = open_domain;
	}
	pthread_mutex_unlock(&lock);
	(*fabric)->ops = &fabric_ops;
	return 0;
}
