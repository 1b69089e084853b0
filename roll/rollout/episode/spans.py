"""Rewards within a response: from spans of characters to the tokens that end them."""

from __future__ import annotations

from dataclasses import replace

from roll.data.codec import last_tokens
from roll.data.templates import Template
from roll.types import Segment, Status, Trajectory, Turn


def with_span_rewards(trajectory: Trajectory, response: str, template: Template) -> Trajectory:
    """The trajectory with the spans of its score at the tokens of the scored response.

    It has failed if the scored text is not the last response of exactly one agent.
    """
    assert trajectory.score is not None, "only a score has spans"
    last_of = {segment.agent: index for index, segment in enumerate(trajectory.segments)}
    scored = [index for index in last_of.values() if _text(trajectory.segments[index], template) == response]
    if len(scored) != 1:
        reason = (
            f"task {trajectory.task.id!r}: a score with spans needs a response of one agent to locate them in "
            f"(got a text that is the last response of {len(scored)}); score a response, or leave the spans out"
        )
        return replace(trajectory, score=None, status=Status.REWARD_FAILED, reason=reason)
    segments, spans = list(trajectory.segments), trajectory.score.spans
    *turns, last = segments[scored[0]].turns
    rewards: dict[int, float] = {}
    tokens = last_tokens(template.decode, last.sampled, [span.end for span in spans])
    for token, span in zip(tokens, spans, strict=True):
        rewards[token] = rewards.get(token, 0.0) + span.value
    turn = replace(last, span_rewards=tuple(sorted(rewards.items())))
    segments[scored[0]] = replace(segments[scored[0]], turns=(*turns, turn))
    return replace(trajectory, segments=tuple(segments))


def _text(segment: Segment, template: Template) -> str:
    turn: Turn = segment.turns[-1]
    return template.decode(turn.sampled)
