# SPDX-License-Identifier: MIT
"""A HostWeightStore of vLLM-Omni: finished weights in memory that no process owns (tmesh.artifacts).

    runtime = HostWeightRuntime(config, Store())

vLLM-Omni's own store has files, which each process maps. This one has sealed regions in the keeper, so nothing is written to a disk. An
artifact goes when the keeper needs room, or by `tmeshctl drop`; config.capacity does not count.

It has never run in an engine. It was tested with vLLM-Omni's own runtime, beside its store of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import hashlib
import json
import time
from types import TracebackType
from typing import Any
import uuid

from . import artifacts
from .errors import Error, InvalidError, LimitError
from .interop import load, warn_of_another

__all__ = ["Store"]

VERSION = "0.30.0"

_omni: Any
_manifest: Any
_torch: Any
try:
    _omni, _manifest, _torch = load("vllm-omni", VERSION, {
        "vllm_omni.host_weight_runtime": "CoordinationScope FailureCode FileManifestEntry HostWeightFailure HostWeightLease LeaseProvenance "
                                         "MappedHostRegion ResolutionStage StoreResult StoreStatus TensorManifestEntry ValidationLevel WeightManifest",
        "vllm_omni.host_weight_runtime.identity": "canonical_json", "torch": "empty"})
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(f"tmesh.vllm_omni needs vLLM-Omni ({problem}): pip install vllm-omni=={VERSION}", name=problem.name) from None
warn_of_another("vllm-omni", VERSION)


class _Late(Exception):
    """The deadline has passed."""


class _File:
    """A file of tensors that a producer fills. Its bytes are ordinary memory until all are there."""

    def __init__(self, writer: _Writer, name: str, specs: tuple[Any, ...]) -> None:
        self.name = name
        self.specs = {spec.name: spec for spec in specs}
        self.tensors = {spec.name: _torch.empty(spec.shape, dtype=spec.dtype, device="cpu") for spec in specs}
        self._missing = {spec.name: {*range(spec.shape[0] if spec.shape else 1)} for spec in specs}
        self._writer = writer
        if not specs or len(self.specs) != len(specs):
            raise InvalidError(22, f"tmesh.vllm_omni: the file {name!r} has no tensors, or two of one name")

    def write_tensor(self, name: str, tensor: Any) -> None:
        self._write(name, 0, tensor if tensor.dim() else tensor.reshape(1))

    def write_rows(self, name: str, start_row: int, tensor: Any) -> None:
        self._write(name, start_row, tensor if tensor.dim() else tensor.reshape(1))

    def _write(self, name: str, start: int, tensor: Any) -> None:
        if name not in self.tensors:
            raise InvalidError(22, f"tmesh.vllm_omni: the tensor {name!r} was not declared in {self.name!r}")
        target = self.tensors[name] if self.tensors[name].dim() else self.tensors[name].reshape(1)
        rows = {*range(start, start + tensor.shape[0])}
        if tensor.dtype != target.dtype or tensor.shape[1:] != target.shape[1:] or not rows <= self._missing[name]:
            raise InvalidError(22, f"tmesh.vllm_omni: rows {start} to {start + tensor.shape[0]} of {tensor.dtype} {tuple(tensor.shape)} do not fit into "
                               f"{name!r} of {target.dtype} {tuple(target.shape)}, or were written before")
        target[start:start + tensor.shape[0]] = tensor
        self._missing[name] -= rows

    def close(self) -> None:
        missing = [name for name, rows in self._missing.items() if rows]
        if missing:
            raise InvalidError(22, f"tmesh.vllm_omni: the file {self.name!r} was closed without all rows of {missing[:3]}")
        self._writer.files[self.name] = self

    def __enter__(self) -> _File:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()


def _bytes(tensor: Any) -> Any:
    return memoryview(tensor.contiguous().reshape(-1).view(_torch.uint8).numpy()) if tensor.numel() else b""


class _Writer:
    """An ArtifactWriter. files: those that were closed."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self._opened: set[str] = set()

    def open_tensor_file(self, relative_name: str, specs: tuple[Any, ...], *, ordered: bool = False) -> _File:
        if relative_name in self._opened:
            raise InvalidError(22, f"tmesh.vllm_omni: the file {relative_name!r} was opened twice")
        self._opened.add(relative_name)
        return _File(self, relative_name, specs)

    def finished(self, identity: Any, metadata: Any) -> tuple[dict[str, Any], Any]:
        """Return the tensors and their manifest. InvalidError: something is missing."""
        if not self.files or self.files.keys() != self._opened:
            raise InvalidError(22, "tmesh.vllm_omni: the producer wrote no file, or did not close one")
        if (metadata.producer_schema, metadata.restorer_schema) != (identity.producer.manifest_schema, identity.producer.restorer_schema):
            raise InvalidError(22, "tmesh.vllm_omni: the producer's schemas are not those of the identity")
        tensors: dict[str, Any] = {}
        entries, files = [], []
        for name, file in sorted(self.files.items()):
            whole = hashlib.sha256()
            for key, tensor in sorted(file.tensors.items()):
                if key in tensors:
                    raise InvalidError(22, f"tmesh.vllm_omni: two files have a tensor {key!r}")
                tensors[key] = tensor
                whole.update(_bytes(tensor))
                spec = file.specs[key]
                entries.append(_omni.TensorManifestEntry(
                    name=key, kind=spec.kind, role=spec.role, file_name=name, storage_key=key, shape=spec.shape, dtype=str(spec.dtype),
                    stride=tuple(tensor.stride()), nbytes=spec.nbytes, sha256=hashlib.sha256(_bytes(tensor)).hexdigest()))
            files.append(_omni.FileManifestEntry(name, sum(spec.nbytes for spec in file.specs.values()), whole.hexdigest()))
        entries.sort(key=lambda entry: entry.name)
        content = hashlib.sha256()
        for entry in entries:
            content.update(_manifest.canonical_json(entry.semantic_dict()))
        return tensors, _omni.WeightManifest(
            schema_version=1, artifact_key=identity.key, identity=identity, producer_schema=metadata.producer_schema,
            restorer_schema=metadata.restorer_schema, tensors=tuple(entries), files=tuple(files), artifact_content_sha256=content.hexdigest(),
            format_metadata=metadata.format_metadata)


def _fails(stage: str, code: str, words: str, *, retryable: bool = False, status: str = "FAILED") -> Any:
    return _omni.StoreResult(_omni.StoreStatus[status], failure=_omni.HostWeightFailure(
        _omni.ResolutionStage[stage], _omni.FailureCode[code], retryable, words))


def _fingerprint(identity: Any) -> dict[str, Any]:
    return {"engine": "vllm-omni", "form": 1, "identity": json.loads(identity.canonical_bytes)}


class Store:
    """The store. Processes of a user share it, and what it keeps outlives them. progress: called with the bytes that are kept, and all."""

    def __init__(self, progress: Callable[[int, int], object] | None = None) -> None:
        self._progress = progress

    def lookup(self, identity: Any, *, validation: Any, deadline: float | None = None) -> Any:
        if validation is _omni.ValidationLevel.FS_VERITY:
            return _fails("VALIDATION", "UNSUPPORTED", "tmesh.vllm_omni: regions have no fs-verity: use full_checksum")
        artifact = artifacts.find(_fingerprint(identity))
        return self._leased(artifact, identity, validation, "HIT") if artifact else _omni.StoreResult(_omni.StoreStatus.MISS)

    def get_or_build(self, request: Any, producer: Any, *, validation: Any, deadline: float) -> Any:
        identity, spec = request.identity, producer.spec
        if validation is _omni.ValidationLevel.FS_VERITY:
            return self.lookup(identity, validation=validation)
        if spec.coordination_scope is not _omni.CoordinationScope.SINGLE_PROCESS:
            return _fails("PRODUCTION", "PRODUCER_UNSUPPORTED", f"tmesh.vllm_omni: {spec.coordination_scope.value} producers have no coordination here")
        if [output.key for output in spec.outputs] != [identity.key]:
            return _fails("PRODUCTION", "PRODUCER_UNAVAILABLE", "tmesh.vllm_omni: the producer does not declare exactly this artifact")

        def make(tell: Callable[[int, int], None]) -> artifacts.Artifact:
            writer = _Writer()
            tensors, manifest = writer.finished(identity, producer.produce(writer))
            return artifacts.keep(_fingerprint(identity), tensors, extra={"manifest": manifest.to_dict(), "publication": uuid.uuid4().hex}, progress=tell)

        def progress(done: int, total: int, other: bool) -> None:
            if other and time.monotonic() > deadline:
                raise _Late
            if self._progress and not other:
                self._progress(done, total)

        try:
            obtained = artifacts.obtain(_fingerprint(identity), make, timeout=1e9, progress=progress)
        except _Late:
            return _fails("PRODUCTION", "ACTIVE_BUILD_TIMEOUT", "tmesh.vllm_omni: another process still builds the artifact: wait longer", retryable=True,
                          status="TIMEOUT")
        except LimitError as problem:
            return _fails("CAPACITY", "INSUFFICIENT_CAPACITY", f"tmesh.vllm_omni: {problem.strerror or problem}", retryable=True)
        except Error as problem:
            return _fails("PRODUCTION", "PRODUCER_FAILED", f"{problem.strerror or problem}")
        except Exception as problem:  # code of any producer
            return _fails("PRODUCTION", "PRODUCER_FAILED", f"tmesh.vllm_omni: the producer failed: {problem}")
        return self._leased(obtained.artifact, identity, validation, "BUILT" if obtained.made else "JOINED" if obtained.waited else "HIT")

    def _leased(self, artifact: Any, identity: Any, validation: Any, status: str) -> Any:
        try:
            manifest = _omni.WeightManifest.from_dict(artifact.extra["manifest"])
            tensors = artifact.tensors(private=False)
            lease = self._lease(artifact, identity, manifest, tensors, artifact.extra["publication"], validation)
        except (ValueError, TypeError, KeyError) as problem:
            artifact.release()
            return _fails("VALIDATION", "MANIFEST_CORRUPT", f"tmesh.vllm_omni: {artifact.name}: {problem}: drop it by tmeshctl", status="INVALID")
        if validation is _omni.ValidationLevel.FULL_CHECKSUM:
            wrong = [entry.name for entry in manifest.tensors if hashlib.sha256(_bytes(tensors[entry.name])).hexdigest() != entry.sha256]
            if wrong:
                lease.close()
                return _fails("VALIDATION", "CHECKSUM_MISMATCH", f"tmesh.vllm_omni: {artifact.name}: other bytes in {wrong[:3]}: drop it by tmeshctl",
                              status="INVALID")
        return _omni.StoreResult(_omni.StoreStatus[status], lease=lease)

    @staticmethod
    def _lease(artifact: Any, identity: Any, manifest: Any, tensors: Mapping[str, Any], publication: str, validation: Any) -> Any:
        regions = []
        for file in manifest.files:
            mine = [tensors[entry.name] for entry in manifest.tensors if entry.file_name == file.file_name and entry.nbytes]
            if mine:
                start = min(tensor.data_ptr() for tensor in mine)
                end = max(tensor.data_ptr() + tensor.numel() * tensor.element_size() for tensor in mine)
                regions.append(_omni.MappedHostRegion(file_name=file.file_name, address=start, length=end - start))
        provenance = _omni.LeaseProvenance(
            resolution_id=uuid.uuid4().hex, identity_digest=identity.key, artifact_content_sha256=manifest.artifact_content_sha256, domain_uuid="tmesh",
            publication_id=publication, resolution_source="local", artifact_origin="producer", producer_id=identity.producer.producer_id, provider_id=None,
            validation_level=validation.value, backing_fingerprint=artifact.name)
        return _omni.HostWeightLease(identity=identity, manifest=manifest, tensors=tensors, mapped_regions=tuple(regions), provenance=provenance,
                                     resource_closers=(), release_artifact_lock=artifact.release)
