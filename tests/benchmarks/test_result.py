"""The one form of every benchmark."""

import json

import pytest

from benchmarks.result import Result


def test_a_bound_is_named_a_bound() -> None:
    found = json.loads(Result(name="x", unit="s", higher_is_better=False, ours=0.25, bound=1.0).to_json())
    assert found["bound"] == 1.0
    assert "peer" not in found
    assert found["ratio"] == 0.25
    assert found["higher_is_better"] is False


def test_numbers_are_written_with_four_digits() -> None:
    found = json.loads(Result(name="x", unit="s", higher_is_better=True, ours=1234.567, peer=3.0).to_json())
    assert found["ours"] == 1235.0
    assert found["ratio"] == 411.5  # 1234.567 / 3 = 411.522...


def test_details_are_passed_on() -> None:
    result = Result(name="x", unit="s", higher_is_better=True, ours=1.0, peer=1.0, details={"rounds": [1, 2]})
    assert json.loads(result.to_json())["details"] == {"rounds": [1, 2]}


def test_a_skipped_benchmark_has_a_reason_and_no_numbers() -> None:
    found = json.loads(Result(name="x", unit="s", higher_is_better=True, skipped="no network").to_json())
    assert found["skipped"] == "no network"
    assert found["ours"] is found["peer"] is found["ratio"] is None


def test_a_result_without_numbers_needs_a_reason() -> None:
    with pytest.raises(AssertionError):
        Result(name="x", unit="s", higher_is_better=True)


def test_a_result_has_no_peer_beside_a_bound() -> None:
    with pytest.raises(AssertionError):
        Result(name="x", unit="s", higher_is_better=True, ours=1.0, peer=1.0, bound=1.0)
