"""Faulty tool calls of a policy; each task's metadata names the first one."""

from dataclasses import replace

from roll.data.tools import ParsedResponse, ToolCall, format_call, parse_response
from roll.envs.base import Env, StepResult
from roll.envs.guarded import GuardedEnv
from roll.envs.tool_use import ToolUse
from roll.rollout.environments import InlineEnvs
from roll.types import Message, Spec, Task

BLUNDERS = {
    "unknown_tool": format_call(ToolCall("oracle", {"question": "?"})),
    "not_json": '<tool_call>{"name": "raises", "arguments": {"word": "w",}}</tool_call>',
    "bad_arguments": format_call(ToolCall("raises", {"word": 3})),
    "not_closed": "<tool_call>",
    "timed_out": format_call(ToolCall("hangs", {})),
    "failed": format_call(ToolCall("raises", {"word": "w"})),
    "gone": format_call(ToolCall("burn", {})),
}
TOOLS = [
    "tests.tools.custom_tools:hangs",
    "tests.tools.custom_tools:raises",
    {"kind": "tests.tools.custom_tools:Diary", "owner": "x"},
]


class Clumsy(ToolUse):
    """Replaces the first response by the faulty one; the second response is the answer."""

    def __init__(self, task: Task) -> None:
        super().__init__(replace(task, messages=(Message("user", "5?"),)), TOOLS, timeout_s=0.2)
        self.blunder = BLUNDERS[task.metadata["fault"]]

    async def call(self, response: ParsedResponse) -> StepResult:
        blundered, self.blunder = self.blunder, "5"
        found = await super().call(parse_response(blundered, self.tools))
        assert found.done == (blundered == "5")
        assert found.done or found.messages[0].content.startswith("error: ")
        return replace(found, messages=(Message("tool", "5"),))  # the policy of the rig reads digits


class ClumsyEnvs(InlineEnvs):
    """Has no other environments."""

    async def make(self, call: Spec, task: Task) -> Env:
        return GuardedEnv(Spec(f"{__name__}:Clumsy"), task)
