"""Families outside the table of models: trained if they are computed right, refused in one line if not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.families import COMMON, family_model
from roll.config.decoder import model_fault
from roll.config.schema import Model, Optimizer
from roll.conformance.trainers import OBJECTIVES
from roll.engines.hf.decoder import HuggingFaceDecoder, check_packing, check_replay
from roll.engines.native.attention import Ragged
from roll.engines.native.model_spec import ModelSpec, build
from roll.errors import ConfigError
from tests.engines.models import batch_of, prompts, trainer

pytestmark = pytest.mark.slow

_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_INDEXER = {"index_n_heads": 2, "index_head_dim": 32, "index_block_size": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "starcoder2": {"sliding_window": 8},
    "gpt_neox": {},
    "granitemoe": _EXPERTS,
    "aria_text": {"moe_num_experts": 4, "moe_topk": 2},
    "afmoe": {**_EXPERTS, "num_dense_layers": 1, "head_dim": 32, "sliding_window": 8},
    "phimoe": {**_EXPERTS, "head_dim": 32},
    "jetmoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 32},
    "minimax_m3_vl_text": {**_EXPERTS, **_INDEXER, "head_dim": 32, "dense_intermediate_size": 32},
}
ROWS = [[index + 5, *row[1:]] for index, row in enumerate(prompts(4, vocab=96, shortest=3, longest=40, seed=1))]


def made(kind: str, **changes: Any) -> Any:
    """A small model of a family."""
    config = AutoConfig.for_model(kind, **{**COMMON, **FAMILIES[kind], **changes})
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize("kind", ["starcoder2", "gpt_neox", "granitemoe", "aria_text", "afmoe"])
def test_logprobs_are_those_of_the_unpacked_model_and_an_update_raises_them(kind: str) -> None:
    model, batch = made(kind), batch_of(ROWS)
    with torch.no_grad():
        alone = [model(torch.tensor([row]), use_cache=False).logits[0, :-1].log_softmax(-1) for row in ROWS]
    each = zip(alone, ROWS, strict=True)
    expected = torch.cat([row.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).flatten() for row, ids in each])
    decoder = HuggingFaceDecoder(model)
    check_packing(decoder)
    engine = trainer(decoder, optimizer=Optimizer(lr=1e-3))

    async def use() -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
        await engine.start()
        before = await engine.logprobs(batch)
        metrics = await engine.update(batch, OBJECTIVES[0])
        return before, await engine.logprobs(batch), metrics

    before, after, metrics = asyncio.run(use())
    starts = torch.tensor(batch.lengths).cumsum(0) - torch.tensor(batch.lengths)
    first = torch.isin(torch.arange(batch.num_tokens), starts)
    torch.testing.assert_close(before[~first], expected, rtol=1e-5, atol=1e-5)
    assert not torch.equal(before, after) and metrics["loss/refused"] == 0
    assert ("experts/balance" in metrics) == (kind in ("granitemoe", "aria_text", "afmoe"))


def test_routers_that_take_given_experts_are_told_from_those_that_do_not() -> None:
    for kind in ("granitemoe", "afmoe"):
        check_replay(HuggingFaceDecoder(made(kind)))
    for name in ("DeepSeek-V3", "GPT-OSS"):
        check_replay(HuggingFaceDecoder(family_model(name)))
    for kind in ("phimoe", "jetmoe"):
        with pytest.raises(ConfigError, match=rf"router_replay: the routers of model_type '{kind}' cannot be given"):
            check_replay(HuggingFaceDecoder(made(kind)))


def test_attention_that_chooses_its_tokens_is_refused() -> None:
    """With few tokens it chooses all of them, and equals the packed one."""
    kinds = ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]
    model = made("minimax_m3_vl_text", layer_types=kinds)
    assert model_fault(model.config.to_dict(), "auto", 16).startswith("layers of minimax_m3_sparse are not supported")
    with pytest.raises(ConfigError, match="chooses by itself what tokens attend to"):
        check_packing(HuggingFaceDecoder(model))


def test_a_family_whose_code_fails_is_refused_in_one_line() -> None:
    model = family_model("Qwen3")

    def fail(x: Any) -> Any:
        raise TypeError("no mask\nat all")

    model.model.layers[1].mlp.forward = fail
    with pytest.raises(ConfigError, match=r"cannot compute packed sequences \(TypeError: no mask at all\); choose"):
        check_packing(HuggingFaceDecoder(model))


def written(model: Any, folder: Path, change: Any) -> ModelSpec:
    """A model in files, with its tensors changed by `change`."""
    model.save_pretrained(folder)
    tensors: dict[str, torch.Tensor] = change(load_file(folder / "model.safetensors"))
    save_file({name: each.clone() for name, each in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return ModelSpec(model=Model(path=str(folder)), engine="hf")


def test_tensors_that_transformers_ignores_are_ignored(tmp_path: Path) -> None:
    """Published files of DeepSeek-V3 have a layer for several tokens at once, old ones a buffer of each layer."""
    more = {
        "model.layers.61.eh_proj.weight": torch.ones(4),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    model = family_model("DeepSeek-V3")
    decoder = build(written(model, tmp_path / "more", lambda tensors: {**tensors, **more}))
    assert torch.equal(decoder.head, model.lm_head.weight)
    with pytest.raises(ConfigError, match=r"tensor other .* does not fit config\.json"):
        build(written(model, tmp_path / "other", lambda tensors: {**tensors, "other": torch.ones(4)}))


def test_files_of_the_body_alone_are_read_by_names_without_its_prefix(tmp_path: Path) -> None:
    """As those of GPT-2."""
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("gpt2", vocab_size=96, n_embd=64, n_layer=2, n_head=4)
    )
    old = {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}
    spec = written(
        model, tmp_path, lambda files: {name.removeprefix("transformer."): files[name] for name in files} | old
    )
    decoder, row = build(spec), torch.tensor(ROWS[2])
    layout = Ragged((len(row),), device=torch.device("cpu"))
    with torch.no_grad():
        found = decoder.hidden(row, layout.positions, layout.attend) @ decoder.head.t()
        expected = model.eval()(row.unsqueeze(0), use_cache=False).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
