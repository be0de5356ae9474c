# SPDX-License-Identifier: MIT
"""The promises about speed: each line a ratio of two medians taken in one run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    title: str
    measured: str  # topic/name of a series
    beside: str  # of its floor or peer
    what: str  # what that is, for people
    limit: float | None  # the ratio may be at most this; None: only reported, or see below
    over_ns: float | None = None  # it may take at most so much longer
    most_ns: float | None = None  # it may take at most so long


@dataclass(frozen=True)
class Section:
    title: str
    bounds: tuple


SECTIONS = (
    Section("Hand-over of 1 MiB to another process, to its first byte", (
        Bound("by socket, cold, to write", "handover/socket-tmesh-writable",
              "handover/socket-by-hand", "memfd + SCM_RIGHTS + mmap by hand", 1.2),
        Bound("by socket, cold, to read", "handover/socket-tmesh",
              "handover/socket-by-hand-promising", "the same, sealed and read-only", 1.2),
        Bound("by socket, cold, to read", "handover/socket-tmesh", "handover/socket-by-hand",
              "by hand with the right to write", None),
        Bound("by token, cold, first contact", "handover/token-tmesh", "handover/token-by-hand",
              "connect, secret, SCM_RIGHTS by hand", 1.1),
        Bound("by token: open, known peer", "handover/open-known", "handover/open-floor",
              "mmap + first byte", 2.0),
        Bound("by token: open (module, VM)", "module/open by token, mmap, first byte",
              "module/mmap, first byte",
              "mmap + first byte", 2.0),
        Bound("1 GiB not 1 MiB (module, VM)", "module/hand-over of 1 GiB",
              "module/hand-over of 1 MiB", "1 MiB", 1.2),
        Bound("1 GiB instead of 1 MiB", "size/open-1GiB", "size/open-1MiB", "1 MiB", 1.2),
    )),
    Section("Channels between two processes, one way", (
        Bound("a tensor of 1 MiB", "channel/tensor", "channel/line-2",
              "a cache line each way", 1.5),
        Bound("a tensor of 1 MiB", "channel/tensor", "channel/line",
              "one cache line for both ways", None),
        Bound("a tensor of 1 GiB", "channel/tensor-1GiB", "channel/tensor", "1 MiB", 1.2),
        Bound("56 bytes", "channel/bytes", "channel/line-2", "a cache line each way", None),
        Bound("a tensor", "channel/tensor", "channel/socket", "56 bytes by Unix socket", None),
        Bound("32 tensors at once, each", "channel/batch", "channel/single", "one by one", 0.5),
        Bound("both ends asleep in turn", "channel/sleeping", "channel/futex",
              "a bare futex", 1.1),
        Bound("death seen, by EPIPE", "death/channel", "death/pidfd", "a pidfd", None),
        Bound("a tensor, Python", "python/channel-tensor", "python/channel-iceoryx2",
              "iceoryx2 from Python", 1.0),
        Bound("receive in Python, it is there", "python/channel-ready", "channel/ready",
              "the same in C", None, 150),
    )),
    Section("Python", (
        Bound("tmesh.open(ref).numpy()", "python/open", "python/shared-memory",
              "multiprocessing.shared_memory", 0.7),
        Bound("tmesh.shared_memory, attach", "python/block", "python/shared-memory",
              "multiprocessing.shared_memory", 0.7),
        *(Bound(f"{what} by tmesh.Queue", f"objects/{kind}-tmesh", f"objects/{kind}-{name}",
                f"multiprocessing.{beside}", None)
          for kind, what in (("dict", "a small dict"), ("bytes", "100 KB of bytes"))
          for name, beside in (("queue", "Queue"), ("simple", "SimpleQueue"))),
        *(Bound(f"torch, over tmesh's memory, {size}", f"torch/born-{size}-tmesh",
                f"torch/first-{size}-torch", "torch.multiprocessing, first share", limit)
          for size, limit in (("4KB", None), ("1MB", 0.1), ("100MB", 0.1))),
        *(Bound(f"torch, {kind}, {size}", f"torch/{name}-{size}-tmesh",
                f"torch/{name}-{size}-torch", f"torch.multiprocessing, {kind}", None)
          for name, kind in (("first", "first share"), ("shared", "shared before"))
          for size in ("4KB", "1MB", "100MB")),
        *(Bound(f"torch by tmesh.Queue, {kind}, {size}", f"torch/{name}-{size}-queue",
                f"torch/first-{size}-torch", "torch.multiprocessing, first share", limit)
          for name, kind, limits in (("born", "over tmesh's memory", (None, 0.1, 0.1)),
                                     ("shared", "sent before", (0.1, 0.1, 0.1)),
                                     ("first", "first share", (None, None, None)))
          for size, limit in zip(("4KB", "1MB", "100MB"), limits)),
    )),
    Section("From one Ray actor to another", (
        *(Bound(f"{kind} in a region, {size}", f"ray/{kind.lower()}-tmesh-{size}", f"ray/{kind.lower()}-store-{size}",
                "Ray's object store", limit)
          for kind, size, limit in (("NumPy", "1MB", 1.0), ("NumPy", "100MB", 0.4), ("Torch", "1MB", 1.0), ("Torch", "100MB", 0.1))),
        *(Bound(f"Torch in a region, {size}", f"ray/torch-tmesh-{size}", f"ray/torch-gloo-{size}", "Gloo in Ray", 1.0)
          for size in ("1MB", "100MB")),
    )),
    Section("From one machine to another (two network namespaces)", (
        *(Bound("256 MiB, sealed at the end", "net/fetch", f"net/{name}", what, limit)
          for name, what, limit in (("iperf3-file", "iperf3, which writes it into a file of memory", 1.0),
                                    ("iperf3", "iperf3, which keeps nothing", 1.0), ("nixl", "NIXL over TCP", 1 / 1.3),
                                    ("mooncake", "Mooncake over TCP", 1 / 1.3), ("erlang", "Erlang distribution", 1 / 1.5))),
        Bound("4 KiB of another node, opened, to the first byte", "net/open", "net/message", "a message there and back", 3.0),
        Bound("4 KiB of another node, which another process has open", "net/beside", "net/local", "a ref of this node's", 1.1),
        Bound("... by a program in Python, which opens what is kept", "net/beside-python", "net/local-python", "a ref of this node's", 1.2),
        Bound("4 KiB by a key that is there", "net/small", "net/round-trip", "a byte there and back", None),
        Bound("the error after the home was killed", "net/death", "net/round-trip", "a byte there and back", None, most_ns=50e6),
        Bound("beyond a silent home's deadline", "net/silent", "net/round-trip", "a byte there and back", None, most_ns=10e6),
    )),
    Section("Out of and into a JAX program", (
        *(Bound(f"{way}, {size}", f"xla/{size}-{way}-tmesh", f"xla/{size}-{way}-callback",
                f"io_callback that {does} by tmesh", limit)
          for size, way, does, limit in (("4KB", "push", "sends", 0.15), ("4KB", "pop", "receives", 0.05),
                                         ("64MB", "push", "sends", 0.6), ("64MB", "pop", "receives", 1.2))),
        Bound("a training's step that pushes its loss", "xla/train-pushing", "xla/train-plain",
              "the same without", 1.02),
        Bound("the error after the sender was killed", "xla/end-killed", "xla/end-pipe", "a killed process's pipe ends",
              None, most_ns=50e6),
        Bound("the error after cancel()", "xla/end-cancelled", "xla/end-pipe", "a killed process's pipe ends",
              None, most_ns=50e6),
        Bound("the error after Ctrl-C", "xla/end-interrupted", "xla/end-pipe", "a killed process's pipe ends",
              None, most_ns=100e6),
    )),
    Section("An Arrow table of 1 GB from Elixir to pandas and back", (
        Bound("its ref there and back", "arrow/tmesh", "arrow/file",
              "pyarrow's IPC, a file in /dev/shm", None),
    )),
    Section("From Elixir to Python and back", (
        Bound("1 MB, shared already", "elixir/shared-1MB", "elixir/port-1MB", "port, packet: 4",
              None, most_ns=100e3),
        Bound("100 MB, shared already", "elixir/shared-100MB", "elixir/port-100MB",
              "port, packet: 4", None, most_ns=1e6),
        Bound("1 GB, shared already", "elixir/shared-1GB", "elixir/port-1GB", "port, packet: 4",
              None, most_ns=10e6),
        Bound("1 MB, shared already", "elixir/shared-1MB", "elixir/json-1MB",
              "JSON of as many floats", None),
        Bound("1 MB, put for the call", "elixir/put-1MB", "elixir/shared-memory-1MB",
              "multiprocessing.shared_memory", None),
        Bound("100 MB, put for the call", "elixir/put-100MB", "elixir/shared-memory-100MB",
              "multiprocessing.shared_memory", None),
        Bound("1 GB, put for the call", "elixir/put-1GB", "elixir/shared-memory-1GB",
              "multiprocessing.shared_memory", None),
        Bound("1 MB, call after call", "elixir/hot-worker-1MB", "elixir/hot-port",
              "16 bytes by port", None),
        Bound("with busy looks", "elixir/busy-worker-1MB", "elixir/hot-port", "16 bytes by port",
              None, most_ns=100e3),
        Bound("100 MB, with busy looks", "elixir/busy-worker-100MB", "elixir/hot-port",
              "16 bytes by port", None, most_ns=1e6),
        Bound("a tensor by Channel.call, hot", "elixir/hot-call-1MiB", "elixir/hot-port",
              "16 bytes by port", None, most_ns=500),
        Bound("the same", "elixir/hot-call-1MiB", "channel/line-2", "a cache line, one way", None),
        Bound("by Channel.send, recv, release", "elixir/hot-1MiB", "elixir/hot-port",
              "16 bytes by port", None),
        Bound("1 GiB by Channel.call, hot", "elixir/hot-call-1GiB", "elixir/hot-call-1MiB",
              "1 MiB", 1.2),
        Bound("a tensor by Channel.call, asleep", "elixir/sleeping-call-1MiB",
              "elixir/sleeping-port", "16 bytes by port", None),
        # A way there and a way back are two.
        Bound("the same", "elixir/sleeping-call-1MiB", "channel/futex", "a bare futex, one way",
              8.0),
        Bound("1 GiB by Channel.call, asleep", "elixir/sleeping-call-1GiB",
              "elixir/sleeping-call-1MiB", "1 MiB", 1.2),
    )),
    Section("Putting 100 MB", (
        Bound("C, warm pool", "put/put-warm", "put/memcpy-warm", "warm memcpy", 0.8),
        Bound("C, warm pool", "put/put-warm", "put/movsb-warm", "warm rep movsb", None),
        Bound("Python, warm pool", "python/put-warm", "python/memcpy-warm", "warm memcpy", 0.8),
        Bound("Python, warm pool", "python/put-warm", "python/memcpy-huge",
              "warm memcpy, huge pages", None),
        Bound("Elixir, warm pool", "elixir/put-warm", "elixir/memcpy-warm", "warm memcpy", 0.8),
        Bound("C, cold, huge pages demanded", "put/put-cold-huge", "put/memcpy-warm", "warm memcpy", 1.4),
        Bound("C, cold", "put/put-cold", "put/memcpy-warm", "warm memcpy", 5.0),
    )),
    Section("1 GB of safetensors in 300 tensors", (
        Bound("loaded, warm page cache", "model/warm", "model/warm-safe_open",
              "safe_open, each page touched", 1.0),
        Bound("loaded, cold", "model/cold", "model/cold-dd",
              "the better of dd O_DIRECT and buffered", 1 / 0.95),
        Bound("loaded, cold", "model/cold", "model/cold-safe_open", "safe_open, each page touched",
              None),
        *(Bound(f"{what}, {language}", f"model/{name}{end}", f"model/{name}-safe_open",
                "safe_open and its tensors", None, most_ns=most)
          for name, what in (("second", "second process"), ("kept", "kept, all others gone"))
          for end, language, most in (("", "C", 1e6), ("-python", "Python", 20e6))),
        Bound("4 replicas at once", "model/replicas-4", "model/replicas-1", "one", 1.1),
    )),
    Section("A kept file of 1 GiB by its path, each byte read", (
        *(Bound(title, f"paths/kept-{way}", f"paths/{place}-{way}", what, None)
          for way, title in (("read", "read by calls of 1 MiB"), ("map", "mapped"), ("four", "mapped by four processes at once"))
          for place, what in (("tmpfs", "a file of tmpfs"), ("disk", "the page cache of the disk's file"))),
        Bound("mapped by four processes at once", "paths/kept-four", "paths/kept-one", "by one", None),
    )),
    Section("llama.cpp with weights as they are mapped (`--no-repack`), processor time", (
        *(Bound(f"{kind}, {title}", f"llama/{kind}-{what}-mapped", f"llama/{kind}-{what}-packed", "packed anew by each process", None)
          for kind in ("Q4_0", "Q4_1", "F16") for what, title in (("prompt", "a token of a prompt"), ("token", "a generated token"))),
    )),
    Section("vLLM on a CPU, 1 GB of weights", (
        Bound("load_model, weights kept", "vllm/load-mapped", "vllm/load-auto", "load format auto, warm", 0.1),
        Bound("load_model, packed from kept ones", "vllm/load-copy", "vllm/load-auto", "load format auto, warm", None),
        Bound("load_model, the first engine", "vllm/load-filling", "vllm/load-auto", "load format auto, warm", None),
        Bound("a token, weights shared", "vllm/token-view", "vllm/token-auto", "load format auto", None),
        Bound("a token, weights packed", "vllm/token-copy", "vllm/token-auto", "load format auto", None),
        Bound("first token, prefix shared", "vllm/first-shared", "vllm/first-computed", "computing 2,000 tokens", 0.3),
        Bound("an update of all weights", "vllm/update", "vllm/reload", "a reload of safetensors", None),
        Bound("an update of all weights", "vllm/update", "vllm/update-memcpy", "a copy of the same bytes", None),
    )),
    Section("Slots and pages", (
        Bound("a slot's read", "slot/read", "slot/loads", "a pair of atomic loads", 2.0),
        Bound("swap of a value that is held", "slot/swap", "slot/loads", "a pair of atomic loads",
              None, most_ns=1e3),
        Bound("first read of a new value", "slot/first", "slot/swap", "swap of one that is held", None),
        Bound("publish", "slot/publish", "slot/loads", "a pair of atomic loads", None),
        Bound("a page allocated and freed", "pages/one", "pages/malloc", "malloc and free of as much",
              None, most_ns=150),
        Bound("4,096 of them, each", "pages/many", "pages/malloc", "malloc and free of one", None),
        Bound("fork of 32,768 tokens", "pages/fork", "pages/table", "copying its table of 2,048",
              None),
        Bound("1 GiB as one piece, 2 MiB pages", "pages/view-2MiB", "pages/copy-2MiB", "copying them",
              1 / 20),
        Bound("1 GiB as one piece, 64 KiB pages", "pages/view-64KiB", "pages/copy-64KiB",
              "copying them", 1 / 20),
    )),
    Section("Engines", (
        Bound("bound once, in process", "engine/bound", "engine/onnxruntime-bound", "ONNX Runtime's own run, bound once", 1.2),
        Bound("named each time, in process", "engine/named", "engine/onnxruntime-named", "bound by its own calls and run", None),
        Bound("by process, a product of matrices", "engine/long-by-process", "engine/long", "in process", 1.35),
        Bound("by process, 4 numbers added", "engine/short-by-process", "engine/short", "in process", None, 15e3),
        Bound("100 decode steps, past = present", "engine/decode-bound", "engine/decode-run", "ONNX Runtime's run() with copies", 1.0),
        Bound("a product in a region", "engine/product-region", "engine/product-anonymous", "in anonymous memory, 4 KiB pages", 1.05),
        Bound("a product in a region", "engine/product-region", "engine/product-anonymous-huge", "in NumPy's, huge where they can be had", None),
        Bound("a product in huge pages", "engine/product-region-huge", "engine/product-anonymous", "in anonymous memory, 4 KiB pages", None),
        Bound("a product in huge pages", "engine/product-region-huge", "engine/product-anonymous-huge", "in NumPy's, huge where they can be had", None),
        Bound("an engine's death, to the error", "engine/death", "engine/restart", "to the next result", None, most_ns=50e6),
        Bound("killed, to the next result", "engine/restart", "engine/cold-start", "a start to the first result", None),
        Bound("a token, one step bound", "generate/dispatch", "generate/ggml", "ggml's own calls", 1 / 0.95),
        Bound("a token, one stream", "generate/one-stream", "generate/ggml", "ggml's own calls", 1 / 0.95),
        Bound("a token, eight streams", "generate/eight", "generate/ggml-eight", "ggml's own calls, eight at once", 1 / 0.95),
        Bound("a token, eight streams", "generate/eight", "generate/one-by-one", "one by one", None),
    )),
    Section("Many regions", (
        Bound("open, 15,000 live (memfd)", "lookup/open-of-15000", "lookup/open-of-100",
              "100 live", 2.0),
        Bound("open, 100,000 live (module, VM)", "module/open by token among 100,000",
              "module/open by token among 100",
              "100 live", 2.0),
    )),
    Section("Pages (module, VM)", (
        Bound("touch 256 MiB, huge pages", "module/touch 256 MiB of a huge region",
              "module/bare touch loop", "the bare loop", 1.5),
        Bound("touch 256 MiB, 4 KiB pages", "module/touch 256 MiB of 4 KiB pages in batches",
              "module/touch 256 MiB of a memfd", "faults of a memfd", 0.2),
        Bound("create 256 MiB", "module/create 256 MiB", "module/memfd of 256 MiB, populated",
              "memfd + populate", 1.2),
        *(Bound(f"take 1 GiB from ten, {kind}", f"module/revoke 1 GiB of {kind} from ten",
                f"module/ten munmaps of {kind}{end}", floor, limit)
          for kind in ("4 KiB pages", "huge pages")
          for end, floor, limit in (
              (" and the last close", "ten munmaps and the last close, which frees it", 1.5),
              ("", "ten munmaps, which free nothing", None))),
        Bound("export, map 256 MiB", "module/export and map 256 MiB",
              "module/udmabuf and map 256 MiB", "udmabuf", 1.0),
        Bound("export, map 256 MiB, 4 KiB pages", "module/export and map 256 MiB of 4 KiB pages",
              "module/udmabuf and map 256 MiB of 4 KiB pages", "udmabuf", 1.0),
    )),
    Section("Gather views (module, VM)", (
        Bound("16,384 extents of 64 KiB", "module/view of 16,384 extents of 64 KiB",
              "module/mmap of 16,384 pieces of a memfd", "mmap(MAP_FIXED) of memfd pieces", 0.333),
        Bound("read 1 GiB of it", "module/read 1 GiB of a view", "module/read 1 GiB of a region",
              "a plain region, of 2 MiB pages", 1.1),
        Bound("read 1 GiB of it", "module/read 1 GiB of a view, beside 4 KiB pages",
              "module/read 1 GiB of a region of 4 KiB pages", "a plain region of 4 KiB pages", 1.1),
    )),
    Section("Leases (module, VM)", (
        Bound("touch, 2,000,000 times", "module/2,000,000 touches of a lease",
              "module/2,000,000 stores to shared memory", "an atomic store", 2.0),
        Bound("look at one of 100,000", "module/look at one of 100,000 leases",
              "module/read of one of 100,000 pages", "one read of its page", 1.5),
        Bound("lapse of 10,000 of 100,000, each",
              "module/lapse of one of 10,000 leases with a mapping, among 100,000",
              "module/munmap of one of 10,000 mappings", "munmap of its page", None),
    )),
)

# The output of `make bench-huge`, from its own runs. shmem_enabled is as Linux has it by default, never.
HUGE = (
    Bound("1 GB of safetensors, warm: load and read every byte", "tmesh", "mmap", "safe_open, which maps the file", 5.0),
    Bound("the same", "tmesh", "pread", 'safe_open(backend="pread")', 1.0),
    Bound("the same in four processes at once, sum", "shared-four", "pread-four", 'four of safe_open(backend="pread")', 0.35),
    Bound("the same in 4 KiB pages", "small", "pread", 'safe_open(backend="pread")', None),
    Bound("the same, cold", "cold", "dd", "the better dd, then a reading", 1.05),
    Bound("the same, cold", "cold", "dd-memory", "the better dd into tmpfs, then a reading", None),
    Bound("second process: open and read every byte", "second", "second-mmap", "safe_open, which maps the file", 0.6),
    Bound("put 100 MB, cold", "huge/put", "huge/memcpy-small", "memcpy to fresh memory, MADV_NOHUGEPAGE", 0.5),
    Bound("the same", "huge/put", "huge/memcpy-huge", "memcpy to fresh memory, MADV_HUGEPAGE", 1.6),
    Bound("put 9.6 MB in a loop, sealed", "stack/put-sealed", "stack/torch", "torch.stack", 2.0),
    Bound("256 MiB from another machine", "net/fetch", "net/iperf3", "iperf3, which keeps nothing", 1.0),
    Bound("1000 MiB of fresh memory in 2 MiB pages, touched", "huge/fresh-huge", "huge/fresh-small", "in 4 KiB pages", None),
    Bound("a view of 256 MiB of 64 KiB pages", "pages/view-64KiB", "pages/copy-64KiB", "copying them", None),
    Bound("first share of a plain torch tensor, 1 MB", "torch/first-1MB-tmesh", "torch/first-1MB-torch", "torch.multiprocessing", 0.5),
)
