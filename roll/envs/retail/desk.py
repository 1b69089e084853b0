"""All tools of the retail agent: those that only read, the schemas of all, and how they are called.

The policy reads the docstrings of the tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from roll.data.tools import Tool
from roll.envs.retail import orders
from roll.envs.retail.shop import Shop, to_json
from roll.tools.base import ToolFailed, ToolFault, ToolResult
from roll.tools.calculator import evaluate
from roll.tools.function import tool_from_function


def find_user_id_by_email(shop: Shop, email: str) -> str:
    """Finds the id of the user who has this email address."""
    for user_id, user in shop.users.items():
        if user.email.lower() == email.lower():
            return user_id
    raise ToolFailed("user not found")


def find_user_id_by_name_zip(shop: Shop, first_name: str, last_name: str, zip: str) -> str:
    """Finds the id of a user by name and zip code, for users who do not know their email address."""
    key = (first_name.lower(), last_name.lower(), zip)
    for user_id, user in shop.users.items():
        if (user.name.first_name.lower(), user.name.last_name.lower(), user.address.zip) == key:
            return user_id
    raise ToolFailed("user not found")


def get_user_details(shop: Shop, user_id: Annotated[str, "such as sara_doe_496"]) -> str:
    """Shows a user's name, address, email, payment methods and order ids."""
    return to_json(shop.user(user_id))


def get_order_details(shop: Shop, order_id: Annotated[str, "with the # it begins with: #W0000000"]) -> str:
    """Shows an order: its status, address, items and payments."""
    return to_json(shop.order(order_id))


def get_product_details(shop: Shop, product_id: Annotated[str, "of a product, not of an item"]) -> str:
    """Shows all items of a product: their options, prices, and whether they are available."""
    return to_json(shop.product(product_id))


def list_all_product_types(shop: Shop) -> str:
    """Lists the names of all products, with their product ids."""
    return to_json(dict(sorted((product.name, key) for key, product in shop.tables.products.items())))


def calculate(shop: Shop, expression: Annotated[str, "numbers, + - * / and parentheses, such as (2 + 3) * 4"]) -> str:
    """Works out an arithmetic expression, rounded to two decimals."""
    try:
        return str(float(round(evaluate(expression), 2)))
    except OverflowError:
        raise ToolFailed("the result is too large") from None


def think(shop: Shop, thought: str) -> str:
    """Notes down a thought. Nothing else comes of it."""
    return "Noted."


def transfer_to_human_agents(shop: Shop, summary: Annotated[str, "of what the user wants"]) -> str:
    """Hands the user over to a person, where the tools are not enough. This ends the conversation."""
    return "The user is handed over."


TRANSFER = transfer_to_human_agents.__name__
_ADDRESS = ("address1", "address2", "city", "state", "country", "zip")
_DOCUMENTED: tuple[Callable[..., str], ...] = (
    calculate,
    orders.cancel_pending_order,
    orders.exchange_delivered_order_items,
    find_user_id_by_email,
    find_user_id_by_name_zip,
    get_order_details,
    get_product_details,
    get_user_details,
    list_all_product_types,
    orders.modify_pending_order_items,
    orders.modify_pending_order_payment,
    orders.return_delivered_order_items,
    think,
    transfer_to_human_agents,
)


def _address_tool(function: Callable[..., str], key: str) -> Tool:
    """A tool that takes an address and the id of its owner."""
    properties = {name: {"type": "string"} for name in (key, *_ADDRESS)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(function.__name__, function.__doc__ or "", schema)


TOOLS: tuple[Tool, ...] = (
    *(tool_from_function(function, {"shop": None}) for function in _DOCUMENTED),
    _address_tool(orders.modify_pending_order_address, "order_id"),
    _address_tool(orders.modify_user_address, "user_id"),
)
_FUNCTIONS: dict[str, Callable[..., str]] = {
    function.__name__: function
    for function in (*_DOCUMENTED, orders.modify_pending_order_address, orders.modify_user_address)
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
