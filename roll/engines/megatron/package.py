"""Names of megatron-core, untyped because the package is optional. Imported only by processes that hold a rank."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from roll.engines.megatron import cpu

cpu.install()
_layers: Any = import_module("megatron.core.tensor_parallel.layers")
_configs: Any = import_module("megatron.core.transformer.transformer_config")
_data_parallel: Any = import_module("megatron.core.distributed")
_optimizer: Any = import_module("megatron.core.optimizer")

ColumnParallelLinear: Any = _layers.ColumnParallelLinear
RowParallelLinear: Any = _layers.RowParallelLinear
VocabParallelEmbedding: Any = _layers.VocabParallelEmbedding
set_tensor_model_parallel_attributes: Any = _layers.set_tensor_model_parallel_attributes
mappings: Any = import_module("megatron.core.tensor_parallel.mappings")
model_parallel_cuda_manual_seed: Any = import_module("megatron.core.tensor_parallel").model_parallel_cuda_manual_seed
TransformerConfig: Any = _configs.TransformerConfig
MLATransformerConfig: Any = _configs.MLATransformerConfig
TransformerLayer: Any = import_module("megatron.core.transformer.transformer_layer").TransformerLayer
MLASelfAttention: Any = import_module("megatron.core.transformer.multi_latent_attention").MLASelfAttention
GPTModel: Any = import_module("megatron.core.models.gpt.gpt_model").GPTModel
gpt_layer_specs: Any = import_module("megatron.core.models.gpt.gpt_layer_specs")
PackedSeqParams: Any = import_module("megatron.core.packed_seq_params").PackedSeqParams
get_forward_backward_func: Any = import_module("megatron.core.pipeline_parallel").get_forward_backward_func
DistributedDataParallel: Any = _data_parallel.DistributedDataParallel
DistributedDataParallelConfig: Any = _data_parallel.DistributedDataParallelConfig
finalize_model_grads: Any = _data_parallel.finalize_model_grads
OptimizerConfig: Any = _optimizer.OptimizerConfig
get_megatron_optimizer: Any = _optimizer.get_megatron_optimizer
TopKRouter: Any = import_module("megatron.core.transformer.moe.router").TopKRouter
moe_utils: Any = import_module("megatron.core.transformer.moe.moe_utils")
latent_attention: Any = import_module("megatron.core.transformer.multi_latent_attention")
random: Any = import_module("megatron.core.tensor_parallel.random")
cpu.complete(moe_utils, latent_attention, random)
