/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM tmesh

#if !defined(TMESH_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define TMESH_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(tmesh_create,
	TP_PROTO(u64 id, u64 bytes, u64 huge_bytes, u32 backing),
	TP_ARGS(id, bytes, huge_bytes, backing),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, bytes)
		__field(u64, huge_bytes)
		__field(u32, backing)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->bytes = bytes;
		__entry->huge_bytes = huge_bytes;
		__entry->backing = backing;
	),
	TP_printk("id=%llu bytes=%llu huge_bytes=%llu backing=%u", __entry->id, __entry->bytes,
		  __entry->huge_bytes, __entry->backing)
);

DECLARE_EVENT_CLASS(tmesh_handle,
	TP_PROTO(u64 id, u32 rights, bool pinning),
	TP_ARGS(id, rights, pinning),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u32, rights)
		__field(bool, pinning)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->rights = rights;
		__entry->pinning = pinning;
	),
	TP_printk("id=%llu rights=%#x pinning=%d", __entry->id, __entry->rights,
		  __entry->pinning)
);

DEFINE_EVENT(tmesh_handle, tmesh_open, TP_PROTO(u64 id, u32 rights, bool pinning),
	     TP_ARGS(id, rights, pinning));
DEFINE_EVENT(tmesh_handle, tmesh_derive, TP_PROTO(u64 id, u32 rights, bool pinning),
	     TP_ARGS(id, rights, pinning));

TRACE_EVENT(tmesh_map,
	TP_PROTO(u64 id, u64 offset, u64 bytes, bool writable),
	TP_ARGS(id, offset, bytes, writable),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, offset)
		__field(u64, bytes)
		__field(bool, writable)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->offset = offset;
		__entry->bytes = bytes;
		__entry->writable = writable;
	),
	TP_printk("id=%llu offset=%llu bytes=%llu writable=%d", __entry->id, __entry->offset,
		  __entry->bytes, __entry->writable)
);

TRACE_EVENT(tmesh_fault,
	TP_PROTO(u64 id, u64 offset, u64 bytes, bool gone),
	TP_ARGS(id, offset, bytes, gone),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, offset)
		__field(u64, bytes)
		__field(bool, gone)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->offset = offset;
		__entry->bytes = bytes;
		__entry->gone = gone;
	),
	TP_printk("id=%llu offset=%llu bytes=%llu gone=%d", __entry->id, __entry->offset,
		  __entry->bytes, __entry->gone)
);

TRACE_EVENT(tmesh_seal,
	TP_PROTO(u64 id, int result),
	TP_ARGS(id, result),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->result = result;
	),
	TP_printk("id=%llu result=%d", __entry->id, __entry->result)
);

TRACE_EVENT(tmesh_export,
	TP_PROTO(u64 id, u64 offset, u64 bytes, bool writable),
	TP_ARGS(id, offset, bytes, writable),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, offset)
		__field(u64, bytes)
		__field(bool, writable)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->offset = offset;
		__entry->bytes = bytes;
		__entry->writable = writable;
	),
	TP_printk("id=%llu offset=%llu bytes=%llu writable=%d", __entry->id, __entry->offset,
		  __entry->bytes, __entry->writable)
);

TRACE_EVENT(tmesh_gather,
	TP_PROTO(u64 id, u64 bytes, u32 parts, u32 rights),
	TP_ARGS(id, bytes, parts, rights),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, bytes)
		__field(u32, parts)
		__field(u32, rights)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->bytes = bytes;
		__entry->parts = parts;
		__entry->rights = rights;
	),
	TP_printk("id=%llu bytes=%llu parts=%u rights=%#x", __entry->id, __entry->bytes,
		  __entry->parts, __entry->rights)
);

TRACE_EVENT(tmesh_signal,
	TP_PROTO(u64 id, u64 value),
	TP_ARGS(id, value),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, value)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->value = value;
	),
	TP_printk("id=%llu value=%llu", __entry->id, __entry->value)
);

TRACE_EVENT(tmesh_wait,
	TP_PROTO(u64 id, u64 value, u64 reached, int result),
	TP_ARGS(id, value, reached, result),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, value)
		__field(u64, reached)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->value = value;
		__entry->reached = reached;
		__entry->result = result;
	),
	TP_printk("id=%llu value=%llu reached=%llu result=%d", __entry->id, __entry->value,
		  __entry->reached, __entry->result)
);

DECLARE_EVENT_CLASS(tmesh_device,
	TP_PROTO(u64 id, const char *device),
	TP_ARGS(id, device),
	TP_STRUCT__entry(
		__field(u64, id)
		__array(char, device, TMESH_DEVICE_LEN)
	),
	TP_fast_assign(
		__entry->id = id;
		strscpy(__entry->device, device, TMESH_DEVICE_LEN);
	),
	TP_printk("id=%llu device=%s", __entry->id, __entry->device)
);

DEFINE_EVENT(tmesh_device, tmesh_attach, TP_PROTO(u64 id, const char *device),
	     TP_ARGS(id, device));
DEFINE_EVENT(tmesh_device, tmesh_detach, TP_PROTO(u64 id, const char *device),
	     TP_ARGS(id, device));

DECLARE_EVENT_CLASS(tmesh_dma,
	TP_PROTO(u64 id, const char *device, u64 offset, u64 bytes, u32 direction),
	TP_ARGS(id, device, offset, bytes, direction),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, offset)
		__field(u64, bytes)
		__field(u32, direction)
		__array(char, device, TMESH_DEVICE_LEN)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->offset = offset;
		__entry->bytes = bytes;
		__entry->direction = direction;
		strscpy(__entry->device, device, TMESH_DEVICE_LEN);
	),
	TP_printk("id=%llu device=%s offset=%llu bytes=%llu direction=%u", __entry->id,
		  __entry->device, __entry->offset, __entry->bytes, __entry->direction)
);

DEFINE_EVENT(tmesh_dma, tmesh_dma_map,
	     TP_PROTO(u64 id, const char *device, u64 offset, u64 bytes, u32 direction),
	     TP_ARGS(id, device, offset, bytes, direction));
DEFINE_EVENT(tmesh_dma, tmesh_dma_unmap,
	     TP_PROTO(u64 id, const char *device, u64 offset, u64 bytes, u32 direction),
	     TP_ARGS(id, device, offset, bytes, direction));

DECLARE_EVENT_CLASS(tmesh_lease_event,
	TP_PROTO(u64 id, u64 period_ns, bool process),
	TP_ARGS(id, period_ns, process),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, period_ns)
		__field(bool, process)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->period_ns = period_ns;
		__entry->process = process;
	),
	TP_printk("id=%llu period_ns=%llu process=%d", __entry->id, __entry->period_ns,
		  __entry->process)
);

DEFINE_EVENT(tmesh_lease_event, tmesh_lease, TP_PROTO(u64 id, u64 period_ns, bool process),
	     TP_ARGS(id, period_ns, process));
DEFINE_EVENT(tmesh_lease_event, tmesh_lapse, TP_PROTO(u64 id, u64 period_ns, bool process),
	     TP_ARGS(id, period_ns, process));

TRACE_EVENT(tmesh_drain,
	TP_PROTO(u64 id, u64 pinned_bytes),
	TP_ARGS(id, pinned_bytes),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, pinned_bytes)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->pinned_bytes = pinned_bytes;
	),
	TP_printk("id=%llu pinned_bytes=%llu", __entry->id, __entry->pinned_bytes)
);

DECLARE_EVENT_CLASS(tmesh_region,
	TP_PROTO(u64 id),
	TP_ARGS(id),
	TP_STRUCT__entry(
		__field(u64, id)
	),
	TP_fast_assign(
		__entry->id = id;
	),
	TP_printk("id=%llu", __entry->id)
);

DEFINE_EVENT(tmesh_region, tmesh_close, TP_PROTO(u64 id), TP_ARGS(id));
DEFINE_EVENT(tmesh_region, tmesh_revoke, TP_PROTO(u64 id), TP_ARGS(id));
DEFINE_EVENT(tmesh_region, tmesh_free, TP_PROTO(u64 id), TP_ARGS(id));

TRACE_EVENT(tmesh_keep,
	TP_PROTO(u64 id, u64 bytes, u32 regions),
	TP_ARGS(id, bytes, regions),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, bytes)
		__field(u32, regions)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->bytes = bytes;
		__entry->regions = regions;
	),
	TP_printk("kept=%llu bytes=%llu regions=%u", __entry->id, __entry->bytes,
		  __entry->regions)
);

TRACE_EVENT(tmesh_kept_end,
	TP_PROTO(u64 id, u64 bytes, u32 why),
	TP_ARGS(id, bytes, why),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, bytes)
		__field(u32, why)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->bytes = bytes;
		__entry->why = why;
	),
	TP_printk("kept=%llu bytes=%llu why=%s", __entry->id, __entry->bytes,
		  __print_symbolic(__entry->why, { 0, "dropped" }, { 1, "replaced" },
				   { 2, "expired" }, { 3, "revoked" }, { 4, "ipc_ns" },
				   { 5, "reclaimed" }, { 6, "unloaded" }))
);

#endif /* TMESH_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
