"""Conversion between messages and token ids.

Sampled ids are never decoded and re-encoded: a conversation grows by appending the ids of new messages. The tokenizer's
chat template formats messages; for models without one, their contents are joined.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import jinja2
import numpy as np

from roll.config.schema import SPECIAL_TOKENS
from roll.data.codec import detokenizer, encoder
from roll.data.messages import message_entry, message_text
from roll.data.tools import Tool, ToolForm
from roll.errors import ConfigError, one_line
from roll.model_files import tokenizer_fault
from roll.types import Message, Task

if TYPE_CHECKING:
    from roll.types import Ints

_MAX_OPENINGS = 1024
"""Cached openings: siblings share theirs, and encoding it is most of the work of a short attempt."""
_MAX_TEXTS, _MAX_CHARS = 4096, 1024
"""Number and length of cached texts: observations repeat, above all among siblings."""
_PLACEHOLDER = "reply"
"""A response that no template changes, to find the text that a template puts after a response."""
_WHERE = "model.template"
"""Location of faults of the template itself."""
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Errors of the code in a chat template; `TemplateError` itself is its `raise_exception`."""
_PLACEHOLDER_TOOL = Tool("stand_in_tool", "None.", {"type": "object", "properties": {"number": {"type": "integer"}}})
"""A tool to find the format in which a template writes a call."""


def load_tokenizer(directory: str | Path, *, trust_remote_code: bool = False) -> Any:
    """The Hugging Face tokenizer saved in `directory`; downloads nothing, and runs code of it only if trusted."""
    from transformers import AutoTokenizer

    folder = Path(directory)
    if not folder.is_dir():
        raise ConfigError(f"{directory}: no such directory; give one with a tokenizer in it")
    if fault := tokenizer_fault(folder):
        raise ConfigError(fault)
    trusted = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        return AutoTokenizer.from_pretrained(str(directory), **trusted)
    except Exception as error:  # its files, or code of transformers and tokenizers that reads them
        if "trust_remote_code" in str(error):
            what, remedy = "its tokenizer needs Python code from there", "read that code, then set"
            raise ConfigError(f"{directory}: {what}; {remedy} model.trust_remote_code") from error
        reason = one_line(str(error)) or type(error).__name__
        raise ConfigError(
            f"{directory}: no tokenizer that can be read ({reason}); save one with the weights"
        ) from error


def end_tokens(directory: str | Path) -> frozenset[int]:
    """Tokens that end a response of a model, from its generation_config.json, else its config.json; may be empty."""
    for name in ("generation_config.json", "config.json"):
        try:
            values: Any = json.loads((Path(directory) / name).read_text(encoding="utf-8"))
            ends: Any = values["eos_token_id"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        listed = cast("list[Any]", ends if isinstance(ends, list) else [ends])
        if listed and all(isinstance(each, int) and each >= 0 for each in listed):
            return frozenset(listed)
    return frozenset()


def character_tokenizer(alphabet: str) -> Any:
    """A tokenizer with one token per character, after `<pad>` 0, `<eos>` 1, `<bos>` 2 and `<unk>` 3."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    twice = sorted({character for character in alphabet if alphabet.count(character) > 1})
    if twice:
        raise ConfigError(f"alphabet: it has {twice[0]!r} twice; remove one")
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    tokenizer: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {f"{token.strip('<>')}_token": token for token in SPECIAL_TOKENS}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)


class Template:
    """Encodes messages as token ids for one tokenizer.

    `chat` renders the tokenizer's chat template, `plain` joins the contents, `auto` is chat if there is a template.
    `last` is only the content of the last message, so that every response starts a new sequence: for environments whose
    every message shows the full state.
    """

    def __init__(
        self,
        tokenizer: Any,
        kind: Literal["auto", "chat", "plain", "last"] = "auto",
        ends: frozenset[int] = frozenset(),
    ) -> None:
        """`ends`: further tokens that end a response; see `end_tokens`."""
        if kind == "chat" and not tokenizer.chat_template:
            raise ConfigError(f"{_WHERE}: the tokenizer has no chat template (got 'chat'); choose 'plain' or 'auto'")
        self.tokenizer = tokenizer
        self._tokenize = encoder(tokenizer)
        self.decode = detokenizer(tokenizer)
        """The text of ids without special tokens."""
        self._unk_id: int | None = tokenizer.unk_token_id
        self.chat = kind in ("auto", "chat") and bool(tokenizer.chat_template)
        self.forgetful = kind == "last"
        """Whether only the last message is encoded, so that nothing is ever appended."""
        bos = tokenizer.bos_token_id
        self._begin = np.array([bos] if bos is not None and tokenizer.encode("")[:1] == [bos] else [], np.int32)
        """The begin-of-sequence token if the tokenizer adds one by default."""
        self._opened: dict[tuple[str, tuple[Message, ...]], Ints] = {}
        self._encoded: dict[tuple[str, bool], Ints] = {}
        self._closes = True
        """Whether a response ends with an end token; otherwise the first token of the next message ends it."""
        self.eos_id = self._end_of_turn()
        """The token that ends a response."""
        self.eos_ids = frozenset({self.eos_id, tokenizer.eos_token_id, *ends} - {None})
        """Tokens that end a response: `eos_id`, the tokenizer's end-of-sequence token, and those of the model."""

    @property
    def begins(self) -> bool:
        """Whether a conversation without a chat template begins with the begin-of-sequence token."""
        return len(self._begin) > 0

    @cached_property
    def tool_form(self) -> ToolForm | None:
        """Format of tool calls in responses, from a rendered example of the chat template; None if it supports none.

        Without a chat template the policy learns of tools only from the environment's messages.
        """
        if not self.chat:
            return "hermes"
        call = {"type": "function", "function": {"name": _PLACEHOLDER_TOOL.name, "arguments": {"number": 1}}}
        messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        apply = self.tokenizer.apply_chat_template
        try:
            opening = apply(messages[:1], tools=[_PLACEHOLDER_TOOL.schema], tokenize=False)
            before, _, after = apply(messages, tokenize=False).rpartition(_PLACEHOLDER_TOOL.name)
        except _TEMPLATE_ERRORS:
            return None
        if _PLACEHOLDER_TOOL.name not in opening or not before:
            return None
        if "<tool_call>" in before and "</tool_call>" in after and '"arguments"' in after:
            return "hermes"
        return "llama" if '"parameters"' in after else None

    def open(self, messages: Sequence[Message], *, where: str, tools: Sequence[Tool] = ()) -> Ints:
        """The ids of a conversation up to the policy's first response. `where` is for errors."""
        schemas = json.dumps([tool.schema for tool in tools]) if tools else ""
        key = schemas, tuple(messages[-1:] if self.forgetful else messages)
        ids = self._opened.get(key)
        if ids is None:
            if len(self._opened) >= _MAX_OPENINGS:
                self._opened.clear()
            if self.chat:
                ids = self._encode(self.render(key[1], tools, where=where), where=where, markup=True)
            else:
                ids = self.encode_plain(key[1], where=where)
                ids = np.concatenate([self._begin, ids]).astype(np.int32)
            self._opened[key] = ids
        return ids

    def extend(
        self, before: Sequence[Message], new: Sequence[Message], *, last: int, where: str, tools: Sequence[Tool] = ()
    ) -> Ints | None:
        """The ids to append for `new` messages; None if the template would change earlier text.

        `before` ends with the policy's response, whose final token is `last` and whose ids stay as sampled. After None
        the conversation must be opened again in a new sequence.
        """
        assert before and before[-1].role == "assistant", "extend comes after a response"
        if self.forgetful:
            return None
        if not self.chat:
            return self.encode_plain(new, where=where)
        prefix = self.render(before[:-1], tools, where=where)
        with_placeholder = (*before[:-1], Message("assistant", _PLACEHOLDER), *new)
        rest = _after_placeholder(prefix, self.render(with_placeholder, tools, where=where))
        after = None if rest is None else _after(prefix, self.render((*before, *new), tools, where=where))
        if rest is None or after is None or not after.lstrip().startswith(before[-1].content.strip()):
            return None  # apart from spaces around it, the template must keep the response
        ids = self._encode(rest, where=where, markup=True)
        first = int(ids[0]) if len(ids) else -1
        closed = last in self.eos_ids and (first == last or (self._closes and first in self.eos_ids))
        return ids[1:] if closed else ids  # the policy sampled the end-of-turn token itself

    def answer(self, text: str, *, where: str) -> Ints:
        """The ids of a response as a training target, with its end-of-turn token."""
        return np.append(self._encode(text, where=where), self.eos_id).astype(np.int32)

    def encode(self, text: str, *, where: str) -> Ints:
        """The ids of rendered text, with its special tokens."""
        return self._encode(text, where=where, markup=True)

    def encode_plain(self, messages: Sequence[Message], *, where: str) -> Ints:
        """The ids of the joined texts of messages."""
        return self._encode("".join(map(message_text, messages)), where=where)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, where: str, opened: bool = True
    ) -> str:
        """The text of a conversation by the chat template; if `opened`, up to the start of the next response."""
        return cast(str, self._apply(messages, tools, where=where, tokenize=False, add_generation_prompt=opened))

    def render_marked(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, where: str
    ) -> tuple[list[int], list[int]]:
        """The ids of a conversation, and for each whether a `{% generation %}` block wrote it (1 or 0)."""
        kwargs = {"return_dict": True, "return_assistant_tokens_mask": True}
        encoding = self._apply(messages, tools, where=where, tokenize=True, **kwargs)
        ids, marks = list(encoding["input_ids"]), list(encoding["assistant_masks"])
        self._check_known(ids, "".join(map(message_text, messages)), where=where)
        return ids, marks

    def _apply(self, messages: Sequence[Message], tools: Sequence[Tool], *, where: str, **kwargs: Any) -> Any:
        if tools:
            kwargs["tools"] = [tool.schema for tool in tools]
        apply = self.tokenizer.apply_chat_template
        try:
            return apply([message_entry(message) for message in messages], **kwargs)
        except _TEMPLATE_ERRORS as error:
            if type(error) is not jinja2.TemplateError or where == _WHERE:
                reason, remedy = one_line(f"{type(error).__name__}: {error}"), "fix it in the model's directory"
                raise ConfigError(
                    f"{where}: the chat template fails ({reason}); {remedy}, or set model.template: plain"
                ) from error
            raise ConfigError(f"{where}: {self._refusal(messages, str(error), kwargs)}") from error

    def _refusal(self, messages: Sequence[Message], reason: str, kwargs: Any) -> str:
        """Which messages the chat template refuses, and what to do."""
        rest = [message_entry(message) for message in messages if message.role != "system"]
        if 0 < len(rest) < len(messages):
            with contextlib.suppress(*_TEMPLATE_ERRORS):
                self.tokenizer.apply_chat_template(rest, **kwargs)
                remedy = "put its text into the user's message, in data with `fields.template` for `fields.system`"
                return f"the chat template refuses a system message ({one_line(reason)}); {remedy}"
        return f"the chat template refuses its messages ({one_line(reason)}); change their roles"

    def _encode(self, text: str, *, where: str, markup: bool = False) -> Ints:
        """Ids of `text`; names of special tokens are parsed only with `markup`, otherwise they are plain text."""
        ids = self._encoded.get((text, markup))
        if ids is None:
            ids = self._ids(text, where=where, markup=markup)
            if len(text) <= _MAX_CHARS:
                if len(self._encoded) >= _MAX_TEXTS:
                    self._encoded.clear()
                self._encoded[text, markup] = ids
        return ids

    def _ids(self, text: str, *, where: str, markup: bool) -> Ints:
        ids = self._tokenize(text, markup)
        self._check_known(ids, text, where=where)
        return np.array(ids, np.int32)

    def _check_known(self, ids: Sequence[int], text: str, *, where: str) -> None:
        if self._unk_id is not None and self._unk_id in ids:
            raise ConfigError(f"{where}: the tokenizer does not know {self._unknown(text)!r}; add it to the alphabet")

    def _unknown(self, text: str) -> str:
        """The first character that the tokenizer cannot encode; the whole text if every single character is known."""
        encode = self.tokenizer.encode
        unknowns = (c for c in text if self._unk_id in encode(c, add_special_tokens=False, split_special_tokens=True))
        return next(unknowns, text)

    def _end_of_turn(self) -> int:
        """The special token that the template puts directly after a response, else the tokenizer's end of sequence."""
        where = _WHERE
        if self.chat:
            question = Message("user", "question")
            prefix = self.render([question], where=where)
            chat = [question, Message("assistant", _PLACEHOLDER)]
            rest = _after_placeholder(prefix, self.render([*chat, question], where=where))
            ids = self._encode(rest or "", where=where, markup=True)
            if len(ids) and int(ids[0]) in self._special_ids():
                self._closes = bool(_after_placeholder(prefix, self.render(chat, where=where, opened=False)))
                return int(ids[0])
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(f"{where}: the tokenizer has no end-of-sequence token; set its eos_token")
        return int(self.tokenizer.eos_token_id)

    def _special_ids(self) -> set[int]:
        """Ids of all special tokens: those with a role, such as `eos_token`, and those that are only marked special."""
        added: Mapping[int, Any] = self.tokenizer.added_tokens_decoder
        return {*self.tokenizer.all_special_ids, *(index for index, token in added.items() if token.special)}


def hidden_roles(template: Template, tasks: Sequence[Task]) -> str:
    """A warning if the contents of several messages are joined without their roles; empty if none are."""
    joined: Sequence[Task] = () if template.chat or template.forgetful else tasks
    task = next((task for task in joined if len(task.messages) > 1), None)
    if task is None:
        return ""
    where, roles = f"source {task.domain!r}", ", ".join(message.role for message in task.messages)
    return (
        f"warning: {where}: the model has no chat template, so it sees the texts of {roles} without their roles; "
        "choose a model with a template, or accept it with model.template=plain"
    )


def encode_prompt(template: Template, task: Task) -> Ints:
    """The ids of a task's messages; raises `ConfigError` with its source if they cannot be rendered."""
    return template.open(task.messages, where=f"tasks: source {task.domain!r}: task {task.id!r}")


def _after_placeholder(prefix: str, text: str) -> str | None:
    """The text after the placeholder, which must follow the prefix; some templates put spaces between them."""
    rest = _after(prefix, text)
    return None if rest is None else _after(_PLACEHOLDER, rest.lstrip())


def _after(prefix: str, text: str) -> str | None:
    return text[len(prefix) :] if text.startswith(prefix) else None
