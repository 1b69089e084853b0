"""What a purchase is worth: WebShop's published reward, worked out from the catalogue alone."""

from __future__ import annotations

from typing import Any

import msgspec

from roll.envs.webshop.catalogue import PATH_MARK, Catalogue, Product, plain
from roll.errors import ConfigError
from roll.types import Task

_SMALL_WORDS = frozenset(
    ("a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with", "your")
)


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted: a task's answer."""

    asin: str
    """The id of the product that the wish was made from."""
    attributes: tuple[str, ...] = ()
    options: dict[str, str] = {}
    price_upper: float | None = None
    """The most that it may cost; None: any price will do."""


def goal_of(task: Task, catalogue: Catalogue) -> Goal:
    """The wish of a task, or a ConfigError that names the task and what is wrong with it."""
    answer: Any = task.answer
    try:
        goal = msgspec.convert(answer, Goal)
    except msgspec.ValidationError as error:
        raise ConfigError(f"webshop: the answer of task {task.id!r} is no goal ({error}); correct its row") from None
    if goal.asin.upper() not in catalogue.number:
        raise ConfigError(
            f"webshop: task {task.id!r} wants product {goal.asin!r}, which is not in {catalogue.place}; "
            "name another in its answer, or another catalogue"
        )
    return goal


def worth(bought: Product, chosen: dict[str, str], goal: Goal, wanted: Product) -> float:
    """From 0 to 1: `r_type * (attributes + options + price) / (wanted attributes + wanted options + 1)`.

    - attributes: how many wanted ones the product has, among its own or as words in its title, bullets or description;
    - options: how many wanted ones were chosen, same name and same value;
    - price: 1 if the product costs no more than `price_upper`, or if that is not said;
    - r_type: see `type_match`.

    Text is compared in lower case, as words of letters and digits.
    """
    hits = sum(has(bought, attribute) for attribute in goal.attributes)
    hits += sum(plain(chosen.get(name, "")) == plain(value) for name, value in goal.options.items())
    hits += goal.price_upper is None or bought.cost <= goal.price_upper
    return type_match(bought, wanted) * hits / (len(goal.attributes) + len(goal.options) + 1)


def type_match(bought: Product, wanted: Product) -> float:
    """r_type: how far a product is of the wanted kind, by the part of the wanted title's words that its title has.

    0 if it has none of them, 0.1 if it has less than a tenth; else 0.5 if it has at most a fifth, is of another query
    and shares less than two categories; else 1. A wanted title without words counts as a fifth. The original compares
    nouns, which it finds with a language model; here these are all words but small ones and those that are numbers.
    """
    words = _words(wanted.title)
    overlap = len(words & _words(bought.title)) / len(words) if words else 0.2
    if overlap == 0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    same_query = bool(wanted.query) and plain(bought.query) == plain(wanted.query)
    alike = same_query or len(_categories(bought) & _categories(wanted)) >= 2
    return 1.0 if alike or overlap > 0.2 else 0.5


def has(product: Product, attribute: str) -> bool:
    """Whether a product has an attribute, among its own or in its words."""
    wanted = plain(attribute)
    if wanted in map(plain, product.attributes):
        return True
    texts = (product.title, *product.bullets, product.description)
    return any(f" {wanted} " in f" {plain(text)} " for text in texts)


def _words(title: str) -> set[str]:
    return {word for word in plain(title).split() if word not in _SMALL_WORDS and not word.isdigit()}


def _categories(product: Product) -> set[str]:
    return {part for each in product.product_category.split(PATH_MARK) if (part := plain(each))}
