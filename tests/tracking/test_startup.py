"""Lines about workers that start."""

import asyncio
from pathlib import Path

import pytest

from roll.tracking.log import controller_log
from roll.tracking.startup import StartProgress


def shown(log: Path, capsys: pytest.CaptureFixture[str], *times: float) -> tuple[list[str], list[str]]:
    """What the terminal shows and the log has of workers that are ready at these times."""
    clock = [0.0]

    async def ready(time: float) -> float:
        clock[0] = time
        return time

    async def start() -> list[float]:
        progress = StartProgress("engines of actor_infer", len(times), lambda: clock[0])
        return [await progress.track(ready(time)) for time in times]

    with controller_log(log):
        assert asyncio.run(start()) == list(times)
    logged = [line.partition(" INFO ")[2] for line in log.read_text().splitlines()]
    return capsys.readouterr().out.splitlines(), logged


def test_a_slow_start_has_a_line_every_few_seconds_and_one_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, logged = shown(tmp_path / "log", capsys, 3.0, 6.0, 8.0, 60.0)
    assert (
        lines
        == logged
        == [
            "engines of actor_infer: 2 of 4 are ready after 6 s",
            "engines of actor_infer: 4 of 4 are ready after 60 s",
        ]
    )


def test_a_fast_start_is_in_the_log_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, logged = shown(tmp_path / "log", capsys, 0.1, 0.2)
    assert lines == [] and logged == ["engines of actor_infer: 2 of 2 are ready after 0 s"]
