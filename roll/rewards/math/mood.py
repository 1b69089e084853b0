"""Sentences that claim nothing: questions, plans, counterfactuals, quotes and guesses; and remarks beside the answer."""

from __future__ import annotations

import re

_MAX_CHARS = 600
_OPENING = r"^[\s(*_>#\d.)\u2022-]*"
_LINK = r"(?:(?:so|and|but|now|first|second|next|then|finally|after that|afterwards|to start|to begin with)\b[,:]?\s*)*"
_APOSTROPHE = "['\u2019]"
_QUESTION = re.compile(r"\?[\s*_)\"'\u201d$]*$")
_TAG_QUESTION = re.compile(rf",\s*(?:right|correct|yes|is(?:n{_APOSTROPHE}t)? it|no)\?[\s*_)]*$", re.IGNORECASE)
_WOULD = re.compile(
    rf"\b(?:would|(?:could|might|should) have)\b|\b(?:i|we|you|he|she|it|they|one){_APOSTROPHE}d\b", re.IGNORECASE
)
_UNREAL = re.compile(
    rf"\bif\b[^.?!]{{0,120}}?\b(?:were|had|(?:were|had|did|was|do|does|is|are)(?:n{_APOSTROPHE}t| not)|instead|only"
    r"|ignor\w+|forg[eo]t\w*|neglect\w*|mis\w+|wrongly|incorrectly|simply|just|naively)\b"
    r"|\b(?:had|were)\s+(?:there|it|he|she|they|we|i|you|all|the|a|this|that|[A-Z]\w+)\b[^.?!]{0,80},"
    rf"|\bwithout\b|\bunder\s+(?:the|that|this|an?)\b|\bonly\s+(?:if|when|under)\b|\botherwise\b|\b(?:in|for) (?:that|another"
    rf"|a different) case\b|\b(?:was|is|were|are)(?:n{_APOSTROPHE}t| not) (?:given|stated|true|the case)\b|\binstead\b"
    r"|\b(?:in|on|at) an? (?:ordinary|ideal|non-leap|normal|different|hypothetical)\b|\bnaive\w*|\btempt\w*",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"\b(?:we|i)\s+(?:are|am|were|was)\s+(?:asked|told|given|looking|trying|supposed|required|going)\b"
    rf"|\b(?:we{_APOSTROPHE}re|i{_APOSTROPHE}m)\s+(?:asked|told|given|looking|trying|supposed|required|going)\b"
    r"|\b(?:problem|question|task|exercise|puzzle)\s+(?:asks|is asking|wants|says|states|tells|gives)\b"
    r"|\b(?:we|i)\s+(?:want|need|have|would like|wish)\s+to\s+(?:find|know|determine|compute|calculate|show|prove|figure|check"
    rf"|solve|decide|count|work out)\b|{_OPENING}(?:find|determine|what|how|which (?!is|are|equals|gives|makes)|who|when|where|why|given|recall)\b"
    rf"|{_OPENING}let\s+(?!us\b|me\b)\$?[a-zA-Z]\w?\$?\s*(?:=|be\b|denote\b)",
    re.IGNORECASE,
)
_TRIAL = re.compile(r"\bwhether\b|\b(?:see|find out) (?:what|if|how)\b", re.IGNORECASE)
_ACTS = (
    r"substitut\w+|plug\w*|use|apply|set|try|test|consider|look|start|begin|draw|define|recall|split|rewrite|convert|check"
    r"|verify|examine|proceed|continue|move|go|take|think|guess|assume|suppose|imagine|simplify|expand|factor|isolate|plot"
)
_COMPUTES = r"find|compute|calculate|determine|solve|evaluate|count|figure|work|add|subtract|multiply|divide|see|compare"
_PLAN = re.compile(
    rf"{_OPENING}{_LINK}(?:"
    rf"(?:let{_APOSTROPHE}?s|let us|let me|(?:we|i)(?:{_APOSTROPHE}ll| will| shall| should| must| can| could| may| might"
    r"| need to| have to| want to| are going to| am going to| plan to| would)(?: also| now| then| next| first| just| try to)*)"
    rf"\s+(?:{_ACTS}|{_COMPUTES})|(?:(?:we|i)\s+)?(?:{_ACTS})|(?:{_COMPUTES}))\b"
    r"(?!\s+(?:(?:about|exactly|only|a total of)\s+)?[$*]*\d)",
    re.IGNORECASE,
)
_OUTCOME = re.compile(
    r"\b(?:so|thus|hence|therefore|gets?|got|gives?|giving|yields?|yielding|obtain\w*|means|meaning|answer|finally we have"
    r"|(?:conclude|see|find|show|know|so) that|which (?:is|are|gives?|equals?|means|makes|yields?|leaves))\b"
    r"|(?:[\d)}\]]\$?|\b[a-zA-Z]\^?\d?)\s*[-+*/\u00d7\u00b7\u00f7\u2212][^=]{0,80}=|\\(?:cdot|times|frac|sqrt|binom|div)\b[^=]{0,120}="
    r"|=[^=]{0,80}=|:[^:]{0,40}\d|\u2192|\u21d2|\\implies|\\Rightarrow|=>",
    re.IGNORECASE,
)
_FINDS = re.compile(rf"{_OPENING}{_LINK}(?:we|i)\s+(?:{_COMPUTES})\b", re.IGNORECASE)
_OTHERS = (
    r"(?:he|she|they|some(?:one|body|times?)?|others?|many|most|people|students?|friends?|brother|sister|classmates?|teacher"
    r"|authors?|book|textbook|key|solution|reader|intuition|guess(?:es)?|everyone|everybody|anyone|nobody|who|(?!(?:We|You|This|That|It|Which|So|Thus|Hence|Then|Therefore|And|The|These|Both|Let|Now)\b)[A-Z][a-z]+)"
)
_QUOTE = re.compile(
    rf"\b{_OTHERS}\s+(?:(?:might|may|could|would|will|often|also|incorrectly|wrongly|mistakenly|initially|confidently)\s+)*"
    r"(?:says?|said|claim(?:s|ed)?|thinks?|thought|believe[sd]?|argue[sd]?|insist(?:s|ed)?|suggest(?:s|ed)?|assert(?:s|ed)?"
    r"|assume[sd]?|maintain(?:s|ed)?|told|tells|conclude[sd]?|guess(?:es|ed)?|propose[sd]?)\b"
    r"|\baccording to\s+(?!the (?:formula|theorem|law|rule|table|graph|chart|problem|definition|pattern|above|data)\b)"
    rf"(?:my|his|her|their|some|the|an?|[A-Z][a-z]+)\b|\b(?i:(?:a|the) (?:common|typical|frequent|naive|usual) "
    r"(?:mistake|error|guess|answer|wrong))|\b(?i:it is (?:tempting|easy) to)\b|\b(?i:at first (?:glance|sight))\b",
)
_CONTRAST = re.compile(
    r"[;,.\u2014]\s*(?:but|however|yet|in fact|actually|in reality|(?:so )?the (?:correct|right|true|actual|real))\b[^?]*\d",
    re.IGNORECASE,
)
_GUESS = re.compile(
    rf"{_OPENING}(?:perhaps|maybe|possibly|hmm+)\b|\b(?:it|this|that|answer|result|value|total)\s+"
    r"(?:might|may|could)\s+(?:well\s+|possibly\s+|perhaps\s+)?(?:be|equal)\b|\b(?:wild|random|pure) guess\b"
    r"|\b(?:i|we) (?:hope|wonder|wish)\b",
    re.IGNORECASE,
)
_GIVES_UP = re.compile(
    rf"\b(?:i|we){_APOSTROPHE}?(?:m|re| am| are| was| were| remain)?\s+(?:\w+\s+)?"
    r"(?:not (?:\w+ )?(?:sure|certain|confident|able)|unsure|uncertain|stuck|lost|unable)\b"
    rf"|\b(?:i|we)\s+(?:(?:do|could|did|can)(?: not|n{_APOSTROPHE}t)|cannot|failed to|am unable to|was unable to|were unable to)"
    r"\s+(?:\w+\s+)?(?:know|determine|find|solve|reach|decide|tell|say|trust|answer|finish|complete|figure|conclude|get|give)\b"
    r"|\b(?:give|gave|giving) up\b|\bno idea\b|\bno (?:final|definite|definitive|clear|unique) (?:answer|conclusion|result)\b"
    r"|\b(?:not enough|insufficient|too little|missing) (?:information|data|detail)|\bcannot be (?:determined|decided|found|known)"
    rf"|\bcan{_APOSTROPHE}t be (?:determined|decided|found|known)|\bimpossible to (?:say|tell|determine|know|decide|answer)"
    r"|\b(?:would|need) (?:\w+ )?more (?:information|data|time)\b",
    re.IGNORECASE,
)
_REMARK = re.compile(
    rf"{_OPENING}(?:remark|note\b|notice|n\.?b\.|aside|p\.?s\.|by the way|incidentally|interestingly|observe that"
    r"|for (?:comparison|reference|instance|example|context|completeness)|as an? (?:aside|example|check|sanity|remark|side)"
    r"|(?:quick |sanity |double[- ])?(?:check|verification|verify|proof)\b|(?:we can |let me |let us |let's )?"
    r"(?:double[- ]?check|verify|check)\b|to (?:check|verify|confirm|double)|in (?:contrast|comparison)|by (?:contrast|comparison)"
    r"|similarly|conversely|compare|more generally|in general|alternatively)",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(rf"{_OPENING}(?:for (?:instance|example|comparison|reference)|remark\b)", re.IGNORECASE)
_CONCLUDES = re.compile(
    r"\b(?:so|thus|hence|therefore|answers?|final|conclude|must|need|forgot|should|actually|but|in total|altogether)\b",
    re.IGNORECASE,
)
_STEMS = (
    *("?", "would", "should", "will", "might", "may", "could", "can ", "'", "\u2019", "need", "want", "have to", "asked", "given"),
    *("trying", "looking", "asks", "ask", "find", "determin", "what", "how", "which", "whether", "say", "said", "claim", "think"),
    *("thought", "believ", "argue", "insist", "suggest", "assert", "assum", "tell", "told", "conclud", "guess", "accord"),
    *("common", "typical", "tempt", "glance", "perhaps", "maybe", "possibl", "hmm", "hope", "remark", "note", "notice", "check"),
    *("verif", "for ", "as a", "by ", "similar", "let ", "substitut", "plug", "use", "apply", "set", "try", "test", "consider"),
    *("look", "start", "begin", "draw", "recall", "split", "convert", "proceed", "take", "suppos", "imagin", "comput"),
    *("calculat", "solve", "count", "who", "when", "where", "why", "propos", "maintain", "alternativ", "compar", "convers"),
)
"""Parts of the words that a sentence without a claim has."""


def may_lack_claim(sentence: str) -> bool:
    """Whether the sentence has a word that a sentence without a claim could have; cheaper than `is_claim`."""
    lower = sentence.lower()
    for stem in _STEMS:  # noqa: SIM110 - a generator takes twice as long
        if stem in lower:
            return True
    return False


def is_claim(sentence: str) -> bool:
    """Whether a sentence says what is so, and not what is asked, planned, guessed, said by others or contrary to fact."""
    sentence = sentence[-_MAX_CHARS:]
    if _QUESTION.search(sentence) and not _TAG_QUESTION.search(sentence):
        return False
    unreal = is_unreal(sentence) and not _CONTRAST.search(sentence)
    return not (unreal or _GUESS.search(sentence) or _is_plan(sentence))


def is_unreal(sentence: str) -> bool:
    """Whether a sentence says what would be so under a condition contrary to fact, or what others say."""
    sentence = sentence[-_MAX_CHARS:]
    return bool((_WOULD.search(sentence) and _UNREAL.search(sentence)) or _QUOTE.search(sentence))


def _is_plan(sentence: str) -> bool:
    if _TRIAL.search(sentence):
        return True
    planned = _ASKED.search(sentence) or (None if _FINDS.match(sentence) else _PLAN.match(sentence))
    return planned is not None and not _OUTCOME.search(sentence, planned.end())


def is_remark(sentence: str) -> bool:
    """Whether a sentence is beside the answer: a note, an example or a check."""
    if _EXAMPLE.match(sentence):
        return True
    return _REMARK.match(sentence) is not None and not _CONCLUDES.search(sentence[-_MAX_CHARS:])


def gives_up(sentence: str) -> bool:
    """Whether a sentence says that there is no answer."""
    return _GIVES_UP.search(sentence[-_MAX_CHARS:]) is not None
