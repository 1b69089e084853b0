"""Chats as rows for supervised learning: the ids of a conversation, in parts that alternate context and response.

A chat template with `{% generation %}` blocks marks the responses itself. For other templates, a response is the text
that rendering the chat up to it adds to rendering the chat before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from roll.data.messages import message_text
from roll.data.templates import Template
from roll.data.tools import Tool
from roll.errors import ConfigError
from roll.types import Message

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def chat_row(
    template: Template, messages: Sequence[Message], *, every: bool, where: str, tools: Sequence[Tool] = ()
) -> list[list[int]]:
    """Context and response ids, alternating, of a chat that ends with the assistant; with `every`, of all its turns.

    Raises `ConfigError` if the template changes earlier turns, so that their tokens cannot be found.
    """
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    trained = turns if every else turns[-1:]
    if not template.chat:
        row = _plain_row(template, messages, trained, where=where)
    elif template.tokenizer.is_fast and _GENERATION.search(str(template.tokenizer.chat_template)):
        row = _marked_row(template, messages, tools, every=every, where=where)
    else:
        row = _difference_row(template, messages, tools, trained, where=where)
    if not all(row):
        raise ConfigError(f"{where}: a response directly after another, or without a prompt; add a message before it")
    return row


def _plain_row(
    template: Template, messages: Sequence[Message], trained: Sequence[int], *, where: str
) -> list[list[int]]:
    if template.forgetful and len(trained) > 1:
        raise ConfigError(f"{where}: model.template 'last' encodes one response per sequence; set target to last")
    row: list[list[int]] = []
    begin = 0
    for index in trained:
        context = messages[begin:index]
        ids = template.encode_plain(context, where=where) if row else template.open(context, where=where)
        row += [ids.tolist(), template.answer(message_text(messages[index]), where=where).tolist()]
        begin = index + 1
    return row


def _marked_row(
    template: Template, messages: Sequence[Message], tools: Sequence[Tool], *, every: bool, where: str
) -> list[list[int]]:
    parts = _marked_parts(template, messages, tools, where=where)
    earlier = 0 if every else sum(mark for mark, _ in _marked_parts(template, messages[:-1], tools, where=where))
    row: list[list[int]] = []
    context: list[int] = []
    for mark, ids in parts:
        if mark and earlier <= 0:
            row += [context, ids]
            context = []
        else:
            context, earlier = context + ids, earlier - mark
    if not row:
        raise ConfigError(
            f"{where}: the chat template marks no assistant text of it; correct its {{% generation %}} blocks"
        )
    return row


def _marked_parts(
    template: Template, messages: Sequence[Message], tools: Sequence[Tool], *, where: str
) -> list[tuple[int, list[int]]]:
    """Consecutive ids with the same mark: 1 in a generation block, 0 elsewhere."""
    ids, marks = template.render_marked(messages, tools, where=where)
    runs = groupby(zip(marks, ids, strict=True), key=lambda pair: pair[0])
    return [(mark, [token for _, token in pairs]) for mark, pairs in runs]


def _difference_row(
    template: Template, messages: Sequence[Message], tools: Sequence[Tool], trained: Sequence[int], *, where: str
) -> list[list[int]]:
    whole = template.render(messages, tools, opened=False, where=where)
    end = template.tokenizer.convert_ids_to_tokens(template.eos_id)
    row: list[list[int]] = []
    begin = 0
    for index in trained:
        before = template.render(messages[:index], tools, where=where)
        after = template.render(messages[: index + 1], tools, opened=False, where=where)
        if not (whole.startswith(after) and after.startswith(before)):
            remedy = "set target to last" if len(trained) > 1 else "use a template with {% generation %} blocks"
            raise ConfigError(
                f"{where}: the chat template changes earlier text when message {index + 1} is added, so its tokens "
                f"cannot be found; {remedy}"
            )
        response, ended, rest = after[len(before) :].rpartition(end)
        response, rest = (response, rest) if ended else (rest, "")
        context = template.encode(whole[begin : len(before)], where=where)
        row += [context.tolist(), template.answer(response, where=where).tolist()]
        begin = len(after) - len(rest)
    return row
