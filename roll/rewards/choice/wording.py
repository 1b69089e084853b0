"""The words around an option that claim it, reject it, or take a claim back. Patterns of text."""

from __future__ import annotations

import re

_LEAD_WORDS = (
    r"indeed|clearly|therefore|thus|then|simply|just|definitely|obviously|certainly|surely|hence|actually|really"
    r"|of course"
    r"|most likely|probably|likely|possibly|perhaps|maybe|either|both|still|in fact|again|now|correct|right|best"
    r"|one|the"
    r"|is|as|follows|given by|following|for sure|undoubtedly|hereby|in my (?:opinion|view)|to be|that|which is|so"
    r"|und|also|daher|somit|folglich|demnach|deshalb|donc|alors|ainsi|par conséquent|por (?:lo )?tanto"
    r"|por consiguiente|entonces|pues|quindi|dunque|perci[òo]|pertanto|portanto|(?<=é )a|(?<=portanto, )a"
    r"|ent[ãa]o|logo|assim"
    r"|option|options|choice|choices|answer|letter|number|selection|selecting|labell?ed|marked|alternative|item"
    r"|statement"
    r"|(?:a |à )?letra|lettre|lettera|buchstabe|буква|вариант"
    r"|la|el|le|die|der|das|opci[oó]n|选项|選項|选|是|为|為|应该|應該|应|it|(?!initially|originally|previously"
    r"|formerly|hardly"
    r"|scarcely|barely|wrongly|incorrectly"
    r"|mistakenly|falsely|unlikely|only)[a-z]{2,12}ly"
)
LEAD = rf"(?:[\s,:*_'\"=>|-]++|(?<![A-Za-z])(?:{_LEAD_WORDS})(?![A-Za-z])|\b[a-z]\s?=(?=\s?\S)){{0,12}}$"
"""Words that may separate a cue from its option."""

_NOUN = (
    r"(?:answer|option|choice|solution|selection|pick|guess|verdict|conclusion|response|letter|result|ans|vote|bet"
    r"|decision|one|alternative|statement|item|final|correct|output|prediction|respuesta|r[ée]ponse|antwort"
    r"|resposta|risposta|opci[oó]n|opzione|alternativa|scelta|richtig|correcta|вариант|đáp án|jawaban|cevap"
    r"|odpowied[zź]"
    r"|antwoord|svar"
    r"|الإجابة|उत्तर"
    r"|ответ)"
)
STATEMENT = re.compile(
    rf"(?<![A-Za-z]){_NOUN}s?(?:\([^()]{{0,20}}\))?\b[^,;.!?\n]{{0,70}}?"
    rf"(?:(?<![A-Za-z])(?:is|was|are|be|becomes|remains|est|ist|es|é|è|lautet|là|adalah|to|är|هي)(?![A-Za-z])"
    rf"|'s\b|[:=|]|->"
    rf"|=>)[*_]*{LEAD}"
    rf"|(?:정답[은는이]?|답은|答案|正解|答え|正确选项|正確選項|正确的|正確的)[^,;.!?\n]{{0,12}}?(?:是|为|為|选"
    rf"|選|は|が|:)?\s*{LEAD}"
    rf"|(?<![A-Za-z])(?:选项|選項)[^,;.!?\n]{{0,12}}?(?:是|为|為|:)\s*{LEAD}"
    rf"|(?<!不)(?:故选|故選|应选|應選|选择|選擇|选|選)\s*[:为為]?\s*{LEAD}"
    rf"|(?<![A-Za-z])(?:answer|ans|r[ée]ponse|respuesta|antwort|ответ|вариант|उत्तर)\s+(?:-+\s+)?(?:option\s+"
    rf"|choice\s+)?\(?$"
    r"|(?<![A-Za-z])(?:option|choice|answer|one),\s+$",
    re.IGNORECASE,
)
"""Ends before an option that a sentence states as the answer."""
CHOICE = re.compile(
    r"(?<![A-Za-z])(?:choos(?:e|es|ing)|chose|choisis|elijo|escolho|scelgo|let's go|wähle|nehme|kies|"
    r"pick(?:s|ed|ing)?|select(?:s|ed|ing)?|go(?:es|ing)? (?:with|for)"
    r"|went with"
    r"|opt(?:s|ed|ing)? for|settl(?:e|es|ed|ing) (?:on|for)|vot(?:e|es|ed|ing) for|lean(?:s|ing)? towards?"
    r"|mark(?:ing)?"
    r"|circl(?:e|ing)|conclud(?:e|es|ing)(?: that)?|answer(?:s|ing)?(?: with)?|prefer|favou?r|stick(?:ing)? with"
    r"|submit(?:ting)?|enter|tak(?:e|ing)|sa(?:y|ying)|guess|bet(?:ting)? on|decid(?:e|ed|ing) (?:on|for)"
    r"|lock(?:ing)? in"
    rf"|commit(?:ting)? to|accept|return|endorse|support|confirm|(?:confident|certain|sure) (?:in|about|of|with)"
    rf"|put (?:me )?down(?: for)?|put|keep|trust|arriv(?:e|es"
    rf"|ed|ing) at|going){LEAD}",
    re.IGNORECASE,
)
"""Ends before an option that somebody chooses."""
WEAK_BEFORE = re.compile(
    r"(?:(?<![A-Za-z])(?:it'?s|it is|it was|its|that'?s|that is|that would be|this is|that'd be|it'd be|only"
    r"|(?:must|has to|have to|should|would|will"
    r"|can only|got to|gotta|needs to) be|gotta be|by (?:process of )?elimination|on (?:reflection|second thoughts?)"
    r"|left with|leav(?:e|es|ing)(?: (?:us|me|you))?(?: (?:just|only))?(?: with)?|remain(?:s|ing)?|so|thus|hence"
    r"|therefore|consequently"
    r"|accordingly|namely|i\.e\.?|think|believe|figure|reckon|suspect|correspond(?:s|ing)? to|match(?:es|ing)?"
    r"|agrees? with"
    r"|points? (?:to|towards?)|giv(?:e|es|ing)|yield(?:s|ing)?|means|i mean(?:t)?|makes? it|correction|actually|wait"
    r"|no|sorry|rather|indeed|clearly|definitely|obviously|certainly|surely|probably|likely|maybe|perhaps|finally"
    r"|hmm+|oops|instead|best is|final|but|(?:looks?|seems?|sounds?) like|(?:seems?|appears?) to be|could only be"
    r"|in conclusion|to sum up"
    r"|in summary|overall|ultimately|in the end|consistent with|described by|satisfied by|get|gets|got|obtain"
    r"|have|lands? on"
    rf"|to|is)(?![A-Za-z])|->|=>|✓|[:]|所以|因此|综上"
    rf"|^\W*(?:after|upon|on|by|from|given|based on|since|as|because|with|looking|in|of|out of"
    rf"|considering)\b[^,;]{{0,100}},){LEAD}",
    re.IGNORECASE,
)
_ADVERB = (
    r"(?:\s*,?\s*(?:\w{2,12}ly|indeed|thus|then|therefore|hence|also|of course|still|here|now|in fact|,|too|alone"
    r"|just))*"
)
_BE = (
    r"(?:is|are|was|were|'s|seems?(?: to be)?|appears?(?: to be)?|looks?|sounds?|feels?"
    r"|(?:must|would|should|will|has to) be|being|remains?)"
)
_THE = (
    r"(?:the|my|our|a|an|what"
    r"|only|most|single|final|one|to be|best|very|by far|more|likely|fully|well|better|\w{2,12}ly)"
)
_ITEM = r"(?:选项|選項|项|項|的|说法|說法|表述|描述|叙述){0,3}"
VERDICT_AFTER = re.compile(
    rf"\s*(?:\([^()]{{0,80}}\)\s*)?(?:{_ADVERB}\s*(?:{_BE}|-|:|->|=|\|)?{_ADVERB}\s*(?:{_THE}\s+)*"
    r"(?:(?P<verdict>correct|right|answer|choice|option|solution|pick|selection|one|winner|best|✓|to choose"
    r"|to go with|way to go|what (?:i|we|you)\b|yes)"
    r"|(?P<weak>true|accurate|valid|appropriate|plausible|reasonable|consistent|good|sensible|preferable|left|fine"
    r"|supported|justified|favou?red|preferred|likely|better|stronger|closest))(?![A-Za-z])"
    r"|\s*(?P<verb>it is|fits|works|matches|holds|wins|remains|satisf\w+|makes (?:the most |more |perfect )?sense"
    r"|follows"
    rf"|stands|survives|gets? my vote|for the win|describes|agrees|{_ITEM}(?:才|是|为|為|也|都|均"
    rf"|亦){{0,3}}(?:正确|正確|符合题意|符合題意"
    r"|[对對](?![应應于於比象称稱]))(?![吗嗎性]|与否)"
    r"|(?:(?:ist|est|es|é|è) )?(?:richtig|korrekt|zutreffend|correct[ea]|juste|exacte|corrett[ao]|corret[ao]"
    r"|giust[ao]))"
    r"(?![A-Za-z]))",
    re.IGNORECASE,
)
"""What follows an option that a sentence calls right: by `verdict`, or in weaker words."""
_NEGATIVE = (
    r"wrong\w*|incorrect\w*|false\w*|out|not|never|no|impossible|invalid|eliminated|excluded|discarded|dismissed"
    r"|rejected"
    r"|ruled|crossed|distractor|decoy|trap|unlikely|implausible|inaccurate|unsupported|nonsens\w*|off|bad|worse|worst"
    r"|flawed|irrelevant|misleading|mistake\w*|mistaken|error|erroneous|tempting|untrue|unreasonable|inconsistent"
    r"|unrelated"
    r"|incompatible|inappropriate|contradict\w*|neither|hardly|least|less|too|far|unsatisfactory|inadequate"
    r"|ineligible"
    r"|unjustified|unwarranted|improbable|questionable|doubtful|suspect|faulty|weak|weaker|gone|insufficient"
    r"|incomplete"
    r"|defeated|refuted|disproved|disproven|disqualified|untenable|absurd|illogical|nonsensical|a no|backwards?"
    r"|opposite"
)
_NO_BREAK = r"(?:(?!\b(?:because|since|as|and|but|while|whereas|unlike|so|correct|right|answer|only|best)\b)[^,;.!?\n])"
REJECTED_AFTER = re.compile(
    rf"\s*(?:\((?!wrong|incorrect|false|not|no\b)[^()]{{0,80}}\)\s*)?(?:,?\s*(?:which|that|though|however|also"
    rf"|too|clearly|obviously|therefore|thus|then|certainly"
    rf"|definitely|simply|just|alone|itself|,|\w{{2,12}}ly)\s*){{0,4}}"
    rf"(?:(?:(?:{_BE}|be|can|could|may|might|would|should|has|have|had|does|do|did|gets?|got)(?![A-Za-z])|[:=|-])"
    rf"{_NO_BREAK}{{0,40}}?(?<![A-Za-z])(?:{_NEGATIVE})(?![A-Za-z])"
    r"|(?:is|are|was|does|do|did|ca|could|would|wo|has|should|must|ai)n't|cannot|can't|won't|(?:is|are|do|does"
    r"|did|can|could|would"
    r"|will|has|should|must|may|might|was)\s+not"
    r"|fails?|contradicts?|lacks?|violates?|misses|ignores?|overlooks?|confuses?|overstates?|understates?"
    r"|makes? no|goes? too"
    r"|falls? (?:short|apart)|drops? out|loses?|misreads?|misrepresents?|gets? it wrong|(?:was|is) wrong"
    r"|neglects?|omits?"
    rf"|(?:ist|est|es|é|è)(?:,? (?:also|daher|somit|donc|alors|por (?:lo )?tanto|quindi|portanto),?)* (?:falsch"
    rf"|nicht|faux|fausse|incorrect[aeo]|incorret[ao]|inexacte?|fals[ao]|sbagliat[ao]|errad[ao])|n'est"
    rf"|nicht (?:richtig|korrekt|die|zutreff)"
    rf"|no es|non è"
    rf"|não é|,? but (?:that|this|it) (?:contradicts|fails|violates|can't be|cannot be|is wrong|is incorrect"
    rf"|is impossible|doesn't (?:fit|work|match|hold))|unexplained|unanswered|untested|unchecked|aside|open(?=\W*$)|✗"
    rf"|{_ITEM}[都均也是则則为為皆]{{0,3}}(?:不|错|錯"
    rf"|有误|有誤|非)|wrong|incorrect|false|nope|\(\s*(?:{_NEGATIVE})\b)",
    re.IGNORECASE,
)
"""What follows an option that a sentence rejects."""
REJECTED_BEFORE = re.compile(
    r"(?<![A-Za-z])(?:not|never|no|nor|neither|none|nothing|cannot|rather than|instead of|in place of|unlike"
    r"|except(?:ing)?|besides"
    r"|other than|(?:any|every)thing but|all but|apart from|aside from|eliminat\w*|exclud\w*|reject\w*|rul(?:e|es"
    r"|ed|ing)\b"
    r"(?:[^,;.]{0,20}\bout)?|discard\w*|dismiss\w*|avoid\w*|against|(?:cross|strik|throw|toss|leav)\w* out"
    r"|doubt\w*|wrong\w*"
    r"|incorrect\w*|false\w*|mistak\w*|error|distractor\w*|trap\w*|tempt\w*|drop\w*|skip\w*|disprov\w*|contradict\w*"
    r"|opposed to|refut\w*|confus\w*|least|worst|unlikely|impossible|invalid|fake|fool\w*|mislead\w*|decoy"
    r"|far from|hardly"
    r"|scarcely|barely|fail\w*|disagree\w*|than|over|beats?|without|ignor\w*|remov\w*|forget|steer clear|refus\w*"
    r"|disregard\w*|den(?:y|ies|ied)|poor|bad|worse|inferior|weed\w* out|abandon\w*|unwise|nope|nowhere near"
    r"|stay away|no way|nobody|no one|few|rarely|seldom|second-best|runner-up"
    r"|(?:any|every|all|each)\b[^,;.]{0,20}\b(?:but|except)"
    r"|contrary to|differs? from|different from|distinct from|says? no to|disqualif\w*|veto\w*|untrue|nein"
    r"|kein\w*|nicht|pas|no es|non [èe]|n[ãa]o)"
    r"(?![A-Za-z])|n't(?![A-Za-z])|✗|[≠¬]\s*$|!$|不|排除|并非|並非|非|错|錯",
    re.IGNORECASE,
)
"""Words before an option, in the same clause, that reject it."""
UNCLAIMED_BEFORE = re.compile(
    r"(?<![A-Za-z])(?:if|suppos\w*|assum\w*|imagin\w*|whether|unless|were it|had it|consider\w*|test(?:s|ing)?"
    r"|try(?:ing)?"
    r"|check(?:ing)?|what about|how about|compar\w*|initial\w*|at first|first (?:thought|answer|guess|choice"
    r"|instinct|impression"
    r"|glance|pick)|original\w*|previous\w*|earlier|thought|some|many|students (?:often|might|may|would|usually"
    r"|commonly|pick|choose|select)|people|others|someone"
    r"|one (?:might|may|could|would)|(?:you|we|they) (?:might|may|could)|classmate|friend|could(?! only)|might"
    r"|may|vs|versus|hypothetical\w*|depend\w*|only if|between|torn|regarding|(?:was|were) (?:going|about) to"
    r"|almost|nearly|look(?:ing|s)? at|except if|(?:wouldn|couldn)'t mind|example|e\.g|similar to|everyone"
    r"|everybody|anyone|careless|hasty|(?:he|she|they|user|teacher|author|professor|textbook|somebody|colleague)"
    r"|no one|half"
    r"|naive\w*|popular|common\w*|would have(?! to)"
    r"|most (?:people|would|might|will|students)|used to|half|pretend\w*|candidates?|contenders?|when|si|wenn"
    r")(?![A-Za-z])|若|如果|假设|假設|假如|无法|無法|难以|難以|未能|是否"
    r"|^\W*to (?:say|choose|pick|select)\b|^\W*(?:for|with|under|in) $",
    re.IGNORECASE,
)
"""Words before an option, in the same clause, that only consider or quote it."""
CONDITION_AFTER = re.compile(
    r",? ?[^,;.!?\n]{0,60}?(?<![A-Za-z])(?:for instance|for example|as an example|only if|only when"
    r"|until|before (?:that|then|\d)|in the past|at the time"
    r"|if (?!and only|you|i |we |anything)|unless|had |were (?!it not))",
    re.IGNORECASE,
)
CLAUSE = re.compile(
    r"[,;()]|\s-\s|->|(?<![A-Za-z])(?:nope|no|wait|hmm+):"
    r"|(?<![A-Za-z])(?:(?<!thing )(?<!all )(?<!none )(?<!any )but|so|because|since|hence|thus|therefore|while"
    r"|whereas|although|though|then|meaning"
    r"|making|leaving|leaves|which means|and (?=it\b|it's|the (?:answer|correct|right)|i\b|we\b|so\b|that\b"
    r"|only\b|then\b))(?![A-Za-z])"
    r"|(?:所以|因此|而是)",
    re.IGNORECASE,
)
PARENTHETIC_NOT = re.compile(r"(?:\bnot|n't|\bnever),[^,;.]{1,40},\s*$", re.IGNORECASE)
IDIOM = re.compile(
    r"(?<![A-Za-z])(?:(?:there is |there's )?no (?:doubt|question|matter(?: what)?|wonder|two ways about it)"
    r"|without (?:a |any )?"
    r"(?:doubt|question|hesitation)|beyond (?:a |any )?doubt|not only|none other than|no other than"
    r"|nothing (?:but|other than)"
    r"|(?:can't|cannot|could not|couldn't) be (?:anything|any) (?:but|other than)|no (?:other|choice"
    r"|option)[^,;.]{0,30}(?:but|than)"
    r"|(?:was|am|i'm|were) (?:wrong|mistaken)|more (?:often )?than|if i had to (?:pick|choose|guess)(?: one)?"
    r"|forced to"
    r"|i (?:would|might|may) (?:say|guess)|may i|(?:not (?:\w+ly |100% )?(?:sure|certain)|unsure)(?=[,;.]| but"
    r"| yet)|despite|i don't doubt|by (?:process of |simple )?elimination"
    r"|if you ask me|none but|no one but)(?![A-Za-z])",
    re.IGNORECASE,
)
"""Phrases with a negative word that reject nothing."""
_ASKED = re.compile(
    r"((?<![A-Za-z])(?:(?:the|only) (?:\w+ ){1,4}?(?:that|which|who) |what (?:\w+ ){0,4}?)(?=[a-z]+(?: not|n't)"
    r"|cannot)"
    r"|(?<![A-Za-z])the (?:\w+ ){1,3}?(?=not (?:\w+(?:ed|ing|en)|found|made|a|an|in|on|part)(?![A-Za-z])))"
    r"((?:(?:is|are|was|were|does|do|did|has|have|had|can|could|will|would|should|must|may)(?: not|n't)|cannot|not)"
    r"(?! (?:\w+ly |the |a |an |in fact |be |at all )*(?:correct|right|answer|true|valid|best|choice|option|it"
    r"|possible"
    r"|plausible|work|fit|match|hold|that|what|because|supported(?! by))(?![A-Za-z])))"
    r"(?= [^,;.!?:]{2,100} (?:is|was|are|would be|must be|should be|has to be|will be)(?![A-Za-z])"
    r"|[^,;.!?:]{0,100}:)",
    re.IGNORECASE,
)
"""A negation inside the description of what is asked ("the one that is not an insect is ...")."""
_SURVEY = re.compile(
    r"(?<![A-Za-z])(?:look(?:ing|s)? (?:\w+ly )?at|consider(?:ing|ation of)?|check(?:ing|s)?(?: of)?"
    r"|compar(?:ing|ison of)"
    r"|test(?:ing|s)?(?: of)?|try(?:ing)?|examin(?:ing|ation of)) (?:(?!if|whether|not|between)[a-z]+ ){0,4}?"
    r"(?:options|choices|answers|alternatives|values|numbers|candidates|possibilities|statements|them|facts|data"
    r"|evidence"
    r"|option|choice)"
    r"(?: \w+ly)?(?= (?:giv(?:es|ing)|yields?|leads?|points?|leaves?|brings?|takes?|shows?|reveals?|confirms?"
    r"|suggests?)"
    r"(?![A-Za-z]))",
    re.IGNORECASE,
)
"""A survey of the options as the subject of what it shows ("a look at the options gives ...")."""
_DESCRIBED = re.compile(
    rf"(?<![A-Za-z])((?:answer|option|choice|solution) (?:is|must be)[\w, ]{{0,20}}?"
    rf" (?:the (?:one|option|choice|answer)|that) )"
    rf"((?:that|which|in which|where) (?!(?:is|are|was) )[^;.!?:\n]{{2,120}})(?=:{LEAD})",
    re.IGNORECASE,
)
"""The description of the right option before its letter ("the answer is the one that denies the motion: ...")."""


def without_idioms(text: str) -> str:
    """The text with spaces in place of words that would reject or consider an option elsewhere."""
    text = IDIOM.sub(lambda idiom: " " * len(idiom[0]), text)
    text = _DESCRIBED.sub(lambda described: described[1] + " " * len(described[2]), text)
    text = _SURVEY.sub(lambda survey: " " * len(survey[0]), text)
    return _ASKED.sub(lambda asked: asked[1] + " " * len(asked[2]), text)


CONTRAST_END = re.compile(
    rf"[\s,;(-]*(?:(?:and|but|or)\s+)?(?<![A-Za-z])(?:certainly |definitely |clearly |surely )?"
    rf"(?:not|never|no|nor|unlike|rather than|instead of|as opposed to|over|beats|more than|than|而?不是|而非"
    rf"|并非){LEAD}",
    re.IGNORECASE,
)
"""A negative word between two options that rejects the second one only."""
BARE_AFTER = re.compile(
    r"(?:[\s.,;:!✓)\]-]|[^\x00-\x7f\w✗]|\b(?:(?<![:.] )it is|for sure|definitely|final answer|is (?:my"
    r"|the) (?:final )?(?:answer|choice)|my final answer"
    r"|please|indeed|of course|obviously|clearly|certainly|100 ?%|all the way|all day"
    r"|without (?:a |any )?doubt|no doubt"
    r"|hands down|i think|i believe|i guess|i'd say|probably|final|only)\b)*$",
    re.IGNORECASE,
)
REASON_AFTER = re.compile(
    r"\s*(?!->)(?:[.:,;)\]-]|\([^()\n]{0,200}\)\s*(?:[.:,;!-]|$)|(?:because|since|as|for|given|due|by"
    r"|is (?:correct|right|the (?:correct|right|best|only|most|answer|one))|and not|not"
    r"|rather than|instead of|over|beats)\b|\s-\s|$)",
    re.IGNORECASE,
)
LABEL_REJECTED = re.compile(
    r"\s*[.):\]-]+\s*(?:(?:this|that|it|option) (?:is|was) |it's |that's )?(?:\w{2,12}ly )?(?:wrong|incorrect"
    r"|false|untrue|invalid"
    r"|eliminated|excluded|rejected|ruled out|not (?:correct|right|true|the|possible|valid)|no[,.!]|nope"
    r"|impossible|✗)(?![a-z])"
    r"|[,.]*\s*(?:but )?(?:no(?=\W*$)|nope|(?:that|this|it|which)(?:'s| is| was) (?:wrong|incorrect|false|not)\b)",
    re.IGNORECASE,
)
"""What follows the label of a line that rejects its option ("B. Incorrect.")."""
HEADING = re.compile(
    rf"^\W*(?:(?:the|my|your|correct|final|right|best|chosen|selected|a|is)\s+)*{_NOUN}\W*(?:is\W*)?$", re.IGNORECASE
)
CORRECTION_START = re.compile(
    r"\W*(?:but |and |oh,? |ah,? |or )?(?:wait|actually|hold on|hmm+|no|nope|oops|sorry|correction|scratch that"
    r"|strike that"
    r"|on second thoughts?|let me|let's re|i mean|i meant|rather|my mistake|apolog\w+|never ?mind|on reflection|upon"
    r"|looking again|i take (?:that|it) back|i was wrong|i made|thinking (?:again|about)|re-?\w+ing|after re|edit"
    r"|update|just kidding|kidding|jk"
    r"|changing|i(?:'ve| have)? chang|i(?:'ll| will) chang|revis|that (?:is|was) wrong|that's wrong|instead|or rather"
    r"|to correct|correcting|disregard|ignore (?:that|my)|forget (?:that|it)|in fact)(?![a-z])",
    re.IGNORECASE,
)
CORRECTION = re.compile(
    r"(?<![A-Za-z])(?:wait|actually|hold on|hmm+|correction|oops|sorry|apolog\w+|mistak\w*|wrong|incorrect|error"
    r"|reconsider\w*"
    r"|re-?(?:check|evaluat|think|examin|read|calculat|consider|assess|do|work)\w*|on second thoughts?|scratch"
    r"|strike|rather"
    r"|instead|however|but|chang(?:e|ed|ing)|revis\w+|correct(?:ed|ing)|never ?mind|take (?:that|it) back"
    r"|i meant?|yet"
    r"|although|on reflection|look(?:ing)? again|no|nope|not|disregard|forget|update\w*|edit|kidding|initially"
    r"|at first|originally)(?![A-Za-z])",
    re.IGNORECASE,
)
"""Between two claims: the later one replaces the earlier one."""
CONCLUSION = re.compile(
    r"(?<![A-Za-z])(?:so|thus|therefore|hence|final(?:ly)?|in conclusion|conclud\w+|overall|ultimately|in the end"
    r"|in summary"
    r"|consequently|to sum up|donc|daher|somit|folglich|por (?:lo )?tanto|entonces|quindi|dunque|portanto)"
    r"(?![A-Za-z])|因此|所以|故",
    re.IGNORECASE,
)
SAME_BEFORE = re.compile(r"\b(?:so (?:is|does|are|would)|as (?:is|does|well as)|also|likewise)\s*$", re.IGNORECASE)
COUNTERFACTUAL = re.compile(
    r"\W*(?:had|were|if|suppos\w+|assum\w+|unless|otherwise|in that case)\b[^.!?\n]*(?:\bwould|'d)\b"
    r"|\W*(?:until|before|in the past)\b",
    re.IGNORECASE,
)
EQUALS = re.compile(r"(?<![=<>!])=\s*$")
GOES_ON = re.compile(r"[.!?\n;]\s*(?:next|now,? we|then,? we|second(?:ly)?,|step \d)(?![A-Za-z])", re.IGNORECASE)
"""After the result of a step that is not the last one."""
NO_SENTENCE = re.compile(r"\W*(?:(?:hmm+|actually|oh|but|wait|no|nope|hold on)\b\W*)+", re.IGNORECASE)
SUBORDINATE = re.compile(r"\W*(?:although|while|though|even|despite|whereas|if|since|because|unlike)\b", re.IGNORECASE)
ADDITION = re.compile(
    r"\W*(?:also|or|alternatively|maybe|possibly|perhaps|additionally|equally|otherwise|likewise|similarly|and"
    r"|as well as"
    r"|plus|could also|failing that|if not)(?![A-Za-z])",
    re.IGNORECASE,
)
ALSO_AFTER = re.compile(
    r"[^.!?\n]{0,30}?\b(?:also|too(?=\s*(?:[.,;!]|$))|as well|equally|likewise|is possible"
    r"|(?:auch|aussi|también|anche|também)(?= [rkcjg])"
    r"|(?:could|might|may) be(?: (?:right|correct|true|it|argued|accepted|valid|possible|an?|the)(?![A-Za-z])|\W*$))"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
WITHDRAWAL = re.compile(
    r"(?:wrong|incorrect|not (?:right|correct|it|the)|mistake|error|scratch that|take (?:that|it) back|disregard"
    r"|ignore that"
    r"|never ?mind|strike that|doesn't work|can't be|cannot be|isn't (?:right|correct|it))",
    re.IGNORECASE,
)
WRONG_AFTER = re.compile(
    r"\s*(?:\([^()]{0,80}\)\s*)?(?:(?:is|was|would be|seems|looks|must be|can be|has been)\s+(?:\w{2,12}ly |also "
    r"|just )?"
    r"(?:wrong|incorrect|false|out\b|not (?:the )?(?:right|correct|answer|it\b|valid)|eliminated|ruled out"
    r"|excluded|rejected"
    r"|a mistake|impossible|invalid)|(?:isn't|wasn't|can't be|cannot be) (?:the )?(?:right|correct|answer|it\b"
    r"|valid))",
    re.IGNORECASE,
)
NONE_OF = re.compile(
    r"(?<![A-Za-z])(?:none|neither) of (?:these|those|them|the (?:above|(?:\w+ )?(?:options|choices"
    r"|answers)))(?![A-Za-z])"
    r"(?! (?:other|except|but|besides))",
    re.IGNORECASE,
)
NEARLY_AFTER = re.compile(
    r"[^,;.!?\n]{0,20}?(?<![A-Za-z])(?:would|might|could|may|comes?|closest|nearest)(?![A-Za-z])", re.IGNORECASE
)
ATTRIBUTE = re.compile(
    r"(?:-| (?!(?:answer|choice|option|one|solution|because|since|as|and|but|for|here|in|by|due|given|based"
    r"|according|when"
    r"|with|to|so|while|if|now|too|about|on|given|after|only|then)(?![a-z])))[a-z]"
)
"""After "right" or "correct" that describes something else ("B: right angles")."""
JUDGES = re.compile(rf"(?<![A-Za-z]){_BE}(?![A-Za-z])", re.IGNORECASE)
APPOSED = re.compile(
    r"(?:(?<![A-Za-z])(?:is|are|was|were|be|becomes|equals?|gives?|gets?|yields?|makes?|comes? (?:to|out)"
    r"|totals?)(?![A-Za-z])|=)"
    r"[^.!?\n]*\S\s*(?:[,(]|\s-)\s*(?:(?:which is|that is|i\.e\.|namely|so),? )?(?:option|choice"
    r"|answer) [(\[]?[A-Za-z][)\]]?$",
    re.IGNORECASE,
)
"""A result that ends with the option it belongs to ("the sum is 12, option B")."""
CLEFT_BEFORE = re.compile(
    r"\W*(?:(?:so|thus|hence|therefore),? )?it (?:is|was) (?:the |an |a )?(?:[A-Za-z-]+ ){0,4}", re.IGNORECASE
)
CLEFT_AFTER = re.compile(
    r"(?:,[^,;.!?\n]{0,80},|\s?\([^()\n]{0,80}\))? ?(?:who|that|which|where)(?![A-Za-z])", re.IGNORECASE
)
"""After the option of "it was the physicist Ohm who ..."."""
TRUE_AFTER = re.compile(r"\W*(?:(?:is|are) )?(?:\w+ly |also )?(?:true|accurate|valid)(?![A-Za-z])", re.IGNORECASE)
