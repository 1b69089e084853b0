"""BM25 by hand, and the tool over it."""

import asyncio
import gzip
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.tools.bm25 import Index, words
from roll.tools.retrieval import Retrieval, _corpus

TEXTS = ["the cat sat", "the cat and the dog", "A bird!"]


def test_a_score_is_the_formula_worked_by_hand() -> None:
    # 3 texts of 3, 5 and 2 words, 10/3 on average. `cat` is in two of them: idf = ln(1 + 1.5/2.5) = ln 1.6.
    # In text 0: 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 3 / (10/3))) = 2.2 / (1 + 1.2 * 0.925) = 2.2 / 2.11
    # In text 1: 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 5 / (10/3))) = 2.2 / (1 + 1.2 * 1.375) = 2.2 / 2.65
    # `dog` is in one: idf = ln(1 + 2.5/1.5); `the` is in text 1 twice: 2 * 2.2 / (2 + 1.65).
    index = Index(TEXTS)
    cat = math.log(1.6)
    assert index.scores("cat") == pytest.approx([cat * 2.2 / 2.11, cat * 2.2 / 2.65, 0])
    dog = math.log(1 + 2.5 / 1.5) * 2.2 / 2.65
    assert index.scores("Dog, cat") == pytest.approx([cat * 2.2 / 2.11, cat * 2.2 / 2.65 + dog, 0])
    assert index.scores("the")[1] == pytest.approx(cat * 4.4 / 3.65)
    assert index.scores("the the") == pytest.approx(2 * index.scores("the"))
    assert index.scores("unicorn").tolist() == [0, 0, 0]


def test_the_best_come_first_and_equal_ones_in_their_order() -> None:
    index = Index(["b", "a b", "a", "c", "a", "a"])
    assert index.search("a", 10) == [2, 4, 5, 1]
    assert index.search("a", 2) == [2, 4] and index.search("c", 1) == [3] and index.search("z", 5) == []


def test_it_finds_what_a_search_text_by_text_finds() -> None:
    draws = random.Random(0)
    texts = [" ".join(draws.choices("abcdefghij", k=draws.randint(1, 30))) for _ in range(300)]
    index, mean = Index(texts), sum(len(text.split()) for text in texts) / 300

    def score(text: str, query: str) -> float:
        parts, found = text.split(), 0.0
        for word in query.split():
            df = sum(word in other.split() for other in texts)
            n = parts.count(word)
            found += (
                math.log(1 + (300 - df + 0.5) / (df + 0.5)) * n * 2.2 / (n + 1.2 * (0.25 + 0.75 * len(parts) / mean))
            )
        return found

    for query in ("a", "b c", "j a d"):
        assert np.allclose(index.scores(query), [score(text, query) for text in texts])


def test_words_are_letters_and_digits_in_lower_case() -> None:
    assert words("Été 42x, it's_ok") == ["été", "42x", "it", "s", "ok"]


def corpus(path: Path, *rows: object) -> str:
    with gzip.open(path / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(json.dumps(row) for row in rows))
    return str(path / "corpus.jsonl.gz")


def test_the_tool_shows_titles_and_texts_and_cuts_long_ones(tmp_path: Path) -> None:
    path = corpus(
        tmp_path, {"title": "Owls", "text": "owls hunt " + "mice " * 50}, {"text": "cats hunt"}, {"text": "x"}
    )
    tool = Retrieval(path, num=2, most_chars=20)
    asked = [tool.call("search", {"query": query}) for query in ("hunt", "Owls", "zebra")]
    assert [asyncio.run(each) for each in asked] == [  # pyright: ignore[reportArgumentType]
        "[1] cats hunt\n\n[2] Owls\nowls hunt mice ...",
        "[1] Owls\nowls hunt mice ...",
        "nothing found",
    ]


def test_the_index_is_built_once_for_all_attempts(tmp_path: Path) -> None:
    path = corpus(tmp_path, {"text": "one"})
    made = [Retrieval(path), Retrieval(path, num=5)]
    assert made[0]._found is made[1]._found and _corpus(path, "text", "title") is made[0]._found


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (({"text": "a"}, {"body": "b"}), ":2: no text in 'text'; name the field with `text`, or mend the line"),
        ((), ": no texts in it"),
        ((3,), ":1: no text in 'text'"),
    ],
)
def test_a_corpus_that_cannot_be_used_says_where(tmp_path: Path, rows: tuple[object, ...], says: str) -> None:
    path = corpus(tmp_path, *rows)
    with pytest.raises(ConfigError) as caught:
        Retrieval(path)
    assert str(caught.value).startswith(f"{path}{says}")
    with pytest.raises(ConfigError, match="no such file"):
        Retrieval(str(tmp_path / "none.jsonl"))
