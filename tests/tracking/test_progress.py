import io

import pytest
from rich.console import Console

from roll.tracking.progress import Progress, bar


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=terminal, width=120, color_system=None), written


def test_a_pipe_gets_plain_lines():
    plain, written = console(terminal=False)
    clock = Clock()
    progress = Progress(10, "demo", console=plain, clock=clock)
    progress.start()
    progress.update(1, {"reward/mean": 0.25, "validation/accuracy": 0.5, "time/wait": 1.0, "time/update": 2.0})
    clock.now = 12.0
    progress.update(2, {"reward/mean": 0.5, "speed/tokens_per_s": 1234.0, "staleness/mean": 0.5, "time/step": 9.0})
    progress.close()
    assert written.getvalue().splitlines() == [
        "demo: 10 steps",
        "step 1/10 | reward 0.250 | held-out 0.500 | update 2.0s | wait 1.0s | eta -",
        "step 2/10 | reward 0.500 | tokens/s 1,234 | staleness 0.50 | held-out 0.500 | eta 1:36",  # 8 steps of 12 s
    ]
    assert "\x1b" not in written.getvalue()


def test_the_rewards_of_several_domains_are_shown_within_a_bounded_width():
    plain, written = console(terminal=False)
    clock = Clock()
    progress = Progress(10, "demo", console=plain, clock=clock)
    steps = [
        {"domain/math/reward": 0.5},  # one domain has the reward of the step
        {"domain/math/reward": 0.75, "domain/code/reward": 0.25, "domain/code/reward/ann": 9.0},
        {"domain/code/reward": 0.5, "domain/a/b/reward": 1.0},
        {f"domain/{'long' * 9}-{number}/reward": 1.5 for number in range(9)},
    ]
    for step, metrics in enumerate(steps, 1):
        clock.now += 10.0
        progress.update(step, metrics)
    lines = [line.split(" | ")[1] for line in written.getvalue().splitlines()]
    assert lines[1:3] == ["by domain code 0.25, math 0.75", "by domain code 0.50, math 0.75, a/b 1.00"]
    assert lines[0] == "eta -" and lines[3].startswith("by domain code 0.50, math 0.75, a/b 1.00, longlonglong 1.50")
    assert lines[3].endswith(", 8 more") and len(lines[3]) <= 80


def told(steps: list[tuple[float, dict[str, float]]]) -> list[str]:
    """The steps that a pipe hears of, each given with the time it ended at."""
    plain, written = console(terminal=False)
    clock = Clock()
    progress = Progress(100, "demo", console=plain, clock=clock)
    for step, (now, metrics) in enumerate(steps, 1):
        clock.now = now
        progress.update(step, metrics)
    progress.close()
    return [line.partition("/")[0] for line in written.getvalue().splitlines()]


def test_a_pipe_gets_a_step_every_two_seconds_and_the_last():
    assert told([(0.5, {}), (1.0, {}), (2.4, {}), (2.5, {}), (4.4, {}), (4.45, {})]) == ["step 1", "step 4", "step 6"]
    assert told([(0.5, {}), (1.0, {}), (9.0, {})]) == ["step 1", "step 3"]


@pytest.mark.parametrize("name", ["validation/accuracy", "validation/reward", "sft/accuracy"])
def test_a_pipe_gets_every_held_out_measurement(name: str):
    assert told([(0.1, {}), (0.2, {name: 0.5}), (0.3, {}), (0.4, {name: 0.6}), (0.5, {})]) == [
        "step 1",
        "step 2",
        "step 4",
        "step 5",
    ]


def test_a_resumed_run_estimates_from_its_own_steps_alone():
    plain, written = console(terminal=False)
    clock = Clock()
    progress = Progress(100, "demo", console=plain, clock=clock)
    progress.update(91, {})
    clock.now = 600.0
    progress.update(92, {})
    assert written.getvalue().splitlines()[-1] == "step 92/100 | eta 1:20:00"


def test_a_terminal_shows_the_step_and_the_phases_and_notes_stay():
    live, written = console(terminal=True)
    progress = Progress(4, "demo", console=live, clock=Clock())
    progress.start()
    progress.note("checkpoint [step-2] written")
    progress.update(3, {"reward/mean": 0.125, "time/wait": 1.5})
    progress.close()
    text = written.getvalue()
    for part in ("checkpoint [step-2] written", "demo", "step 3/4", "reward 0.125", "wait 1.5s"):
        assert part in text


def test_closing_restores_the_cursor_even_without_a_start():
    live, written = console(terminal=True)
    Progress(4, "demo", console=live).close()
    progress = Progress(4, "demo", console=live)
    progress.start()
    progress.close()
    assert written.getvalue().count("\x1b[?25l") == written.getvalue().count("\x1b[?25h") == 1


def test_a_bar_on_a_pipe_prints_every_few_seconds():
    plain, written = console(terminal=False)
    clock = Clock()
    with bar(500, "evaluating", console=plain, clock=clock) as advance:
        for now in (1.0, 4.0, 6.0, 7.0, 12.0):
            clock.now = now
            advance(100)
    assert written.getvalue().splitlines() == ["evaluating 300/500", "evaluating 500/500"]


def test_a_bar_may_run_inside_a_live_view():
    live, written = console(terminal=True)
    clock = Clock()
    progress = Progress(4, "demo", console=live, clock=clock)
    progress.start()
    with bar(2, "evaluating", console=live, clock=clock) as advance:
        clock.now = 1.0
        advance(1)
    progress.update(4, {})
    progress.close()
    assert "evaluating" in written.getvalue() and "1/2" in written.getvalue()
    assert written.getvalue().rstrip().endswith("\x1b[?25h")
