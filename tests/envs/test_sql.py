"""SQL: the database and its limits, comparison of answers, messages to the policy, and the rows of DBBench."""

import asyncio
import dataclasses
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from roll.data.tasks import jsonl
from roll.envs.base import StepResult
from roll.envs.inputs import parse_row
from roll.envs.oracles import SqlOracle as Oracle
from roll.envs.oracles import tool_call
from roll.envs.sql.answers import same_answer, to_sqlite
from roll.envs.sql.database import Database, build_image
from roll.envs.sql.database_process import DatabaseProcess
from roll.envs.sql.env import SQL, SqlTask
from roll.errors import ConfigError, EnvFailed
from roll.types import Message, Task

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
ROWS = [["Ada", "9", "1.50"], ["Bo", "10", "2.25"], ["Cy", "-", ""]]
TABLE = {
    "table_name": "My people",
    "table_info": {"columns": [{"name": name} for name in ("Name", "Age", "Fee")], "rows": ROWS},
}
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
WITH_DATA = pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")


def task_of(answer: Any = ("Bo",), check: str = "answer", **changes: Any) -> Task:
    row = {name: value for name, value in ({"table": TABLE, "check": check} | changes).items() if value is not None}
    return Task(id="t7", domain="d", messages=(Message("user", "Who?"),), answer=answer, metadata=row)


async def replies(env: SQL, *said: str) -> list[StepResult]:
    try:
        await env.start()
        return [await env.step(text) for text in said]
    finally:
        await env.close()


def asked(env: SQL, *queries: str) -> list[str]:
    found = asyncio.run(replies(env, *(tool_call("execute_sql", query=query) for query in queries)))
    return [reply.messages[0].content for reply in found]


def score(task: Task, *said: str) -> float:
    *_, last = asyncio.run(replies(SQL(task), *said))
    assert last.done and last.metrics["success"] == last.reward
    return last.reward


def test_a_question_is_looked_up_and_answered() -> None:
    env = SQL(task_of(add_description="The table is called My people."))
    (opening,) = asyncio.run(env.start())
    assert opening.content == "The table is called My people.\nWho?"
    query = tool_call("execute_sql", query='SELECT Name, Age FROM "My people" WHERE Age > 9 ORDER BY Age LIMIT 1')
    first, last = asyncio.run(replies(env, query, tool_call("answer", values=["Bo"])))
    assert first.messages[0].content == '["Name", "Age"]\n["Bo", 10]'
    assert (last.reward, last.done, last.metrics["success"]) == (1.0, True, 1.0)


def test_numbers_are_kept_as_numbers_where_they_still_read_as_they_were_written() -> None:
    shown, sums, text = asked(
        SQL(task_of()),
        'SELECT * FROM "My people" ORDER BY Name',
        "SELECT max(Age) FROM \"My people\" WHERE Age != '-'",
        "SELECT typeof(Age), typeof(Fee) FROM \"My people\" WHERE Name = 'Ada'",
    )
    assert shown == '["Name", "Age", "Fee"]\n["Ada", 9, "1.50"]\n["Bo", 10, "2.25"]\n["Cy", "-", ""]'
    assert sums == '["max(Age)"]\n[10]' and text == '["typeof(Age)", "typeof(Fee)"]\n["integer", "text"]'


def test_a_change_is_compared_with_the_table_after_the_right_statement() -> None:
    task = task_of(["UPDATE `My people` SET `Age` = '11' WHERE `Name` = \"Bo\";"], check="state")
    done = tool_call("answer", values=[])
    right = tool_call("execute_sql", query="UPDATE \"My people\" SET Age = 11 WHERE Fee = '2.25'")
    wrong = tool_call("execute_sql", query='UPDATE "My people" SET Age = 11')
    dropped = tool_call("execute_sql", query='DROP TABLE "My people"')
    again = tool_call("execute_sql", query='INSERT INTO "My people" SELECT * FROM "My people" LIMIT 1')
    assert [score(task, *said, done) for said in ([right], [wrong], [dropped], [right, again], [])] == [1, 0, 0, 0, 0]


def test_the_order_of_rows_does_not_matter_to_a_change() -> None:
    task = task_of(["INSERT INTO `My people` VALUES ('Di', 1, 'x')"], check="state")
    turned = [
        "DELETE FROM \"My people\" WHERE Name = 'Ada'",
        "INSERT INTO \"My people\" VALUES ('Di', '1', 'x')",
        "INSERT INTO \"My people\" VALUES ('Ada', 9, '1.50')",
    ]
    assert (
        score(task, *(tool_call("execute_sql", query=query) for query in turned), tool_call("answer", values=["ok"]))
        == 1
    )


@pytest.mark.parametrize(
    ("given", "wanted", "alike"),
    [
        (["Bo"], ["Bo"], True), (["bo"], ["Bo"], False), ([" 'Bo' "], ["Bo"], True), (["Bo", "Cy"], ["Bo"], False),
        (["Cy", "Bo", "Bo"], ["Bo", "Cy"], True), ([2], ["2.0"], True), (["2.009"], [2], True), (["2.02"], [2], False),
        (["64.30%"], ["64.3"], True), (["3,729.7"], [3729.7], True), ([1, 2], ["2", "1.0"], True), ([1, 1], [1], False),
        ([], ["none"], True), ([None], [0], True), (["nan"], ["0.0"], True), (["1"], ["none"], False),
        (["2", "x"], ["x", "2"], True), (["2", "x"], ["x", "2.0"], False), ([[1]], ["1"], False),
        (["1_0"], ["10"], False),
    ],
)  # fmt: skip
def test_answers_are_compared_by_the_published_rules(given: list[Any], wanted: list[Any], alike: bool) -> None:
    assert same_answer(given, wanted) is alike


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH DATABASE '{file}' AS x", "DETACH DATABASE main", "PRAGMA writable_schema = 1",
        "VACUUM INTO '{file}'",
        "SELECT * FROM pragma_table_info('My people')", "SELECT load_extension('{file}')", "BEGIN", "SAVEPOINT a",
        "CREATE VIRTUAL TABLE x USING fts5(a)", "SELECT randomblob(9)", "SELECT 1; SELECT 2", "SELECT \0 1", "SELEC",
        "SELECT zeroblob(200000)", "SELECT '\ud800'",
    ],
)  # fmt: skip
def test_a_forbidden_statement_is_reported_and_has_no_effect(query: str, tmp_path: Path) -> None:
    statement = query.replace("{file}", str(tmp_path / "x.db"))
    (found,) = asyncio.run(replies(SQL(task_of()), tool_call("execute_sql", query=statement)))
    (message,) = found.messages
    assert message.content.startswith("error: ") and message.content.isascii() and not found.done
    assert found.metrics["tools/faults/failed"] == 1.0 and not any(tmp_path.iterdir())


def test_a_statement_that_never_ends_is_stopped_and_reported() -> None:
    env = SQL(task_of(), statement_s=0.05)
    found = asyncio.run(replies(env, tool_call("execute_sql", query=ENDLESS), tool_call("answer", values=["Bo"])))
    assert found[0].messages[0].content == "error: the statement was stopped after 0.05 s; it takes too long"
    assert found[0].metrics["tools/faults/timed_out"] == 1.0 and found[1].reward == 1.0


def test_steps_bound_a_statement_as_well_as_the_clock() -> None:
    (found,) = asked(SQL(task_of(), statement_s=60), ENDLESS)
    assert found.startswith("error: the statement was stopped")


def test_the_clock_bounds_a_statement_whose_steps_would_be_few_enough() -> None:
    finite = ENDLESS.replace("FROM n)", "FROM n WHERE x < 200000)")
    (found,), (stopped,) = (
        asked(SQL(task_of(), statement_s=60), finite),
        asked(SQL(task_of(), statement_s=0.001), finite),
    )
    assert found.endswith("[200000]") and stopped == "error: the statement was stopped after 0.001 s; it takes too long"


LONG = "hex(zeroblob(49000))"
NUMBERS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1500)"


@pytest.mark.parametrize(
    "query",
    [
        f"{NUMBERS} SELECT sum(instr({LONG} || x, hex(zeroblob(24000)) || 'x')) FROM n",
        f"{NUMBERS} SELECT sum({LONG} || x LIKE '%{'0' * 900}x') FROM n",
        f"{NUMBERS} SELECT sum(length(replace({LONG} || x, hex(zeroblob(24000)) || 'x', ''))) FROM n",
    ],
    ids=["instr", "like", "replace"],
)
def test_a_statement_whose_single_steps_take_long_is_stopped_and_undoes_nothing(query: str) -> None:
    change = "UPDATE \"My people\" SET Age = random() % 1000 WHERE Name = 'Bo'"
    look = "SELECT Age, last_insert_rowid() FROM \"My people\" WHERE Name = 'Bo'"
    insert = "INSERT INTO \"My people\" VALUES ('Di', 1, 'x')"
    _, _, before, stopped, after = asked(SQL(task_of(), statement_s=0.2), insert, change, look, query, look)
    assert stopped == "error: the statement was stopped after 0.2 s; it takes too long"
    assert before == after and before.endswith(", 4]")


@pytest.mark.slow
def test_a_table_that_became_an_endless_view_makes_the_answer_wrong() -> None:
    task = task_of(["INSERT INTO `My people` VALUES ('Di', 1, 'x')"], check="state")
    slow = f"instr({LONG} || x, hex(zeroblob(24000)) || 'x')"
    view = f'CREATE VIEW "My people" AS {NUMBERS} SELECT 1 Name, 2 Age, {slow} Fee FROM n'
    queries = [tool_call("execute_sql", query=query) for query in ('DROP TABLE "My people"', view)]
    assert score(task, *queries, tool_call("answer", values=[])) == 0


def database_process() -> DatabaseProcess:
    return DatabaseProcess(build_image(parse_row(task_of(), SqlTask, "sql").tables, where="here", statement_s=0.1))


def test_a_statement_that_waits_for_the_cpu_is_not_stopped() -> None:
    async def run() -> str:
        database = database_process()
        await database.run("SELECT 1", max_rows=1)
        assert database.pid is not None
        os.kill(pid := database.pid, signal.SIGSTOP)
        running = asyncio.create_task(database.run("SELECT 2 AS x", max_rows=1))
        await asyncio.sleep(1.0)
        os.kill(pid, signal.SIGCONT)
        try:
            return await running
        finally:
            database.close()

    assert asyncio.run(run()) == '["x"]\n[2]'


def test_a_process_that_dies_fails_the_attempt_and_no_other() -> None:
    async def run() -> str:
        database, other = database_process(), database_process()
        await database.run("SELECT 1", max_rows=1)
        assert database.pid is not None
        os.kill(database.pid, signal.SIGKILL)
        with pytest.raises(EnvFailed, match="process of a database has died"):
            await database.run("SELECT 1", max_rows=1)
        database.close()
        try:
            return await other.run("SELECT 3 AS x", max_rows=1)
        finally:
            other.close()

    assert asyncio.run(run()) == '["x"]\n[3]'


def test_a_result_that_is_too_long_is_refused() -> None:
    columns = ", ".join([LONG] * 110)
    (found,) = asked(SQL(task_of()), f"SELECT {columns}")
    assert found == "error: the result is too long"


def test_a_database_does_not_grow_without_end() -> None:
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    flood = f'INSERT INTO "My people" {numbers} SELECT x, x, hex(zeroblob(4000)) FROM n'
    full, left = asked(SQL(task_of(), statement_s=30), flood, 'SELECT count(*) FROM "My people"')
    assert full == "error: database or disk is full" and left.endswith("[3]")


def test_many_rows_are_cut_with_a_note() -> None:
    many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    (found,) = asked(SQL(task_of(), max_rows=2), many)
    assert found == '["x"]\n[1]\n[2]\nmore than 2 rows; the others are not shown'


def test_chance_comes_from_the_task() -> None:
    draw = ["SELECT random(), random()"]
    other = dataclasses.replace(task_of(), seed=5)
    assert asked(SQL(task_of()), *draw) == asked(SQL(task_of()), *draw) != asked(SQL(other), *draw)


def test_an_unknown_tool_and_wrong_arguments_are_reported_and_counted() -> None:
    said = (
        tool_call("drop"),
        tool_call("answer"),
        tool_call("answer", values="Bo"),
        tool_call("execute_sql", sql="x"),
        "Bo.",
    )
    found = asyncio.run(replies(SQL(task_of(), max_turns=5, format_penalty=0.25), *said))
    assert [reply.messages[0].content for reply in found] == [
        "error: no tool named 'drop'",
        "error: answer: 'values' is missing",
        "error: answer: 'values' must be of type array",
        "error: execute_sql: 'query' is missing",
        "Nothing was called. Call a tool.",
    ]
    metrics = found[-1].metrics
    assert (metrics["tools/faults/unknown_tool"], metrics["tools/faults/bad_arguments"]) == (1.0, 3.0)
    assert found[-1].done and sum(reply.reward for reply in found) == -1.25


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"table": None}, "sql: task 't7': Object missing required field `table`"),
        ({"check": None}, "Object missing required field `check`"),
        ({"check": "hash"}, "Invalid enum value 'hash' - at `$.check`"),
        ({"table": {"table_name": "a"}}, "missing required field `table_info`"),
        ({"answer": "Bo"}, "Expected `array`, got `str` - at `$.answer`"),
        ({"check": "state", "answer": ["a", "b"]}, "'answer' is not one statement"),
        ({"table": TABLE | {"table_info": TABLE["table_info"] | {"rows": [["a"]]}}}, "its table cannot be created"),
    ],
)
def test_a_row_with_a_missing_field_is_reported_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        SQL(task_of(**changes))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_reference_that_cannot_be_executed_is_the_rows_fault() -> None:
    with pytest.raises(ConfigError, match="task 't7': its 'answer' cannot be executed"):
        score(task_of(["UPDATE nothing SET x = 1"], check="state"), tool_call("answer", values=[]))


@pytest.mark.parametrize(
    ("mysql", "sqlite"),
    [
        ("SET `a'b` = 'x\\ny'", "SET `a'b` = 'x\ny'"),
        ("= 'it\\'s' AND b = 'it''s'", "= 'it''s' AND b = 'it''s'"),
        ('= "say ""it""\'s"', "= 'say \"it\"''s'"),
    ],
)
def test_strings_of_references_mean_what_they_mean_in_mysql(mysql: str, sqlite: str) -> None:
    assert to_sqlite(mysql) == sqlite


async def scored(task: Task, *said: str) -> float:
    return (await replies(SQL(task), *said))[-1].reward


async def gold(task: Task) -> float:
    oracle = Oracle(task)
    return await scored(task, *([oracle(()), oracle(())] if task.metadata["check"] == "state" else [oracle(())]))


async def wrong(task: Task) -> float:
    """Of an answer with one value changed; of changing nothing where a change is wanted."""
    if task.metadata["check"] == "state":
        return await scored(task, tool_call("answer", values=["ok"]))
    first, *rest = task.answer
    number = first.replace(".", "").replace(",", "").isdigit()
    other = str(float(first.replace(",", "")) + 1) if number else "7" if first == "none" else f"{first} not"
    return await scored(task, tool_call("answer", values=[other, *rest]))


def right_and_wrong(tasks: list[Task]) -> list[tuple[float, float]]:
    async def all_of() -> list[tuple[float, float]]:
        return [(await gold(task), await wrong(task)) for task in tasks]

    return asyncio.run(all_of())


def test_the_rows_of_the_examples_are_right_and_others_are_wrong() -> None:
    tasks = [task for name in ("sql", "sql_held_out") for task in jsonl(str(EXAMPLES / f"{name}.jsonl"))]
    assert right_and_wrong(tasks) == [(1.0, 0.0)] * 7


def dbbench() -> list[Task]:
    folder = Path(os.environ["ROLL_DATA"]) / "tool_use"
    return [task for name in ("train", "test") for task in jsonl(str(folder / f"dbbench_{name}.jsonl.gz"))]


@WITH_DATA
@pytest.mark.slow
def test_every_gold_answer_of_dbbench_scores_1_and_a_wrong_one_0() -> None:
    assert right_and_wrong(dbbench()) == [(1.0, 0.0)] * 349


def in_mysql(contents: str) -> str:
    """The fingerprint that DBBench was published with: of the first five letters of each row's own, in their order."""
    (rows,) = json.loads(contents)
    texts = (",".join(value for value in json.loads(row) if value is not None) for row in rows)
    each = sorted(hashlib.md5(text.encode()).hexdigest()[:5] for text in texts)
    return hashlib.md5(",".join(each)[:1024].encode()).hexdigest()  # MySQL cuts what it joins there


@WITH_DATA
@pytest.mark.slow
def test_tables_after_a_reference_statement_equal_those_of_mysql() -> None:
    agree = disagree = 0
    for task in dbbench():
        if task.metadata["check"] == "state":
            database = Database(build_image(parse_row(task, SqlTask, "sql").tables, where="here"))
            database.run(to_sqlite(task.answer[0]), max_rows=1)
            found = in_mysql(database.contents()) in task.metadata["answer_md5"]
            agree, disagree = agree + found, disagree + (not found)
            database.close()
    assert (agree, disagree) == (228, 1)  # one was published with a fingerprint that is not its statement's
