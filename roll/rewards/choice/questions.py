"""Questions: those that ask for the wrong option, and those in a response that answer themselves."""

from __future__ import annotations

import re

NEGATIVE_QUESTION = re.compile(
    r"\b(?:incorrect|false|wrong|untrue|invalid|except|least|NOT|error|mistake|mistaken|inaccurate|inappropriate)\b"
    r"|(?i:\bnot (?:true|correct|a|an|one|the|valid|be|likely|\w+ed|\w+ing)\b|\bEXCEPT\b|n't\b)"
)
"""A question that asks for the option that is wrong."""
_TAG_QUESTION = re.compile(r", (?:right|correct|isn't it)\?(?=\s|$)", re.IGNORECASE)
_SELF_ANSWER = re.compile(r"(?<![A-Za-z0-9])\(?([A-Z])\)?\? (Yes|No)(?![A-Za-z])[.!,]?(?! (?:wait|doubt))")
_ASKED_CHARS = 600


def asks_negatively(text: str) -> bool:
    """Whether a text repeats, near its beginning, a question for the option that is wrong."""
    questions = re.split(r"[.!\n]|(?<=\?)", text[:_ASKED_CHARS])
    return any(NEGATIVE_QUESTION.search(question) for question in questions if question.endswith("?"))


def stated(text: str) -> str:
    """The text with statements in place of questions that answer themselves ("B, right?", "A? No.")."""
    text = _TAG_QUESTION.sub(".", text)
    return _SELF_ANSWER.sub(lambda match: f"{match[1]} is {'correct' if match[2] == 'Yes' else 'wrong'}.", text)
