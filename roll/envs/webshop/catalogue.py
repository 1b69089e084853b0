"""The products of a shop, read once in a process from a file with one of them a line."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from roll.data.tasks import numbered_objects
from roll.envs.webshop.search import Index
from roll.errors import ConfigError

Text = Annotated[str, msgspec.Meta(min_length=1)]
PATH_MARK = "\u203a"  # an angle that points to the right
Price = Annotated[float, msgspec.Meta(ge=0)]


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One product. Other fields of a line are left alone."""

    id: Text
    title: str
    price: Annotated[tuple[Price, ...], msgspec.Meta(min_length=1, max_length=2)]
    """What it costs, or from what to what."""
    options: dict[str, tuple[Text, ...]] = {}
    """The values to choose from, by the option's name."""
    bullets: tuple[str, ...] = ()
    description: str = ""
    attributes: tuple[str, ...] = ()
    """What it is known to be, such as `machine wash`; not shown."""
    query: str = ""
    """The kind of product, as one would search for it; not shown."""
    product_category: str = ""
    """A path of categories, parted by `PATH_MARK`; not shown."""
    rating: str = "N.A."
    reviews: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """The most that it may cost: which option has which price is not told."""
        return max(self.price)

    @property
    def text(self) -> str:
        """What a search looks at."""
        options = (value for values in self.options.values() for value in values)
        return " ".join((self.title, *self.bullets, *options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All products of a shop."""

    place: str
    """The file that has them."""
    products: tuple[Product, ...]
    number: dict[str, int]
    """Where a product stands, by its id in upper case."""
    index: Index


@functools.lru_cache(maxsize=4)
def catalogue_of(path: str) -> Catalogue:
    """The products of a `.jsonl` or `.jsonl.gz` file and an index of them; every environment of a process shares it."""
    file = Path(path)
    products: list[Product] = []
    number: dict[str, int] = {}
    for line, found in numbered_objects(file):
        product = _product(found, f"{file}:{line}")
        if product.id.upper() in number:
            raise ConfigError(f"{file}:{line}: id {product.id!r} is taken already; give each its own")
        number[product.id.upper()] = len(products)
        products.append(product)
    if not products:
        raise ConfigError(f"{file}: no products in it; put one object on each line")
    return Catalogue(
        place=path, products=tuple(products), number=number, index=Index([product.text for product in products])
    )


def plain(text: str) -> str:
    """Lower case, words of letters and digits alone, one space between them."""
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def _product(found: Any, place: str) -> Product:
    if isinstance(found, ValueError):
        raise ConfigError(f"{place}: {found}")
    try:
        return msgspec.convert(found, Product)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: is no product ({error}); correct it") from None
