# SPDX-License-Identifier: MIT
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, SupportsIndex, TypedDict, final, overload

from numpy import ndarray
from typing_extensions import Buffer

__version__: str

class _HasFileno(Protocol):
    def fileno(self) -> int: ...

_Descriptor = int | _HasFileno

class Ref(TypedDict):
    """What Tensor.ref() gives: offset and byte_size in bytes, strides in elements."""

    v: int
    id: str
    token: str
    offset: int
    byte_size: int
    shape: list[int]
    dtype: str
    strides: list[int]
    device: str

class Stats(TypedDict):
    bytes_copied: int
    copies: int
    regions_created: int
    regions_opened: int
    regions_live: int
    bytes_live: int
    pool_hits: int
    pool_misses: int
    pool_bytes: int
    tokens_served: int
    opens_without_wake: int

class ModelReport(TypedDict):
    """How a model was loaded; sizes in bytes, rates in bytes per second, 0 where they were not measured."""

    format: Literal["safetensors", "gguf"]
    bytes: int
    bytes_read: int
    bytes_copied: int
    tensors_moved: int
    huge_bytes: int
    ns: int
    method: str | None
    shared: bool
    direct_rate: int
    buffered_rate: int
    hash: str | None
    file_system: str
    reason: str
    kept: str | None

_Described = tuple[str, str, str | None, tuple[int, ...], int, int]

class Capability(TypedDict):
    level: Literal["no", "cooperative", "enforced"]
    reason: str | None

class TensorInfo(TypedDict):
    """What a region's description tells of the tensor in it."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    byte_size: int

class Region(TypedDict):
    """A region, as regions() tells it; docs/vocabulary.md has the members' meaning."""

    id: str
    backend: Literal["kernel", "memfd"]
    backing: Literal["memfd", "pages", "user", "dmabuf", "descriptor", "view"]
    label: str
    description: str
    tensor: TensorInfo | None
    bytes: int
    alloc_bytes: int
    huge_bytes: int
    sealed: bool
    revoked: bool
    uid: int
    gid: int
    mode: int
    node: int | None
    handles: int
    pinning_handles: int
    exports: int
    attachments: int
    views: int
    linger_ms: int
    created_ns: int
    pinned_bytes: int
    fence_value: int
    fence: Literal["idle", "producer", "dead"]
    cgroup_id: int

class Holder(TypedDict):
    """A holder of a region, as holders() tells it; the same page has the members' meaning."""

    kind: Literal["handle", "pinning", "export", "mapping", "view", "device"]
    pid: int | None
    command: str
    uid: int
    rights: str
    mappings: int
    attachments: int
    offset: int
    bytes: int
    device: str | None
    mapped: bool
    view: str | None
    lease_ns: int
    lease_left_ns: int
    lapsed: bool
    producer: bool
    since_ns: int | None

class Kept(TypedDict):
    """What is kept under a name, as kept() tells it: times are CLOCK_MONOTONIC, expires_ns None is never."""

    name: str
    id: str
    backend: Literal["kernel", "memfd"]
    regions: int
    held: int
    bytes: int
    kept_ns: int | None
    used_ns: int | None
    expires_ns: int | None
    uid: int
    gid: int
    mode: int
    handles: int
    cgroup_id: int

@final
class Tensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def writable(self) -> bool: ...
    @property
    def released(self) -> bool: ...
    def numpy(self, *, writable: bool | None = None) -> ndarray[Any, Any]: ...
    def ref(self, *, writable: bool = False) -> Ref: ...
    def seal(self) -> Tensor: ...
    def private(self) -> Tensor: ...
    def torch(self, *, private: bool = False) -> Any: ...
    def release(self) -> None: ...
    def view(self, dtype: object, /) -> Tensor: ...
    def reshape(self, /, *shape: SupportsIndex | Sequence[SupportsIndex]) -> Tensor: ...
    def dlpack(self, *, allow_readonly: bool = False) -> object: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(
        self, dtype: object = None, copy: bool | None = None
    ) -> ndarray[Any, Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    __dlpack_c_exchange_api__: ClassVar[object]
    def __arrow_c_array__(
        self, requested_schema: object = None
    ) -> tuple[object, object]: ...
    def __arrow_c_schema__(self) -> object: ...
    def _repr_html_(self) -> str: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Tensor: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __index__(self) -> int: ...
    @property
    def lease_state(self) -> Literal["none", "live", "lapsed", "revoked"]: ...
    def revoke(self) -> None: ...
    def reclaim(self, timeout: float | None = None) -> None: ...
    def lease(
        self,
        seconds: float | None = None,
        *,
        pidfd: _Descriptor | None = None,
        taken: Literal["zeros", "sigbus"] = "zeros",
    ) -> None: ...
    def touch(self) -> None: ...
    def signal(self, value: int, /) -> None: ...
    def wait(self, value: int, timeout: float | None = None) -> int: ...
    def export_dmabuf(
        self, *, offset: int = 0, bytes: int = 0, writable: bool = False
    ) -> int: ...
    def send(
        self, socket: _Descriptor, /, *, writable: bool = False, timeout: float | None = None
    ) -> None: ...
    def __deepcopy__(self, memo: Any, /) -> Tensor: ...
    def item(self) -> bool | int | float | complex: ...
    def tolist(self) -> Any: ...
    def __enter__(self) -> Tensor: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

_Message = bytes | Tensor | tuple[Tensor, bytes]
_Sendable = Buffer | Tensor | tuple[Tensor, Buffer]

@final
class Sent:
    def __new__(cls, slots: int = 4096) -> Sent: ...
    def send(self, tensor: Tensor, writable: bool, /) -> bytes: ...
    def look(self) -> None: ...
    def under_way(self) -> int: ...
    def open(self, parcel: Buffer, /) -> Tensor: ...
    def give_up(self, parcel: Buffer, /) -> None: ...

@final
class Held:
    @property
    def metadata(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def id(self) -> str: ...
    def names(self) -> list[str]: ...
    def types(self) -> list[tuple[str | None, tuple[int, ...]]]: ...
    def tensor(self, number: int, /) -> Tensor: ...
    def private(self) -> list[Tensor]: ...
    def regions(self) -> list[Tensor]: ...
    def ref(self, writable: bool, /) -> str: ...
    def release(self) -> None: ...

@final
class SlotHandle:
    @property
    def token(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def publish(self, value: Held | None, /) -> int: ...
    def close(self) -> None: ...

@final
class SlotReaderHandle:
    @property
    def closed(self) -> bool: ...
    def read(self) -> tuple[int, Held]: ...
    def changed(self) -> bool: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...

@final
class Arena:
    def __new__(
        cls,
        bytes: int = 0,
        *,
        label: str | None = None,
        huge: bool | Literal["try"] = False,
        node: int | None = None,
        mode: int = 0o600,
        gid: int | None = None,
        linger_ms: int = 0,
        pin: bool = True,
    ) -> Arena: ...

@final
class Channel:
    def __new__(
        cls,
        role: Literal["send", "recv"],
        *,
        slots: int = 0,
        producers: int = 0,
        regions: int = 0,
        layouts: int = 0,
        writable: bool = False,
        max_regions: int = 0,
        max_bytes: int = 0,
        spin: float = 0.0,
    ) -> Channel: ...
    @classmethod
    def open(
        cls,
        token: str,
        role: Literal["send", "recv"],
        *,
        writable: bool = False,
        max_regions: int = 0,
        max_bytes: int = 0,
        spin: float = 0.0,
    ) -> Channel: ...
    @property
    def token(self) -> str: ...
    @property
    def role(self) -> Literal["send", "recv"]: ...
    @property
    def closed(self) -> bool: ...
    def send(self, message: _Sendable, /, timeout: float | None = None) -> None: ...
    def try_send(self, message: _Sendable, /) -> bool: ...
    def send_batch(
        self, messages: Iterable[_Sendable], /, timeout: float | None = None
    ) -> int: ...
    def flush(self, timeout: float | None = None) -> None: ...
    def recv(self, timeout: float | None = None) -> _Message: ...
    def try_recv(self) -> _Message | None: ...
    def recv_batch(self, timeout: float | None = None) -> list[_Message]: ...
    def recv_async(self) -> Coroutine[Any, Any, _Message]: ...
    def fileno(self) -> int: ...
    def _poll(self) -> _Message | Literal[False] | None: ...
    def _prepare(self) -> None: ...
    def _begin_wait(self) -> None: ...
    def _end_wait(self) -> None: ...
    def close(self) -> None: ...
    def __iter__(self) -> Channel: ...
    def __next__(self) -> _Message: ...
    def __aiter__(self) -> AsyncIterator[_Message]: ...
    def __enter__(self) -> Channel: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

def configure(
    *,
    backend: Literal["auto", "kernel", "memfd"] | None = None,
    pool_bytes: int = 0,
    max_bytes: int = 0,
    runtime_dir: str | bytes | PathLike[str] | PathLike[bytes] | None = None,
    timeout: float = 2.0,
) -> None: ...
def empty(
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: object,
    *,
    label: str | None = None,
    huge: bool | Literal["try"] = False,
    node: int | None = None,
    mode: int = 0o600,
    gid: int | None = None,
    linger_ms: int = 0,
    pin: bool = True,
    arena: Arena | None = None,
) -> Tensor: ...
def zeros(
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: object,
    *,
    label: str | None = None,
    huge: bool | Literal["try"] = False,
    node: int | None = None,
    mode: int = 0o600,
    gid: int | None = None,
    linger_ms: int = 0,
    pin: bool = True,
    arena: Arena | None = None,
) -> Tensor: ...
def put(
    array: object,
    /,
    *,
    seal: bool | None = None,
    label: str | None = None,
    huge: bool | Literal["try"] = False,
    node: int | None = None,
    mode: int = 0o600,
    gid: int | None = None,
    linger_ms: int = 0,
    pin: bool = True,
    arena: Arena | None = None,
) -> Tensor: ...
def make_bundle(
    pairs: tuple[tuple[str, Tensor], ...], metadata: str | None, seal: bool, label: str | None, /
) -> Held: ...
def keep(
    what: Tensor | Held, name: str, replace: bool, lifetime: float | None, mode: int, gid: int | None, /
) -> None: ...
def open_kept(name: str, uid: int | None, /) -> Held | list[Tensor]: ...
def kept() -> list[Kept]: ...
def drop(name: str, /) -> None: ...
def make_slot(label: str | None, max_ref: int, /) -> SlotHandle: ...
def open_slot(token: str, /) -> SlotReaderHandle: ...
def load_model(
    path: str | PathLike[str],
    keep: bool,
    alone: bool,
    hash: bool,
    progress: Callable[[int, int, bool], object] | None,
    /,
) -> tuple[Held, ModelReport, list[_Described]]: ...
def parse_model(data: Buffer, /) -> tuple[str, list[_Described], str]: ...
def write(tensor: Tensor, buffer: Buffer, /) -> None: ...
@overload
def open(ref: Ref | Tensor, /, writable: bool = False) -> Tensor: ...
@overload
def open(ref: dict[str, Any] | str | bytes, /, writable: bool = False) -> Any: ...
def link_name(name: str, /) -> str: ...
def open_link(folder: int, name: str, /) -> tuple[str, memoryview]: ...
def from_dlpack(object: object, /) -> Tensor: ...
def from_address(address: int, /) -> Tensor | None: ...
def find(
    address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], /
) -> Tensor | None: ...
def gather(
    parts: Iterable[Tensor | tuple[Tensor, int, int]],
    /,
    shape: SupportsIndex | Sequence[SupportsIndex] | None = None,
    dtype: object = None,
    *,
    writable: bool = False,
    label: str | None = None,
    mode: int = 0o600,
    gid: int | None = None,
    linger_ms: int = 0,
) -> Tensor: ...
def from_dmabuf(
    descriptor: _Descriptor,
    /,
    shape: SupportsIndex | Sequence[SupportsIndex] | None = None,
    dtype: object = None,
    *,
    label: str | None = None,
    mode: int = 0o600,
    gid: int | None = None,
    linger_ms: int = 0,
) -> Tensor: ...
def recv(
    socket: _Descriptor,
    /,
    shape: SupportsIndex | Sequence[SupportsIndex] | None = None,
    dtype: object = None,
    *,
    offset: int = 0,
    timeout: float | None = None,
) -> Tensor: ...
def stats() -> Stats: ...
def caps() -> dict[str, Capability]: ...
def backend() -> Literal["kernel", "memfd"]: ...

def regions() -> list[Region]: ...
def holders(region: Tensor | str, /) -> list[Holder]: ...
