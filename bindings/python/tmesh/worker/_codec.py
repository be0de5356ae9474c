# SPDX-License-Identifier: MIT
"""Values in messages: JSON, read strictly, and objects in it for values that JSON cannot represent."""

import base64
import binascii
import errno
import json
import math
import sys
from collections.abc import Sequence, Set
from typing import Any

import tmesh
from tmesh import _tmesh, cuda

PACKET_BYTES = 65_536
MESSAGE_BYTES = 16 << 20
DEPTH = 64
# A result has four more levels: the message, a placeholder, its ref, and the ref's shape.
RESULT_DEPTH = DEPTH - 4

PLACEHOLDER = "__tmesh__"
SNAKEPIT = "__snakepit_zero_copy__"

DLPACK_CUDA = 2

FLOATS = {"nan": math.nan, "infinity": math.inf, "neg_infinity": -math.inf}

# The members beside PLACEHOLDER, by kind: required and optional.
MEMBERS = {
    "tensor": ({"ref"}, {"writable"}),
    "bytes": (set(), {"ref", "base64"}),
    "table": (set(), {"ref", "base64"}),
    "array": ({"dtype", "shape", "base64"}, set()),
    "float": ({"value"}, set()),
}


class MalformedError(ValueError):
    """A message or value that the protocol does not allow."""


class TooLargeError(ValueError):
    """A message that is longer than the protocol allows."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedError("an object has a member twice")
    return members


def _integer(digits: str) -> int:
    # A sign and 19 digits hold all permitted numbers, and are quick to read.
    number = int(digits) if len(digits) <= 20 else 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise MalformedError("an integer does not fit 64 bits")
    return number


def _real(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise MalformedError("a number does not fit a double")
    return number


def _constant(name: str) -> None:
    raise MalformedError(f"{name} is not JSON")


# Kept, since json.loads() and json.dumps() would make a new one for each message.
_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_real,
                            parse_constant=_constant)
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def parse(text: bytes) -> dict[str, Any]:
    """Parse one message."""
    try:
        message = _decoder.decode(text.decode("utf-8"))
        # Most messages cannot exceed the depth or have half a surrogate pair, so this check skips them.
        if text.count(b"[") + text.count(b"{") > DEPTH or b"\\u" in text:
            _check_depth(message)
    except UnicodeDecodeError:
        raise MalformedError("a message is not UTF-8") from None
    except RecursionError:
        raise MalformedError("a message is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise MalformedError(f"a message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise MalformedError("a message is not an object")
    return message


def _check_depth(value: Any, depth: int = 0) -> None:
    """Check that the value is not nested too deep, and that its strings are Unicode: an escape can
    make half a surrogate pair, which cannot be sent on."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise MalformedError("a string has half a surrogate pair")
    elif isinstance(value, (list, dict)):
        if depth == DEPTH:
            raise MalformedError(f"a message is nested deeper than {DEPTH} levels")
        if isinstance(value, dict):
            for key in value:
                _check_depth(key, depth + 1)
            value = value.values()
        for item in value:
            _check_depth(item, depth + 1)


def text(message: dict[str, Any]) -> bytes:
    """Return a message as text to send."""
    try:
        data = _encoder.encode(message).encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedError("a string has half a surrogate pair") from None
    if len(data) > MESSAGE_BYTES:
        raise TooLargeError(f"a message of {len(data)} bytes is longer than {MESSAGE_BYTES}: put "
                            "what is large into a tensor")
    return data


def load(value: Any, as_tensors: bool, regions: set[str]) -> Any:
    """Return the value of a received message, with tensors as tmesh.Tensor or NumPy arrays. Their regions are added to
    `regions`."""
    if isinstance(value, list):
        return [load(item, as_tensors, regions) for item in value]
    if not isinstance(value, dict):
        return value
    if PLACEHOLDER in value:
        return _view(_load_placeholder(value), as_tensors, regions)
    if value.get(SNAKEPIT) is True:
        return _view(_load_snakepit(value), as_tensors, regions)
    return {key: load(item, as_tensors, regions) for key, item in value.items()}


def _load_placeholder(value: dict[str, Any]) -> Any:
    kind = value[PLACEHOLDER]
    if not isinstance(kind, str) or kind not in MEMBERS:
        raise MalformedError(f"{PLACEHOLDER} is none of {', '.join(MEMBERS)}")
    needed, allowed = MEMBERS[kind]
    members = value.keys() - {PLACEHOLDER}
    if not needed <= members <= needed | allowed:
        raise MalformedError(f"a placeholder for {kind} has other members than it should")
    if kind == "float":
        if not isinstance(value["value"], str) or value["value"] not in FLOATS:
            raise MalformedError(f"a float is none of {', '.join(FLOATS)}")
        return FLOATS[value["value"]]
    if kind == "array":
        return _load_array(value)
    if kind == "tensor":
        writable = value.get("writable", False)
        if not isinstance(writable, bool):
            raise MalformedError("writable is not a boolean")
        return _open(value["ref"], writable)
    if len(members) != 1:
        raise MalformedError(f"{kind} have either a ref or base64")
    if kind == "table":
        return _load_table(value)
    if "ref" in value:
        return memoryview(_open_host(value["ref"]))
    return _base64(value["base64"])


def _load_snakepit(value: dict[str, Any]) -> Any:
    """Load Snakepit's own description of a shared tensor, whose "ref" is ours."""
    if value.get("kind") == "arrow":
        return _load_table({"ref": value.get("ref")})
    if value.get("kind") not in ("dlpack", "tensor"):
        raise MalformedError(f"{SNAKEPIT} of a kind that is none of dlpack, tensor, arrow")
    tensor = _open(value.get("ref"))
    for name, own in (("dtype", tensor.dtype), ("shape", list(tensor.shape)),
                      ("device", tensor.device), ("bytes", tensor.nbytes)):
        if value.get(name) not in (None, own):
            raise MalformedError(f"{SNAKEPIT}: its {name} is not that of its ref, {own}")
    return tensor


def _open(ref: Any, writable: bool = False) -> Any:
    """Open a tensor, or an array of tmesh.cuda."""
    if _device(ref).startswith("cuda"):
        return cuda.open(ref, writable=writable)
    return _open_host(ref, writable)


def _device(ref: Any) -> str:
    if isinstance(ref, str):
        try:
            ref = json.loads(ref)
        except (ValueError, RecursionError):
            return "cpu"  # a token, or no ref at all
    return str(ref.get("device")) if isinstance(ref, dict) else "cpu"


def _open_host(ref: Any, writable: bool = False) -> tmesh.Tensor:
    if not isinstance(ref, (dict, str)):
        raise MalformedError("a ref is neither an object nor a string")
    tensor = tmesh.open(ref, writable=writable)
    if not isinstance(tensor, tmesh.Tensor):
        raise MalformedError("a ref of a bundle stands where one of a tensor belongs")
    if writable and tensor.sealed:
        raise tmesh.SealedError(errno.EPERM, "a writable tensor was promised, and it is sealed")
    return tensor


def _load_table(value: dict[str, Any]) -> Any:
    from tmesh import arrow  # needs pyarrow, which is optional

    if "ref" in value:
        return arrow.open_table(_open_host(value["ref"]))
    return arrow.open_table(tmesh.put(_base64(value["base64"])))


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise MalformedError("base64 is malformed") from None


def _load_array(value: dict[str, Any]) -> tmesh.Tensor:
    data = _base64(value["base64"])
    shape = value["shape"]
    if not isinstance(value["dtype"], str) or not isinstance(shape, list):
        raise MalformedError("an array has a dtype by name and a shape as a list")
    array = tmesh.empty(shape, value["dtype"])
    if array.nbytes != len(data):
        raise MalformedError(f"an array of {array.nbytes} bytes comes with {len(data)}")
    if data:
        memoryview(array.reshape(-1).view("uint8"))[:] = data
    return array


def _view(tensor: Any, as_tensors: bool, regions: set[str]) -> Any:
    if isinstance(tensor, tmesh.Tensor):
        regions.add(tensor.id)
    if as_tensors or not isinstance(tensor, tmesh.Tensor) or "numpy" not in sys.modules:
        return tensor
    try:
        return tensor.numpy()
    except tmesh.UnsupportedError:
        return tensor


def _shown(value: Any) -> tuple[int, str, tuple[int, ...], tuple[int, ...]] | None:
    """Return the place of an array's or a PyTorch tensor's elements: address, dtype, shape, and strides in elements."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy and isinstance(value, numpy.ndarray):
        if not value.dtype.isnative or value.dtype.itemsize == 0 or any(step % value.itemsize for step in value.strides):
            return None
        steps = tuple(step // value.itemsize for step in value.strides)
        return value.__array_interface__["data"][0], value.dtype.name, value.shape, steps
    if torch and isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout is torch.strided \
            and not (value.is_conj() or value.is_neg() or value.is_quantized):
        return value.data_ptr(), str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride())
    return None


class Dump:
    """Prepares a value for sending. `tensors` are those that it refers to and must be kept. `regions` are those of the
    call's arguments: values in them go back in place, sealed or not. Other values go back in place only if sealed,
    since an operation may write to its own memory again. Copies of arrays go to `arena`, if there is one, and are not
    sealed. `copied` is the number of bytes that were copied into shared memory."""

    def __init__(self, threshold_bytes: int, inline: bool, regions: Set[str] = frozenset(), arena: tmesh.Arena | None = None):
        self.threshold_bytes = threshold_bytes
        self.inline = inline
        self.regions = regions
        self.arena = arena
        self.tensors: list[Any] = []
        self.copied = 0

    def value(self, value: Any, depth: int = 0) -> Any:
        if depth > RESULT_DEPTH:
            raise MalformedError(f"a result is nested deeper than {RESULT_DEPTH} levels")
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 63:
                raise MalformedError("an integer of the result does not fit 64 bits")
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else _float(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.bytes(value)
        if isinstance(value, (list, tuple)):
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, dict):
            if value.get(SNAKEPIT) is True and _is_shared(value.get("ref")):
                value = {**value, "ref": self.keep(value["ref"])}
            return {_key(key): self.value(item, depth + 1) for key, item in value.items()}
        numpy = sys.modules.get("numpy")
        if numpy and isinstance(value, numpy.generic):
            return self.value(_scalar(value), depth)
        if _is_on_gpu(value):
            # Send it even if it is not shared: there is no other way.
            return {PLACEHOLDER: "tensor", "ref": self.keep(value)}
        if isinstance(value, tmesh.Tensor) or hasattr(value, "__dlpack__"):
            return self.tensor(value)
        if hasattr(value, "__arrow_c_stream__"):
            return self.table(value)
        raise MalformedError(f"a result has something of type {type(value).__qualname__!r} in it, which cannot be sent")

    def bytes(self, data: bytes | bytearray | memoryview) -> dict[str, Any]:
        size = memoryview(data).nbytes
        if self.inline or size <= self.threshold_bytes:
            return {PLACEHOLDER: "bytes", "base64": base64.b64encode(data).decode()}
        if isinstance(data, memoryview):
            whole = data.obj
            if isinstance(whole, tmesh.Tensor) and whole.sealed and whole.nbytes == size and data.c_contiguous:
                return {PLACEHOLDER: "bytes", "ref": self.keep(whole.reshape(-1).view("uint8"))}
            data = data.cast("B") if data.c_contiguous else data.tobytes()
        self.copied += size
        return {PLACEHOLDER: "bytes", "ref": self.keep(tmesh.put(data))}

    def tensor(self, value: Any) -> dict[str, Any]:
        if self.inline:
            tensor = tmesh.put(value, seal=False)
            data = bytes(tensor.reshape(-1).view("uint8")) if tensor.nbytes else b""
            return {PLACEHOLDER: "array", "dtype": tensor.dtype, "shape": list(tensor.shape),
                    "base64": base64.b64encode(data).decode()}
        if not isinstance(value, tmesh.Tensor):
            there = self.there(value)
            value = self.copy(value) if there is None else there
        return {PLACEHOLDER: "tensor", "ref": self.keep(value)}

    def copy(self, value: Any) -> tmesh.Tensor:
        tensor = tmesh.put(value) if self.arena is None else tmesh.put(value, seal=False, arena=self.arena)
        self.copied += tensor.nbytes
        return tensor

    def there(self, value: Any) -> tmesh.Tensor | None:
        """Return the tensor of an array whose bytes may go back without a copy."""
        shown = _shown(value)
        found = shown and _tmesh.containing(shown[0])
        if not shown or not found:
            return None
        whole, before = found
        if not whole.sealed and whole.id not in self.regions:
            return None
        try:
            part = _tmesh.part(whole, *shown[1:], _tmesh.layout(whole)[3] + before)
            # Hold it read-only, so that a caller who has its result may seal memory that the operation wrote to.
            return tmesh.open(part.ref()) if whole.writable else part
        except (tmesh.Error, TypeError):
            return None

    def table(self, value: Any) -> dict[str, Any]:
        from tmesh import arrow

        tensor = arrow.write_table(value, label="result")
        if self.inline:
            return {PLACEHOLDER: "table", "base64": base64.b64encode(tensor).decode()}
        self.copied += tensor.nbytes
        return {PLACEHOLDER: "table", "ref": self.keep(tensor)}

    def keep(self, tensor: Any) -> Any:
        self.tensors.append(tensor)
        return tensor.ref() if isinstance(tensor, tmesh.Tensor) else cuda.share(tensor)


def _is_on_gpu(value: Any) -> bool:
    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == DLPACK_CUDA


def _is_shared(value: Any) -> bool:
    return isinstance(value, tmesh.Tensor) or _is_on_gpu(value)


def _float(value: float) -> dict[str, Any]:
    name = "nan" if math.isnan(value) else "infinity" if value > 0 else "neg_infinity"
    return {PLACEHOLDER: "float", "value": name}


def _scalar(value: Any) -> Any:
    plain = value.item()
    if not isinstance(plain, (bool, int, float, str, bytes)):
        raise MalformedError(f"a result has something of type {type(value).__name__!r} in it, which cannot be sent")
    return plain


def _key(key: Any) -> str:
    if not isinstance(key, str) or key == PLACEHOLDER:
        raise MalformedError(f"a result has the key {key!r}: keys are strings, and "
                             f"{PLACEHOLDER} is reserved")
    return key


def arguments(payload: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return positional and keyword arguments from a list, an object, or an object of both."""
    if isinstance(payload, list):
        return payload, {}
    args, kwargs = payload.get("args", []), payload.get("kwargs", {})
    if payload and payload.keys() <= {"args", "kwargs"} and isinstance(args, list) \
            and isinstance(kwargs, dict):
        return args, kwargs
    return [], payload
