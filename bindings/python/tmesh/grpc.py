# SPDX-License-Identifier: MIT
# mypy: ignore-errors
# The messages are made of the .proto when this is imported: no type checker knows them.
"""Tensors handed over by gRPC: refs and leases travel, the elements never do.

    # the process that has the tensors
    server = tmesh.grpc.Server("unix:/run/user/1000/weights.sock")
    server.publish("weights", tmesh.put(array))

    # another process of the same machine and user
    client = tmesh.grpc.Client("unix:/run/user/1000/weights.sock")
    with client.get("weights", lease=30.0) as leased:
        leased.tensor.numpy()

A lease is the server's promise to hold a tensor. It ends when its time is over, when the client releases it, or when
the server takes the tensor back or ends. The client renews its leases by itself. A process that has opened a tensor
keeps the memory beyond the lease, as everywhere in tmesh; only the server's hold ends with it.

Needs grpcio and grpcio-tools: pip install grpcio grpcio-tools. The messages are in shared_tensor.proto, beside this
file. Clients that can reach the server's address get tokens, which open memory only for the same user. So listen on a
Unix socket, or set credentials. All methods may be called from several threads.
"""

import contextlib
import errno
import fcntl
import heapq
import json
import os
import queue
import re
import secrets
import socket
import threading
import time
from concurrent import futures

try:
    import grpc
    messages, services = grpc.protos_and_services("tmesh/shared_tensor.proto")
except (ImportError, NotImplementedError) as error:
    raise ImportError("tmesh.grpc needs grpcio and grpcio-tools: pip install grpcio grpcio-tools") from error

from . import _tmesh
from .errors import AccessError, BusyError, Error, NotFoundError, PeerTimeoutError

__all__ = ["Client", "LeasedTensor", "Server"]

_CLIENT = re.compile(r"[0-9a-f]{32}")
_REASONS = {messages.LAPSED: "lapsed", messages.RELEASED: "released", messages.WITHDRAWN: "withdrawn",
            messages.STOPPED: "stopped"}


def _description(ref):
    """A ref as a message, without a lease."""
    return messages.SharedTensor(id=ref["id"], token=ref["token"], offset=ref["offset"], length=ref["byte_size"],
                                 dtype=ref["dtype"], shape=ref["shape"], strides=ref["strides"],
                                 device=ref["device"])


def _ref(message):
    """Return the ref of a message; tmesh.open() checks its numbers."""
    return json.dumps({"v": 1, "id": message.id, "token": message.token, "offset": message.offset,
                       "byte_size": message.length, "dtype": message.dtype, "shape": list(message.shape),
                       "strides": list(message.strides), "device": message.device})


class _Lease:
    def __init__(self, name, client, tensor, duration):
        self.id = secrets.token_hex(16)
        self.name, self.client, self.tensor, self.duration = name, client, tensor, duration
        self.deadline = time.monotonic() + duration


class _Refused(Exception):
    def __init__(self, code, why):
        super().__init__(why)
        self.code = code


class _Leases:
    """Published tensors and the leases on them: the service without gRPC."""

    def __init__(self, max_lease, max_leases):
        self.max_lease, self.max_leases = max_lease, max_leases
        self.changed = threading.Condition()
        self.published = {}     # name: (tensor, writable)
        self.leases = {}        # id: _Lease
        self.deadlines = []     # heap of (deadline, id); a renewed lease is in it again
        self.watchers = {}      # client: queue
        self.over = False
        self.thread = threading.Thread(target=self._lapse, name="tmesh.grpc leases", daemon=True)
        self.thread.start()

    def grant(self, name, client, duration):
        if not _CLIENT.fullmatch(client):
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "client is not 32 hexadecimal digits")
        if not 0 < duration <= self.max_lease:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT,
                           f"a lease takes more than 0 and at most {self.max_lease:g} s, not {duration:g}")
        with self.changed:
            if self.over:
                raise _Refused(grpc.StatusCode.UNAVAILABLE, "the server ends")
            if name not in self.published:
                raise _Refused(grpc.StatusCode.NOT_FOUND, f"no tensor is published as {name!r}")
            if len(self.leases) >= self.max_leases:
                raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self.max_leases} leases are given already")
            tensor, writable = self.published[name]
            lease = _Lease(name, client, tensor, duration)
            ref = tensor.ref(writable=writable)
            self.leases[lease.id] = lease
            heapq.heappush(self.deadlines, (lease.deadline, lease.id))
            self.changed.notify_all()
        return lease, ref

    def renew(self, lease_id):
        with self.changed:
            lease = self._of(lease_id)
            lease.deadline = time.monotonic() + lease.duration
            return lease

    def release(self, lease_id):
        with self.changed:
            self._end(self._of(lease_id), messages.RELEASED)

    def withdraw(self, name):
        with self.changed:
            if name not in self.published:
                raise NotFoundError(errno.ENOENT, f"no tensor is published as {name!r}")
            del self.published[name]
            for lease in [lease for lease in self.leases.values() if lease.name == name]:
                self._end(lease, messages.WITHDRAWN)

    def stop(self):
        with self.changed:
            self.over = True
            self.published.clear()
            for lease in [*self.leases.values()]:
                self._end(lease, messages.STOPPED)
            for ends in self.watchers.values():
                ends.put(None)
            self.changed.notify_all()
        self.thread.join()

    def watch(self, client):
        """Return a queue of (lease id, reason), with None at the end."""
        if not _CLIENT.fullmatch(client):
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "client is not 32 hexadecimal digits")
        with self.changed:
            if self.over:
                raise _Refused(grpc.StatusCode.UNAVAILABLE, "the server ends")
            if client in self.watchers:
                raise _Refused(grpc.StatusCode.ALREADY_EXISTS, "this client watches already")
            ends = self.watchers[client] = queue.SimpleQueue()
            return ends

    def unwatch(self, client):
        with self.changed:
            self.watchers.pop(client, None)

    def _of(self, lease_id):
        lease = self.leases.get(lease_id)
        if lease is None:
            raise _Refused(grpc.StatusCode.NOT_FOUND, "the lease has ended")
        return lease

    def _end(self, lease, reason):
        """End a lease; the caller has the lock. The last lease or publication of a tensor frees it."""
        del self.leases[lease.id]
        if ends := self.watchers.get(lease.client):
            ends.put((lease.id, reason))

    def _lapse(self):
        with self.changed:
            while not self.over:
                now = time.monotonic()
                while self.deadlines and self.deadlines[0][0] <= now:
                    _, lease_id = heapq.heappop(self.deadlines)
                    lease = self.leases.get(lease_id)
                    if lease and lease.deadline > now:
                        heapq.heappush(self.deadlines, (lease.deadline, lease_id))
                    elif lease:
                        self._end(lease, messages.LAPSED)
                    lease = None    # keep no reference while the thread waits
                self.changed.wait(self.deadlines[0][0] - now if self.deadlines else None)


class _Servicer(services.SharedTensorsServicer):
    def __init__(self, leases, watchers):
        self.leases = leases
        # Each stream uses one of the server's threads. Leave some for calls.
        self.room = threading.BoundedSemaphore(watchers)

    @staticmethod
    def _lease(lease):
        return messages.Lease(id=lease.id, duration_ms=round(lease.duration * 1000))

    def Get(self, request, context):
        try:
            lease, ref = self.leases.grant(request.name, request.client, request.duration_ms / 1000)
        except _Refused as refused:
            context.abort(refused.code, str(refused))
        except Error as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        message = _description(ref)
        message.lease.CopyFrom(self._lease(lease))
        return message

    def Renew(self, request, context):
        try:
            return self._lease(self.leases.renew(request.lease_id))
        except _Refused as refused:
            context.abort(refused.code, str(refused))

    def Release(self, request, context):
        try:
            self.leases.release(request.lease_id)
        except _Refused as refused:
            context.abort(refused.code, str(refused))
        return messages.ReleaseReply()

    def Watch(self, request, context):
        if not self.room.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients watch already")
        try:
            try:
                ends = self.leases.watch(request.client)
            except _Refused as refused:
                context.abort(refused.code, str(refused))
            try:
                # Confirm the registration to the client, so that it does not miss an end.
                context.send_initial_metadata(())
                context.add_callback(lambda: ends.put(None))
                while (end := ends.get()) is not None:
                    yield messages.LeaseEnd(lease_id=end[0], reason=end[1])
            finally:
                self.leases.unwatch(request.client)
        finally:
            self.room.release()


class _Claim:
    """A claim on a Unix socket's path, for one server at a time. gRPC would take the path from a running server. At its
    end it would remove any file there. So a lock beside the socket refuses the second server. The lock ends with its
    process."""

    _mine = set()   # a process's own locks do not refuse it
    _lock = threading.Lock()

    def __init__(self, path):
        self.path = os.path.realpath(path)
        with self._lock:
            if self.path in self._mine:
                raise self._busy("this process")
            self._file = self._locked()
            self._mine.add(self.path)
        try:
            self._check_nobody()
        except BaseException:
            self.end()
            raise

    def _locked(self):
        beside = f"{self.path}.lock"
        while True:
            file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The last owner may have removed the file in between.
                if os.path.samestat(os.fstat(file), os.stat(beside)):
                    return file
            except FileNotFoundError:
                pass
            except (BlockingIOError, PermissionError):
                os.close(file)
                raise self._busy("another tmesh.grpc.Server") from None
            os.close(file)

    def _check_nobody(self):
        """Check for other servers too: those that are not tmesh's take no lock."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            reached = probe.connect_ex(self.path)
        if reached in (0, errno.EAGAIN):
            raise self._busy("another server")

    def _busy(self, who):
        return BusyError(errno.EBUSY, f"cannot serve unix:{self.path}: {who} serves it; stop that one first, or use another path")

    def end(self):
        with self._lock:
            self._mine.discard(self.path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.path}.lock")
            os.close(self._file)


class Server:
    """Gives clients tensors by name, under leases.

    address: as in grpc, "unix:PATH" or "HOST:PORT"; None: add the service to a server of one's own by add_to().
    max_lease: the longest lease, in seconds. max_leases: of all clients together. max_clients: how many may watch the
    ends of their leases at once. credentials: grpc's, of the server.

    BusyError: another server uses the address. Stop that one first: clients of two servers would get different tensors.
    """

    def __init__(self, address=None, *, max_lease=300.0, max_leases=10_000, max_clients=64, credentials=None):
        self._leases = _Leases(max_lease, max_leases)
        self._servicer = _Servicer(self._leases, max_clients)
        self._server = None
        self._claim = None
        self.address = address
        if address is not None:
            try:
                self._serve(address, max_clients, credentials)
            except BaseException:
                self.stop(0)
                raise

    def _serve(self, address, max_clients, credentials):
        if address.startswith("unix:"):
            self._claim = _Claim(address.removeprefix("unix:").removeprefix("//"))
        # Without this, Linux lets several processes share a port, and each client reaches one of them.
        self._server = grpc.server(futures.ThreadPoolExecutor(max_clients + 8, "tmesh.grpc"), options=[("grpc.so_reuseport", 0)])
        self.add_to(self._server)
        try:
            port = (self._server.add_secure_port(address, credentials) if credentials
                    else self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise BusyError(errno.EBUSY, f"cannot serve {address}: another server serves it, or it is no address of this machine "
                            f"({error})") from error
        if address.endswith(":0"):
            self.address = f"{address[:-2]}:{port}"
        self._server.start()

    def add_to(self, server):
        """Add the service to a grpc.Server, which needs a thread for each client that watches."""
        services.add_SharedTensorsServicer_to_server(self._servicer, server)

    def publish(self, name, tensor, *, writable=False):
        """Publish a tensor under name, to read or also to write. It replaces an earlier one of that name
        for new requests; leases on the old one stay."""
        if not isinstance(tensor, _tmesh.Tensor):
            raise TypeError(f"publish() takes a tmesh.Tensor, not {type(tensor).__name__}: tmesh.put() makes one")
        if writable and not tensor.writable:
            raise AccessError(errno.EACCES, f"{name!r} cannot be published to write: the tensor is read-only here")
        with self._leases.changed:
            self._leases.published[name] = (tensor, writable)

    def withdraw(self, name):
        """Withdraw the tensor and end the leases on it. Clients get a notice."""
        self._leases.withdraw(name)

    @property
    def leases(self):
        """The number of leases now."""
        return len(self._leases.leases)

    def stop(self, grace=1.0):
        """End all leases, notify their clients, and stop."""
        self._leases.stop()
        if self._server:
            self._server.stop(grace).wait()
        if self._claim:
            # gRPC has already removed the socket.
            self._claim.end()
            self._claim = None

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.stop()


class LeasedTensor:
    """A tensor and the lease on it. ended: a threading.Event. reason, once it is set: "lapsed", "released",
    "withdrawn", "stopped", or "unreachable" if the server did not answer in time."""

    def __init__(self, client, tensor, lease_id, duration):
        self._client, self._id, self._duration = client, lease_id, duration
        self._renew_at = time.monotonic() + duration / 3
        self._good_until = time.monotonic() + duration
        self.tensor = tensor
        self.ended = threading.Event()
        self.reason = None
        self._on_end = []
        self._lock = threading.Lock()

    def on_end(self, call):
        """Call call(self) when the lease ends, in a thread of the client; at once if it has ended. Its exceptions go to
        threading.excepthook, and end nothing else."""
        with self._lock:
            if not self.ended.is_set():
                self._on_end.append(call)
                return
        call(self)

    def release(self):
        """End the lease now. The tensor stays open; release() it when it is not needed."""
        self._client._release(self)

    def _end(self, reason):
        with self._lock:
            if self.ended.is_set():
                return
            self.reason = reason
            self.ended.set()
            calls = self._on_end
        for call in calls:
            # Catch exceptions: the thread has other leases to renew, and their callbacks to call.
            try:
                call(self)
            except Exception as error:
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.release()

    def __repr__(self):
        return f"<tmesh.grpc.LeasedTensor {self.tensor!r}, {self.reason or 'leased'}>"


class Client:
    """Gets tensors from a Server. address: as for the server, or a grpc.Channel. timeout: of each call, in seconds. A
    thread of the client renews leases until they are released."""

    def __init__(self, address, *, timeout=5.0, credentials=None):
        self._own = isinstance(address, str)
        self._channel = (address if not self._own else grpc.secure_channel(address, credentials) if credentials
                         else grpc.insecure_channel(address))
        self._stub = services.SharedTensorsStub(self._channel)
        self._timeout = timeout
        self._name = secrets.token_hex(16)
        self._leased = {}
        self._changed = threading.Condition()
        self._closed = False
        self._watch = None
        self._threads = None

    def get(self, name, *, lease=30.0, writable=False):
        """Open the tensor published under name, with a lease of so many seconds."""
        self._start()
        request = messages.GetRequest(name=name, duration_ms=round(lease * 1000), client=self._name)
        answer = self._call(self._stub.Get, request)
        try:
            tensor = _tmesh.open(_ref(answer), writable)
        except BaseException:
            with contextlib.suppress(grpc.RpcError):    # the lease then lapses by itself
                self._stub.Release(messages.ReleaseRequest(lease_id=answer.lease.id), timeout=self._timeout)
            raise
        leased = LeasedTensor(self, tensor, answer.lease.id, answer.lease.duration_ms / 1000)
        with self._changed:
            self._leased[leased._id] = leased
            self._changed.notify_all()
        return leased

    def close(self):
        """Release all leases and end. Open tensors stay open."""
        with self._changed:
            self._closed = True
            leased = [*self._leased.values()]
            self._changed.notify_all()
        for each in leased:
            try:
                each.release()
            except Error:
                each._end("unreachable")
        if self._watch:
            self._watch.cancel()
        for thread in self._threads or ():
            if thread is not threading.current_thread():
                thread.join()
        if self._own:
            self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()

    def _start(self):
        with self._changed:
            if self._closed:
                raise ValueError("the client is closed")
            if self._threads:
                return
            self._watch = self._stub.Watch(messages.WatchRequest(client=self._name))
            self._threads = [threading.Thread(target=work, name="tmesh.grpc client", daemon=True)
                             for work in (self._listen, self._keep)]
            for thread in self._threads:
                thread.start()

    def _call(self, call, request):
        try:
            return call(request, timeout=self._timeout)
        except grpc.RpcError as error:
            code = error.code()
            why = f"{error.details()} ({code.name})"
            if code is grpc.StatusCode.NOT_FOUND:
                raise NotFoundError(errno.ENOENT, why) from None
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise PeerTimeoutError(errno.ETIMEDOUT, why) from None
            if code is grpc.StatusCode.INVALID_ARGUMENT:
                raise ValueError(error.details()) from None
            raise Error(errno.EIO, why) from None

    def _release(self, leased):
        with self._changed:
            known = self._leased.pop(leased._id, None)
        if known is None:
            return
        try:
            self._call(self._stub.Release, messages.ReleaseRequest(lease_id=leased._id))
        except NotFoundError:
            pass    # it has ended already, which the stream reports
        leased._end("released")

    def _listen(self):
        """Receive the ends of leases."""
        try:
            for end in self._watch:
                with self._changed:
                    leased = self._leased.pop(end.lease_id, None)
                if leased:
                    leased._end(_REASONS.get(end.reason, "lapsed"))
                leased = None   # keep no reference while the thread waits
        except grpc.RpcError:
            pass    # without the stream, renewing still works and shows which leases have ended

    def _keep(self):
        """Renew each lease after a third of its time. A lease that cannot be renewed in time has ended."""
        while True:
            with self._changed:
                if self._closed:
                    return
                due = min((each._renew_at for each in self._leased.values()), default=None)
                now = time.monotonic()
                if due is None or due > now:
                    self._changed.wait(None if due is None else due - now)
                    continue
                ready = [each for each in self._leased.values() if each._renew_at <= now]
            while ready:
                self._renew(ready.pop())

    def _renew(self, leased):
        try:
            self._stub.Renew(messages.RenewRequest(lease_id=leased._id),
                             timeout=min(self._timeout, leased._duration / 3))
        except grpc.RpcError as error:
            gone = error.code() is grpc.StatusCode.NOT_FOUND
            now = time.monotonic()
            if not gone and now < leased._good_until:
                leased._renew_at = now + leased._duration / 10
                return
            with self._changed:
                known = self._leased.pop(leased._id, None)
            if known:
                leased._end("lapsed" if gone else "unreachable")
            return
        now = time.monotonic()
        leased._renew_at, leased._good_until = now + leased._duration / 3, now + leased._duration
