# SPDX-License-Identifier: MIT
"""LoRA adapters in slots, with PyTorch's own modules."""

import copy
import gc
import json
import math
import os
import pickle
import subprocess
import sys
import threading

import pytest

import tmesh
from conftest import EMULATED, SLOW_IMPORT, assert_refused, eventually, region_mappings

if EMULATED:
    pytest.skip(SLOW_IMPORT, allow_module_level=True)
torch = pytest.importorskip("torch")

import tmesh.lora  # noqa: E402
from tmesh.safetensors.torch import save_file  # noqa: E402

PATIENCE = 600
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"}
# A base and adapters for it, the same in each process that runs this code.
MAKE = """
import json, math, os, torch
from tmesh.safetensors.torch import save_file

class Block(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.up = torch.nn.Linear(6, 8, dtype=dtype)
        self.down = torch.nn.Linear(8, 4, dtype=dtype)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

def base(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.nn.Sequential(Block(dtype), torch.nn.Linear(4, 3, dtype=dtype))

def tensors(number, ranks, dtype=torch.float32):
    torch.manual_seed(100 + number)
    shapes = {name: module.weight.shape for name, module in base().named_modules() if isinstance(module, torch.nn.Linear)}
    made = {}
    for name, rank in ranks.items():
        made[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, shapes[name][1]).to(dtype)
        made[f"base_model.model.{name}.lora_B.weight"] = torch.randn(shapes[name][0], rank).to(dtype)
    return made

def write(folder, config, tensors):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump(config, file)
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"))
    return folder
"""
exec(MAKE)


def merged(number, ranks, scales):
    """Return the same result in another way: with changed weights."""
    net, made = base(), tensors(number, ranks)
    for name, module in net.named_modules():
        if name in ranks:
            a, b = (made[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
            module.weight.data += scales[name] * (b @ a)
    return net


X = torch.linspace(-1, 1, 30).reshape(5, 6)


@pytest.fixture
def served(tmp_path):
    net, slot = base(), tmesh.Slot()
    adapted = tmesh.lora.Adapted(net, slot.token)
    yield net, slot, adapted
    adapted.close()
    slot.close()
    del adapted, slot
    gc.collect()


@torch.no_grad()
def test_patterns_and_scales(served, tmp_path):
    net, slot, adapted = served
    plain = net(X)
    assert_refused(lambda: adapted(X), tmesh.NotFoundError, "empty")
    ranks = {"0.up": 2, "0.down": 4, "1": 3}
    more = {"rank_pattern": {"down": 4, "^1": 3}, "alpha_pattern": {"0.up": 8, "up": 99}}
    for rslora in (False, True):
        folder = write(tmp_path / f"a{rslora}", {**CONFIG, **more, "use_rslora": rslora}, tensors(1, ranks))
        generation = tmesh.lora.publish(slot, folder, net)
        root = math.sqrt if rslora else float
        want = merged(1, ranks, {"0.up": 8 / root(2), "0.down": 4 / root(4), "1": 4 / root(3)})
        assert torch.allclose(adapted(X), want(X), atol=1e-4) and adapted.generation == generation
        assert torch.equal(net(X), plain)           # the base itself has not changed
    tmesh.lora.publish(slot, None, net)
    assert torch.equal(adapted(X), plain) and adapted.generation == 3


@torch.no_grad()
def test_types(tmp_path):
    """The answer has the base's type, as in PEFT."""
    net, slot = base(torch.bfloat16), tmesh.Slot()
    adapted = tmesh.lora.Adapted(net, slot.token)
    for number, dtype in enumerate((torch.float32, torch.bfloat16)):
        tmesh.lora.publish(slot, write(tmp_path / str(number), CONFIG, tensors(2, {"1": 2}, dtype)), net)
        assert adapted(X.bfloat16()).dtype == torch.bfloat16
        assert not torch.equal(adapted(X.bfloat16()), net(X.bfloat16()))
    adapted.close()


def test_nothing_is_copied(served, tmp_path):
    net, slot, adapted = served
    folder = write(tmp_path / "a", CONFIG, tensors(1, {"1": 2}))
    copies = tmesh.stats()["copies"]
    tmesh.lora.publish(slot, folder, net)
    adapted(X)
    assert tmesh.stats()["copies"] == copies


def wrong(config=None, ranks=None, change=None):
    made = tensors(1, ranks or {"0.up": 2, "1": 2})
    if change:
        change(made)
    return config if isinstance(config, (str, bytes)) else {**CONFIG, **(config or {})}, made


A, B = "base_model.model.1.lora_A.weight", "base_model.model.1.lora_B.weight"


REFUSED = [
    ({"r": 3}, None, tmesh.ProtocolError, "rank is 3"),
    ({"rank_pattern": {"up": 5}}, None, tmesh.ProtocolError, "rank is 5"),
    ({"r": 0}, None, tmesh.ProtocolError, "r is 0"), ({"r": True}, None, tmesh.ProtocolError, "r is True"),
    ({"r": None}, None, tmesh.ProtocolError, "r is None"), ({"r": 1 << 40}, None, tmesh.ProtocolError, "65536"),
    ({"lora_alpha": math.nan}, None, tmesh.ProtocolError, "lora_alpha"),
    ({"lora_alpha": "4"}, None, tmesh.ProtocolError, "lora_alpha"),
    ({"lora_alpha": 10 ** 400}, None, tmesh.ProtocolError, "lora_alpha"),
    ({"alpha_pattern": {"up": math.inf}}, None, tmesh.ProtocolError, "alpha_pattern"),
    ({"alpha_pattern": [1]}, None, tmesh.ProtocolError, "alpha_pattern"),
    ({"rank_pattern": {"(a+)+b": 2}}, None, tmesh.UnsupportedError, "names of modules"),
    ({"use_rslora": "yes"}, None, tmesh.ProtocolError, "use_rslora"),
    ({"peft_type": "IA3"}, None, tmesh.UnsupportedError, "IA3"), ({"bias": "all"}, None, tmesh.UnsupportedError, "bias"),
    ({"use_dora": True}, None, tmesh.UnsupportedError, "use_dora"),
    ({"fan_in_fan_out": True}, None, tmesh.UnsupportedError, "fan_in_fan_out"),
    ({"modules_to_save": ["1"]}, None, tmesh.UnsupportedError, "modules_to_save"),
    # Variants with tensors like LoRA's that are applied differently.
    *(({name: value}, None, tmesh.UnsupportedError, name) for name, value in (
        ("use_qalora", True), ("use_bdlora", {"target_modules_bd_a": ["1"]}), ("alora_invocation_tokens", [1, 2]),
        ("arrow_config", {"top_k": 2}), ("kasa_config", {"beta": 1}), ("monteclora_config", {"num_samples": 2}))),
    ({}, lambda made: made.pop(A), tmesh.ProtocolError, "no lora_A"),
    ({}, lambda made: made.pop(B), tmesh.ProtocolError, "no lora_B"),
    ({}, lambda made: made.clear(), tmesh.ProtocolError, "no tensors"),
    ({}, lambda made: made.update({"other": torch.ones(1)}), tmesh.UnsupportedError, "'other'"),
    ({}, lambda made: made.update({A: torch.ones(2, 4, 1)}), tmesh.ProtocolError, "not a matrix"),
    ({}, lambda made: made.update({A: torch.ones(2, 4, dtype=torch.int32)}), tmesh.ProtocolError, "floating-point"),
    ({}, lambda made: made.update({B: torch.ones(3, 2).half()}), tmesh.ProtocolError, "float16"),
    ({}, lambda made: made.update({A: torch.ones(2, 5)}), tmesh.InvalidError, r"\[3, 5\]; the base has \[3, 4\]"),
    ({}, lambda made: made.update({B: torch.ones(4, 2)}), tmesh.InvalidError, r"\[4, 4\]; the base has"),
    ({}, lambda made: made.update({A.replace("1", "2"): torch.ones(2, 4), B.replace("1", "2"): torch.ones(3, 2)}),
     tmesh.InvalidError, "'2', which is no linear layer"),
]


@pytest.mark.parametrize("config, change, error, words", REFUSED)
def test_refused_before_anybody_sees_it(served, tmp_path, config, change, error, words):
    net, slot, _ = served
    config, made = wrong(config, None, change)
    assert_refused(lambda: tmesh.lora.publish(slot, write(tmp_path / "bad", config, made), net), error, words)
    assert slot.generation == 0


def held():
    """Return this process's use of tmesh, and its open files."""
    gc.collect()
    stats = tmesh.stats()
    return stats["regions_live"], stats["bytes_live"], region_mappings(), len(os.listdir("/proc/self/fd"))


def test_a_thousand_are_refused(served, tmp_path):
    """Memory and descriptors return to their old numbers."""
    net, slot, _ = served
    folders = [write(tmp_path / str(number), *wrong(config, None, change))
               for number, (config, change, _, _) in enumerate(REFUSED)]

    def refuse(folder):
        assert_refused(lambda: tmesh.lora.publish(slot, folder, net), tmesh.Error)

    for folder in folders:
        refuse(folder)
    before = held()
    for number in range(1000):
        refuse(folders[number % len(folders)])
    # Threads of earlier tests may still have been closing some of these when it was counted.
    eventually(lambda: all(now <= then for now, then in zip(held(), before)))
    assert slot.generation == 0


@pytest.mark.parametrize("text, error", [
    (b"{", tmesh.ProtocolError), (b"[]", tmesh.ProtocolError), (b"\xff", tmesh.ProtocolError),
    (b"[" * 100000, tmesh.ProtocolError), (b" " * (1 << 20) + b"{}", tmesh.ProtocolError), (None, FileNotFoundError),
], ids=["no end", "a list", "not UTF-8", "deep", "long", "none"])
def test_broken_configurations(served, tmp_path, text, error):
    net, slot, _ = served
    folder = write(tmp_path / "bad", CONFIG, tensors(1, {"1": 2}))
    (folder / "adapter_config.json").unlink()
    if text is not None:
        (folder / "adapter_config.json").write_bytes(text)
    assert_refused(lambda: tmesh.lora.publish(slot, folder, net), error)
    assert slot.generation == 0


def test_a_server_with_another_base_is_told(served, tmp_path):
    """Modules that its base lacks would be ignored silently, and other shapes would raise PyTorch's error."""
    net, slot, adapted = served
    write(tmp_path / "a", CONFIG, tensors(1, {"0.up": 2, "1": 2}))
    tmesh.lora.publish(slot, str(tmp_path / "a"), net)
    x = torch.randn(5, 6)
    for other, words in ((net[0], "'0.up', which is no linear layer"),
                         (torch.nn.Sequential(net[0], torch.nn.Linear(4, 2)), r"\[3, 4\]; the base has \[2, 4\]")):
        elsewhere = tmesh.lora.Adapted(other, slot.token)
        for _ in range(2):
            assert_refused(lambda: elsewhere(x), tmesh.InvalidError, words)
        tmesh.lora.publish(slot, None, net)
        assert torch.equal(elsewhere(x), other(x))
        tmesh.lora.publish(slot, str(tmp_path / "a"), net)
        elsewhere.close()
    assert not torch.equal(adapted(x), net(x))


@torch.no_grad()
def test_copies_of_the_base_are_the_base(served, tmp_path):
    net, slot, adapted = served
    write(tmp_path / "a", CONFIG, tensors(1, {"1": 2}))
    tmesh.lora.publish(slot, str(tmp_path / "a"), net)
    x = torch.randn(5, 6)
    for copied in copy.deepcopy(net[1]), pickle.loads(pickle.dumps(net[1])):
        assert torch.equal(copied(net[0](x)), net(x)) and not torch.equal(adapted(x), net(x))
    for use in copy.deepcopy, copy.copy, pickle.dumps:
        assert_refused(lambda: use(adapted), TypeError, "slot's token")


@torch.no_grad()
def test_a_call_that_is_running_when_it_is_closed(served, tmp_path):
    """The call has the adapter in all layers."""
    net, slot, _ = served
    write(tmp_path / "a", CONFIG, tensors(1, {"0.up": 2, "0.down": 2, "1": 2}))
    tmesh.lora.publish(slot, str(tmp_path / "a"), net)
    x, inside, further, answers = torch.randn(5, 6), threading.Event(), threading.Event(), []
    with tmesh.Slot() as other:
        tmesh.lora.publish(other, str(tmp_path / "a"), net)
        adapted = tmesh.lora.Adapted(net, other.token)
        want = adapted(x)
        stop = net[1].register_forward_pre_hook(lambda *_: (inside.set(), further.wait(PATIENCE), None)[-1])
        caller = threading.Thread(target=lambda: answers.append(adapted(x)))
        caller.start()
        assert inside.wait(PATIENCE)
        adapted.close()
        further.set()
        caller.join()
        stop.remove()
        assert_refused(lambda: adapted(x), tmesh.ReleasedError)
        adapted.close()
    assert torch.equal(answers[0], want) and not torch.equal(net(x), want)


def test_bad_input(served, tmp_path):
    net, slot, adapted = served
    folder = write(tmp_path / "a", CONFIG, tensors(1, {"1": 2}))
    (folder / "adapter_model.safetensors").write_bytes(b"junk")
    assert_refused(lambda: tmesh.lora.read(folder), tmesh.ProtocolError)
    assert_refused(lambda: tmesh.lora.publish(slot, None, 5), TypeError)
    assert_refused(lambda: tmesh.lora.publish(slot, tmp_path / "nowhere", net), FileNotFoundError)
    for value in ({}, {"1.A": [[1.0]]}, tmesh.bundle({}, metadata=json.dumps({"kind": "tmesh.lora", "scales": {"1": 10 ** 400}}))):
        slot.publish(value)
        assert_refused(lambda: adapted(X), tmesh.ProtocolError, "no adapter")
    adapted.close()
    assert_refused(lambda: adapted(X), tmesh.ReleasedError)
    assert torch.equal(net(X), base()(X))
    with pytest.raises(tmesh.UnsupportedError, match="CPU"):
        tmesh.lora.Adapted(torch.nn.Linear(1, 1, device="meta"), slot.token)


RANKS = [{"0.up": 2, "1": 2}, {"0.down": 2, "0.up": 2}, {"1": 2}]
SERVE = MAKE + """
import sys, tmesh, tmesh.lora
torch.set_num_threads(1)
net, x = base(), torch.linspace(-1, 1, 30).reshape(5, 6)
want = torch.load(sys.argv[2])
served = tmesh.lora.Adapted(net, sys.argv[1])
answers, seen = 0, set()
print("ready", flush=True)
# Print the first twelve generations: the publisher waits until each was seen.
with torch.no_grad():
    while served.generation < 1000:
        y = served(x)
        fits = [torch.allclose(y, one, atol=1e-4) for one in want]
        assert fits == [number == (served.generation - 1) % 3 for number in range(3)], (served.generation, fits)
        answers, live = answers + 1, tmesh.stats()["regions_live"]
        if served.generation not in seen and served.generation <= 12:
            print(served.generation, flush=True)
        seen.add(served.generation)
        if len(seen) == 10:
            before = live
assert len(seen) > 10 and live <= before + 6, (live, before)
served.close()
print(answers, len(seen))
"""


def test_a_thousand_swaps(tmp_path):
    """Real processes serve. Each answer is of exactly one generation, and memory returns to its old size."""
    net = base()
    adapters = [tmesh.lora.read(write(tmp_path / str(number), CONFIG, tensors(number, ranks)))
                for number, ranks in enumerate(RANKS)]
    with torch.no_grad():
        torch.save([merged(number, ranks, dict.fromkeys(ranks, 2.0))(X) for number, ranks in enumerate(RANKS)],
                   tmp_path / "want")
    live = tmesh.stats()["regions_live"]
    slot = tmesh.Slot()
    tmesh.lora.publish(slot, adapters[0], net)
    servers = [subprocess.Popen([sys.executable, "-c", SERVE, slot.token, tmp_path / "want"], stdout=subprocess.PIPE,
                                text=True) for _ in range(3)]
    try:
        for server in servers:
            assert server.stdout.readline() == "ready\n"
        go = threading.Event()
        for number in range(1, 1000):
            for server in servers:
                if number <= 12:
                    assert server.stdout.readline() == f"{number}\n"
            assert tmesh.lora.publish(slot, adapters[number % 3], net) == number + 1
            go.wait(0.002)
        for server in servers:
            out, _ = server.communicate(timeout=PATIENCE)
            assert server.returncode == 0, out
    finally:
        for server in servers:
            server.kill()
            server.communicate()
    slot.close()
    eventually(lambda: tmesh.stats()["regions_live"] <= live)
