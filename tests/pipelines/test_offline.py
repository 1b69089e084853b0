"""The order of examples in training on fixed ones."""

from roll.pipelines.offline import OfflineSchedule, indices_of

SCHEDULE = OfflineSchedule(section="dpo", steps=9, batch_size=4, validate_every=1, seed=3)


def test_every_epoch_has_each_example_once_in_an_order_of_its_own():
    drawn = [index for step in range(1, 6) for index in indices_of(step, SCHEDULE, 10)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
