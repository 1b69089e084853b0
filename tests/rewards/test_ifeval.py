"""Instruction following: each kind kept and just missed, strict and loose, and responses that mean harm."""
# ruff: noqa: RUF001

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.data.tasks import jsonl
from roll.errors import ConfigError
from roll.rewards.ifeval.reward import KINDS, check_instructions, count_sentences, parse_instructions, score
from roll.types import Score, Task

pytestmark = pytest.mark.slow

MULTILINGUAL = (
    "Grüße! नमस्ते दुनिया। 今日は。元気です。 مرحبا، كيف حالك؟ Привет, мир. 안녕하세요. P.S. [x] *y*\n\n* a\n***\n- b"
)


def asking(*wanted: tuple[str, dict[str, Any]]) -> Task:
    names, parameters = [name for name, _ in wanted], [given for _, given in wanted]
    return Task(id="t", domain="ifeval", metadata={"instruction_id_list": names, "kwargs": parameters})


CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "keywords:existence",
        {"keywords": ["Forest", "riddle"]},
        ["a RIDDLE of the forests"],
        ["a riddle of the fores t", "forest"],
    ),
    (
        "keywords:frequency",
        {"keyword": "war", "frequency": 3, "relation": "at least"},
        ["War, war, war.", "war wars WAR war"],
        ["War and war", "peace"],
    ),
    (
        "keywords:frequency",
        {"keyword": "war", "frequency": 2, "relation": "less than"},
        ["one war", "peace"],
        ["war and War"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["free", "c++"]},
        ["freedom and carefree", "we write c"],
        ["It is FREE.", "free-range", "we like C++!"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "q", "let_frequency": 2, "let_relation": "at least"},
        ["Quick queen", "qQ"],
        ["quick", "one"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": "less than"},
        ["# one", "none"],
        ["## two"],
    ),
    (
        "language:response_language",
        {"language": "de"},
        ["Das ist eine kurze Antwort, und sie ist nicht lang."],
        [
            "This is a short response and it is not long.",
            "Dit is een kort antwoord en het is niet lang.",
            "12!",
            "xyzzy",
        ],
    ),
    (
        "language:response_language",
        {"language": "mr"},
        ["हे एक लहान उत्तर आहे आणि ते बरोबर आहे."],
        ["यह एक छोटा उत्तर है और यह सही है।"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        ["One. Two! Three?", "one. two. three"],
        ["One. Two!", "Mr. Fox met Dr. Owl. They ate 3.5 mice."],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "less than"},
        ["Only one.", "One... and no more", "Eggs, milk, etc. are here, e.g. in the U.S. as well."],
        ["One. Two."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["one\n***\ntwo", "one\n\nstill one\n\n***\n\ntwo", "***\none\n***\ntwo\n***"],
        ["one", "one\n\ntwo", "one\n***\ntwo\n***\nthree", "one\n***\n\n***\ntwo"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": "at least"},
        ["one two three four", "one-two three, 4!"],
        ["one two three", "one two three - !"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": "less than"},
        ["one two three"],
        ["one two three four"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "president"},
        ["One.\n\nPresident Fox spoke.", 'One\nstill one.\n \n"President," he said.', "One.\n\n\n\nPRESIDENT!"],
        [
            "One.\nPresident Fox spoke.",
            "One.\n\nThe President spoke.",
            "President.\n\nTwo.",
            "One.\n\nPresident\n\nThree.",
            "One.\n\nPresidents spoke.",
            "One.\n\n!",
        ],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] of [address]", "[[a] [b]]"],
        ["[name] of", "[name] [ ]", "[name] [] [open", "[name] ]x["],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. I came back.", "Bye. p. s. again", "**P.S.** yes"],
        ["Bye.", "Bye.\nP.S.", "Bye.\nPS I came back", "P.S I came back", "Bye.\nP.P.S. more", "stop.s. x"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["Bye.\nP.P.S. more", "p.p.s more", "P. P. S: more"],
        ["Bye.\nP.S. more", "P.P.S", "P.P.Sure more"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* one\n* two", "List:\n - one\n\t* two\nend", '"* one\n* two"', "*Note*: two\n* one\n- two\n---\n**bold** x"],
        ["* one", "* one\n* two\n* three", "1. one\n2. two", "*one\n*two", "* one\n* "],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "I thought about it. My answer is maybe. Ask again."],
        ["My answer is yes", "my answer is no.", "Yes.", "My answer is yes. My answer is no. My answer is maybe."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*one* and *two*", "**one** and *two*", "* a list with **one** and **two**"],
        ["*one* and two", "**one**", "***one***", "*one* ** **", "*one\n*two\n*", "* one\n* two"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\nx\nSECTION 2\ny", "SECTION1 x SECTION2 y SECTION 10"],
        ["SECTION 1\nx", "Section 1\nSection 2", "SECTION 1 SECTION X"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": [1, 2.5, null]}', '```json\n{"a": 1}\n```', "```\n[1]\n```", "```JSON\n{}```", f"[{'9' * 5000}]"],
        ['Here: {"a": 1}', "{'a': 1}", '{"a": 1', "5", '"text"', "[NaN]", '{"a": 1} {}'],
    ),
    (
        "detectable_format:title",
        {},
        ["<<poem of joy>>\nla la", "Title: <<a < b>>"],
        ["<poem of joy>", "<<>>", "<< >>", "<<poem\nof joy>>", ">>joy<<"],
    ),
    (
        "combination:two_responses",
        {},
        ["one\n******\ntwo", "******\none ****** two"],
        ["one\n*****\ntwo", "one", "one ****** one", "a ****** b ****** c", "a ****** ****** b"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a poem about rain."},
        ["Write a poem about rain.\n\nDrip.", " write a Poem about rain. Drip"],
        ["Drip. Write a poem about rain.", "Write a poem about rain", "Write a poem about snow."],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Is that all?"},
        ["Yes. Is that all?", '"Yes. is that ALL?" \n'],
        ["Is that all? Yes.", "Yes. Is that all", "Is that all??"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["NASA and the WELL-KNOWN ESA", "I WILL", "it's NOT DON'T"],
        ["NASA and Esa", "all small 12 34", "WELL-known WORLD"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": "less than"},
        ["Nothing Loud here"],
        ["one LOUD word"],
    ),
    (
        "change_case:english_capital",
        {},
        ["THE CAT IS HERE, AND 3 DOGS TOO!", "HELLO WORLD"],
        ["THE CAT IS HERe", "DER HUND IST HIER UND DAS IST GUT", "123", "КОТ ЗДЕСЬ"],
    ),
    (
        "change_case:english_lowercase",
        {},
        ["the cat is here, and 3 dogs too!", "hello world"],
        ["The cat is here", "der hund ist hier und das ist gut", "123", "кот здесь"],
    ),
    ("punctuation:no_comma", {}, ["No such thing; here.", "ok"], ["Well, here", "1,000"]),
    (
        "startend:quotation",
        {},
        ['"All of it."', ' "a "b" c"\n'],
        ['"All of it.', 'All of it."', '"', '""', '"a" b', "'a'", "“a”"],
    ),
]


def test_all_25_kinds_have_cases():
    assert {name for name, *_ in CASES} == KINDS.keys()
    assert len(KINDS) == 25


@pytest.mark.parametrize(("name", "parameters", "kept", "missed"), CASES)
def test_responses_that_follow_count_and_near_misses_do_not(
    name: str, parameters: dict[str, Any], kept: list[str], missed: list[str]
):
    task = asking((name, parameters))
    assert [response for response in kept if score(task, response).value != 1.0] == []
    assert [response for response in missed if score(task, response).value != 0.0] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("***", 0),
        ("no full stop", 1),
        ("A title\n\nOne. Two", 2),
        ('He said "Stop!" She stopped.', 2),
        ("(It rained.) **It poured.**", 2),
        ("1. Wash. 2. Rinse.\n3. Repeat.", 3),
        ("Version 3.5 costs $1.50 at example.com today.", 1),
        ("J. R. Tolkien and Mrs. Smith. So do I. Then we left at 5 p.m. We ate.", 4),
        ("Is it no. 5? My answer is no. Go.", 4),  # an abbreviation that is a word as well counts as the word
        ("Wait... what? Oh… I see.", 3),
        ("P.S. I love you.", 1),
        ("What?! Really?? Yes.", 3),
        ("今日は。元気です！はい。", 3),
        ("यह एक है। यह दो है।", 2),
    ],
)
def test_sentences_are_counted_as_a_reader_would(text: str, count: int):
    assert count_sentences(text) == count


def test_all_instructions_must_be_followed_unless_part_of_them_pays():
    task = asking(("punctuation:no_comma", {}), ("startend:quotation", {}), ("detectable_format:title", {}))
    assert score(task, '"<<Ode>> to joy"') == Score(1.0, {"followed": 1.0})
    assert score(task, '"Ode to joy"') == Score(0.0, {"followed": 2 / 3})
    assert score(task, '"Ode to joy"', partial=True) == Score(2 / 3, {"followed": 2 / 3})
    assert check_instructions(task, '"Ode, to joy"') == [False, True, False]


def test_loose_forgives_an_opening_line_a_closing_line_and_asterisks():
    quoted = asking(("startend:quotation", {}))
    for response in ('Sure:\n"a"', '"a"\nBye', 'Sure:\n"a"\nBye', '**"a"**', 'Sure:\n*"a"*\nBye'):
        assert score(quoted, response).value == 0.0
        assert score(quoted, response, loose=True).value == 1.0
    for response in ('Sure:\nwell:\n"a"', '"a"\nBye\nBye', 'Sure: "a"', ""):
        assert score(quoted, response, loose=True).value == 0.0


def test_loose_lets_each_instruction_have_its_own_reading():
    task = asking(("startend:quotation", {}), ("detectable_format:number_highlighted_sections", {"num_highlights": 1}))
    assert check_instructions(task, 'Here it *is*:\n"a"') == [False, True]
    assert score(task, 'Here it *is*:\n"a"', loose=True).value == 1.0


@pytest.mark.parametrize("loose", [False, True])
def test_an_empty_response_follows_nothing(loose: bool):
    task = asking(("punctuation:no_comma", {}), ("keywords:forbidden_words", {"forbidden_words": ["x"]}))
    for response in (
        "",
        " \n\t ",
        "\u200b\ufeff\u2060",
        "\u3164 \u2800",
        "<think>still, thinking",
        "<think>done</think>  ",
    ):
        assert score(task, response, loose=loose) == Score(0.0, {"followed": 0.0})


def test_thinking_is_ignored():
    task = asking(("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["rain"]}))
    assert score(task, "<think>rain, or snow?</think>\nIt will rain.").value == 1.0
    assert score(task, "<think>rain</think>\nIt will snow.").value == 0.0
    assert score(task, "<think>so</think>\nThe tag <think> says it may rain.").value == 1.0


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({}, r"task 't': no instructions \(got None\); list them"),
        ({"instruction_id_list": [], "kwargs": []}, "no instructions"),
        ({"instruction_id_list": ["punctuation:no_comma"]}, "not one entry per instruction"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}, {}]}, "not one entry per instruction"),
        ({"instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]}, "did you mean 'punctuation:no_comma'"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": ["x"]}, "parameters are not an object"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"x": 1}]}, r"unknown parameter \(got 'x'\)"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}]}, r"bad 'keywords' \(got None\)"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": "ab"}]}, "it must be a list of words"),
        (
            {
                "instruction_id_list": ["length_constraints:number_words"],
                "kwargs": [{"num_words": 3, "relation": "about"}],
            },
            "bad 'relation' .*'at least' or 'less than'",
        ),
        ({"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "tlh"}]}, "one of ar bg"),
    ],
)
def test_a_task_that_cannot_be_checked_is_refused(metadata: dict[str, Any], complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        score(Task(id="t", domain="ifeval", metadata=metadata), "anything")


def test_parameters_that_are_null_are_as_good_as_absent():
    assert score(asking(("punctuation:no_comma", {"num_words": None, "letter": None})), "fine").value == 1.0


BOMBS = {
    "empty": "",
    "dots": "." * 1_000_000,
    "sentences": "p. " * 330_000,
    "brackets": "[" * 1_000_000,
    "angles": "<<" * 500_000,
    "asterisks": "*" * 999_999 + "a",
    "newlines": "\n " * 500_000 + "x",
    "spaces": "x" + " " * 1_000_000 + "x",
    "quotes": '."' * 500_000,
    "nested": '{"a":' * 200_000,
    "initials": "P.P." * 250_000,
    "thoughts": "<think>" * 100_000 + "</think" * 100_000,
    "controls": "".join(map(chr, range(32))) * 3_000,
    "surrogates": "\ud800\udfff\udc00" * 100_000,
    "accents": "a\u0301\u0316" * 300_000,
    "languages": MULTILINGUAL * 1_000,
}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("bomb", BOMBS)
def test_no_response_is_expensive(bomb: str):
    every = asking(*{name: (name, parameters) for name, parameters, *_ in CASES}.values())
    start = time.thread_time()
    found = score(every, BOMBS[bomb], loose=False, partial=True)
    assert time.thread_time() - start < 40.0  # 25 checks; linear takes about one second, quadratic hours
    assert 0.0 <= found.value <= 1.0


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.text(st.characters() | st.sampled_from('*-.!?"[]<>{}\n ,PSaA1'), max_size=120))
def test_loose_is_never_harsher_than_strict(response: str):
    every = asking(*((name, parameters) for name, parameters, *_ in CASES))
    strict, loose = check_instructions(every, response), check_instructions(every, response, loose=True)
    assert all(not kept or kept_loosely for kept, kept_loosely in zip(strict, loose, strict=True))
    assert score(every, response, partial=True).value == sum(strict) / len(CASES)


@pytest.mark.sweep
@pytest.mark.skipif(not os.environ.get("ROLL_DATA"), reason="ROLL_DATA names no folder with data")
def test_all_541_prompts_take_any_response():
    files = sorted((Path(os.environ["ROLL_DATA"]) / "ifeval").glob("*.jsonl"))
    tasks = [task for file in files for task in jsonl(str(file))]
    assert len(tasks) == 541
    assert {name for task in tasks for name in task.metadata["instruction_id_list"]} == KINDS.keys()
    chance = random.Random(0)
    huge = "A huge response, with *some* [words] in it. " * 1_000 + MULTILINGUAL
    for task in tasks:
        noise = "".join(chr(chance.randrange(0x110000)) for _ in range(200))
        text = task.messages[0].content
        for response in ("", noise, MULTILINGUAL, text, text.upper(), huge):
            for loose in (False, True):
                assert 0.0 <= score(task, response, loose=loose, partial=True).value <= 1.0
        assert score(task, "", loose=True).value == 0.0
        assert len(parse_instructions(task)) == len(task.metadata["kwargs"])
