"""Phrases that are rewritten as plain statements, or left out, before claims are read."""

from __future__ import annotations

import re

from roll.rewards.choice.options import OptionTexts

_X = r"\(?(?-i:([A-Z]))\)?(?![\w'])"
_TURN = (
    r"(?:(?:oh|ah|um+|uh|hm+|wait|no|nope|sorry|oops|actually|scratch (?:that|it)|strike that|my (?:mistake|bad)"
    r"|correction|rather|hold on|not that|never ?mind|let me correct (?:that|myself)|i take (?:that|it) back"
    r"|(?:that's|that is|that was) (?:wrong|not right|incorrect)|i mean(?:t)?|make (?:it|that)|i misread)[ ,.:;!-]*)"
)
_TAKEN_BACK = re.compile(
    rf"(?:\A|(?<=\n)|(?<=[.!?:] ))[ ]?(?:(?:the answer is|is (?:it|the answer)|it's|it is|answer:|option) )?{_X}"
    rf"(?:[ ]?(?:\.{{2,6}}|[,;?!]|[ ]-)[ ]?{_TURN}{{1,5}}"
    rf"|[ ]?[.:][ ]{_TURN}{{0,3}}?(?:wait|sorry|oops|scratch that|strike that|my (?:mistake|bad)|correction|i meant?)"
    rf"[ ,.:;!-]+{_TURN}{{0,3}})"
    rf"(?:(?:it's|it is|that's|the (?:correct |right )?answer is|it (?:should|must) be|(?:should|must) be|option"
    rf"|definitely|the|i'll go with|i choose) ){{0,4}}{_X}"
    r"(?=[ ]?(?:[.,;!(]|[ ]?-|\n|$|because|since))(?![ ]?[.,;(!-]{1,2}[ ]?(?:no|nope|yes|wrong|right|correct|incorrect"
    r"|false|true|maybe|perhaps|possibly|or|and|either|too|also|wait|hmm+|sorry|actually)\b)",
    re.IGNORECASE,
)
"""A letter that is taken back at once, and the one in its place ("C... no, scratch that, B.")."""
_CHANGED = re.compile(
    r"(?:(?<=[.!?\n,;] )|(?<=\n)|\A)(?:(?:so|thus|therefore|hence|and),? )?(?:i'm|i am|i'll|i will|i|i've|i have|i must"
    r"|i need to|i have to|let me)(?: (?:therefore|thus|now|going to|hereby|so|also|finally)){0,2}"
    r" (?:(?:chang|switch|revis|mov|updat|correct|amend)(?:e|es|ed|ing)?(?: (?:my|the)(?: \w+)?"
    rf" (?:answer|choice|pick|selection|guess|vote|response))|(?:chang|switch)(?:e|es|ed|ing)?)"
    rf" from (?:option )?{_X} to (?:option )?{_X}",
    re.IGNORECASE,
)
"""An answer that is changed to another one ("I'm changing my answer from B to C")."""
_ADVERB = (
    r"(?: (?:also|somit|damit|daher|folglich|demnach|eindeutig|donc|alors|ainsi|bien|par conséquent|entonces|pues"
    r"|claramente|por (?:lo )?tanto|por consiguiente|quindi|dunque|perci[òo]|pertanto|portanto|ent[ãa]o|logo|pois"
    r"|sicher|allein|hier),?){0,2}"
)
_NAMED = (
    r"(?:(?:die|der|das|la|le|el|il|lo|a|o) )?(?:(?:antwort(?:möglichkeit)?|option|aussage|möglichkeit|lösung"
    r"|variante|buchstabe|réponse|proposition|lettre|respuesta|opci[óo]n|alternativa|letra|risposta|opzione"
    r"|lettera|resposta|op[çc][ãa]o) )?"
)
_RIGHT_ONE = (
    r"(?:die (?:einzige? )?(?:richtige|korrekte|beste|zutreffende)(?: (?:antwort|option|lösung|wahl|aussage"
    r"|möglichkeit))?"
    r"|la (?:seule )?bonne (?:réponse|option|proposition)|la (?:réponse|proposition) (?:correcte|juste|exacte)"
    r"|la (?:respuesta|opci[óo]n|alternativa|letra)? ?(?:correcta|acertada)"
    r"|la (?:risposta|opzione|alternativa)? ?(?:corretta|giusta|esatta)"
    r"|a (?:resposta|op[çc][ãa]o|alternativa|letra)? ?(?:correta|certa))"
)
_RIGHT = (
    r"(?:richtig|korrekt|zutreffend|correcte?|juste|exacte?|correct[ao]|corrett[ao]|giust[ao]|esatt[ao]|corret[ao]"
    r"|cert[ao])"
)
_TEXT = r"(?: ?\([^()\n]{0,80}\)| ?, [^,.\n]{1,60},)?"
_FOREIGN = re.compile(
    rf"(?<!['\w])(?:(?:ist|c'est|est|es|è|é){_ADVERB} {_NAMED}{_X}{_TEXT}{_ADVERB}"
    rf" (?:{_RIGHT_ONE}|{_RIGHT}|(?:qui|que|che) (?:est|es|è|é) (?:{_RIGHT_ONE}|(?:la )?{_RIGHT}|la bonne))"
    rf"|{_NAMED}{_X}{_TEXT} (?:ist|est|es|è|é){_ADVERB} {_RIGHT_ONE})(?!\w)",
    re.IGNORECASE,
)
"""An option called right in German, French, Spanish, Italian or Portuguese, in either order of words."""
_FOREIGN_ANSWER = re.compile(
    r"(?<![\w'])(?:(?:die )?(?:(?:richtige|korrekte|beste|zutreffende) (?:lösung|antwort(?:möglichkeit)?|option|wahl"
    r"|variante|möglichkeit|aussage)|lösung) (?:ist|lautet|heißt)|(?:korrekt|zutreffend|richtig) ist)"
    rf"{_ADVERB}:? (?:(?:die )?(?:antwort|option) )?(?=\(?(?-i:[A-Z])(?![\w']))",
    re.IGNORECASE,
)
_HOLDS = re.compile(rf"(?<![\w'])trifft{_ADVERB} {_NAMED}{_X}{_TEXT} zu(?!\w)", re.IGNORECASE)
_DENIED = re.compile(
    r"(?<![\w'])(?:nicht|kein\w*|nie|weder|noch|wenn|falls|ob|ne|pas|jamais|ni|si|no|nunca|tampoco|non|mai|se|n[ãa]o"
    r"|nem|quand|cuando|quando|if|not)(?!\w)|n'",
    re.IGNORECASE,
)
_REPORTED = re.compile(
    r"(?<![\w'])(?:wenn|falls|viele|manche|einige|beaucoup|certains|si|muchos|algunos|molti|alcuni|muitos|alguns"
    r"|se)(?!\w)",
    re.IGNORECASE,
)
"""Words of a sentence that has a condition, or says what others think."""
_COURTESY = re.compile(
    r"(?<=[.!?)\n])[ ]?(?:please |and |just )?(?:let me know(?! that)|don't hesitate to ask|hope (?:this|that|it) helps"
    r"|(?:feel free|happy|glad|i'm happy|i am happy|i'd be happy|i can|i'm glad) to"
    r" (?:ask|reach|explain|help|elaborate|clarify|expand|walk|discuss|go (?:into|over|through))"
    r"|if you(?:'d| would)? (?:like|want|need|have)\b(?=[^.!?\n]*\b(?:let me know|just (?:ask|let)|feel free|happy to"
    r"|i can)\b)|would you like (?:me to|to know|more|an?)\b|do you want me to)"
    r"[^.!?\n]*(?:[.!?]|(?=\n)|\Z)",
    re.IGNORECASE,
)
"""A closing sentence that offers more help."""
_INTRODUCED = re.compile(
    r"\A\s*A: ?(?=(?:let's|let us|let me|to (?:answer|solve|find|determine|decide)|we (?:need to|are asked|want to"
    r"|have to)|i(?:'ll| will) (?:think|work|go|start|reason)|step 1|the question asks|thinking)(?![A-Za-z]))",
    re.IGNORECASE,
)
""""A:" that introduces an answer, and is no option."""
_NO_ANSWER = re.compile(
    r"(?<![A-Za-z])(?:(?:question|problem|item)\b[^.!?\n]{0,30}? (?:has no|does not have|doesn't have|lacks)"
    r" (?:an?y? |one |single )*(?:\w+ )?(?:answer|solution|option)"
    r"|(?:don't|do not|can't) (?:think|believe|see)(?: that)? (?:this|the) (?:question|problem|item)"
    r" (?:has|contains|offers) (?:an?y? )?(?:\w+ )?(?:answer|solution|option)"
    r"|(?:don't|do not) (?:think|believe)(?: that)? any (?:of (?:the|these) )?(?:\w+ )?(?:options?|choices?|answers?)"
    r" (?:is|are|works?|fits?)"
    r"|(?<!if )none of (?:the|these) (?:(?!other|remaining|rest)\w+ )?(?:options|choices|answers) (?:is|are|can be"
    r"|works?|fits?) ?(?:\w+ly )?(?:correct|right|valid|true)?"
    r"|(?:cannot|can't|can not|won't|will not|unable to) (?:\w+ly )?(?:endorse|choose|pick|select|commit to|recommend"
    r"|accept) (?:any|it|that|(?:option )?[A-Z])(?: (?:option|choice|of (?:them|these)))?(?: either)?(?=\s*(?:$|[.,;]))"
    r"|(?:there is|there's) no (?:correct|valid|right) (?:answer|option|choice))(?![A-Za-z])",
    re.IGNORECASE,
)
"""A sentence that finds no option right."""
NONE = re.compile(r"(?<![A-Za-z])(?:none|no|nothing|neither|not|cannot|can't|never)(?![A-Za-z])", re.IGNORECASE)
"""In the text of an option that says that no other one is right."""
_LETTER = re.compile(r"(?<![\w'])[A-HJ-Z](?![\w'])")
_MILDER = re.compile(
    r"(?<![A-Za-z])(?:but|though|although|yet|however|best|closest|nearest|other|others|else|remaining|rest|if|unless"
    r"|otherwise|except|besides|apart|perfect\w*|better|would)(?![A-Za-z])",
    re.IGNORECASE,
)


def finds_none(rest: str, letters: frozenset[str]) -> bool:
    """Whether a sentence after a claim of some letters says that no option is right; it names no other letter."""
    return any(
        _NO_ANSWER.search(sentence) and not _MILDER.search(sentence) and letters.issuperset(_LETTER.findall(sentence))
        for sentence in re.split(r"[.!?\n]\s*", rest[:2_000])
    )


def restated(text: str, options: OptionTexts) -> str:
    """The text with plain statements in place of letters taken back at once, changed answers and foreign verdicts."""
    introduced = _INTRODUCED.match(text)
    if introduced is not None and not _continues(text[introduced.end() :], options.texts.get("A", "")):
        text = text[introduced.end() :]
    text = _TAKEN_BACK.sub(r"Actually, the answer is \2", text)
    text = _CHANGED.sub(r"Actually, the answer is \2", text)
    text = _HOLDS.sub(_verdict, _FOREIGN.sub(_verdict, _FOREIGN_ANSWER.sub("the correct answer is ", text)))
    return _COURTESY.sub("", text)


def _continues(rest: str, option: str) -> bool:
    return bool(option) and rest.casefold().startswith(option.casefold())


def _verdict(match: re.Match[str]) -> str:
    """The statement that an option is right, unless its clause denies it, or its sentence has a condition."""
    sentence = re.split(r"[.!?\n]", match.string[max(0, match.start() - 120) : match.start()])[-1]
    clause = re.split(r"[,:;]|\s-\s", sentence)[-1]
    if _DENIED.search(clause) or _REPORTED.search(sentence):
        return match[0]
    return f"{next(group for group in match.groups() if group)} is correct"
