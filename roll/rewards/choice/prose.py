"""Short prose that names one option by its text and says nothing that could deny or weaken it."""

from __future__ import annotations

import re

from roll.rewards.choice.options import OptionTexts

_MAX_WORDS = 60
_MAX_CHARS = 600
_MIN_LETTERS = 3
_FOREIGN = re.compile(r"[^\W\d_\u0041-\u024f]")
_FINISHED = re.compile(r"[.!][)\]]*\s*$")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE = re.compile(r"[.!]\s+|\n")
_SMALL_WORDS = re.compile(
    r"the|an?|of|in|on|at|to|and|or|for|from|by|with|is|are|was|were|be|its?|as|that|this|these|those|than|then|into"
    r"|their|his|her|they|them|who|which|what|all|has|have|had|not",
    re.IGNORECASE,
)
DOUBT = re.compile(
    r"(?<![^\W_])(?:not|no|never|none|neither|nor|nothing|nobody|cannot|without|unlike|except\w*|excluding"
    r"|besides|wrong\w*"
    r"|incorrect\w*|false\w*|untrue|mistak\w*|error\w*|misconception\w*|myth\w*|confus\w*|mix\w*|trap\w*"
    r"|distractor\w*"
    r"|if|unless|whether|when|until|consider\w*|suppos\w*|assum\w*|imagin\w*|hypothe\w*|might|may|maybe|perhaps"
    r"|possibl\w*"
    r"|probabl\w*|likel\w*|unlikel\w*|could|can|would|should|must|ought|seem\w*|appear\w*|look\w*|sound\w*"
    r"|guess\w*|unsure"
    r"|sure|certain|doubt\w*|think\w*|thought|believ\w*|feel\w*|suspect\w*|wonder\w*|know\w*|remember\w*|recall\w*"
    r"|clos(?:e|er|est)|near\w*|almost|tempt\w*|instead|rather|but|however|although|though|while|whereas|despite|yet"
    r"|contrast\w*|differ\w*|oppos\w*|contrary|compar\w*|similar\w*|like|same|than|less|least|versus|vs|also|too"
    r"|another"
    r"|other\w*|else|both|either|or|all|each|every|some|many|most|people|students?|someone|everyone|often|usually"
    r"|sometimes|commonly|popular\w*|example\w*|such|e\.g|instance|initial\w*|first|second|next|step\w*|begin\w*"
    r"|start\w*"
    r"|continu\w*|let|let's|need\w*|want\w*|try\w*|find\w*|determin\w*|check\w*|test\w*|analy[sz]\w*|examin\w*"
    r"|evaluat\w*"
    r"|question\w*|asks?|asked|asking|options?|choices?|statement\w*|given|answer\w*|correct\w*|says?|said"
    r"|claim\w*|suggest\w*"
    r"|propos\w*|argu\w*|wait|actually|hmm+|oops|sorry|formerly|previous\w*|once|used|before|was|were"
    r"|eliminat\w*|rul(?:e|ed|ing)"
    r"|out|reject\w*|deny|denies|denied|lack\w*|fail\w*|hardly|barely|rarely|seldom|far|only|partly|partially"
    r"|depend\w*"
    r"|nicht|kein\w*|nie|niemals|aber|sondern|oder|wenn|falls|ob|vielleicht|falsch|w[äa]re|k[öo]nnte|obwohl"
    r"|au(?:ß|ss)er|statt"
    r"|ne|pas|jamais|mais|ou|si|peut|faux|fausse|sauf|aucun\w*|sans|serait|pourrait"
    r"|nunca|jam[áa]s|pero|sino|quiz[áa]s?|tal vez|falso|falsa|ning\w*|ni|excepto|salvo|ser[íi]a|podr[íi]a"
    r"|aunque|tampoco"
    r"|non|mai|ma|se|forse|sbagliat\w*|nessun\w*|tranne|sarebbe|potrebbe"
    r"|n[ãa]o|mas|talvez|errad\w*|nenhum\w*|exceto|poderia|embora)(?![^\W_])|n't(?![^\W_])|n'|[?✗≠¬]|\.\.\.|…|⟦",
    re.IGNORECASE,
)
"""Words that deny, weaken, compare, quote or only prepare a statement."""
_SUPERLATIVE = re.compile(
    r" (?:is|are) (?:\w+ly )?the (?:(?!second|third|fourth|fifth|next)\w+ )?(?:\w{2,}est(?= \w)|most(?= \w))"
)
LINK = re.compile(
    r"(?<![A-Za-z])(?:(?:is|are)(?: \w+ly| best)? (?:called|named|termed"
    r"|(?:known|described|characteri[sz]ed) as)|heading|headed|facing|pointing"
    r"|moving|travell?ing|flowing"
    r"|blowing|becomes?"
    r"|remains?|stays?|means|is|are)(?: (?:\w+ly|now|then|therefore))? (?:the |an |a )?$",
    re.IGNORECASE,
)
CHANGE = re.compile(
    r"(?:(?:in|de)creases?|rises?|falls?|drops?|grows?|shrinks?|expands?|contracts?|doubles?|triples?"
    r"|quadruples?|halves"
    r"|melts?|freezes?|evaporates?|condenses?|sinks?|floats?|stops?|accelerates?|decelerates?|slows?|speeds? up"
    r"|first increases|first decreases|stays?|remains?|becomes?)(?![A-Za-z])",
    re.IGNORECASE,
)
NOUN_BEFORE = re.compile(
    r"(?<![A-Za-z])(?!(?:the|an?|of|in|to|from|with|by|at|on|for|as|and|this|that|these|those) $)\w{2,} $",
    re.IGNORECASE,
)
_SUBORDINATE = re.compile(
    r"(?<![A-Za-z])(?:as(?! $)|because|since|that|which|who|where|whose|so|after|during|and|include\w*"
    r"|including)(?![A-Za-z])",
    re.IGNORECASE,
)


def named(text: str, options: OptionTexts, prompt: str = "") -> frozenset[str]:
    """The only option that a short plain text names, as the end of its last sentence or with a superlative.

    The prompt, if it is known, must not name the option outside of its list.
    """
    text = text.strip()
    if len(text) > _MAX_CHARS or len(_WORD.findall(text)) > _MAX_WORDS or _FINISHED.search(text) is None:
        return frozenset()
    option = _only_named(text, options)
    if option is None or _FOREIGN.search(text):
        return frozenset()
    letter, pattern = option
    sentences = [sentence.strip(" .!)") for sentence in _SENTENCE.split(text) if sentence.strip()]
    superlative = re.compile(rf"(?<![^.!\n])\W*(?:the )?{pattern.pattern}{_SUPERLATIVE.pattern}", re.IGNORECASE)
    if not superlative.search(text) and not _ends_with(sentences[-1], pattern):
        return frozenset()
    masked = pattern.sub(" ", superlative.sub(" ", text))
    if DOUBT.search(masked) or _names_other(masked, letter, options):
        return frozenset()
    return frozenset() if copied(sentences, pattern, prompt) else frozenset(letter)


def _ends_with(sentence: str, pattern: re.Pattern[str]) -> bool:
    """Whether a main clause ends with the option, as what something is called or as the verb of a change."""
    last = next((match for match in pattern.finditer(sentence) if match.end() == len(sentence)), None)
    if last is None:
        return False
    clause = re.split(r"[,;:]", sentence[: last.start()])[-1]
    linked = LINK.search(clause) is not None or (CHANGE.match(last[0]) and NOUN_BEFORE.search(clause))
    return bool(linked) and _SUBORDINATE.search(clause) is None


def _only_named(text: str, options: OptionTexts) -> tuple[str, re.Pattern[str]] | None:
    """The letter of the option whose text is named, the longest where one is inside the other, and its pattern."""
    names: list[tuple[str, re.Pattern[str]]] = []
    rest = text
    for letter, option in sorted(options.texts.items(), key=lambda item: -len(item[1])):
        pattern = re.compile(rf"(?<![\w'-]){re.escape(option)}(?![\w-]|'\w)", re.IGNORECASE)
        if sum(char.isalpha() for char in option) >= _MIN_LETTERS and pattern.search(rest):
            twins = sum(pattern.fullmatch(other) is not None for other in options.texts.values())
            names += [(letter, pattern)] * twins
            rest = pattern.sub(" ", rest)
    return names[0] if len(names) == 1 and tellable(options.texts[names[0][0]]) else None


def tellable(option: str) -> bool:
    """Whether an option's text is told from ordinary prose: it has no number, and is not only a small word."""
    return not _NUMBER.search(option) and _SMALL_WORDS.fullmatch(option) is None


def _names_other(masked: str, letter: str, options: OptionTexts) -> bool:
    """Whether the rest of the text has a word or a number of another option, or the letter of one."""
    if names_letter(masked):
        return True
    words = {_stem(word) for word in _WORD.findall(masked)}
    others = " ".join(text for other, text in options.texts.items() if other != letter)
    other_stems = {_stem(word) for word in _WORD.findall(others) if _SMALL_WORDS.fullmatch(word) is None}
    other_stems -= {_stem(word) for word in _WORD.findall(options.texts[letter])}
    return not words.isdisjoint(other_stems)


def names_letter(text: str) -> bool:
    """Whether a text has a single capital letter, other than "A" and "I", or any letter in brackets."""
    return re.search(r"(?<![A-Za-z'])(?:[B-HJ-Z]|\([A-Za-z]\))(?![A-Za-z'])", text) is not None


def _stem(word: str) -> str:
    word = word.casefold()
    return next((word[: -len(end)] for end in ("'s", "es", "s") if word.endswith(end) and len(word) > 3), word)


def copied(sentences: list[str], pattern: re.Pattern[str], prompt: str) -> bool:
    """Whether the question itself names the option beside its list, or holds a sentence of the text."""
    prompt = " ".join(prompt.casefold().split())
    copies = any(" ".join(sentence.casefold().split()).strip(" .!") in prompt for sentence in sentences)
    return bool(prompt) and (copies or len(pattern.findall(prompt)) > 1)
