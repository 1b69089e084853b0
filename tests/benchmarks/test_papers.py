"""The experiments of the papers: the command, the page, and the parts that are not the real scheduler."""

import asyncio
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.papers import algorithms, environments, queueing
from benchmarks.papers.command import EXPERIMENTS, record
from benchmarks.papers.environments import GaussianEnv, stepped_together_s
from benchmarks.papers.figure import Claim, Figure, curve, read, write
from benchmarks.papers.page import rewrite, with_block
from benchmarks.papers.queueing import GradedEnv, makespan_s, prompt_requests_s
from benchmarks.papers.scaling import LONG, ResponseLengths, Training
from roll.config.load import load
from roll.errors import ConfigError, UnknownName
from roll.sim.run import simulate
from roll.tracking.curve import curve_svg
from roll.types import Task

DOCS = Path(__file__).parents[2] / "docs"
TASK = Task(id="0", domain="sim", messages=(), seed=0)
FIGURE = Figure(
    title="A line",
    x_label="x",
    y_label="y",
    series=[curve("line", [(1.0, 2.0), (2.0, 4.0)])],
    columns=["x", "y"],
    rows=[["1", "2"], ["2", "4"]],
    claims=[Claim(text="it rises", shown=True), Claim(text="it falls", shown=False)],
)
PAGE = "# Papers\n\nBefore.\n\n<!-- line: written by `roll bench paper line` -->\nold\n<!-- end of line -->\n\nAfter.\n"


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    run.main("paper")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(EXPERIMENTS)


def test_an_unknown_experiment_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="no experiment of the papers named 'queu'; did you mean 'queue'"):
        run.main("paper", "queu")


def test_other_benchmarks_have_no_experiments() -> None:
    with pytest.raises(ConfigError, match="only paper has experiments"):
        run.main("queue", "gpus")


def test_an_experiment_leaves_its_picture_its_numbers_and_its_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers.md").write_text(PAGE, encoding="utf-8")
    record(tmp_path, "line", FIGURE)
    assert read(tmp_path / "papers", "line").rows == FIGURE.rows
    assert (tmp_path / "papers" / "line.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "| 2 | 4 |" in (tmp_path / "papers.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.splitlines()[:2] == ["shown: it rises", "not shown: it falls"]


def test_a_figure_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path, "line", FIGURE)
    figure = read(tmp_path, "line")
    assert (figure.rows, figure.claims, figure.columns) == (FIGURE.rows, FIGURE.claims, FIGURE.columns)
    assert [tuple(point) for point in figure.series[0].points] == [(1.0, 2.0), (2.0, 4.0)]


def test_only_the_block_of_the_experiment_changes(tmp_path: Path) -> None:
    page = tmp_path / "papers.md"
    page.write_text(PAGE, encoding="utf-8")
    rewrite(page, "line", FIGURE)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Papers\n\nBefore.\n\n") and text.endswith("\n\nAfter.\n") and "old" not in text
    assert "| 2 | 4 |" in text and "- Shown: it rises." in text and "- **Not shown**: it falls." in text
    assert with_block(text, "line", FIGURE) == text
    with pytest.raises(ConfigError, match="no markers for circle"):
        with_block(text, "circle", FIGURE)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_shows_the_recorded_numbers(name: str) -> None:
    figure, text = read(DOCS / "papers", name), (DOCS / "papers.md").read_text(encoding="utf-8")
    assert with_block(text, name, figure) == text, f"run roll bench paper {name}"
    picture = curve_svg(figure.series, title=figure.title, x_label=figure.x_label, y_label=figure.y_label)
    assert (DOCS / "papers" / f"{name}.svg").read_text(encoding="utf-8") == picture


def test_a_request_per_prompt_occupies_its_slots_until_its_longest_response_has_ended() -> None:
    groups = [[1.0, 4.0], [2.0, 2.0], [3.0, 1.0]]
    # one device with room for two groups: 4; then 2 and 3 one after the other
    assert prompt_requests_s(groups, devices=1, slots=4) == pytest.approx(5.0)
    # room for one: 4 + 2 + 3
    assert prompt_requests_s(groups, devices=1, slots=2) == pytest.approx(9.0)
    # a slot for half a group: 5 + 4 + 4
    assert prompt_requests_s(groups, devices=1, slots=1) == pytest.approx(13.0)
    # by response, four slots: 1, 4, 2, 2, then 3 from 1 to 4 and 1 from 2 to 3
    assert makespan_s([1, 4, 2, 2, 3, 1], 4) == pytest.approx(4.0)


def test_a_turn_of_environments_stepped_together_ends_with_the_slowest() -> None:
    assert stepped_together_s(10.0, 0.0) == pytest.approx(20 * (3 + 10))
    # the largest of 128 normal draws is about 2.6 standard deviations above the mean
    assert stepped_together_s(100.0, 5.0) == pytest.approx(20 * (3 + 100 + 2.6 * 5), rel=0.01)


def is_slow(slow_by: str, seed: int, response: str) -> bool:
    env = GaussianEnv(
        Task(id="0", domain="sim", messages=(), seed=seed),
        turns=1,
        mean_s=0.001,
        spread_s=0.0,
        slow=0.5,
        slow_by=slow_by,
    )
    return asyncio.run(env.step(response)).metrics["waited_s"] == pytest.approx(0.001 * environments.SLOW_FACTOR)


def test_slowness_belongs_to_the_attempt_or_to_the_task() -> None:
    responses = [str(number) for number in range(8)]
    by_attempt = [[is_slow("attempt", seed, response) for response in responses] for seed in range(6)]
    by_task = [[is_slow("task", seed, response) for response in responses] for seed in range(6)]
    assert any(len(set(siblings)) == 2 for siblings in by_attempt)
    assert all(len(set(siblings)) == 1 for siblings in by_task)
    assert {siblings[0] for siblings in by_task} == {True, False}


def test_an_environment_never_waits_less_than_nothing() -> None:
    env = GaussianEnv(TASK, turns=3, mean_s=-1.0, spread_s=0.0)
    steps = [asyncio.run(env.step("1")) for _ in range(3)]
    assert [step.metrics["waited_s"] for step in steps] == [0.0] * 3
    assert [step.done for step in steps] == [False, False, True]


def test_filtered_prompts_are_replaced_in_the_simulation() -> None:
    env = {"kind": "benchmarks.papers.queueing:GradedEnv", "uniform": 0.5}
    setting = queueing.simulation(8, 4, 8, steps=4)
    plain = simulate(queueing.replace(setting, env=env))
    filtered = simulate(queueing.replace(setting, env=env, source={"filters": ["mixed"]}))
    assert filtered.num_replies > 1.4 * plain.num_replies
    assert filtered.num_replies % 8 == 0


def test_all_responses_to_a_uniform_prompt_have_the_same_reward() -> None:
    def rewards(uniform: float) -> set[float]:
        return {asyncio.run(GradedEnv(TASK, uniform=uniform).step(str(number))).reward for number in range(8)}

    assert rewards(1.0) == {1.0}
    assert rewards(0.0) == {0.0, 1.0}


def test_a_balanced_split_gives_both_sides_equal_work() -> None:
    training = Training(lengths=LONG, gpus=128, groups=256)
    # per token, generation takes 7 ms / 64 + 0.2 ms = 0.309 ms and training 0.16 ms: 0.659 of 32 units are 21
    assert training.balanced == 4 * 21
    assert training.training_s == pytest.approx(training.tokens * 1.6e-4 / 128)
    assert training.least_bound(2) > training.balanced
    assert Training(lengths=LONG, gpus=8, groups=1).least_bound(2) == 4, "both sides have a unit"


def test_lengths_are_cut_at_their_limit() -> None:
    assert ResponseLengths("cut", 1e6, 100).mean == pytest.approx(100, rel=1e-3)
    assert 9500 < LONG.mean < 11_000  # without the cut 8000 exp(0.32) = 11,017


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_the_run_of_every_algorithm_is_accepted(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(algorithms.run_file(str(tmp_path), algorithms.ALGORITHMS[name], 4), encoding="utf-8")
    assert load(path).run.rollout.max_staleness == 4
