"""The shop's database: tables read once per process, and per attempt a layer with its changes."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from roll.envs.retail.records import RetailOrder, RetailProduct, User
from roll.envs.rows import read_json
from roll.errors import ConfigError
from roll.tools.base import ToolFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The content of the files; shared by all attempts of a process and never changed."""

    orders: dict[str, RetailOrder]
    users: dict[str, User]
    products: dict[str, RetailProduct]


@functools.lru_cache(maxsize=4)
def read_tables(pattern: str) -> Tables:
    """The tables in the files of `pattern`, with `orders`, `users` and `products` for `{table}`."""
    if "{table}" not in pattern:
        raise ConfigError(f"retail: database has no {{table}} in it (got {pattern!r}); write folder/{{table}}.json.gz")
    return Tables(
        orders=read_json(pattern.replace("{table}", "orders"), dict[str, RetailOrder], "retail: database"),
        users=read_json(pattern.replace("{table}", "users"), dict[str, User], "retail: database"),
        products=read_json(pattern.replace("{table}", "products"), dict[str, RetailProduct], "retail: database"),
    )


class Shop:
    """The database of one attempt. A failed lookup raises ToolFailed, which the policy sees."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._orders: dict[str, RetailOrder] = {}
        self._users: dict[str, User] = {}

    def order(self, order_id: str) -> RetailOrder:
        return _require(self._orders.get(order_id) or self._tables.orders.get(order_id), "order", order_id)

    def user(self, user_id: str) -> User:
        return _require(self._users.get(user_id) or self._tables.users.get(user_id), "user", user_id)

    def product(self, product_id: str) -> RetailProduct:
        return _require(self._tables.products.get(product_id), "product", product_id)

    @property
    def products(self) -> dict[str, RetailProduct]:
        return self._tables.products

    @property
    def users(self) -> dict[str, User]:
        """All users, with this attempt's changes."""
        return {**self._tables.users, **self._users}

    def change_order(self, order: RetailOrder, **changes: Any) -> RetailOrder:
        """Change an order; returns the new record."""
        changed = self._orders[order.order_id] = msgspec.structs.replace(order, **changes)
        return changed

    def change_user(self, user_id: str, **changes: Any) -> User:
        """Change a user; returns the new record."""
        changed = self._users[user_id] = msgspec.structs.replace(self.user(user_id), **changes)
        return changed

    def pay(self, user_id: str, method_id: str, amount: float) -> None:
        """Charge a gift card, or refund it if `amount` is negative; other methods are settled elsewhere."""
        methods = self.user(user_id).payment_methods
        method = methods.get(method_id)
        if method is None or method.balance is None:
            return
        paid = msgspec.structs.replace(method, balance=round(method.balance - amount, 2))
        self.change_user(user_id, payment_methods={**methods, method_id: paid})

    def digest(self) -> str:
        """A hash of all differences from the files: equal for databases with equal content."""
        orders = {key: order for key, order in self._orders.items() if order != self._tables.orders[key]}
        users = {key: user for key, user in self._users.items() if user != self._tables.users[key]}
        canonical = msgspec.json.encode([orders, users], order="deterministic")
        return hashlib.sha256(canonical).hexdigest()


def _require(record: T | None, kind: str, key: str) -> T:
    if record is None:
        raise ToolFailed(f"{kind} {key[:50]!r} not found")
    return record
