"""Models of transformers in our engines: the logits and gradients of their own forward pass, files, generation."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.families import FAMILIES, family_model
from roll.algorithms.recipe import Objective
from roll.config.lora import Lora
from roll.config.schema import Model, Optimizer
from roll.conformance.trainers import OBJECTIVES, check_trainer
from roll.engines.hf.decoder import HuggingFaceDecoder, check_packing
from roll.engines.hf.names import checkpoint_views
from roll.engines.native.attention import Ragged, sharing
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec, build, engine_for
from roll.errors import ConfigError
from roll.types import Sampling, Spec
from roll.weights.channel import Mailbox
from roll.weights.digest import digest
from roll.weights.huggingface import write_model
from tests.engines.models import batch_of, generator, prompts, request, serve, trainer

pytestmark = pytest.mark.slow

ROWS = prompts(4, vocab=96, shortest=3, longest=40, seed=1)
SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)
CLIPPED = Objective(loss=Spec("clipped"))
each_family = pytest.mark.parametrize("name", FAMILIES)
some_families = pytest.mark.parametrize("name", ["Gemma 2", "DeepSeek-V3", "GPT-OSS"])


def hidden(decoder: HuggingFaceDecoder, rows: list[list[int]], precision: Precision | None = None) -> torch.Tensor:
    """Hidden states of all rows, packed, with shared prefixes computed once."""
    batch = batch_of(rows)
    layout = Ragged(batch.lengths, device=torch.device("cpu"), shared=sharing(batch))
    states = decoder.hidden(batch.ids[layout.flat_tokens], layout.positions, layout.attend, precision)
    tokens = torch.cat([torch.arange(len(row) - 1) + start for row, start in zip(rows, starts(rows), strict=True)])
    return states[layout.flat_index(tokens)]


def starts(rows: list[list[int]]) -> list[int]:
    return [sum(map(len, rows[:index])) for index in range(len(rows))]


def logits(decoder: HuggingFaceDecoder, rows: list[list[int]]) -> torch.Tensor:
    plain = hidden(decoder, rows) @ decoder.head.t()
    return plain if decoder.logit_cap is None else (plain / decoder.logit_cap).tanh() * decoder.logit_cap


@each_family
def test_logits_and_gradients_equal_those_of_the_unpacked_model(name: str) -> None:
    model = family_model(name)
    rows = [*ROWS, ROWS[0][:2] + ROWS[1][2:]]  # begins like another row
    expected = torch.cat([model(torch.tensor([row]), use_cache=False).logits[0, :-1] for row in rows])
    slopes = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    (expected * slopes).sum().backward()
    gradients = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    decoder = HuggingFaceDecoder(model)
    found = logits(decoder, rows)
    (found * slopes).sum().backward()
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    for key, parameter in model.named_parameters():
        apart = (parameter.grad - gradients[key]).norm() / gradients[key].norm().clamp_min(1e-6)
        assert apart < 1e-4, f"{key}: {apart}"


@each_family
def test_a_trained_model_is_exported_and_read_again(name: str, tmp_path: Path) -> None:
    decoder = HuggingFaceDecoder(family_model(name))
    before = {key: tensor.detach().clone() for key, tensor in decoder.named_tensors()}
    engine, batch = trainer(decoder, optimizer=Optimizer(lr=1e-3)), batch_of(ROWS)

    async def use() -> tuple[float, float]:
        await engine.start()
        first = float((await engine.logprobs(batch))[batch.trained].mean())
        for _ in range(3):
            await engine.update(batch, CLIPPED)
        await engine.save(tmp_path / "model", resumable=False)
        return first, float((await engine.logprobs(batch))[batch.trained].mean())

    first, last = asyncio.run(use())
    assert last > first, "advantages are positive"
    changed = [key for key, tensor in decoder.named_tensors() if not torch.equal(tensor, before[key])]
    assert len(changed) >= 0.9 * len(before), sorted(set(before) - set(changed))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    with torch.no_grad():
        expected = torch.cat([again(torch.tensor([row]), use_cache=False).logits[0, :-1] for row in ROWS])
        assert (logits(decoder, ROWS) - expected).abs().max() <= 1e-5 * expected.abs().max()


@each_family
def test_generated_tokens_have_the_logprobs_that_the_trainer_computes(name: str) -> None:
    decoder = HuggingFaceDecoder(family_model(name))
    contexts = prompts(5, vocab=96, shortest=2, longest=30, seed=2)
    requests = [request(str(at), context, 24) for at, context in enumerate(contexts)]
    answers = asyncio.run(serve(generator(decoder, slots=4, context=64), requests))
    rows = [[*context, *answers[str(at)].ids] for at, context in enumerate(contexts)]
    batch = batch_of(rows)

    async def scored() -> torch.Tensor:
        engine = trainer(decoder)
        await engine.start()
        return await engine.logprobs(batch)

    found = asyncio.run(scored())
    for at, (row, start) in enumerate(zip(rows, starts(rows), strict=True)):
        new = found[start + len(contexts[at]) : start + len(row)]
        assert (new - torch.tensor(answers[str(at)].logprobs)).abs().max() < 1e-4


@each_family
def test_greedy_tokens_are_those_of_transformers(name: str) -> None:
    model = family_model(name)
    context = ROWS[0][:12]
    with torch.no_grad():
        ids = list(context)
        for _ in range(16):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    wanted = request("greedy", context, 16, sampling=Sampling(temperature=0))
    answers = asyncio.run(serve(generator(HuggingFaceDecoder(model), context=64), [wanted]))
    assert list(answers["greedy"].ids) == ids[len(context) :]


@some_families
def test_sixteen_bits_and_recomputation_change_no_more_than_rounding(name: str) -> None:
    decoder, gradients = HuggingFaceDecoder(family_model(name)), []
    narrow = torch.bfloat16
    for precision in (
        Precision(),
        Precision(checkpointing=True),
        Precision(dtype=narrow, checkpointing=True),
        Precision(dtype=narrow, exact=True),
    ):
        decoder.zero_grad()
        hidden(decoder, ROWS, precision).float().square().sum().backward()
        gradients.append(torch.cat([each.grad.flatten() for each in decoder.parameters() if each.grad is not None]))
    exact, recomputed, rounded, only_weights = gradients
    assert torch.equal(exact, recomputed)
    assert 0 < (only_weights - exact).norm() / exact.norm() < 0.2
    assert all(each.dtype == torch.float32 for each in gradients)
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.2


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("name", "shape"), [("Gemma 2", {}), ("DeepSeek-V3", {"num_experts_per_tok": 4}), ("Granite", {})]
)
def test_the_trainer_passes_the_conformance_kit(name: str, shape: Any) -> None:
    """With all experts at work: where a router changes its choice, the objective jumps, and no gradient shows it."""

    def make(budget: int) -> Any:
        return trainer(HuggingFaceDecoder(family_model(name, **shape)), optimizer=SGD, budget=budget)

    assert asyncio.run(check_trainer(make, vocab=96, objectives=OBJECTIVES[1:2])) == []


@some_families
def test_a_copy_shares_nothing(name: str) -> None:
    decoder = HuggingFaceDecoder(family_model(name))
    twin = copy.deepcopy(decoder)
    before = logits(twin, ROWS)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.zero_()
    assert torch.equal(logits(twin, ROWS), before)


@some_families
def test_weights_arrive_by_their_names_in_files(name: str) -> None:
    decoder, other = (HuggingFaceDecoder(family_model(name, seed=seed)) for seed in (0, 1))
    other.load(decoder.named_tensors(), where="here")
    assert torch.equal(logits(decoder, ROWS), logits(other, ROWS))
    missing = dict(decoder.named_tensors())
    missing.popitem()
    with pytest.raises(ConfigError, match=r"is missing \(1 in all\)"):
        other.load(missing.items(), where="here")


@some_families
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_digest_covers_all_tensors_sent_and_only_parameters_are_rounded(name: str, dtype: Any) -> None:
    """Routers of DeepSeek have biases, which no gradient changes and no engine rounds."""
    decoder, channel = HuggingFaceDecoder(family_model(name)), Mailbox()
    sender = trainer(decoder, channel=channel)
    sender.settings = replace(sender.settings, precision=Precision(dtype=dtype))
    sent = asyncio.run(sender.send(1))
    received = {key: tensor.clone() for key, tensor in channel.receive(version=1)}
    assert sent == digest(received.values())
    biases = {key: tensor for key, tensor in received.items() if key.endswith("e_score_correction_bias")}
    assert len(biases) == (2 if name == "DeepSeek-V3" else 0)
    assert all(tensor.any() and tensor.dtype == torch.float32 for tensor in biases.values())


def saved(tmp_path: Path, name: str) -> Model:
    decoder = HuggingFaceDecoder(family_model(name))
    write_model(tmp_path, decoder.config, dict(decoder.named_tensors()))
    return Model(path=str(tmp_path))


@some_families
def test_adapters_start_at_the_model_and_alone_are_trained(name: str, tmp_path: Path) -> None:
    model, targets = saved(tmp_path, name), ("o_proj",)
    decoder = build(ModelSpec(model=model, engine="hf", lora=Lora(rank=4, target_modules=targets)))
    assert torch.equal(logits(decoder, ROWS), logits(build(ModelSpec(model=model, engine="hf")), ROWS))
    frozen = {key: tensor.detach().clone() for key, tensor in decoder.named_tensors()}
    engine, batch = trainer(decoder), batch_of(ROWS)

    async def use() -> tuple[torch.Tensor, torch.Tensor]:
        await engine.start()
        before = await engine.logprobs(batch)
        for _ in range(2):
            await engine.update(batch, CLIPPED)
        await engine.save(tmp_path / "adapter")
        assert torch.equal(await engine.base_logprobs(batch), before)
        return before, await engine.logprobs(batch)

    before, after = asyncio.run(use())
    assert after[batch.trained].mean() > before[batch.trained].mean()
    assert all(torch.equal(tensor, frozen[key]) for key, tensor in decoder.named_tensors())
    again = build(ModelSpec(model=model, engine="hf", lora=Lora(rank=4, target_modules=targets)))
    asyncio.run(_load(trainer(again), tmp_path / "adapter"))
    assert torch.equal(logits(again, ROWS), logits(decoder, ROWS))


async def _load(engine: Any, path: Path) -> None:
    await engine.start()
    await engine.load(path)


def test_a_target_that_no_layer_has_is_named_with_those_that_exist(tmp_path: Path) -> None:
    spec = ModelSpec(model=saved(tmp_path, "Phi-3"), engine="hf")
    with pytest.raises(ConfigError, match="no q_proj; choose from down_proj, gate_up_proj, o_proj, qkv_proj"):
        build(replace(spec, lora=Lora(rank=4, target_modules=("q_proj", "o_proj"))))
    named = build(replace(spec, lora=Lora(rank=4, target_modules=("qkv_proj",))))
    assert {name.split(".")[4] for name, _ in named.adapter_tensors()} == {"qkv_proj"}
    default = build(replace(spec, lora=Lora(rank=4)))
    assert {name.split(".")[4] for name, _ in default.adapter_tensors()} == {"o_proj", "down_proj"}


def test_a_critic_has_values_and_no_language_head(tmp_path: Path) -> None:
    decoder = build(ModelSpec(model=saved(tmp_path, "Gemma 2"), engine="hf", head="new score"))
    engine, batch = (
        trainer(decoder, optimizer=Optimizer(lr=1e-2)),
        batch_of(ROWS, returns=torch.ones(sum(map(len, ROWS)))),
    )

    async def use() -> tuple[torch.Tensor, torch.Tensor]:
        await engine.start()
        before = await engine.values(batch)
        for _ in range(20):
            await engine.update(batch, Objective(loss=Spec("squared_value")))
        return before, await engine.values(batch)

    before, after = asyncio.run(use())
    assert not before.any() and (after - 1)[batch.trained].abs().mean() < 0.7
    assert "lm_head.weight" not in dict(decoder.named_tensors()) and "score.weight" in dict(decoder.named_tensors())


def mixing(model: Any) -> None:
    """Plant a layer that passes information from one token to the next."""
    layer: Callable[..., Any] = model.model.layers[1].mlp.forward
    model.model.layers[1].mlp.forward = lambda x: layer(x + 0.1 * x.roll(1, 1))


def test_a_model_whose_other_layers_mix_tokens_is_refused() -> None:
    model = family_model("Qwen3")
    check_packing(HuggingFaceDecoder(model))
    model = family_model("Qwen3")
    mixing(model)
    with pytest.raises(ConfigError, match="packed sequences differ"):
        check_packing(HuggingFaceDecoder(model))


@pytest.mark.parametrize(
    ("name", "engine", "max_seq_len", "expected"),
    [
        ("Qwen3", "auto", 64, "native"),
        ("Qwen3", "hf", 64, "hf"),
        ("Gemma 2", "auto", 64, "hf"),
        ("Mistral", "auto", 8, "native"),
        ("Mistral", "auto", 64, "hf"),  # longer than its window
    ],
)
def test_the_native_decoder_is_taken_where_it_computes_the_same(
    tmp_path: Path, name: str, engine: Any, max_seq_len: int, expected: str
) -> None:
    path = saved(tmp_path, name).path
    assert engine_for(Model(path=path, engine=engine), max_seq_len) == expected


@each_family
def test_views_of_large_tensors_are_found_from_a_slice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family_model(name)
    whole = checkpoint_views(model)
    monkeypatch.setattr("roll.engines.hf.names.LARGE", 0)
    assert checkpoint_views(model) == whole
