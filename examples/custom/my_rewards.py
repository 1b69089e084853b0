"""A custom reward: how much of a word is spelled right."""

from roll.types import Score, Task


def letters(task: Task, response: str, *, brevity: float) -> Score:
    """The fraction of the answer's letters in the right position, minus `brevity` per extra letter."""
    right = sum(letter == expected for letter, expected in zip(response, task.answer, strict=False)) / len(task.answer)
    excess = max(0, len(response) - len(task.answer))
    return Score(right - brevity * excess, {"right": right, "excess": float(excess)})
