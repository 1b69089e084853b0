"""A reward model: a sequence classifier with one output, asked about one reply at a time where rewards are scored.

    reward: {kind: model, path: models/my-reward-model, squashed: true}

There are two ways to a reward model. This one is a reward like any other: it belongs to one source of tasks, can be
weighted against other rewards, has a tokenizer and a chat template of its own, whatever the actor's are, and lives in
each reward worker, on the CPU unless told otherwise; it suits small models and a few replies a second. The section
`reward_model:` of a run is for the others: one model for all tasks, which shares the actor's tokenizer, and scores the
whole batch at once on the trainer's device.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

from roll.data.templates import load_tokenizer
from roll.errors import ConfigError
from roll.rewards.outcome import Fault, Unscored
from roll.types import Message, Score, Task

_STAND_IN = "\u2042reply\u2042"
"""Stands for the reply while the template is rendered, so that no word of a reply is read as markup."""
_DTYPES = ("float32", "bfloat16", "float16")


class RewardModel:
    """A reward by the output of a Hugging Face sequence classifier; with `squashed` its sigmoid, from 0 to 1.

    The model is read when it starts, or with the first reply. A conversation longer than the model was made for is a
    failure, not a conversation with its end cut off.
    """

    def __init__(self, *, path: str, squashed: bool = False, device: str = "cpu", dtype: str = "float32") -> None:
        if dtype not in _DTYPES:
            raise ConfigError(f"reward 'model': no dtype {dtype!r}; write {', '.join(_DTYPES)}")
        self.path, self.squashed, self.device, self.dtype = path, squashed, device, dtype
        self._model: Any = None
        self._tokenizer: Any = None

    async def start(self) -> None:
        self._load()

    async def stop(self) -> None:
        self._model = self._tokenizer = None

    def score(self, task: Task, reply: str) -> Score:
        """What the model says of the task's messages with the reply as the last of them."""
        import torch

        self._load()
        ids = self._ids(task.messages, reply)
        longest = getattr(self._model.config, "max_position_embeddings", None)
        if longest is not None and len(ids) > longest:
            reason = f"{self.path}: the conversation has {len(ids)} tokens (at most {longest}); shorten the replies"
            raise Unscored(Fault.REWARD, f"reward 'model' on task {task.id!r}: {reason}")
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([ids], device=self.device)).logits
        value = float(logits[0, 0])
        return Score(_sigmoid(value) if self.squashed else value)

    def _load(self) -> None:
        if self._model is not None:
            return
        import torch
        from transformers import AutoModelForSequenceClassification

        tokenizer = load_tokenizer(self.path)
        if not any(Path(self.path).glob("*.safetensors")):
            raise ConfigError(f"{self.path}: no *.safetensors in it; save the model there")
        try:
            model, found = cast(Any, AutoModelForSequenceClassification).from_pretrained(
                self.path,
                dtype=getattr(torch, self.dtype),
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"{self.path}: no sequence classifier that can be read ({reason}); save one there"
            ) from None
        _check(model, found, self.path)
        self._model, self._tokenizer = model.to(self.device).eval(), tokenizer

    def _ids(self, messages: tuple[Message, ...], reply: str) -> list[int]:
        """The conversation as the template writes it, the reply as mere text; without a template, the two as a pair."""
        if not self._tokenizer.chat_template:
            asked = "".join(message.content for message in messages)
            return self._tokenizer.encode(asked, reply, split_special_tokens=True)
        entries = [{"role": message.role, "content": message.content} for message in messages]
        entries.append({"role": "assistant", "content": _STAND_IN})
        text = cast(str, self._tokenizer.apply_chat_template(entries, tokenize=False))
        before, found, after = text.rpartition(_STAND_IN)
        if not found:
            raise ConfigError(f"{self.path}: its chat template leaves replies out; give the tokenizer another one")
        return [*self._encode(before), *self._encode(reply, markup=False), *self._encode(after)]

    def _encode(self, text: str, *, markup: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not markup)


def _check(model: Any, found: dict[str, Any], path: str) -> None:
    """Refuse a model that was not read whole: what is missing would be random numbers."""
    if found["missing_keys"]:
        name = sorted(found["missing_keys"])[0]
        raise ConfigError(f"{path}: its weights lack {name!r}; it is no trained sequence classifier, choose another")
    if model.config.num_labels != 1:
        raise ConfigError(f"{path}: has {model.config.num_labels} outputs; choose a model with one, a reward model")


def _sigmoid(value: float) -> float:
    """Without overflow, however large the value is."""
    small = math.exp(-abs(value))
    return 1.0 / (1.0 + small) if value >= 0 else small / (1.0 + small)
