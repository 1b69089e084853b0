"""Weights of a model directory, read one tensor at a time and checked before that."""

from pathlib import Path
from typing import Any

import pytest
import torch

from roll.engines.fsdp.model import ShardedDecoder
from roll.engines.fsdp.ranks import ParallelLayout, Ranks
from roll.engines.fsdp.weight_source import DirectoryWeights
from roll.errors import ConfigError
from roll.weights.huggingface import TensorFiles, write_model
from tests.engines.models import config, small


def empty(*, scored: bool = False, **changes: Any) -> ShardedDecoder:
    return ShardedDecoder(config(**changes), Ranks(ParallelLayout(url="", size=2), 0), scored=scored)


def written(folder: Path, *, without: str = "", **changes: Any) -> dict[str, torch.Tensor]:
    """The tensors of a small model, written to a folder together with others, or without some."""
    decoder = small()
    tensors = {name: tensor for name, tensor in {**dict(decoder.named_tensors()), **changes}.items() if name != without}
    write_model(folder, decoder.config, tensors)
    return tensors


def test_all_tensors_are_those_of_the_files(tmp_path: Path) -> None:
    head = torch.zeros(40, 32)
    tensors = written(tmp_path, **{"lm_head.weight": head, "model.layers.0.self_attn.rotary_emb.inv_freq": head[0]})
    weights = DirectoryWeights(tmp_path, empty(), "logits")
    assert set(weights) == {name for name, _ in empty().named_parameters()} and len(weights) == len(list(weights))
    assert all(torch.equal(weights[name], tensors[name]) for name in weights)


def test_a_tensor_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    written(tmp_path)
    weights = DirectoryWeights(tmp_path, empty(), "logits")
    written(tmp_path, **{"model.norm.weight": torch.full((32,), 7.0)})
    assert (weights["model.norm.weight"] == 7).all()


@pytest.mark.parametrize(
    ("without", "changes", "message"),
    [
        ("model.norm.weight", {}, r"model.norm.weight is missing \(1 in all\)"),
        ("", {"model.norm.weight": torch.ones(3)}, r"model.norm.weight \(3,\) does not fit config.json"),
        ("", {"model.other": torch.ones(3)}, r"model.other \(3,\) does not fit config.json"),
    ],
)
def test_files_that_do_not_fit_are_one_line(without: str, changes: Any, message: str, tmp_path: Path) -> None:
    written(tmp_path, without=without, **changes)
    with pytest.raises(ConfigError, match=message) as raised:
        DirectoryWeights(tmp_path, empty(), "logits")
    assert "\n" not in str(raised.value)


def test_only_a_new_score_head_starts_at_zero(tmp_path: Path) -> None:
    written(tmp_path)
    weights = DirectoryWeights(tmp_path, empty(scored=True), "new score")
    assert torch.equal(weights["score.weight"], torch.zeros(1, 32)) and "score.weight" in weights
    with pytest.raises(ConfigError, match=r"score.weight is missing \(1 in all\)"):
        DirectoryWeights(tmp_path, empty(scored=True), "score")


def test_a_missing_file_of_the_index_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002.safetensors"}}')
    with pytest.raises(ConfigError, match=r"model-00002.safetensors is missing; the download is incomplete"):
        TensorFiles(tmp_path)
