"""Tokens as text, with the tokenizer that a run has saved; without `transformers` and torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.types import Trajectory

if TYPE_CHECKING:
    from roll.types import Ints

SNIPPET = 200
"""Characters of a prompt or a response in a table."""
_PROMPT, _START, _END = 1000, 2000, 1000
"""Characters of the prompt, and at the start and the end of the responses, that a search covers."""
_MAX_IDS = 4 * (_START + _END)
"""Most tokens of one turn that are decoded for a search, at each end."""


class TextDecoder:
    """Decodes ids with `tokenizer/tokenizer.json` of a run; shows ids where there is none."""

    def __init__(self, run: Path) -> None:
        self._tokenizer: Any = None
        path = run / "tokenizer" / "tokenizer.json"
        if path.is_file():
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(path))

    def decode(self, ids: Ints, *, special_tokens: bool = True) -> str:
        """The text of a row of ids."""
        if self._tokenizer is None:
            return " ".join(map(str, ids.tolist()))
        return self._tokenizer.decode(np.maximum(ids, 0).tolist(), skip_special_tokens=not special_tokens)

    def pieces(self, ids: Ints) -> list[str]:
        """The text of each id; that of a character over several ids is at the last of them."""
        if self._tokenizer is None:
            return [str(id) for id in ids.tolist()]
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self._tokenizer, id) or "" for id in np.maximum(ids, 0).tolist()]


def prompt_of(trajectory: Trajectory, decoder: TextDecoder) -> str:
    """The messages of the task; without any, the first observation."""
    messages = trajectory.task.messages
    if messages:
        return messages[0].content if len(messages) == 1 else "\n".join(message.content for message in messages)
    turns = trajectory.turns
    return decoder.decode(turns[0].observation[:_MAX_IDS]) if turns else ""


def searchable(trajectory: Trajectory, decoder: TextDecoder) -> tuple[str, str, str, str]:
    """Beginnings of the prompt, of the response and of the reward's comment, and the text that a search covers."""
    prompt = prompt_of(trajectory, decoder)
    responses = [decoder.decode(_shorten(turn.sampled), special_tokens=False) for turn in trajectory.turns]
    text = "\n".join(responses)
    if len(text) > _START + _END:
        text = f"{text[:_START]}\n{text[-_END:]}"
    response = responses[-1] if responses else ""
    comment = trajectory.score.comment if trajectory.score else ""
    return prompt[:SNIPPET], response[:SNIPPET], comment[:SNIPPET], f"{prompt[:_PROMPT]}\n{text}".lower()


def _shorten(ids: Ints) -> Ints:
    """The ids without the middle of a very long response."""
    return ids if len(ids) <= 2 * _MAX_IDS else np.concatenate([ids[:_MAX_IDS], ids[-_MAX_IDS:]])
