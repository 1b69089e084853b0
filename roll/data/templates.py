"""Between text and token ids.

Sampled ids are never decoded and encoded again: a conversation grows by appending the ids of what was newly said. The
tokenizer's chat template writes the words around a message, or, for models without one, contents stand end to end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import jinja2
import numpy as np

from roll.data.detokenizer import detokenizer
from roll.data.encoder import encoder
from roll.data.tools import Tool, ToolForm
from roll.errors import ConfigError
from roll.types import Message

if TYPE_CHECKING:
    from roll.types import Ints

_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
"""Files that hold a tokenizer's words, of which one has to be there."""
_MOST_OPENED = 1024
"""Openings that are remembered: siblings have the same one, and encoding it is most of what a short attempt costs."""
_MOST_ENCODED, _SHORT = 4096, 1024
"""Texts that are remembered, and how many characters they may have: worlds are seen again, by siblings above all."""
_STAND_IN = "reply"
"""A reply that no template changes, to see what a template puts after one."""
_STAND_IN_TOOL = Tool("stand_in_tool", "None.", {"type": "object", "properties": {"number": {"type": "integer"}}})
"""A tool that nobody has, to see how a template writes a call."""


def load_tokenizer(directory: str | Path) -> Any:
    """The Hugging Face tokenizer saved in `directory`; nothing is downloaded and no code in it is run."""
    from transformers import AutoTokenizer

    folder = Path(directory)
    if not folder.is_dir():
        raise ConfigError(f"{directory}: no such directory; give one with a tokenizer in it")
    if not any(path for pattern in _VOCABULARIES for path in folder.glob(pattern)):
        # transformers would make an empty tokenizer from config.json alone
        raise ConfigError(f"{directory}: no tokenizer in it ({', '.join(_VOCABULARIES)}); save one beside the weights")
    try:
        return cast(Any, AutoTokenizer).from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"{directory}: no tokenizer that can be read ({reason}); save one beside the weights"
        ) from error


def character_tokenizer(alphabet: str) -> Any:
    """A tokenizer with one token for each character, after `<pad>` 0, `<eos>` 1, `<bos>` 2 and `<unk>` 3."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    twice = sorted({character for character in alphabet if alphabet.count(character) > 1})
    if twice:
        raise ConfigError(f"alphabet: {twice[0]!r} stands in it twice; remove one")
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL, *alphabet))}
    tokenizer: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {f"{token.strip('<>')}_token": token for token in _SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)


class Template:
    """How messages become token ids for one tokenizer.

    `chat` renders the tokenizer's chat template, `plain` puts contents end to end, `auto` is chat where it can be.
    `last` is the content of the last message alone, so that every reply begins anew: for worlds that show all there is.
    """

    def __init__(self, tokenizer: Any, kind: Literal["auto", "chat", "plain", "last"] = "auto") -> None:
        if kind == "chat" and not tokenizer.chat_template:
            raise ConfigError(
                "model.template: the tokenizer has no chat template (got 'chat'); choose 'plain' or 'auto'"
            )
        self.tokenizer = tokenizer
        self._decode, self._tokenize = detokenizer(tokenizer), encoder(tokenizer)
        self._unk_id: int | None = tokenizer.unk_token_id
        self.chat = kind in ("auto", "chat") and bool(tokenizer.chat_template)
        self.forgetful = kind == "last"
        """Whether only the last message is shown, so that nothing is ever appended."""
        self._begin = self._prefix()
        self._opened: dict[tuple[str, tuple[Message, ...]], Ints] = {}
        self._encoded: dict[tuple[str, bool], Ints] = {}
        self.eos_id = self._closing()
        """The token that ends a reply."""
        self.eos_ids = frozenset({self.eos_id, tokenizer.eos_token_id} - {None})
        """Tokens a reply may end with: `eos_id`, and the tokenizer's own end of sequence."""

    @cached_property
    def tool_form(self) -> ToolForm | None:
        """How a reply writes the call of a tool, by what the chat template does with one; None where it has no way.

        Without a chat template nothing tells the policy of tools but the environment's own words.
        """
        if not self.chat:
            return "hermes"
        call = {"type": "function", "function": {"name": _STAND_IN_TOOL.name, "arguments": {"number": 1}}}
        called = [{"role": "user", "content": ""}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        apply = self.tokenizer.apply_chat_template
        try:
            told = apply(called[:1], tools=[_STAND_IN_TOOL.schema], tokenize=False)
            before, _, after = apply(called, tokenize=False).rpartition(_STAND_IN_TOOL.name)
        except (jinja2.TemplateError, TypeError):
            return None
        if _STAND_IN_TOOL.name not in told or not before:
            return None
        if "<tool_call>" in before and "</tool_call>" in after and '"arguments"' in after:
            return "hermes"
        return "llama" if '"parameters"' in after else None

    def open(self, messages: Sequence[Message], *, place: str, tools: Sequence[Tool] = ()) -> Ints:
        """The ids a conversation opens with, up to where the policy's reply begins. `place` is for errors."""
        told = json.dumps([tool.schema for tool in tools]) if tools else ""
        key = told, tuple(messages[-1:] if self.forgetful else messages)
        found = self._opened.get(key)
        if found is None:
            if len(self._opened) >= _MOST_OPENED:
                self._opened.clear()
            found = self._opened[key] = self._open(key[1], tools, place=place)
        return found

    def _open(self, messages: Sequence[Message], tools: Sequence[Tool], *, place: str) -> Ints:
        if self.chat:
            return self._encode(self._render(messages, tools, place=place), place=place, markup=True)
        found = self._encode("".join(message.content for message in messages), place=place)
        return np.concatenate([self._begin, found]).astype(np.int32)

    def extend(
        self, before: Sequence[Message], new: Sequence[Message], *, last: int, place: str, tools: Sequence[Tool] = ()
    ) -> Ints | None:
        """The ids to append for `new` messages; None where the template would rewrite what already stands.

        `before` ends with the policy's reply, whose final token is `last`; the reply's own ids stay as they were
        sampled. After None the conversation has to be opened anew.
        """
        assert before and before[-1].role == "assistant", "extend comes after a reply"
        if self.forgetful:
            return None
        if not self.chat:
            return self._encode("".join(message.content for message in new), place=place)
        stood = self._render(before[:-1], tools, place=place)
        with_stand_in = (*before[:-1], Message("assistant", _STAND_IN), *new)
        rest = self._after(stood + _STAND_IN, self._render(with_stand_in, tools, place=place))
        if rest is None or not self._keeps(stood, before[-1], self._render((*before, *new), tools, place=place)):
            return None
        ids = self._encode(rest, place=place, markup=True)
        closed = last in self.eos_ids and len(ids) > 0 and int(ids[0]) in self.eos_ids
        return ids[1:] if closed else ids  # the policy wrote the end of its turn itself

    def answer(self, text: str, *, place: str) -> Ints:
        """The ids of a reply to learn from, with the end-of-turn token that closes it."""
        return np.append(self._encode(text, place=place), self.eos_id).astype(np.int32)

    def decode(self, ids: Sequence[int] | Ints) -> str:
        """The text of `ids` without special tokens."""
        return self._decode(ids)

    def _keeps(self, stood: str, reply: Message, rendered: str) -> bool:
        """Whether the rendered conversation still holds the reply as it was, spaces around it aside."""
        rest = self._after(stood, rendered)
        return rest is not None and rest.lstrip().startswith(reply.content.strip())

    def _after(self, prefix: str, text: str) -> str | None:
        return text[len(prefix) :] if text.startswith(prefix) else None

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, place: str) -> str:
        entries = [{"role": message.role, "content": message.content} for message in messages]
        given: dict[str, Any] = {"tools": [tool.schema for tool in tools]} if tools else {}
        apply = self.tokenizer.apply_chat_template
        try:
            return cast(str, apply(entries, tokenize=False, add_generation_prompt=True, **given))
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"{place}: the chat template refuses its messages ({error}); change their roles"
            ) from error

    def _encode(self, text: str, *, place: str, markup: bool = False) -> Ints:
        """Ids of `text`; the names of special tokens mean them in `markup` only, elsewhere they are mere text."""
        found = self._encoded.get((text, markup))
        if found is None:
            found = self._ids(text, place=place, markup=markup)
            if len(text) <= _SHORT:
                if len(self._encoded) >= _MOST_ENCODED:
                    self._encoded.clear()
                self._encoded[text, markup] = found
        return found

    def _ids(self, text: str, *, place: str, markup: bool) -> Ints:
        ids = self._tokenize(text, markup)
        if self._unk_id is not None and self._unk_id in ids:
            raise ConfigError(f"{place}: the tokenizer does not know {self._unknown(text)!r}; add it to the alphabet")
        return np.array(ids, np.int32)

    def _unknown(self, text: str) -> str:
        """The first character that the tokenizer cannot write; all of the text if only a whole word is strange."""
        unknown = self.tokenizer.unk_token_id
        encode = self.tokenizer.encode
        strange = (c for c in text if unknown in encode(c, add_special_tokens=False, split_special_tokens=True))
        return next(strange, text)

    def _prefix(self) -> Ints:
        """The begin-of-sequence token where the tokenizer puts one of its own accord."""
        alone = self.tokenizer.encode("")
        bos = self.tokenizer.bos_token_id
        return np.array([bos] if bos is not None and alone[:1] == [bos] else [], np.int32)

    def _closing(self) -> int:
        """The special token that the template puts right after a reply, else the tokenizer's end of sequence."""
        place = "model.template"
        if self.chat:
            asked = Message("user", "question")
            stood = self._render([asked], place=place)
            whole = self._render([asked, Message("assistant", _STAND_IN), asked], place=place)
            ids = self._encode(self._after(stood + _STAND_IN, whole) or "", place=place, markup=True)
            if len(ids) and int(ids[0]) in self.tokenizer.all_special_ids:
                return int(ids[0])
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(f"{place}: the tokenizer has no end-of-sequence token; set its eos_token")
        return int(self.tokenizer.eos_token_id)
