"""ALFWorld: household tasks in text. One task is one game, told by the task's own row."""

from __future__ import annotations

from dataclasses import dataclass

from roll.envs.actions import Tally, inside
from roll.envs.alfworld.commands import admissible, normalised
from roll.envs.alfworld.game import fits_of, game_of
from roll.envs.alfworld.words import NOTHING_HAPPENS, answer, opening
from roll.envs.alfworld.world import SILENT, World
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.errors import ConfigError
from roll.types import Message, Task


@dataclass(eq=False)
class ALFWorld:
    """A household in which things are found, heated, cooled, cleaned and put away, told in the words of ALFWorld.

    The game is the task's metadata: `receptacles`, `objects`, `agent_loc` and `goal`, as the records of `game` have
    them; its question is what to do, and a system message is kept. A reply is one command. One that would do nothing
    here is answered with `Nothing happens.`, and costs a turn and `format_penalty`. The reward is 1 for reaching the
    goal within `max_turns` replies. A reply was effective if it changed the world, which looking does not. Its state
    is where everything is.
    """

    task: Task
    can_contain: str | None = None
    """A JSON file with the types of objects that each type of receptacle takes. None: everything fits everywhere."""
    max_turns: int = 50
    listed: bool = True
    """End every observation with the commands that would do something."""
    tag: str = ""
    """Where a command stands in a reply: within the last `<tag>`. Empty: the reply is the command."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("alfworld: max_turns", self.max_turns, 1, whole=True)
        check_number("alfworld: format_penalty", self.format_penalty, 0)
        if not self.task.messages:
            raise ConfigError(f"alfworld: task {self.task.id!r} does not say what to do; give its row a 'prompt'")
        fits = None if self.can_contain is None else fits_of(self.can_contain)
        self._world = World(game_of(self.task), fits)
        self._commands, self._state = admissible(self._world), self._world.key()
        self._tally = Tally()
        self._done = False

    @property
    def commands(self) -> tuple[str, ...]:
        """What would do something now, in alphabetical order."""
        return tuple(self._commands)

    async def start(self) -> tuple[Message, ...]:
        *before, last = self.task.messages
        return (*before, Message(last.role, self._observed(opening(self._world, last.content))))

    async def step(self, reply: str) -> Reply:
        assert not self._done, "alfworld: stepped after done; an environment is single-use"
        before, said = self._state, self._act(inside(reply, self.tag))
        valid = said != NOTHING_HAPPENS
        self._tally.add(valid=valid, effective=self._state != before)
        won = self._world.won()
        self._done = won or self._tally.num_turns == self.max_turns
        return Reply(
            messages=(Message("user", self._observed(said)),),
            reward=float(won) - (0.0 if valid else self.format_penalty),
            done=self._done,
            state=self._state,
            metrics=self._tally.metrics(success=won),
        )

    async def close(self) -> None:
        self._done = True

    def _act(self, command: str | None) -> str:
        """Do what is said; what the game answers."""
        action = None if command is None else self._commands.get(normalised(command))
        if action is None:
            return NOTHING_HAPPENS
        if action.verb not in SILENT:
            self._world.perform(action)
            self._commands, self._state = admissible(self._world), self._world.key()
        return answer(self._world, action)

    def _observed(self, text: str) -> str:
        return f"{text}\n\nCommands: {', '.join(self._commands)}" if self.listed else text
