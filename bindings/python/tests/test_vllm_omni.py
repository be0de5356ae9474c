# SPDX-License-Identifier: MIT
"""tmesh.vllm_omni in vLLM-Omni's own runtime, beside its store of files, without an engine: make vllm-check.

vLLM-Omni is installed without what it requires, beside the other packages: an engine of vLLM would load it. So its top module, which
patches vLLM, is left out here."""

import inspect
from pathlib import Path
import re
import sys
import threading
import time
import types

import pytest

import tmesh
from conftest import any_backend
from tmesh import artifacts

any_backend()
PACKAGES = Path(sys.prefix) / "omni"
if not (PACKAGES / "vllm_omni").is_dir():
    pytest.skip("vLLM-Omni is not installed: make vllm-check", allow_module_level=True)
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("nothing_kept")


@pytest.fixture(scope="module")
def omni():
    """vLLM-Omni's package of stores, and tmesh's store."""
    top = types.ModuleType("vllm_omni")
    top.__path__ = [str(PACKAGES / "vllm_omni")]
    sys.modules["vllm_omni"] = top
    sys.path.append(str(PACKAGES))
    import vllm_omni.host_weight_runtime as omni
    from tmesh.vllm_omni import Store

    yield types.SimpleNamespace(**vars(omni), Store=Store)
    sys.path.remove(str(PACKAGES))
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_omni" or name == "tmesh.vllm_omni"]:
        del sys.modules[name]


def identity(omni, revision="1"):
    return omni.WeightArtifactIdentity(
        1, omni.WeightSourceIdentity("model", revision, "files"), omni.ComponentIdentity("transformer", "rank"),
        omni.WeightRepresentation("finalized", "bfloat16"), omni.RuntimeWeightLayout("plain"), omni.AdaptationIdentity(),
        omni.ProducerIdentity("test", "1", "code", "made", "restored"))


TENSORS = {"b": torch.arange(12, dtype=torch.bfloat16).view(3, 4), "a": torch.tensor([2.5]), "c": torch.arange(5)}
FILES = {"one.safetensors": ["a", "b"], "two.safetensors": ["c"]}


class Producer:
    """A producer of all tensors. change(name, file): writes something else. before: called first."""

    def __init__(self, omni, change=None, before=None, scope="SINGLE_PROCESS", schema="made", **more):
        self.omni, self.change, self.before, self.schema, self.calls = omni, change, before, schema, 0
        self.spec = omni.WeightProductionSpec("test", (identity(omni, **more),), omni.ProductionSourceMode.FINALIZED_MODEL, omni.CoordinationScope[scope])

    def produce(self, writer):
        self.calls += 1
        if self.before:
            self.before()
        for name, keys in FILES.items():
            with writer.open_tensor_file(name, tuple(self.omni.TensorWriteSpec(key, tuple(TENSORS[key].shape), TENSORS[key].dtype) for key in keys)) as file:
                for key in keys:
                    if self.change and self.change(key, file):
                        continue
                    if key == "b":
                        file.write_rows(key, 2, TENSORS[key][2:])
                        file.write_rows(key, 0, TENSORS[key][:2])
                    else:
                        file.write_tensor(key, TENSORS[key])
        return self.omni.ProductionMetadata(self.schema, "restored")


def build(omni, producer, store=None, seconds=60, level="FULL_CHECKSUM", **more):
    return (store or omni.Store()).get_or_build(omni.BuildRequest(identity(omni, **more)), producer, validation=omni.ValidationLevel[level],
                                                deadline=time.monotonic() + seconds)


def look(omni, level="FULL_CHECKSUM", **more):
    return omni.Store().lookup(identity(omni, **more), validation=omni.ValidationLevel[level])


def test_the_store_has_the_protocols_methods(omni):
    for name in "lookup", "get_or_build":
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (omni.Store, omni.HostWeightStore))
        assert [(one.name, one.kind, one.default) for one in ours.values()] == [(one.name, one.kind, one.default) for one in theirs.values()]


def test_vllm_omnis_runtime(omni, tmp_path):
    """A restarted engine's runtime finds what the first one had made. All is as with the store of files."""
    from vllm_omni.host_weight_runtime.filesystem import FilesystemHostWeightStore, detect_storage_class

    root = tmp_path / "files"
    root.mkdir(mode=0o700)
    domain = omni.StorageDomainPolicy(root, storage_class=detect_storage_class(root))
    config = omni.HostWeightRuntimeConfig(omni.RuntimeMode.REQUIRED, domain)
    seen = []
    for make in lambda: FilesystemHostWeightStore(domain, config.capacity, config.integrity), omni.Store:
        producer, heard = Producer(omni), []
        for revision in "1", "1", "2":
            made = omni.HostWeightRuntime(config, make()).resolve(identity(omni, revision), producer=producer if revision == "1" else None)
            heard.append(made.report.outcome)
            if made.lease:
                with made.lease as lease:
                    heard.append((lease.manifest.artifact_content_sha256, {key: tensor.tolist() for key, tensor in lease.tensors.items()}))
                    for region in lease.mapped_regions:
                        keys = [key for key in FILES[region.file_name] if TENSORS[key].numel()]
                        assert all(region.address <= lease.tensors[key].data_ptr() < region.address + region.length for key in keys)
        assert producer.calls == 1
        seen.append(heard)
    assert seen[0] == seen[1] and seen[1][0] == omni.ResolutionOutcome.LOCAL_PRODUCTION and seen[1][2] == omni.ResolutionOutcome.LOCAL_HIT
    assert [one["name"][:2] for one in tmesh.kept()] == ["a."]


def test_a_scalar_and_an_empty_tensor(omni, monkeypatch):
    """vLLM-Omni's own writer of files takes neither."""
    monkeypatch.setitem(TENSORS, "a", torch.tensor(2.5))
    monkeypatch.setitem(TENSORS, "c", torch.zeros(0, 4))
    with build(omni, Producer(omni)).lease as lease:
        assert lease.tensors["a"].shape == () and lease.tensors["a"].item() == 2.5 and lease.tensors["c"].shape == (0, 4)
        assert [region.file_name for region in lease.mapped_regions] == ["one.safetensors"]


def test_one_builds_and_the_others_wait(omni):
    """A wait ends at its deadline."""
    began, go = threading.Event(), threading.Event()
    results = {}
    producer = Producer(omni, before=lambda: began.set() or go.wait(60))
    threads = [threading.Thread(target=lambda name=name: results.update({name: build(omni, producer)})) for name in ("first", "second")]
    threads[0].start()
    assert began.wait(60)
    late = build(omni, producer, seconds=0)
    assert (late.status, late.failure.code, late.failure.retryable) == (omni.StoreStatus.TIMEOUT, omni.FailureCode.ACTIVE_BUILD_TIMEOUT, True)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join()
    assert producer.calls == 1 and results["first"].status is omni.StoreStatus.BUILT
    assert results["second"].status in (omni.StoreStatus.JOINED, omni.StoreStatus.HIT)
    for result in results.values():
        result.lease.close()


def test_producers_that_fail(omni):
    """Nothing is kept, and the words say what is wrong."""
    def rows(start, tensor):
        return lambda key, file: key == "b" and (file.write_rows(key, start, tensor) or True)

    for producer, words in (
            (Producer(omni, change=lambda key, file: key == "b"), r"closed without all rows of \['b'\]"),
            (Producer(omni, change=rows(1, TENSORS["b"])), "rows 1 to 4 .* do not fit"), (Producer(omni, change=rows(0, TENSORS["b"].float())), "float32"),
            (Producer(omni, change=lambda key, file: file.write_tensor("other", TENSORS["c"])), "'other' was not declared"),
            (Producer(omni, change=lambda key, file: file.write_tensor(key, TENSORS[key])), "written before"),
            (Producer(omni, schema="another"), "schemas are not those"), (Producer(omni, change=lambda *_: 1 / 0), "the producer failed: division"),
            (Producer(omni, scope="GROUP_COHORT"), "group_cohort"), (Producer(omni, revision="2"), "does not declare exactly")):
        result = build(omni, producer)
        assert result.status is omni.StoreStatus.FAILED and not tmesh.kept()
        assert re.search(words, result.failure.message), result.failure.message
    assert build(omni, Producer(omni), level="FS_VERITY").failure.code is omni.FailureCode.UNSUPPORTED
    assert look(omni).status is omni.StoreStatus.MISS


def test_artifacts_of_others(omni):
    """Other bytes and a hostile manifest are no hit."""
    from tmesh import vllm_omni

    result = build(omni, Producer(omni))
    extra = {"manifest": result.lease.manifest.to_dict(), "publication": "p"}
    result.lease.close()
    fingerprint = vllm_omni._fingerprint(identity(omni))
    artifacts.keep(fingerprint, {**TENSORS, "c": torch.arange(5) + 1}, extra=extra).release()
    assert look(omni).failure.code is omni.FailureCode.CHECKSUM_MISMATCH
    look(omni, "MANIFEST_AND_METADATA").lease.close()
    for tensors, wrong in ((TENSORS, None), (TENSORS, {}), (TENSORS, {**extra, "manifest": {**extra["manifest"], "tensors": 1}}),
                           ({**TENSORS, "c": torch.arange(6)}, extra), ({"a": TENSORS["a"]}, extra)):
        artifacts.keep(fingerprint, tensors, extra=wrong).release()
        assert look(omni).failure.code is omni.FailureCode.MANIFEST_CORRUPT
