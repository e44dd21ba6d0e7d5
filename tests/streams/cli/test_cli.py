"""The output and the exit codes of the command line."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.streams.support.pipelines import CONFIG, pipeline_file, weft
from weft import Table
from weft.streams.pipeline.file.pipeline import load_pipeline


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide-1", CONFIG)
    with table.writer("sa") as writer:
        writer.append(pa.table({"id": [1, 2], "a": ["x", "[red]y"], "at": [1, 1]}))
    return table


def test_help_names_every_command_and_the_exit_codes() -> None:
    text = weft("--help").output
    for word in ("demo", "init", "run", "sql", "show", "compact", "Exit codes: 0 ok"):
        assert word in text
    assert weft("shwo").exit_code == 2


def test_the_version_is_that_of_the_package() -> None:
    assert weft("--version").output == f"weft {metadata.version('weft')}\n"
    assert "weft: several streams write" in weft("--help").output


def test_init_writes_a_pipeline_that_loads_and_never_overwrites(tmp_path: Path) -> None:
    assert weft("init", tmp_path / "new").exit_code == 0
    written = tmp_path / "new/pipeline.yaml"
    assert list(load_pipeline(written).writers) == ["orders", "payments"]
    written.write_text("mine")
    again = weft("init", tmp_path / "new")
    assert again.exit_code == 1
    assert "already exists" in again.stderr
    assert written.read_text() == "mine"


def test_show_overview(table: Table) -> None:
    text = weft("show", table.uri).stdout
    assert "0 compacted, and 2 events in logs" in text
    assert "a string, at bigint" in text
    (line,) = weft("show", table.uri, "--json").stdout.splitlines()
    facts = json.loads(line)
    assert (facts["events_in_logs"], facts["commits_waiting"]) == (2, 1)
    assert facts["schema"]["key"] == ["id"]


@pytest.mark.parametrize(
    ("what", "first"),
    [("timeline", {"lane": "sa", "kind": "DATA", "rows": 2}), ("files", {"base_rows": 0}), ("streams", {"lane": "sa"})],
)
def test_show_timeline_files_and_streams(table: Table, what: str, first: dict[str, Any]) -> None:
    assert weft("show", table.uri, what).exit_code == 0
    lines = [json.loads(line) for line in weft("show", table.uri, what, "--json").stdout.splitlines()]
    assert first.items() <= lines[0].items()
    if what == "timeline":
        assert len(weft("show", table.uri, what, "--json", "--limit", "2").stdout.splitlines()) == 2


def test_show_watermarks_if_a_lateness_was_declared(table: Table) -> None:
    assert "waits for" not in weft("show", table.uri, "streams").stdout
    with table.writer("sa", lateness=3) as writer:
        writer.append(pa.table({"id": [1], "a": ["x"], "at": [10]}))
        writer.append(pa.table({"id": [1], "a": ["x"], "at": [5]}))
    text = weft("show", table.uri, "streams").stdout
    assert [line.split() for line in text.splitlines() if "lane sa" in line] == [
        ["sa", "ga", "at", "7", "-", "1", "lane", "sa"]
    ]
    (lane,) = [json.loads(line) for line in weft("show", table.uri, "streams", "--json").stdout.splitlines()]
    assert (lane["watermarks"], lane["late"]) == ({"ga": 7}, 1)


def test_compact(table: Table) -> None:
    first = json.loads(weft("compact", table.uri, "--json").stdout)
    assert (first["rows"], first["skipped"]) == (2, {})
    assert "nothing to do" in weft("compact", table.uri).stdout
    assert "rows        2\n" in weft("show", table.uri).stdout


@pytest.mark.parametrize("command", [["show"], ["compact"], ["sql", "SELECT 1"]])
def test_a_missing_table(tmp_path: Path, command: list[str]) -> None:
    result = weft(command[0], tmp_path / "none", *command[1:])
    assert result.exit_code == 1
    assert "there is no table at" in result.stderr
    assert "hint: " in result.stderr
    assert result.stdout == ""


def test_a_table_is_found_through_its_pipeline(table: Table, tmp_path: Path) -> None:
    path = pipeline_file(tmp_path, table={"uri": table.uri}, writers="${NOT_NEEDED_HERE}")
    assert weft("show", path).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        (
            {"writers": {"sa": {"source": {"type": "kafka", "topic": "t"}}}},
            [],
            "writers.sa.schema: is missing",
        ),
        ({}, ["--writer", "sb"], "the pipeline has no writer 'sb'"),
        (
            {
                "kafka": {"bootstrap.servers": "localhost:1"},
                "writers": {
                    "sa": {
                        "source": {"type": "kafka", "topic": "t", "options": {"failOnDatLoss": False}},
                        "schema": {"id": "bigint", "a": "string", "at": "bigint"},
                    }
                },
            },
            [],
            "writers.sa.source: weft_kafka has no option 'failondatloss'",
        ),
        ({"clean": {"retain": "ever"}}, [], "clean.retain: 'ever' is not a duration"),
    ],
)
def test_a_wrong_pipeline_is_a_usage_error(
    tmp_path: Path, changes: dict[str, Any], arguments: list[str], message: str
) -> None:
    result = weft("run", pipeline_file(tmp_path, **changes), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "wide").exists()


def test_run_refuses_a_table_that_differs_from_the_file(tmp_path: Path) -> None:
    Table.create(tmp_path / "wide", {**CONFIG, "buckets": 4})
    result = weft("run", pipeline_file(tmp_path))
    assert result.exit_code == 1
    assert "buckets: 2 in the file, 4 in the table" in result.stderr


def test_run_without_a_configuration_needs_a_table(tmp_path: Path) -> None:
    result = weft("run", pipeline_file(tmp_path, table={"uri": "./wide"}))
    assert result.exit_code == 1
    assert "add table.config to the pipeline" in result.stderr


@pytest.mark.parametrize("command", [["run"], ["sql", "SELECT 1"]])
def test_without_java_the_hint_says_how_to_install_it(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = weft(command[0], pipeline_file(tmp_path, table={"uri": table.uri}), *command[1:])
    assert result.exit_code == 1
    assert "Spark needs Java, and JAVA_HOME is" in result.stderr
    assert "install Java 17 or newer" in result.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11; Spark needs 17 or newer"),
        ("echo 'java version \"1.8.0_392\"' >&2", "is Java 8; Spark needs 17 or newer"),
        ("echo broken >&2; exit 1", "does not run: broken"),
    ],
)
def test_unsuitable_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    from weft.storage.errors import NotFound
    from weft.streams.spark.session import check_java

    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotFound, match=message):
        check_java()
