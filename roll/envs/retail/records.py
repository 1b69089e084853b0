"""Records of the shop's database, frozen, with the fields of its JSON. A change creates a new record."""

from __future__ import annotations

from typing import Any

import msgspec


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
