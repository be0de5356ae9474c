# SPDX-License-Identifier: MIT
"""Engines with other versions than the tried ones, and engines that lack names which tmesh uses. These are stand-ins;
tests of the real ones have files of their own."""

import importlib
import os
import sys
from typing import NamedTuple
import warnings

import pytest

import tmesh
from conftest import any_backend, assert_refused, eventually
from test_process import in_fork
from tmesh import movers, offers

any_backend()
sys.path.insert(0, os.path.dirname(__file__))

from net_target import without_ray  # noqa: E402

OTHER = "99.0.1"
# The modules of each package, and their contents, that tmesh uses at the import.
STANDINS = {
    "ray": ("ray", "2.60.0", {
        "torch": "class Tensor:\n    _storage = None\nclass nn:\n    class Parameter(Tensor): pass\nstrided = None\n",
        "ray.experimental": "from abc import ABC, abstractmethod\ndef register_tensor_transport(*_): pass\n"
                            "class TensorTransportManager(ABC):\n    @abstractmethod\n    def abort_transport(self): pass\n"
                            "class TensorTransportMetadata: pass\nclass CommunicatorMetadata: pass\n",
        "ray.util.serialization": "def register_serializer(*_, **__): pass\n",
        "ray.cloudpickle": "from collections import ChainMap\nclass CloudPickler:\n    dispatch_table = ChainMap()\n",
        "ray": "class ObjectRef: pass\n",
        "ray._private.worker": "global_worker = None\nclass Worker:\n    def put_object(self): pass\n",
        "ray._private.serialization": "class SerializationContext:\n    def serialize_rdt_objects(self): pass\n",
        "ray.experimental.rdt.rdt_manager": "class RDTManager:\n    def queue_or_trigger_out_of_band_tensor_transfer(self): pass\n",
    }),
    "nixl": ("nixl-cu12", "1.5.1", {
        "nixl_cu12._bindings": "".join(f"class nixl{name}Error(Exception): pass\n" for name in (
            "NotAllowed", "NotFound", "RemoteDisconnect", "Backend", "Cancelled", "Unknown")),
        "nixl_cu12._api": "class nixl_agent: pass\nnixl_agent_config = nixl_thread_sync_t = None\n",
    }),
    "mooncake": ("mooncake-transfer-engine-non-cuda", "0.3.13", {"mooncake.engine": "class TransferEngine: pass\n"}),
    "lmcache": ("lmcache", "0.5.6", {
        "lmcache.v1.distributed.l2_adapters.base": "class L2AdapterInterface:\n    _notify_keys_stored = _notify_keys_accessed = "
                                                   "_notify_keys_deleted = None\n",
        "lmcache.v1.distributed.internal_api": "class L2StoreResult: pass\n",
        "lmcache.lmcache_native": "class Bitmap: pass\n",
    }),
}


@pytest.fixture
def standin(tmp_path, monkeypatch):
    """Make a stand-in, and return a function that imports tmesh's module for it. Imported modules are restored
    afterwards."""
    before, had = dict(sys.modules), {name: getattr(tmesh, name) for name in STANDINS if hasattr(tmesh, name)}

    def make(name, change=lambda contents: None):
        package, _, contents = STANDINS[name]
        contents = dict(contents)
        change(contents)
        for module, text in contents.items():
            at = tmp_path.joinpath(*module.split("."))
            # Whether the module is a package with other modules in it.
            inner = any(other.startswith(f"{module}.") for other in contents)
            at = at / "__init__.py" if inner else at.with_suffix(".py")
            for folder in [at.parent, *at.parent.parents]:
                if folder == tmp_path:
                    break
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "__init__.py").touch()
            at.write_text(text)
        about = tmp_path / f"{package.replace('-', '_')}-{OTHER}.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {OTHER}\n")
        tops = {module.partition(".")[0] for module in contents} | {"torch"}
        for module in list(sys.modules):
            if module.partition(".")[0] in tops or module == f"tmesh.{name}":
                del sys.modules[module]
        importlib.invalidate_caches()
        return lambda: importlib.import_module(f"tmesh.{name}")

    monkeypatch.syspath_prepend(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield make
    for module in set(sys.modules) - set(before):
        del sys.modules[module]
    sys.modules.update(before)
    for name in STANDINS:
        tmesh.__dict__.pop(name, None)
    tmesh.__dict__.update(had)


def both(name):
    """The words of each warning and error that name both versions."""
    package, version, _ = STANDINS[name]
    return rf"{package} {OTHER} is installed.*tmesh was tried with {package} {version}.*pip install {package}=={version}"


@pytest.mark.parametrize("name", STANDINS)
def test_another_version_is_warned_of(standin, name):
    load = standin(name)
    with pytest.warns(RuntimeWarning, match=both(name)):
        load()


@pytest.mark.parametrize("name, module, lost", [
    ("ray", "ray.experimental", "register_tensor_transport"), ("ray", "ray.experimental", "TensorTransportManager"),
    ("ray", "ray.util.serialization", "register_serializer"), ("ray", "ray.cloudpickle", "CloudPickler"),
    ("ray", "ray._private.worker", "global_worker"), ("ray", "ray.experimental.rdt.rdt_manager", "RDTManager"), ("nixl", "nixl_cu12._bindings", "nixlNotFoundError"),
    ("lmcache", "lmcache.v1.distributed.internal_api", "L2StoreResult"),
])
def test_a_name_that_is_gone(standin, name, module, lost):
    """The import raises an error with both versions, and not the one of a missing package."""
    load = standin(name, lambda contents: contents.update({module: contents[module].replace(lost, "renamed")}))
    with pytest.raises(ImportError, match=rf"{module} has no {lost}; tmesh was tried") as raised:
        load()
    assert not isinstance(raised.value, ModuleNotFoundError)
    assert_refused(load, ImportError, both(name))


@pytest.mark.parametrize("name, module", [("ray", "ray.util.serialization"), ("nixl", "nixl_cu12._bindings"),
                                          ("lmcache", "lmcache.v1.distributed.internal_api")])
def test_a_module_that_is_gone(standin, name, module):
    load = standin(name, lambda contents: contents.update({f"{module}_renamed": contents.pop(module)}))
    with pytest.raises(ImportError, match=f"and has no {module}; tmesh was tried") as raised:
        load()
    assert not isinstance(raised.value, ModuleNotFoundError)


@pytest.mark.parametrize("name, module, base", [("ray", "ray.experimental", "TensorTransportManager"),
                                                ("lmcache", "lmcache.v1.distributed.l2_adapters.base", "L2AdapterInterface")])
def test_a_call_that_is_wanted(standin, name, module, base):
    """A new abstract method of a transport or an adapter is reported at the import. Python would report it only when
    the engine makes the first."""
    wanted = f"from abc import ABC, abstractmethod\nclass {base}(ABC):\n    @abstractmethod\n    def of_tomorrow(self): pass\n"
    load = standin(name, lambda contents: contents.update({module: contents[module] + wanted}))
    warnings.simplefilter("ignore", RuntimeWarning)
    assert_refused(load, ImportError, "tmesh.* has not: of_tomorrow")
    assert_refused(load, ImportError, both(name))


def test_a_base_that_does_not_tell(standin):
    """The adapter's notifications to LMCache are missing."""
    module = "lmcache.v1.distributed.l2_adapters.base"
    load = standin("lmcache", lambda contents: contents.update({module: contents[module].replace("_notify_keys_stored", "_renamed")}))
    warnings.simplefilter("ignore", RuntimeWarning)
    assert_refused(load, ImportError, "its L2AdapterInterface has no _notify_keys_stored; tmesh was tried")


@pytest.mark.parametrize("name, more", [("nixl", {}), ("mooncake", {"host": "127.0.0.1"})])
def test_an_engine_that_has_not_the_calls(standin, name, more):
    """The engine is refused before anything is registered with it."""
    load = standin(name)
    warnings.simplefilter("ignore", RuntimeWarning)
    module = load()

    class Engine:
        name = "x"
        batch_register_memory = get_reg_descs = None

    registered = len(offers._registered)
    with pytest.raises(tmesh.UnsupportedError, match="Engine, has no (register_memory|batch_unregister_memory), .*; tmesh was tried"):
        module.register(Engine(), tmesh.put(b"x"), **more)
    assert_refused(lambda: module.register(Engine(), tmesh.put(b"x"), **more), tmesh.UnsupportedError, both(name))
    assert len(offers._registered) == registered


@pytest.mark.parametrize("name, module, lost", [("nixl", "nixl_cu12._api", "nixl_thread_sync_t"),
                                                ("mooncake", "mooncake.engine", "TransferEngine")])
def test_a_mover_that_cannot_be_made(standin, monkeypatch, name, module, lost):
    """The mover raises this error, which tmesh.ray passes to the receiver."""
    standin(name, lambda contents: contents.update({module: contents[module].replace(lost, "renamed")}))
    warnings.simplefilter("ignore", RuntimeWarning)
    without_ray(monkeypatch.setitem)
    assert_refused(lambda: movers.Engine(name), ImportError, rf"its {module} has no {lost}; tmesh was tried")


def test_an_offer_that_cannot_be_described(standin, monkeypatch):
    """Its registration is given back."""
    load = standin("mooncake", lambda contents: contents.update({"mooncake.engine": """
class TransferEngine:
    registered = set()
    batch_transfer_sync_read = batch_transfer_sync_write = None

    def initialize(self, *_): return 0
    def get_engine(self): return self
    def get_rpc_port(self): raise RuntimeError("no port")
    def batch_register_memory(self, places, _): self.registered.update(places)
    def batch_unregister_memory(self, places): self.registered.difference_update(places)
"""}))
    warnings.simplefilter("ignore", RuntimeWarning)
    load()
    without_ray(monkeypatch.setitem)
    engine, before = movers.Engine("mooncake"), len(offers._registered)
    assert_refused(lambda: engine.offer([tmesh.put(b"x")]), RuntimeError, "no port")
    assert not engine._engine.registered and len(offers._registered) == before


def test_a_mover_that_is_not_installed(standin, monkeypatch):
    standin("mooncake", lambda contents: (contents.clear(), contents.update({
        "mooncake": "raise ModuleNotFoundError(\"No module named 'mooncake'\", name='mooncake')"})))
    warnings.simplefilter("ignore", RuntimeWarning)
    without_ray(monkeypatch.setitem)
    with pytest.raises(ModuleNotFoundError, match=r"the mover \"mooncake\" needs Mooncake .*: pip install mooncake-transfer-engine-non-cuda numpy"):
        movers.Engine("mooncake")


class Key(NamedTuple):
    """An object's key, with the members that LMCache's has."""

    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int
    cache_salt: str


@pytest.fixture
def lmcache(standin):
    """Return tmesh.lmcache with a stand-in in which adapters work."""
    def change(contents):
        contents["lmcache.v1.distributed.l2_adapters.base"] = (
            "class L2AdapterInterface:\n    def __init__(self, max_capacity_bytes): pass\n"
            "    def _notify_keys_stored(self, *_): pass\n    _notify_keys_accessed = _notify_keys_deleted = _notify_keys_stored\n")
        contents["lmcache.lmcache_native"] = ("class Bitmap:\n    def __init__(self, size): self.set_bits = set()\n"
                                              "    def set(self, bit): self.set_bits.add(bit)\n")
        contents["lmcache.v1.distributed.internal_api"] = "class L2StoreResult:\n    def __init__(self, *_): pass\n"
    with pytest.warns(RuntimeWarning, match=both("lmcache")):
        return standin("lmcache", change)()


def test_a_forked_child_of_an_adapter(lmcache, tmp_path):
    """It has neither the adapter's thread nor descriptors of its own, and may be forked while a thread has the lock. It makes an adapter of its own."""
    path = str(tmp_path / "key")
    adapter, keys = lmcache.Adapter({"key_file": path}), [Key(b"x", "model", 0, 0, "")]

    def look_up(one):
        task, answers = one.submit_lookup_and_lock_task(keys, None), []
        eventually(lambda: answers.append(one.query_lookup_and_lock_result(task)) or answers[-1] is not None)
        return answers[-1].set_bits

    def check():
        for use in (lambda: adapter.submit_store_task(keys, []), lambda: adapter.submit_lookup_and_lock_task(keys, None),
                    lambda: adapter.submit_load_task(keys, [None]), adapter.pop_completed_store_tasks, lambda: adapter.query_lookup_and_lock_result(1),
                    lambda: adapter.query_load_result(1), lambda: adapter.submit_unlock(keys), lambda: adapter.delete(keys)):
            assert_refused(use, tmesh.AccessError, "this adapter is the parent's: a forked child makes one of its own")
        adapter.close()
        mine = lmcache.Adapter({"key_file": path})
        assert look_up(mine) == set()
        mine.close()

    with adapter._lock:
        word = in_fork(check)
    assert word == "fine" and look_up(adapter) == set()
    adapter.close()


def test_a_look_up_that_fails_tells_what_it_has_locked(lmcache, tmp_path, monkeypatch, caplog):
    """LMCache unlocks the objects that an answer names. Objects that it does not name would stay open for good, and their
    descriptors with them."""
    sealed, opened, answers = tmesh.put(b"x" * 64), [], []

    def open_kept(name):
        opened.append(name)
        if len(opened) == 4:
            raise tmesh.LimitError(24, "no descriptor is free")
        return tmesh.open(sealed.ref())

    monkeypatch.setattr(lmcache, "open_kept", open_kept)
    adapter = lmcache.Adapter({"key_file": str(tmp_path / "key")})
    keys = [Key(bytes([number]), "model", 0, 0, "") for number in range(8)]
    before = tmesh.stats()["regions_live"]
    task = adapter.submit_lookup_and_lock_task(keys, None)
    eventually(lambda: answers.append(adapter.query_lookup_and_lock_result(task)) or answers[-1] is not None)
    adapter.submit_unlock([keys[bit] for bit in answers[-1].set_bits])
    live = tmesh.stats()["regions_live"]
    adapter.close()
    assert answers[-1].set_bits == {0, 1, 2} and live == before
    caplog.clear()  # a record keeps the frames of its traceback
