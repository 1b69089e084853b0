"""A reward of one's own: how much of a word was spelled right."""

from roll.types import Score, Task


def letters(task: Task, reply: str, *, brevity: float) -> Score:
    """The part of the answer's letters that stand in their place, less `brevity` for each letter too many."""
    right = sum(said == wanted for said, wanted in zip(reply, task.answer, strict=False)) / len(task.answer)
    excess = max(0, len(reply) - len(task.answer))
    return Score(right - brevity * excess, {"right": right, "excess": float(excess)})
