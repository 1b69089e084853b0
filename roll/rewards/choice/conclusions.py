"""Results in the last sentence of a text that name one option by its text, such as a number with its unit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from roll.rewards.choice.options import OptionTexts, TextSpan
from roll.rewards.choice.prose import CHANGE, DOUBT, LINK, NOUN_BEFORE, copied, names_letter, tellable

_MAX_CHARS = 4_000
_MAX_SENTENCE_CHARS = 240
_MAX_WORDS_AFTER = 7
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*|__([^_\n]{1,200})__|<(b|strong)>([^<\n]{1,200})</\3>")
_ASIDE = re.compile(
    r"\s*\((?!\s*(?:wait|actually|no|hmm+|oops|correction|edit|sorry)\b)[^()?]{20,600}\)\s*\Z", re.IGNORECASE
)
"""A remark in brackets at the end; it begins with no correction."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")
_CONCLUDES = re.compile(
    r"\W*(?:and )?(?:so|thus|therefore|hence|consequently|accordingly|as a result|in conclusion|in total|altogether)"
    r"(?![A-Za-z]),? ?",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"(?<![A-Za-z])(?:in|after|during|by|at|of|within) (?:the|its|his|her) (?:first|second|third|next|same)(?: \w+)?"
    r"|(?<=\w )(?:falls|needs?)(?= ⋯)",
    re.IGNORECASE,
)
"""A time or a place, or the verb of the result: words that are no doubt here."""
_VERB = re.compile(
    r"(?<![A-Za-z])(?:is|are|equals?|takes?|needs?|lasts?|falls?|rises?|drops?|travels?|covers?|moves?|costs?|weighs?|has"
    r"|have|gives?|gets?|earns?|pays?|saves?|makes?|contains?|uses?|reaches|becomes?|measures?|produces?|yields?|gains?"
    r"|loses?|increases?|decreases?|grows?|shrinks?|requires?|totals?|runs?|walks?|holds?|receives?|owes?|releases?"
    r"|absorbs?|carries|sells? for|comes? to|amounts? to"
    r"|(?:is|are|becomes?) (?:an?|the) (?:\w+ )?(?:increase|decrease|rise|fall|drop|gain|loss"
    r"|change|reduction|discount|profit|speed|distance|length|total|share|rate|growth|force|height"
    r"|angle|mass|volume|price|yield|efficiency|interest|tax|tip))"
    r"(?: the (?:two |three )?\w+)?(?: (?:them|him|her|it|us|you|by|to|exactly|an?|the|of|\w+ly|total|about)){0,3} $",
    re.IGNORECASE,
)
"""Ends before the result of a sentence."""
_SUBORDINATE = re.compile(
    r"(?<![A-Za-z])(?:because|since|that|who|where|whose|after|and|as|includ\w*|from|so)(?![A-Za-z])", re.IGNORECASE
)
_PART = re.compile(
    r"(?<![A-Za-z])(?:one|alone|single|half|part|third|quarter|remaining|step|case)(?![A-Za-z])", re.IGNORECASE
)
"""Words of a result that is one of several, or of a step."""
_STEP = re.compile(r"\W*(?:step|part|case)? ?\d{1,2}\s?[.):]\s|\W*(?:step|part|case) \d", re.IGNORECASE)
_WHICH = re.compile(r"\W*(?:which|this|that|it) (?:is|means|makes|gives|represents|corresponds to)\b", re.IGNORECASE)
_PARTIAL = re.compile(
    r"[ ]?(?:of|per|less|more|fewer|longer|later|earlier|shorter|faster|slower|older|younger|before|after|ago|and|or"
    r"|plus|minus|times|to(?! [a-z]{3})|out|from|than|who|that|which|because|alone|each|if|as|is|are|was|were"
    r"|squared|cubed|away|short|too|remain\w*|left|so|have|has)(?![A-Za-z])"
    r"|[ ]?[-+*/=^<>%,;:]",
    re.IGNORECASE,
)
"""After a quantity that is compared, or only a part of another one."""


def concluded(raw: str, text: str, options: OptionTexts, prompt: str = "") -> frozenset[str]:
    """The only option that the last sentence of a text gives as its result.

    The sentence begins with "so" or the like, has the option in bold, or ends with it after "which is an increase of".
    `raw` is the text with its markup. The prompt, if it is known, must not name the option outside of its list.
    """
    text = _ASIDE.sub("", text.strip()[-_MAX_CHARS:]).strip()
    if _STEP.match(text.rpartition("\n")[2]):
        return frozenset()
    sentence = (_SENTENCE.split(text)[-1] if text else "").strip()
    if not sentence.endswith((".", "!")) or sentence.endswith("...") or len(sentence) > _MAX_SENTENCE_CHARS:
        return frozenset()
    places = list(options.written(sentence))
    letters = {place.letter for place in places}
    if len(letters) != 1 or len(places) != 1:
        return frozenset()
    letter = places[0].letter
    if not _results(sentence, places[0], bold=_bold_letters(raw, options) == {letter}):
        return frozenset()
    masked = _PLACE.sub(" ", sentence[: places[0].start] + "⋯" + sentence[places[0].end :])
    if DOUBT.search(masked) or _PART.search(masked) or names_letter(masked) or _shares(masked, letter, options):
        return frozenset()
    pattern = re.compile(rf"(?<![\w'-]){re.escape(options.texts[letter])}(?![\w-]|'\w)", re.IGNORECASE)
    return frozenset() if copied([sentence], pattern, prompt) else frozenset(letter)


def _bold_letters(raw: str, options: OptionTexts) -> set[str]:
    """The letters of all options that a text has in bold."""
    bold = (span[1] or span[2] or span[4] for span in _BOLD.finditer(raw[-_MAX_CHARS:]))
    return {letter for content in bold if (letter := options.match(content)) is not None}


def _results(sentence: str, place: TextSpan, *, bold: bool) -> bool:
    """Whether a sentence gives an option as its result."""
    opening = _CONCLUDES.match(sentence)
    start = opening.end() if opening else 0
    if place.start <= start:
        return False
    before, after = sentence[start : place.start], sentence[place.end :].rstrip(" .!)")
    clauses = re.split(r"[,;:]\s", before)
    if _PARTIAL.match(after) or len(after.split()) > _MAX_WORDS_AFTER or re.search(r"[\d,;:]", after):
        return False
    option = sentence[place.start : place.end]
    quantity = re.search(r"\d", option) is not None
    if (after or not bold) and quantity and not any(char.isalpha() or char in "%€£°" for char in option):
        return False
    if not quantity and (after or not tellable(option)):
        return False
    which = _WHICH.match(clauses[-1]) is not None
    if _SUBORDINATE.search(_WHICH.sub("", clauses[-1])):
        return False
    verb = _VERB.search(clauses[-1]) if quantity else LINK.search(clauses[-1])
    if not (verb or (CHANGE.match(option) and NOUN_BEFORE.search(clauses[-1]))):
        return False
    return (bold or opening is not None or (which and not after)) and _told(clauses)


def _told(clauses: Sequence[str]) -> bool:
    """Whether the clause of the result has a subject."""
    return bool(re.search(r"[^\W\d_]{2}", clauses[-1]))


def _shares(masked: str, letter: str, options: OptionTexts) -> bool:
    """Whether the rest of a sentence has a number of another option, or the word of one that is a single word."""
    words = set(re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", masked.casefold()))
    letter_text = options.texts[letter].casefold()
    others = [text.casefold() for other, text in options.texts.items() if other != letter]
    return any(
        token in words and token not in letter_text
        for text in others
        for token in ([text] if text.isalpha() else re.findall(r"\d+(?:\.\d+)?", text))
    )
