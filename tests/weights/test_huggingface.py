"""Models written from an iterator of tensors."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.weights.huggingface import read_tensors, write_sharded_model
from tests.engines.models import small

pytestmark = pytest.mark.slow


def test_no_file_exceeds_its_size_and_transformers_loads_all_of_them(tmp_path: Path) -> None:
    decoder = small(tie_word_embeddings=False)
    tensors = {name: tensor.detach() for name, tensor in decoder.named_tensors()}
    largest = max(tensor.nbytes for tensor in tensors.values())
    write_sharded_model(tmp_path, decoder.config, tensors.items(), file_bytes=2 * largest)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 3 and set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert all((tmp_path / file).stat().st_size < 2 * largest + 4096 for file in files)
    read = dict(read_tensors(tmp_path))
    assert read.keys() == tensors.keys() and all(torch.equal(read[name], tensors[name]) for name in tensors)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_a_small_model_is_one_file(tmp_path: Path) -> None:
    tensors = [(name, torch.full((4,), value)) for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    write_sharded_model(tmp_path, small().config, iter(tensors), file_bytes=1000)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert {name: tensor[0].item() for name, tensor in read_tensors(tmp_path)} == {"a": 1.0, "b": 2.0, "c": 3.0}
