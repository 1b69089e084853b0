"""The pages of a shop: the text and the links of each.

Exactly the labels in square brackets can be clicked: text and links come from the same list.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from roll.envs.webshop.catalogue import Catalogue, Product, search_terms

PAGE_SIZE = 10
MAX_RESULTS = 50
BACK, PREV, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
TOPICS = ("Description", "Features", "Reviews")


@dataclass(frozen=True, slots=True)
class FrontPage:
    """The page with the search field."""


@dataclass(frozen=True, slots=True)
class ResultsPage:
    """One page of search results."""

    query: str
    hits: tuple[int, ...]
    number: int = 1
    """Page number, from 1."""


@dataclass(frozen=True, slots=True)
class ItemPage:
    """A product with the options chosen so far."""

    product: int
    results: ResultsPage
    chosen: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DetailPage:
    """One topic of a product's description."""

    item: ItemPage
    topic: str


@dataclass(frozen=True, slots=True)
class BoughtPage:
    """The end: the product is bought."""

    item: ItemPage


Page = FrontPage | ResultsPage | ItemPage | DetailPage | BoughtPage


def search(catalogue: Catalogue, query: str) -> ResultsPage:
    """The first page of results of a query."""
    terms = dict.fromkeys(search_terms(query))  # a repeated term counts once
    return ResultsPage(query, tuple(catalogue.index.search(terms, MAX_RESULTS)))


def key(page: Page, catalogue: Catalogue) -> str:
    """Identifies the content of a page, independent of the path to it."""
    match page:
        case FrontPage():
            return "search"
        case ResultsPage():
            return f"results {page.number} of {page.query}"
        case ItemPage():
            chosen = "".join(f"; {name}: {value}" for name, value in sorted(page.chosen))
            return f"{catalogue.products[page.product].id}{chosen}"
        case DetailPage():
            return f"{key(page.item, catalogue)}; {page.topic}"
        case BoughtPage():
            return f"{key(page.item, catalogue)}; bought"


def links(page: Page, catalogue: Catalogue) -> dict[str, Page]:
    """The target page of each link."""
    match page:
        case ResultsPage():
            return _result_links(page, catalogue)
        case ItemPage():
            return _item_links(page, catalogue.products[page.product])
        case DetailPage():
            return {BACK: FrontPage(), PREV: page.item}
        case _:
            return {}


def text(page: Page, catalogue: Catalogue) -> str:
    """The text of a page."""
    match page:
        case FrontPage():
            return "[Search]"
        case ResultsPage():
            return _results(page, catalogue)
        case ItemPage():
            return _item(page, catalogue.products[page.product])
        case DetailPage():
            return f"[{BACK}] [{PREV}]\n{_details(catalogue.products[page.item.product], page.topic)}"
        case BoughtPage():
            return "Thank you for shopping with us!"


def _on_page(page: ResultsPage) -> tuple[int, ...]:
    return page.hits[(page.number - 1) * PAGE_SIZE : page.number * PAGE_SIZE]


def _result_links(page: ResultsPage, catalogue: Catalogue) -> dict[str, Page]:
    targets: dict[str, Page] = {BACK: FrontPage()}
    if page.number > 1:
        targets[PREV] = replace(page, number=page.number - 1)
    if page.number * PAGE_SIZE < len(page.hits):
        targets[NEXT] = replace(page, number=page.number + 1)
    return targets | {catalogue.products[hit].id: ItemPage(hit, page) for hit in _on_page(page)}


def _item_links(page: ItemPage, product: Product) -> dict[str, Page]:
    targets: dict[str, Page] = {BACK: FrontPage(), PREV: page.results}
    chosen = dict(page.chosen)
    for (name, value), label in option_labels(product).items():
        targets[label] = replace(page, chosen=tuple({**chosen, name: value}.items()))
    return targets | {topic: DetailPage(page, topic) for topic in TOPICS} | {BUY: BoughtPage(page)}


def option_labels(product: Product) -> dict[tuple[str, str], str]:
    """The label of each option value: the value, prefixed by the option's name if it would be ambiguous."""
    uses = Counter(label.lower() for label in (BACK, PREV, BUY, *TOPICS))
    uses.update(value.lower() for values in product.options.values() for value in set(values))
    return {
        (name, value): value if uses[value.lower()] == 1 else f"{name}: {value}"
        for name, values in product.options.items()
        for value in values
    }


def _results(page: ResultsPage, catalogue: Catalogue) -> str:
    num_pages = max(1, -(-len(page.hits) // PAGE_SIZE))
    head = " ".join(f"[{label}]" for label in links(page, catalogue) if label in (BACK, PREV, NEXT))
    products = (catalogue.products[hit] for hit in _on_page(page))
    lines = [f"{head} Page {page.number} of {num_pages} (Total results: {len(page.hits)})"]
    lines += [f"[{product.id}] {product.title} {_price(product)}" for product in products]
    return "\n".join(lines)


def _item(page: ItemPage, product: Product) -> str:
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
