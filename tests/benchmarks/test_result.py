"""The result record of every benchmark."""

import json

import pytest

from benchmarks.result import Result


def test_a_bound_is_written_as_a_bound() -> None:
    entries = json.loads(Result(name="x", unit="s", higher_is_better=False, ours=0.25, bound=1.0).to_json())
    assert entries["bound"] == 1.0
    assert "peer" not in entries
    assert entries["ratio"] == 0.25
    assert entries["higher_is_better"] is False


def test_numbers_are_written_with_four_digits() -> None:
    entries = json.loads(Result(name="x", unit="s", higher_is_better=True, ours=1234.567, peer=3.0).to_json())
    assert entries["ours"] == 1235.0
    assert entries["ratio"] == 411.5  # 1234.567 / 3 = 411.522...


def test_details_are_in_the_json() -> None:
    result = Result(name="x", unit="s", higher_is_better=True, ours=1.0, peer=1.0, details={"rounds": [1, 2]})
    assert json.loads(result.to_json())["details"] == {"rounds": [1, 2]}


def test_a_skipped_benchmark_has_a_reason_and_no_numbers() -> None:
    entries = json.loads(Result(name="x", unit="s", higher_is_better=True, skipped="no network").to_json())
    assert entries["skipped"] == "no network"
    assert entries["ours"] is entries["peer"] is entries["ratio"] is None


def test_a_result_without_numbers_needs_a_reason() -> None:
    with pytest.raises(AssertionError):
        Result(name="x", unit="s", higher_is_better=True)


def test_a_result_has_no_peer_and_bound_at_once() -> None:
    with pytest.raises(AssertionError):
        Result(name="x", unit="s", higher_is_better=True, ours=1.0, peer=1.0, bound=1.0)
