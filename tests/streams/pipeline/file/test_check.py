"""``weft check`` names every problem of a pipeline file at once, with its line, and changes nothing."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.streams.pipeline.file.test_pipeline import CONFIG, WHOLE
from tests.streams.support.pipelines import weft
from weft import Table
from weft.storage.config.table_config import build_schema, load_config
from weft.streams.pipeline.file.check_file import CheckedFile, check_file
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.write.check_expressions import expression_problems

CHECK_SECONDS = 280.0  # starts a JVM on a busy machine


def written(folder: Path, changes: dict[str, Any]) -> Path:
    """The file WHOLE with some fields replaced (path with slashes) or removed (value `...`)."""
    whole = copy.deepcopy(WHOLE)
    for path, value in changes.items():
        *parents, last = path.split("/")
        place = whole
        for parent in parents:
            place = place[parent]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    file = folder / "shop.yaml"
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    return file


def messages(checked: CheckedFile) -> list[str]:
    return [problem.message for problem in checked.problems]


def test_a_good_file_has_no_problem_and_nothing_is_created(tmp_path: Path) -> None:
    file = written(tmp_path, {})
    assert check_file(file, {}).problems == []
    done = weft("check", file, "--without-spark", "--without-messages")
    assert (done.exit_code, done.stdout) == (0, f"{file}: no problem found\n")
    assert list(tmp_path.iterdir()) == [file]


MISTAKES: dict[str, Any] = {
    "table/config/buckets": 3,
    "writers/orders/trigger": "soon",
    "writers/orders/kafka": {"x": "${NO_SUCH_VARIABLE}"},
    "writers/payments": {
        "source": {"type": "kafka", "topic": "p", "options": {"failOnDatLoss": False}},
        "schema": {"order_id": "bigint", "paid": "dubble"},
    },
    "clean": {"retain": "ever"},
}


@pytest.mark.parametrize("command", [["run"], ["run", "--once"], ["create"], ["doctor"], ["dead-letters", "replay"]])
def test_commands_name_all_mistakes_in_the_words_of_check(tmp_path: Path, command: list[str]) -> None:
    file = written(tmp_path, MISTAKES)
    checked = weft("check", file, "--without-spark", "--without-messages")
    *lines, total = checked.stdout.splitlines()
    done = weft(*command, file)
    assert (checked.exit_code, done.exit_code) == (2, 2)
    assert done.stderr.splitlines() == lines
    assert total == "7 problems"
    assert list(tmp_path.iterdir()) == [file]


def test_commands_that_read_some_sections_name_all_mistakes_in_them(tmp_path: Path) -> None:
    file = written(tmp_path, {"table/uri": 3, "spark": ["x"], "clean": {"retain": "ever", "evry": 1}})
    done = weft("clean", file)
    assert done.exit_code == 2
    found = [line.partition(": ")[2] for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert [text.partition(":")[0] for text in found] == ["table.uri", "clean.retain", "clean.evry"]


def test_what_is_empty_without_a_mistake_is_no_problem(tmp_path: Path) -> None:
    file = written(tmp_path, {"writers/orders/source": {"topic": "x"}})
    assert messages(check_file(file, {})) == ["writers.orders.source: type is missing"]
    file = written(tmp_path, {"writers/orders/select": {}})
    assert messages(check_file(file, {})) == ["writers.orders.select: is empty"]


def test_a_time_to_live_that_does_not_fit_is_found(tmp_path: Path) -> None:
    def found(**changes: Any) -> list[str]:
        return messages(
            check_file(written(tmp_path, {name.replace("__", "/"): value for name, value in changes.items()}), {})
        )

    alone = found(ttl=True)
    assert alone == ["ttl: the table has no time to live, so the service has nothing to do"]
    wrong = found(table__config__ttl={"rows": "1 day", "by": "none"})
    assert wrong == ["table.config.ttl.by: there is no 'none'"]
    late = found(table__config__ttl={"rows": "1 hour"}, writers__orders__lateness="2 hours")
    assert [text.partition(":")[0] for text in late] == ["writers.orders.lateness"] * 2
    assert "2:00:00 is longer than the table's ttl.rows, 1:00:00" in late[0]
    assert found(table__config__ttl={"rows": "9 hours"}, writers__orders__lateness="2 hours") == []
    file = written(tmp_path, {})
    pipeline = load_pipeline(file, {})
    assert pipeline.config is not None
    table = Table.create(pipeline.table.uri, pipeline.config)
    assert messages(check_file(file, {})) == []
    table.set_ttl(rows="90 days")
    assert messages(check_file(file, {})) == [
        "table.uri: the table has a time to live, and no service of the file applies it"
    ]
    assert found(ttl={"every": "1 minute"}) == []
    other = found(table__config__ttl={"rows": "80 days"})[0]
    assert "ttl.rows: 6912000000 ms in the file, 7776000000 ms in the table" in other


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    wrong = {"trigger": "soon", "on_error": "stop", "lane": "a b", "stream": "orders"}
    bad = copy.deepcopy(WHOLE["writers"]["orders"]) | wrong
    bad["select"]["nonsense"] = "1"
    file = written(
        tmp_path,
        {
            "table/url": "x",
            "kafka/sasl.password": "${NO_SUCH}",
            "clean": {"retain": "for ever", "versions": 0},
            "compaction": {"evry": 1},
            "writers/orders/source/topic": ...,
            "writers/orders/schema/id": "bigit",
            "writers/orders/select/paid": "1",
            "writers/orders/tombstones": "burn",
            "writers/bad": bad,
            "writers/nobody": {**WHOLE["writers"]["orders"], "stream": "clicks"},
        },
    )
    checked = check_file(file, {})
    starts = {message.split(": ")[0] for message in messages(checked)}
    assert starts == {
        "table.url",
        "kafka.sasl.password",
        "clean.retain",
        "clean.versions",
        "compaction.evry",
        "writers.orders.source.topic",
        "writers.orders.schema.id",
        "writers.orders.select.paid",
        "writers.orders.tombstones",
        "writers.bad.trigger",
        "writers.bad.lane",
        "writers.bad.dead_letter",
        "writers.bad.select.nonsense",
        "writers.nobody.stream",
    }
    assert all(problem.hint for problem in checked.problems if "source.topic" in problem.message)


def test_all_problems_of_the_table_are_found_at_once_each_at_its_place(tmp_path: Path) -> None:
    config = {
        "key": ["order_id", "nobody"],
        "columns": {"order_id": "double", "a": "strng", "at": "timestamp", "b": "int", "bt": "array<int>", "c": "int"},
        "groups": {
            "g": {"columns": ["a", "at", "zz"], "ordering": ["at"], "merge": "latst"},
            "h": {"columns": ["b", "bt", "at"], "ordering": ["bt", "tb"]},
            "sums": {"columns": ["a"], "merge": "aggregate"},
        },
        "streams": {"orders": {"groups": ["g", "nothing"], "on_delete": "rows"}},
        "buckets": 3,
        "overlay": True,
        "ttl": {"rows": "1 day", "by": "a"},
    }
    file = written(tmp_path, {"table/config": config})
    found = [problem for problem in check_file(file, {}).problems if problem.message.startswith("table.config.")]
    assert sorted(problem.message.removeprefix("table.config.") for problem in found) == [
        "buckets: 3 is not a power of two from 1 to 65536",
        "columns.a: 'strng' is not a column type",
        "columns.c: the column is not in a group",
        "groups.g.columns: there is no 'zz'",
        "groups.g.merge: 'latst' is not a merge mode of this version",
        "groups.h.columns: column 'at' is already in group 'g'",
        "groups.h.ordering: 'tb' is not a column of the group",
        "groups.h.ordering: column 'bt' has type array<int>",
        "groups.h: no stream writes the group",
        "groups.sums.columns: column 'a' is already in group 'g'",
        "groups.sums.functions: column 'a' has no function",
        "groups.sums: no stream writes the group",
        "key: column 'order_id' has type double",
        "key: there is no 'nobody'",
        "overlay: is not a known field",
        "streams.orders.groups: there is no 'nothing'",
        "streams.orders.on_delete: must be 'group', 'row' or 'ignore'",
    ]
    text = file.read_text().splitlines()
    shown = {problem.message: text[(problem.line or 0) - 1].strip() for problem in found}
    assert shown["table.config.columns.a: 'strng' is not a column type"] == "a: strng"
    assert shown["table.config.groups.g.merge: 'latst' is not a merge mode of this version"] == "merge: latst"
    assert all(problem.hint for problem in found)


def test_values_of_wrong_kinds_are_told_in_words_and_not_shown(tmp_path: Path) -> None:
    secret = "hunter2-secret"
    wrong = {
        "table/config/key": "order_id",
        "table/config/buckets": secret,
        "table/config/overlays": secret,
        "table/config/columns": [secret],
        "writers/orders/source/topic": 5,
        "writers/orders/schema": secret,
        "writers/orders/tombstones": "delet",
        "writers/orders/takeover": [],
        "compaction/every": {},
        "kafka": secret,
    }
    checked = check_file(written(tmp_path, {"compaction": {}, **wrong}), {})
    texts = {problem.message.partition(": ")[0]: problem for problem in checked.problems}
    expected = {
        "table.config.key": "is a text, and must be a list",
        "table.config.buckets": "is a text, and must be a whole number",
        "table.config.overlays": "is a text, and must be true or false",
        "table.config.columns": "is a list, and must be a mapping, with a name before each value",
        "writers.orders.source.topic": "is a number, and must be a text",
        "writers.orders.schema": "is a text, and must be a mapping, with a name before each value",
        "writers.orders.tombstones": "must be 'ignore', 'delete' or 'dead_letter'",
        "writers.orders.takeover": "is a list, and must be true or false",
        "kafka": "is a text, and must be a mapping, with a name before each value",
    }
    assert {name: texts[name].message.partition(": ")[2] for name in expected} == expected
    assert texts["table.config.key"].hint == "key: [order_id]"
    assert texts["writers.orders.tombstones"].hint == "did you mean delete?"
    whole = "".join(f"{problem.message}{problem.hint}" for problem in checked.problems)
    assert secret not in whole
    assert "nput" not in whole
    assert len(texts) == len(checked.problems), "a field that is wrong is not missing, too"


def test_problems_have_the_line_of_their_field(tmp_path: Path) -> None:
    file = written(tmp_path, {"writers/orders/select/paid": "1", "writers/orders/select/ts": ..., "table/url": "x"})
    lines = [line.strip() for line in file.read_text().splitlines()]
    assert {problem.message.split(": ")[0]: problem.line for problem in check_file(file, {}).problems} == {
        "table.url": 1 + lines.index("url: x"),
        "writers.orders.select.paid": 1 + lines.index("paid: '1'"),
        "writers.orders.select": 1 + lines.index("select:"),
    }


def test_names_with_dots_have_lines(tmp_path: Path) -> None:
    file = written(tmp_path, {"kafka/sasl.password": "${NO_SUCH}"})
    [problem] = check_file(file, {}).problems
    assert file.read_text().splitlines()[(problem.line or 0) - 1].strip() == "sasl.password: ${NO_SUCH}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table/config": ...}, "table.uri: there is no table at"),
        ({"table/config/buckets": 3}, "table.config.buckets: 3 is not a power of two"),
        ({"table/config/columns/ts": "tim"}, "table.config.columns.ts: 'tim' is not a column type"),
        ({"table/uri": "nosuch://x/y"}, "table.uri: "),
        ({"table": ...}, "table: is missing"),
        ({"writers": {}}, "writers: is empty"),
        ({"writers": 5}, "writers: is a number, and must be a mapping"),
        ({"writers/orders/source/options": {"kafka.x": "1"}}, "writers.orders.source.options.kafka.x: has its own"),
        ({"writers/orders/source/options": {"failOnDataLoss": "maybe"}}, "writers.orders.source: "),
        ({"writers/orders/lateness": 5}, "writers.orders.lateness: 5 is a number"),
        (
            {"kafka/fetch.max.byte": "1000"},
            "writers.orders.source: kafka.fetch.max.byte: librdkafka has no setting of this name",
        ),
        (
            {"kafka/fetch.max.bytes": "many"},
            'writers.orders.source: kafka.fetch.max.bytes: Invalid value for configuration property "fetch.max.bytes"',
        ),
        ({"kafka/reconnect.backoff.ms": 99999999}, "writers.orders.source: kafka.reconnect.backoff.ms: Configuration"),
    ],
)
def test_single_problems(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    found = messages(check_file(written(tmp_path, changes), {}))
    assert any(each.startswith(message) for each in found), found


def test_settings_of_librdkafka_that_need_files_or_others_are_accepted(tmp_path: Path) -> None:
    """Certificates may be on other machines only, and a setting may be wrong only beside another one."""
    file = written(
        tmp_path,
        {
            "kafka/security.protocol": "SASL_SSL",
            "kafka/sasl.mechanism": "PLAIN",
            "kafka/sasl.username": "somebody",
            "kafka/sasl.password": "secret",
            "kafka/ssl.ca.location": "/nowhere/ca.pem",
        },
    )
    assert messages(check_file(file, {})) == []


def test_the_existing_table_is_compared(tmp_path: Path) -> None:
    other = copy.deepcopy(CONFIG)
    other["columns"]["amount"] = "decimal(12,2)"
    Table.create(tmp_path / "lake/orders_wide", other)
    [found] = messages(check_file(written(tmp_path, {}), {}))
    assert found.startswith("table.uri: shop.yaml: table.config differs from the table")
    assert "columns.amount" in found
    file = written(tmp_path, {"table/config": ..., "writers/orders/select/paid": "1"})
    assert messages(check_file(file, {})) == ["writers.orders.select.paid: stream 'orders' has no such column"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    file = written(tmp_path, {"writers/orders/dead_letter": "./closed/dead"})
    assert any("cannot be written to" in message for message in messages(check_file(file, {})))


def test_files_in_the_place_of_folders(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    (tmp_path / "dead").write_text("")
    found = messages(check_file(written(tmp_path, {}), {}))
    assert f"table.uri: {tmp_path / 'lake'} is a file, not a folder" in found
    assert f"writers.orders.dead_letter: {tmp_path / 'dead'} is a file, not a folder" in found


def test_a_file_that_is_not_yaml(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("a: [")
    done = weft("check", file)
    assert done.exit_code == 2
    assert "weft does not read this YAML" in done.stderr
    assert weft("check", tmp_path / "none.yaml").exit_code == 2


def test_the_problems_are_printed_with_their_lines(tmp_path: Path) -> None:
    file = written(tmp_path, {"table/url": "x", "clean": {"versions": 0}})
    done = weft("check", file, "--without-spark", "--without-messages")
    assert done.exit_code == 2
    assert "shop.yaml:" in done.stdout
    assert "table.url: is not a known field" in done.stdout
    assert "hint: did you mean uri?" in done.stdout
    assert "2 problems" in done.stdout
    done = weft("check", file, "--without-spark", "--without-messages", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [set(line) for line in lines] == [{"severity", "line", "message", "hint", "guide"}] * 2


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_wrong_expression_is_found(spark: SparkSession, tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {
            "writers/orders/select": {
                "order_id": "idd",
                "status": "lower(status, 1)",
                "amount": "array(amount)",
                "ts": "_kafka.timestamp",
                "_op": "((",
            },
            "writers/orders/where": "amount + 1",
        },
    )
    schema = build_schema(load_config(CONFIG))
    found = [
        problem.message for problem in expression_problems(spark, load_pipeline(file, {}).writer("orders"), schema)
    ]
    assert [message.split(": ")[0] for message in found] == [
        "writers.orders.select.order_id",
        "writers.orders.select.status",
        "writers.orders.select._op",
        "writers.orders.where",
        "writers.orders.select.amount",
    ]
    assert "idd" in found[0]
    assert "amount" in found[4]


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"writers/orders/select/status": "_kafka.headers[0].key"}, []),
        ({"writers/orders/select/status": "_kafka.header"}, ["writers.orders.select.status"]),
        ({"writers/orders/select/status": "_key.id"}, ["writers.orders.select.status"]),
        ({"writers/orders/key": {"id": "bigint"}, "writers/orders/select/status": "string(_key.id)"}, []),
        ({"writers/orders/select/status": "count(*)"}, ["writers.orders.select.status"]),
        ({"writers/orders/where": "nothing > 1"}, ["writers.orders.where"]),
        ({"writers/orders/schema/ts": "boolean"}, ["writers.orders.select.ts"]),
        ({"writers/orders/source": {"type": "spark", "format": "rate"}}, ["writers.orders.source"]),
        (
            {
                "writers/orders/source": {"type": "spark", "format": "rate"},
                "writers/orders/schema": ...,
                "writers/orders/select": {"order_id": "value", "status": "''", "amount": "rand()", "ts": "timestamp"},
                "writers/orders/where": "value > 1",
            },
            [],
        ),
        (
            {
                "writers/orders/source": {"type": "spark", "format": "rate"},
                "writers/orders/schema": ...,
                "writers/orders/select": {"order_id": "valeu", "status": "''", "amount": "now()", "ts": "timestamp"},
                "writers/orders/where": ...,
            },
            ["writers.orders.select.order_id", "writers.orders.select.amount"],
        ),
    ],
)
def test_expressions(spark: SparkSession, tmp_path: Path, changes: dict[str, Any], fields: list[str]) -> None:
    writer = load_pipeline(written(tmp_path, changes), {}).writer("orders")
    schema = build_schema(load_config(CONFIG))
    found = [problem.message for problem in expression_problems(spark, writer, schema)]
    assert [message.split(": ")[0] for message in found][: len(fields)] == fields, found
    assert bool(found) == bool(fields)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_checks_expressions(tmp_path: Path) -> None:
    file = written(tmp_path, {"writers/orders/select/status": "lower(statu)", "table/url": "x"})
    done = subprocess.run(
        [sys.executable, "-m", "weft.streams.cli.main", "check", file, "--json", "--without-messages"],
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert [json.loads(line)["message"].split(": ")[0] for line in done.stdout.splitlines()] == [
        "table.url",
        "writers.orders.select.status",
    ]
    assert done.stderr == "messages were not looked at\n", "output of Spark is not shown"


@pytest.mark.spark
def test_an_expression_that_is_too_deep_for_spark_is_a_problem(tmp_path: Path, spark: SparkSession) -> None:
    """Spark's parser has no error for it: its stack overflows."""
    file = written(tmp_path, {"writers/orders/select/status": "(" * 5_000 + "status" + ")" * 5_000})
    writer = load_pipeline(file, {}).writer("orders")
    (problem,) = expression_problems(spark, writer, None)
    assert problem.message == "writers.orders.select.status: Spark cannot read the expression: StackOverflowError"


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_misspelt_section_is_named_with_the_right_name(tmp_path: Path, command: str) -> None:
    file = written(tmp_path, {})
    file.write_text(file.read_text().replace("writers:", "writer:"))
    done = weft(command, file)
    assert done.exit_code == 2
    text = done.stdout + done.stderr
    assert "writer: is not a known field" in text
    assert "did you mean writers?" in text
    assert "writers: is missing" not in text


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_a_publication_that_can_never_work_is_a_problem(tmp_path: Path, *, existing: bool) -> None:
    config = copy.deepcopy(WHOLE["table"]["config"])
    config["columns"]["tags"] = "array<string>"
    next(iter(config["groups"].values()))["columns"].append("tags")
    changes = {"publish": {"iceberg": {"table": "shop.orders"}, "delta": True}, "table/config": config}
    file = written(tmp_path, changes)
    if existing:
        Table.create(tmp_path / WHOLE["table"]["uri"], config)
    assert [text for text in messages(check_file(file)) if text.startswith("publish")] == [
        "publish.iceberg: column tags has a nested type, and base files have no field ids inside of it"
    ]


def test_a_publication_without_its_package_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.storage.publish import open_catalog

    monkeypatch.setattr(open_catalog, "find_spec", lambda _: None)
    file = written(tmp_path, {"publish": {"iceberg": {"table": "shop.orders"}}})
    (problem,) = check_file(file).problems
    assert (problem.message, problem.hint) == (
        "publish.iceberg: publishing as Iceberg needs pyiceberg",
        "install it: pip install 'weft[iceberg]'",
    )
