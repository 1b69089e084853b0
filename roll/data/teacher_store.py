"""A teacher's logprobs on disk: its most likely tokens for every trained token of a run's rows.

A store is a directory: `header.json` with the fields of `StoreHeader` and a format number, `checksums.json`, and for
each set of rows `SET-ids.npy` [tokens, top_k] int32 and `SET-logprobs.npy` fp32, which has one more column for all
other tokens together unless `top_k` is the whole vocabulary. Tokens are in the order of the rows.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np

from roll.checksums import find_damage, read_checksum, write_checksums
from roll.data.answer_rows import IdRow, digest_rows
from roll.errors import ConfigError

_FORMAT = 1
_HEADER = "header.json"
_REMEDY = "write another one with `roll distill RUN.YAML --store`, or give the one of this run"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHeader:
    """What the logprobs of a store are those of."""

    teacher: str
    """Its directory when it was stored."""
    teacher_digest: str
    tokenizer: str
    """Digest of the vocabulary."""
    vocab: int
    """Tokens that the distributions cover."""
    top_k: int
    temperature: float
    rows: Mapping[str, str]
    """Digest of the rows of each set."""
    tokens: Mapping[str, int]
    """Trained tokens of each set."""

    @property
    def num_columns(self) -> int:
        """Columns of the logprobs."""
        return self.top_k + (self.top_k < self.vocab)


class StoreWriter:
    """Writes a store next to its path; `finish` moves it there, complete and on disk, in place of an earlier one."""

    def __init__(self, path: Path, header: StoreHeader) -> None:
        self._path, self._header = path, header
        self._directory = path.with_name(f".tmp-{path.name}")
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        self._written = dict.fromkeys(header.tokens, 0)
        self._arrays = {
            name: (
                _create(self._directory / f"{name}-ids.npy", (num, header.top_k), np.int32),
                _create(self._directory / f"{name}-logprobs.npy", (num, header.num_columns), np.float32),
            )
            for name, num in header.tokens.items()
            if num
        }

    def add(self, name: str, ids: Any, logprobs: Any) -> None:
        """The next tokens of a set."""
        start, stop = self._written[name], self._written[name] + len(ids)
        self._arrays[name][0][start:stop], self._arrays[name][1][start:stop] = ids, logprobs
        self._written[name] = stop

    def finish(self) -> None:
        """Complete the store; all tokens have to be there."""
        assert self._written == dict(self._header.tokens), "a store has all tokens of its rows"
        for arrays in self._arrays.values():
            for array in arrays:
                array.flush()
        text = json.dumps({"format": _FORMAT, **asdict(self._header)}, indent=1)
        (self._directory / _HEADER).write_text(text, encoding="utf-8")
        write_checksums(self._directory)
        if self._path.exists():
            shutil.rmtree(self._path)
        self._directory.rename(self._path)


class TeacherStore:
    """The logprobs of one set of rows, read from disk when they are used."""

    def __init__(self, path: Path, header: StoreHeader, name: str, rows: Sequence[IdRow]) -> None:
        """`rows` are those of the set."""
        self.header = header
        self._starts = np.cumsum([0, *(sum(map(len, row[1::2])) for row in rows)])
        empty = np.zeros((0, header.top_k), np.int32), np.zeros((0, header.num_columns), np.float32)
        kinds = ("ids", "logprobs") if header.tokens[name] else ()
        self._arrays = tuple(np.load(path / f"{name}-{kind}.npy", mmap_mode="r") for kind in kinds) or empty

    def read(self, indices: Sequence[int]) -> tuple[Any, Any]:
        """Ids and logprobs of the trained tokens of these rows, in that order."""
        spans = [slice(self._starts[index], self._starts[index + 1]) for index in indices]
        ids, logprobs = (np.concatenate([array[span] for span in spans]) for array in self._arrays)
        return ids, logprobs


def read_header(path: Path) -> StoreHeader:
    """The header of an intact store; raises `ConfigError` for a damaged one."""
    try:
        content: Any = json.loads((path / _HEADER).read_text(encoding="utf-8"))
        values = dict(cast("dict[str, Any]", content))
        number = values.pop("format", None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"distill.store: {path}: no readable {_HEADER} in it ({error}); {_REMEDY}") from None
    if number != _FORMAT or set(values) != {field.name for field in fields(StoreHeader)}:
        raise ConfigError(f"distill.store: {path}: has another format (got {number}, read is {_FORMAT}); {_REMEDY}")
    damage = find_damage(path)
    if damage or damage is None:
        raise ConfigError(f"distill.store: {path} is damaged: {damage or 'no checksums.json'}; {_REMEDY}")
    return StoreHeader(**values)


def check_header(path: Path, header: StoreHeader, expected: StoreHeader) -> None:
    """Raise `ConfigError` unless the store fits the run; fields that `expected` leaves empty are not compared."""
    if header.tokenizer != expected.tokenizer:
        raise ConfigError(tokenizer_fault(path))
    if expected.teacher_digest and header.teacher_digest != expected.teacher_digest:
        raise ConfigError(f"distill.store: {path}: was stored with another teacher than teacher.path; {_REMEDY}")
    for name, digest in expected.rows.items():
        if header.rows.get(name) != digest:
            source = "validation.tasks" if name == "held_out" else "tasks"
            raise ConfigError(f"distill.store: {path}: has other rows than {source} of the run; {_REMEDY}")
    if header.vocab > expected.vocab:
        raise ConfigError(
            f"distill.store: {path}: covers {header.vocab} tokens (the model: {expected.vocab}); {_REMEDY}"
        )
    for key, stored, value in (
        ("top_k", header.top_k, expected.top_k),
        ("temperature", header.temperature, expected.temperature),
    ):
        if stored != value:
            raise ConfigError(f"distill.{key}: {value:g}, and {path} was stored with {stored:g}; change one of the two")


def tokenizer_fault(path: Path) -> str:
    """The error about a store whose tokens are not those of the model."""
    return f"distill.store: {path}: was stored with another tokenizer than the model's; {_REMEDY}"


def top_k_fault(top_k: int | None, vocab: int) -> str:
    """Why the loss cannot read so many tokens; empty if it can."""
    if top_k is None or top_k <= vocab:
        return ""
    return f"distill.top_k: the vocabulary has {vocab} tokens (got {top_k}); lower it"


def digest_vocabulary(tokens: Mapping[str, int]) -> str:
    """A hash of all tokens with their ids."""
    return hashlib.blake2b(json.dumps(sorted(tokens.items())).encode(), digest_size=16).hexdigest()


def digest_model(directory: Path) -> str:
    """A hash of the weights and the config of a model directory."""
    patterns = ("config.json", "*.safetensors", "pytorch_model*.bin")
    files = sorted({file for pattern in patterns for file in directory.glob(pattern)})
    entries = [(file.name, *read_checksum(file)) for file in files]
    return hashlib.blake2b(json.dumps(entries).encode(), digest_size=16).hexdigest()


def describe_rows(sets: Mapping[str, Sequence[IdRow]]) -> dict[str, dict[str, Any]]:
    """The fields `rows` and `tokens` of a header."""
    return {
        "rows": {name: digest_rows(rows) for name, rows in sets.items()},
        "tokens": {name: sum(len(part) for row in rows for part in row[1::2]) for name, rows in sets.items()},
    }


def _create(path: Path, shape: tuple[int, int], kind: Any) -> np.memmap[Any, Any]:
    return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
