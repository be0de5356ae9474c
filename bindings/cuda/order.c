// SPDX-License-Identifier: MIT
/*
 * Places of blocks that were given back in the order of a stream. Each such stream has an event,
 * recorded when the last place was given back.
 */
#include "internal.h"

struct order {
	struct order *next;
	cu_stream stream;
	cu_event event;
};

/* Return the entry of the stream, under the lock. */
static struct order *order_of(struct device *device, cu_stream stream)
{
	for (struct order *order = device->orders; order; order = order->next)
		if (order->stream == stream)
			return order;
	return NULL;
}

static int order_new(struct tmesh_cuda *cuda, struct device *device, cu_stream stream,
		     struct order **out)
{
	struct order *order = calloc(1, sizeof(*order));
	int rc = order ? 0 : -ENOMEM;

	if (!rc)
		rc = cuda_check(cuda, cuda->driver.event_create(&order->event, CU_EVENT_NO_TIMING),
				"cuEventCreate", NULL);
	if (rc) {
		free(order);
		return rc;
	}
	order->stream = stream;
	order->next = device->orders;
	device->orders = order;
	*out = order;
	return 0;
}

int order_record(struct tmesh_cuda *cuda, int device, cu_stream stream)
{
	struct device *d = &cuda->devices[device];
	struct order *order;
	int rc = 0;

	pthread_mutex_lock(&cuda->lock);
	order = order_of(d, stream);
	if (!order)
		rc = order_new(cuda, d, stream, &order);
	if (!rc)
		rc = cuda_check(cuda, cuda->driver.event_record(order->event, stream),
				"cuEventRecord", NULL);
	pthread_mutex_unlock(&cuda->lock);
	return rc;
}

static void order_free(struct tmesh_cuda *cuda, struct order *order, bool lost)
{
	/* A destroyed context took its events along. */
	if (!lost)
		cuda->driver.event_destroy(order->event);
	free(order);
}

/* Wait for one order. The device's context is current, unless it is lost. */
static int order_wait(struct tmesh_cuda *cuda, int device, struct order *order, bool lost)
{
	cu_result done;

	if (lost)
		return cuda_synchronize(cuda, device);
	done = cuda->driver.event_synchronize(order->event);
	return cuda_work_has_ended(done) ? 0 : cuda_check(cuda, done, "cuEventSynchronize", NULL);
}

static void put_back(struct tmesh_cuda *cuda, struct device *device, struct order *orders)
{
	struct order **last = &orders;

	if (!orders)
		return;
	while (*last)
		last = &(*last)->next;
	pthread_mutex_lock(&cuda->lock);
	*last = device->orders;
	device->orders = orders;
	pthread_mutex_unlock(&cuda->lock);
}

/* Wait for the streams; wait_lock is held. */
static int wait_for(struct tmesh_cuda *cuda, int device, struct order *orders)
{
	int rc = cuda_enter(cuda, device, NULL);
	bool lost = rc == -ECONNRESET;

	if (rc && !lost) {
		put_back(cuda, &cuda->devices[device], orders);
		return rc;
	}
	rc = 0;
	while (orders && !rc) {
		struct order *order = orders;

		rc = order_wait(cuda, device, order, lost);
		if (rc)
			break;
		orders = order->next;
		order_free(cuda, order, lost);
	}
	put_back(cuda, &cuda->devices[device], orders);
	if (!lost)
		cuda_leave(cuda);
	return rc;
}

int order_wait_all(struct tmesh_cuda *cuda, int device)
{
	struct device *d = &cuda->devices[device];
	struct order *orders;
	uint64_t freed;
	int rc = 0;

	pthread_mutex_lock(&d->wait_lock);
	pthread_mutex_lock(&cuda->lock);
	freed = d->freed;
	orders = d->orders;
	d->orders = NULL;
	pthread_mutex_unlock(&cuda->lock);
	if (orders)
		rc = wait_for(cuda, device, orders);
	pthread_mutex_lock(&cuda->lock);
	if (!rc && freed > d->waited)
		d->waited = freed;
	pthread_mutex_unlock(&cuda->lock);
	pthread_mutex_unlock(&d->wait_lock);
	return rc;
}

void order_end(struct tmesh_cuda *cuda, int device)
{
	struct device *d = &cuda->devices[device];
	bool lost = d->lost;

	while (d->orders) {
		struct order *order = d->orders;

		d->orders = order->next;
		order_free(cuda, order, lost);
	}
}
