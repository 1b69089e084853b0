"""Adapters: only they are trained, the frozen model keeps every bit, and peft loads saved adapters."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.algorithms.recipe import Objective
from roll.config.lora import TARGETS, Lora
from roll.config.schema import Model, Optimizer
from roll.conformance.trainers import OBJECTIVES, check_trainer
from roll.engines.native import lora, mixed
from roll.engines.native.attention import Ragged
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec, build
from roll.engines.native.trainer import NativeTrainer
from roll.errors import ConfigError
from roll.types import Spec
from roll.weights.channel import Mailbox
from roll.weights.digest import digest
from roll.weights.huggingface import read_tensors, write_model
from roll.weights.optimizer_state import OptimizerState
from tests.engines import contract
from tests.engines.models import (
    CPU,
    batch_of,
    collect,
    config,
    generator,
    ours,
    peer,
    prompts,
    request,
    serve,
    small,
    trainer,
    twin,
)

pytestmark = pytest.mark.slow

LOSS = Objective(loss=Spec("policy_gradient"))
ROWS = prompts(9, shortest=3, longest=30, seed=2)
SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)
LORA = Lora(rank=4, alpha=6, export="adapter")
SOME = Lora(rank=3, alpha=3, target_modules=("k_proj", "up_proj", "down_proj"), export="adapter")
BIASED: dict[str, Any] = {"architecture": "llama", "attention_bias": True, "tie_word_embeddings": False}


def adapted(how: Lora = LORA, *, fresh: bool = False, **changes: Any) -> Decoder:
    """A model with adapters, which are not zero unless `fresh`."""
    decoder = lora.attach(small(**changes), how)
    lora.initialise(decoder, seed=1)
    return decoder if fresh else stirred(decoder)


def stirred(decoder: Decoder) -> Decoder:
    """Set all adapters to random values."""
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in decoder.adapter_tensors():
            if name.endswith("lora_B.weight"):
                tensor.copy_(torch.randn(tensor.shape, generator=noise) * 0.3)
    return decoder


def merged(decoder: Decoder) -> Decoder:
    """The equivalent model with adapters merged."""
    assert decoder.lora is not None
    plain = Decoder(decoder.config)
    pairs = dict(decoder.adapter_tensors())
    plain.load(lora.merge(decoder.named_tensors(), pairs, decoder.lora.scale), where="merged")
    return plain


def read(decoder: Decoder, precision: Precision | None = None) -> torch.Tensor:
    """Logits of a few rows."""
    ragged = Ragged([len(row) for row in ROWS], device=CPU)
    ids = torch.tensor([token for row in ROWS for token in row])
    if precision is None:
        return decoder.hidden(ids, ragged.positions, ragged.attend) @ decoder.head.t()
    return mixed.hidden(decoder, ids, ragged.positions, ragged.attend, precision) @ decoder.head.t()


@pytest.mark.parametrize("precision", [None, Precision(checkpointing=True)])
@pytest.mark.parametrize("changes", [{}, BIASED])
def test_new_adapters_change_no_bit(changes: dict[str, Any], precision: Precision | None) -> None:
    assert torch.equal(read(adapted(fresh=True, **changes), precision), read(small(**changes), precision))


@pytest.mark.parametrize("how", [LORA, SOME])
@pytest.mark.parametrize("precision", [None, Precision(checkpointing=True)])
def test_a_model_with_adapters_equals_the_merged_model(how: Lora, precision: Precision | None) -> None:
    decoder = adapted(how, **BIASED)
    torch.testing.assert_close(read(decoder, precision), read(merged(decoder)), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(read(decoder), read(small(**BIASED)), atol=0.1)
    with lora.without_adapters(decoder):
        assert torch.equal(read(decoder, precision), read(small(**BIASED), precision))
    torch.testing.assert_close(read(decoder, precision), read(merged(decoder)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_autograd(bias: bool) -> None:
    noise = torch.Generator().manual_seed(0)
    spans = {"q_proj": (0, 5), "v_proj": (8, 12)}
    adapter = lora.Adapter(7, spans, Lora(rank=2, alpha=3)).double()
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=noise))
    x, weight, side = (torch.randn(*shape, generator=noise).double() for shape in ((9, 7), (7, 12), (12,)))
    x.requires_grad_()
    example = side if bias else None

    def plainly(x: torch.Tensor, a: torch.Tensor, *b: torch.Tensor) -> torch.Tensor:
        beside = [x @ a[:, :2] @ b[0], x.new_zeros(9, 3), x @ a[:, 2:] @ b[1]]
        return x @ weight + (0 if example is None else example) + 1.5 * torch.cat(beside, 1)

    inputs = (x, adapter.a, *adapter.b)
    slope = torch.randn(9, 12, generator=noise).double()
    result, expected = adapter(x, weight, example), plainly(*inputs)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(torch.autograd.grad(result, inputs, slope), torch.autograd.grad(expected, inputs, slope))


def test_only_adapters_are_trained_and_have_optimizer_state() -> None:
    decoder = adapted()
    before = {name: tensor.detach().clone() for name, tensor in decoder.named_tensors()}
    engine = trainer(decoder)

    async def learn() -> None:
        await engine.start()
        await engine.update(batch_of(ROWS), LOSS)

    start = {name: tensor.detach().clone() for name, tensor in decoder.adapter_tensors()}
    asyncio.run(learn())
    assert all(torch.equal(tensor, before[name]) for name, tensor in decoder.named_tensors())
    assert all(not torch.equal(tensor, start[name]) for name, tensor in decoder.adapter_tensors())
    remembered = sum(state["exp_avg"].numel() for state in engine._optimizer.state.values())
    # of 2 layers of width 32, with queries of 32, keys of 16 and a feed-forward of 64 numbers
    one_layer = (32 + 32) + 2 * (32 + 16) + (32 + 32) + 2 * (32 + 64) + (64 + 32)
    assert remembered == 2 * 4 * one_layer


def test_the_reference_is_the_model_without_its_adapters() -> None:
    async def learn() -> None:
        engine = trainer(adapted(fresh=True), budget=40)
        await engine.start()
        batch = batch_of(ROWS)
        before = await engine.logprobs(batch)
        await engine.update(batch, LOSS)
        assert torch.equal(await engine.base_logprobs(batch), before)
        after = await engine.logprobs(batch)
        assert float((after - before).abs().max()) > 0.01

    asyncio.run(learn())


def test_a_request_gives_the_same_bits_in_any_batch_with_adapters() -> None:
    contexts = [request(f"r{number}", row, 12) for number, row in enumerate(prompts(20, longest=30, seed=7))]
    decoder = adapted()
    together = asyncio.run(serve(generator(decoder, slots=20), contexts))
    for one in contexts[:4]:
        assert asyncio.run(serve(generator(decoder), [one]))[one.id] == together[one.id]


async def delivered(channel: Mailbox, decoder: Decoder, version: int = 1) -> tuple[Any, Any, Any]:
    """The digest of the trainer, that of the generator, and the generator."""
    learning, serving = trainer(decoder, channel=channel), generator(adapted(fresh=True), channel=channel)
    await learning.start()
    await serving.start()
    await serving.pause()
    await learning.update(batch_of(ROWS), LOSS)
    sent = await learning.send(version)
    return sent, await serving.receive(version), serving


def test_only_adapters_are_sent_and_the_generator_uses_them() -> None:
    seen: list[str] = []

    class Watched(Mailbox):
        def receive(self, *, version: int) -> Any:
            result = list(super().receive(version=version))
            seen.extend(name for name, _ in result)
            return result

    async def run() -> None:
        decoder = adapted(fresh=True)
        sent, held, serving = await delivered(Watched(), decoder)
        assert sent == held
        assert sent != lora.digest_served(adapted(fresh=True), torch.float32)
        assert len(seen) == 2 * 2 * len(TARGETS) and all(".lora_" in name for name in seen)
        await serving.resume(1)
        await serving.submit([request("r", [1, 2, 3], 8)])
        plain = await serve(generator(merged(decoder)), [request("r", [1, 2, 3], 8)])
        assert (await collect(serving, 1))["r"].ids == plain["r"].ids

    asyncio.run(run())


def test_the_model_under_adapters_is_attested_too() -> None:
    other = adapted(fresh=True, seed=5)
    assert lora.digest_served(other, torch.float32) != lora.digest_served(adapted(fresh=True), torch.float32)
    wider = adapted(LORA.model_copy(update={"alpha": 7.0}))
    assert lora.digest_served(wider, torch.float32) != lora.digest_served(adapted(), torch.float32), (
        "the number counts as well"
    )


def test_a_loaded_trainer_continues_as_the_saved_one(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    first, second = trainer(adapted(fresh=True)), trainer(adapted(fresh=True))
    asyncio.run(contract.a_loaded_trainer_goes_on_as_the_saved_one(first, second, path))
    names = {file.name for file in path.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "base.json", "optimizer"}
    state = OptimizerState(path, "adamw")
    assert set(state.moment("exp_avg")) == {name for name, _ in adapted().adapter_tensors()}


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (lambda: adapted(LORA.model_copy(update={"rank": 2})), "actor_train.lora.rank: the adapter in .* has 4 "),
        (lambda: adapted(LORA.model_copy(update={"alpha": 8.0})), "actor_train.lora.alpha: .* has 6 "),
        (
            lambda: adapted(Lora(rank=4, alpha=6, target_modules=("q_proj",))),
            "actor_train.lora.target_modules: .* down_proj, gate",
        ),
        (lambda: adapted(seed=9), "trained on other weights than those of `model`"),
        (lambda: adapted(tie_word_embeddings=False), "trained on other weights"),
    ],
)
def test_a_checkpoint_of_other_adapters_is_refused_in_one_line(decoder: Any, message: str, tmp_path: Path) -> None:
    async def go_on() -> None:
        saved, other = trainer(adapted()), trainer(decoder())
        await saved.start()
        await other.start()
        await saved.save(tmp_path)
        await other.load(tmp_path)

    with pytest.raises(ConfigError, match=message) as refused:
        asyncio.run(go_on())
    assert "\n" not in str(refused.value)


def test_a_rank_larger_than_a_projection_and_a_model_with_a_score_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"k_proj is 32 x 16, so its rank is at most 16 \(got 17\)"):
        lora.attach(small(), Lora(rank=17))
    with pytest.raises(ConfigError, match="score head have no adapters"):
        lora.attach(Decoder(config(), scored=True), LORA)


def native(budget: int) -> NativeTrainer:
    return trainer(adapted(), optimizer=SGD, budget=budget)


def test_adapters_pass_the_conformance_kit() -> None:
    assert asyncio.run(check_trainer(native, vocab=40, objectives=OBJECTIVES[1:])) == []


def test_gradients_of_adapters_follow_from_the_gradient_of_the_model() -> None:
    """By the chain rule: of W x + s B A x, A gets s B' G and B gets s G A', where G is the gradient of W."""
    whole, thin = merged(adapted()), adapted()
    for engine in (trainer(whole, optimizer=SGD), trainer(thin, optimizer=SGD)):

        async def learn(engine: NativeTrainer = engine) -> None:
            await engine.start()
            await engine.update(batch_of(ROWS), LOSS)

        asyncio.run(learn())
    before, pairs = dict(merged(adapted()).named_tensors()), dict(adapted().adapter_tensors())
    after, result = dict(whole.named_tensors()), dict(thin.adapter_tensors())
    for name in before:
        module = name.removesuffix(".weight")
        if f"{module}.lora_A.weight" not in pairs:
            continue
        gradient = (before[name] - after[name]).detach()
        a, b = pairs[f"{module}.lora_A.weight"].detach(), pairs[f"{module}.lora_B.weight"].detach()
        for side, old, expected in (("A", a, 1.5 * b.t() @ gradient), ("B", b, 1.5 * gradient @ a.t())):
            moved = (old - result[f"{module}.lora_{side}.weight"]).detach()
            assert float((moved - expected).norm() / expected.norm()) < 1e-4, (module, side)


def test_in_16_bits_the_frozen_model_has_16_bits_and_adapters_have_32(tmp_path: Path) -> None:
    write_model(tmp_path, config(), dict(small().named_tensors()))
    model_spec = ModelSpec(model=Model(path=str(tmp_path)), lora=LORA, frozen=torch.bfloat16)
    result = build(model_spec, torch.device("cpu"))
    assert {parameter.dtype for parameter in result.parameters() if not parameter.requires_grad} == {torch.bfloat16}
    assert {parameter.dtype for parameter in result.parameters() if parameter.requires_grad} == {torch.float32}
    assert torch.equal(dict(result.named_tensors())["model.norm.weight"].float(), torch.ones(32))
    assert result.cos.dtype == torch.float32
    rounded = [parameter.detach().to(torch.bfloat16) for parameter in small().parameters()]
    assert lora.frozen_digest(result) == digest(rounded)
    assert torch.get_default_dtype() == torch.float32


@pytest.fixture
def peft() -> Any:
    return pytest.importorskip("peft", reason="peft is not installed; `pip install roll-rl[lora]` has it")


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.tensor([prompts(1, shortest=24, longest=24, seed=4)[0]])


async def saved(decoder: Decoder, path: Path, *, resumable: bool) -> None:
    engine = trainer(decoder)
    await engine.start()
    await engine.save(path, resumable=resumable)


def logits(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    ragged = Ragged([ids.shape[1]], device=CPU)
    with torch.no_grad():
        return decoder.hidden(ids[0], ragged.positions, ragged.attend) @ decoder.head.t()


@pytest.mark.parametrize("how", [LORA, SOME])
def test_peft_loads_a_saved_adapter_and_merges_it_to_the_same_model(
    how: Lora, peft: Any, ids: torch.Tensor, tmp_path: Path
) -> None:
    base = peer(config(initializer_range=0.1))
    decoder = stirred(_begun(ours(base), how))
    asyncio.run(saved(decoder, tmp_path / "apart", resumable=False))
    model = peft.PeftModel.from_pretrained(base, str(tmp_path / "apart"))
    result = logits(decoder, ids)
    with torch.no_grad():
        torch.testing.assert_close(result, model(ids).logits[0], rtol=0, atol=1e-5)
        joined = model.merge_and_unload()
        torch.testing.assert_close(result, joined(ids).logits[0], rtol=0, atol=1e-5)


def test_a_merged_export_is_a_plain_model(peft: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    base = peer(config(initializer_range=0.1))
    decoder = stirred(_begun(ours(base), LORA.model_copy(update={"export": "merged"})))
    asyncio.run(saved(decoder, tmp_path / "whole", resumable=False))
    assert not (tmp_path / "whole" / "adapter_config.json").exists()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(logits(decoder, ids), model(ids).logits[0], rtol=0, atol=1e-5)


def test_an_adapter_saved_by_peft_is_loaded(peft: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    base = peer(config(initializer_range=0.1))
    plain = ours(base)
    kind = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=list(TARGETS), init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(base, kind).eval()
    model.save_pretrained(str(tmp_path))
    decoder = _begun(plain, LORA.model_copy(update={"path": str(tmp_path)}))
    with torch.no_grad():
        torch.testing.assert_close(logits(decoder, ids), model(ids).logits[0], rtol=0, atol=1e-5)


def test_other_kinds_of_adapters_are_refused(tmp_path: Path) -> None:
    decoder = adapted()
    asyncio.run(saved(decoder, tmp_path, resumable=False))
    about = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**about, "use_dora": True}))
    with pytest.raises(ConfigError, match="use_dora True are not supported"):
        lora.initialise(lora.attach(small(), LORA.model_copy(update={"path": str(tmp_path)})), 0)


def _begun(decoder: Decoder, how: Lora) -> Decoder:
    lora.initialise(lora.attach(decoder, how), 0)
    return decoder


def test_read_tensors_reads_a_saved_adapter(tmp_path: Path) -> None:
    engine = trainer(adapted())

    async def save() -> None:
        await engine.start()
        await engine.save(tmp_path, resumable=False)

    asyncio.run(save())
    result = dict(read_tensors(tmp_path))
    assert "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight" in result
    assert result["base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"].shape == (4, 32)


def test_copied_decoders_are_equal() -> None:
    decoder = adapted()
    assert lora.digest_served(twin(decoder), torch.float32) == lora.digest_served(decoder, torch.float32)


@pytest.mark.parametrize(
    "promise",
    [
        contract.replies_end_by_length_or_by_a_stop_token,
        contract.abort_brings_back_what_ran_and_what_queued,
        contract.nothing_is_sampled_while_paused_and_resume_names_the_version,
        contract.weights_arrive_only_while_nothing_is_served,
    ],
)
def test_a_generator_with_adapters_fulfils_its_contract(promise: Any) -> None:
    asyncio.run(promise(generator(adapted(), context=contract.CONTEXT)))


@pytest.mark.parametrize(
    "promise", [contract.logprobs_are_about_their_own_token, contract.an_update_that_is_not_finite_changes_nothing]
)
def test_a_trainer_of_adapters_fulfils_its_contract(promise: Any) -> None:
    asyncio.run(promise(trainer(adapted())))


def test_a_trainer_of_adapters_offloads_and_onloads() -> None:
    engine = trainer(adapted())
    asyncio.run(contract.updates_are_the_same_after_offload_and_onload(engine, trainer(adapted()), engine))
