"""Weights per rank in a plan of memory, compared with the tensors that the rank builds.

They are built in a child process, since Megatron-Core without a GPU changes `torch.cuda` for the whole process.
"""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.families import family_model
from roll.config.megatron import layout_fault
from roll.engines.megatron.ranks import MegatronLayout, MegatronRanks, parallel_state
from roll.engines.native.mixed import Precision
from roll.placement.architecture import Architecture
from roll.placement.blocks import Blocks
from roll.placement.facts import RoleFacts
from roll.placement.stages import blocks_of, num_weights

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("megatron")]

TRAIN = RoleFacts(role="actor_train", backend="megatron", devices="auto", workers=None, model=None, trains=True)
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("Llama 3", {}),
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen3", {"tie_word_embeddings": True, "vocab_size": 95}),
    ("Qwen3-MoE", {}),
    ("Mixtral", {}),
    ("DeepSeek-V3", {}),
    ("DeepSeek-V3", {"q_lora_rank": None}),
]
LAYOUTS = [
    {"tp": 1, "pp": 1, "cp": 1, "ep": 1},
    {"tp": 2, "pp": 1, "cp": 1, "ep": 1},
    {"tp": 2, "pp": 2, "cp": 1, "ep": 1},
    {"tp": 1, "pp": 4, "cp": 1, "ep": 1},
    {"tp": 2, "pp": 1, "cp": 2, "ep": 2},
    {"tp": 2, "pp": 2, "cp": 1, "ep": 2},
]


@contextmanager
def joined(layout: MegatronLayout, rank: int) -> Iterator[MegatronRanks]:
    """One rank whose groups exist, and in which messages go nowhere: modules are built, and compute nothing."""
    groups = parallel_state()
    dist.init_process_group("fake", rank=rank, world_size=layout.size, store=FakeStore())
    from roll.engines.megatron.package import model_parallel_cuda_manual_seed

    try:
        groups.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            expert_tensor_parallel_size=layout.expert_tp,
            create_gloo_process_groups=False,
        )
        model_parallel_cuda_manual_seed(0)
        ranks = MegatronRanks(layout, rank)
        ranks.stage = groups.get_pipeline_model_parallel_rank()
        ranks.expert_rank = groups.get_expert_model_parallel_rank()
        yield ranks
    finally:
        groups.destroy_model_parallel()
        dist.destroy_process_group()


def build(config: Any, sizes: dict[str, int]) -> list[tuple[int, int]]:
    """Stage and number of parameters of each rank."""
    from roll.engines.megatron.model import MegatronModel

    built: list[tuple[int, int]] = []
    for rank in range(4):
        with joined(MegatronLayout(url="", size=4, **sizes), rank) as ranks:
            module = MegatronModel(config, ranks, Precision()).module
            built.append((ranks.stage, sum(each.numel() for each in module.parameters())))
    return built


@pytest.fixture(scope="module")
def child() -> Iterator[Any]:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        yield pool


@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: " ".join(f"{name}{size}" for name, size in sizes.items()))
@pytest.mark.parametrize(("family", "changes"), FAMILIES, ids=str)
def test_the_weights_of_each_rank_are_as_many_as_planned(
    family: str, changes: dict[str, Any], sizes: dict[str, int], child: Any
) -> None:
    config = family_model(family, **{"num_hidden_layers": 4, "num_key_value_heads": 4, **changes}).config
    values = {**config.to_dict(), "vocab_size": config.vocab_size}
    if layout_fault(values, workers=4, **sizes):
        pytest.skip("the family cannot have this layout")
    blocks = Blocks.of(values)
    assert blocks is not None
    model = Architecture(vocab=0, hidden=0, layers=4, heads=4, kv_heads=4, head_dim=1, mlp=1, blocks=blocks)
    role = replace(TRAIN, model=model, **sizes)
    for rank, (stage, num) in enumerate(child.apply(build, (config, sizes))):
        planned = num_weights(role, blocks_of(role).stages(role.pp)[stage])
        assert sum(planned) == num, f"rank {rank}"
