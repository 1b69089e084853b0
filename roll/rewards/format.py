"""The shape of a reply: thinking between its tags, then the answer between its own, and nothing else."""

from __future__ import annotations

from roll.errors import ConfigError
from roll.types import Score, Task


def score(
    task: Task, reply: str, *, thinking: str = "think", answer: str = "answer", thinking_opened: bool = False
) -> Score:
    """1 if the reply is one <think>...</think> and then one <answer>...</answer> with something in it; else 0.

    Only space may stand around them. `thinking_opened` says that the prompt ends with the opening tag of the thinking.
    Parts: `thinking` and `answer`, whether each tag is there once, in order.
    """
    if not thinking.strip() or not answer.strip() or thinking == answer:
        raise ConfigError(
            f"reward 'format': tags are empty or the same (got {thinking!r} and {answer!r}); name two different ones"
        )
    text = (f"<{thinking}>" if thinking_opened else "") + reply.strip()
    before, thought, middle = _cut(text, thinking)
    gap, said, after = _cut(middle if thought is not None else text, answer)
    parts = {"thinking": float(thought is not None), "answer": float(said is not None and bool(said.strip()))}
    outside = before + gap + after
    return Score(float(all(parts.values()) and not outside.strip()), parts)


def _cut(text: str, tag: str) -> tuple[str, str | None, str]:
    """What stands before, within and after a tag that is there exactly once; else the text, None and nothing."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    before, opened, rest = text.partition(opening)
    inside, closed, after = rest.partition(closing)
    once = text.count(opening) == 1 and text.count(closing) == 1
    return (before, inside, after) if opened and closed and once else (text, None, "")
