"""A policy's blunders, played in an environment with tools: each task's metadata says which is made first."""

from dataclasses import replace

from roll.data.tools import Spoken, ToolCall, read, written
from roll.envs.base import Env, Reply
from roll.envs.guarded import Guarded
from roll.envs.tool_use import ToolUse
from roll.rollout.environments import InlineEnvs
from roll.types import Call, Message, Task

BLUNDERS = {
    "unknown_tool": written(ToolCall("oracle", {"question": "?"})),
    "not_json": '<tool_call>{"name": "raises", "arguments": {"word": "w",}}</tool_call>',
    "bad_arguments": written(ToolCall("raises", {"word": 3})),
    "not_closed": "<tool_call>",
    "timed_out": written(ToolCall("hangs", {})),
    "failed": written(ToolCall("raises", {"word": "w"})),
    "gone": written(ToolCall("burn", {})),
}
TOOLS = ["tests.tools.own:hangs", "tests.tools.own:raises", {"kind": "tests.tools.own:Diary", "owner": "x"}]


class Clumsy(ToolUse):
    """Whatever the policy says first is the blunder; what it says next is its answer."""

    def __init__(self, task: Task) -> None:
        super().__init__(replace(task, messages=(Message("user", "5?"),)), TOOLS, timeout_s=0.05)
        self.blunder = BLUNDERS[task.metadata["fault"]]

    async def call(self, said: Spoken) -> Reply:
        blundered, self.blunder = self.blunder, "5"
        found = await super().call(read(blundered, self.tools))
        assert found.done == (blundered == "5")
        assert found.done or found.messages[0].content.startswith("error: ")
        return replace(found, messages=(Message("tool", "5"),))  # the policy of the rig reads digits


class ClumsyEnvs(InlineEnvs):
    """Has no other environments."""

    async def make(self, call: Call, task: Task) -> Env:
        return Guarded(Call(f"{__name__}:Clumsy"), task)
