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
from roll.tools.retrieval import BM25Index, Retrieval, _load_corpus, split_words

TEXTS = ["the cat sat", "the cat and the dog", "A bird!"]


def test_a_score_is_the_formula_worked_by_hand() -> None:
    # 3 texts of 3, 5 and 2 words, 10/3 on average. `cat` is in two of them: idf = ln(1 + 1.5/2.5) = ln 1.6.
    # In text 0: 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 3 / (10/3))) = 2.2 / (1 + 1.2 * 0.925) = 2.2 / 2.11
    # In text 1: 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 5 / (10/3))) = 2.2 / (1 + 1.2 * 1.375) = 2.2 / 2.65
    # `dog` is in one: idf = ln(1 + 2.5/1.5); `the` is in text 1 twice: 2 * 2.2 / (2 + 1.65).
    index = BM25Index(map(split_words, TEXTS))
    cat = math.log(1.6)
    assert index.scores(["cat"]) == pytest.approx([cat * 2.2 / 2.11, cat * 2.2 / 2.65, 0])
    dog = math.log(1 + 2.5 / 1.5) * 2.2 / 2.65
    assert index.scores(["dog", "cat"]) == pytest.approx([cat * 2.2 / 2.11, cat * 2.2 / 2.65 + dog, 0])
    assert index.scores(["the"])[1] == pytest.approx(cat * 4.4 / 3.65)
    assert index.scores(["the", "the"]) == pytest.approx(2 * index.scores(["the"]))
    assert index.scores(["unicorn"]).tolist() == [0, 0, 0]


def test_the_best_come_first_and_equal_ones_in_their_order() -> None:
    index = BM25Index([["b"], ["a", "b"], ["a"], ["c"], ["a"], ["a"]])
    assert index.search(["a"], 10) == [2, 4, 5, 1]
    assert index.search(["a"], 2) == [2, 4] and index.search(["c"], 1) == [3] and index.search(["z"], 5) == []
    assert BM25Index([]).search(["a"], 5) == [] and BM25Index([[]]).search(["a"], 5) == []


@pytest.mark.slow
def test_it_finds_the_same_documents_as_a_linear_search() -> None:
    draws = random.Random(0)
    documents = [draws.choices("abcdefghij", k=draws.randint(1, 30)) for _ in range(300)]
    index, mean = BM25Index(documents), sum(map(len, documents)) / 300

    def score(document: list[str], query: str) -> float:
        total = 0.0
        for term in query:
            df, n = sum(term in other for other in documents), document.count(term)
            idf = math.log(1 + (300 - df + 0.5) / (df + 0.5))
            total += idf * n * 2.2 / (n + 1.2 * (0.25 + 0.75 * len(document) / mean))
        return total

    for query in ("a", "bc", "jad", "aab"):
        scores = np.array([score(document, query) for document in documents])
        assert index.scores(query) == pytest.approx(scores, rel=1e-12)
        assert index.search(query, 20) == np.argsort(-index.scores(query), kind="stable")[:20].tolist()


def test_words_are_letters_and_digits_in_lower_case() -> None:
    assert split_words("Été 42x, it's_ok") == ["été", "42x", "it", "s", "ok"]


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
    assert made[0]._corpus is made[1]._corpus and _load_corpus(path, "text", "title") is made[0]._corpus


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (({"text": "a"}, {"body": "b"}), ":2: no text in 'text'; name the field with `text`, or fix the line"),
        ((), ": no documents"),
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
