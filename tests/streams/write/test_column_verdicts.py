"""`weft check`, `weft doctor` and a batch of `weft run` have one verdict on the columns that a writer selects."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.strategies import VALUE_TYPES, Config, configs, input_type
from weft.storage import Table, TableConfig, mergers
from weft.storage.config.table_config import build_schema
from weft.storage.core.types import parse_type
from weft.storage.errors import InvalidInput
from weft.storage.write.write_task import check_columns
from weft.streams.doctor.finding import Findings
from weft.streams.doctor.message_checks import _check_sample
from weft.streams.kafka.kafka_source import columns as kafka_columns
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.write import sink
from weft.streams.write.check_expressions import column_problems, expression_problems
from weft.streams.write.decode_events import decode_events

COLLECTING = {
    "key": ["id"],
    "columns": {"id": "string", "kinds": "array<string>", "n": "bigint"},
    "groups": {
        "g": {"columns": ["kinds", "n"], "merge": "aggregate", "functions": {"kinds": "collect_set", "n": "count"}}
    },
    "streams": {"s": {"groups": ["g"], "on_delete": "ignore"}},
}
"""The configuration whose right pipeline `weft check` has refused."""


@st.composite
def cases(draw: st.DrawFn) -> tuple[Config, str, dict[str, str]]:
    """A configuration, one of its streams, and a type for each column of the stream, often the right one."""
    config = draw(configs(max_groups=2, defaults=False))
    stream = draw(st.sampled_from(sorted(config["streams"])))
    names = [name for group in config["streams"][stream]["groups"] for name in columns_of(config["groups"][group])]
    types = {
        name: input_type(config, name) if draw(st.integers(0, 3)) else draw(st.sampled_from(VALUE_TYPES))
        for name in [*config["key"], *dict.fromkeys(names)]
    }
    return config, stream, types


def columns_of(group: Mapping[str, Any]) -> list[str]:
    return [*group.get("ordering", ()), *group["columns"]]


def is_refused(schema: Any, stream: str, types: Mapping[str, str]) -> bool:
    arrow = pa.schema([(name, parse_type(text)) for name, text in types.items()])
    try:
        check_columns(arrow, schema, schema.stream(stream))
    except InvalidInput:
        return True
    return False


@given(case=cases())
@example(case=(COLLECTING, "s", {"id": "string", "kinds": "string", "n": "string"}))
@example(case=(COLLECTING, "s", {"id": "string", "kinds": "array<string>", "n": "string"}))
@example(case=(COLLECTING, "s", {"id": "boolean", "kinds": "string", "n": "map<string,bigint>"}))
def test_check_names_the_columns_for_which_a_batch_is_refused(case: tuple[Config, str, dict[str, str]]) -> None:
    config, stream, types = case
    schema = build_schema(TableConfig(**config))
    arrow = {name: parse_type(text) for name, text in types.items()}
    problems = [problem.message for problem in column_problems("select", schema, schema.stream(stream), arrow)]
    assert bool(problems) == is_refused(schema, stream, types)
    right = {name: input_type(config, name) for name in types}
    assert not is_refused(schema, stream, right)
    wrong = {name for name in types if is_refused(schema, stream, {**right, name: types[name]})}
    named = {name for name in types if any(text.startswith(f"select.{name}: ") for text in problems)}
    assert named == wrong


@pytest.mark.extended
@pytest.mark.spark
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(case=cases())
@example(case=(COLLECTING, "s", {"id": "string", "kinds": "string", "n": "string"}))
@example(case=(COLLECTING, "s", {"id": "string", "kinds": "array<string>", "n": "string"}))
def test_check_doctor_and_run_have_one_verdict(spark: SparkSession, case: tuple[Config, str, dict[str, str]]) -> None:
    config, stream, types = case
    mergers.allow("tests.mergers")
    with tempfile.TemporaryDirectory() as folder:
        table = Table.create(f"{folder}/table", TableConfig(**config))
        writer = writer_of(Path(folder), config, stream, types)
        problems = list(expression_problems(spark, writer, table.schema))
        rows = spark.createDataFrame([], kafka_columns(include_headers=True))
        verdicts = [bool(problems)]
        for judge in (
            lambda: _check_sample("w", spark, rows.toArrow(), writer, table.schema, Findings()),
            lambda: sink.check_columns(decode_events(rows, writer, None), table, stream),
        ):
            try:
                judge()
                verdicts.append(False)
            except InvalidInput:
                verdicts.append(True)
    assert len(set(verdicts)) == 1, (verdicts, problems)


def writer_of(folder: Path, config: Config, stream: str, types: Mapping[str, str]) -> WriterSpec:
    fields = {f"f{number}": text for number, text in enumerate(types.values())}
    writer = {
        "source": {"type": "kafka", "topic": "t"},
        "schema": fields,
        "select": dict(zip(types, fields, strict=True)),
    }
    whole = {
        "table": {"uri": "./table", "config": config},
        "kafka": {"bootstrap.servers": "nobody:1"},
        "writers": {stream: writer},
    }
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    return load_pipeline(file, {}).writer(stream)
