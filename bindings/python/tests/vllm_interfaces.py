# SPDX-License-Identifier: MIT
"""The parts of vLLM's interfaces that tmesh.vllm implements or calls: parameters of each method, and the methods that are abstract.

Tests without vLLM use stand-ins made of this record. test_vllm.py compares it with the installed package."""

import enum
import inspect
import sys
import types

VERSION = "0.32.0"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
TRANSFER = "vllm.distributed.weight_transfer.base"
LOADER = "vllm.model_executor.model_loader"

PROPERTY = "(property)"

# Class: method: its parameters, with "*" in front if it is abstract, or PROPERTY.
CLASSES = {
    f"{CONNECTOR}:KVConnectorBase_V1": {
        "__init__": "vllm_config role kv_cache_config", "register_kv_caches": "kv_caches", "start_load_kv": "* forward_context kwargs",
        "wait_for_layer_load": "* layer_name", "save_kv_layer": "* layer_name kv_layer attn_metadata kwargs", "wait_for_save": "*",
        "get_finished": "finished_req_ids", "get_block_ids_with_load_errors": "", "shutdown": "",
        "get_num_new_matched_tokens": "* request num_computed_tokens", "update_state_after_alloc": "* request blocks num_external_tokens",
        "build_connector_meta": "* scheduler_output", "update_connector_output": "connector_output", "request_finished": "request block_ids",
        "reset_cache": "", "_get_connector_metadata": "", "requires_kv_delivery": PROPERTY},
    f"{CONNECTOR}:KVConnectorMetadata": {},
    f"{TRANSFER}:WeightTransferEngine": {
        "__init__": "config vllm_config device model", "init_transfer_engine": "* init_info", "start_weight_update": "*", "finish_weight_update": "*",
        "update_weights": "update_info", "receive_weights": "* update_info", "shutdown": "*", "parse_update_info": "update_dict"},
    f"{TRANSFER}:TrainerWeightTransferEngine": {"__init__": "client source is_sender", "send_weights": "*", "shutdown": ""},
    f"{TRANSFER}:WeightTransferInitInfo": {}, f"{TRANSFER}:WeightTransferUpdateInfo": {}, f"{TRANSFER}:TrainerInitInfo": {},
    f"{LOADER}.default_loader:DefaultModelLoader": {
        "load_model": "vllm_config model_config prefix", "load_weights": "model model_config", "get_all_weights": "model_config model",
        "get_external_weight_memory": "vllm_config", "_prepare_weights": "model_name_or_path subfolder revision fall_back_to_pt allow_patterns_overrides"},
    f"{LOADER}.weight_cache.ipc_loader:IpcModelLoader": {
        "_build_model": "vllm_config model_config prefix state", "_apply_entries": "model state device_index"},
    "vllm.config:SpeculativeConfig": {"apply_draft_overrides": "vllm_config"},
    "vllm.config:KernelConfig": {"compute_hash": ""}, "vllm.config:AttentionConfig": {"compute_hash": ""},
}

# Class: fields of a configuration that the load format reads on a GPU.
FIELDS = {
    "vllm.config:VllmConfig": "model_config parallel_config cache_config kernel_config attention_config speculative_config weight_transfer_config",
    "vllm.config:ModelConfig": "enable_sleep_mode enable_cumem_allocator is_moe use_mla",
    "vllm.config:ParallelConfig": "enable_eplb eplb_config all2all_backend prefill_context_parallel_size decode_context_parallel_size dcp_q_replicate",
    "vllm.config:EPLBConfig": "num_redundant_experts",
    "vllm.config:CacheConfig": "cache_dtype kv_cache_dtype_skip_layers",
    "vllm.config:AttentionConfig": "backend",
    "vllm.config:SpeculativeConfig": "method draft_model_config draft_parallel_config attention_backend",
    "vllm.config:WeightTransferConfig": "backend",
}


def parameters(method):
    """Return a method's parameters in the record's form."""
    if isinstance(method, property):
        return PROPERTY
    names = [name for name in inspect.signature(method).parameters if name not in ("self", "cls")]
    return " ".join(["*"] * getattr(method, "__isabstractmethod__", False) + names)


def install():
    """Put stand-ins of vLLM's modules into sys.modules. Return a function that removes them, and tmesh.vllm's modules."""
    before = {*sys.modules}
    modules = {}

    def module(name):
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            path = ".".join(parts[:count])
            if path not in modules:
                modules[path] = sys.modules[path] = types.ModuleType(path)
                modules[path].__path__ = []
        return modules[name]

    module("vllm").__version__ = VERSION
    module("vllm.distributed").get_tensor_model_parallel_rank = lambda: 0
    for name, methods in CLASSES.items():
        path, _, kind = name.partition(":")
        found = {}
        for method, names in methods.items():
            mandatory = names.startswith("*")
            def stand_in(self, *args, **more):
                raise NotImplementedError
            stand_in.__isabstractmethod__ = mandatory
            found[method] = property(stand_in) if names == PROPERTY else stand_in
        setattr(module(path), kind, type(kind, (), found))
    base = module(CONNECTOR)
    base.KVConnectorRole = enum.Enum("KVConnectorRole", "SCHEDULER WORKER", start=0)

    def connector(self, vllm_config, role, kv_cache_config):
        self._kv_transfer_config, self._kv_cache_config = vllm_config.kv_transfer_config, kv_cache_config

    base.KVConnectorBase_V1.__init__ = connector
    base.KVConnectorBase_V1.bind_connector_metadata = lambda self, meta: setattr(self, "_meta", meta)
    base.KVConnectorBase_V1._get_connector_metadata = lambda self: self._meta
    transfer = module(TRANSFER)

    def engine(self, config, vllm_config, device, model):
        self.model, self.model_config = model, None

    def trainer(self, *, client, source=None, is_sender=True):
        self.client, self.source, self.is_sender = client, source, is_sender

    transfer.WeightTransferEngine.__init__ = engine
    transfer.WeightTransferEngine.parse_update_info = lambda self, update: self.update_info_cls(**update)
    transfer.TrainerWeightTransferEngine.__init__ = trainer
    reload = module("vllm.model_executor.model_loader.reload")
    reload.initialize_layerwise_reload = lambda model: model.begin()
    reload.finalize_layerwise_reload = lambda model, config: model.end()

    class Nothing:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    module("vllm.model_executor.model_loader.mtp_validation").disable_mtp_completeness_check = Nothing

    def remove():
        for name in {*sys.modules} - before:
            if name.partition(".")[0] == "vllm" or name.startswith("tmesh.vllm"):
                del sys.modules[name]

    return remove
