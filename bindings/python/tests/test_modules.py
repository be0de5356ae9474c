# SPDX-License-Identifier: MIT
"""tmesh.modules with small modules of PyTorch. Engines' own models: test_vllm.py, test_sglang.py."""

import logging

import pytest

import tmesh
from conftest import any_backend, assert_refused, pytorch
from tmesh import artifacts

any_backend()
pytestmark = pytest.mark.usefixtures("nothing_kept")
LOG = logging.getLogger("test")


@pytest.fixture
def modules():
    torch = pytorch()
    if not hasattr(torch.utils, "swap_tensors"):
        pytest.skip("PyTorch 2.3 or later is not installed: make vllm-check")
    from tmesh import modules

    return modules


def make(torch, needs=False):
    """Make a model as engines do: empty weights, of which two are tied, a computed buffer and a plain attribute."""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Parameter(torch.empty(64, 64), requires_grad=False)
            self.first.loader = "a loader"
            self.tied = self.first
            self.inner = torch.nn.Identity()
            self.register_buffer("table", torch.arange(8.0), persistent=False)
            self.scale = torch.tensor(2.0)
            self.filled = False
            if needs:
                self.work = {"space": [torch.empty(4)]}

        def load(self, tell):
            self.first.data.copy_(torch.arange(4096.0).view(64, 64))
            self.filled = True

    return Net()


def share(modules, torch, needs=False, **extra):
    """Do as a loader does. Return the model, and whether it was created without memory, and what obtain() returned."""
    sharing = modules.Sharing(extra, LOG, "test")
    model, artifact = sharing.mapped({"test": 1}, lambda: make(torch, needs))
    if artifact:
        return model, True, artifact
    model = make(torch, needs)
    return model, False, sharing.obtain(model, {"test": 1}, "", model.load)


def test_a_model_is_loaded_once(modules):
    """Another one has its memory. Parameters stay the same objects with their attributes, and writes are private."""
    torch = pytorch()
    model, meta, obtained = share(modules, torch)
    assert obtained.made and not meta and model.filled
    second, meta, artifact = share(modules, torch)
    assert meta and second.filled and artifact.name == obtained.artifact.name
    assert torch.equal(second.first, model.first) and torch.equal(second.table, model.table)
    assert second.tied is second.first and second.first.loader == "a loader" and type(second.first) is torch.nn.Parameter
    assert modules.shared_bytes(second, artifact, modules.storages(second)) == 4096 * 4 + 8 * 4
    second.first.data.fill_(1)
    third, _, _ = share(modules, torch)
    assert third.first[0, 1] == 1 == model.first[0, 1] and third.first[0, 2] == 2


def test_a_model_that_needs_memory_of_its_own(modules, caplog):
    """It is created with memory, and has the artifact's weights as well."""
    torch = pytorch()
    caplog.set_level(logging.INFO)
    share(modules, torch, needs=True)
    model, meta, obtained = share(modules, torch, needs=True)
    assert not meta and not obtained.made and obtained.artifact and model.first[1, 1] == 65
    assert "model.work.space would have no memory" in caplog.text


def test_a_load_that_cannot_be_shared(modules):
    """Nothing is kept, and the model is loaded. Without a fallback that is an error."""
    torch = pytorch()
    model, _, obtained = share(modules, torch, keep=False)
    assert model.filled and obtained.reason == "the configuration says that nothing is to be kept" and not tmesh.kept()
    with pytest.raises(tmesh.BusyError, match="test: nothing can be shared: .*; set fallback, or use the load format auto"):
        share(modules, torch, keep=False, fallback=False)
    sharing = modules.Sharing({}, LOG, "test")
    model = make(torch)

    def load(tell):
        model.load(tell)
        model.scale.add_(1)

    assert sharing.obtain(model, {"test": 2}, "", load).reason == "loading changes the attribute model.scale, which is no plain value"
    model = make(torch)
    obtained = sharing.obtain(model, None, "there are no files", model.load)
    assert model.filled and not obtained.artifact and obtained.reason == "there are no files"


def test_a_copy_into_kept_memory_shows_progress(modules, monkeypatch):
    """Engines that wait for this one do not give up while it copies weights that it has loaded."""
    torch = pytorch()
    told = []
    monkeypatch.setattr(modules, "_shown", lambda log: lambda *how: told.append(how))
    model = torch.nn.Linear(4, 4)
    made = modules.Sharing({}, LOG, "test").obtain(model, {"test": "progress"}, "", lambda tell: [*modules.counted(model.state_dict().items(), 60, tell)])
    assert made.made and made.artifact and told == [(60, 60, False), (60, 60, False), (64, 128, False), (80, 128, False)]
    assert artifacts.find({"test": "progress"})


@pytest.mark.parametrize("extra, words", [({"fallback": 1}, "test: fallback is 1: true or false"), ({"keep": None}, "keep is None"),
                                          ({"timeout": "1"}, "timeout is '1': a number of seconds"), ({"timeout": -1}, "timeout is -1")])
def test_bad_configuration(modules, extra, words):
    assert_refused(lambda: modules.Sharing(extra, LOG, "test"), tmesh.InvalidError, words)
