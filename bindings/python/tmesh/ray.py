# SPDX-License-Identifier: MIT
"""Tensors between the Ray actors of one machine by tmesh: a transport of Ray Direct Transport.

    import tmesh.ray
    tmesh.ray.register()                              # before the actors are made

    @ray.remote(enable_tensor_transport=True)
    class Source:
        @ray.method(tensor_transport="tmesh")         # torch.Tensor, torch.nn.Parameter
        def weights(self): ...

        @ray.method(tensor_transport="tmesh_tensor")  # tmesh.Tensor
        def batch(self): ...

What lies in sealed memory of tmesh is not copied; other tensors are copied once, where they come from, all of an object
into one region. Receivers copy nothing: they have copy-on-write views, so that nobody sees what they write, or with
"tmesh_tensor" tmesh.Tensors to read. A receiver's memory stays when the source dies. docs/ray.md says what is refused.

An actor that Ray restarts, or that another actor makes, does not know the transport unless every worker registers it:

    ray.init(runtime_env={"worker_process_setup_hook": "tmesh.ray.register"})
"""

from __future__ import annotations

from dataclasses import dataclass, field
import importlib
import threading
from typing import Any

from . import _tmesh, movers
from .errors import Error, UnsupportedError
from .refs import Ref
from .tried import lacks, load, warn_of_another

__all__ = ["register"]

VERSION = "2.60.0"

# Not by their names: mypy would read all of PyTorch and Ray, where those are installed.
experimental: Any
serialization: Any
worker: Any
try:
    torch: Any = importlib.import_module("torch")
    experimental, serialization, _cloudpickle, worker = load("ray", VERSION, "ray.md", {
        "ray.experimental": "register_tensor_transport TensorTransportManager TensorTransportMetadata CommunicatorMetadata",
        "ray.util.serialization": "register_serializer", "ray.cloudpickle": "CloudPickler", "ray._private.worker": "global_worker"})
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(f"tmesh.ray needs PyTorch and Ray ({problem}): pip install torch 'tmesh[ray]'",
                              name=problem.name) from None
warn_of_another("ray", VERSION, "ray.md")
pickler: Any = _cloudpickle.CloudPickler

_Parameter: Any = torch.nn.Parameter
_STRIDED: Any = torch.strided
# Its name in PyTorch 2 and before.
_storage: Any = getattr(torch.Tensor, "untyped_storage", None) or torch.Tensor._storage

# Where each copied tensor begins in its region: what vector instructions like.
_ALIGN = 64


def _boot() -> str:
    """The machine, as long as it runs: several of Ray's nodes may be on one."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


@dataclass
class Place:
    """Where a PyTorch tensor lies: bytes of refs[ref], and its layout from there."""

    ref: int | None  # None: it has no elements
    start: int
    end: int
    strides: tuple[int, ...]
    requires_grad: bool


@dataclass
class Metadata(experimental.TensorTransportMetadata):  # type: ignore[misc]
    """What Ray carries to a receiver instead of tensors."""

    boot: str = ""
    refs: list[Ref] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    # For other machines: by which engine, its offer of the refs' memory, and why there is none.
    mover: str = ""
    offer: bytes = b""
    why: str = ""


def _refuse(why: str) -> UnsupportedError:
    return UnsupportedError(95, f"the transport \"tmesh\": {why}")


def _check(tensor: Any) -> None:
    """UnsupportedError unless another process can have the same by its bytes and layout."""
    if not isinstance(tensor, torch.Tensor):
        raise _refuse("this is for tensors of PyTorch alone, and a tmesh.Tensor was returned or put, perhaps beside some: "
                      "tensor.torch(private=True), or by itself with the transport \"tmesh_tensor\"")
    if tensor.device.type != "cpu":
        raise _refuse(f"a tensor of {tensor.device} was returned: send tensor.cpu(), or use a transport of Ray for that "
                      "device")
    if tensor.layout is not _STRIDED or tensor.is_nested or tensor.is_quantized:
        raise _refuse("sparse, nested and quantized tensors have no plain memory: send what they are made of")
    if tensor.is_conj() or tensor.is_neg():
        raise _refuse("a conjugated or negated view was returned: send tensor.resolve_conj().resolve_neg()")
    if tensor.requires_grad and not tensor.is_leaf:
        raise _refuse("a tensor with a history of autograd was returned, which no other process can follow: "
                      "send tensor.detach()")


def _span(tensor: Any) -> int:
    """Elements from its first to its last, gaps among them."""
    return 1 + sum((int(length) - 1) * int(step) for length, step in zip(tensor.shape, tensor.stride()))


def _sealed(tensor: Any) -> _tmesh.Tensor | None:
    """Its bytes, where they are sealed memory of tmesh already."""
    found = _tmesh.around(tensor.data_ptr())
    if found is None or not found[0].sealed:
        return None
    whole, start = found[0].reshape(-1).view("uint8"), found[1]
    end = start + _span(tensor) * tensor.element_size()
    return whole[start:end] if end <= whole.nbytes else None


class _Packing:
    """The tensors of one object: those that are sealed stay where they are, the others go into one region."""

    def __init__(self, tensors: list[Any], label: str) -> None:
        self.places: list[Place] = []
        self.held: list[_tmesh.Tensor] = []
        # Of tensors over the same bytes, such as tied weights, there is one, and receivers have it as one.
        self.known: dict[tuple[int, int], Place] = {}
        self.copies: list[tuple[Any, Place]] = []
        self.bytes = 0
        for tensor in tensors:
            _check(tensor)
        for tensor in tensors:
            self.places.append(self._place(tensor))
        if self.copies:
            self._copy(label)

    def _place(self, tensor: Any) -> Place:
        strides, grad = tuple(tensor.stride()), tensor.requires_grad
        if not tensor.numel():
            return Place(None, 0, 0, strides, grad)
        at = tensor.data_ptr(), _span(tensor) * tensor.element_size()
        known = self.known.get(at)
        if known is None:
            known = self.known[at] = self._stay(tensor) or self._plan(tensor, at[1])
        return Place(known.ref, known.start, known.end, strides, grad)

    def _stay(self, tensor: Any) -> Place | None:
        ours = _sealed(tensor)
        if ours is None:
            return None
        self.held.append(ours)
        return Place(len(self.held) - 1, 0, ours.nbytes, (), False)

    def _plan(self, tensor: Any, nbytes: int) -> Place:
        if _span(tensor) > tensor.numel():
            raise _refuse(f"a tensor of shape {tuple(tensor.shape)} with gaps between its elements (strides "
                          f"{tuple(tensor.stride())}) would have to be copied, gaps and all: send tensor.contiguous()")
        # It is known by its number when all have been seen.
        place = Place(-1, self.bytes, self.bytes + nbytes, (), False)
        self.bytes = -(-place.end // _ALIGN) * _ALIGN
        self.copies.append((tensor, place))
        return place

    def _copy(self, label: str) -> None:
        region = _tmesh.empty(self.bytes, "uint8", label=label)
        for tensor, place in self.copies:
            flat = tensor.detach().as_strided((_span(tensor),), (1,), tensor.storage_offset())
            _tmesh.write(region[place.start:place.end], flat.view(torch.uint8).numpy())
        self.held.append(region.seal())
        for place in self.places:
            if place.ref == -1:
                place.ref = len(self.held) - 1


class _Transport(experimental.TensorTransportManager):  # type: ignore[misc]
    """What both kinds of tensors have in common. Ray makes one in each process."""

    NAME = ""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # With what a mover has registered.
        self._kept: dict[str, tuple[Metadata, list[_tmesh.Tensor], Any]] = {}
        # What gives up the fetches of an object that are under way.
        self._stops: dict[str, list[threading.Event]] = {}

    @property
    def tensor_transport_backend(self) -> str:
        return self.NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        # To ask the actor would take a call; one that has it not says so when it is used.
        return True

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        return experimental.CommunicatorMetadata()

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        # Ray asks again where an answer was lost; refs that it has must go on being good.
        with self._lock:
            if obj_id in self._kept:
                return self._kept[obj_id][0]
        metadata, held = self._describe(rdt_object, f"ray {obj_id}")
        registration = self._offer(metadata, held)
        with self._lock:
            self._kept[obj_id] = metadata, held, registration
        return metadata

    @staticmethod
    def _offer(metadata: Metadata, held: list[_tmesh.Tensor]) -> Any:
        """To other machines, where a mover is named. What cannot be registered is an object of this machine alone."""
        try:
            mover = movers.mover()
            if mover is None or not held:
                return None
            metadata.mover = mover.name
            metadata.offer, registration = mover.offer(held)
            return mover, registration
        except (Error, ImportError) as error:
            metadata.why = str(error)
            return None

    def recv_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Metadata, communicator_metadata: Any,
                              target_buffers: list[Any] | None = None) -> list[Any]:
        if target_buffers:
            raise _refuse("tensors are received where they are, not into buffers: buffer.copy_(tensor) copies")
        if tensor_transport_metadata.boot != _boot():
            return self._receive(tensor_transport_metadata, self._fetch(obj_id, tensor_transport_metadata))
        try:
            opened = [_tmesh.open(ref) for ref in tensor_transport_metadata.refs]
        except Error as error:
            raise type(error)(error.errno, f"object {obj_id}: {error.strerror}; its source has died or freed it, or is of "
                              "another user or container") from error
        return self._receive(tensor_transport_metadata, opened)

    def _fetch(self, obj_id: str, metadata: Metadata) -> list[_tmesh.Tensor]:
        """The memory of the refs, from another machine into this one's."""
        mover = movers.mover()
        if not metadata.refs:
            return []
        if mover is None or mover.name != metadata.mover or not metadata.offer:
            why = f" ({metadata.why})" if metadata.why else ""
            raise _refuse("this object is in the memory of another machine, and refs are good on their own alone: name a mover "
                          f"to both ends, {movers.VARIABLE}={' or '.join(movers.NAMES)} in the environment of Ray's workers, use a "
                          "transport of Ray, such as tensor_transport=\"nixl\" (pip install nixl), or "
                          f"ray.get(ref, _use_object_store=True){why}")
        stop = threading.Event()
        with self._lock:
            self._stops.setdefault(obj_id, []).append(stop)
        try:
            come = mover.fetch(metadata.offer, [ref["byte_size"] for ref in metadata.refs], stop)
        except Error as error:
            raise type(error)(error.errno, f"object {obj_id}: {error.strerror}; by {mover.name}, from another machine") from error
        finally:
            with self._lock:
                self._stops[obj_id].remove(stop)
                if not self._stops[obj_id]:
                    del self._stops[obj_id]
        return [self._shaped(metadata, number, tensor) for number, tensor in enumerate(come)]

    def _shaped(self, metadata: Metadata, number: int, tensor: _tmesh.Tensor) -> _tmesh.Tensor:
        return tensor

    def send_multiple_tensors(self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError("receivers open refs; nothing is sent")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        with self._lock:
            kept = self._kept.pop(obj_id, None)
        if kept and kept[2]:
            mover, registration = kept[2]
            mover.close(registration)

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """To receive is to open, within a machine: what may be under way is a fetch."""
        with self._lock:
            for stop in self._stops.get(obj_id, ()):
                stop.set()

    def _describe(self, tensors: list[Any], label: str) -> tuple[Metadata, list[_tmesh.Tensor]]:
        raise NotImplementedError

    def _receive(self, metadata: Metadata, opened: list[_tmesh.Tensor]) -> list[Any]:
        raise NotImplementedError


class TorchTransport(_Transport):
    """torch.Tensor."""

    NAME = "TMESH"

    def _describe(self, tensors: list[Any], label: str) -> tuple[Metadata, list[_tmesh.Tensor]]:
        packing = _Packing(tensors, label)
        return Metadata(tensor_meta=[(tensor.shape, tensor.dtype) for tensor in tensors], tensor_device="cpu", boot=_boot(),
                        refs=[ours.ref() for ours in packing.held], places=packing.places), packing.held

    def _receive(self, metadata: Metadata, opened: list[_tmesh.Tensor]) -> list[Any]:
        private = [ours.private() for ours in opened]
        return [self._tensor(private, place, *meta) for place, meta in zip(metadata.places, metadata.tensor_meta)]

    @staticmethod
    def _tensor(private: list[_tmesh.Tensor], place: Place, shape: Any, dtype: Any) -> Any:
        if place.ref is None:
            tensor = torch.empty_strided(shape, place.strides, dtype=dtype)
        else:
            tensor = private[place.ref][place.start:place.end].torch().view(dtype).as_strided(shape, place.strides)
        return tensor.requires_grad_(place.requires_grad)


class TensorTransport(_Transport):
    """tmesh.Tensor."""

    NAME = "TMESH_TENSOR"

    def _describe(self, tensors: list[Any], label: str) -> tuple[Metadata, list[_tmesh.Tensor]]:
        for tensor in tensors:
            if not isinstance(tensor, _tmesh.Tensor):
                raise _refuse("a tensor of PyTorch was returned by a method with tensor_transport=\"tmesh_tensor\": "
                              "tmesh.put(tensor), or tensor_transport=\"tmesh\"")
        return Metadata(tensor_meta=[(tensor.shape, tensor.dtype) for tensor in tensors], tensor_device="cpu", boot=_boot(),
                        refs=[tensor.ref() for tensor in tensors]), tensors

    def _receive(self, metadata: Metadata, opened: list[_tmesh.Tensor]) -> list[Any]:
        return opened

    def _shaped(self, metadata: Metadata, number: int, tensor: _tmesh.Tensor) -> _tmesh.Tensor:
        ref = metadata.refs[number]
        return tensor.view(ref["dtype"]).reshape(*ref["shape"])


# Ray makes them when they are first used, deep within: what it wants of a transport beside what this one has, is said here.
_wanted = ", ".join(sorted(getattr(TorchTransport, "__abstractmethods__", ())))
if _wanted:
    raise ImportError(lacks("ray", VERSION, "ray.md", f"wants of a transport what tmesh.ray has not: {_wanted}"))


def _taken_apart(parameter: Any) -> tuple[Any, bool, dict[str, Any]]:
    return parameter.detach(), parameter.requires_grad, parameter.__dict__


def _put_together(parts: tuple[Any, bool, dict[str, Any]]) -> Any:
    data, requires_grad, state = parts
    parameter = _Parameter(data, requires_grad)
    parameter.__dict__.update(state)
    return parameter


# Ray knows a transport's type and no other: without this a Parameter would go by the object store, and nothing would
# say so. An actor that Ray tells of the transport imports this module and calls nothing in it.
serialization.register_serializer(_Parameter, serializer=_taken_apart, deserializer=_put_together)


class _Subclasses(dict[Any, Any]):
    """How classes of tensors are pickled that have no serializer of their own, as a last table of Ray's pickler."""

    def __missing__(self, kind: Any) -> Any:
        if issubclass(kind, torch.Tensor) and kind is not torch.Tensor:
            return _reduce_subclass
        raise KeyError(kind)


def _reduce_subclass(tensor: Any) -> Any:
    """Like a Parameter it would go by the object store, and nothing would say so; what its class means, only the class
    knows."""
    context = worker.global_worker.get_serialization_context()
    if getattr(context._thread_local, "use_external_transport", False):
        raise _refuse(f"a tensor of the class {type(tensor).__name__} was returned, which Ray's transports do not carry: send "
                      "tensor.as_subclass(torch.Tensor), or return it from a method without tensor_transport")
    return tensor.__reduce_ex__(5)


if not any(isinstance(table, _Subclasses) for table in pickler.dispatch_table.maps):
    pickler.dispatch_table.maps.append(_Subclasses())


def register() -> None:
    """Ray knows the transports "tmesh" and "tmesh_tensor" from now on: in this process and in the actors that it makes.
    Again it does nothing."""
    for transport, kind in (TorchTransport, torch.Tensor), (TensorTransport, _tmesh.Tensor):
        try:
            experimental.register_tensor_transport(transport.NAME, ["cpu"], transport, kind)
        except ValueError as error:
            if "already registered" not in str(error):
                raise
