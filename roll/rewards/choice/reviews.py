"""Reviews of the options one by one, with a verdict on each and no conclusion."""

from __future__ import annotations

import re
from collections.abc import Iterator

from roll.rewards.choice import questions, wording
from roll.rewards.choice.options import OptionTexts

_MAX_LINES = 400
_MIN_ENTRIES = 3
_MAX_PIECE_CHARS = 200
_ENTRY = re.compile(
    r"\s*(?:[-+>#*]{1,6}\s+|\d{1,2}[.)]\s+){0,4}(?P<mark>✓|✗|\[\s*[xX✓✗]?\s*\])?[\s:-]{0,6}"
    r"(?:(?:option|choice|answer|statement|opci[óo]n|op[çc][ãa]o|opzione|选项"
    r"|選項)\s*[(\[]?(?P<named>[A-Z])(?![A-Za-z'])[)\]]?"
    r"|[(\[]?(?P<letter>[A-Z])(?:[)\]]+|(?=[.:|](?!\w))|(?=\s+(?:-|✓|✗|\||\(|is\b|was\b))|(?=\s*(?:选项|選項|项"
    r"|項))|(?=\s*$)))"
    r"(?:选项|選項|项|項)?[\s.:|)\]-]{0,8}",
    re.IGNORECASE,
)
"""The beginning of a line that discusses one option: a mark, a bullet, the label."""
_PIECE = re.compile(r"[.!?;:,\n(|]|\s-\s|->|✓|✗")
_SUBJECT = (
    r"(?:(?:so|thus|therefore|hence|and|but),? )?(?:(?:this|that|it|which)(?: (?:option|statement|choice|answer"
    r"|one|claim))?"
    r"|the (?:statement|option|choice|claim)|(?:option|statement|choice) [A-Z])?"
)
_CERTAINLY = (
    r"(?:(?!partially|partly|nearly|hardly|probably|possibly|technically|mostly|likely|only)\w{2,12}ly "
    r"|indeed |the |a |an |thus |therefore )*"
)
_RIGHT = r"correct|right|correct[oae]|richtig|korrekt|exacte?|juste|corrett[ao]|corret[ao]|正确|正確|对|對"
_TRUE = r"true|yes|accurate|verdader[oa]|verdadeir[oa]|vrai|vraie|wahr|ver[oa]"
_WRONG = (
    r"incorrect|wrong|invalid|eliminated|ruled out|impossible|not (?:correct|right|the (?:correct |right "
    r"|best )?(?:answer|one|choice))"
    r"|incorrect[oae]|falsch|sbagliat[ao]|errad[oa]|错误|錯誤|不正确|不正確|错|錯|不对|不對"
)
_FALSE = r"false|no|nope|untrue|inaccurate|not (?:true|accurate)|fals[oa]|faux|fausse"
_VERDICT = re.compile(
    rf"{_SUBJECT}(?:'s|\s?(?:is|was|est|ist|es|é|è)(?![A-Za-z])|[是为為])?\s*{_CERTAINLY}"
    rf"(?:(?P<right>{_RIGHT})|(?P<true>{_TRUE})|(?P<wrong>{_WRONG})|(?P<false>{_FALSE}))"
    r"(?![A-Za-z])(?: (?:answer|choice|option|one|statement))?\s*(?:$|(?:because|since|as|due)\b|[)\]])",
    re.IGNORECASE,
)
"""A part of a sentence that is a verdict."""
_VERDICT_WORD = re.compile(rf"(?<![A-Za-z])(?:{_RIGHT}|{_TRUE}|{_WRONG}|{_FALSE})(?![A-Za-z])", re.IGNORECASE)
_RECONSIDERED = re.compile(
    r"(?:^|[.!?\n]\s*)(?:wait|actually|hold on|hmm+|oops|correction|on second thoughts?|let me re|scratch that"
    r"|i was wrong"
    r"|sorry|however, (?:on|if))(?![a-z])|(?<![A-Za-z])(?:more than one|two of|both (?:[A-Z]\b|options|of these)"
    r"|neither of)",
    re.IGNORECASE,
)


def reviewed(text: str, options: OptionTexts, negative_question: bool) -> frozenset[str]:
    """The only option with a positive verdict in a plain text that gives every other one it lists a negative verdict.

    "True" and "false" are no verdicts on the options if the question, or the text before the review, is negative.
    """
    lines = [line for line in text.split("\n") if line.strip()][:_MAX_LINES]
    entries = list(_entries(lines, options))
    intro = "\n".join(lines[: entries[0][0]]) if entries else ""
    negative = negative_question or questions.NEGATIVE_QUESTION.search(intro) is not None
    verdicts: dict[str, set[bool]] = {}
    ticked = any("✓" in mark for _, _, mark, _ in entries)
    for _, letter, mark, body in entries:
        verdicts.setdefault(letter, set()).update(_verdicts(mark, body, options, negative=negative, ticked=ticked))
    if len(verdicts) < min(_MIN_ENTRIES, len(options.texts)) or any(len(each) != 1 for each in verdicts.values()):
        return frozenset()
    if _RECONSIDERED.search(text) or wording.NONE_OF.search(text):
        return frozenset()
    right = frozenset(letter for letter, each in verdicts.items() if True in each)
    return right if len(right) == 1 else frozenset()


def _entries(lines: list[str], options: OptionTexts) -> Iterator[tuple[int, str, str, str]]:
    """Index of the first line, letter, mark and text of every discussion of one option."""
    heads = [(index, head) for index, line in enumerate(lines) if (head := _entry(line, options)) is not None]
    bounds = [*(index for index, _ in heads), len(lines)]
    for (index, head), end in zip(heads, bounds[1:], strict=True):
        letter = (head["named"] or head["letter"]).upper()
        first = _without_text(lines[index][head.end() :], options.texts[letter])
        yield index, letter, head["mark"] or "", "\n".join([first, *lines[index + 1 : end]])


def _entry(line: str, options: OptionTexts) -> re.Match[str] | None:
    head = _ENTRY.match(line)
    letter = (head["named"] or head["letter"]) if head else ""
    return head if letter.isupper() and letter in options.texts else None


def _without_text(rest: str, option: str) -> str:
    return rest[len(option) :].lstrip(" .") if option and rest.casefold().startswith(option.casefold()) else rest


def _verdicts(mark: str, body: str, options: OptionTexts, *, negative: bool, ticked: bool) -> Iterator[bool]:
    """Every verdict on one option, from its mark and from its words; [x] is a cross beside ticks, else a tick."""
    if mark:
        yield "✓" in mark or ("x" in mark.lower() and not ticked)
    for sign in re.findall(r"[✓✗]", body):
        yield sign == "✓"
    if any(_VERDICT_WORD.search(option) for option in options.texts.values()):
        return
    for piece in _PIECE.split(body):
        verdict = _VERDICT.match(piece.strip()[:_MAX_PIECE_CHARS])
        if verdict is not None and not (negative and (verdict["true"] or verdict["false"])):
            yield bool(verdict["right"] or verdict["true"])
