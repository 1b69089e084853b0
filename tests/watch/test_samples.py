import random
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.errors import ConfigError
from roll.types import Score
from roll.watch.samples import SORTS, facets, list_samples, parse_filter, parse_order, reward_histogram
from tests.watch.runs import DEADLINE_S, RunWriter, attempt, column, turn, viewing


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 60 attempts, some of them with equal values and some without."""
    path = tmp_path_factory.mktemp("many") / "run"
    writer, dice = RunWriter(path), random.Random(1)
    for step in range(1, 7):
        groups = []
        for _ in range(5):
            reward, domain = dice.choice([0.0, 0.5, 1.0]), dice.choice(["math", "code"])
            texts = ["a" * dice.randint(1, 5), "b"]
            groups.append(
                writer.group(
                    *(
                        attempt(turn("q", text, version=step - 1), sibling=sibling, reward=reward, domain=domain)
                        for sibling, text in enumerate(texts)
                    )
                )
            )
        writer.step(step, *groups[:4])
    writer.close()
    return path


def page(rows: sqlite3.Connection, **query: str) -> dict[str, Any]:
    parameters = {name: [value] for name, value in query.items()}
    return list_samples(rows, parse_filter(parameters), parse_order(parameters))


def pages(rows: sqlite3.Connection, **query: str) -> list[dict[str, Any]]:
    """The rows of all pages."""
    answer = page(rows, limit="7", **query)
    result = answer["rows"]
    while answer["next"]:
        answer = page(rows, limit="7", cursor=answer["next"], **query)
        result += answer["rows"]
    return result


@pytest.mark.parametrize("sort", [sign + name for name in SORTS for sign in ("", "-")])
def test_pages_in_any_order_show_every_attempt_once(run: Path, sort: str) -> None:
    with viewing(run) as view, view.indexed_rows(DEADLINE_S) as rows:
        shown = pages(rows, sort=sort)
    name, sign = sort.removeprefix("-"), -1 if sort.startswith("-") else 1
    assert len(shown) == 60 == len({row["id"] for row in shown})
    values = [row[name] for row in shown]
    known = [value for value in values if value is not None]
    assert values == [*known, *[None] * (60 - len(known))]
    assert known == sorted(known, key=lambda value: sign * value)


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ({"step": "2"}, lambda row: row["step"] == 2),
        ({"step": "2:3", "domain": "math"}, lambda row: row["step"] in (2, 3) and row["domain"] == "math"),
        ({"domain": "math,code"}, lambda row: True),
        ({"reward": "0.5:"}, lambda row: row["reward"] >= 0.5),
        ({"reward": ":0"}, lambda row: row["reward"] == 0),
        ({"tokens": "2:4", "outcome": "waiting"}, lambda row: 2 <= row["tokens"] <= 4 and row["step"] is None),
        ({"staleness": "0"}, lambda row: row["step"] is not None),
        ({"status": "truncated"}, lambda row: False),
        ({"version": "3"}, lambda row: row["versions"] == [3, 3]),
        ({"group": "11"}, lambda row: row["group"] == 11),
        ({"text": "AAA"}, lambda row: row["tokens"] >= 3),
        ({"text": "aaaa", "reward": "1", "sort": "tokens"}, lambda row: row["tokens"] >= 4 and row["reward"] == 1),
        ({"domain": "", "step": "", "text": ""}, lambda row: True),
    ],
)
def test_filters_show_the_attempts_that_match_and_count_them(run: Path, query: dict[str, str], matches: Any) -> None:
    with viewing(run) as view, view.indexed_rows(DEADLINE_S) as rows:
        everything, shown, total = pages(rows), pages(rows, **query), page(rows, **query)["total"]
    expected = {row["id"] for row in everything if matches(row)}
    assert {row["id"] for row in shown} == expected and total == len(expected) == len(shown)


def test_facets_offer_what_the_attempts_have(run: Path) -> None:
    with viewing(run) as view, view.indexed_rows(DEADLINE_S) as rows:
        offered = facets(rows)
    assert offered["total"] == sum(offered["domains"].values()) == 60
    assert offered["steps"] == [1, 6] and offered["reward"] == [0.0, 1.0] and offered["outcomes"]["trained"] == 48


@pytest.mark.parametrize(
    "query",
    [
        *(
            {"step": "two"},
            {"step": "1:x"},
            {"reward": "nan"},
            {"reward": "1e999"},
            {"group": "1.5"},
            {"group": "9" * 40},
        ),
        *({"sort": "task; DROP TABLE samples"}, {"limit": "0"}, {"limit": "501"}, {"cursor": "x"}, {"cursor": "W10="}),
    ],
)
def test_parameters_that_are_not_understood_are_refused_in_one_line(query: dict[str, str]) -> None:
    parameters = {name: [value] for name, value in query.items()}
    with pytest.raises(ConfigError) as refusal:
        parse_filter(parameters)
        parse_order(parameters)
    assert len(str(refusal.value).splitlines()) == 1


def test_values_of_filters_are_never_part_of_a_statement(run: Path) -> None:
    with viewing(run) as view, view.indexed_rows(DEADLINE_S) as rows:
        for text in ("' OR 1=1 --", '" OR "1', "%", "_", "*", "a AND b", "NEAR(a b)", "\0\0\0", "\ud800ab"):
            assert column(page(rows, text=text)["rows"], "id") == []
            assert page(rows, domain=text)["total"] == 0


def test_the_histogram_of_rewards_counts_the_attempts_that_match_the_filter(run: Path) -> None:
    with viewing(run) as view, view.indexed_rows(DEADLINE_S) as rows:
        table = pages(rows)
        for query in ({}, {"domain": "code"}, {"step": "2:3"}, {"text": "aaa"}, {"text": "aaa", "domain": "math"}):
            matching = [row["reward"] for row in table if row["id"] in {each["id"] for each in pages(rows, **query)}]
            parameters = {name: [value] for name, value in query.items()}
            histogram = reward_histogram(rows, parse_filter(parameters))
            assert histogram["edges"] == pytest.approx([index / 20 for index in range(21)])
            known = {0: 0.0, 10: 0.5, 19: 1.0}
            assert histogram["counts"] == [matching.count(known[bin]) if bin in known else 0 for bin in range(20)], (
                query
            )


def test_the_table_has_the_comment_of_the_reward(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    scored = attempt()
    writer.group(replace(scored, score=Score(0.0, comment="compared '2' with '2.0'")), replace(scored, sibling=1))
    writer.close()
    with viewing(tmp_path / "run") as view, view.indexed_rows(DEADLINE_S) as rows:
        assert column(page(rows, sort="id")["rows"], "comment") == ["compared '2' with '2.0'", ""]
