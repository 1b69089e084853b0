"""WebShop's published reward for a purchase, computed from the catalogue alone."""

from __future__ import annotations

import msgspec

from roll.envs.inputs import parse_row
from roll.envs.webshop.catalogue import PATH_MARK, Catalogue, Product, normalise_words
from roll.errors import ConfigError
from roll.types import Task

_SMALL_WORDS = frozenset(
    ("a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with", "your")
)


class ShoppingGoal(msgspec.Struct, frozen=True, kw_only=True):
    """The product to buy: a task's answer."""

    asin: str
    """Id of the product that the question was written for."""
    attributes: tuple[str, ...] = ()
    options: dict[str, str] = {}
    price_upper: float | None = None
    """Highest acceptable price; None: any price."""


class _ShoppingTask(msgspec.Struct, frozen=True):
    answer: ShoppingGoal


def parse_goal(task: Task, catalogue: Catalogue) -> ShoppingGoal:
    """The goal of a task; ConfigError names the task and the fault."""
    goal = parse_row(task, _ShoppingTask, "webshop").answer
    if goal.asin.upper() not in catalogue.positions:
        raise ConfigError(
            f"webshop: task {task.id!r} wants product {goal.asin!r}, which is not in {catalogue.path}; "
            "name another in its answer, or another catalogue"
        )
    return goal


def purchase_reward(bought: Product, chosen: dict[str, str], goal: ShoppingGoal, target: Product) -> float:
    """Reward from 0 to 1: `r_type * (attributes + options + price) / (goal attributes + goal options + 1)`.

    - attributes: number of goal attributes that the product has, as attributes or in title, bullets or description;
    - options: number of goal options that were chosen with the right value;
    - price: 1 if the product costs at most `price_upper`, or if there is none;
    - r_type: see `type_match`.

    Text is compared as lower-case words of letters and digits.
    """
    hits = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    hits += sum(normalise_words(chosen.get(name, "")) == normalise_words(value) for name, value in goal.options.items())
    hits += goal.price_upper is None or bought.cost <= goal.price_upper
    return type_match(bought, target) * hits / (len(goal.attributes) + len(goal.options) + 1)


def type_match(bought: Product, target: Product) -> float:
    """r_type: whether a product is of the right kind, from the fraction of the target's title words in its title.

    0 without common words and 0.1 below a tenth; otherwise 0.5 if the fraction is at most a fifth, the query differs
    and fewer than two categories are shared; otherwise 1. A target title without words counts as a fifth. The original
    compares nouns found by a language model; here all words count except short function words and numbers.
    """
    words = _words(target.title)
    overlap = len(words & _words(bought.title)) / len(words) if words else 0.2
    if overlap == 0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    same_query = bool(target.query) and normalise_words(bought.query) == normalise_words(target.query)
    alike = same_query or len(_categories(bought) & _categories(target)) >= 2
    return 1.0 if alike or overlap > 0.2 else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether a product has an attribute, in its list or in its text."""
    words = normalise_words(attribute)
    if words in map(normalise_words, product.attributes):
        return True
    texts = (product.title, *product.bullets, product.description)
    return any(f" {words} " in f" {normalise_words(text)} " for text in texts)


def _words(title: str) -> set[str]:
    return {word for word in normalise_words(title).split() if word not in _SMALL_WORDS and not word.isdigit()}


def _categories(product: Product) -> set[str]:
    return {part for each in product.product_category.split(PATH_MARK) if (part := normalise_words(each))}
