"""Sentences that claim nothing: questions, plans, counterfactuals, quotes and guesses; remarks beside the answer."""

from __future__ import annotations

import re

from roll.rewards.math import rejected
from roll.rewards.math.word_parts import WordParts

_MAX_CHARS = 600
_OPENING = r"^[\s(*_>#\d.)\u2022-]*"
_LINK = (
    r"(?:(?:so|and|but|now|first|second|next|then|finally|after that|afterwards"
    r"|to start|to begin(?: with)?|to\s[^,]{1,60}(?=,))\b[,:]?\s*)*+"
)
_APOSTROPHE = "['\u2019]"
_QUESTION = re.compile(r"\?[\s*_)\"'\u201d$]*$")
_TAG_QUESTION = re.compile(rf",\s*(?:right|correct|yes|is(?:n{_APOSTROPHE}t)? it|no)\?[\s*_)]*$", re.IGNORECASE)
_WOULD = re.compile(
    rf"\b(?:would|(?:could|might|should) have)\b|\b(?:i|we|you|he|she|it|they|one){_APOSTROPHE}d\b", re.IGNORECASE
)
_UNREAL = re.compile(
    rf"\bif\b[^.?!]{{0,120}}?\b(?:were|had|(?:were|had|did|was|do|does|is|are)(?:n{_APOSTROPHE}t| not)|instead|only"
    r"|ignor\w+|forg[eo]t\w*|neglect\w*|mis(?:read|count|took|interpret|understood)\w*|wrongly|incorrectly|simply"
    r"|just|naively)\b"
    r"|(?:^|[,;]\s|\b(?:so|and|but)\s)(?:had|were)\s+(?:there|it|he|she|they|we|i|you|all|the|an?|this|that"
    r"|(?-i:[A-Z]\w+))\b"
    rf"|\bwithout\b|\bunder\s+(?:the|that|this|an?)\b|\bonly\s+(?:if|when|under)\b|\botherwise\b|\b(?:in"
    rf"|for) (?:that|another"
    rf"|a different) case\b|\b(?:was|is|were|are)(?:n{_APOSTROPHE}t| not) (?:given|stated|true|the case)\b"
    r"|\b(?:in|on|at) an? (?:ordinary|ideal|non-leap|normal|different|hypothetical)\b|\bnaive\w*|\btempt\w*",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"\b(?:we|i)\s+(?:are|am|were|was)\s+(?:asked|told|given|looking|trying|supposed|required|going)\b"
    rf"|\b(?:we{_APOSTROPHE}re|i{_APOSTROPHE}m)\s+(?:asked|told|given|looking|trying|supposed|required|going)\b"
    r"|\b(?:problem|question|task|exercise|puzzle)\s+(?:asks|is asking|wants|says|states|tells|gives)\b"
    r"|\b(?:we|i)\s+(?:now |still |just |then |only )?(?:want|need|have|would like|wish)\s+to\s+(?:find|know"
    r"|determine|compute|calculate|show|prove|figure|check"
    rf"|solve|decide|count|work out)\b|{_OPENING}(?:find|determine|what|how|which (?!is|are|equals|gives|makes)"
    rf"|why|recall)\b"
    r"|\b(?:our|the|my) (?:goal|aim|task|objective|plan|job|next step|idea) (?:is|will be)\b"
    rf"|{_OPENING}let\s+(?!us\b|me\b)\$?[a-zA-Z]\w?\$?\s*(?:=|be\b|denote\b)",
    re.IGNORECASE,
)
_TRIAL = re.compile(r"^\s*please\b|\bwhether\b|\b(?:see|find out) (?:what|if|how)\b", re.IGNORECASE)
_ACTS = (
    r"substitut\w+|plug\w*|use|apply|set|try|test|consider|look|start|begin|draw|define|recall|split|rewrite"
    r"|convert|check"
    r"|verify|examine|proceed|continue|move|go|take|think|guess|assume|suppose|imagine|simplify|expand|factor"
    r"|isolate|plot"
)
_COMPUTES = (
    r"find|compute|calculate|determine|solve|evaluate|count|figure|work|add|subtract|multiply|divide|see|compare"
)
_PLAN = re.compile(
    rf"{_OPENING}{_LINK}(?:"
    rf"(?:let{_APOSTROPHE}?s|let us|let me|(?:we|i)(?:{_APOSTROPHE}ll| will| shall| should| must| can| could| may"
    rf"| might"
    r"| need to| have to| want to| are going to| am going to| plan to| would)(?: also| now| then| next| first"
    r"| just| try to)*)"
    rf"\s+(?:{_ACTS}|{_COMPUTES})|(?:(?:we|i)\s+)?(?:{_ACTS})|(?:{_COMPUTES}))\b"
    r"(?!\s+(?:(?:about|exactly|only|a total of)\s+)?[$*]*\d)",
    re.IGNORECASE,
)
_COMPUTED = re.compile(
    r"\d[^=]{0,40}(?:[-+*/\u00d7\u00b7\u00f7\u2212]|\sx\s)[^=]{0,120}=|\\(?:cdot|times|frac|sqrt|binom"
    r"|div)\b[^=]{0,120}="
    r"|=[^=]{0,80}=|:[^:]{0,40}\d"
)
"""An equation whose left side is evaluated, or a value after a colon."""
_OUTCOME = re.compile(
    r"\b(?:so|thus|hence|therefore|gets?|got|gives?|giving|yields?|yielding|obtain\w*|means|meaning|answer"
    r"|finally we have"
    r"|and there (?:is|are)|find\s+\$?[a-z]\w?\s*(?==)|(?:conclude|see|find|show|know|so) that|which (?:is|are"
    r"|gives?|equals?|means|makes|yields?|leaves))(?!\w)"
    r"|\u2192|\u21d2|\\implies|\\Rightarrow|=>",
    re.IGNORECASE,
)
_FINDS = re.compile(rf"{_OPENING}{_LINK}(?:we|i)\s+(?:{_COMPUTES})\b", re.IGNORECASE)
_OTHERS = (
    r"(?:he|she|they|some(?:one|body|times?)?|others?|many|most|people|students?|friends?|brother|sister"
    r"|classmates?|teacher"
    r"|authors?|book|textbook|key|solution|reader|intuition|guess(?:es)?|everyone|everybody|anyone|nobody|who"
    r"|(?!(?:We|You|This|That|It|Which|So|Thus|Hence|Then|Therefore|And|The|These|Both|Let|Now)\b)[A-Z][a-z]+)"
)
_QUOTE = re.compile(
    rf"\b{_OTHERS}\s+(?:(?:might|may|could|would|will|often|also|incorrectly|wrongly|mistakenly|initially"
    rf"|confidently)\s+)*"
    r"(?:says?|said|claim(?:s|ed)?|thinks?|thought(?! of)|believe[sd]?|argue[sd]?|insist(?:s|ed)?|suggest(?:s|ed)?"
    r"|assert(?:s|ed)?"
    r"|assume[sd]?|maintain(?:s|ed)?|conclude[sd]?|guess(?:es|ed)?|propose[sd]?)\b"
    r"|\baccording to\s+(?!the (?:formula|theorem|law|rule|table|graph|chart|problem|definition|pattern|above|data)\b)"
    rf"(?:my|his|her|their|some|the|an?|[A-Z][a-z]+)\b|\b(?i:(?:a|the) (?:common|typical|frequent|naive|usual) "
    r"(?:mistake|error|guess|answer|wrong))|\b(?i:told (?:me|us|him|her|them))\b"
    r"|\b(?i:(?:led|inclined|used|tempted) to (?:believe|think|say|conclude|assume))\b"
    r"|\b(?:said|says|claim(?:s|ed)|answered|replied|thought)\s+(?:he|she|they|my|one|some|the|[A-Z][a-z]+)\b"
    rf"|\b(?:(?!(?:Today|Let|Here|That|It|What)\b)[A-Z][a-z]+{_APOSTROPHE}s|(?i:his|her|their"
    rf"|\w+{_APOSTROPHE}s))\s+(?:\w+\s+)?(?:answer|guess|claim)\b"
    r"|\b(?i:it is (?:tempting|easy) to)\b|\b(?i:at first (?:glance|sight))\b",
)
_CONTRAST = re.compile(
    r"[;,.\u2014]\s*(?:(?:i|we) (?:get|got|find|found)|but|however|yet|in fact|actually|in reality"
    r"|(?:so )?the (?:correct|right|true|actual"
    r"|real))\b[^?]*\d",
    re.IGNORECASE,
)
_GUESS = re.compile(
    rf"{_OPENING}(?:perhaps|maybe|possibly|hmm+)\b|\b(?:it|this|that|answer|result|value|total)\s+"
    r"(?:might|may|could)\s+(?:well\s+|possibly\s+|perhaps\s+)?(?:be|equal)\b|\b(?:wild|random|pure) guess\b"
    r"|\b(?:i|we) (?:\w+ )?(?:hope|wonder|wish)\b"
    r"|\bran out of time\b|\bso far (?:is|was|are)\b|\bpartial (?:sum|result|answer)\b",
    re.IGNORECASE,
)
_GIVES_UP = re.compile(
    rf"\b(?:i|we){_APOSTROPHE}?(?:m|re| am| are| was| were| remain)?\s+(?:\w+\s+)?"
    r"(?:not (?:\w+ )?(?:sure|certain|confident|able)|unsure|uncertain|stuck|lost|unable)\b"
    rf"|\b(?:i|we)\s+(?:(?:do|could|did|can)(?: not|n{_APOSTROPHE}t)|cannot|failed to|am unable to|was unable to"
    rf"|were unable to)"
    r"\s+(?:\w+\s+)?(?:know|determine|find|solve|reach|decide|tell|say|trust|answer|finish|complete|figure"
    r"|conclude|get|give)\b"
    r"|\b(?:give|gave|giving) up\b|\bno idea\b|\bno (?:final|definite|definitive|clear|unique) (?:answer"
    r"|conclusion|result)\b"
    r"|\b(?:not enough|insufficient|too little|missing) (?:information|data|detail)|\bcannot be (?:determined"
    r"|decided|found|known)"
    rf"|\bcan{_APOSTROPHE}t be (?:determined|decided|found|known)|\bimpossible to (?:say|tell|determine|know"
    rf"|decide|answer)"
    r"|\b(?:would|need) (?:\w+ )?more (?:information|data|time)\b",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"\s*\((?=[^()]*[a-z]{2}[^()]*\s)(?:[^()]|\([^()]*\))*\)[.!]?\s*")
"""A sentence in brackets."""
_REMARK = re.compile(
    rf"{_OPENING}(?:remark|note\b|notice|n\.?b\.|aside|p\.?s\.|by the way|incidentally|interestingly|observe that"
    r"|for (?:comparison|reference|instance|example|context|completeness)|as an? (?:aside|example|check|sanity"
    r"|remark|side)"
    r"|(?:quick |sanity |double[- ])?(?:check|verification|verify|proof)\b|(?:(?:we|you|one) can |let me |let us "
    r"|let's )?(?:also |quickly )?"
    r"(?:double[- ]?check|verify|check|confirm)\b|to (?:check|verify|confirm|double)|in (?:contrast|comparison)"
    r"|by (?:contrast|comparison)"
    r"|(?:this|that|it|which) (?:matches|agrees|is consistent|confirms|checks|makes sense|is close|corresponds"
    r"|is (?:less|more|greater|smaller))"
    r"|similarly|conversely|compare\b|more generally|in general|alternatively)",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(rf"{_OPENING}(?:for (?:instance|example|comparison|reference)|remark\b)", re.IGNORECASE)
_CONCLUDES = re.compile(
    r"\b(?:so|thus|hence|therefore|answers?|final|conclude|must|need|forgot|should|actually|but|in total|altogether)\b",
    re.IGNORECASE,
)
_ANYWHERE = """
    would should will shall must can could may might need needs want wants asked told given looking trying
    supposed required going asks states find determine what how which why recall whether let substitute
    substituting substituted plug plugging use apply set try test consider look start begin draw define split
    rewrite convert check verify examine proceed continue move go take think guess assume suppose imagine
    simplify expand factor isolate plot compute calculate solve evaluate count figure work add subtract
    multiply divide see compare say says said claim claims claimed thinks thought believe believes believed
    argue argues argued insist insists insisted suggest suggests suggested assert asserts asserted assumes
    assumed maintain maintains maintained conclude concludes concluded guesses guessed propose proposes
    proposed according common typical frequent naive usual tempting easy glance sight perhaps maybe possibly
    hope wonder wish goal aim objective plan partial ran far please led inclined used replied answered
"""
_WORDS = frozenset(_ANYWHERE.split())
"""The words that make a sentence no claim, wherever they are in it."""
_FIRST = """
    remark note notice nb aside ps by incidentally interestingly observe for as quick sanity double check
    verification verify proof we let to in similarly conversely compare more alternatively hmm hmmm
"""
_OPENERS = frozenset(_FIRST.split())
may_be_unreal = WordParts(
    (
        *(
            "would",
            "have",
            "'d",
            "\u2019d",
            "say",
            "said",
            "claim",
            "think",
            "thought",
            "believ",
            "argue",
            "insist",
            "suggest",
        ),
        *(
            "assert",
            "assum",
            "maintain",
            "conclud",
            "guess",
            "propos",
            "accord",
            "common",
            "typical",
            "frequent",
            "naive",
        ),
        *(
            "usual",
            "tempt",
            "easy",
            "glance",
            "sight",
            "told",
            "replied",
            "led to",
            "inclined",
            "used to",
            "'s ",
            "\u2019s ",
        ),
    )
)
"""Whether the sentence has a word of a quote or a counterfactual; cheaper than `is_unreal`."""


def may_lack_claim(sentence: str) -> bool:
    """Whether the sentence has a word that a sentence without a claim could have; cheaper than `is_claim`."""
    if "?" in sentence or "'" in sentence or "\u2019" in sentence or "have to" in sentence:
        return True
    words = sentence.lower().replace(",", " ").replace(":", " ").split()
    return not _WORDS.isdisjoint(words) or (bool(words) and words[0].strip("(*") in _OPENERS)


def is_claim(sentence: str) -> bool:
    """Whether a sentence says what is so, not what is asked, planned, guessed, said by others or contrary to fact."""
    sentence = sentence[-_MAX_CHARS:]
    if _QUESTION.search(sentence) and not _TAG_QUESTION.search(sentence):
        return False
    unreal = _is_contrary(sentence) or (_QUOTE.search(sentence) and not _COMPUTED.search(sentence))
    unreal = unreal or rejected.is_past(sentence)
    unreal = unreal and not _CONTRAST.search(sentence)
    return not (unreal or _GUESS.search(sentence) or _is_plan(sentence))


def is_unreal(sentence: str) -> bool:
    """Whether a sentence says what would be so under a condition contrary to fact, or what others say."""
    sentence = sentence[-_MAX_CHARS:]
    return _is_contrary(sentence) or _QUOTE.search(sentence) is not None


def _is_contrary(sentence: str) -> bool:
    return _WOULD.search(sentence) is not None and _UNREAL.search(sentence) is not None


def _is_plan(sentence: str) -> bool:
    if trial := _TRIAL.search(sentence):
        return not _COMPUTED.search(sentence, trial.end())
    planned = _ASKED.search(sentence) or (None if _FINDS.match(sentence) else _PLAN.match(sentence))
    if planned is None:
        return False
    return not (_OUTCOME.search(sentence, planned.end()) or _COMPUTED.search(sentence, planned.end()))


def is_remark(sentence: str) -> bool:
    """Whether a sentence is beside the answer: a note, an example or a check."""
    if _EXAMPLE.match(sentence) or _ASIDE.fullmatch(sentence):
        return True
    return _REMARK.match(sentence) is not None and not _CONCLUDES.search(sentence[-_MAX_CHARS:])


def gives_up(sentence: str) -> bool:
    """Whether a sentence says that there is no answer."""
    return _GIVES_UP.search(sentence[-_MAX_CHARS:]) is not None
