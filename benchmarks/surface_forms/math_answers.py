"""Answers of many kinds, each with notations that are equal to it and near misses that are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random

Note = tuple[str, str]
"""A notation, and the rule that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An answer in LaTeX, its equal notations and its near misses."""

    answer: str
    right: list[Note]
    wrong: list[Note]
    right_text: tuple[Note, ...] = ()
    """Equal notations in plain text."""
    wrong_text: tuple[Note, ...] = ()


_UNITS = ("apples", "cm", "square meters", "hours", "dollars", "students", "points", "km", "kilograms", "pages per day")
_SCALES = ("thousand", "million", "hundred", "dozen", "billion")
_LETTERS = "xyabkmnt"


def _integer(rng: Random) -> Case:
    n = rng.choice([rng.randint(11, 99), rng.randint(100, 999), rng.randint(1000, 9_999_999)])
    text, unit, scale, other = str(n), rng.choice(_UNITS), rng.choice(_SCALES), n + rng.randint(1, 9)
    joined = f"{text[:-1]}{{}}{text[-1]}"
    right = [
        (text, "itself"),
        (f"{n:,}", "thousands separated by commas"),
        (f"{n}.0", "a zero after the point"),
        (rf"{n}\text{{ {unit}}}", "a unit in text"),
        (rf"{n}\,\mathrm{{{unit.split()[0]}}}", "an upright unit"),
        (f"{n} {unit}", "a unit in words"),
        (rf"\mathbf{{{n}}}", "bold in LaTeX"),
        (rf"{rng.choice(_LETTERS)} = {n}", "assigned to a variable"),
        (rf"\frac{{{2 * n}}}{{2}}", "an unreduced fraction"),
        (rf"{n // 2} + {n - n // 2}", "a sum"),
        (f"{n:,}".replace(",", r"{,}"), "commas in braces"),
        (rf"\textcolor{{red}}{{{n}}}", "colored"),
    ]
    wrong = [
        (str(other), "another number"),
        (f"-{n}", "another sign"),
        (rf"{n} \text{{ {scale}}}", "multiplied by a word"),
        (rf"{n}\mathrm{{i}}", "imaginary"),
        (rf"{n}\pi", "times pi"),
        (f"{n}{rng.choice(_LETTERS)}", "times a variable"),
        (f"{n}, {other}", "a list"),
        (rf"{other} \text{{ or }} {n}", "two answers"),
        (joined.format(" "), "digits apart"),
        (joined.format(r"\cdot "), "a product of its digits"),
        (joined.format("_"), "a base"),
        (joined.format("*"), "a product of its digits"),
        (joined.format(","), "digits apart"),
        (rf"\text{{not }}{n}", "negated in text"),
        (rf"\neq {n}", "an inequality"),
        (rf"x > {n}", "an inequality"),
        (rf"\pm {n}", "two signs"),
        (f"{n}^2", "squared"),
        (f"{n % 1000}!", "a factorial"),
        (rf"{n}\frac{{1}}{{2}}", "a mixed number"),
        (rf"[{n}, {other}]", "an interval"),
        (rf"\sqrt{{{n}}}", "under a root"),
    ]
    right_text = ((text, "itself"), (f"{n:,}", "thousands separated by commas"), (f"{n} {unit}", "a unit in words"))
    wrong_text = (
        (str(other), "another number"),
        (f"-{n}", "another sign"),
        (f"{n} {scale}", "multiplied by a word"),
        (f"{other} or {n}", "two answers"),
        (f"{n} or {other}", "two answers"),
        (joined.format(" "), "digits apart"),
        (joined.format("*"), "a product of its digits"),
        (joined.format("_"), "a base"),
        (f"not {n}", "negated"),
        (f"less than {n}", "a bound"),
        (f"at least {n}", "a bound"),
        (f"{n} squared", "squared"),
        (f"half of {n}", "a part"),
        (f"{n}/{rng.randint(2, 9)}", "a quotient"),
        (f"between {n} and {other}", "a range"),
    )
    return Case(answer=text, right=right, wrong=wrong, right_text=right_text, wrong_text=wrong_text)


def _fraction(rng: Random) -> Case:
    bottom = rng.choice([3, 4, 5, 6, 7, 8, 9, 11, 12, 20])
    value = Fraction(rng.randint(1, 6 * bottom), bottom)
    while value.denominator == 1:
        value += Fraction(1, bottom)
    top, bottom, k = value.numerator, value.denominator, rng.randint(2, 5)
    gold = rng.choice([rf"\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", rf"\dfrac{{{top}}}{{{bottom}}}"])
    right = [
        (rf"\frac{{{top}}}{{{bottom}}}", "a fraction"),
        (rf"\dfrac{{{top}}}{{{bottom}}}", "a displayed fraction"),
        (f"{top}/{bottom}", "a slash"),
        (rf"\frac{{{k * top}}}{{{k * bottom}}}", "an unreduced fraction"),
        (rf"\left(\frac{{{top}}}{{{bottom}}}\right)", "in parentheses"),
        (rf"P = \frac{{{top}}}{{{bottom}}}", "assigned to a variable"),
        (rf"\frac{{{top}}}{{{bottom}}}\text{{ of a cup}}", "a unit in text"),
        (rf"{{{top} \over {bottom}}}", "the command over"),
    ]
    if top > bottom:
        right.append((rf"{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}", "a mixed number"))
    if (value * 10**4).denominator == 1:
        right += [(f"{float(value):.4f}".rstrip("0"), "a decimal"), (rf"{float(100 * value):g}\%", "a percentage")]
    wrong = [
        (rf"\frac{{{bottom}}}{{{top}}}" if top != bottom else "0", "turned over"),
        (f"{top}{bottom}", "digits joined"),
        (rf"\frac{{{top}}}{{{bottom}}}\%", "a percentage"),
        (rf"\frac{{{top + 1}}}{{{bottom}}}", "another number"),
        (rf"-\frac{{{top}}}{{{bottom}}}", "another sign"),
        (rf"\frac{{{top}}}{{{bottom}}} x", "times a variable"),
        (rf"\frac{{{top}}}{{{bottom}}}\text{{ {rng.choice(_SCALES)}}}", "multiplied by a word"),
        (rf"\frac{{{top}}}{{{bottom}}}, \frac{{1}}{{{bottom + 1}}}", "a list"),
        (f"({top}, {bottom})", "a pair"),
        (f"{top}.{bottom}", "a decimal of its digits"),
        (f"{top}", "its numerator"),
        (rf"\frac{{{top}}}{{{bottom}}}\mathrm{{i}}", "imaginary"),
    ]
    right_text = ((f"{top}/{bottom}", "a slash"), (f"{k * top}/{k * bottom}", "an unreduced fraction"))
    wrong_text = (
        (f"{top}/{bottom + 1}", "another number"),
        (f"{top}/{bottom}%", "a percentage"),
        (f"-{top}/{bottom}", "another sign"),
    )
    return Case(answer=gold, right=right, wrong=wrong, right_text=right_text, wrong_text=wrong_text)


def _root(rng: Random) -> Case:
    a, b = rng.randint(2, 19), rng.choice([2, 3, 5, 6, 7, 10, 11, 13])
    right = [
        (rf"{a}\sqrt{{{b}}}", "itself"),
        (rf"\sqrt{{{a * a * b}}}", "under the root"),
        (rf"{a} \cdot \sqrt{{{b}}}", "with a dot"),
        (rf"\sqrt{{{b}}} \cdot {a}", "factors turned"),
        (rf"{a}\sqrt{{{b}}}\text{{ {rng.choice(_UNITS)}}}", "a unit in text"),
        (rf"x = {a}\sqrt{{{b}}}", "assigned to a variable"),
        (rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}", "root in the denominator"),
        (rf"\displaystyle {a}\sqrt{{{b}}}", "display style"),
    ]
    wrong = [
        (rf"{a}\sqrt{{{b + 1}}}", "another number"),
        (rf"{a + 1}\sqrt{{{b}}}", "another number"),
        (rf"-{a}\sqrt{{{b}}}", "another sign"),
        (f"{a}{b}", "digits joined"),
        (rf"{a} + \sqrt{{{b}}}", "a sum"),
        (rf"{a}\sqrt[3]{{{b}}}", "another root"),
        (rf"{a}\sqrt{{{b}}}\mathrm{{i}}", "imaginary"),
        (rf"{a}\sqrt{{{b}}}, {a}", "a list"),
        (rf"\pm {a}\sqrt{{{b}}}", "two signs"),
        (rf"{a}\sqrt{{{b}}}\text{{ {rng.choice(_SCALES)}}}", "multiplied by a word"),
        (f"{a * b**0.5:.2f}", "rounded"),
    ]
    return Case(answer=rf"{a}\sqrt{{{b}}}", right=right, wrong=wrong)


def _polynomial(rng: Random) -> Case:
    v, a, b = rng.choice("xkntz"), rng.randint(2, 19), rng.randint(1, 29)
    right = [
        (f"{a}{v} + {b}", "itself"),
        (f"{b} + {a}{v}", "terms turned"),
        (f"{a}{v}+{b}", "without spaces"),
        (rf"f({v}) = {a}{v} + {b}", "as a function"),
        (rf"{a} \cdot {v} + {b}", "with a dot"),
        (rf"{a}({v} + \frac{{{b}}}{{{a}}})", "factored"),
    ]
    wrong = [
        (f"{a}{v} - {b}", "another sign"),
        (f"{a + 1}{v} + {b}", "another number"),
        (f"{a}{v}", "a term is missing"),
        (f"{a}w + {b}", "another variable"),
        (f"{a}{v} + {b}, {b}", "a list"),
        (f"{a}{v}^2 + {b}", "another power"),
        (f"{a + b}", "without its variable"),
        (f"{a}{v} = {b}", "an equation"),
    ]
    right_text = ((f"{a}{v} + {b}", "itself"), (f"{a}{v}+{b}", "without spaces"), (f"{b} + {a}{v}", "terms turned"))
    wrong_text = ((f"{a}{v} - {b}", "another sign"), (f"{a}{v}", "a term is missing"), (f"{b}", "a term is missing"))
    return Case(answer=f"{a}{v}+{b}", right=right, wrong=wrong, right_text=right_text, wrong_text=wrong_text)


def _list(rng: Random) -> Case:
    a, b = rng.sample([n for n in range(-29, 30) if n], 2)
    right = [
        (f"{a}, {b}", "itself"),
        (f"{b},{a}", "another order"),
        (rf"{a} \text{{ and }} {b}", "joined by and"),
        (rf"x = {a} \text{{ or }} x = {b}", "two equations"),
        (rf"\{{{a}, {b}\}}", "a set"),
        (rf"x = {a}, {b}", "assigned to a variable"),
        (rf"x \in \{{{b}, {a}\}}", "a member of a set"),
    ]
    wrong = [
        (f"{a}", "only one"),
        (f"{b}", "only one"),
        (f"{a}, {b + 1}", "another number"),
        (f"{a}, {b}, {max(a, b) + 1}", "one too many"),
        (f"{a}{abs(b)}", "digits joined"),
        (f"{-a}, {b}" if -a != b else f"{a}, {b + 2}", "another sign"),
    ]
    right_text = ((f"{a} and {b}", "joined by and"), (f"{a}, {b}", "itself"), (f"{b} and {a}", "another order"))
    wrong_text = ((f"{a}", "only one"), (f"{a} and {b + 1}", "another number"))
    return Case(answer=f"{a}, {b}", right=right, wrong=wrong, right_text=right_text, wrong_text=wrong_text)


def _pair(rng: Random) -> Case:
    a, b = rng.sample(range(-19, 20), 2)
    right = [
        (f"({a}, {b})", "itself"),
        (rf"\left({a},{b}\right)", "sized brackets"),
        (rf"(x, y) = ({a}, {b})", "assigned to variables"),
        (f"({a}.0, {b})", "a zero after the point"),
    ]
    wrong = [
        (f"({b}, {a})", "another order"),
        (f"({a}, {b + 1})", "another number"),
        (f"{a}", "only one"),
        (f"({a}, {b}, 0)", "one too many"),
        (f"[{a}, {b}]", "other brackets"),
        (f"{a}{abs(b)}", "digits joined"),
    ]
    return Case(answer=f"({a}, {b})", right=right, wrong=wrong)


def _interval(rng: Random) -> Case:
    a = rng.randint(-19, 9)
    b = a + rng.randint(1, 19)
    right = [
        (f"[{a}, {b})", "itself"),
        (rf"\left[{a}, {b}\right)", "sized brackets"),
        (rf"x \in [{a},{b})", "a member of it"),
        (rf"{a} \le x < {b}", "an inequality"),
    ]
    wrong = [
        (f"({a}, {b})", "an open end"),
        (f"[{a}, {b}]", "a closed end"),
        (f"[{a}, {b + 1})", "another number"),
        (rf"{a} < x < {b}", "an inequality"),
        (f"{a}, {b}", "a list"),
        (f"{b - a}", "its length"),
    ]
    return Case(answer=f"[{a}, {b})", right=right, wrong=wrong)


def _with_unit(rng: Random) -> Case:
    n = rng.randint(2, 999)
    short, long, other = rng.choice([("cm", "centimeters", "m"), ("in", "inches", "ft"), ("km", "kilometers", "miles")])
    gold = rng.choice([rf"{n} \mbox{{ {long}}}^2", rf"{n}\text{{ {short}}}^2", rf"{n}\text{{ square {long}}}"])
    right = [
        (f"{n}", "without its unit"),
        (rf"{n}\text{{ {short}}}^2", "a short unit"),
        (rf"{n}\ \text{{{long}}}^2", "a long unit"),
        (rf"{n}~\mathrm{{{short}}}^{{2}}", "an upright unit"),
        (rf"{n}\text{{ square {long}}}", "a unit in words"),
    ]
    wrong = [
        (f"{n}2", "digits joined"),
        (f"{n}^2", "squared"),
        (rf"{n}\text{{ {other}}}^2", "another unit"),
        (f"{n + 1}", "another number"),
        (rf"{n}\text{{ thousand {long}}}^2", "multiplied by a word"),
    ]
    return Case(answer=gold, right=right, wrong=wrong)


def _based(rng: Random) -> Case:
    base = rng.choice([3, 5, 6, 7, 8, 9])
    digits = "".join(str(rng.randrange(1, base)) for _ in range(rng.randint(2, 5)))
    right = [
        (f"{digits}_{base}", "itself"),
        (f"{digits}_{{{base}}}", "braces"),
        (f"({digits})_{{{base}}}", "parentheses"),
    ]
    wrong = [
        (f"{digits}{base}", "digits joined"),
        (f"{digits}_{{{base + 1}}}", "another base"),
        (f"{digits}1_{base}", "another number"),
        (f"{digits}, {base}", "a list"),
    ]
    return Case(answer=f"{digits}_{base}", right=right, wrong=wrong)


def _logarithm(rng: Random) -> Case:
    a, b = rng.sample([2, 3, 5, 6, 7, 10, 11, 13, 17], 2)
    right = [
        (rf"\log_{{{a}}} {b}", "itself"),
        (rf"\log_{{{a}}}({b})", "parentheses"),
        (rf"\frac{{\ln {b}}}{{\ln {a}}}", "natural logarithms"),
    ]
    wrong = [
        (rf"\log_{{{b}}} {a}", "turned"),
        (rf"\log_{{{a}}} {b + 1}", "another number"),
        (f"{a}.{b}", "digits joined"),
        (rf"-\log_{{{a}}} {b}", "another sign"),
    ]
    return Case(answer=rf"\log_{{{a}}} {b}", right=right, wrong=wrong)


FAMILIES: tuple[Callable[[Random], Case], ...] = (
    *(_integer, _integer, _integer, _integer, _fraction, _fraction, _root, _polynomial),
    *(_list, _pair, _interval, _with_unit, _based, _logarithm),
)
"""Kinds of answers; those that tasks have most often are drawn more often."""
