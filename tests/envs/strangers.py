"""Environments written for other libraries, without those libraries."""

from types import SimpleNamespace
from typing import Any


class Ladder:
    """Of Gymnasium's kind: three rungs up win; observations are numbers, words come from `in_words`."""

    action_space = SimpleNamespace(n=2)

    def __init__(self, rungs: int = 3, patience: int = 8) -> None:
        self.rungs, self.patience = rungs, patience
        self.at, self.turns, self.closed = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        assert seed is not None
        self.at = seed % 2
        return self.at, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert action in (0, 1)
        self.at = max(0, self.at + (1 if action else -1))
        self.turns += 1
        won = self.at == self.rungs
        return self.at, float(won), won, self.turns == self.patience, {}

    def close(self) -> None:
        self.closed += 1


def in_words(env: Ladder, observation: int) -> str:
    return f"rung {observation} of {env.rungs}"


class Riddle:
    """Of GEM's kind: text in, text out, and it takes no seed."""

    def __init__(self, answer: str = "9") -> None:
        self.answer, self.turns = answer, 0

    def reset(self) -> tuple[str, dict[str, Any]]:
        return "3 times 3?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        right = action == self.answer
        return "yes" if right else "no", float(right), right, self.turns == 6, {"noted": object()}


class Seeded(Riddle):
    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        return f"riddle {seed}?", {}


class Rubric:
    async def score_rollout(self, state: dict[str, Any]) -> None:
        said = [message["content"] for message in state["completion"] if message["role"] == "assistant"]
        state["reward"] = 1.0 if said[-1] == state["answer"] else 0.25
        state["metrics"] = {"turns_used": len(said)}


class Tutor:
    """Of verifiers' kind, in its newer form: questions from a dataset, a hint after each wrong answer, four turns."""

    system_prompt = "Answer."
    rubric = Rubric()

    def get_dataset(self) -> list[dict[str, Any]]:
        return [
            {"prompt": "2+2?", "answer": "4", "info": {"hint": "even"}},
            {"prompt": [{"role": "user", "content": "3+2?"}], "answer": "5", "info": {"hint": "odd"}},
        ]

    async def setup_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "hints": 0}

    async def is_completed(self, state: dict[str, Any]) -> bool:
        return len(state["trajectory"]) >= 4 or state["completion"][-1]["content"] == state["answer"]

    async def env_response(self, messages: list[dict[str, Any]], state: dict[str, Any]) -> list[dict[str, Any]]:
        state["hints"] += 1
        return [{"role": "user", "content": f"{state['info']['hint']} {state['hints']}"}]


class OldRubric:
    def score_rollout(self, prompt: Any, completion: Any, answer: Any, state: Any, task: Any, info: Any) -> Any:
        return SimpleNamespace(reward=float(task == "default" and answer == "5"), metrics={"length": len(completion)})


class OldTutor:
    """The same in its older form: `is_completed` has messages too, `env_response` gives the state back."""

    rubric = OldRubric()

    @property
    def dataset(self) -> list[dict[str, Any]]:
        return [{"prompt": [{"role": "user", "content": "3+2?"}], "answer": "5", "task": "default"}]

    def is_completed(self, messages: list[dict[str, Any]], state: dict[str, Any], **kwargs: Any) -> bool:
        assert messages[-1]["role"] == "assistant"
        return state["turn"] >= 2

    def env_response(self, messages: list[dict[str, Any]], state: dict[str, Any], **kwargs: Any) -> Any:
        calls = messages[-1].get("tool_calls", [])
        return [
            {"role": "tool", "content": f"{call['function']['name']} {call['function']['arguments']}"} for call in calls
        ] or "no tool", {**state, "seen": True}


def tutor() -> Tutor:
    return Tutor()
