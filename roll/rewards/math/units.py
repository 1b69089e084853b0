"""Units after a number: which words may be dropped, which multiply the number, and which change the answer."""

from __future__ import annotations

import re

SCALES = {
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
"""Words that multiply the number before them."""

_CHANGES = """
    pi tau or and to mod modulo modulus over times plus minus infinity inf base factorial half halves third thirds tenth
    tenths hundredth hundredths thousandth thousandths hundreds thousands millions billions trillions dozens score gross
    lakh lakhs crore crores mille ppm basis percent percentage imaginary remainder rem binary octal hexadecimal decimal
    not no never nor neither less more than divided multiplied choose power out where if for when with but except least
    most about around negative else otherwise unless wrong incorrect false up down below above under between
    sin cos tan sec csc cot cis log ln exp sqrt root arcsin arccos arctan i e j x y z n k a b p q t mil
"""
CHANGES = frozenset(_CHANGES.split())
"""Words that make a number another answer: no unit has one of them."""
_FIRST_NEVER = frozenset({"squared", "cubed", "a", "an", "the", "text", "frac"})
"""Part of a unit only after another word: 5 inches squared, but not 5 squared."""

_ALIASES = {
    "cm": "centimeter centimeters centimetre centimetres",
    "mm": "millimeter millimeters millimetre millimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "g": "gram grams",
    "kg": "kilogram kilograms",
    "mg": "milligram milligrams",
    "lb": "lbs",
    "oz": "ounce ounces",
    "l": "L liter liters litre litres",
    "ml": "mL milliliter milliliters",
    "s": "sec secs second seconds",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "dollar": "dollars usd USD",
    "cent": "cents",
    "euro": "euros",
    "rad": "radian radians",
    "deg": "degree degrees",
    "mi/h": "mph",
    "km/h": "kmh kph kmph",
    "am": "AM",
    "pm": "PM",
}
KNOWN = {alias: unit for unit, aliases in _ALIASES.items() for alias in (unit, *aliases.split())}
"""Units by their spellings; two different ones are different answers."""
_ABBREVIATIONS = "N|J|W|V|A|C|F|Hz|kHz|MHz|Pa|kPa|kJ|kW|mol|cc|sq|cu|ha|pt|qt|gal"
_OTHERS = frozenset(_ABBREVIATIONS.split("|"))
"""Abbreviations that may be dropped."""
_AFTER = """
        % percent pi squared cubed or mod modulo base plus minus factorial halves thirds tenths hundredths thousandths
        hundreds thousands millions billions trillions dozens lakh lakhs crore crores score gross k m bn i
"""
VALUE_WORDS = frozenset([*SCALES, *map(str.lower, KNOWN), *_AFTER.split()]) - {"in", "am"}
"""Words after a number in prose that belong to its value."""
_WORDS = re.compile(r"(?<!\\)\b[A-Za-z]+")
_SMALL = frozenset({"of", "per", "a", "an", "the", "in", "at", "on", "each"})
"""Words within a unit: 3/4 of a cup."""
_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}


def read_unit(text: str) -> str | None:
    """The canonical unit of the text after a number, empty for an unknown one; None if the text is no unit."""
    text = re.sub(r"\b([ap])\.m\b\.?", r"\1m", text)
    words = [word for word in _WORDS.findall(text) if word[0].isalpha()]
    if not words or words[0] in _FIRST_NEVER or words[-1] in _SMALL - {"in"}:
        return None
    words = [words[0], *(word for word in words[1:] if word not in _SMALL)]
    if not all(map(_may_be_unit, words[1:] if words[0] in _SMALL else words)):
        return None
    names = [KNOWN[word] for word in words if word in KNOWN]
    rest = [
        word for word in words if word not in KNOWN and word not in _POWERS and word not in ("per", "units", "unit")
    ]
    if rest or not names:
        return ""
    power = "".join(re.findall(r"\^[^\d]{0,3}(\d)", text)[:1])
    powers = [_POWERS[word] for word in words if word in _POWERS] or ([f"^{power}"] if power else [])
    return "/".join(names) + "".join(powers)


def _may_be_unit(word: str) -> bool:
    if word in KNOWN or word in _OTHERS or word in _POWERS:
        return True
    return len(word) > 2 and word.lower() not in CHANGES and word.lower() not in SCALES
