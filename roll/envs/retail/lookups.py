"""The read-only tools of the retail agent. The policy reads their docstrings."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from roll.envs.retail.shop import Shop
from roll.tools.base import ToolFailed
from roll.tools.calculator import evaluate


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
    return to_json(dict(sorted((product.name, key) for key, product in shop.products.items())))


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


def to_json(record: Any) -> str:
    """A record as the policy sees it."""
    return msgspec.json.encode(record).decode()
