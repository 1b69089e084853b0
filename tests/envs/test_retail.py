"""Customer service: rules of the shop, the customer, scoring, and the tasks of tau-bench."""

import asyncio
import dataclasses
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from roll.chat.base import FakeChat
from roll.data.tasks import jsonl
from roll.data.tools import CallFault, parse_response
from roll.envs.base import StepResult
from roll.envs.guarded import GuardedEnv
from roll.envs.oracles import RetailOracle as Oracle
from roll.envs.oracles import tool_call
from roll.envs.retail.customers import CONSENT, STOP, build_customer
from roll.envs.retail.desk import TOOLS, call_tool
from roll.envs.retail.env import Retail
from roll.envs.retail.shop import Shop, read_tables
from roll.errors import ConfigError, EngineFailed, EnvFailed
from roll.types import Message, Spec, Task

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
DATABASE = str(EXAMPLES / "retail_{table}.json")
WITH_DATA = pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")
CANCEL = {"order_id": "#W2", "reason": "no longer needed"}
ADDRESS = {"address1": "a", "address2": "", "city": "c", "state": "s", "country": "u", "zip": "1"}
WRITES = {"cancel_pending_order", "exchange_delivered_order_items", "return_delivered_order_items"} | {
    f"modify_{what}"
    for what in ("pending_order_items", "pending_order_payment", "pending_order_address", "user_address")
}


def task_of(actions: Any = ({"name": "cancel_pending_order", "kwargs": CANCEL},), **changes: Any) -> Task:
    row = {name: value for name, value in ({"actions": actions} | changes).items() if value is not None}
    return Task(id="t7", domain="d", messages=(Message("user", "You are Ann."),), metadata=row)


def env_of(task: Task, **arguments: Any) -> Retail:
    return Retail(task, **({"database": DATABASE} | arguments))


async def replies(env: Retail, *said: str) -> list[StepResult]:
    await env.start()
    return [await env.step(text) for text in said]


def score(env: Retail, *said: str) -> float:
    *_, last = asyncio.run(replies(env, *said))
    assert last.done and last.metrics["success"] == last.reward
    return last.reward


def shop() -> Shop:
    return Shop(read_tables(DATABASE))


def after(name: str, world: Shop | None = None, **arguments: Any) -> Any:
    """What a call that goes through shows."""
    found = call_tool(world or shop(), name, arguments)
    assert found.fault is None, found.text
    return json.loads(found.text)


def refused(name: str, world: Shop | None = None, **arguments: Any) -> str:
    world = world or shop()
    before = world.digest()
    found = call_tool(world, name, arguments)
    assert found.fault is not None and world.digest() == before, "what is refused changes nothing"
    return found.text.removeprefix("error: ")


def test_there_is_a_schema_for_each_of_the_sixteen_tools() -> None:
    assert len(TOOLS) == 16 and all(tool.description and tool.parameters["type"] == "object" for tool in TOOLS)
    by_name = {tool.name: tool.parameters for tool in TOOLS}
    assert by_name["cancel_pending_order"] == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "with the # it begins with: #W0000000"},
            "reason": {"type": "string", "enum": ["no longer needed", "ordered by mistake"]},
        },
        "required": ["order_id", "reason"],
    }
    assert by_name["exchange_delivered_order_items"]["properties"]["item_ids"]["items"] == {"type": "string"}
    assert by_name["modify_user_address"]["required"] == [
        "user_id",
        *("address1", "address2", "city", "state", "country", "zip"),
    ]
    assert parse_response(tool_call("list_all_product_types"), TOOLS).fault is None


def test_users_are_found_by_email_or_by_name_and_zip() -> None:
    world = shop()
    assert call_tool(world, "find_user_id_by_email", {"email": "Ann.Lee@Example.com"}).text == "ann_lee_1"
    name = {"first_name": "ben", "last_name": "ODE", "zip": "97301"}
    assert call_tool(world, "find_user_id_by_name_zip", name).text == "ben_ode_2"
    assert refused("find_user_id_by_name_zip", **(name | {"zip": "1"})) == refused("find_user_id_by_email", email="x")


def test_users_orders_and_products_are_shown_and_missing_ones_are_reported() -> None:
    assert after("get_user_details", user_id="ann_lee_1")["payment_methods"]["gift_card_1"]["balance"] == 20
    assert after("get_order_details", order_id="#W1")["items"][1]["item_id"] == "2001"
    assert after("get_product_details", product_id="P1")["variants"]["1003"]["available"] is False
    assert after("list_all_product_types") == {"Lamp": "P2", "Mug": "P1"}
    assert refused("get_order_details", order_id="W1") == "order 'W1' not found"
    assert refused("get_user_details", user_id="x") == "user 'x' not found"
    assert refused("get_product_details", product_id="1001") == "product '1001' not found"


@pytest.mark.parametrize(
    ("expression", "result"), [("(2 + 3) * 4", "20.0"), ("-1/3", "-0.33"), ("10.5 - 0.25", "10.25")]
)
def test_expressions_are_worked_out_to_two_decimals(expression: str, result: str) -> None:
    assert call_tool(shop(), "calculate", {"expression": expression}).text == result


@pytest.mark.parametrize("expression", ["9**9**9", "9**1000", "1/0", "__import__('os')", "", "1 +", "(" * 250 + "1"])
def test_other_expressions_are_refused(expression: str) -> None:
    assert refused("calculate", expression=expression)


def test_a_cancelled_order_is_refunded_to_a_gift_card_at_once() -> None:
    world = shop()
    order = after("cancel_pending_order", world, **CANCEL)
    assert (order["status"], order["cancel_reason"]) == ("cancelled", "no longer needed")
    assert order["payment_history"][1] == {
        "transaction_type": "refund", "amount": 9.5, "payment_method_id": "gift_card_1",
    }  # fmt: skip
    assert after("get_user_details", world, user_id="ann_lee_1")["payment_methods"]["gift_card_1"]["balance"] == 29.5
    assert refused("cancel_pending_order", world, **CANCEL) == (
        "this can be done with pending orders alone, and order #W2 is cancelled"
    )
    assert refused("cancel_pending_order", order_id="#W2", reason="bored").startswith("that is no reason")
    assert "is delivered" in refused("cancel_pending_order", order_id="#W1", reason="no longer needed")


def test_items_of_a_pending_order_are_changed_once_and_the_difference_is_paid() -> None:
    world = shop()
    change = {"order_id": "#W2", "item_ids": ["1001"], "new_item_ids": ["1002"], "payment_method_id": "gift_card_1"}
    order = after("modify_pending_order_items", world, **change)
    assert order["status"] == "pending (item modified)" and order["items"][0]["options"] == {"color": "blue"}
    assert order["payment_history"][1] == {
        "transaction_type": "payment",
        "amount": 1.5,
        "payment_method_id": "gift_card_1",
    }
    assert after("get_user_details", world, user_id="ann_lee_1")["payment_methods"]["gift_card_1"]["balance"] == 18.5
    assert "pending (item modified)" in refused("modify_pending_order_items", world, **change)
    lamp = {"order_id": "#W3", "item_ids": ["2002"], "new_item_ids": ["2001"], "payment_method_id": "gift_card_2"}
    assert refused("modify_pending_order_items", **lamp) == "gift card gift_card_2 has not enough on it"  # 4 of its 2
    assert (
        after("modify_pending_order_items", **(lamp | {"payment_method_id": "paypal_2"}))["payment_history"][1][
            "amount"
        ]
        == 4
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"new_item_ids": ["1003"]}, "item '1003' is not there or not available for that product"),
        ({"new_item_ids": ["2001"]}, "item '2001' is not there or not available for that product"),
        ({"new_item_ids": [7]}, "item '7' is not there or not available for that product"),
        ({"new_item_ids": []}, "1 items cannot be exchanged for 0; name as many new ones"),
        ({"item_ids": ["1001", "1001"], "new_item_ids": ["1002", "1002"]}, "item '1001' not found in order #W1"),
        ({"item_ids": ["1002"]}, "item '1002' not found in order #W1"),
        ({"item_ids": [{}]}, "item ids are texts"),
        ({"payment_method_id": "paypal_2"}, "payment method 'paypal_2' not found for the user of the order"),
        ({"order_id": "#W2"}, "this can be done with delivered orders alone, and order #W2 is pending"),
    ],
)
def test_an_exchange_has_rules(changes: dict[str, Any], says: str) -> None:
    right = {"order_id": "#W1", "item_ids": ["1001"], "new_item_ids": ["1002"], "payment_method_id": "credit_card_1"}
    order = after("exchange_delivered_order_items", **right)
    assert (order["status"], order["exchange_price_difference"]) == ("exchange requested", 1.5)
    assert (order["exchange_items"], order["exchange_new_items"]) == (["1001"], ["1002"])
    assert refused("exchange_delivered_order_items", **(right | changes)) == says


def test_the_order_in_which_items_are_named_does_not_matter() -> None:
    one, other = shop(), shop()
    given = {"order_id": "#W1", "payment_method_id": "gift_card_1"}
    after("exchange_delivered_order_items", one, item_ids=["1001", "2001"], new_item_ids=["1002", "2002"], **given)
    after("exchange_delivered_order_items", other, item_ids=["2001", "1001"], new_item_ids=["2002", "1002"], **given)
    assert one.digest() == other.digest() != shop().digest()


def test_a_return_is_refunded_to_a_gift_card_or_to_where_the_money_came_from() -> None:
    given = {"order_id": "#W4", "item_ids": ["1002"]}
    order = after("return_delivered_order_items", **given, payment_method_id="gift_card_2")
    assert (order["status"], order["return_items"]) == ("return requested", ["1002"])
    assert after("return_delivered_order_items", **given, payment_method_id="paypal_2")
    ann = {"order_id": "#W1", "item_ids": ["2001"]}
    assert after("return_delivered_order_items", **ann, payment_method_id="gift_card_1")
    assert refused("return_delivered_order_items", order_id="#W1", item_ids=["1002"], payment_method_id="gift_card_1")
    assert "not found for the user" in refused("return_delivered_order_items", **ann, payment_method_id="paypal_2")


def test_a_payment_moves_to_another_method_that_can_pay_it() -> None:
    world = shop()
    order = after("modify_pending_order_payment", world, order_id="#W2", payment_method_id="credit_card_1")
    assert [payment["transaction_type"] for payment in order["payment_history"]] == ["payment", "payment", "refund"]
    assert after("get_user_details", world, user_id="ann_lee_1")["payment_methods"]["gift_card_1"]["balance"] == 29.5
    again = {"order_id": "#W2", "payment_method_id": "gift_card_1"}
    assert refused("modify_pending_order_payment", world, **again).startswith("the order has more than one payment")
    assert refused("modify_pending_order_payment", **again) == "the order is paid with that method already"
    assert "not enough" in refused("modify_pending_order_payment", order_id="#W3", payment_method_id="gift_card_2")


def test_addresses_of_pending_orders_and_of_users_change() -> None:
    assert after("modify_pending_order_address", order_id="#W2", **ADDRESS)["address"] == ADDRESS
    assert after("modify_user_address", user_id="ann_lee_1", **ADDRESS)["address"] == ADDRESS
    assert "is delivered" in refused("modify_pending_order_address", order_id="#W1", **ADDRESS)
    assert refused("modify_user_address", user_id="x", **ADDRESS) == "user 'x' not found"
    assert refused("modify_user_address", user_id="ann_lee_1", **(ADDRESS | {"city": "\ud800"})) == "half a character"


def test_attempts_do_not_see_each_others_changes_and_undoing_one_is_no_change() -> None:
    one, other = shop(), shop()
    after("modify_user_address", one, user_id="ann_lee_1", **ADDRESS)
    assert after("get_user_details", other, user_id="ann_lee_1")["address"]["city"] == "Dover"
    before = after("get_user_details", other, user_id="ann_lee_1")["address"]
    after("modify_user_address", one, user_id="ann_lee_1", **before)
    after("modify_pending_order_address", one, order_id="#W2", **before)
    assert one.digest() == other.digest()


def test_a_conversation_is_scored_by_the_database_and_by_the_stated_outputs() -> None:
    act, sorry = tool_call("cancel_pending_order", **CANCEL), "<think>9.50</think>Sorry."
    task = task_of(outputs=["1009.5", "Mug"])
    assert score(env_of(task), act, "MUG, 1,009.50 dollars.") == 1.0
    assert score(env_of(task), act, "The mug? 1009.5?", sorry) == 1.0
    assert score(env_of(task), act, "The mug.") == 0.0
    assert score(env_of(task_of(outputs=["9.5"])), act, sorry) == 0.0, "what is thought is not said"
    assert score(env_of(task), "The mug costs 1009.5.") == 0.0
    assert score(env_of(task_of()), act, "Done.") == 1.0
    twice = tool_call("modify_user_address", user_id="ann_lee_1", **ADDRESS)
    assert score(env_of(task_of()), act, twice, "Done.") == 0.0


def test_the_scripted_customer_says_all_at_once_agrees_and_leaves() -> None:
    env = env_of(task_of(), policy=str(EXAMPLES / "retail_policy.md"))
    rules, opening = asyncio.run(env.start())
    assert rules.role == "system" and rules.content.startswith("# Rules") and opening == Message("user", "You are Ann.")
    asked, last = asyncio.run(replies(env, "Shall I cancel it?", "I did nothing."))
    assert asked.messages == (Message("user", CONSENT),) and not asked.done
    assert last.messages == (Message("user", STOP),) and (last.done, last.reward) == (True, 0.0)


def test_a_handover_ends_the_conversation() -> None:
    hand = {"summary": "all"}
    task = task_of([{"name": "transfer_to_human_agents", "kwargs": hand}])
    assert score(env_of(task), tool_call("transfer_to_human_agents", **hand)) == 1.0
    assert score(env_of(task_of()), tool_call("transfer_to_human_agents", **hand)) == 0.0


def test_the_last_turn_ends_it_without_a_reward() -> None:
    *_, last = asyncio.run(
        replies(env_of(task_of(), max_turns=2), tool_call("cancel_pending_order", **CANCEL), "Done?")
    )
    assert last.done and last.reward == 0.0


def test_a_model_plays_the_customer_until_it_says_stop() -> None:
    chat = FakeChat(["Hi, my mug.", "<think>hm</think>Yes, #W2.", f"Thanks {STOP}"])
    env = env_of(dataclasses.replace(task_of(), seed=5), user=chat)
    assert asyncio.run(env.start()) == (Message("user", "Hi, my mug."),)
    act = tool_call("cancel_pending_order", **CANCEL)
    first, _, last = asyncio.run(_steps(env, "Which order?", act, "Done."))
    assert first.messages == (Message("user", "Yes, #W2."),) and (last.done, last.reward) == (True, 1.0)
    assert "You are Ann." in chat.requests[0][0].content and chat.options[0] == {"seed": 5}
    assert [message.role for message in chat.requests[2]] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert [message.content for message in chat.requests[2][3::2]] == ["Which order?", "Done."], "no calls, no results"


async def _steps(env: Retail, *said: str) -> list[StepResult]:
    return [await env.step(text) for text in said]


def test_a_customer_that_does_not_answer_costs_the_attempt() -> None:
    guarded = GuardedEnv(Spec("retail", {"database": DATABASE, "user": FakeChat([EngineFailed("gone")])}), task_of())
    with pytest.raises(EnvFailed, match="environment 'retail' of task 't7', starting: EngineFailed: gone"):
        asyncio.run(guarded.start())


def test_customers_of_one_section_share_their_chat_and_wrong_ones_are_reported() -> None:
    section = {"url": "http://127.0.0.1:9/v1", "model": "customer"}
    first, second = (vars(build_customer(section, "x", 0))["_chat"] for _ in range(2))
    assert first is second and first.name == "customer"
    with pytest.raises(ConfigError, match="retail: user: unknown key 'modle'; did you mean 'model'"):
        build_customer({"url": "http://a", "modle": "b"}, "x", 0)
    with pytest.raises(ConfigError, match=r"retail: user: unknown \(got 'someone'\)"):
        build_customer("someone", "x", 0)


def test_an_unknown_tool_and_wrong_arguments_are_reported_and_counted() -> None:
    said = (
        tool_call("refund_everything"),
        tool_call("cancel_pending_order", order_id="#W2", reason="bored"),
        tool_call("get_order_details", order_id=2),
        "<tool_call>get_order_details</tool_call>",
        "<think>what now",
    )
    found = asyncio.run(replies(env_of(task_of(), format_penalty=0.25), *said))
    assert [reply.messages[0].content for reply in found] == [
        "error: no tool named 'refund_everything'",
        "error: cancel_pending_order: 'reason' must be one of no longer needed, ordered by mistake",
        "error: get_order_details: 'order_id' must be of type string",
        "error: the call is not JSON",
        "Nothing was said. Call a tool, or say something to the customer.",
    ]
    metrics = found[-1].metrics
    counted = [metrics[f"tools/faults/{fault}"] for fault in (CallFault.UNKNOWN_TOOL, CallFault.BAD_ARGUMENTS)]
    assert counted == [1.0, 2.0] and sum(reply.reward for reply in found) == -1.25


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"actions": None}, "retail: task 't7': Object missing required field `actions`"),
        ({"actions": [{}]}, "missing required field `name` - at `$.actions[0]`"),
        ({"actions": [{"name": "fly"}]}, "retail: task 't7': actions: no tool named 'fly'; correct its row"),
        ({"actions": [{"name": "think", "kwargs": {}}]}, "actions: think takes thought (got )"),
        ({"outputs": [1]}, "Expected `str`, got `int` - at `$.outputs[0]`"),
    ],
)
def test_a_row_with_a_missing_field_is_reported_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        env_of(task_of(**changes))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_missing_and_malformed_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"retail: database has no \{table\} in it"):
        env_of(task_of(), database="orders.json")
    with pytest.raises(ConfigError, match=r"retail: database: .*orders\.json cannot be read .* check the path"):
        env_of(task_of(), database=str(tmp_path / "{table}.json"))
    (tmp_path / "orders.json").write_text('{"#W1": {"order_id": "#W1"}}')
    with pytest.raises(ConfigError, match=r"orders.json: .*missing required field `user_id` - at `\$\[\.\.\.\]`"):
        env_of(task_of(), database=str(tmp_path / "{table}.json"))
    with pytest.raises(ConfigError, match=r"retail: policy: .* cannot be read"):
        env_of(task_of(), policy=str(tmp_path / "no.md"))


async def played(task: Task, database: str) -> float:
    env, oracle = Retail(task, database=database, max_turns=100), Oracle(task)
    await env.start()
    while True:
        reply = await env.step(oracle(()))
        if reply.done:
            return reply.reward


def without(task: Task, index: int) -> Task:
    """What an agent does who leaves an action out."""
    actions = task.metadata["actions"]
    return dataclasses.replace(task, metadata=task.metadata | {"actions": actions[:index] + actions[index + 1 :]})


async def lacking(task: Task, database: str) -> list[tuple[str, bool, float]]:
    """Each action of a tool that writes: its name, whether the shop refuses it, and the score without it."""
    found: list[tuple[str, bool, float]] = []
    world = Shop(read_tables(database))
    for index, action in enumerate(task.metadata["actions"]):
        refused_now = call_tool(world, action["name"], action["kwargs"]).fault is not None
        if action["name"] in WRITES:
            env, oracle = Retail(task, database=database, max_turns=100), Oracle(without(task, index))
            await env.start()
            reply = await env.step(oracle(()))
            while not reply.done:
                reply = await env.step(oracle(()))
            found.append((f"{task.id} {index}", refused_now, reply.reward))
    return found


def test_the_rows_of_the_examples_are_right_and_leaving_one_action_out_is_wrong() -> None:
    tasks = [task for name in ("retail", "retail_held_out") for task in jsonl(str(EXAMPLES / f"{name}.jsonl"))]
    assert [asyncio.run(played(task, DATABASE)) for task in tasks] == [1.0] * 6
    assert [reward for task in tasks for *_, reward in asyncio.run(lacking(task, DATABASE))] == [0.0] * 6


@WITH_DATA
@pytest.mark.slow
def test_gold_actions_of_tau_bench_score_1_and_with_one_that_writes_left_out_0() -> None:
    folder = Path(os.environ["ROLL_DATA"]) / "tool_use" / "tau_bench"
    database = str(folder / "retail_{table}.json.gz")
    tasks = [task for name in ("train", "dev", "test") for task in jsonl(str(folder / f"retail_{name}.jsonl.gz"))]

    async def all_of() -> tuple[list[float], list[tuple[str, bool, float]]]:
        gold = [await played(task, database) for task in tasks]
        return gold, [each for task in tasks for each in await lacking(task, database)]

    gold, left_out = asyncio.run(all_of())
    assert gold == [1.0] * 635
    counted = Counter((refused_now, reward) for _, refused_now, reward in left_out)
    assert counted == {(False, 0.0): 945, (True, 1.0): 24, (False, 1.0): 2}
    idle = [name for name, refused_now, reward in left_out if reward and not refused_now]
    assert idle == ["tau-retail-test-22 1", "tau-retail-test-111 1"]  # written over later; the same as before
