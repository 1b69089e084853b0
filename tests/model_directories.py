"""Directories that pass as models before a run starts, without weights."""

from pathlib import Path

from roll.config.schema import Shape
from roll.data.templates import character_tokenizer

ASCII = "".join(map(chr, range(32, 127))) + "\n"
"""All printable characters."""
NO_TENSORS = b"\x02" + bytes(7) + b"{}"
"""A safetensors file without tensors."""


def fill(directory: Path, alphabet: str = Shape().alphabet) -> None:
    """Add a file of weights and a tokenizer to a directory with a config.json."""
    (directory / "model.safetensors").write_bytes(NO_TENSORS)
    character_tokenizer(alphabet).save_pretrained(str(directory))
