"""ALFWorld: household tasks in text. Each task's row contains one game."""

from __future__ import annotations

from dataclasses import dataclass

from roll.envs.actions import extract_action
from roll.envs.alfworld.game import parse_game, read_fits
from roll.envs.alfworld.words import NOTHING_HAPPENS, describe_outcome, opening_text
from roll.envs.alfworld.world import READ_ONLY, World, admissible, normalise
from roll.envs.base import StepResult
from roll.envs.turn_recorder import TurnRecorder
from roll.types import Message, Task


@dataclass(eq=False)
class ALFWorld:
    """A household in which objects are found, heated, cooled, cleaned and put away, in ALFWorld's wording.

    The game is the task's metadata: `receptacles`, `objects`, `agent_loc` and `goal`, as in `game`; the question is the
    instruction, and a system message is kept. A response is one command. A command without effect gets `Nothing
    happens.` and costs a turn and `format_penalty`. The reward is 1 for reaching the goal within `max_turns` responses.
    A response is effective if it changes the world, which looking does not. The state covers the position of
    everything.
    """

    task: Task
    can_contain: str | None = None
    """A JSON file with the object types that each receptacle type holds. None: everything fits everywhere."""
    max_turns: int = 50
    listed: bool = True
    """Append the possible commands to every observation."""
    tag: str = ""
    """Tag around the command: the last `<tag>` counts. Empty: the whole response is the command."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        self._recorder = TurnRecorder("alfworld", self.max_turns, self.format_penalty)
        fits = None if self.can_contain is None else read_fits(self.can_contain)
        self._world = World(parse_game(self.task), fits)
        self._commands, self._state = admissible(self._world), self._world.key()

    @property
    def commands(self) -> tuple[str, ...]:
        """The possible commands in alphabetical order."""
        return tuple(self._commands)

    async def start(self) -> tuple[Message, ...]:
        *before, last = self.task.messages
        return (*before, Message(last.role, self._observation(opening_text(self._world, last.content))))

    async def step(self, response: str) -> StepResult:
        self._recorder.check_open()
        before, observation = self._state, self._act(extract_action(response, self.tag))
        return self._recorder.record(
            [Message("user", self._observation(observation))],
            self._state,
            valid=observation != NOTHING_HAPPENS,
            effective=self._state != before,
            reward=1.0 if self._world.goal_reached() else None,
        )

    async def close(self) -> None:
        self._recorder.done = True

    def _act(self, command: str | None) -> str:
        """Perform a command; returns the game's response."""
        action = None if command is None else self._commands.get(normalise(command))
        if action is None:
            return NOTHING_HAPPENS
        if action.verb not in READ_ONLY:
            self._world.perform(action)
            self._commands, self._state = admissible(self._world), self._world.key()
        return describe_outcome(self._world, action)

    def _observation(self, text: str) -> str:
        return f"{text}\n\nCommands: {', '.join(self._commands)}" if self.listed else text
