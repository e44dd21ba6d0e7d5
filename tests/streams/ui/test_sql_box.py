"""The SQL box: queries of the page in a Spark session of its own, and what it refuses."""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pyarrow.parquet as pq
import pytest

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.ui.test_ui_command import running
from weft import Table
from weft.streams.catalog import system_tables
from weft.streams.ui.sql_pages import SYSTEM_TABLES

pytestmark = pytest.mark.spark

_HEADERS = {"HX-Request": "true"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = Table.create(tmp_path_factory.mktemp("sql") / "wide", SHOP)
    append(table, orders(1, 2, 3))
    table.savepoint("before")
    append(table, orders(4, status="<b>late</b>", ts=9))
    return table


@pytest.fixture(scope="module")
def client(table: Table) -> Iterator[httpx2.Client]:
    """Of the page in a process of its own: the box ends its Spark session, and here is one that others use."""
    with running(table.uri) as (_, address):
        origin = address.rstrip("/")
        with httpx2.Client(base_url=origin, headers={"Origin": origin}, timeout=240) as client:
            yield client


def ask(client: httpx2.Client, sql: str, **fields: str) -> tuple[int, str]:
    """The number and the final text of a query."""
    started = client.post("/sql/run", data={"sql": sql, **fields}, headers=_HEADERS)
    found = re.search(r'id="answer-(\d+)"', started.text)
    assert found, started.text
    return int(found.group(1)), finished(client, int(found.group(1)))


def finished(client: httpx2.Client, number: int) -> str:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        text = client.get(f"/sql/answers/{number}", headers={"HX-Request": "true"}).text
        if "hx-trigger" not in text:
            return text
        time.sleep(0.1)
    raise AssertionError(text)


@pytest.mark.slow
def test_the_box_answers_and_refuses(client: httpx2.Client, table: Table) -> None:
    number, text = ask(client, "SELECT id, status FROM t ORDER BY id")
    assert "4 rows" in text
    assert "&lt;b&gt;late" in text
    stored = pq.read_table(io.BytesIO(client.get(f"/sql/answers/{number}/rows.parquet").content))
    expected = table.snapshot().to_arrow(["id", "status"]).sort_by("id")
    assert stored.to_pylist() == expected.to_pylist()
    assert client.get(f"/sql/answers/{number}/rows.csv").text.splitlines()[:2] == ["id,status", "1,new"]

    assert "3 rows" in ask(client, "SELECT * FROM wide", as_of="before")[1]
    for name in ("weft.wide", "t VERSION AS OF 'before'", "t JOIN wide USING (id)", "t WHERE t.id = wide.id"):
        text = ask(client, f"SELECT count(*) AS n FROM {name}".replace("t WHERE", "t, wide WHERE"))[1]
        assert '<td class="n">3</td>' in text or '<td class="n">4</td>' in text, name
    for part in SYSTEM_TABLES:
        text = ask(client, f"SELECT * FROM t.{part}")[1]
        assert 'role="alert"' not in text, part
    lanes = "SELECT max(seq) AS n FROM wide.commits WHERE lane = 'orders'"
    newest = int(re.search(r'class="n">(\d+)<', ask(client, lanes)[1]).group(1))
    assert f'class="n">{newest - 2}<' in ask(client, lanes, as_of="before")[1]  # a claim and a commit later
    assert "wins" in ask(client, "CALL weft.system.explain_row('t', '1')")[1]
    assert "nothing is wrong" in ask(client, "CALL weft.system.verify('wide')")[1]
    assert "${env:PATH}" in ask(client, "SELECT '${env:PATH}' AS a")[1]
    assert "explain_row" in client.get("/sql").text
    assert "4 rows" in ask(client, "SELECT * FROM wide")[1]  # and the next query is of now again
    append(table, orders(5))
    assert "5 rows" in ask(client, "SELECT * FROM t")[1]
    text = ask(client, "SELECT * FROM t", limit="2")[1]
    assert "2 rows, and more" in text
    assert "Get all rows" in text
    number, text = ask(client, "SELECT * FROM t", limit="2", whole="1")
    assert "5 rows" in text
    assert "Get all rows" not in text
    assert len(client.get(f"/sql/answers/{number}/rows.csv").text.splitlines()) == 6
    ask(client, "SELECT 1 AS a", whole="1")
    assert "is not kept any more" in client.get(f"/sql/answers/{number}/rows.csv").text
    assert "no rows" in ask(client, "SELECT * FROM t WHERE id > 100")[1]

    for sql, message in (
        ("SELECT nope FROM t", "nope"),
        ("SELECT 1 / (id - id) FROM t", "== SQL (line 1, position "),
        ("SELECT id,, FROM t", "(line 1, pos 10)"),
        ("CALL weft.system.compact('t')", "only queries are allowed"),
        ("SELECT * FROM weft.`../other`", "cannot be found"),
        ("SELECT * FROM weft_catalog_weft('../other')", "there is no table"),
        ("SELEKT", "SELEKT"),
        ("SELECT id, id FROM t", "several columns called"),
        ("DROP TABLE t", "only queries are allowed"),
        ("SELECT java_method('java.lang.System', 'getProperty', 'user.dir')", "calls programs or opens files"),
        ("SELECT system.builtin.reflect('java.lang.System', 'getProperty', 'user.dir')", ""),
        ("SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'getProperty', 'a')", "there is no such function"),
        ("SELECT * FROM text.`/etc/hostname`", "text"),
    ):
        text = ask(client, sql)[1]
        assert 'role="alert"' in text, sql
        assert message in text, sql
    assert "savepoint" in ask(client, "SELECT 1", as_of="nowhere")[1]

    slow = "SELECT sum(a.id * b.id) FROM range(1000000) a CROSS JOIN range(1000000) b"
    started = client.post("/sql/run", data={"sql": slow}, headers=_HEADERS)
    number = int(re.search(r'id="answer-(\d+)"', started.text).group(1))
    said: set[str] = set()
    while "tasks have ended" not in " ".join(said):
        text = client.get(f"/sql/answers/{number}", headers=_HEADERS).text
        said.update(re.findall(r'<span class="elapsed">\d+\.\d (?:s|min)</span>([^<]+)</p>', text))
        assert "hx-trigger" in text
        time.sleep(0.01)
    queued = client.post("/sql/run", data={"sql": "SELECT 2 AS two"}, headers=_HEADERS).text
    assert f"Query {number} is first" in queued
    assert "cancelled" in client.post(f"/sql/answers/{number}/cancel", headers=_HEADERS).text
    assert "1 row" in ask(client, "SELECT 1 AS one")[1]  # the session still answers
    assert "SELECT 1 AS one" in client.get("/sql").text


@pytest.mark.slow
@pytest.mark.extended
def test_the_tables_of_a_folder_take_turns_with_spark(tmp_path: Path) -> None:
    """A query waits for a session that is used, and then has its own, over its own table."""
    for name, count in (("one", 1), ("two", 2)):
        append(Table.create(tmp_path / name, SHOP), orders(*range(count)))
    slow = "SELECT sum(a.id * b.id) FROM range(1000000) a CROSS JOIN range(1000000) b"
    with running(str(tmp_path)) as (_, address), contextlib.ExitStack() as clients:
        origin = {"Origin": address.rstrip("/")}
        one, two = (
            clients.enter_context(httpx2.Client(base_url=f"{address}tables/{name}", headers=origin, timeout=240))
            for name in ("one", "two")
        )
        assert "1 row" in ask(one, "SELECT * FROM t")[1]
        begun = one.post("/sql/run", data={"sql": slow}, headers=_HEADERS)
        number = int(re.search(r'id="answer-(\d+)"', begun.text).group(1))
        while ">running<" not in one.get(f"/sql/answers/{number}", headers=_HEADERS).text:
            time.sleep(0.05)  # between two queries its session could end for the other table
        waiting = two.post("/sql/run", data={"sql": "SELECT * FROM t"}, headers=_HEADERS)
        of_two = int(re.search(r'id="answer-(\d+)"', waiting.text).group(1))
        while "Spark serves another table" not in (text := two.get(f"/sql/answers/{of_two}", headers=_HEADERS).text):
            assert "waiting" in text
        one.post(f"/sql/answers/{number}/cancel", headers=_HEADERS)
        assert "2 rows" in finished(two, of_two)
        assert "1 row" in ask(one, "SELECT * FROM one")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "WITH a AS (SELECT 1 AS x) SELECT * FROM a WHERE x IN (SELECT 1)",
        "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 4) SELECT n FROM r",
        "VALUES (1), (2)",
        "TABLE t",
        "FROM t |> WHERE id > 1 |> AGGREGATE count(*) AS n GROUP BY status |> ORDER BY n",
        "SELECT * FROM IDENTIFIER('t')",
        "SELECT IDENTIFIER('i' || 'd') FROM t",
        "SELECT * FROM t, LATERAL (SELECT t.id + 1 AS z)",
        "SELECT t.* FROM t LATERAL VIEW explode(array(1, 2)) x AS y",
        "SELECT * FROM (SELECT id, status FROM t) PIVOT (count(*) FOR status IN ('new', 'late'))",
        "SELECT id, row_number() OVER w AS n FROM t WINDOW w AS (ORDER BY id)",
        "SELECT /*+ BROADCAST(t) */ id, count(*) AS n FROM t GROUP BY ROLLUP (id)",
        "SELECT * FROM t CHANGES FROM VERSION 'earliest'",
        "SELECT * FROM weft_changes('t', 'earliest')",
        "SELECT * FROM t WITH (read_optimized = true)",
        "SELECT * FROM t TIMESTAMP AS OF (SELECT now())",
        "SHOW TABLES",
        "SHOW CATALOGS",
        "SHOW COLUMNS IN t",
        "SHOW CREATE TABLE t",
        "SHOW TBLPROPERTIES t",
        "SHOW CURRENT NAMESPACE",
        "DESCRIBE t",
        "DESCRIBE EXTENDED t.files",
        "DESCRIBE QUERY SELECT id FROM t",
        "DESCRIBE FUNCTION abs",
        "EXPLAIN SELECT id FROM t",
        "EXPLAIN EXTENDED SHOW TABLES",
        "/* INSERT INTO x */ SELECT 'DROP TABLE x'",
    ],
)
def test_what_a_reader_needs_is_answered(client: httpx2.Client, sql: str) -> None:
    text = ask(client, sql)[1]
    assert 'role="alert"' not in text, text


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE IDENTIFIER('spark_catalog.default.z' || 'z') USING text LOCATION '/etc/hostname'",
        "CREATE TEMPORARY FUNCTION IDENTIFIER('p' || 'wn') AS 'Pwn' USING JAR 'http://127.0.0.1:9/pwn.jar'",
        "CREATE OR REPLACE TEMPORARY VIEW IDENTIFIER('t') AS SELECT 'forged' AS x",
        "EXPLAIN CREATE OR REPLACE TEMPORARY VIEW IDENTIFIER('t' || '') AS SELECT 'forged' AS x",
        "WITH a AS (SELECT 1) INSERT INTO IDENTIFIER('x' || '') SELECT * FROM a",
        "CALL IDENTIFIER('weft.system.' || 'compact')('t')",
        "INSERT INTO x SELECT 1",
        "WITH a AS (SELECT 1) INSERT INTO x SELECT * FROM a",
        "FROM t INSERT INTO a SELECT 1 INSERT INTO b SELECT 2",
        "INSERT OVERWRITE DIRECTORY '/x' USING parquet SELECT 1",
        "SELECT TRANSFORM(a) USING 'sh' AS (b STRING) FROM t",
        "SELECT * FROM (SELECT TRANSFORM(a) USING 'sh' AS (b STRING) FROM t)",
        "SELECT 1 WHERE EXISTS (SELECT TRANSFORM(a) USING 'sh' AS (b STRING) FROM t)",
        "WITH a AS (SELECT TRANSFORM(a) USING 'sh' AS (b STRING) FROM t) SELECT * FROM a",
        "EXECUTE IMMEDIATE 'DROP TABLE x'",
        "EXPLAIN EXECUTE IMMEDIATE 'SET spark.sql.runSQLOnFiles = true'",
        "EXPLAIN EXTENDED EXECUTE IMMEDIATE 'CREATE TEMPORARY VIEW x AS SELECT 1'",
        "EXPLAIN INSERT OVERWRITE DIRECTORY '/x' USING parquet SELECT 1",
        "EXPLAIN ADD JAR '/x'",
        "EXPLAIN CALL weft.system.compact('t')",
        "DESCRIBE QUERY SELECT TRANSFORM(a) USING 'sh' AS (b STRING) FROM t",
        "BEGIN INSERT INTO x SELECT 1; END",
        "SET spark.sql.runSQLOnFiles = true",
        "SET",
        "RESET",
        "CACHE TABLE t",
        "CREATE TABLE x AS SELECT 1",
        "CREATE TEMPORARY VIEW x AS SELECT 1",
        "DELETE FROM t",
        "ADD JAR '/x'",
        "LIST JARS",
        "USE x",
        "DECLARE VARIABLE x INT",
        "SELECT * FROM STREAM t",
        "SELECT from_xml('<a>1</a>', 'a INT', map('rowValidationXSDPath', '/etc/hostname'))",
    ],
)
def test_other_statements_are_refused(client: httpx2.Client, sql: str) -> None:
    text = ask(client, sql)[1]
    assert "only queries are allowed" in text, text


def test_the_examples_name_the_system_tables() -> None:
    assert set(SYSTEM_TABLES) == set(system_tables.SYSTEM_TABLES)


def test_what_is_no_query_is_refused_before_spark_starts(client: httpx2.Client) -> None:
    for fields, message in (
        ({"sql": "  "}, "there is no query"),
        ({"sql": "SELECT 1", "limit": "0"}, "limit"),
        ({"sql": "SELECT 1", "as_of": "2026:11"}, "is not a time"),
        ({"sql": "x" * 200_000}, "too long"),
    ):
        answer = client.post("/sql/run", data=fields)
        assert answer.status_code == 400
        assert message in answer.text
    assert client.get("/sql/answers/999").status_code == 404
    assert client.get("/sql/answers/999/rows.csv").status_code == 404
