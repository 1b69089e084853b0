"""Tasks drawn by how hard they are, reproducibly, and none of them out of reach."""

import json
from collections import Counter

import pytest

from roll.config.sources import Curriculum, Difficulty
from roll.data.mixture import Draw, Mixture, MixturePart
from roll.errors import ConfigError
from roll.types import Task


def tasks(count: int) -> list[Task]:
    return [Task(id=str(number), domain="d", metadata={"level": count - number}) for number in range(count)]


def by_difficulty(count: int, *, target: float = 0.5, exploration: float = 0.2, seed: int = 0) -> Mixture:
    difficulty = Difficulty(target=target, exploration=exploration)
    return Mixture([MixturePart(name="d", tasks=tasks(count), difficulty=difficulty)], seed=seed)


def rate(draw: Draw) -> float:
    """Tasks 0, 1 and 2 of three have pass rates 0, 1/2 and 1."""
    return draw.index / 2


def counted(mixture: Mixture, num: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for _ in range(num):
        draw = mixture.draw()
        mixture.observe(draw, [rate(draw)] * 4)
        found[draw.index] += 1
    return found


def test_tasks_near_the_target_are_drawn_more_often():
    # 80 % of the draws go by weight, which is 0, 1, 0 at target 1/2; the others go to the tasks drawn least.
    found = counted(by_difficulty(3), 600)
    assert found[1] > 0.7 * 600
    assert min(found.values()) > 0.05 * 600


def test_the_target_may_be_set():
    # Weights 0, 1/2, 1 at target 1.
    found = counted(by_difficulty(3, target=1.0, exploration=0.01), 900)
    assert found[2] > 1.6 * found[1] > 16 * found[0] > 0


def test_exploration_reaches_every_task_regardless_of_pass_rate():
    mixture = by_difficulty(50, exploration=0.1)
    found: set[int] = set()
    for _ in range(1500):
        draw = mixture.draw()
        mixture.observe(draw, [0.5 if draw.index == 0 else 0.0])
        found.add(draw.index)
    assert len(found) == 50


def test_unseen_tasks_come_before_unsolvable_ones_and_none_is_repeated_unobserved():
    mixture = by_difficulty(20, exploration=1e-9)
    first = [mixture.draw() for _ in range(10)]
    assert len({draw.index for draw in first}) == 10
    for draw in first:
        mixture.observe(draw, [0.0, 0.0])
    assert {mixture.draw().index for _ in range(10)} == set(range(20)) - {draw.index for draw in first}


def test_without_observations_all_tasks_are_drawn_equally_often():
    mixture = by_difficulty(7)
    assert set(Counter(mixture.draw().index for _ in range(70)).values()) <= {9, 10, 11}


def test_a_new_pass_rate_outweighs_the_old_ones():
    mixture = by_difficulty(2, target=1.0, exploration=1e-9)
    draws = {draw.index: draw for draw in (mixture.draw(), mixture.draw())}
    mixture.observe(draws[0], [1.0])
    mixture.observe(draws[1], [0.0])
    assert {mixture.draw().index for _ in range(20)} == {0}
    for _ in range(60):  # halved each time, until nothing is left of the old 1
        mixture.observe(draws[0], [0.0])
    mixture.observe(draws[1], [1.0])
    assert {mixture.draw().index for _ in range(20)} == {1}


def test_rewards_are_clipped_to_0_and_1():
    mixture = by_difficulty(2, target=0.5, exploration=1e-9)
    draws = {draw.index: draw for draw in (mixture.draw(), mixture.draw())}
    mixture.observe(draws[0], [-8.0, 8.0])  # a mean of 1/2
    mixture.observe(draws[1], [8.0, 8.0])
    assert {mixture.draw().index for _ in range(20)} == {0}


def test_an_attempt_number_is_unique():
    mixture = by_difficulty(3)
    draws = [mixture.draw() for _ in range(40)]
    assert len({(draw.index, draw.attempt) for draw in draws}) == 40
    assert all(draw.attempt == sum(other.index == draw.index for other in draws[:i]) for i, draw in enumerate(draws))


def test_a_group_without_rewards_changes_nothing():
    mixture = by_difficulty(3)
    before = mixture.state()
    mixture.observe(Draw(task=tasks(3)[0], source="d", attempt=0, index=0), [])
    assert mixture.state() == before


def test_draws_are_a_function_of_seed_and_observations():
    def sequence(seed: int) -> list[int]:
        mixture = by_difficulty(9, seed=seed)
        found: list[int] = []
        for _ in range(60):
            draw = mixture.draw()
            mixture.observe(draw, [draw.index / 8])
            found.append(draw.index)
        return found

    assert sequence(1) == sequence(1) != sequence(2)


def test_a_restored_mixture_has_the_observed_pass_rates():
    part = MixturePart(name="d", tasks=tasks(9), difficulty=Difficulty(), curriculum=Curriculum(by="level", steps=40))
    first, second = Mixture([part], seed=0), Mixture([part], seed=0)
    for number in range(25):
        first.observe(first.draw(), [(number % 3) / 2])
    second.restore(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    for number in range(40):
        one, other = first.draw(), second.draw()
        assert one == other
        first.observe(one, [(number % 5) / 4])
        second.observe(other, [(number % 5) / 4])


def test_restoring_a_shuffled_order_as_an_adaptive_one_is_an_error():
    plain = Mixture([MixturePart(name="d", tasks=tasks(3))], seed=0)
    with pytest.raises(ConfigError, match="resume with the same settings"):
        by_difficulty(3).restore(plain.state())


def test_a_curriculum_adds_tasks_from_easy_to_hard():
    # Task 9 has level 1, task 0 level 10; draw n of 20 may reach the easiest (n + 1) / 2 of ten, rounded up.
    mixture = Mixture([MixturePart(name="d", tasks=tasks(10), curriculum=Curriculum(by="level", steps=20))], seed=0)
    levels = [mixture.draw().task.metadata["level"] for _ in range(60)]
    assert all(level <= (number + 2) // 2 for number, level in enumerate(levels[:20]))
    assert levels[0] == 1 and levels[18] == 10  # an open task that was not drawn yet comes first
    assert set(Counter(levels).values()) == {6}


def test_within_a_curriculum_pass_rates_belong_to_their_tasks():
    part = MixturePart(
        name="d",
        tasks=tasks(5),
        difficulty=Difficulty(exploration=1e-9),
        curriculum=Curriculum(by="level", steps=1),
    )
    mixture = Mixture([part], seed=0)
    for draw in [mixture.draw() for _ in range(5)]:
        mixture.observe(draw, [0.5 if draw.task.id == "1" else 0.0])
    assert {mixture.draw().task.id for _ in range(20)} == {"1"}


def test_a_curriculum_without_numbers_is_refused():
    part = MixturePart(name="d", tasks=tasks(3), curriculum=Curriculum(by="hardness", steps=9))
    with pytest.raises(ConfigError, match=r"task '0' of d: 'hardness' is not a number \(got None; it has level\)"):
        Mixture([part], seed=0)
