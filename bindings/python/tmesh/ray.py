# SPDX-License-Identifier: MIT
"""A transport of Ray Direct Transport: tensors between the Ray actors of one machine by tmesh.

    import tmesh.ray
    tmesh.ray.register()                              # before the actors are made

    @ray.remote(enable_tensor_transport=True)
    class Source:
        @ray.method(tensor_transport="tmesh")         # torch.Tensor, torch.nn.Parameter
        def weights(self): ...

        @ray.method(tensor_transport="tmesh_tensor")  # tmesh.Tensor
        def batch(self): ...

Tensors in tmesh's sealed memory are not copied. The sender copies other tensors once, all of an object into one region.
Receivers do not copy: they get copy-on-write views, whose changes no other process sees, or with "tmesh_tensor" read-only
tmesh.Tensors. A receiver's memory stays when the source dies. docs/howto/integrations.md lists the tensors that are
refused.

Every worker must register the transport if Ray restarts actors, or if actors make other actors:

    ray.init(runtime_env={"worker_process_setup_hook": "tmesh.ray.register"})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import functools
import importlib
import threading
from typing import Any

from . import _tmesh, movers
from .errors import Error, UnsupportedError
from .refs import Ref
from .interop import lacks, load, warn_of_another

__all__ = ["register"]

VERSION = "2.60.0"

# Imported by name, since mypy would otherwise read all of PyTorch and Ray if they are installed.
experimental: Any
serialization: Any
worker: Any
_manager: Any
_contexts: Any
try:
    torch: Any = importlib.import_module("torch")
    experimental, serialization, _cloudpickle, worker, _manager, _contexts = load("ray", VERSION, {
        "ray.experimental": "register_tensor_transport TensorTransportManager TensorTransportMetadata CommunicatorMetadata",
        "ray.util.serialization": "register_serializer", "ray.cloudpickle": "CloudPickler",
        "ray._private.worker": "global_worker Worker", "ray.experimental.rdt.rdt_manager": "RDTManager",
        "ray._private.serialization": "SerializationContext"})
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(f"tmesh.ray needs PyTorch and Ray ({problem}): pip install torch ray",
                              name=problem.name) from None
warn_of_another("ray", VERSION)
pickler: Any = _cloudpickle.CloudPickler

_Parameter: Any = torch.nn.Parameter
_STRIDED: Any = torch.strided
# The name in PyTorch 2 and before.
_storage: Any = getattr(torch.Tensor, "untyped_storage", None) or torch.Tensor._storage

# The alignment of copied tensors in their region, for vector instructions.
_ALIGN = 64


def _boot() -> str:
    """Return the machine's boot id. Several of Ray's nodes may be on one machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


@dataclass
class Place:
    """The place of a PyTorch tensor: bytes of refs[ref], and its layout from there."""

    ref: int | None  # None: it has no elements
    start: int
    end: int
    strides: tuple[int, ...]
    requires_grad: bool


@dataclass
class Metadata(experimental.TensorTransportMetadata):  # type: ignore[misc]
    """The metadata that Ray sends to a receiver in place of tensors."""

    boot: str = ""
    refs: list[Ref] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    # For other machines: the name of the engine, its offer of the refs' memory, or the reason why there is none.
    mover: str = ""
    offer: bytes = b""
    why: str = ""


def _refuse(why: str) -> UnsupportedError:
    return UnsupportedError(95, f"the transport \"tmesh\": {why}")


def _check(tensor: Any) -> None:
    """Check a tensor. UnsupportedError: its bytes and layout are not enough to make it in another process."""
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


def _check_ours(tensor: Any) -> None:
    if not isinstance(tensor, _tmesh.Tensor):
        raise _refuse("a tensor of PyTorch was returned or put with tensor_transport=\"tmesh_tensor\": tmesh.put(tensor), or "
                      "tensor_transport=\"tmesh\"")


def _span(tensor: Any) -> int:
    """Return the elements from its first to its last, with gaps."""
    return 1 + sum((int(length) - 1) * int(step) for length, step in zip(tensor.shape, tensor.stride()))


def _sealed(tensor: Any) -> _tmesh.Tensor | None:
    """Return its bytes if they are already in tmesh's sealed memory."""
    found = _tmesh.containing(tensor.data_ptr())
    if found is None or not found[0].sealed:
        return None
    whole, start = found[0].reshape(-1).view("uint8"), found[1]
    end = start + _span(tensor) * tensor.element_size()
    return whole[start:end] if end <= whole.nbytes else None


class _Packing:
    """The tensors of one object. Those in sealed memory stay in place, the others go into one region."""

    def __init__(self, tensors: list[Any], label: str) -> None:
        self.places: list[Place] = []
        self.held: list[_tmesh.Tensor] = []
        # Tensors over the same bytes, such as tied weights, are stored once and share memory in receivers too.
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
        # Its ref's number is known after all tensors were seen.
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
    """The common code for both kinds of tensors. Ray makes one in each process."""

    NAME = ""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The objects with their tensors and a mover's registration.
        self._kept: dict[str, tuple[Metadata, list[_tmesh.Tensor], Any]] = {}
        # Events that cancel an object's running fetches.
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
        # Asking the actor would take a call. An actor without the transport reports this at its first use.
        return True

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        return experimental.CommunicatorMetadata()

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        # Ray asks again if an answer was lost, so the refs that it has must stay valid.
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
        """Offer the memory to other machines, if a mover is named. If registering fails, the object is for this machine
        alone."""
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
        """Fetch the memory of the refs from another machine."""
        mover = movers.mover()
        if not metadata.refs:
            return []
        if mover is None or mover.name != metadata.mover or not metadata.offer:
            why = f" ({metadata.why})" if metadata.why else ""
            raise _refuse("this object is in the memory of another machine, and its ref opens only there. Name a mover to both "
                          f"ends, {movers.VARIABLE}={' or '.join(movers.NAMES)} in the environment of Ray's workers, or use "
                          "a transport of Ray, such as tensor_transport=\"nixl\" (pip install nixl), or "
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
        """Cancel fetches. Within a machine receiving is just an open, so only fetches can be in progress."""
        with self._lock:
            for stop in self._stops.get(obj_id, ()):
                stop.set()

    def _describe(self, tensors: list[Any], label: str) -> tuple[Metadata, list[_tmesh.Tensor]]:
        raise NotImplementedError

    def _receive(self, metadata: Metadata, opened: list[_tmesh.Tensor]) -> list[Any]:
        raise NotImplementedError


class TorchTransport(_Transport):
    """The transport for torch.Tensor."""

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
    """The transport for tmesh.Tensor."""

    NAME = "TMESH_TENSOR"

    def _describe(self, tensors: list[Any], label: str) -> tuple[Metadata, list[_tmesh.Tensor]]:
        for tensor in tensors:
            _check_ours(tensor)
        return Metadata(tensor_meta=[(tensor.shape, tensor.dtype) for tensor in tensors], tensor_device="cpu", boot=_boot(),
                        refs=[tensor.ref() for tensor in tensors]), tensors

    def _receive(self, metadata: Metadata, opened: list[_tmesh.Tensor]) -> list[Any]:
        return opened

    def _shaped(self, metadata: Metadata, number: int, tensor: _tmesh.Tensor) -> _tmesh.Tensor:
        ref = metadata.refs[number]
        return tensor.view(ref["dtype"]).reshape(*ref["shape"])


# Ray makes transports deep inside, at their first use. So check here that this class has all methods that Ray requires.
_wanted = ", ".join(sorted(getattr(TorchTransport, "__abstractmethods__", ())))
if _wanted:
    raise ImportError(lacks("ray", VERSION, f"wants of a transport what tmesh.ray has not: {_wanted}"))


def _taken_apart(parameter: Any) -> tuple[Any, bool, dict[str, Any]]:
    return parameter.detach(), parameter.requires_grad, parameter.__dict__


def _put_together(parts: tuple[Any, bool, dict[str, Any]]) -> Any:
    data, requires_grad, state = parts
    parameter = _Parameter(data, requires_grad)
    parameter.__dict__.update(state)
    return parameter


# Ray handles exactly the type of a transport. Without this serializer a Parameter would pass through the object store,
# without a warning. An actor that Ray notifies of the transport only imports this module.
serialization.register_serializer(_Parameter, serializer=_taken_apart, deserializer=_put_together)


class _Subclasses(dict[Any, Any]):
    """The last table of Ray's pickler, for classes of tensors without a serializer of their own."""

    def __missing__(self, kind: Any) -> Any:
        if issubclass(kind, torch.Tensor) and kind is not torch.Tensor:
            return _reduce_subclass
        raise KeyError(kind)


def _reduce_subclass(tensor: Any) -> Any:
    """Refuse the tensor: like a Parameter it would pass through the object store without a warning, and only its class
    knows what it means."""
    context = worker.global_worker.get_serialization_context()
    if getattr(context._thread_local, "use_external_transport", False):
        raise _refuse(f"a tensor of the class {type(tensor).__name__} was returned, which Ray's transports do not carry: send "
                      "tensor.as_subclass(torch.Tensor), or return it from a method without tensor_transport")
    return tensor.__reduce_ex__(5)


if not any(isinstance(table, _Subclasses) for table in pickler.dispatch_table.maps):
    pickler.dispatch_table.maps.append(_Subclasses())


def _wrap(kind: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Wrap one of Ray's methods in a function, once in a process."""
    given = getattr(kind, name, None)
    if given is None:
        raise ImportError(lacks("ray", VERSION, f"its {kind.__name__} has no {name}"))
    if not hasattr(given, "__tmesh__"):
        ours = functools.wraps(given)(make(given))
        setattr(ours, "__tmesh__", True)
        setattr(kind, name, ours)


_NAMES = TorchTransport.NAME, TensorTransport.NAME


def _checked_transfer(given: Any) -> Any:
    """Refuse an object for an actor whose class has no tensor transport. Ray sends it the first object. If that is not
    made yet, the actor waits forever: the task that would receive it waits behind the one that needs it."""
    def transfer(manager: Any, actor: Any, arguments: Any) -> None:
        if not getattr(actor, "_ray_enable_tensor_transport", True):
            for argument in arguments:
                about = manager.get_rdt_metadata(argument.hex()) if isinstance(argument, _object_ref) else None
                if about is not None and about.tensor_transport_backend in _NAMES:
                    raise _refuse(f"the actor {actor!r} cannot receive the object {argument.hex()}: declare its class with "
                                  "@ray.remote(enable_tensor_transport=True)")
        given(manager, actor, arguments)
    return transfer


def _checked_serialization(given: Any) -> Any:
    """Look for tensors of both kinds, so that one of the wrong kind is refused."""
    def serialize(context: Any, value: Any, transport: str) -> Any:
        if transport in _NAMES:
            for name in _NAMES:
                if name != transport:
                    given(context, None, name)
        serialized, tensors = given(context, value, transport)
        if transport in _NAMES and getattr(_put, "runs", False):
            # Refuse it now: Ray would keep an object that is refused later.
            check = _check if transport == TorchTransport.NAME else _check_ours
            for tensor in tensors:
                check(tensor)
            if not tensors:
                kind = "torch.Tensor" if transport == TorchTransport.NAME else "tmesh.Tensor"
                raise _refuse(f"there is no {kind} in the {type(value).__qualname__} that was put, so no actor could receive it: "
                              "put it without _tensor_transport")
        return serialized, tensors
    return serialize


_put = threading.local()


def _marked_put(given: Any) -> Any:
    """Mark a ray.put(), which must have a tensor. A method may return an object without one."""
    def put_object(*arguments: Any, **named: Any) -> Any:
        _put.runs = True
        try:
            return given(*arguments, **named)
        finally:
            _put.runs = False
    return put_object


_object_ref: Any = importlib.import_module("ray").ObjectRef
_wrap(_manager.RDTManager, "queue_or_trigger_out_of_band_tensor_transfer", _checked_transfer)
_wrap(_contexts.SerializationContext, "serialize_rdt_objects", _checked_serialization)
_wrap(worker.Worker, "put_object", _marked_put)


def register() -> None:
    """Register the transports "tmesh" and "tmesh_tensor" with Ray, in this process and in the actors that it makes. A
    second call has no effect."""
    for transport, kind in (TorchTransport, torch.Tensor), (TensorTransport, _tmesh.Tensor):
        try:
            experimental.register_tensor_transport(transport.NAME, ["cpu"], transport, kind)
        except ValueError as error:
            if "already registered" not in str(error):
                raise
