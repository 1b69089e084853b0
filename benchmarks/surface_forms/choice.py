"""Replies to multiple-choice tasks, made by rules, each with the score that the reward `choice` must give."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.surface_forms.row import Row

_LETTERS = "ABCDE"


@dataclass(frozen=True, slots=True)
class _Form:
    """A family of replies: a template, and whether it commits to the option {L}."""

    kind: str
    template: str
    commits: bool = True


_WORDS: tuple[tuple[str, ...], ...] = (
    ("copper", "zinc", "iron", "silver", "nickel"),
    ("erosion", "osmosis", "friction", "refraction", "convection"),
    ("Ljubljana", "Tallinn", "Valletta", "Skopje", "Podgorica"),
    ("the left ventricle", "the spinal cord", "the inner ear", "the small intestine", "the retina"),
    ("It doubles", "It halves", "It stays the same", "It reverses its sign", "It cannot be determined"),
    ("Too little light", "Not enough water", "Wrong temperature", "No oxygen", "None of these"),
    ("don't mix them", "stir slowly", "heat to 40 °C", "wait for an hour", "add salt"),
    ("葡萄", "苹果", "香蕉", "西瓜", "桃子"),
    ("“harbour”", "“meadow”", "“lantern”", "“orchard”", "“compass”"),
    ("increase, then decrease", "decrease, then increase", "remain constant", "oscillate", "vanish"),
)
_FORMULAS: tuple[tuple[str, ...], ...] = (
    ("(1, 4)", "[1, 4]", "(1, 4]", "[1, 4)", "{1, 4}"),
    ("x^2 + 1", "x^2 - 1", "(x + 1)^2", "2x + 1", "x + 1"),
    (r"$\frac{3}{7}$", r"$\frac{7}{3}$", r"$-\frac{3}{7}$", r"$\frac{3}{4}$", r"$\frac{4}{7}$"),
    ("√3", "-√3", "3", "√6", "9"),
)

_LETTER_SHAPES = (
    "{l}", "({l})", "**{l}**", "**({l})**", "{l}.", "{l})", "*{l}*", "`{l}`", '"{l}"', "“{l}”", "[{l}]", "{w}",
    "\uff08{w}\uff09",
    "$\\text{{{l}}}$", "__{l}__", "<b>{l}</b>", "{m}",
)  # fmt: skip
_IN_TEXT_SHAPES = (
    "{l}", "({l})", "**{l}**", "**({l})**", "*{l}*", "`{l}`", '"{l}"', "“{l}”", "option {l}", "choice ({l})", "{w}",
    "\uff08{w}\uff09",
    "option **{l}**", "$\\textbf{{({l})}}$", "<b>{l}</b>", "the option ({l})",
)  # fmt: skip
_OPENINGS = (
    "", "", "", "", "Sure! ", "Let me work through it. ", "Good question.\n\n", "We compare the options in turn.\n\n",
    "First I list what is known.\n- The sample is small.\n- The rate is constant.\n\n",
    "Step 1: read the question.\n\n",
)  # fmt: skip
_REASONS = (
    "the units agree", "the rate is constant", "nothing else fits the data",
    "the other values are off by a factor of ten",
    "{O} has the wrong sign", "{O} ignores friction", "the text does not support {O}",
    "{O} and {P} are not consistent with it",
)  # fmt: skip
_CLOSINGS = (
    "", "", "", "\n\nThis follows from the definition.", "\n\nExplanation: unlike {O}, it has the right unit.",
    "\n\n{O} is wrong because it has the wrong sign.", "\n\nOption {O} is incorrect, and {P} does not fit either.",
    "\n\nI hope this helps!", "\n\nThe other choices can be ruled out: {O} is too large, {P} is too small.",
    "\n\nLet me know if you want more detail.", "\n\n**Explanation.** If it were {O}, the rate would have to change.",
    "\n\nReasoning: {O} confuses cause and effect; {P} is a distractor.", "\n\nNote that {O} would be wrong.",
    "\n\nWhy not {O}? Because it leaves out a term.", "\n\nA common mistake is to choose {O}.",
)  # fmt: skip

_STATEMENTS = (
    "The answer is {S}.", "The answer is {S}", "The correct answer is {S}.", "So the answer is {S}.", "Answer: {S}",
    "**Answer:** {S}", "**Answer: {L}**", "Final answer: {S}", "The final answer is {S}.",
    "The correct choice is ({L}) {T}",
    "The correct option is {S}.", "Thus the right answer must be {S}.", "The answer to the question is therefore {S}.",
    "The answer is clearly {S}.", "My answer is {S}.", "I believe the answer is {S}.",
    "Therefore, the best answer is {S}.",
    "I am not certain, but I think the answer is {S}.", "The answer is {S}, because {R}.",
    "The answer is {S} since {R}.",
    "The answer is {L}: {T}.", "The answer is ({L}) {T}.", "Hence the correct answer would be {S}.", "ANSWER: {L}",
    "The answer is:\n\n{L}", "### Answer\n\n{L}", "**Final Answer**\n\n({L})",
    "The choice that agrees with this is {S}.",
    "The answer is {S}, not {O}.", "The answer is {S} rather than {O}.", "The answer is not {O} but {S}.",
    "The answer isn't {O}. The answer is {S}.", "Without a doubt, the answer is {S}.", "答案是{L}。", "答案\uff1a{L}",
    "正确答案是\uff08{L}\uff09。",
    "Correct answer: {L}) {T}", "The solution is {S}.", "Selected option: {L}", "Ans: {L}",
    "The answer is, of course, {S}.",
)  # fmt: skip
_CHOICES = (
    "I'd go with {S}.", "I would go with {S}.", "I choose {S}.", "I pick {S}.", "I'll select {S}.", "My choice is {S}.",
    "I'd say {S}.", "Let's go with {S}.", "I vote for {S}.", "I choose {S} because {R}.", "I prefer {S} over {O}.",
    "Between {O} and {L}, I pick {L}.", "You should choose {S}.", "I'd go with {S}, as {R}.", "We select {S}.",
    "I will settle on {S}.", "I'm going with {S}.", "If I had to choose, I'd pick {S}.",
)  # fmt: skip
_VERDICTS = (
    "{L} is correct.", "Option {L} is correct.", "({L}) is the right answer.", "{L} is the best choice.",
    "Only {L} fits.",
    "Option {L} is the correct answer because {R}.", "{L} is right, {O} is wrong.", "{L} is my final answer.",
    "So {L} is right.", "{L} must be correct.", "Only {L} is consistent with the data.", "{L} it is.",
    "Option ({L}) works.",
    "{O} is tempting, but {L} is correct.", "{O} is out, so it must be {L}.", "{L} fits best.",
    "Choice {L} is the answer.",
)  # fmt: skip
_WEAK = (
    "It must be {S}.", "It's {S}.", "So it is {S}.", "I think it's {S} because {R}; {O} would be wrong.", "Hence {S}.",
    "Therefore, {S}.", "That leaves {S}.", "{O} and {P} are wrong, leaving {L}.", "It has to be ({L}).", "I think {L}.",
    "It is not {O}, it's {L}.", "Not {O}. Not {P}. {L}.", "Rule out {O} and {P}. It must be {L}.", "Probably {L}.",
    "We can eliminate {O} and {P}, so {L}.", "This corresponds to option {L}.", "Clearly {L}.",
    "The result matches choice ({L}).",
    "Neither {O} nor {P} fits. So {L}.",
)  # fmt: skip
_FIRST = (
    "{F}", "{F}\n\nThis follows from the definition of the rate.", "{F}\n\nBecause {R}.", "{F}\nBecause {R}.",
    "{L}) {T}", "{L}. {T}", "({L}) {T}", "**{L}) {T}**", "{L}: {T}", "{L} - {T}", "{L} because {R}.",
    "{L}, because {R}.",
    "{L}. Because {R}.", "{L}\n\nUnlike {O}, it agrees with the table.", "{L}\n\n{O} would be wrong, and so would {P}.",
    "{L}\n\n- {O}: wrong sign\n- {P}: too small", "{L}) {T}\n\n{O} is incorrect because it ignores a term.",
    "Option {L}",
    "({L}) because {R}.", "{L} — {T}", "{L}\n\nThe second law gives it; theorem {O} is not needed.", "- {L}", "> {L}",
)  # fmt: skip
_LAST = (
    "We compute the ratio and compare.\n\n{F}", "The ratio is constant.\nThe rest does not fit.\n{L}. {T}",
    "{O} has the wrong sign. {P} is too small.\n\n{L}", "Some would say {O}, but the sign is wrong.\n\n**{L}**",
    "Suppose the answer is {O}. Then the ratio would vary, a contradiction.\n\n({L})", "Reasons above.\n\n{L}) {T}",
)  # fmt: skip
_BOXES = (
    "\\boxed{{{L}}}", "$\\boxed{{{L}}}$", "\\boxed{{\\text{{{L}}}}}", "\\boxed{{({L})}}",
    "\\boxed{{\\textbf{{({L})}}}}",
    "The answer is $\\boxed{{{L}}}$.", "Hence \\[\\boxed{{\\mathrm{{{L}}}}}\\]", "\\boxed{{{L}) {T}}}",
    "\\boxed{{{T}}}",
    "\\boxed{{{L}}}\n\nNote that {O} would be wrong.", "{O} is wrong. \\boxed{{{L}}}",
    "The answer is {O}? No.\n\n\\boxed{{{L}}}",
    "First \\boxed{{{O}}}, but that was wrong: \\boxed{{{L}}}.", "\\fbox{{{L}}}",
    "Final answer: $\\boxed{{\\text{{{L}}}}}$",
)  # fmt: skip
_TAGS = (
    "<answer>{L}</answer>", "<answer>({L})</answer>", "<answer>{L}. {T}</answer>", "<answer>\n{L}\n</answer>",
    "Not {O}, as {R}. <answer>{L}</answer>", "<answer>{T}</answer>", "<answer>The answer is {L}.</answer>",
    "<think>{O} looks good. The answer is {O}.</think>{L}", "<think>Is it {O}?</think>\n\nThe answer is {L}.",
    "<think>{O}</think><answer>{L}</answer>", '{{"answer": "{L}"}}', '{{"reason": "{O} is wrong", "answer": "{L}"}}',
    '```json\n{{"choice": "{L}"}}\n```', "<answer>\\boxed{{{L}}}</answer>", "<thinking>maybe {O}</thinking>\n{L}",
)  # fmt: skip
_TEXTS = (
    "{T}", "{T}.", "**{T}**", "The answer is {T}.", "The correct answer is {T}.", "Answer: {T}",
    "So the answer is {T}.",
    "I'd go with {T}.", "The answer is {T}, not {OT}.", "The answer is not {OT}. The answer is {T}.", "{W}",
    "The answer is {W}.",
    "We compare the values.\n\n{T}", "{T}\n\nThis follows from the table.", "It must be {T}.",
)  # fmt: skip
_CORRECTIONS = (
    "The answer is {O}. Actually, {L}.", "The answer is {O}. Wait, no: the answer is {L}.", "{O}. Wait, {L}.",
    "Answer: {O}\n\nCorrection: {L}", "The answer is {O}. Hmm, let me check again. It's {L}.",
    "I'd say {O}... actually, {L}.",
    "I first thought {O}, but the answer is {L}.", "At first {O} looks right, but it's {L}.", "It's {O}. No, {L}.",
    "The answer is {O}.\n\nWait, I made a mistake with the sign.\n\nThe answer is {L}.", "{O}... no, wait, {L}.",
    "<answer>{O}</answer> Wait, that is wrong. <answer>{L}</answer>", "The answer is {O}. Sorry, I meant {L}.",
    "My first answer was {O}. On second thought, it is {L}.", "The answer is {O}. Scratch that, it's {L}.",
)  # fmt: skip
_REJECTIONS = (
    "{L} would be wrong.", "Option {L} is incorrect.", "not {L}", "{L} is out.", "We can eliminate {L}.",
    "anything but {L}",
    "I would choose any of them rather than {L}.", "The answer is not {L}.", "The answer cannot be {L}.",
    "It isn't {L}.",
    "{L} is false.", "Rule out {L}.", "{L} can be ruled out.", "{L} fails because {R}.", "{L} does not fit.",
    "{L}: incorrect",
    "I doubt that it is {L}.", "I don't think the answer is {L}.", "Definitely not {L}.", "{L} is a distractor.",
    "{L} ✗",
    "The wrong answer is {L}.", "Many students pick {L}.", "A common mistake is {L}.", "{L} contradicts the table.",
    "The answer is neither {L} nor {O}.", "{L} is impossible.", "Choosing {L} would be a mistake.", "{L}. Incorrect.",
    "<answer>not {L}</answer>", "\\boxed{{\\text{{not {L}}}}}", "Everything except {L}", "{L} is unlikely.", "~~{L}~~",
    "答案不是{L}。", "The answer is {L}. Wait, that is wrong.", "<think>The answer is {L}.", "The answer is not {T}.",
    "not {T}",
)  # fmt: skip
_SEVERAL = (
    "{L} or {O}", "{L} and {O}", "{L}, {O}", "{L}/{O}", "The answer is {L} or {O}.", "The answer is either {L} or {O}.",
    "Answer: {L}, {O}", "Answer: ({L}) and ({O})", "{L}\n{O}", "\\boxed{{{L}}} or \\boxed{{{O}}}",
    "\\boxed{{{L}, {O}}}",
    "\\boxed{{{L}}}\\boxed{{{O}}}", "<answer>{L}</answer><answer>{O}</answer>", "<answer>{L} or {O}</answer>", "{ALL}",
    "Both {L} and {O} are correct.", "The answer is {L}. The answer is {O}.", "The answer is {L}. Also {O}.",
    "{L}, or maybe {O}",
    "{L} as well as {O}", "It's between {L} and {O}.", "Maybe {L}, maybe {O}.", "{L}) {OT}", "The answer is {L}: {OT}.",
    "The answer is {T} or {OT}.", "Any of {L}, {O} or {P}", "I'd go with {L} or {O}.", "答案是{L}或{O}",
    "The answer is {L}. {O} is also correct.", "{L} & {O}", "{L} ({T}) or {O} ({OT})",
)  # fmt: skip
_CONSIDERED = (
    "If the answer is {L}, then the rate varies.", "Suppose the answer is {L}.", "Is it {L}?", "Is the answer {L}?",
    "It could be {L}.", "It might be {L}.", "{L} would be correct if the rate varied.", "I don't know.", "Let {L} = 5.",
    "Vitamin {L} is needed.", "The point {L} lies on the line.", "Plan {L}", "One might think the answer is {L}.",
    "Some people choose {L}.", "The answer is Z.", "", "P({L}) = 0.5", "{L}?",
)  # fmt: skip


def _forms() -> list[_Form]:
    families = {
        "statement": _STATEMENTS, "chosen": _CHOICES, "verdict": _VERDICTS, "unmarked": _WEAK, "letter_first": _FIRST,
        "letter_last": _LAST, "boxed": _BOXES, "tagged": _TAGS, "text": _TEXTS, "correction": _CORRECTIONS,
    }  # fmt: skip
    refused = {"negation": _REJECTIONS, "several": _SEVERAL, "considered": _CONSIDERED}
    return [_Form(kind, template) for kind, templates in families.items() for template in templates] + [
        _Form(kind, template, commits=False) for kind, templates in refused.items() for template in templates
    ]


def rows(count: int, seed: int) -> Iterator[Row]:
    """`count` different replies, the same for the same seed; every form occurs before one occurs again."""
    generator, forms, made = random.Random(seed), _forms(), set[tuple[str, tuple[str, ...], str]]()
    while True:
        generator.shuffle(forms)
        for form in forms:
            row = _row(form, generator)
            key = (row.response, row.options, row.answer)
            if key not in made:
                made.add(key)
                yield row
                if len(made) == count:
                    return


def _row(form: _Form, generator: random.Random) -> Row:
    options = _options(generator)
    claimed, other, third = generator.sample(range(len(options)), 3)
    response = _fill(form, options, (claimed, other, third), generator)
    rightly = form.commits and generator.random() < 0.6
    answer = claimed if rightly or not form.commits else other
    if not form.commits and "{O}" in form.template and generator.random() < 0.3:
        answer = other
    return Row(
        verifier="choice",
        kind=form.kind if form.commits is rightly or not form.commits else f"{form.kind}_of_another",
        answer=_LETTERS[answer],
        response=response,
        expected=float(rightly),
        options=options,
        note=form.template,
    )


def _options(generator: random.Random) -> tuple[str, ...]:
    size = generator.choice((4, 4, 5))
    family = generator.random()
    if family < 0.25:
        number = generator.choice(
            (generator.randint(2, 99), generator.randint(1_000, 90_000), generator.randint(1, 99) / 100)
        )
        near = [number, -number, round(number * 10, 2), round(number + 1, 2), round(number / 2 + 0.25, 3)]
        texts = [f"{value:,}" if generator.random() < 0.3 else str(value) for value in near]
    elif family < 0.4:
        number, unit = generator.randint(2, 400), generator.choice((" m", " km/h", "%", " kg", " apples", "°"))
        texts = [f"{number + step}{unit}" for step in (0, 1, 10, 100)] + [f"-{number}{unit}"]
    else:
        texts = list(generator.choice(_WORDS if family < 0.85 else _FORMULAS))
    texts = list(dict.fromkeys(texts))
    generator.shuffle(texts)
    return tuple(texts[:size])


def _fill(form: _Form, options: Sequence[str], chosen: tuple[int, int, int], generator: random.Random) -> str:
    letter, other, third = (_LETTERS[index] for index in chosen)
    spellings = {"l": letter, "w": chr(ord(letter) + 0xFEE0), "m": chr(0x1D400 + ord(letter) - ord("A"))}
    names = {
        "L": letter,
        "O": other,
        "P": third,
        "T": options[chosen[0]],
        "OT": options[chosen[1]],
        "W": _respell(options[chosen[0]]),
        "S": generator.choice(_IN_TEXT_SHAPES).format(**spellings),
        "F": generator.choice(_LETTER_SHAPES).format(**spellings),
        "R": generator.choice(_REASONS).format(O=other, P=third),
        "ALL": "\n".join(f"{label}) {text}" for label, text in zip(_LETTERS, options, strict=False)),
    }
    text = form.template.format(**names)
    if not form.commits:
        return text
    opening = generator.choice(_OPENINGS) if form.kind not in ("letter_first", "text", "letter_last") else ""
    closing = generator.choice(_CLOSINGS) if form.kind in ("statement", "chosen", "verdict", "boxed") else ""
    if form.kind == "letter_first" and "\n" not in form.template:
        closing = generator.choice(_CLOSINGS)
    return opening + text + closing.format(O=other, P=third)


def _respell(text: str) -> str:
    """The same text in other characters: full-width ASCII, curly or straight quotes."""
    if "'" in text or "“" in text:
        return text.replace("'", "\u2019").replace("“", '"').replace("”", '"')
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" and char not in "$\\" else char for char in text)
