# SPDX-License-Identifier: MIT
"""tmesh.safetensors.install() under packages that load models with safetensors: transformers, diffusers and PEFT
themselves, on models that are made here. Also tmesh.lora compared with PEFT."""

import os
import subprocess

import pytest

import tmesh
import tmesh.safetensors
from conftest import EMULATED, REGION, SLOW_IMPORT, region_mappings

if EMULATED:
    pytest.skip(SLOW_IMPORT, allow_module_level=True)
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", DIFFUSERS_VERBOSITY="error")
WITH = "is not installed: make python-transformers-check"
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason=f"transformers {WITH}")
safetensors_torch = pytest.importorskip("safetensors.torch", reason=f"safetensors {WITH}")

# By default both packages copy weights into an existing model; transformers 5 never does.
NO_COPY = {"low_cpu_mem_usage": True} if int(transformers.__version__.split(".")[0]) < 5 else {}
IDS = torch.tensor([[1, 2, 3, 60]])


@pytest.fixture
def installed():
    tmesh.safetensors.install()
    yield
    tmesh.safetensors.uninstall()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-2 of 9 MB with random weights, whose output layer is tied to its embedding."""
    path = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=256, vocab_size=2048, n_positions=64,
                                     bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


@torch.no_grad()
def logits(path, **options):
    return transformers.GPT2LMHeadModel.from_pretrained(path, **NO_COPY, **options).eval()(IDS).logits


def copied(module):
    """Return the names of parameters that are not in a region's mapping."""
    with open("/proc/self/maps") as maps:
        ranges = [[int(end, 16) for end in line.split(None, 1)[0].split("-")] for line in maps if REGION in line]
    return [name for name, tensor in module.named_parameters()
            if not any(begin <= tensor.data_ptr() < end for begin, end in ranges)]


def test_transformers(folder, installed):
    tmesh.safetensors.uninstall()
    stock = logits(folder)
    assert not region_mappings()
    tmesh.safetensors.install()
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, **NO_COPY).eval()
    assert copied(model) == []
    assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    with torch.no_grad():
        assert model(IDS).logits.equal(stock)
        # Copy-on-write: another model of the same file has the file's weights.
        model.transformer.wte.weight.zero_()
        assert not model.lm_head.weight.any() and logits(folder).equal(stock)


def test_other_types_and_shards(folder, installed, tmp_path):
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    model.save_pretrained(tmp_path, max_shard_size="3MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    sharded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, **NO_COPY)
    assert copied(sharded) == []
    with torch.no_grad():
        assert sharded.eval()(IDS).logits.equal(logits(folder))
    half = transformers.GPT2LMHeadModel.from_pretrained(folder, torch_dtype=torch.bfloat16, **NO_COPY)
    assert half.lm_head.weight.equal(model.lm_head.weight.bfloat16())


def test_assign(folder, installed):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config.from_pretrained(folder))
    found = safetensors_torch.load_file(folder / "model.safetensors")
    try:
        model.load_state_dict(found, strict=False, assign=True)
    except TypeError:
        pytest.skip(f"PyTorch {torch.__version__} has no load_state_dict(assign=True)")
    model.tie_weights()
    assert copied(model) == []
    with torch.no_grad():
        assert model.eval()(IDS).logits.equal(logits(folder))


PROCESS = """
import os, sys, torch, transformers, tmesh.safetensors
from test_transformers import NO_COPY, IDS
if sys.argv[2] == "installed":
    tmesh.safetensors.install()
model = transformers.GPT2LMHeadModel.from_pretrained(sys.argv[1], **NO_COPY).eval()
with torch.no_grad():
    said = model(IDS).logits
    sum(one.sum() for one in model.parameters())
print(hash(tuple(said.flatten().tolist())), model.lm_head.weight is model.transformer.wte.weight, flush=True)
input()
found = {"Pss": 0, "Anonymous": 0}
with open("/proc/self/smaps") as maps:
    for line in maps:
        words = line.split()
        if "-" in words[0]:
            inside = "tmesh:" in line
        elif inside and words[0][:-1] in found:
            found[words[0][:-1]] += int(words[1])
print(found["Pss"], found["Anonymous"], flush=True)
input()
"""


def test_two_processes_have_one_copy(folder, peer, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    peers = [peer(PROCESS, folder, kind) for kind in ("installed", "installed", "stock")]
    answers = [one.stdout.readline().split() for one in peers]
    assert answers[0] == answers[1] == answers[2] and answers[0][1] == "True"
    shares = []
    for one in peers:
        one.stdin.write("\n")
        one.stdin.flush()
        shares.append([int(word) for word in one.stdout.readline().split()])
    whole = os.path.getsize(folder / "model.safetensors") / 1024
    assert shares[2] == [0, 0] and shares[0][1] == shares[1][1] == 0
    assert 0.98 * whole < shares[0][0] + shares[1][0] < 1.02 * whole, (shares, whole)
    assert shares[0][0] == pytest.approx(shares[1][0], rel=0.02)


def test_what_happens_to_the_file_later(folder, installed, tmp_path):
    """Stock safetensors would get SIGBUS for the first, and other weights for the second."""
    stock = logits(folder)
    data = (folder / "model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    for harm in (lambda: os.truncate(path, 4096), lambda: path.write_bytes(b"\0" * len(data))):
        path.write_bytes(data)
        model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, **NO_COPY).eval()
        harm()
        with torch.no_grad():
            assert model(IDS).logits.equal(stock)


@pytest.mark.skipif("TMESHCTL" not in os.environ, reason="TMESHCTL does not say where tmeshctl is: make "
                                                         "python-transformers-check")
def test_stock_code_opens_a_kept_file(folder, tmp_path, kept_files):
    """Unchanged programs can open the path that tmeshctl keep --file prints."""
    def tmeshctl(*words):
        return subprocess.run([os.environ["TMESHCTL"], *words], check=True, capture_output=True, text=True).stdout.strip()

    stock = logits(folder)
    path = tmeshctl("keep", "--file", folder / "model.safetensors", "gpt2")
    try:
        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        (tmp_path / "model.safetensors").symlink_to(path)
        assert safetensors_torch.load_file(path).keys() == safetensors_torch.load_file(folder / "model.safetensors").keys()
        model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, **NO_COPY).eval()
        with open("/proc/self/maps") as maps:
            assert any(str(kept_files) in line and " rw-p " in line for line in maps)
        with torch.no_grad():
            assert model(IDS).logits.equal(stock)
            model.transformer.wte.weight.zero_()        # a private copy, as of any mapped file
        assert logits(tmp_path).equal(stock)
    finally:
        tmeshctl("drop", "gpt2")


def test_diffusers(installed, tmp_path):
    diffusers = pytest.importorskip("diffusers", reason=f"diffusers {WITH}")
    torch.manual_seed(2)
    net = diffusers.UNet2DModel(sample_size=8, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
                                down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    net.save_pretrained(tmp_path)
    tmesh.safetensors.uninstall()
    image = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        stock = diffusers.UNet2DModel.from_pretrained(tmp_path)
        tmesh.safetensors.install()
        mine = diffusers.UNet2DModel.from_pretrained(tmp_path, low_cpu_mem_usage=True)
        assert copied(mine) == []
        state = mine.state_dict()
        assert all(state[name].equal(tensor) for name, tensor in stock.state_dict().items())
        # PyTorch's convolutions add in another order if memory is aligned differently.
        assert torch.allclose(mine(image, 5).sample, stock(image, 5).sample, rtol=1e-4, atol=1e-5)


class Net(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(3)
        self.up = torch.nn.Linear(16, 24, dtype=dtype)
        self.down = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(24, 16, dtype=dtype))
        self.out = torch.nn.Linear(16, 4, bias=False, dtype=dtype)

    def forward(self, x):
        return self.out(self.down(self.up(x)))


@pytest.fixture
def peft():
    return pytest.importorskip("peft", reason=f"PEFT {WITH}")


@pytest.mark.parametrize("options", [
    {"r": 4, "lora_alpha": 8}, {"r": 4, "lora_alpha": 8, "use_rslora": True},
    {"r": 2, "lora_alpha": 3, "rank_pattern": {"down.1": 5, "^out": 3}, "alpha_pattern": {"1": 7, "up": 1}},
    {"r": 4, "lora_alpha": 8, "target_modules": ["out"]},
], ids=["plain", "rslora", "patterns", "one layer"])
@torch.no_grad()
def test_lora_beside_peft(peft, tmp_path, options):
    """Serve an adapter that PEFT made and saved by PEFT and by a slot."""
    import tmesh.lora
    config = peft.LoraConfig(**{"target_modules": ["up", "1", "out"], "init_lora_weights": False, **options})
    peft.get_peft_model(Net(), config).save_pretrained(tmp_path)
    x = torch.randn(7, 16)
    theirs, base, slot = peft.PeftModel.from_pretrained(Net(), tmp_path).eval(), Net(), tmesh.Slot()
    tmesh.lora.publish(slot, tmp_path, base)
    served = tmesh.lora.Adapted(base, slot.token)
    try:
        assert torch.allclose(served(x), theirs(x), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(served(x), Net()(x), rtol=1e-2, atol=1e-2)
        assert served(x.unsqueeze(0)).shape == theirs(x.unsqueeze(0)).shape == (1, 7, 4)
    finally:
        served.close()
        slot.close()


@torch.no_grad()
def test_peft_itself_loads_by_it(peft, installed, tmp_path, monkeypatch):
    """PEFT copies from the file into existing parameters; it reads the file with our module."""
    opened, load = [], tmesh.safetensors.load_model
    monkeypatch.setattr(tmesh.safetensors, "load_model", lambda path: opened.append(str(path)) or load(path))
    config = peft.LoraConfig(r=4, target_modules=["up", "out"], init_lora_weights=False)
    peft.get_peft_model(Net(), config).save_pretrained(tmp_path)
    x = torch.randn(7, 16)
    mine = peft.PeftModel.from_pretrained(Net(), tmp_path).eval()(x)
    assert str(tmp_path / "adapter_model.safetensors") in opened
    tmesh.safetensors.uninstall()
    assert peft.PeftModel.from_pretrained(Net(), tmp_path).eval()(x).equal(mine)
