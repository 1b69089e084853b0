"""Experts of backend megatron compared with one process and the model of transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.layout_ranks import RankProcesses
from benchmarks.layouts import BOUND, LAYOUTS, Reference
from roll.config.router_losses import RouterLosses
from roll.engines.megatron.ranks import MegatronLayout
from roll.engines.native.mixed import Precision
from roll.errors import ConfigError
from roll.types import Batch

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("megatron")]

GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}
REPLAYS = [
    ("Qwen3-MoE", {"size": 2, "tp": 2}, {}, False),
    ("Qwen3-MoE", {"size": 2, "ep": 2}, {"norm_topk_prob": False}, False),
    ("Qwen3-MoE", {"size": 2, "pp": 2}, {}, True),
    ("Mixtral", {"size": 4, "tp": 2, "cp": 2}, {"num_key_value_heads": 4}, True),
    ("DeepSeek-V3", {"size": 4, "tp": 2, "ep": 2}, GROUPS, False),
]


def replayed(reference: Reference, seed: int = 3) -> Batch:
    """The batch with random experts, unknown for every fifth token."""
    batch, config = reference.batch, reference.config
    num = getattr(config, "num_local_experts", None) or getattr(config, "n_routed_experts", None) or config.num_experts
    noise = torch.Generator().manual_seed(seed)
    size = (batch.num_tokens, config.num_hidden_layers, num)
    experts = torch.rand(size, generator=noise).argsort(-1)[..., : config.num_experts_per_tok].to(torch.int16)
    experts[::5] = -1
    return replace(batch, experts=experts)


@pytest.mark.parametrize(
    ("family", "sizes", "changes", "checkpointing"), REPLAYS, ids=[f"{case[0]} {case[1]}" for case in REPLAYS]
)
def test_replayed_experts_have_the_gradient_of_one_process(
    family: str, sizes: Any, changes: Any, checkpointing: bool, processes: RankProcesses, tmp_path: Path
) -> None:
    reference = Reference(family, tmp_path, **changes)
    reference.batch = replayed(reference)
    precision = Precision(checkpointing=checkpointing)
    layout = MegatronLayout(url="", **sizes)
    assert processes.run(reference.error(processes, layout, precision=precision)) < BOUND
    alone, ranks = reference.metrics["alone"], reference.metrics["ranks"]
    assert ranks["experts/replay_changed"] == pytest.approx(alone["experts/replay_changed"], abs=0.01)
    assert ranks["experts/replay_changed"] > 0.5
    free = Reference(family, tmp_path / "free", **changes)  # the same weights
    own = processes.run(free._gradient_of(free.alone(free.case(layout)), "alone"))
    assert reference._gradient is not None
    assert (own - reference._gradient).norm() > 0.1 * own.norm()


def test_replay_changes_logprobs_to_those_of_one_process(processes: RankProcesses, tmp_path: Path) -> None:
    reference = Reference("Qwen3-MoE", tmp_path)
    batch, case = replayed(reference), reference.case(MegatronLayout(url="", **LAYOUTS["tp2 ep2"]))

    async def measure(engine: Any) -> Any:
        await engine.start()
        result = await engine.logprobs(batch), await engine.logprobs(reference.batch)
        await engine.stop()
        return result

    ranks, ranks_free = processes.run(measure(processes.trainer(case)))
    alone, alone_free = processes.run(measure(reference.alone(case)))
    torch.testing.assert_close(ranks, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ranks_free, alone_free, atol=1e-5, rtol=1e-5)
    assert (ranks - ranks_free).abs().max() > 1e-2


LOSSES = RouterLosses(balance=3.0, z=0.3)


@pytest.mark.parametrize(
    ("family", "sizes", "changes", "form"),
    [
        ("Qwen3-MoE", {"size": 2}, {"norm_topk_prob": False}, {"budget": 4096}),
        ("Mixtral", {"size": 4, "tp": 2, "cp": 2}, {"num_key_value_heads": 4}, {}),
        ("DeepSeek-V3", {"size": 4, "pp": 2, "ep": 2}, {}, {"precision": Precision(checkpointing=True)}),
    ],
    ids=["Qwen3-MoE dp2", "Mixtral tp2 cp2", "DeepSeek-V3 pp2 ep2"],
)
def test_losses_of_routers_have_the_gradient_of_one_process(
    family: str, sizes: Any, changes: Any, form: Any, processes: RankProcesses, tmp_path: Path
) -> None:
    reference, layout = Reference(family, tmp_path, **changes), MegatronLayout(url="", **sizes)
    assert processes.run(reference.error(processes, layout, router_losses=LOSSES)) < BOUND  # micro-batches of 90 tokens
    assert processes.run(reference.error(processes, layout, router_losses=LOSSES, **form)) < BOUND
    plain = processes.run(reference._gradient_of(reference.alone(reference.case(layout)), "alone"))
    assert reference._gradient is not None
    assert (plain - reference._gradient).norm() > 0.1 * plain.norm()


def test_losses_of_routers_of_a_dense_model_are_refused(processes: RankProcesses, tmp_path: Path) -> None:
    reference = Reference("Qwen3", tmp_path)
    engine = processes.trainer(reference.case(MegatronLayout(url="", **LAYOUTS["dp2"]), router_losses=LOSSES))
    with pytest.raises(ConfigError, match="router_losses: the model has no experts"):
        processes.run(engine.start())
    processes.run(engine.stop())  # its ranks have met, and would not meet those of another test


def test_no_token_is_dropped_where_all_choose_the_same_experts(processes: RankProcesses, tmp_path: Path) -> None:
    """A limited capacity of experts would drop most of them."""
    reference = Reference("Qwen3-MoE", tmp_path)
    config = reference.config
    size = (reference.batch.num_tokens, config.num_hidden_layers, config.num_experts_per_tok)
    experts = torch.arange(config.num_experts_per_tok, dtype=torch.int16).expand(size).contiguous()
    reference.batch = replace(reference.batch, experts=experts)
    layout = MegatronLayout(url="", **LAYOUTS["tp2 ep2"])
    assert processes.run(reference.error(processes, layout)) < BOUND
    metrics = reference.metrics["ranks"]
    assert metrics["experts/max_load"] == pytest.approx(config.num_experts / config.num_experts_per_tok)
    assert metrics["experts/unused"] == pytest.approx(1 - config.num_experts_per_tok / config.num_experts)


def test_a_stopped_trainer_leaves_no_threads(processes: RankProcesses, tmp_path: Path) -> None:
    """Each process group has threads; experts' last activations would keep the groups."""
    reference = Reference("Qwen3-MoE", tmp_path)

    def threads_after_a_step() -> list[int]:
        processes.run(reference.error(processes, MegatronLayout(url="", size=2, ep=2)))
        return processes.run(processes.ask(2, "num_threads"))

    assert threads_after_a_step() == threads_after_a_step()
