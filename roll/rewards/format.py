"""The format of a response: thinking in its tags, then the answer in its tags, and nothing else."""

from __future__ import annotations

from roll.errors import ConfigError
from roll.types import Score, Task


def score(
    task: Task, response: str, *, thinking: str = "think", answer: str = "answer", thinking_opened: bool = False
) -> Score:
    """1 if the response is one <think>...</think> and then one non-empty <answer>...</answer>; else 0.

    Only whitespace may surround them. Set `thinking_opened` if the prompt ends with the opening thinking tag.
    Parts: `thinking` and `answer`, whether each pair of tags occurs exactly once, in order.
    """
    if not thinking.strip() or not answer.strip() or thinking == answer:
        raise ConfigError(
            f"reward 'format': tags are empty or the same (got {thinking!r} and {answer!r}); name two different ones"
        )
    text = (f"<{thinking}>" if thinking_opened else "") + response.strip()
    before, thought, rest = _split_at_tag(text, thinking)
    between, content, after = _split_at_tag(rest if thought is not None else text, answer)
    parts = {"thinking": float(thought is not None), "answer": float(content is not None and bool(content.strip()))}
    outside = before + between + after
    return Score(float(all(parts.values()) and not outside.strip()), parts)


def _split_at_tag(text: str, tag: str) -> tuple[str, str | None, str]:
    """Text before, inside and after a tag that occurs exactly once; else the whole text, None and an empty string."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    before, opened, rest = text.partition(opening)
    inside, closed, after = rest.partition(closing)
    once = text.count(opening) == 1 and text.count(closing) == 1
    return (before, inside, after) if opened and closed and once else (text, None, "")
