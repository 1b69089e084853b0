"""The tools of the retail agent that change the database, with the rules of the shop.

The policy reads their docstrings. A broken rule changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Annotated, Any, Literal

import msgspec

from roll.envs.retail.shop import Address, OrderItem, Payment, PaymentMethod, RetailOrder, Shop, Variant, to_json
from roll.tools.base import ToolFailed

OrderId = Annotated[str, "with the # it begins with: #W0000000"]
ItemIds = Annotated[list[str], "an item that is there twice is named twice"]
NewItemIds = Annotated[list[str], "in the order of item_ids, each of the same product as the item it stands for"]
MethodId = Annotated[str, "a payment method of the user, such as gift_card_0000000"]


def cancel_pending_order(
    shop: Shop, order_id: OrderId, reason: Literal["no longer needed", "ordered by mistake"]
) -> str:
    """Cancels a pending order, and refunds it: to a gift card at once, else within 5 to 7 business days.

    Ask the user for an explicit yes before.
    """
    order = _order(shop, order_id, "pending")
    if reason not in ("no longer needed", "ordered by mistake"):
        raise ToolFailed("that is no reason to cancel an order")
    refunds = _refunds(order)
    for refund in refunds:
        shop.pay(order.user_id, refund.payment_method_id, -refund.amount)
    history = (*order.payment_history, *refunds)
    return to_json(shop.change_order(order, status="cancelled", cancel_reason=reason, payment_history=history))


def modify_pending_order_items(
    shop: Shop, order_id: OrderId, item_ids: ItemIds, new_item_ids: NewItemIds, payment_method_id: MethodId
) -> str:
    """Changes items of a pending order to other items of the same product; can be done once for an order.

    The payment method pays the difference in price, or gets it back. Ask the user for an explicit yes before.
    """
    order = _order(shop, order_id, "pending")
    variants, difference = _price_exchange(shop, order, item_ids, new_item_ids, payment_method_id)
    kind = "payment" if difference > 0 else "refund"
    payment = Payment(transaction_type=kind, amount=abs(difference), payment_method_id=payment_method_id)
    shop.pay(order.user_id, payment_method_id, difference)
    changed = shop.change_order(
        order,
        status="pending (item modified)",
        items=_replace_items(order.items, item_ids, variants),
        payment_history=(*order.payment_history, payment),
    )
    return to_json(changed)


def exchange_delivered_order_items(
    shop: Shop, order_id: OrderId, item_ids: ItemIds, new_item_ids: NewItemIds, payment_method_id: MethodId
) -> str:
    """Asks for items of a delivered order to be exchanged for other items of the same product; once for an order.

    The payment method will pay the difference in price, or get it back. Ask the user for an explicit yes before.
    """
    order = _order(shop, order_id, "delivered")
    _, difference = _price_exchange(shop, order, item_ids, new_item_ids, payment_method_id)
    changed = shop.change_order(
        order,
        status="exchange requested",
        exchange_items=tuple(sorted(item_ids)),
        exchange_new_items=tuple(sorted(new_item_ids)),
        exchange_payment_method_id=payment_method_id,
        exchange_price_difference=difference,
    )
    return to_json(changed)


def return_delivered_order_items(shop: Shop, order_id: OrderId, item_ids: ItemIds, payment_method_id: MethodId) -> str:
    """Asks for items of a delivered order to be returned; the user is told by email how.

    The refund goes to a gift card, or to the method that the order was paid with. Ask the user for an explicit yes
    before.
    """
    order = _order(shop, order_id, "delivered")
    method = _method(shop, order, payment_method_id)
    if method.source != "gift_card" and payment_method_id != order.payment_history[0].payment_method_id:
        raise ToolFailed("the refund can go to a gift card or to the original payment method alone")
    _check_items(order, item_ids)
    changed = shop.change_order(
        order,
        status="return requested",
        return_items=tuple(sorted(item_ids)),
        return_payment_method_id=payment_method_id,
    )
    return to_json(changed)


def modify_pending_order_payment(shop: Shop, order_id: OrderId, payment_method_id: MethodId) -> str:
    """Changes what a pending order is paid with, to another method of the user; the first one is refunded.

    Ask the user for an explicit yes before.
    """
    order = _order(shop, order_id, "pending")
    first, *more = order.payment_history
    method = _method(shop, order, payment_method_id)
    if more or first.transaction_type != "payment":
        raise ToolFailed("the order has more than one payment, which cannot be moved")
    if first.payment_method_id == payment_method_id:
        raise ToolFailed("the order is paid with that method already")
    _check_balance(method, first.amount)
    payment = msgspec.structs.replace(first, payment_method_id=payment_method_id)
    refund = msgspec.structs.replace(first, transaction_type="refund")
    shop.pay(order.user_id, payment_method_id, first.amount)
    shop.pay(order.user_id, first.payment_method_id, -first.amount)
    return to_json(shop.change_order(order, payment_history=(first, payment, refund)))


def modify_pending_order_address(shop: Shop, order_id: str, **address: str) -> str:
    """Changes where a pending order is sent to. Ask the user for an explicit yes before."""
    return to_json(shop.change_order(_order(shop, order_id, "pending"), address=Address(**address)))


def modify_user_address(shop: Shop, user_id: str, **address: str) -> str:
    """Changes the address of a user's profile. Ask the user for an explicit yes before."""
    return to_json(shop.change_user(user_id, address=Address(**address)))


def _order(shop: Shop, order_id: str, status: Literal["pending", "delivered"]) -> RetailOrder:
    order = shop.order(order_id)
    if order.status != status:
        raise ToolFailed(f"this can be done with {status} orders alone, and order {order_id} is {order.status}")
    return order


def _refunds(order: RetailOrder) -> tuple[Payment, ...]:
    """Refunds of all payments that were not refunded yet."""
    paid: dict[str, float] = defaultdict(float)
    for payment in order.payment_history:
        paid[payment.payment_method_id] += payment.amount * (1 if payment.transaction_type == "payment" else -1)
    return tuple(
        Payment(transaction_type="refund", amount=round(amount, 2), payment_method_id=method_id)
        for method_id, amount in paid.items()
        if round(amount, 2) > 0
    )


def _check_items(order: RetailOrder, item_ids: list[Any]) -> None:
    """Raise ToolFailed unless the order has each item as often as it is named."""
    if not all(isinstance(item_id, str) for item_id in item_ids):
        raise ToolFailed("item ids are texts")
    held = Counter(item.item_id for item in order.items)
    for item_id, count in Counter(item_ids).items():
        if count > held[item_id]:
            raise ToolFailed(f"item {item_id[:50]!r} not found in order {order.order_id}")


def _new_variants(shop: Shop, order: RetailOrder, item_ids: list[Any], new_item_ids: list[Any]) -> list[Variant]:
    """The new variant of each item."""
    _check_items(order, item_ids)
    if len(item_ids) != len(new_item_ids):
        raise ToolFailed(f"{len(item_ids)} items cannot be exchanged for {len(new_item_ids)}; name as many new ones")
    products = {item.item_id: item.product_id for item in order.items}
    new_variants: list[Variant] = []
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        variants = shop.product(products[item_id]).variants
        variant = variants.get(new_item_id) if isinstance(new_item_id, str) else None
        if variant is None or not variant.available:
            raise ToolFailed(f"item {str(new_item_id)[:50]!r} is not there or not available for that product")
        new_variants.append(variant)
    return new_variants


def _price_exchange(
    shop: Shop, order: RetailOrder, item_ids: list[str], new_item_ids: list[str], method_id: str
) -> tuple[list[Variant], float]:
    """The new variants, and their price minus that of the old items, for which the payment method has enough."""
    variants = _new_variants(shop, order, item_ids, new_item_ids)
    prices = {item.item_id: item.price for item in reversed(order.items)}
    spent = [variant.price - prices[item_id] for item_id, variant in zip(item_ids, variants, strict=True)]
    difference = round(sum(sorted(spent)), 2)
    _check_balance(_method(shop, order, method_id), difference)
    return variants, difference


def _replace_items(items: tuple[OrderItem, ...], item_ids: list[str], variants: list[Variant]) -> tuple[OrderItem, ...]:
    """The items, with each named item replaced by its variant."""
    pending: dict[str, list[Variant]] = defaultdict(list)
    for item_id, variant in zip(item_ids, variants, strict=True):
        pending[item_id].append(variant)

    def replace(item: OrderItem) -> OrderItem:
        if not pending[item.item_id]:
            return item
        new = pending[item.item_id].pop(0)
        return msgspec.structs.replace(item, item_id=new.item_id, price=new.price, options=new.options)

    return tuple(map(replace, items))


def _method(shop: Shop, order: RetailOrder, method_id: str) -> PaymentMethod:
    methods = shop.user(order.user_id).payment_methods
    if method_id not in methods:
        raise ToolFailed(f"payment method {method_id[:50]!r} not found for the user of the order")
    return methods[method_id]


def _check_balance(method: PaymentMethod, amount: float) -> None:
    if method.balance is not None and method.balance < amount:
        raise ToolFailed(f"gift card {method.id} has not enough on it")
