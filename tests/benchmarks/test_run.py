"""`roll bench`: the list, one benchmark, and the error for an unknown name."""

import json

import pytest

from benchmarks.catalogue import BENCHMARKS, CATALOGUE
from benchmarks.result import Result
from benchmarks.run import main
from roll.errors import UnknownName


def three_against_two() -> Result:
    return Result(name="three", unit="tokens/s", higher_is_better=True, ours=3.0, peer=2.0)


def test_every_benchmark_can_be_imported() -> None:
    for name in CATALOGUE:
        assert callable(BENCHMARKS[name])


def test_the_list_has_a_line_for_each_benchmark_that_says_whether_it_needs_a_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(None)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*CATALOGUE, "all"]
    for name, line in zip(CATALOGUE, lines, strict=False):
        assert ("needs a GPU" in line) == CATALOGUE[name].needs_gpu
        assert ("no GPU needed" in line) != CATALOGUE[name].needs_gpu


def test_the_last_line_of_a_benchmark_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    main(f"{__name__}:three_against_two")
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == {
        "name": "three",
        "ours": 3.0,
        "peer": 2.0,
        "ratio": 1.5,
        "unit": "tokens/s",
        "higher_is_better": True,
    }


def test_an_unknown_benchmark_is_rejected_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="no benchmark named 'generat'; did you mean 'generate'"):
        main("generat")
