"""Fields of a pipeline file that concern message formats."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.streams.formats.registry_server import SchemaRegistry
from weft.storage.errors import InvalidInput
from weft.streams.formats.registry import RegistryUnavailable
from weft.streams.pipeline.file.pipeline import Pipeline, load_pipeline
from weft.streams.pipeline.run.outage import JobOutages
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.writer_outage import await_registry

GROUPS = {
    "row": {"columns": ["body", "lsn"], "ordering": ["lsn"]},
    "count": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
}
WHOLE: dict[str, Any] = {
    "table": {
        "uri": "./t",
        "config": {
            "key": ["id"],
            "columns": {"id": "bigint", "body": "string", "lsn": "bigint", "n": "bigint"},
            "groups": GROUPS,
            "streams": {"rows": {"groups": ["row"]}, "counts": {"groups": ["count"], "on_delete": "ignore"}},
        },
    },
    "kafka": {"bootstrap.servers": "broker:9092"},
    "writers": {
        "rows": {
            "source": {"type": "kafka", "topic": "rows", "format": "debezium"},
            "schema": {"id": "bigint", "body": "string"},
            "select": {"id": "id", "body": "body", "lsn": "_debezium.source.lsn"},
        }
    },
}


def load(folder: Path, change: dict[str, Any] | None = None, **writer: Any) -> Pipeline:
    """The pipeline with other fields of its writer, and other sections."""
    whole = copy.deepcopy(WHOLE)
    whole["writers"]["rows"].update(writer)
    whole.update(change or {})
    file = folder / "shop.yaml"
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    return load_pipeline(file, {})


def source(**fields: Any) -> dict[str, Any]:
    return {"type": "kafka", "topic": "rows", **fields}


def test_options_of_a_format_reach_the_writer(tmp_path: Path) -> None:
    options = {"timestamps": "micros", "decimals": "text"}
    writer = load(tmp_path, source=source(format="debezium", format_options=options)).writer("rows")
    assert (writer.message_format, writer.format_options) == ("debezium", options)
    assert load(tmp_path).writer("rows").format_options == {}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"format": "json", "format_options": {"decimals": "text"}}, ["writers.rows", "format_options.decimals"]),
        (
            {"format": "debezium", "format_options": {"decimal": "text"}},
            ["format_options.decimal: is not an option", "timestamps, decimals"],
        ),
        (
            {"format": "debezium", "format_options": {"timestamps": "seconds"}},
            ["format_options.timestamps: unknown value 'seconds'", "millis, micros, nanos"],
        ),
        ({"format": "debezium", "format_options": {"unavailable_value": ""}}, ["unavailable_value is empty"]),
    ],
)
def test_wrong_options_are_named_before_anything_starts(
    tmp_path: Path, fields: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path, source=source(**fields))
    text = f"{caught.value.message} {caught.value.hint}"
    assert [name for name in names if name not in text] == []


def test_updates_are_not_added_to_aggregates_unless_the_user_chooses_events(tmp_path: Path) -> None:
    fields = {"stream": "counts", "select": {"id": "id", "n": "1"}}
    with pytest.raises(InvalidInput, match="aggregates of group 'count'") as caught:
        load(tmp_path, **fields)
    assert "_debezium.op IN" in caught.value.hint
    load(tmp_path, where="_debezium.op IN ('c', 'r')", **fields)
    load(tmp_path, **{**fields, "select": {"id": "id", "n": "1", "_op": "'upsert'"}})
    load(tmp_path, source=source(format="json"), **fields)


REGISTRY = {"url": "http://registry:8081", "timeout": 5}


def test_settings_of_the_registry_reach_the_writer(tmp_path: Path) -> None:
    given = {"source": source(format="json", key_format="avro"), "key": {"id": "bigint"}}
    select = {"select": {"id": "_key.id", "body": "body", "lsn": "_kafka.offset"}}
    pipeline = load(tmp_path, {"registry": REGISTRY}, **given, **select, registry={"timeout": 7})
    writer = pipeline.writer("rows")
    assert (writer.key_format, writer.registry) == ("avro", {"url": "http://registry:8081", "timeout": "7"})
    assert "registry:8081" not in repr(writer)


@pytest.mark.parametrize(
    ("registry", "fields", "names"),
    [
        ({}, {"format": "avro"}, ["writers.rows.source.format: ", "needs a schema registry", "registry: {url:"]),
        ({}, {"format": "protobuf"}, ["needs a schema registry"]),
        ({}, {"format": "debezium-avro"}, ["needs a schema registry"]),
        ({}, {"format": "json", "key_format": "avro"}, ["writers.rows.source.key_format: ", "needs a schema registry"]),
        ({"url": "registry:8081"}, {"format": "avro"}, ["settings of the schema registry are wrong"]),
        ({**REGISTRY, "usr": "x"}, {"format": "avro"}, ["settings of the schema registry are wrong", "usr"]),
        ({**REGISTRY, "timeout": "soon"}, {"format": "avro"}, ["settings of the schema registry are wrong"]),
        (REGISTRY, {"format": "json", "key_format": "debezium"}, ["is a format of values", "json or avro"]),
        (REGISTRY, {"format": "avro", "format_options": {"a": "b"}}, ["format_options.a", "has no options"]),
        (
            REGISTRY,
            {"format": "debezium-avro", "format_options": {"decimals": "text"}},
            ["format_options.decimals", "unavailable_value"],
        ),
    ],
)
def test_what_a_format_lacks_is_named_before_anything_starts(
    tmp_path: Path, registry: dict[str, Any], fields: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path, {"registry": registry}, source=source(**fields))
    text = f"{caught.value.message} {caught.value.hint}"
    assert [name for name in names if name not in text] == []


def test_a_password_in_the_url_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path, {"registry": {"url": "ftp://me:secret@registry"}}, source=source(format="avro"))
    assert "secret" not in str(caught.value)


def test_json_schema_needs_no_registry(tmp_path: Path) -> None:
    assert load(tmp_path, source=source(format="json-schema")).writer("rows").registry == {}


def test_a_missing_package_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fastavro" else found(name))
    with pytest.raises(InvalidInput, match="not installed: fastavro") as caught:
        load(tmp_path, {"registry": REGISTRY}, source=source(format="avro"))
    assert "weft[registry]" in caught.value.hint
    load(tmp_path, {"registry": REGISTRY}, source=source(format="protobuf"))


class Stop:
    """A stop signal that is never set, whose waits do something instead of taking time."""

    def __init__(self, during: Callable[[], None]) -> None:
        self.during = during

    def wait(self, seconds: float) -> bool:
        self.during()
        return False

    def __bool__(self) -> bool:
        return False


def test_a_writer_waits_for_its_registry_before_it_starts(
    tmp_path: Path, registry: SchemaRegistry, pipe: tuple[int, int]
) -> None:
    writer = load(tmp_path, {"registry": {"url": registry.url}}, source=source(format="avro")).writer("rows")
    reporter = Reporter(pipe[1], Report())
    waited: list[str] = []

    def during() -> None:
        waited.append(reporter.report.waiting_for)
        if len(waited) == 3:
            registry.failing = 0

    registry.failing = -1
    stop: Any = Stop(during)
    await_registry(writer, stop, JobOutages(reporter, stop), once=False)
    assert waited == [f"the schema registry {registry.url}"] * 3
    assert reporter.report.waiting_for == ""
    registry.failing = -1
    with pytest.raises(RegistryUnavailable):
        await_registry(writer, stop, JobOutages(reporter, stop), once=True)
    plain = load(tmp_path, source=source(format="json")).writer("rows")
    await_registry(plain, stop, JobOutages(reporter, stop), once=True)
