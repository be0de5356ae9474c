# SPDX-License-Identifier: MIT
"""Updates of weights while engines serve: a trainer publishes to a slot, engines take a generation in one step.

    LLM(MODEL, weight_transfer_config={"backend": "tmesh"})       # an engine

    from tmesh.vllm.weights import TrainerInit                    # a trainer
    trainer = WeightTransferTrainerFactory.trainer_init(TrainerInit(rank=0), client=client, source=ModuleSource(net))
    trainer.send_weights()

An engine applies nothing before finish_weight_update(). It then has the whole generation in its hands, so a trainer that dies at
any point leaves the old weights or the new ones."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, ClassVar

from ..bundles import bundle
from ..errors import InvalidError, StaleError, UnsupportedError
from ..interop import load
from ..slots import Slot, SlotReader, SlotValue
from . import _PACKAGE, VERSION
from . import generation as _generation

__all__ = ["Engine", "Init", "Trainer", "TrainerInit", "Update"]

_base: Any
_reload: Any
_mtp: Any
_base, _reload, _mtp = load(_PACKAGE, VERSION, {
    "vllm.distributed.weight_transfer.base": "WeightTransferEngine WeightTransferInitInfo WeightTransferUpdateInfo TrainerInitInfo "
                                             "TrainerWeightTransferEngine",
    "vllm.model_executor.model_loader.reload": "initialize_layerwise_reload finalize_layerwise_reload",
    "vllm.model_executor.model_loader.mtp_validation": "disable_mtp_completeness_check"})


@dataclasses.dataclass
class Init(_base.WeightTransferInitInfo):  # type: ignore[misc]
    """The slot that a trainer publishes to."""

    token: str


@dataclasses.dataclass
class Update(_base.WeightTransferUpdateInfo):  # type: ignore[misc]
    """The generation to take."""

    generation: int


class Engine(_base.WeightTransferEngine):  # type: ignore[misc]
    """A worker's side. vLLM makes it for weight_transfer_config={"backend": "tmesh"}."""

    init_info_cls = Init
    update_info_cls = Update

    _reader: SlotReader | None = None
    _pending: SlotValue | None = None
    # The generation that the model has. The publisher holds its newest one as well, so this costs no memory.
    _applied: SlotValue | None = None
    _slot = ""

    def init_transfer_engine(self, init_info: Init) -> None:
        if not isinstance(init_info.token, str):
            raise InvalidError(22, "weight transfer by tmesh: token is missing: the slot's, as Slot.token gives it")
        if getattr(self.model, "tmesh_read_only", False):
            raise UnsupportedError(95, "weight transfer by tmesh: this model's weights are mapped from GPU memory of all engines, for reading: start the "
                                       "engine with the mode \"copy\" to update them")
        reader = Slot.open(init_info.token)
        self.shutdown()
        self._reader, self._slot = reader, init_info.token

    def start_weight_update(self) -> None:
        """Forget an update that was not finished, such as that of a trainer that has died."""
        self._pending = None

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Update) -> None:
        """Take the generation, and hold it. StaleError: the slot has another one."""
        if self._reader is None:
            raise InvalidError(22, "weight transfer by tmesh: there is no slot yet: call init_weight_transfer_engine({\"token\": ...})")
        value = self._reader.read()
        if value.generation != update_info.generation:
            raise StaleError(116, f"weight transfer by tmesh: generation {update_info.generation} was announced, and the slot has {value.generation}: "
                                  "announce that one")
        self._pending = value

    def finish_weight_update(self) -> None:
        """Load the generation into the model. An engine does not compute meanwhile. If the load fails, the generation before is
        loaded again."""
        value, self._pending = self._pending, None
        if value is None:
            return
        _generation.set(f"{self._slot} {value.generation}".encode())
        try:
            self._load(value)
        except Exception as problem:
            if self._applied is None:
                problem.add_note(f"This worker may have weights of generation {value.generation} and older ones: publish a whole model, or restart the engine.")
                raise
            self._load(self._applied)
            _generation.set(f"{self._slot} {self._applied.generation}".encode())
            problem.add_note(f"This worker has generation {self._applied.generation} again.")
            raise
        self._applied = value

    def _load(self, value: SlotValue) -> None:
        with getattr(self.model, "tmesh_processes_in", contextlib.nullcontext)():
            _reload.initialize_layerwise_reload(self.model)
            with _mtp.disable_mtp_completeness_check():
                self.model.load_weights(iter(value.state_dict(private=False).items()))
            _reload.finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._pending = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@dataclasses.dataclass
class TrainerInit(_base.TrainerInitInfo):  # type: ignore[misc]
    """A trainer's configuration. name: the slot's, for processes that look for it."""

    backend: ClassVar[str] = "tmesh"
    name: str | None = None


class Trainer(_base.TrainerWeightTransferEngine):  # type: ignore[misc]
    """A trainer's side. Rank 0 has the slot and publishes."""

    init_info_cls = TrainerInit

    def __init__(self, *, client: Any, source: Any, is_sender: bool, slot: Slot | None) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self.slot = slot

    @classmethod
    def trainer_init(cls, init_info: TrainerInit, *, client: Any, source: Any = None) -> Trainer:
        if source is None:
            raise InvalidError(22, "weight transfer by tmesh: source is missing: ModuleSource(module) makes one")
        slot = Slot(name=init_info.name, label="weights") if init_info.is_sender else None
        if slot:
            client.init_weight_transfer_engine({"token": slot.token})
        return cls(client=client, source=source, is_sender=init_info.is_sender, slot=slot)

    def send_weights(self) -> None:
        """Publish the source's weights as one generation, and let the engines take it."""
        # Iterating may gather parts from all ranks, so each rank does it.
        tensors = {name: tensor.detach().cpu() for name, tensor in self.source}
        if self.slot is None:
            return
        generation = self.slot.publish(bundle(tensors))
        try:
            self.client.start_weight_update()
        except Exception:
            # A trainer that has died may have left an update open. The engine has dropped its part, so finishing loads nothing.
            self.client.finish_weight_update()
            self.client.start_weight_update()
        self.client.update_weights({"generation": generation})
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        if self.slot is not None:
            self.slot.close()
