# SPDX-License-Identifier: MIT
"""A trainer of test_vllm.py: vllm_trainer.py MODEL SECOND. Each line on stdin publishes the weights of MODEL, then of SECOND, and so on.

It prints each call to the engine as JSON, and waits for a line before it goes on."""

import json
import os
import sys

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import transformers  # noqa: E402
from vllm.distributed.weight_transfer.base import ModuleSource  # noqa: E402
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory  # noqa: E402

from tmesh.vllm import register  # noqa: E402

register()
from tmesh.vllm.weights import TrainerInit  # noqa: E402


class Client:
    def _call(self, name, *args):
        print(json.dumps({"rpc": name, "args": args}), file=ANSWERS, flush=True)
        if (heard := sys.stdin.readline().strip()) != "done":
            raise RuntimeError(heard)

    def init_weight_transfer_engine(self, init_info):
        self._call("init_weight_transfer_engine", init_info)

    def start_weight_update(self):
        self._call("start_weight_update")

    def update_weights(self, update_info):
        self._call("update_weights", update_info)

    def finish_weight_update(self, weight_version=None):
        self._call("finish_weight_update")


class Turns(ModuleSource):
    """The weights of each module in turn."""

    def __init__(self, modules):
        super().__init__(modules[0])
        self._modules, self._turn = modules, -1

    def __iter__(self):
        self._turn += 1
        self._module = self._modules[self._turn % len(self._modules)]
        return super().__iter__()


nets = [transformers.AutoModelForCausalLM.from_pretrained(path, dtype="bfloat16") for path in sys.argv[1:]]
trainer = WeightTransferTrainerFactory.trainer_init(TrainerInit(rank=0), client=Client(), source=Turns(nets))
while sys.stdin.readline():
    trainer.send_weights()
    print(json.dumps({"sent": trainer.slot.generation}), file=ANSWERS, flush=True)
