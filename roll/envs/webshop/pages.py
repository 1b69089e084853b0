"""The pages of a shop: what stands on each, and where its links lead.

What stands in square brackets can be clicked, and nothing else: both come from the same list of links.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from roll.envs.webshop.catalogue import Catalogue, Product

PAGE_SIZE = 10
MAX_RESULTS = 50
BACK, PREV, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
TOPICS = ("Description", "Features", "Reviews")


@dataclass(frozen=True, slots=True)
class Front:
    """Where a search begins."""


@dataclass(frozen=True, slots=True)
class Results:
    """Some of what a search has found."""

    query: str
    hits: tuple[int, ...]
    number: int = 1
    """Of the page, from 1."""


@dataclass(frozen=True, slots=True)
class Item:
    """A product, with the options chosen so far."""

    product: int
    results: Results
    chosen: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Detail:
    """What is written about a product under one topic."""

    item: Item
    topic: str


@dataclass(frozen=True, slots=True)
class Bought:
    """The end."""

    item: Item


Page = Front | Results | Item | Detail | Bought


def search(catalogue: Catalogue, query: str) -> Results:
    """The first page of what a query finds."""
    return Results(query, catalogue.index.search(query, MAX_RESULTS))


def key(page: Page, catalogue: Catalogue) -> str:
    """Names what a page shows: alike however one came to it."""
    match page:
        case Front():
            return "search"
        case Results():
            return f"results {page.number} of {page.query}"
        case Item():
            chosen = "".join(f"; {name}: {value}" for name, value in sorted(page.chosen))
            return f"{catalogue.products[page.product].id}{chosen}"
        case Detail():
            return f"{key(page.item, catalogue)}; {page.topic}"
        case Bought():
            return f"{key(page.item, catalogue)}; bought"


def links(page: Page, catalogue: Catalogue) -> dict[str, Page]:
    """Where each link of a page leads."""
    match page:
        case Results():
            return _result_links(page, catalogue)
        case Item():
            return _item_links(page, catalogue.products[page.product])
        case Detail():
            return {BACK: Front(), PREV: page.item}
        case _:
            return {}


def text(page: Page, catalogue: Catalogue) -> str:
    """A page as it is read."""
    match page:
        case Front():
            return "[Search]"
        case Results():
            return _results(page, catalogue)
        case Item():
            return _item(page, catalogue.products[page.product])
        case Detail():
            return f"[{BACK}] [{PREV}]\n{_details(catalogue.products[page.item.product], page.topic)}"
        case Bought():
            return "Thank you for shopping with us!"


def _on_page(page: Results) -> tuple[int, ...]:
    return page.hits[(page.number - 1) * PAGE_SIZE : page.number * PAGE_SIZE]


def _result_links(page: Results, catalogue: Catalogue) -> dict[str, Page]:
    found: dict[str, Page] = {BACK: Front()}
    if page.number > 1:
        found[PREV] = replace(page, number=page.number - 1)
    if page.number * PAGE_SIZE < len(page.hits):
        found[NEXT] = replace(page, number=page.number + 1)
    return found | {catalogue.products[hit].id: Item(hit, page) for hit in _on_page(page)}


def _item_links(page: Item, product: Product) -> dict[str, Page]:
    found: dict[str, Page] = {BACK: Front(), PREV: page.results}
    chosen = dict(page.chosen)
    for (name, value), label in option_labels(product).items():
        found[label] = replace(page, chosen=tuple({**chosen, name: value}.items()))
    return found | {topic: Detail(page, topic) for topic in TOPICS} | {BUY: Bought(page)}


def option_labels(product: Product) -> dict[tuple[str, str], str]:
    """What to click for each value of each option: the value, and the option before it where that would be unclear."""
    taken = Counter(label.lower() for label in (BACK, PREV, BUY, *TOPICS))
    taken.update(value.lower() for values in product.options.values() for value in set(values))
    return {
        (name, value): value if taken[value.lower()] == 1 else f"{name}: {value}"
        for name, values in product.options.items()
        for value in values
    }


def _results(page: Results, catalogue: Catalogue) -> str:
    num_pages = max(1, -(-len(page.hits) // PAGE_SIZE))
    moves = [label for label in links(page, catalogue) if label in (BACK, PREV, NEXT)]
    head = " ".join(f"[{label}]" for label in moves)
    products = (catalogue.products[hit] for hit in _on_page(page))
    return "\n".join(
        (
            f"{head} Page {page.number} of {num_pages} (Total results: {len(page.hits)})",
            *(f"[{product.id}] {product.title} {_price(product)}" for product in products),
        )
    )


def _item(page: Item, product: Product) -> str:
    labels, chosen = option_labels(product), dict(page.chosen)
    lines = [f"[{BACK}] [{PREV}]"]
    for name, values in product.options.items():
        picked = f" (chosen: {chosen[name]})" if name in chosen else ""
        lines.append(f"{name}: {' '.join(f'[{labels[name, value]}]' for value in values)}{picked}")
    lines += [product.title, f"Price: {_price(product)}", f"Rating: {product.rating}"]
    return "\n".join((*lines, " ".join(f"[{topic}]" for topic in TOPICS), f"[{BUY}]"))


def _details(product: Product, topic: str) -> str:
    written = {"Description": (product.description,), "Features": product.bullets, "Reviews": product.reviews}[topic]
    lines = [line.strip() for line in written if line.strip()]
    return "\n".join(lines) or f"No {topic.lower()}."


def _price(product: Product) -> str:
    return " to ".join(f"${price:.2f}" for price in product.price)
