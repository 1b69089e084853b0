"""One attempt in full: conversation, turns, tokens, score and siblings."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from roll.journal.packing import unpack, version_runs
from roll.types import Message, Trajectory, Turn
from roll.watch.metrics import MetricColumns
from roll.watch.samples import read_rows
from roll.watch.texts import TextDecoder
from roll.watch.token_columns import TokenRange, token_columns
from roll.watch.view import NotFound

MAX_CHARS = 200_000
"""Characters of one text."""
_MAX_IDS = 200_000
"""Tokens of one text that are decoded."""


def find_body(rows: sqlite3.Connection, id: int) -> Trajectory | None:
    """The stored attempt; None if its tokens are pruned."""
    row = rows.execute("SELECT body FROM journal.bodies WHERE id = ?", (id,)).fetchone()
    return None if row is None else unpack(row[0])


def describe_sample(
    rows: sqlite3.Connection, id: int, decoder: TextDecoder, tokens: TokenRange, metrics: MetricColumns
) -> dict[str, Any]:
    """The answer of `/samples/{id}`, without the lineage; `NotFound` if there is no such attempt."""
    selected = read_rows(rows, [id])
    if not selected:
        raise NotFound(f"sample {id}: there is none; choose one of the table")
    (row,) = selected
    siblings = [
        each[0]
        for each in rows.execute('SELECT id FROM samples WHERE "group" = ? ORDER BY sibling, id', (row["group"],))
    ]
    neighbours = "SELECT (SELECT MAX(id) FROM samples WHERE id < ?), (SELECT MIN(id) FROM samples WHERE id > ?)"
    previous, following = rows.execute(neighbours, (id, id)).fetchone()
    group = read_rows(rows, siblings)
    body = find_body(rows, id)
    return {
        "sample": row,
        "pruned": body is None,
        "previous": previous,
        "next": following,
        "siblings": group,
        "group_mean": _group_mean(row, group),
        "advantage": row["advantage"],
        "mismatch": _mismatch(row["step"], metrics),
        **(_EMPTY if body is None else _contents(body, decoder)),
        "tokens": token_columns(rows, row, body, decoder, tokens),
    }


_EMPTY: Mapping[str, Any] = {
    **dict.fromkeys(("reference", "score")),
    **{"metrics": {}, "metadata": {}, "conversation": [], "turns": [], "cut": False},
}


def _contents(body: Trajectory, decoder: TextDecoder) -> dict[str, Any]:
    texts = _TurnTexts(body, decoder)
    score = body.score
    return {
        "reference": None if body.task.answer is None else _text_of(body.task.answer),
        "score": None
        if score is None
        else {
            "value": score.value,
            "parts": score.parts,
            "comment": shorten(score.comment),
            "spans": [list(span) for span in score.spans],
        },
        "metrics": body.metrics,
        "metadata": {name: shorten(_text_of(value)) for name, value in body.task.metadata.items()},
        "conversation": list(_conversation(body, texts)),
        "turns": list(_turns(body, texts)),
        "cut": texts.cut,
    }


class _TurnTexts:
    """Observation and response of each turn as text, shortened."""

    def __init__(self, body: Trajectory, decoder: TextDecoder) -> None:
        self.cut = False
        self._decoder = decoder
        self.observations = [self._decode(turn.observation, special_tokens=True) for turn in body.turns]
        self.responses = [self._decode(turn.sampled, special_tokens=False) for turn in body.turns]

    def _decode(self, ids: Any, *, special_tokens: bool) -> str:
        text = self._decoder.decode(ids[:_MAX_IDS], special_tokens=special_tokens)
        self.cut = self.cut or len(ids) > _MAX_IDS or len(text) > MAX_CHARS
        return shorten(text)


def shorten(text: str) -> str:
    """The text, or its beginning."""
    return text if len(text) <= MAX_CHARS else text[:MAX_CHARS]


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _conversation(body: Trajectory, texts: _TurnTexts) -> Iterator[dict[str, Any]]:
    for message in body.task.messages:
        yield _entry(message.role, shorten(message.content), calls=_calls(message))
    agents = [segment.agent for segment in body.segments for _ in segment.turns]
    for number, agent in enumerate(agents):
        if (number > 0 or not body.task.messages) and texts.observations[number]:
            role = "tool" if "tool" in texts.observations[number][:100] else "environment"
            yield _entry(role, texts.observations[number], agent=agent, turn=number)
        response = texts.responses[number]
        yield _entry("assistant", response, agent=agent, turn=number, calls=_written_calls(response))


def _entry(role: str, text: str, *, agent: str | None = None, turn: int | None = None, calls: Any = None) -> Any:
    return {"role": role, "text": text, "calls": calls, "agent": agent, "turn": turn}


def _calls(message: Message) -> list[dict[str, Any]] | None:
    """Tool calls of a message of the task."""
    try:
        extra: Any = json.loads(message.extra) if message.extra else {}
    except ValueError:
        return None
    calls: Any = cast(dict[str, Any], extra).get("tool_calls") if isinstance(extra, dict) else None
    return [_call(each) for each in cast(list[Any], calls)] if isinstance(calls, list) else None


def _call(value: Any) -> dict[str, Any]:
    """Name and arguments of a tool call, in the form of the Chat Completions API or without its envelope."""
    call = cast(dict[str, Any], value) if isinstance(value, dict) else {"name": str(value)}
    plain = call.get("function", call)
    call = cast(dict[str, Any], plain) if isinstance(plain, dict) else {"name": str(plain)}
    return {"name": str(call.get("name", "")), "arguments": call.get("arguments")}


def _written_calls(response: str) -> list[dict[str, Any]] | None:
    """Tool calls that a response writes as `<tool_call>{...}</tool_call>`."""
    calls: list[dict[str, Any]] = []
    for part in response.split("<tool_call>")[1:]:
        try:
            calls.append(_call(json.loads(part.partition("</tool_call>")[0])))
        except ValueError:
            continue  # a malformed call is text, which the conversation shows
    return calls or None


def _turns(body: Trajectory, texts: _TurnTexts) -> Iterator[dict[str, Any]]:
    pairs = [(index, segment, turn) for index, segment in enumerate(body.segments) for turn in segment.turns]
    for number, (index, segment, turn) in enumerate(pairs):
        yield {
            "turn": number,
            "segment": index,
            "agent": segment.agent,
            "observation": texts.observations[number],
            "response": texts.responses[number],
            "finish": str(turn.finish),
            "reward": turn.reward,
            "spans": [list(span) for span in turn.span_rewards],
            "state": turn.state,
            "num_observed": len(turn.observation),
            "num_sampled": len(turn.sampled),
            **{name: getattr(turn, name) for name in ("generated_s", "queued_s", "waited_s")},
            "versions": [list(run) for run in version_runs(turn.versions)],
            "logprob": _mean(turn),
        }


def _mean(turn: Turn) -> float | None:
    """Mean logprob of the sampled tokens."""
    return float(turn.sampler_logprobs.mean()) if len(turn.sampler_logprobs) else None


def _group_mean(row: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean reward of the attempts that are compared with this one."""
    rewards = [
        each["reward"]
        for each in group
        if each["reward"] is not None and not each["surplus"] and each["step"] == row["step"]
    ]
    return sum(rewards) / len(rewards) if rewards else None


def _mismatch(step: int | None, metrics: MetricColumns) -> dict[str, Any] | None:
    """Sampler mismatch of the step that trained on the attempt."""
    if step is None:
        return None
    steps, _ = metrics.rows()
    positions = np.flatnonzero(steps == step)
    if not len(positions):
        return None
    mean, most = (metrics.column(f"sampler_mismatch/{name}")[positions[-1]] for name in ("mean", "max"))
    return {"mean": float(mean), "max": float(most), "step": step} if math.isfinite(mean) else None
