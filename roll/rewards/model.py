"""A reward model: a sequence classifier with one output, run on one response at a time by the reward workers.

    reward: {kind: model, path: models/my-reward-model, squashed: true}

There are two ways to use a reward model. This one is a reward like any other: it belongs to one source of tasks, can be
weighted against other rewards, and has its own tokenizer and chat template. It runs in each reward worker, on the CPU
by default; it suits small models and a few responses per second. The section `reward_model:` of a run is one model for
all tasks. It shares the actor's tokenizer and scores the whole batch at once on the trainer's device.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

from roll.data.messages import message_entry
from roll.data.templates import load_tokenizer
from roll.errors import ConfigError
from roll.rewards.result import RewardFault, Unscored
from roll.types import Message, Score, Task

_PLACEHOLDER = "\u2042reply\u2042"
"""Replaces the response while the template is rendered, so that no part of it is parsed as markup."""
_DTYPES = ("float32", "bfloat16", "float16")


class ClassifierReward:
    """The output of a Hugging Face sequence classifier; with `squashed` its sigmoid, from 0 to 1.

    The model is loaded by `start`, or with the first response. A conversation longer than the model's context is a
    failure; it is not truncated.
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

    def score(self, task: Task, response: str) -> Score:
        """The model's output for the task's messages followed by the response."""
        import torch

        self._load()
        ids = self._encode_conversation(task.messages, response)
        max_length = getattr(self._model.config, "max_position_embeddings", None)
        if max_length is not None and len(ids) > max_length:
            reason = f"{self.path}: the conversation has {len(ids)} tokens (at most {max_length}); shorten the replies"
            raise Unscored(RewardFault.REWARD, f"reward 'model' on task {task.id!r}: {reason}")
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
            model, loading_info = AutoModelForSequenceClassification.from_pretrained(
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
        _check_model(model, loading_info, self.path)
        self._model, self._tokenizer = model.to(self.device).eval(), tokenizer

    def _encode_conversation(self, messages: tuple[Message, ...], response: str) -> list[int]:
        """Token ids from the chat template, the response as plain text; without a template, a pair of texts."""
        if not self._tokenizer.chat_template:
            prompt = "".join(message.content for message in messages)
            return self._tokenizer.encode(prompt, response, split_special_tokens=True)
        entries = [message_entry(message) for message in messages]
        entries.append({"role": "assistant", "content": _PLACEHOLDER})
        text = cast(str, self._tokenizer.apply_chat_template(entries, tokenize=False))
        before, placeholder, after = text.rpartition(_PLACEHOLDER)
        if not placeholder:
            raise ConfigError(f"{self.path}: its chat template leaves replies out; give the tokenizer another one")
        return [*self._encode(before), *self._encode(response, markup=False), *self._encode(after)]

    def _encode(self, text: str, *, markup: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not markup)


def _check_model(model: Any, loading_info: dict[str, Any], path: str) -> None:
    """Refuse a model with missing weights, which would be random numbers, or with several outputs."""
    if loading_info["missing_keys"]:
        name = sorted(loading_info["missing_keys"])[0]
        raise ConfigError(f"{path}: its weights lack {name!r}; it is no trained sequence classifier, choose another")
    if model.config.num_labels != 1:
        raise ConfigError(f"{path}: has {model.config.num_labels} outputs; choose a model with one, a reward model")


def _sigmoid(value: float) -> float:
    """Sigmoid without overflow for large magnitudes."""
    small = math.exp(-abs(value))
    return 1.0 / (1.0 + small) if value >= 0 else small / (1.0 + small)
