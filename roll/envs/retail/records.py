"""What a shop's database holds: frozen records, as JSON has them. A change is a new record."""

from __future__ import annotations

from typing import Any

import msgspec


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where something is sent to, or someone lives."""

    address1: str
    address2: str
    city: str
    country: str
    state: str
    zip: str


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of an order."""

    name: str
    product_id: str
    item_id: str
    price: float
    options: dict[str, Any] = {}


class Payment(msgspec.Struct, frozen=True, kw_only=True):
    """Money that went one way or the other."""

    transaction_type: str
    amount: float
    payment_method_id: str


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order. What only some have is left out where it is not there."""

    order_id: str
    user_id: str
    address: Address
    items: tuple[Item, ...]
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
    """A gift card, which has a balance, or a credit card or PayPal account, which have none."""

    id: str
    source: str
    balance: float | None = None
    brand: str | None = None
    last_four: str | None = None


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """What someone is called."""

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
    """A product with its options chosen."""

    item_id: str
    options: dict[str, Any]
    available: bool
    price: float


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of thing that is sold."""

    name: str
    product_id: str
    variants: dict[str, Variant]
