"""A shop with a few products, visited by hand."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from roll.envs.base import StepResult
from roll.envs.webshop.catalogue import Product, read_catalogue, search_terms
from roll.envs.webshop.env import WebShop
from roll.envs.webshop.pages import search
from roll.envs.webshop.reward import ShoppingGoal, has_attribute, purchase_reward, type_match
from roll.errors import ConfigError
from roll.tools.retrieval import BM25Index
from roll.types import Message, Task

SHIRT: dict[str, Any] = {
    "id": "B01",
    "title": "Blue Cotton Shirt",
    "price": [20.0, 25.0],
    "query": "shirts",
    "product_category": "Clothing \u203a Men \u203a Shirts",
    "options": {"size": ["small", "large"], "color": ["blue", "dark  red"]},
    "bullets": ["Machine wash. ", " "],
    "description": "Soft and light.",
    "attributes": ["long sleeve"],
}
SHOP = [
    SHIRT,
    {"id": "B02", "title": "Tin Kettle", "price": [12], "query": "kettles", "reviews": ["It whistles."]},
    *({"id": f"C{number:02}", "title": f"Cup number {number}", "price": [number]} for number in range(12)),
]
WISH = {"asin": "B01", "attributes": ["machine wash"], "options": {"size": "large"}, "price_upper": 30}


@pytest.fixture
def shop(tmp_path: Path) -> str:
    return written(tmp_path, *SHOP)


def written(folder: Path, *lines: dict[str, Any] | str) -> str:
    path = folder / f"shop{len(list(folder.iterdir()))}.jsonl"  # each file is read once in a process
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return str(path)


def visit(shop: str, *actions: str, answer: Any = WISH, **arguments: Any) -> list[StepResult]:
    task = Task(id="t", domain="d", messages=(Message("user", "I want a shirt."),), answer=answer)

    async def game() -> list[StepResult]:
        env = WebShop(task, catalogue=shop, **arguments)
        assert await env.start() == (Message("user", "WebShop\nInstruction: I want a shirt.\n\n[Search]"),)
        return [await env.step(action) for action in actions]

    return asyncio.run(game())


def said(replies: list[StepResult]) -> list[str]:
    return [reply.messages[0].content for reply in replies]


def test_a_purchase_from_search_to_reward(shop: str):
    replies = visit(shop, "search[cotton shirt]", "click[B01]", "click[large]", "click[Buy Now]")
    assert said(replies) == [
        "[Back to Search] Page 1 of 1 (Total results: 1)\n[B01] Blue Cotton Shirt $20.00 to $25.00",
        "[Back to Search] [< Prev]\nsize: [small] [large]\ncolor: [blue] [dark  red]\nBlue Cotton Shirt\n"
        "Price: $20.00 to $25.00\nRating: N.A.\n[Description] [Features] [Reviews]\n[Buy Now]",
        "[Back to Search] [< Prev]\nsize: [small] [large] (chosen: large)\ncolor: [blue] [dark  red]\n"
        "Blue Cotton Shirt\nPrice: $20.00 to $25.00\nRating: N.A.\n[Description] [Features] [Reviews]\n[Buy Now]",
        "Thank you for shopping with us!",
    ]
    assert [reply.reward for reply in replies] == [0, 0, 0, 1] and [reply.done for reply in replies] == [0, 0, 0, 1]
    assert replies[-1].metrics == {"success": 1.0, "turns": 4.0, "valid_actions": 1.0, "effective_actions": 1.0}


def test_results_come_in_pages_of_ten(shop: str):
    first, second, again = said(visit(shop, "search[cups]", "click[next >]", "click[< Prev]"))
    assert first.startswith("[Back to Search] [Next >] Page 1 of 2 (Total results: 12)\n[C00] Cup number 0 $0.00\n")
    assert second.startswith("[Back to Search] [< Prev] Page 2 of 2 (Total results: 12)\n[C10] ")
    assert first.count("\n") == 10 and second.count("\n") == 2 and again == first


def test_every_page_leads_back(shop: str):
    details = said(
        visit(
            shop, "search[kettle]", "click[B02]", "click[Description]", "click[< prev]", "click[FEATURES]",
            "click[< prev]", "click[reviews]", "click[< prev]", "click[< prev]", "click[back to search]",
        )
    )  # fmt: skip
    assert details[2] == "[Back to Search] [< Prev]\nNo description."
    assert details[4].endswith("\nNo features.") and details[6].endswith("\nIt whistles.")
    assert details[3] == details[5] == details[7] == details[1] and details[8] == details[0]
    assert details[9] == "[Search]"


def test_an_impossible_action_is_answered_and_costs_a_turn(shop: str):
    actions = ("", "buy it", "click[B01]", "search[]", "search[shirt]", "search[kettle]", "click[B02]", "click[large]")
    replies = visit(shop, *actions, format_penalty=0.5)
    valid = [not text.startswith("That cannot be done here.\n\n[") for text in said(replies)]
    assert valid == [False, False, False, False, True, False, False, False]
    assert [reply.reward for reply in replies] == [-0.5, -0.5, -0.5, -0.5, 0, -0.5, -0.5, -0.5]
    assert replies[-1].metrics == {"success": 0.0, "turns": 8.0, "valid_actions": 1 / 8, "effective_actions": 1 / 8}


@pytest.mark.parametrize(
    "reply", ["\ud800\0", "search[" * 20_000, "click[" + "]" * 20_000, "click[]", "search[ \n ]", "buy now"]
)
def test_any_other_reply_is_answered_with_the_same_page(shop: str, reply: str):
    assert said(visit(shop, reply)) == ["That cannot be done here.\n\n[Search]"]


def test_an_action_may_be_inside_a_tag_in_any_case(shop: str):
    plain, tagged = visit(shop, "search[shirt]", "<a>SEARCH[ Shirt ]</a>", tag="a")
    assert said([plain])[0].startswith("That cannot be done here.")
    assert said([tagged])[0].startswith("[Back to Search] Page 1 of 1")
    assert said(visit(shop, "search[shirt]", "click[b01]", "Click[dark red]"))[-1].count("(chosen: dark  red)") == 1


def test_the_last_turn_ends_the_visit_without_a_purchase(shop: str):
    replies = visit(shop, "search[shirt]", "click[B01]", max_turns=2)
    assert [reply.done for reply in replies] == [False, True] and replies[-1].metrics["success"] == 0.0
    with pytest.raises(AssertionError, match="single-use"):
        visit(shop, "search[shirt]", "click[B01]", max_turns=1)


def test_a_value_that_two_options_have_is_clicked_with_its_option(tmp_path: Path):
    product = {**SHIRT, "options": {"inside": ["red", "reviews"], "outside": ["red"]}}
    shop = written(tmp_path, product)
    page, unclear, chosen = said(visit(shop, "search[shirt]", "click[B01]", "click[red]", "click[outside: red]")[1:])
    assert "inside: [inside: red] [inside: reviews]\noutside: [outside: red]\n" in page
    assert unclear.startswith("That cannot be done here.") and "[outside: red] (chosen: red)" in chosen


def test_the_state_is_the_shown_page_independent_of_the_path(shop: str):
    one = visit(shop, "search[cotton]", "click[B01]", "click[large]", "click[blue]", "click[blue]")
    other = visit(shop, "search[shirt]", "click[B01]", "click[blue]", "click[large]")
    assert one[1].state == other[1].state and one[3].state == other[3].state == one[4].state
    assert len({reply.state for reply in one}) == 4 and one[0].state != other[0].state
    assert one[-1].metrics["effective_actions"] == 4 / 5  # blue was chosen already


@pytest.mark.parametrize(
    ("chosen", "wish", "value"),
    [
        ({"size": "large"}, WISH, 1.0),  # (1 attribute + 1 option + price) / 3
        ({}, WISH, 2 / 3),
        ({"size": "small"}, WISH, 2 / 3),
        ({"color": "large"}, WISH, 2 / 3),
        ({"size": "LARGE"}, {**WISH, "attributes": ["machine wash", "waterproof"]}, 3 / 4),
        ({"size": "large"}, {**WISH, "price_upper": 22}, 2 / 3),  # it may cost 25
        ({"size": "large"}, {**WISH, "price_upper": None}, 1.0),
        ({}, {"asin": "B01"}, 1.0),  # nothing but the price is asked about
        ({}, {"asin": "B01", "attributes": ["long sleeve", "soft"], "price_upper": 1}, 2 / 3),
    ],
)
def test_the_reward_is_the_part_of_the_wishes_that_came_true(chosen: dict[str, str], wish: Any, value: float):
    shirt = product_of(SHIRT)
    assert purchase_reward(shirt, chosen, goal_of(wish), shirt) == pytest.approx(value)


def product_of(fields: dict[str, Any]) -> Product:
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Product(**known)


def goal_of(fields: dict[str, Any]) -> ShoppingGoal:
    return ShoppingGoal(**fields)


def named(title: str, query: str = "", category: str = "") -> Product:
    return Product(id=title, title=title, price=(1.0,), query=query, product_category=category)


def test_another_kind_of_product_is_worth_less():
    wanted = named("one two three four five six seven eight nine ten eleven", "shirts", "A \u203a B \u203a C")
    assert type_match(wanted, wanted) == 1.0
    assert type_match(named("one two three"), wanted) == 1.0  # 3 of 11 words, more than a fifth
    assert type_match(named("one two"), wanted) == 0.5  # 2 of 11
    assert type_match(named("one two", "Shirts"), wanted) == 1.0  # of the same query
    assert type_match(named("one two", "", "B \u203a a"), wanted) == 1.0  # two categories in common
    assert type_match(named("one two", "", "B \u203a x"), wanted) == 0.5
    assert type_match(named("one"), wanted) == 0.1  # 1 of 11, less than a tenth
    assert type_match(named("zero", "shirts", "A \u203a B \u203a C"), wanted) == 0.0
    assert type_match(named("one of the 12"), named("two of the 12")) == 0.0  # small words and numbers do not count
    assert type_match(named("zero"), named("of the")) == 0.5 and type_match(named("zero", "q"), named("", "q")) == 1.0


def test_a_purchase_of_the_wrong_kind_scales_the_whole_reward(tmp_path: Path):
    wanted = {"id": "W", "title": "one two three four five six", "price": [5], "attributes": ["red"]}
    near = {"id": "N", "title": "six seven", "price": [5], "attributes": ["red"]}
    shop = written(tmp_path, wanted, near)
    wish = {"asin": "W", "attributes": ["red", "round"], "price_upper": 9}
    *_, last = visit(shop, "search[seven]", "click[N]", "click[Buy Now]", answer=wish)
    assert last.reward == pytest.approx(0.5 * 2 / 3) and last.done and last.metrics["success"] == 0.0


def test_an_attribute_is_found_among_a_products_own_or_as_whole_words_of_its_text():
    shirt = product_of(SHIRT)
    assert (
        has_attribute(shirt, "Long-Sleeve")
        and has_attribute(shirt, "machine wash")
        and has_attribute(shirt, "soft and light")
    )
    assert not has_attribute(shirt, "ash") and not has_attribute(shirt, "wash machine")


def test_search_weighs_terms_by_bm25():
    # lengths 4, 2 and 2, mean 8 / 3; "red" is in all three texts, "hat" in two, "cup" in one
    index = BM25Index(map(search_terms, ["red red hats, blue", "red cups", "red hat"]))
    assert search_terms("Red HATS, glass as x2s") == ["red", "hat", "glass", "as", "x2s"]

    def weight(times: int, length: int, num_with: int) -> float:
        rarity = math.log(1 + (3 - num_with + 0.5) / (num_with + 0.5))
        return rarity * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * length / (8 / 3)))

    red, cup = [weight(2, 4, 3), weight(1, 2, 3), weight(1, 2, 3)], weight(1, 2, 1)
    assert index.scores(["red", "cup"]) == pytest.approx([red[0], red[1] + cup, red[2]], rel=1e-12)
    assert red[0] > red[1] and index.search(["red"], 9) == [0, 1, 2]
    assert cup + red[1] > red[0] and index.search(["red", "cup"], 9) == [1, 0, 2]
    assert weight(1, 2, 2) > weight(1, 4, 2) and index.search(["hat"], 9) == [2, 0]
    assert index.search(["hat"], 1) == [2] and index.search(["green"], 9) == []


def test_a_repeated_word_counts_once_and_equal_results_keep_the_order_of_the_catalogue(shop: str):
    catalogue = read_catalogue(shop)
    for query in ("cotton shirts", "cups", "kettle cup shirt"):
        hits = search(catalogue, query).hits
        scores = catalogue.index.scores(search_terms(query))
        assert hits == tuple(sorted(hits, key=lambda hit: (-scores[hit], hit))) and 0 not in scores[list(hits)]
        assert search(catalogue, f"{query} {query.upper()}").hits == hits


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ({"id": "X", "title": "x"}, "not a product .Object missing required field `price`"),
        ({"id": "X", "title": "x", "price": []}, "not a product .Expected `array` of length >= 1"),
        ({"id": "X", "title": "x", "price": [-1]}, "not a product .Expected `float` >= 0"),
        ({"id": "X", "title": "x", "price": [1], "options": {"size": "m"}}, "not a product .Expected `array`"),
        ({"id": "b01", "title": "x", "price": [1]}, "id 'b01' is used twice"),
        ("[1]", "not a product .Expected `object`, got `array`"),
        ("{oops", "broken JSON at column 2"),
    ],
)
def test_a_line_that_is_no_product_is_refused_with_its_place(tmp_path: Path, line: Any, fault: str):
    shop = written(tmp_path, SHIRT, "", line)
    with pytest.raises(ConfigError, match=f"^{shop}:3: {fault}"):
        visit(shop)


def test_a_shop_without_products_or_without_a_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no products"):
        visit(written(tmp_path, ""))
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: no such file"):
        visit(str(tmp_path / "nowhere.jsonl"))


def test_a_wish_that_cannot_be_judged_is_refused_by_the_tasks_name(shop: str):
    with pytest.raises(ConfigError, match=r"task 't' wants product 'B99', which is not in .*jsonl; name another"):
        visit(shop, answer={"asin": "B99"})
    with pytest.raises(ConfigError, match=r"webshop: task 't': .*`asin`"):
        visit(shop, answer={})
    with pytest.raises(ConfigError, match=r"webshop: task 't': Expected `object`, got `str` - at `\$.answer`"):
        visit(shop, answer="B01")
    with pytest.raises(ConfigError, match="has no question"):
        WebShop(Task(id="t", domain="d", answer=WISH), catalogue=shop)
    with pytest.raises(ConfigError, match="webshop: max_turns must be"):
        visit(shop, max_turns=0)


def test_a_catalogue_is_read_once_in_a_process(shop: str):
    visit(shop)
    Path(shop).unlink()
    assert visit(shop, "search[shirt]")
