"""Models that are written as they come, a few tensors at a time."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from roll.weights.huggingface import read_tensors, write_pieces
from tests.engines.models import small


def test_files_hold_no_more_than_they_may_and_transformers_finds_everything_in_them(tmp_path: Path) -> None:
    decoder = small(tie_word_embeddings=False)
    tensors = {name: tensor.detach() for name, tensor in decoder.named_tensors()}
    largest = max(tensor.nbytes for tensor in tensors.values())
    write_pieces(tmp_path, decoder.config, tensors.items(), most_bytes=2 * largest)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 3 and set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert all((tmp_path / file).stat().st_size < 2 * largest + 4096 for file in files)
    found = dict(read_tensors(tmp_path))
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_what_fits_is_one_file_and_no_tensor_is_asked_for_before_the_last_is_taken(tmp_path: Path) -> None:
    asked: list[str] = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name in "abc":
            asked.append(name)
            yield name, torch.full((4,), float(len(asked)))

    write_pieces(tmp_path, small().config, tensors(), most_bytes=1000)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert {name: tensor[0].item() for name, tensor in read_tensors(tmp_path)} == {"a": 1.0, "b": 2.0, "c": 3.0}
