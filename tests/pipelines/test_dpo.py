"""The order of examples in preference optimisation."""

from roll.pipelines.dpo import DpoSchedule, indices_of

SCHEDULE = DpoSchedule(steps=9, batch_size=4, validate_every=1, seed=3)


def test_every_epoch_has_each_example_once_in_an_order_of_its_own():
    drawn = [index for step in range(1, 6) for index in indices_of(step, SCHEDULE, 10)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
