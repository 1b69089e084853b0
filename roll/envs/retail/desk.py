"""All tools of the retail agent: their schemas and how they are called."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from roll.data.tools import Tool
from roll.envs.retail import lookups, orders
from roll.envs.retail.shop import Shop
from roll.tools.base import ToolFailed, ToolFault, ToolResult
from roll.tools.function import tool_from_function

TRANSFER = "transfer_to_human_agents"
_ADDRESS = ("address1", "address2", "city", "state", "country", "zip")
_DOCUMENTED: tuple[Callable[..., str], ...] = (
    lookups.calculate,
    orders.cancel_pending_order,
    orders.exchange_delivered_order_items,
    lookups.find_user_id_by_email,
    lookups.find_user_id_by_name_zip,
    lookups.get_order_details,
    lookups.get_product_details,
    lookups.get_user_details,
    lookups.list_all_product_types,
    orders.modify_pending_order_items,
    orders.modify_pending_order_payment,
    orders.return_delivered_order_items,
    lookups.think,
    lookups.transfer_to_human_agents,
)


def _with_address(tool: str, words: str, key: str) -> Tool:
    """A tool that takes an address and the id of its owner."""
    properties = {name: {"type": "string"} for name in (key, *_ADDRESS)}
    return Tool(tool, words, {"type": "object", "properties": properties, "required": list(properties)})


TOOLS: tuple[Tool, ...] = (
    *(tool_from_function(function, {"shop": None}) for function in _DOCUMENTED),
    _with_address(
        "modify_pending_order_address",
        "Changes where a pending order is sent to. Ask the user for an explicit yes before.",
        "order_id",
    ),
    _with_address(
        "modify_user_address",
        "Changes the address of a user's profile. Ask the user for an explicit yes before.",
        "user_id",
    ),
)
_FUNCTIONS: dict[str, Callable[..., str]] = {
    **{function.__name__: function for function in _DOCUMENTED},
    "modify_pending_order_address": orders.modify_pending_order_address,
    "modify_user_address": orders.modify_user_address,
}


def call_tool(shop: Shop, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """The result of a call whose arguments match the tool's schema."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
        return ToolResult(_FUNCTIONS[name](shop, **arguments))
    except UnicodeEncodeError:
        return ToolResult("error: half a character", ToolFault.FAILED)
    except ToolFailed as failure:
        return failure.result()


def action_error(name: str, arguments: Mapping[str, Any]) -> str:
    """Why a reference action is invalid; empty if it is valid."""
    tool = next((tool for tool in TOOLS if tool.name == name), None)
    if tool is None:
        return f"no tool named {name!r}"
    expected = tool.parameters["properties"].keys()
    return "" if arguments.keys() == expected else f"{name} takes {', '.join(expected)} (got {', '.join(arguments)})"
