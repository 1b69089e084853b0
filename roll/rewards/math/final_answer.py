"""The text of a response that is its final answer. An answer that is negated, retracted or ambiguous does not count.

The order: text inside the last answer tags, if any; in it the last box; else the last statement ("the answer is ...",
"####"); else the last line with a value: its bold text, else the text after its last equals sign, else its last
formula, else its last number; else the last line as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from roll.rewards.math import mood, number_words, prose, rejected
from roll.rewards.math.sentence import BOLD, FORMULA, MAX_CHARS, stated_word, values, with_word
from roll.rewards.response import Box, after_thinking, answer_text, find_boxes

_MAX_BOX_DEPTH = 3
_MAX_CUES = 20
_MAX_LINES = 20
_MAX_TAIL = 4000
"""Characters at the end of a response that are read for an answer without a box and without a statement."""
_MAX_GAP = 30
"""Characters between two boxes that are one list."""
_MAX_QED = 24
_MAX_END = 8
"""Characters after the last box that are no further sentence."""
_NEAR = 160
"""Characters before a box in which a negation may belong to it."""

_STATEMENT = re.compile(
    r"####|\banswers?\*{0,2}(?:\s*\([^()\n]{0,40}\))?(?:\s+(?:is|are|was|equals|(?:must|should|will|would)\s+be)\b\s*:?"
    r"|\*{0,2}\s*[:=]|\s*\n)",
    re.IGNORECASE,
)
_VERIFIED = re.compile(
    r"[\s*]*(?:indeed\s+|therefore\s+|thus\s+)?"
    r"(?:correct|right|verified|confirmed|consistent|reasonable|valid|clear|plausible)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[.!?](?:\s|$)")
_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z\d*$\\(∴⇒])")
_JOINS_BOXES = re.compile(
    r"[\s$,;&*.()\[\]\\]*(?:(?:and|or|,|&|\\q?quad|\\text\{ ?(?:and|or) ?\})[\s$,;&*.()\[\]\\]*)?", re.IGNORECASE
)
_FACTORIAL = re.compile(r"[\s$]*\d+!+[\s$]*")
_QED = re.compile(r"(?:\$?\\(?:blacksquare|square|Box|qed)\$?|∎|□|■|Q\.?E\.?D\.?)[\s.]*$")
_BULLET = re.compile(r"\s*(?:[-*\u2022]|\d{1,2}[.)]|\([a-z\d]\))\s+")
_EQUATION = re.compile(
    r"[\s$\\(\[*]*([A-Za-z])(?:_\{?\w{1,2}\}?|[\u2080-\u2089])?\s*=\s*([^=]{1,80}?)[\s$\\)\]*.,;]*(?:\band\b"
    r"|\bor\b)?\s*"
)
_ANNOUNCES = re.compile(
    r"(?:\b(?:solutions?|roots|zeros|zeroes|values|answers|possibilities|are|follows|either)\b[^:]{0,40}:"
    r"|\bare)[\s*$]*$",
    re.IGNORECASE,
)
_CONSTANT = re.compile(r"[π∞√∅]|\\(?:infty|pi|sqrt)(?![a-z])|\b(?:infinity|ln|pi)\b")
_SIMPLE = r"\$?(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
_WORD = r" (?!(?:or|and|to|base|mod|out|times|plus|minus|over|less|divided|per)\b)[a-z]{2,}"
_SIMPLE_STATEMENT = re.compile(rf"[\s*:]*(?:\\\()?{_SIMPLE}(?:\\\))?[$*]*(?P<word>{_WORD})?[.*]*")
_PLAIN_REPLY = re.compile(
    rf"(?:[Tt]he )?(?:[Ff]inal |correct )?[Aa]nswer(?: is|:) "
    rf"(?:{_SIMPLE}|\$?\\boxed\{{(?P<boxed>[^{{}}\\]{{1,80}})\}}\$?)\.?"
)
"""A reply that is a statement and nothing else."""
_BEFORE_EQUALS = r"(?![^=]* \(?(?:at|since|because|as|where|if|when) [^,=]*=)[^=<>!]*="
_SIMPLE_LINE = re.compile(rf"(?:[A-Za-z ,']*|{_BEFORE_EQUALS}) ?{_SIMPLE}(?P<word>{_WORD})?(?:{_WORD}){{0,5}}\.?")
"""Most answers: a number after words or an equals sign, and perhaps words after it."""


def candidates(response: str) -> list[str]:
    """The final answer of a response, in every way it may be read; empty if there is none, or it is ambiguous."""
    whole = after_thinking(response)
    text = answer_text(whole) if "</answer>" in whole else whole
    tagged = text is not whole
    if (plain := _PLAIN_REPLY.fullmatch(text)) is not None:
        return [plain["number"] or plain["boxed"]]
    if "\\boxed" in text or "\\fbox" in text:
        boxes = find_boxes(text)
        if boxes:
            return _boxed(text, boxes)
    if not text.isascii():
        text = prose.in_english(text)
    if tagged and "\n" not in text.strip() and not _STATEMENT.search(text):
        return [text.strip()] if _FACTORIAL.fullmatch(text) else _statement(text)
    text = rejected.without_quotations(text)
    tail = text[-_MAX_TAIL:]
    if prose.may_deny(tail) and (rest := prose.after_retraction(tail)) is not None:
        return _stated(rest)
    return _stated(text)


def _boxed(text: str, boxes: Sequence[Box]) -> list[str]:
    """The last box that is not denied, with those it is joined to by `and`, `or` or a comma."""
    indices = list(range(len(boxes)))[-_MAX_CUES:]
    near = text[max(0, boxes[indices[0]].start - _NEAR) :]
    ends = len(text) - boxes[-1].end <= _MAX_END
    if prose.may_govern(near) if ends else prose.may_deny(near):
        if (rest := prose.after_retraction(text[boxes[-1].end :][-_MAX_TAIL:])) is not None:
            return _stated(rest)
        indices = [index for index in indices if not _denied(text, boxes[index])]
    if indices and not ends and mood.may_be_unreal(near):
        indices = [index for index in indices if not _unreal(text, boxes[index])]
        if not indices:
            return _stated(text[boxes[-1].end :])
    if not indices:
        return []
    if len(boxes) == 1:
        return [_innermost(boxes[0].content)]
    last = first = indices[-1]
    while first > 0 and first - 1 in indices and boxes[first].start - boxes[first - 1].end < _MAX_GAP:
        between = text[boxes[first - 1].end : boxes[first].start]
        if not between.strip("$ ") or "\n\n" in between or not _JOINS_BOXES.fullmatch(between):
            break
        first -= 1
    contents = dict.fromkeys(_innermost(box.content) for box in boxes[first : last + 1])
    return [", ".join(contents)]


def _denied(text: str, box: Box) -> bool:
    before = text[text.rfind("\\boxed", 0, box.start) + 1 : box.start]
    return prose.negated_before(before, len(before)) or prose.denied_after(text, box.end)


def _unreal(text: str, box: Box) -> bool:
    """Whether the sentence of a box says what would be so otherwise, and the text goes on after it."""
    if not any(map(str.isdigit, text[box.end :])):
        return False
    before = _SENTENCES.split(text[max(0, box.start - _NEAR) : box.start])[-1].rpartition("\n")[2]
    after = _SENTENCE.split(text[box.end : box.end + _NEAR], maxsplit=1)[0].partition("\n")[0]
    return mood.is_unreal(f"{before} @ {after}")


def _innermost(content: str) -> str:
    for _ in range(_MAX_BOX_DEPTH):
        inner = find_boxes(content) if "\\boxed" in content or "\\fbox" in content else ()
        if not inner:
            break
        content = inner[-1].content
    return content


def _may_state(text: str) -> bool:
    """Whether the text has a word of a statement; cheaper than the search for one."""
    return "nswer" in text or "####" in text or "NSWER" in text.upper()


def _stated(text: str) -> list[str]:
    """The answer by the last statement; without a statement, of the last line that has a value."""
    cues = list(_STATEMENT.finditer(text))[-2 * _MAX_CUES :] if _may_state(text) else []
    cues = [cue for cue in cues if not _supposed(text, *cue.span())][-_MAX_CUES:]
    for cue in reversed(cues):
        rest = text[cue.end() :]
        if not rest.strip(" *#$\n.:") or (len(cues) > 1 and _VERIFIED.match(rest)):
            continue
        if "would" in cue[0].lower() and _goes_on(rest):
            return _last_line(text[-_MAX_TAIL:])
        negated = prose.negated_before(text, cue.start())
        contrast = prose.after_contrast(rest, negated=negated) if negated or "not" in rest[:_MAX_END] else None
        if contrast is not None or not negated:
            return _statement(contrast or rest)
    return [] if cues and not cues[-1][0].endswith("\n") else _last_line(text[-_MAX_TAIL:])


def _goes_on(text: str) -> bool:
    """Whether a claim with a value follows the first sentence of the text."""
    sentences = [part for line in text[:_MAX_TAIL].splitlines() for part in _SENTENCES.split(line)]
    return any(_has_value(part) and mood.is_claim(part) and not mood.is_remark(part) for part in sentences[1:])


def _supposed(text: str, start: int, end: int) -> bool:
    """Whether a statement is no claim, but what others say, or what would be so otherwise."""
    if text[start] == "#":
        return False
    if prose.hypothetical(text, start, end):
        return True
    if not mood.may_be_unreal(text[max(0, start - 2 * _NEAR) : end + _NEAR]):
        if not rejected.may_be_past(text[max(0, start - _NEAR) : start]):
            return False
        return rejected.is_past(_SENTENCES.split(text[max(0, start - _NEAR) : start])[-1] + text[start:end])
    before = _SENTENCES.split(text[max(0, start - 2 * _NEAR) : start])[-1].rpartition("\n")[2]
    after = _SENTENCE.split(text[end : end + _NEAR], maxsplit=1)[0].partition("\n")[0]
    return mood.is_unreal(f"{before}{text[start:end]}{after}") or rejected.is_past(f"{before}{text[start:end]}")


def _statement(text: str) -> list[str]:
    """The value of the first sentence of the text, or of the displayed formula that it begins with."""
    text = text.lstrip(" \t\n*:")
    line, _, rest = text.partition("\n")
    if (simple := _SIMPLE_STATEMENT.fullmatch(line)) is not None:
        return [with_word(simple["number"], simple["word"])]
    shown = FORMULA.match(text) if text.startswith(("\\[", "$$")) else None
    if shown:
        return [next(filter(None, shown.groups())).strip()]
    sentence = _SENTENCE.split(line[: 8 * MAX_CHARS], maxsplit=1)[0]
    if not any(map(str.isalnum, sentence)) and rest:
        return _statement(rest)
    return values(sentence, stated=True)


def _last_line(text: str) -> list[str]:
    text = text.strip()
    tail = text[-_MAX_QED:]
    if ("\\" in tail or "D" in tail or not tail.isascii()) and (qed := _QED.search(tail)) is not None:
        text = text[: len(text) - len(qed[0])].rstrip()
    start = text.rfind("\n") + 1
    equation = _equation(text[start:]) if start and text.find("=", start) >= 0 else None
    if equation is not None and (listed := _equations(text, equation)):
        return listed
    simple = _SIMPLE_LINE.fullmatch(text, start)
    if simple is not None and not prose.may_change_value(simple[0]) and _is_plain_claim(simple[0]):
        return [with_word(simple["number"], simple["word"])]
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line))][-_MAX_LINES:]
    if not lines:
        return []
    sentences = [part for line in lines for part in _SENTENCES.split(line[-8 * MAX_CHARS :])]
    sentence = _last_claim(sentences)
    if sentence is not None:
        return values(sentence, stated=False)
    if any(map(_has_value, lines)) or not mood.is_claim(sentences[-1]):
        return []
    return [lines[-1].strip(), *stated_word(lines[-1])]


def _is_plain_claim(sentence: str) -> bool:
    if not mood.may_lack_claim(sentence):
        return True
    return ". " not in sentence and mood.is_claim(sentence) and not mood.is_remark(sentence)


def _last_claim(sentences: Sequence[str]) -> str | None:
    """The last sentence that claims a value; a remark only if there is no other."""
    if mood.gives_up(sentences[-1]) and not _has_value(sentences[-1]):
        return None
    if (
        not _has_value(sentences[-1])
        and number_words.stated(sentences[-1]) is not None
        and mood.is_claim(sentences[-1])
    ):
        return sentences[-1]
    remark = None
    for sentence in reversed(sentences):
        if not _has_value(sentence) or not mood.is_claim(sentence):
            continue
        if not mood.is_remark(sentence):
            return sentence
        remark = remark or sentence
    return remark


def _equation(line: str) -> re.Match[str] | None:
    """A line that is `x = value`, perhaps with a bullet."""
    bullet = _BULLET.match(line)
    return _EQUATION.fullmatch(line, bullet.end() if bullet else 0) if len(line) < _NEAR else None


def _equations(text: str, last: re.Match[str]) -> list[str]:
    """The list of values on separate lines after a line that announces several: "The roots are:"."""
    equations = [last]
    for line in reversed(text.splitlines()[-_MAX_LINES:-1]):
        if not any(map(str.isalnum, line)):
            continue
        if (equation := _equation(line)) is None:
            announced = len(equations) > 1 and _ANNOUNCES.search(line[-_NEAR:])
            break
        equations.append(equation)
    else:
        return []
    if not announced:
        return []
    names = {equation[1] for equation in equations}
    values_of = [
        equation[2] if len(names) == 1 else f"{equation[1]} = {equation[2]}" for equation in reversed(equations)
    ]
    return [", ".join(values_of)]


def _has_value(line: str) -> bool:
    return (
        any(map(str.isdigit, line))
        or _CONSTANT.search(line) is not None
        or FORMULA.search(line) is not None
        or BOLD.search(line) is not None
    )
