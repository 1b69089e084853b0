"""Multiple choice: the one option that a response commits to, by letter or by text. Ambiguity never scores.

`docs/rewards.md` states the rules in order.
"""

from __future__ import annotations

import re
from typing import Any

from roll.rewards.choice.claims import committed, committed_in_tags
from roll.rewards.choice.options import UNLISTED, OptionTexts, gold_letter, parse_options
from roll.rewards.choice.questions import NEGATIVE_QUESTION
from roll.rewards.choice.surface import plain
from roll.rewards.response import after_thinking, find_boxes
from roll.types import Score, Task

_THOUGHT = re.compile(r"<(think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|analysis|rationale)>", re.IGNORECASE)
_CLAIM = re.compile(r"\b(?:answer|option|choice)(?: is\b|\s{0,3}[:=])", re.IGNORECASE)
_TAG = re.compile(r"<(answer|final_answer)>(.{0,2000}?)</\1>", re.IGNORECASE | re.DOTALL)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MAX_ANSWER_CHARS = 400
_MIN_PROMPT_CHARS = 20
_DIALOGUE = re.compile(r"^(Q(?:uestion)?:[^\n]{0,2000}\n)A:", re.MULTILINE)
"""A question and its answer, "A:", which is no option."""


def score(task: Task, response: str, *, options: Any = None) -> Score:
    """1 if the only option that the response commits to is the task's answer, else 0.

    Options are a list of texts, with or without letters ("A) 12", "12"), or a mapping of letters to texts. They default
    to the task's field `options`. The task's answer is a letter or an option's text.
    """
    parsed = parse_options(task, task.metadata.get("options") if options is None else options)
    gold = gold_letter(task, parsed)
    prompt = "\n".join(message.content for message in task.messages)
    negative = NEGATIVE_QUESTION.search(prompt) is not None
    spoken = _without_prompt(_DIALOGUE.sub(r"\1Answer:", _spoken(response)), task)
    return Score(float(_claimed(spoken, parsed, negative, prompt) == frozenset(gold)))


def answer_of(response: str) -> str | None:
    """The letter that a response commits to, A to J, else the text it gives instead; None if it gives neither.

    The task's options are unknown here, so a letter and its option's text count as different answers.
    """
    text = _spoken(response)
    letters = _claimed(text, UNLISTED, negative=False)
    if letters:
        return min(letters) if len(letters) == 1 else None
    return _stated_text(text)


def _claimed(text: str, options: OptionTexts, negative: bool, prompt: str = "") -> frozenset[str]:
    letters = committed_in_tags(text, options)
    if letters is not None:
        return letters
    return committed(text, options, negative_question=negative, prompt=prompt)


def _spoken(response: str) -> str:
    """The response without its thinking; empty after thinking that has not ended."""
    text = after_thinking(response)
    pieces, at = list[str](), 0
    while (opening := _THOUGHT.search(text, at)) is not None:
        pieces.append(text[at : opening.start()])
        closing = re.compile(f"</{opening[1]}>", re.IGNORECASE).search(text, opening.end())
        if closing is None:
            return "".join(pieces)
        at = closing.end()
    return "".join([*pieces, text[at:]])


def _without_prompt(text: str, task: Task) -> str:
    """The text without copies of the prompt: a question and its options commit to nothing."""
    for message in task.messages:
        prompt = message.content.strip()
        if len(prompt) >= _MIN_PROMPT_CHARS:
            text = text.replace(prompt, "\n")
    return text


def _stated_text(text: str) -> str | None:
    """The text of the last tag, box or statement, else the last line, in plain spelling."""
    tags, boxes = _TAG.findall(text), find_boxes(text)
    statements = list(_CLAIM.finditer(text))
    if tags:
        claim = tags[-1][1]
    elif boxes:
        claim = boxes[-1].content
    else:
        claim = text[statements[-1].end() :] if statements else text.rstrip().rpartition("\n")[2]
    line = plain(claim[:_MAX_ANSWER_CHARS]).strip(" :=\n").partition("\n")[0]
    line = _THOUSANDS.sub("", line)
    return re.split(r"[.!?](?:\s|$)", line, maxsplit=1)[0].strip(" .,;:").casefold() or None
