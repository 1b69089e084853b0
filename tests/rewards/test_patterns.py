"""Linear-time matching says what `re` says, and is quick where `re` is not."""

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.errors import ConfigError
from roll.rewards.patterns import matches

pytestmark = pytest.mark.slow

ATOMS = ["a", "b", "_", r"\d", r"\w", r"\s", ".", "[ab]", "[^a\n]", r"[]b-]", r"\n", " ", "é", r"\x61", r"\."]
PLACES = ["^", "$", r"\b", r"\B", r"\A", r"\Z"]
REPEATS = ["*", "+", "?", "{2}", "{0,2}", "{1,}", "{,2}", "*?", "+?", "??", "{0}"]


def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(REPEATS)).map(lambda two: f"({two[0]}){two[1]}"),
        st.tuples(st.sampled_from(["i", "m", "s", "ms"]), inner).map(lambda two: f"(?{two[0]}:{two[1]})"),
    )


PATTERNS = st.recursive(st.sampled_from(ATOMS + PLACES), wider, max_leaves=6)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(PATTERNS, st.text("ab_ 1A\né-", max_size=8), st.sampled_from(["", "(?i)", "(?m)", "(?sm)"]))
def test_it_agrees_with_re(pattern: str, text: str, flags: str):
    pattern = flags + pattern
    assert matches(pattern, text) == bool(re.search(pattern, text))
    assert matches(pattern, text, whole=True) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    "pattern", ["a{x}", "{", "a{", "}", "]", "x{,}", r"[\]a]", r"\u0041", r"\N{DIGIT ONE}", "(?P<n>a)b", "a|", "(|a)b"]
)
@pytest.mark.parametrize("text", ["", "a{x}", "{", "}", "]", "xx", "A1", "ab", "a{"])
def test_it_agrees_with_re_about_odd_spellings(pattern: str, text: str):
    assert matches(pattern, text) == bool(re.search(pattern, text))
    assert matches(pattern, text, whole=True) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("text", ["", "\n", "a\n", "a\n\n", "\na", "a"])
@pytest.mark.parametrize("pattern", ["a$", "^$", "(?m)^$", r"a\Z", "(?m)a$", r"\n$", r"^\n?$", r"(?m)\n^"])
def test_a_final_newline_matches_as_in_re(pattern: str, text: str):
    assert matches(pattern, text) == bool(re.search(pattern, text))


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 10**6 + "b"),
        ("(a|a)*b", "a" * 10**6),
        ("(?:a?){99}a{99}$", "a" * 10**5 + "b"),
        (".*.*.*.*x", "a" * 10**6),
        (r"<think>.*</think>\s*<answer>.*</answer>", "<think>" * 100_000),
        ("a.{500}c", "".join(random.Random(0).choices("ab", k=100_000))),  # nearly every step is a new one
        ("a.{250}c*a.{0,250}c", "".join(random.Random(0).choices("ab", k=50_000))),
        (r"\b\w+\d$", "".join(map(chr, range(0x10000, 0x40000)))),
    ],
    ids=lambda value: value[:40],
)
def test_patterns_that_are_exponential_for_re_are_fast(pattern: str, text: str):
    start = time.thread_time()
    assert not matches(pattern, text)
    assert time.thread_time() - start < 40.0  # it takes at most a second


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "Python cannot read it"),
        (r"(a)\1", "a backreference"),
        ("(?=a)", r"the group '\(\?=a'"),
        ("(?<!a)b", "the group"),
        ("a*+", "possessive"),
        ("(?>a)", "the group"),
        ("((a{100}){100}){100}", "too large"),
        ("(?:){99999999}", "too large"),
        ("(" * 45 + ")" * 45, "deep"),
        ("(" * 5000 + ")" * 5000, "Python cannot read it|deep"),
    ],
)
def test_patterns_without_linear_time_are_refused(pattern: str, why: str):
    with pytest.raises(ConfigError, match=why):
        matches(pattern, "a")
