"""The decoder compared with transformers, and models that it refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.engines.native.attention import Ragged
from roll.engines.native.decoder import Decoder, geometry
from roll.errors import ConfigError
from roll.weights.huggingface import read_config, read_tensors, write_model
from tests.engines.models import config, ours, peer, prompts, small

pytestmark = pytest.mark.slow

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama with biases": ("llama", {"attention_bias": True}),
    "llama 3 positions": ("llama", {"rope_parameters": LLAMA3}),
    "llama other base": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}),
    "qwen2": ("qwen2", {}),
    "qwen2 untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen3": ("qwen3", {}),
    "qwen3 wide heads": ("qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window as long as its context": ("mistral", {"sliding_window": 512}),
    "one key head each": ("llama", {"num_key_value_heads": 4}),
}


@torch.no_grad()
def logits_of(decoder: Decoder, rows: list[list[int]]) -> torch.Tensor:
    """Logits of all rows at once, end to end."""
    ragged = Ragged([len(row) for row in rows], device=torch.device("cpu"))
    ids = torch.tensor([token for row in rows for token in row])
    return decoder.hidden(ids, ragged.positions, ragged.attend) @ decoder.head.T


@torch.no_grad()
def peer_logits(model: Any, rows: list[list[int]]) -> torch.Tensor:
    return torch.cat([model(torch.tensor([row])).logits[0] for row in rows])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_logits_equal_those_of_transformers(shape: tuple[str, dict[str, Any]]) -> None:
    architecture, changes = shape
    model = peer(config(architecture, **changes))
    rows = prompts(4, shortest=3, longest=60)
    expected = peer_logits(model, rows)
    assert expected.std() > 0.5, "flat logits would prove nothing"
    assert (logits_of(ours(model), rows) - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", ["llama with biases", "qwen2 untied", "qwen3"])
def test_a_saved_model_is_loaded_by_transformers_and_by_the_decoder(name: str, tmp_path: Path) -> None:
    architecture, changes = SHAPES[name]
    decoder = ours(peer(config(architecture, **changes)))
    write_model(tmp_path, decoder.config, dict(decoder.named_tensors()))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    again = Decoder(read_config(tmp_path))
    again.load(read_tensors(tmp_path), where="saved")
    rows = prompts(3, shortest=2, longest=20)
    assert (peer_logits(model.eval(), rows) - logits_of(decoder, rows)).abs().max() < 2e-5
    assert torch.equal(logits_of(again, rows), logits_of(decoder, rows))


def test_a_missing_tensor_is_named_in_one_line() -> None:
    tensors = [item for item in small().named_tensors() if item[0] != "model.norm.weight"]
    with pytest.raises(ConfigError) as refused:
        small().load(tensors, where="models/x")
    assert str(refused.value) == (
        "models/x: tensor model.norm.weight is missing (1 in all); the weights are incomplete"
    )


@pytest.mark.parametrize(
    "extra",
    [("model.layers.9.mlp.up_proj.weight", torch.zeros(2)), ("model.norm.weight", torch.zeros(33))],
    ids=["unexpected", "misshaped"],
)
def test_a_tensor_that_does_not_fit_is_named_in_one_line(extra: tuple[str, torch.Tensor]) -> None:
    with pytest.raises(ConfigError) as refused:
        small().load([*small().named_tensors(), extra], where="models/x")
    name, tensor = extra
    reply = f"models/x: tensor {name} {tuple(tensor.shape)} does not fit config.json; take both from one model"
    assert str(refused.value) == reply


@pytest.mark.parametrize(
    ("architecture", "changes", "word"),
    [
        ("gpt2", {}, "gpt2"),
        ("llama", {"hidden_act": "gelu"}, "SwiGLU"),
        ("llama", {"mlp_bias": True}, "without bias"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ],
)
def test_an_architecture_that_would_be_computed_wrongly_is_refused(
    architecture: str, changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        geometry(config(architecture, **changes))


@pytest.mark.parametrize(
    ("architecture", "changes", "longest"),
    [
        ("mistral", {"sliding_window": 60}, 60),
        ("mistral", {"sliding_window": 600}, 512),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 60, "max_window_layers": 1}, 60),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 60, "max_window_layers": 2}, 512),
    ],
)
def test_a_model_with_a_sliding_window_is_exact_for_sequences_as_long_as_the_window(
    architecture: str, changes: dict[str, Any], longest: int
) -> None:
    settings = config(architecture, **changes)
    assert geometry(settings).max_seq_len == longest
    model, rows = peer(settings), [row[:60] for row in prompts(2, shortest=60, longest=61)]
    expected = peer_logits(model, rows)
    assert (logits_of(ours(model), rows) - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)


def test_an_unknown_rotary_scaling_is_refused() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    with pytest.raises(ConfigError, match="dynamic"):
        Decoder(config("llama", rope_parameters=dynamic))


def test_initial_weights_are_a_function_of_the_seed() -> None:
    first, second, other = small(seed=1), small(seed=1), small(seed=2)
    assert torch.equal(first.embed, second.embed) and not torch.equal(first.embed, other.embed)
