"""Words around an answer: those that deny it, retract it, explain it, or make it another value."""

from __future__ import annotations

import re

from roll.rewards.math.word_parts import WordParts

_CONTEXT = 160
"""Characters around an answer in which a negation is looked for."""
_DASHES = "\u2013\u2014-"
_APOSTROPHE = "['\u2019]"

_GOVERNS = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|nobody|no ?one|wrong|incorrect(?:ly)?|false|doubts?|deny|denies|unlikely|"
    r"impossible|no longer|other than|anything but|except|far from|rather than|instead of|no way|no chance|hardly|"
    r"nowhere near|by no means|not (?:even )?close to|refut\w*|reject\w*|"
    rf"rul(?:e|es|ed|ing) out|mistaken(?:ly)?)\b|n{_APOSTROPHE}t\b)"
    r"(?:[\s$*(\\\[=]|\b(?:be|been|equals?|to|for|the|an|my|our|your|final|correct|right|true|case|answer"
    r"|solution|value|"
    r"result|really|simply|just|exactly|it|its|is|was|that|would|could|say|saying|claim|claiming|think|believe"
    r"|conclude|"
    rf"as|possibly|actually|even|quite|necessarily|ever|[a-zA-Z])\b|{_APOSTROPHE}s\b)*+$"
    rf"|(?:\b(?:did|do|does|will|would|could|can|has|have|had) not|n{_APOSTROPHE}t|\bcannot|\bnobody|\bno ?one|\bnever)"
    r"\s+[a-z]+\s+[$*(]*$"
    rf"|(?:\b(?:no|not|cannot|never)|n{_APOSTROPHE}t)\s+(?:\w+\s+){{0,4}}(?:think|believe|verify|confirm|say|claim"
    rf"|conclude|guarantee|sure"
    r"|certain|convinced|prove|show|assume|trust)\s+(?:that\s+)?(?:(?:it|this|that|there|the\s+\w+)"
    rf"(?:{_APOSTROPHE}s|\s+(?:is|are|was|equals))?\s+)?[$*(]*$",
    re.IGNORECASE,
)
"""A negation at the end of a text that belongs to what follows."""
_NEGATION = re.compile(
    rf"\b(?:not|never|neither|nor|no|cannot|hardly|unlikely|wrong|false|incorrect|doubt\w*|impossible)\b"
    rf"|n{_APOSTROPHE}t\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"[.;:!?\n]\s|,\s+(?:so|but|and|thus|hence|therefore)\b|\b(?:but|so|thus|hence|therefore|then)\b", re.IGNORECASE
)
_OPERATIONS = (
    r"over|under|above|below|beyond|exceed(?:s|ing)?|minus|negative|twice|thrice|double|triple|half|root|square|cube|"
    r"times|between|plus|reciprocal|inverse|opposite|factorial|logarithm|log|absolute value"
)
_MODIFIED = re.compile(
    r"\b(?:less|more|fewer|greater|larger|smaller|bigger|higher|lower) than\b|\bat (?:least|most)\b|\bup to\b"
    rf"|\beither\b|\bdepends on\b|(?<!\\)\b(?:{_OPERATIONS})\s+(?:of\s+|the\s+|a\s+)*[-$*\\(]*\d"
    r"|\b(?:sum|product|difference|quotient|ratio)\s+of\s+[$*]*\d",
    re.IGNORECASE,
)
_EITHER = re.compile(r"\beither\s+(?=[$*]*[a-zA-Z]\s*=)", re.IGNORECASE)
"""Before the solutions of an equation, which are a list."""
_NOT_RIGHT = (
    r"(?:(?:\w+\s+)?(?:wrong|incorrect|false|impossible|mistaken|an? (?:\w+\s+)?(?:error|mistake|trap|misconception))\b"
    r"|not\s+(?:quite\s+)?"
    r"(?:(?:the|our|my)\s+)?(?:\w+\s+)?(?:answer|solution|result|value|right|correct|true|valid|possible)\b)"
)
_DENIED = re.compile(
    r"\s*(?:is|are|was|would be|seems) too \w+|"
    r"[\s*$.,)\]\\]{0,8}(?:(?:but|and)\s+)?(?:(?:this|that|which|it)\s+)?(?:is|was|are|would be|seems|looks|must be)\s+"
    rf"{_NOT_RIGHT}|[\s*$)]{{0,4}}(?:isn{_APOSTROPHE}t|is not|cannot be|can{_APOSTROPHE}t be|won{_APOSTROPHE}t be)\s+"
    r"(?:(?:the|our|my)\s+)?(?:\w+\s+)?(?:answer|solution|result|value|right|correct|true|valid|it|possible)\b"
    rf"|[\s*$)]{{0,4}}(?:(?:does|do|did|will|can)(?: not|n{_APOSTROPHE}t)|cannot|fails? to)\s+"
    r"(?:satisf|work|hold|solve|fit|match|check|make sense)",
    re.IGNORECASE,
)
_WRONG = re.compile(
    rf"\b(?:which|that|this|it) (?:is|was|would be|seems) {_NOT_RIGHT}|\bis {_NOT_RIGHT}\s*$", re.IGNORECASE
)
_RETRACTED = re.compile(
    rf"\bwait\b[\s,.:;!{_DASHES}]*(?:no\b|that|this|it|actually|i\b)|\bno\b[\s,.:;!{_DASHES}]*wait\b|\bscratch that\b"
    rf"|\bcorrection\s*[:,{_DASHES}]|\bi meant?\b|\bmy (?:mistake|bad)\b|\bi made an? (?:mistake|error)\b"
    rf"|[.!?,{_DASHES}]\s*sorry\b|\boops\b|[?…]\s*no\b[\s,.:;{_DASHES}]*|\.\.\.?\s*no\b,?"
    rf"|\bthat(?:{_APOSTROPHE}s| is| was) (?:wrong|incorrect|not right|not correct)\b|[.!]\s+no,|\(no,"
    r"|\b(?:disregard|ignore|forget|strike|never ?mind)\s+(?:that|this|it|what i (?:said|wrote)"
    r"|(?:(?:my|the|our)\s+)?(?:above|previous|earlier|first|last)(?:\s+(?:answer|value|line|result|claim|figure))?)"
    r"(?=\s*[.,;:!\n\u2013\u2014]|\s+(?:and|as|because|the)\b)|\bon (?:second thoughts?|reflection)\b"
    r"|\bi (?:\w+ )?(?:take (?:that|it|this) back|(?:withdraw|retract)(?: (?:that|it|this|my \w+))?)\b",
    re.IGNORECASE,
)
_RECHECKED = re.compile(
    r"\blet me (?:re-?check|re-?do|re-?compute|re-?calculate|correct)\w*\b[^.:\n]{0,40}[.:]"
    rf"|[.!?…{_DASHES}]\s*(?:hmm[\s,.]*)?actually\b,?",
    re.IGNORECASE,
)
_WHY = re.compile(
    r",?\s+\(?(?:because|since|which(?!\s+(?:is|gives|leaves|makes|brings|equals|totals|comes|will"
    r"|would)\b[^.=]{0,120}\d\s*=)"
    r"|where|rather than|instead of)\b.*|[,;(]\s*(?:and\s+)?not\b.*"
    r"|,?\s+(?:or\s+)?equivalently\b.*|,?\s+(?:reached|attained|achieved|occurring)\b.*|(?<=\d)\$?\s+at\s+\$?[a-z]\s*=.*"
    r"|\s+(?:for|over|in|on|across|among|from)\s+(?:all\s+)?(?:the|these|those|his|her|their|its)\s+\d+\s+[a-z]+$"
    r"|\s+over\s+(?:\w+\s+){0,2}\d+\s+(?:days|weeks|months|years|hours|minutes)$",
    re.IGNORECASE | re.DOTALL,
)
_OPENS = re.compile(r"(?:[;:]|\band|\bbut)\s*$")
"""The end of a text after which a reason belongs to what follows."""
_GOES_ON = re.compile(r"\s*[,;:.)\u2013\u2014-]|\s+(?:but|so|and|because|since|as)\b", re.IGNORECASE)
_SUPPOSED = re.compile(
    r"\b(?:if|unless|suppose)\s+(?:the\s+(?:answer|result|total|value)|it|that)\s+(?:is|was|were|equals)[\s$*]*$",
    re.IGNORECASE,
)
_HYPOTHETICAL = re.compile(
    r"\b(?:(?:might|may|could|would|will|often|people|students?|tempt\w*) (?:\w+ ){0,3}?"
    r"(?:think|say|guess|assume|believe|expect|conclude|answer)|if)\b(?: that| it)*(?: the| my| their)*\s*(?:\w+\s)?$",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"\s*[,;(\u2013\u2014]?\s*\(?\b(?:because|since|so that|after|which|where|given|when|rounded|if|obtained|found by|"
    r"as (?:we|it|the|required|shown|follows)|for (?:all|every|any|some)|computed|thanks to|assuming|based on|"
    r"according|from|once|while|rather than|instead of|and not|not|(?-i:by)|due to|using)\b.*"
    r"|,?\s+(?:or|i\.e\.,?|that is,?)\s+(?:about|approximately|roughly|around)\b.*|\s*\(?≈.*"
    r"|\s+\([A-Za-z][^()\d]*\)\s*$"
    r"|\s+\((?!(?:(?:in )?base|mod|or|and|not|times|plus|in)\b)(?=[^()]*[A-Za-z]{2})[^()]*\)\s*$",
    re.IGNORECASE | re.DOTALL,
)
_NOT_BUT = re.compile(
    r"[\s*]*not\b[^\n]{1,80}?(?:[.;,\u2013\u2014]|\s-)[\s*]+(?:(?:rather|instead|in fact|actually|but|no)\b,?\s*){0,2}"
    r"(?:it|this|that|the\s+(?:\w+\s+)?(?:answer|value|result|total|number|figure|one))"
    rf"(?:{_APOSTROPHE}s|\s+(?:is|was|equals|must be|should be))\s+(?:actually\s+|in fact\s+|rather\s+|instead\s+)?",
    re.IGNORECASE,
)
_BUT = re.compile(r"^.*?\bnot\s.{1,40}?,?\s+but\s+(?:rather\s+)?", re.IGNORECASE | re.DOTALL)
_may_contrast = WordParts((" but",))
_LEAD = re.compile(
    r"^[\s:*]*(?:(?:therefore|thus|hence|so|then|simply|just|exactly|precisely|indeed|clearly|obviously|equal to|"
    r"equals|that|it is|it's|given by|as follows|approximately|about|roughly|around|"
    r"the (?:number|value|integer|fraction|expression))\b[\s,:]*+)++",
    re.IGNORECASE,
)
_GOVERNING = (
    *(
        "no",
        "never",
        "n't",
        "n\u2019t",
        "neither",
        "wrong",
        "incorrect",
        "false",
        "doubt",
        "den",
        "mistake",
        "unlikely",
    ),
    *("impossible", "other", "anything", "except", "far", "rather", "instead", "hardly", "refut", "reject", "rul"),
    *("if ", "unless", "suppose"),
)
"""Parts of all words that deny an answer after them."""
may_govern = WordParts(_GOVERNING)
"""Whether the text has any word that could deny an answer after it."""
may_deny = WordParts(
    (
        *_GOVERNING,
        *(
            "contrary",
            "fail",
            "without",
            "wait",
            "scratch",
            "correct",
            "actually",
            "mean",
            "sorry",
            "oops",
            "bad",
            "let",
        ),
        *(
            "too",
            "disregard",
            "ignor",
            "forget",
            "strike",
            "thought",
            "reflection",
            "back",
            "withdraw",
            "retract",
            "exclu",
        ),
        *("elimin", "discard", "drop", "dismiss", "disqual", "throw", "extran", "spurious", "invalid", "inadmis"),
        *("unaccept", "infeas", " out", "overlook", "omit", "misses", "violate", "contradict", "count"),
    )
)
"""Whether the text has any word that could deny or retract an answer; much cheaper than the search for one."""
_may_modify = WordParts(
    (
        *("depend", "than", "least", "most", "up", "either", "over", "under", "above", "below", "beyond"),
        *("exceed", "minus", "negative", "twice", "thrice", "double", "triple", "half", "root", "square", "cube"),
        *("times", "between", "plus", "reciproc", "inverse", "opposite", "factorial", "log", "absolute", "sum"),
        *("product", "differ", "quotient", "ratio"),
    )
)
"""Whether the text has any word that could make its number another answer."""


_CHINESE = {
    **{
        "最终答案": " answer ",
        "答案": " answer ",
        "不是": " is not ",
        "不等于": " is not ",
        "等于": " is ",
        "就是": " is ",
    },
    **{
        "而是": " but ",
        "而不是": ", not ",
        "并不是": " is not ",
        "并非": " is not ",
        "应该是": " it is ",
        "应该为": " it is ",
        "是": " is ",
        "为": " is ",
        "不": " not ",
        "错": " wrong ",
        "没": " not ",
        "如果": " if ",
        "可能": " perhaps ",
        "或": " or ",
    },
    **{
        "和": " and ",
        "与": " and ",
        "吗": "?",
        "\u3002": ". ",
        "\uff0c": ", ",
        "\uff1a": ": ",
        "\uff1f": "? ",
        "\uff01": "! ",
        "\uff1b": "; ",
        "\u3001": ", ",
    },
    **{
        "那么": " then ",
        "结果": " result ",
        "所以": " so ",
        "因此": " so ",
        "大约": " about ",
        "之间": " between ",
        "至少": " at least ",
        "至多": " at most ",
    },
    **{"大于": " more than ", "小于": " less than ", "超过": " more than "},
}
_CHINESE_WORD = re.compile("|".join(sorted(_CHINESE, key=len, reverse=True)))
_BESIDE_CHINESE = re.compile(r"(?<=[\u4e00-\u9fff])(?=[-\d$\\])|(?<=[\d$}])(?=[\u4e00-\u9fff])")


def in_english(text: str) -> str:
    """The text with the Chinese words around an answer in English, and spaces between other ones and numbers."""
    if _CHINESE_WORD.search(text) is None:
        return text
    return _BESIDE_CHINESE.sub(" ", _CHINESE_WORD.sub(lambda match: _CHINESE[match[0]], text))


def has_negation(clause: str) -> bool:
    """Whether a clause has a negation anywhere."""
    return _NEGATION.search(clause) is not None


def negated_before(text: str, position: int) -> bool:
    """Whether a negation before the position belongs to what follows: "it is not ...", "I doubt that the ..."."""
    before = text[max(0, position - _CONTEXT) : position]
    return bool(before) and may_govern(before) and bool(_GOVERNS.search(before) or _SUPPOSED.search(before))


def denied_after(text: str, position: int) -> bool:
    """Whether the text at the position denies the answer that ends there: "... is wrong"."""
    return _DENIED.match(text, position, position + _CONTEXT) is not None


def changes_value(text: str) -> bool:
    """Whether words of a statement make its number another answer: "less than 5", "half of 5"."""
    text = _EITHER.sub("", text) if "ither" in text else text
    return _may_modify(text) and _MODIFIED.search(text) is not None


def may_change_value(text: str) -> bool:
    """Whether the text has any word that could deny, retract or change an answer."""
    return _may_modify(text) or may_deny(text)


def after_wrong(text: str) -> str | None:
    """The rest of a sentence that calls the answer it gives wrong; None for other sentences."""
    wrong = _WRONG.search(text) if may_deny(text) else None
    if wrong is None:
        return None
    return text[wrong.end() :] if _GOES_ON.match(text, wrong.end()) else ""


def hypothetical(text: str, start: int, end: int) -> bool:
    """Whether a statement is not a claim: "you might think the answer is ...", "the answer would be ... if ..."."""
    if _HYPOTHETICAL.search(text, max(0, start - _CONTEXT), start):
        return True
    if "would" not in text[start:end]:
        return False
    before = re.split(r"[.!?]\s|\n", text[max(0, start - _CONTEXT) : start])[-1]
    return " if " in f" {before} | {text[end : end + _CONTEXT].partition('.')[0]}".lower()


def after_retraction(text: str) -> str | None:
    """The text after the last phrase that takes back what was said before it; None if there is no such phrase."""
    retractions = list(_RETRACTED.finditer(text))
    if retractions:
        return text[retractions[-1].end() :]
    checks = list(_RECHECKED.finditer(text))
    rest = text[checks[-1].end() :] if checks else ""
    return rest if any(map(str.isdigit, rest)) else None


def without_explanation(text: str, *, lead: bool) -> str:
    """A statement without its reasons and, if `lead`, the words it begins with; of "not 5 but 6" the second part."""
    contrast = _BUT.sub("", text) if _may_contrast(text) else text
    contrast = contrast if lead else _restated(contrast)
    if not lead and (why := _WHY.search(contrast)) and any(map(str.isdigit, contrast[: why.start()])):
        if _OPENS.search(contrast[: why.start()]):
            concluded = contrast[why.start() :].partition(", ")[2]
            return concluded if any(map(str.isdigit, concluded)) else contrast[: why.start()]
        rest = contrast[why.start() :].rpartition(";")[2] if ";" in contrast[why.start() :] else ""
        return rest if any(map(str.isdigit, rest)) else contrast[: why.start()]
    if lead or contrast is not text:
        contrast = _REASON.sub("", contrast, count=1) or contrast
    return _LEAD.sub("", contrast) if lead else contrast


def _restated(text: str) -> str:
    """The text after the last "i.e.", if it has a number."""
    rest = text.rpartition("i.e.")[2].lstrip(", ") if "i.e." in text else ""
    return rest if any(map(str.isdigit, rest)) else text


def after_contrast(text: str, *, negated: bool) -> str | None:
    """Of "not 5. It is 6" the second part, without "it is"; None for other texts. `negated` stands for the "not"."""
    text = f"not {text}" if negated else text
    contrast = _NOT_BUT.match(text)
    return text[contrast.end() :] if contrast else None


def clause_before(text: str, position: int) -> str:
    """The part of the sentence before the position that belongs to it."""
    return _CLAUSE.split(text[max(0, position - _CONTEXT) : position])[-1]
