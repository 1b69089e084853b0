"""The shop's database: tables read once per process, and per attempt a layer with its changes.

Records are frozen and have the fields of the JSON files. A change creates a new record.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from roll.envs.inputs import read_json
from roll.errors import ConfigError
from roll.tools.base import ToolFailed

T = TypeVar("T")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address of an order or a user."""

    address1: str
    address2: str
    city: str
    country: str
    state: str
    zip: str


class OrderItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of an order."""

    name: str
    product_id: str
    item_id: str
    price: float
    options: dict[str, Any] = {}


class Payment(msgspec.Struct, frozen=True, kw_only=True):
    """A payment or a refund."""

    transaction_type: str
    amount: float
    payment_method_id: str


class RetailOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order. Optional fields are omitted from its JSON if they are unset."""

    order_id: str
    user_id: str
    address: Address
    items: tuple[OrderItem, ...]
    status: str
    payment_history: tuple[Payment, ...]
    fulfillments: tuple[dict[str, Any], ...] = ()
    cancel_reason: str | None = None
    exchange_items: tuple[str, ...] = ()
    exchange_new_items: tuple[str, ...] = ()
    exchange_payment_method_id: str | None = None
    exchange_price_difference: float | None = None
    return_items: tuple[str, ...] = ()
    return_payment_method_id: str | None = None


class PaymentMethod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gift card with a balance, or a credit card or PayPal account without one."""

    id: str
    source: str
    balance: float | None = None
    brand: str | None = None
    last_four: str | None = None


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """A user's name."""

    first_name: str
    last_name: str


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A customer."""

    name: Name
    address: Address
    email: str
    payment_methods: dict[str, PaymentMethod]
    orders: tuple[str, ...] = ()


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A product with chosen options."""

    item_id: str
    options: dict[str, Any]
    available: bool
    price: float


class RetailProduct(msgspec.Struct, frozen=True, kw_only=True):
    """A product in all its variants."""

    name: str
    product_id: str
    variants: dict[str, Variant]


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

    def read(table: str, kind: type[T]) -> dict[str, T]:
        return read_json(pattern.replace("{table}", table), dict[str, kind], "retail: database")

    return Tables(
        orders=read("orders", RetailOrder), users=read("users", User), products=read("products", RetailProduct)
    )


class Shop:
    """The database of one attempt. A failed lookup raises ToolFailed, which the policy sees."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._orders: dict[str, RetailOrder] = {}
        self._users: dict[str, User] = {}

    def order(self, order_id: str) -> RetailOrder:
        return _require(self._orders.get(order_id) or self.tables.orders.get(order_id), "order", order_id)

    def user(self, user_id: str) -> User:
        return _require(self._users.get(user_id) or self.tables.users.get(user_id), "user", user_id)

    def product(self, product_id: str) -> RetailProduct:
        return _require(self.tables.products.get(product_id), "product", product_id)

    @property
    def users(self) -> dict[str, User]:
        """All users, with this attempt's changes."""
        return {**self.tables.users, **self._users}

    def change_order(self, order: RetailOrder, **changes: Any) -> RetailOrder:
        changed = self._orders[order.order_id] = msgspec.structs.replace(order, **changes)
        return changed

    def change_user(self, user_id: str, **changes: Any) -> User:
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
        orders = {key: order for key, order in self._orders.items() if order != self.tables.orders[key]}
        users = {key: user for key, user in self._users.items() if user != self.tables.users[key]}
        canonical = msgspec.json.encode([orders, users], order="deterministic")
        return hashlib.sha256(canonical).hexdigest()


def _require(record: T | None, kind: str, key: str) -> T:
    if record is None:
        raise ToolFailed(f"{kind} {key[:50]!r} not found")
    return record


def to_json(record: Any) -> str:
    """A record as the policy sees it."""
    return msgspec.json.encode(record).decode()
