"""The products of a shop, read once per process from a file with one product per line."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from roll.data.tasks import parse_lines
from roll.tools.retrieval import BM25Index, split_words

Text = Annotated[str, msgspec.Meta(min_length=1)]
PATH_MARK = "\u203a"  # a right-pointing angle
Price = Annotated[float, msgspec.Meta(ge=0)]


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One product. Other fields of a line are ignored."""

    id: Text
    title: str
    price: Annotated[tuple[Price, ...], msgspec.Meta(min_length=1, max_length=2)]
    """Price, or lowest and highest price."""
    options: dict[str, tuple[Text, ...]] = {}
    """Possible values by option name."""
    bullets: tuple[str, ...] = ()
    description: str = ""
    attributes: tuple[str, ...] = ()
    """Properties such as `machine wash`; not shown."""
    query: str = ""
    """The kind of product as a search query; not shown."""
    product_category: str = ""
    """A path of categories separated by `PATH_MARK`; not shown."""
    rating: str = "N.A."
    reviews: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """The highest price: the catalogue does not say which option has which price."""
        return max(self.price)

    @property
    def text(self) -> str:
        """The text that a search covers."""
        options = (value for values in self.options.values() for value in values)
        return " ".join((self.title, *self.bullets, *options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All products of a shop."""

    path: str
    """Path of the file."""
    products: tuple[Product, ...]
    positions: dict[str, int]
    """Position of each product by its id in upper case."""
    index: BM25Index


@functools.lru_cache(maxsize=4)
def read_catalogue(path: str) -> Catalogue:
    """The products of a `.jsonl` or `.jsonl.gz` file with their index; shared by all environments of a process."""
    positions: dict[str, int] = {}

    def parse(_: int, row: Any) -> Product:
        try:
            product = msgspec.convert(row, Product)
        except msgspec.ValidationError as error:
            raise ValueError(f"not a product ({error}); correct it") from None
        if product.id.upper() in positions:
            raise ValueError(f"id {product.id!r} is used twice; give each product its own")
        positions[product.id.upper()] = len(positions)
        return product

    products = parse_lines(Path(path), parse, empty="no products; put one object on each line")
    index = BM25Index(search_terms(product.text) for product in products)
    return Catalogue(path=path, products=tuple(products), positions=positions, index=index)


def normalise_words(text: str) -> str:
    """Words of letters and digits in lower case, separated by single spaces."""
    return " ".join(split_words(text))


def search_terms(text: str) -> list[str]:
    """Words of letters and digits in lower case, without a plural s."""
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in split_words(text)
    ]
