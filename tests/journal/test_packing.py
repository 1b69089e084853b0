from dataclasses import replace

import msgspec
import numpy as np
import pytest

from roll.journal.packing import TaskTexts, pack, unpack, version_runs
from roll.types import Finish, Message, Score, Segment, Span, Status, Task, Trajectory, Turn


def attempt(ids: list[int], *, text: str = "1+1=") -> Trajectory:
    turn = Turn(
        observation=np.array(ids[::-1], np.int32),
        sampled=np.array(ids, np.int32),
        sampler_logprobs=np.linspace(-9, 0, len(ids), dtype=np.float32),
        versions=np.full(len(ids), 7, np.int32),
        finish=Finish.LENGTH,
    )
    task = Task(id="t", domain="math", messages=(Message("user", text),))
    return Trajectory(task=task, sibling=0, segments=(Segment(turns=(turn,)),), status=Status.FINISHED)


@pytest.mark.parametrize(
    ("highest", "width"), [(0, 2), (2**16 - 1, 2), (2**16, 3), (2**24 - 1, 3), (2**24, 4), (2**31 - 1, 4), (-200, 4)]
)
def test_ids_of_any_width_survive_a_round_trip_in_the_fewest_bytes(highest: int, width: int):
    given = attempt([1, highest] * 500)
    found = unpack(pack(given).body)
    for name in ("observation", "sampled", "sampler_logprobs", "versions"):
        one, other = getattr(found.turns[0], name), getattr(given.turns[0], name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert len(pack(given).body) < 1000 * (2 * width + 4) + 200


def test_a_turn_without_tokens_survives_a_round_trip():
    assert len(unpack(pack(attempt([])).body).turns[0].sampled) == 0
    assert pack(attempt([])).versions == {}


def test_experts_survive_a_round_trip_and_take_no_space_without():
    plain = attempt([1, 2, 3])
    experts = np.arange(36, dtype=np.int16).reshape(6, 3, 2) - 1
    turn = replace(plain.turns[0], experts=experts)
    found = unpack(pack(replace(plain, segments=(Segment(turns=(turn,)),))).body).turns[0].experts
    assert found is not None and found.dtype == np.int16 and np.array_equal(found, experts)
    assert unpack(pack(plain).body).turns[0].experts is None


def test_arrays_that_are_views_survive_a_round_trip():
    turn = attempt(list(range(100))).turns[0]
    turn = replace(
        turn, sampled=turn.sampled[::2], sampler_logprobs=turn.sampler_logprobs[::2], versions=turn.versions[::2]
    )
    found = unpack(pack(replace(attempt([]), segments=(Segment(turns=(turn,)),))).body).turns[0]
    assert found.sampled.tolist() == list(range(0, 100, 2))
    np.testing.assert_array_equal(found.sampler_logprobs, turn.sampler_logprobs)


def test_versions_are_runs():
    assert version_runs(np.array([3, 3, 4, 4, 4, 9], np.int32)) == [(3, 2), (4, 3), (9, 1)]
    assert version_runs(np.array([5, 5], np.int32)) == [(5, 2)]
    assert version_runs(np.zeros(0, np.int32)) == []


def test_long_texts_are_deflated_and_survive_a_round_trip():
    given = attempt([1], text="the same words again and " * 400)
    packed = pack(given).body
    assert len(packed) < 1000 and unpack(packed).task == given.task


def test_a_shared_text_cache_does_not_change_the_packed_bytes():
    one, other = attempt([1, 2], text="1+1="), attempt([3], text="2+2=")
    given, texts = [one, other, replace(one, sibling=1)], TaskTexts()
    assert [pack(each, texts).body for each in given] == [pack(each).body for each in given]
    assert unpack(pack(other, texts).body).task == other.task


def test_a_score_survives_with_its_comment_and_a_score_written_without_one_has_none():
    given = replace(attempt([1]), score=Score(0.5, {"format": 1.0}, "half right"))
    assert unpack(pack(given).body).score == given.score
    packed = msgspec.msgpack.decode(pack(given).body)
    packed[4] = {"value": 0.5, "parts": {}}
    assert unpack(msgspec.msgpack.encode(packed)).score == Score(0.5)


def test_spans_of_a_score_and_their_tokens_survive_a_round_trip():
    stored = attempt([5, 6, 7])
    turn = replace(stored.turns[0], span_rewards=((0, 0.5), (2, -1.25)))
    score = Score(1.0, {"x": 2.0}, spans=(Span(0, 3, 0.5), Span(3, 9, -1.25)))
    stored = replace(stored, segments=(Segment(turns=(turn,)),), score=score)
    restored = unpack(pack(stored).body)
    assert restored.turns[0].span_rewards == turn.span_rewards and restored.score == score
    assert restored.reward == stored.reward == 0.25
