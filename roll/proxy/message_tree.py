"""The conversations of one attempt, recognised by the messages that a client sends.

A request that only adds messages continues the same segment: the new messages alone are encoded, and responses keep
the ids they were sampled with. A request that continues from an earlier response (a fork), or whose history was edited,
starts a new segment in which everything before is context. So every sampled token is trained in exactly one segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from roll.data.templates import Template
from roll.data.tools import Tool
from roll.proxy.messages import ChatMessage, text_of
from roll.proxy.requests import ChatRequest
from roll.rollout.episode.conversation import Branch, ConversationTree, SamplePoint, SegmentBreaks
from roll.types import Message, Turn


class TreeNode:
    """A position in a conversation, right after one message."""

    __slots__ = ("branch", "checksum", "children", "message", "num_turns")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.branch: Branch | None = None
        """Branch that holds the policy's response; None for every other message."""
        self.num_turns = 0
        """Turns of the branch up to here."""
        self.checksum = 0
        """Checksum of all ids before this message."""
        self.children: dict[ChatMessage, TreeNode] = {}


class MessageTree(ConversationTree):
    """A `ConversationTree` whose nodes are found by their messages."""

    def __init__(self, template: Template, breaks: SegmentBreaks, *, where: str, per_turn: bool = False) -> None:
        super().__init__(template, breaks, where=where, per_turn=per_turn)
        self._roots: dict[str, TreeNode] = {}
        """One root per list of tools."""

    def find(self, request: ChatRequest) -> list[TreeNode]:
        """The path of a request's messages; creates the nodes that are new."""
        node = self._roots.setdefault(request.tools_json, TreeNode(Message("", "")))
        path: list[TreeNode] = []
        for message in request.messages:
            child = node.children.get(message)
            if child is None:
                form = self._template.tool_form if message.calls else None
                child = node.children[message] = TreeNode(Message(message.role, text_of(message, form)))
            path.append(child)
            node = child
        return path

    def sample_point(self, path: Sequence[TreeNode], tools: Sequence[Tool]) -> SamplePoint:
        """Point after a path, continuing from its last response if there is one."""
        messages = [node.message for node in path]
        for index in range(len(path) - 1, -1, -1):
            node, end = path[index], index + 1
            if node.branch is not None:
                return self.extend(node.branch, node.num_turns, node.checksum, messages[:end], messages[end:], tools)
        return self.open(messages, tools)

    def add(self, parent: TreeNode, point: SamplePoint, message: ChatMessage, text: str, turn: Turn) -> None:
        """Record a response after `parent`; `message` is the form in which a client sends it back."""
        node = parent.children.setdefault(message, TreeNode(Message("assistant", text)))
        self.append(point, turn)
        if node.branch is None:  # else an equal response exists, and continuations continue from that one
            node.message, node.branch = Message("assistant", text), point.branch
            node.num_turns, node.checksum = len(point.branch.turns), point.checksum
