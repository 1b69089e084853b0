"""A shop's database: read once in a process, and for each attempt a layer above it that holds what was changed."""

from __future__ import annotations

import functools
import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from roll.envs.retail.records import Order, Product, User
from roll.errors import ConfigError
from roll.tools.base import ToolFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What is in the files; shared by all attempts of a process, and never changed."""

    orders: dict[str, Order]
    users: dict[str, User]
    products: dict[str, Product]


@functools.lru_cache(maxsize=4)
def tables_of(pattern: str) -> Tables:
    """The tables of the files that `pattern` stands for, `{table}` being `orders`, `users` and `products`."""
    if "{table}" not in pattern:
        raise ConfigError(f"retail: database has no {{table}} in it (got {pattern!r}); write folder/{{table}}.json.gz")
    return Tables(
        orders=_read(pattern.replace("{table}", "orders"), dict[str, Order]),
        users=_read(pattern.replace("{table}", "users"), dict[str, User]),
        products=_read(pattern.replace("{table}", "products"), dict[str, Product]),
    )


def _read(path: str, kind: type[T]) -> T:
    file = Path(path)
    try:
        raw = file.read_bytes()
        return msgspec.json.decode(gzip.decompress(raw) if file.suffix == ".gz" else raw, type=kind)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); check retail's database") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is no such table ({error}); correct it") from None


class Shop:
    """The database of one attempt. What is looked for and not there is told to whoever called the tool."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._orders: dict[str, Order] = {}
        self._users: dict[str, User] = {}

    def order(self, order_id: str) -> Order:
        return _found(self._orders.get(order_id) or self._tables.orders.get(order_id), "order", order_id)

    def user(self, user_id: str) -> User:
        return _found(self._users.get(user_id) or self._tables.users.get(user_id), "user", user_id)

    def product(self, product_id: str) -> Product:
        return _found(self._tables.products.get(product_id), "product", product_id)

    @property
    def products(self) -> dict[str, Product]:
        return self._tables.products

    @property
    def users(self) -> dict[str, User]:
        """All of them, as they are now."""
        return {**self._tables.users, **self._users}

    def change_order(self, order: Order, **changes: Any) -> Order:
        """The order as it is from now on."""
        changed = self._orders[order.order_id] = msgspec.structs.replace(order, **changes)
        return changed

    def change_user(self, user_id: str, **changes: Any) -> User:
        """The user as they are from now on."""
        changed = self._users[user_id] = msgspec.structs.replace(self.user(user_id), **changes)
        return changed

    def pay(self, user_id: str, method_id: str, amount: float) -> None:
        """Take an amount, or give it where it is negative, if the method is a gift card; others settle elsewhere."""
        methods = self.user(user_id).payment_methods
        method = methods.get(method_id)
        if method is None or method.balance is None:
            return
        paid = msgspec.structs.replace(method, balance=round(method.balance - amount, 2))
        self.change_user(user_id, payment_methods={**methods, method_id: paid})

    def digest(self) -> str:
        """The same for two databases that hold the same: a hash of all that differs from the files."""
        orders = {key: order for key, order in self._orders.items() if order != self._tables.orders[key]}
        users = {key: user for key, user in self._users.items() if user != self._tables.users[key]}
        canonical = msgspec.json.encode([orders, users], order="deterministic")
        return hashlib.sha256(canonical).hexdigest()


def _found(found: T | None, kind: str, key: str) -> T:
    if found is None:
        raise ToolFailed(f"{kind} {key[:50]!r} not found")
    return found
