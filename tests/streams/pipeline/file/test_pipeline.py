"""Valid and invalid pipeline files; errors name the field and have a hint."""

from __future__ import annotations

import copy
import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft import DuePolicy, Table
from weft.storage.config.table_config import build_schema, configuration, load_config
from weft.storage.errors import Conflict, InvalidInput
from weft.streams.pipeline.file.check import check_writers, exact_fields, key_of
from weft.streams.pipeline.file.file_problems import WrongFile
from weft.streams.pipeline.file.letter_places import LetterPlace, load_letter_places
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.file.same_table import check_same_table

CONFIG: dict[str, Any] = {
    "key": ["order_id"],
    "columns": {"order_id": "bigint", "status": "string", "amount": "double", "ts": "timestamp", "paid": "double"},
    "groups": {
        "order": {"columns": ["status", "amount", "ts"], "ordering": ["ts"]},
        "payment": {"columns": ["paid"]},
    },
    "streams": {"orders": {"groups": ["order"]}, "payments": {"groups": ["payment"]}},
}
WHOLE: dict[str, Any] = {
    "table": {"uri": "./lake/orders_wide", "config": CONFIG},
    "kafka": {"bootstrap.servers": "broker:9092", "fetch.wait.max.ms": 10, "enable.ssl.certificate.verification": True},
    "writers": {
        "orders": {
            "source": {"type": "kafka", "topic": "orders", "max_offsets_per_trigger": 500},
            "schema": {"id": "bigint", "status": "string", "amount": "double", "ts": "timestamp"},
            "select": {"order_id": "id", "status": "lower(status)", "amount": "amount", "ts": "ts", "_op": "'u'"},
            "where": "id IS NOT NULL",
            "trigger": "2 seconds",
            "dead_letter": "./dead/orders",
        },
    },
}


FILES: dict[str, Any] = {"type": "files", "format": "csv", "path": "./landing"}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Load WHOLE with some fields replaced (dotted path) or removed (value `...`)."""

    def loaded(changes: dict[str, Any] | None = None, environment: dict[str, str] | None = None) -> Any:
        whole = copy.deepcopy(WHOLE)
        for path, value in (changes or {}).items():
            *parents, last = path.split("/")
            place = whole
            for parent in parents:
                place = place[parent]
            if value is ...:
                del place[last]
            else:
                place[last] = value
        file = tmp_path / "shop.yaml"
        file.write_text(yaml.safe_dump(whole, sort_keys=False))
        return load_pipeline(file, environment or {})

    return loaded


def test_defaults_and_paths_are_resolved(load: Any, tmp_path: Path) -> None:
    pipeline = load()
    assert pipeline.table.uri == str(tmp_path / "lake/orders_wide")
    assert pipeline.table.name == "orders_wide"
    assert pipeline.state == tmp_path / ".weft/shop"
    assert (pipeline.compaction.every, pipeline.compaction.min_commits) == (30.0, None)
    writer = pipeline.writer("orders")
    assert (writer.stream, writer.lane, writer.trigger_seconds) == ("orders", "orders", 2.0)
    assert writer.dead_letter == str(tmp_path / "dead/orders")
    assert writer.checkpoint == str(tmp_path / ".weft/shop/checkpoints/orders")
    assert writer.reader_format == "weft_kafka"
    assert writer.reader_options == {
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "500",
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.fetch.wait.max.ms": "10",
        "kafka.enable.ssl.certificate.verification": "true",
    }


def test_settings_of_a_writer_override_those_of_the_pipeline(load: Any) -> None:
    pipeline = load(
        {
            "spark": {"spark.driver.memory": "1g", "spark.a": "1"},
            "writers/orders/spark": {"spark.driver.memory": "2g"},
            "writers/orders/kafka": {"bootstrap.servers": "other:9092"},
            "writers/orders/source": {
                "type": "kafka",
                "topics": ["a", "b"],
                "starting_offsets": {"a": {"0": 7}},
                "options": {"failOnDataLoss": False},
            },
        }
    )
    writer = pipeline.writer("orders")
    assert writer.spark == {"spark.driver.memory": "2g", "spark.a": "1"}
    assert writer.reader_options["kafka.bootstrap.servers"] == "other:9092"
    assert writer.reader_options["subscribe"] == "a,b"
    assert writer.reader_options["startingOffsets"] == '{"a": {"0": 7}}'
    assert writer.reader_options["failOnDataLoss"] == "false"


def test_unknown_options_of_the_kafka_source_are_refused(load: Any) -> None:
    from weft.streams.kafka.options import parse_options

    options = parse_options(load().writer("orders").reader_options, default_starting="latest")
    assert options.topics == ("orders",)
    assert options.max_offsets_per_trigger == 500


def test_any_source_of_spark_can_feed_a_writer(load: Any) -> None:
    source = {"type": "spark", "format": "parquet", "schema": "id BIGINT", "options": {"path": "/in", "x": True}}
    writer = load({"writers/orders/source": source, "writers/orders/schema": ..., "kafka": ...}).writer("orders")
    assert (writer.reader_format, writer.reader_schema, writer.message) == ("parquet", "id BIGINT", None)
    assert writer.reader_options == {"path": "/in", "x": "true"}


def test_without_select_the_fields_are_the_columns(load: Any) -> None:
    message = {"order_id": "bigint", "status": "string", "amount": "double", "ts": "timestamp"}
    assert load({"writers/orders/select": ..., "writers/orders/schema": message}).writer("orders").select is None


def test_bad_messages_and_tombstones_have_defaults(load: Any) -> None:
    writer = load({"writers/orders/dead_letter": ...}).writer("orders")
    assert (writer.on_error, writer.dead_letter, writer.tombstones, writer.key) == ("dead_letter", None, "ignore", None)
    stopping = load({"writers/orders/dead_letter": ..., "writers/orders/on_error": "stop"}).writer("orders")
    assert stopping.on_error == "stop"


AT = "coalesce(ts, _kafka.timestamp)"


def test_dead_letters_have_a_section(load: Any, tmp_path: Path) -> None:
    section = {"path": "./dead", "keep": "30 days", "max_rate": 0.1, "max_count": 1000}
    writer = load({"writers/orders/dead_letter": section}).writer("orders")
    assert writer.dead_letter == str(tmp_path / "dead")
    assert writer.letter_limit is not None
    assert (writer.letter_limit.max_rate, writer.letter_limit.max_count) == (0.1, 1000)
    _, [place] = load_letter_places(tmp_path / "shop.yaml")
    assert place == LetterPlace("orders", "orders", "orders", str(tmp_path / "dead"), 30 * 86400)
    unlimited = load().writer("orders").letter_limit
    assert (unlimited.max_rate, unlimited.max_count) == (None, None)
    load({"writers/orders/dead_letter": {"keep": "1 hour"}})
    _, [place] = load_letter_places(tmp_path / "shop.yaml", {})
    assert (place.folder, place.keep_seconds) == (str(tmp_path / "lake/orders_wide_dead_letters/orders"), 3600)


def test_headers_are_read_where_they_may_name_a_schema(load: Any) -> None:
    assert "includeHeaders" not in load().writer("orders").reader_options
    changes = {"writers/orders/source/key_format": "avro", "registry": {"url": "http://registry:8081"}}
    assert load(changes).writer("orders").reader_options["includeHeaders"] == "true"


def test_the_key_fields_of_tombstones_follow_from_select(load: Any) -> None:
    pipeline = load({"writers/orders/tombstones": "delete", "writers/orders/select/ts": AT})
    assert key_of(pipeline.writer("orders"), build_schema(pipeline.config)) == {"id": "bigint"}
    declared = {
        "writers/orders/tombstones": "delete",
        "writers/orders/key": {"no": "int"},
        "writers/orders/select/order_id": "coalesce(id, _key.no)",
        "writers/orders/select/ts": "coalesce(ts, to_timestamp(decode(_kafka.headers[0].value, 'UTF-8')))",
    }
    pipeline = load(declared)
    writer = pipeline.writer("orders")
    assert key_of(writer, build_schema(pipeline.config)) == {"no": "int"}
    assert writer.reader_options["includeHeaders"] == "true", "an expression uses them"
    computed = {
        "writers/orders/tombstones": "delete",
        "writers/orders/select/order_id": "coalesce(id, CAST(decode(_kafka.key, 'UTF-8') AS bigint))",
        "writers/orders/select/ts": AT,
    }
    pipeline = load(computed)
    assert key_of(pipeline.writer("orders"), build_schema(pipeline.config)) is None
    assert key_of(load().writer("orders"), build_schema(pipeline.config)) is None, "tombstones are ignored"


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"tombstones": "delete"}, "orders.tombstones: a delete needs a value for ts", AT),
        (
            {"tombstones": "delete", "select/ts": AT, "select/order_id": "abs(id)"},
            "orders.tombstones: cannot tell which field of the Kafka key is order_id",
            "order_id: coalesce(abs(id), _key.id)",
        ),
        (
            {"tombstones": "delete", "select/ts": AT, "key": {"nokey": "bigint"}},
            "orders.tombstones: order_id uses no field of the Kafka key",
            "coalesce(id, _key.nokey)",
        ),
        ({"tombstones": "drop"}, "tombstones", "ignore"),
        ({"key": {"id": "bigit"}}, "orders.key.id", "bigint"),
        ({"key": {}}, "key", ""),
        ({"on_error": "skip"}, "on_error", "stop"),
        ({"on_error": "stop"}, "orders.dead_letter: cannot be combined with on_error: stop", "remove one"),
    ],
)
def test_settings_for_bad_messages_and_tombstones_are_checked(
    load: Any, changes: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        load({f"writers/orders/{name}": value for name, value in changes.items()})
    assert message in caught.value.message
    assert hint in f"{caught.value.message} {caught.value.hint}"


def test_tombstones_cannot_delete_if_the_stream_ignores_deletes(load: Any) -> None:
    config = copy.deepcopy(CONFIG)
    config["streams"]["orders"]["on_delete"] = "ignore"
    with pytest.raises(InvalidInput, match="ignores deletes"):
        load({"table/config": config, "writers/orders/tombstones": "delete", "writers/orders/select/ts": AT})


def test_tombstones_need_decoded_messages(load: Any) -> None:
    source = {"type": "spark", "format": "parquet", "schema": "id BIGINT"}
    plain = {"writers/orders/source": source, "writers/orders/schema": ..., "kafka": ...}
    with pytest.raises(InvalidInput, match="tombstones: needs messages that are decoded"):
        load({**plain, "writers/orders/tombstones": "delete"})
    with pytest.raises(InvalidInput, match="key: needs messages that are decoded"):
        load({**plain, "writers/orders/key": {"id": "bigint"}})


def test_urls_and_absolute_paths_are_unchanged(load: Any) -> None:
    pipeline = load(
        {
            "table/uri": "s3://bucket/wide",
            "writers/orders/dead_letter": "/var/dead",
            "writers/orders/checkpoint": "s3://c/o",
        }
    )
    assert pipeline.table.uri == "s3://bucket/wide"
    assert pipeline.writer("orders").dead_letter == "/var/dead"
    assert pipeline.writer("orders").checkpoint == "s3://c/o"


def test_values_come_from_the_environment(load: Any) -> None:
    environment = {"PASSWORD": "s3cret$$", "TOPIC": "orders-v2", "LIMIT": "9"}
    pipeline = load(
        {
            "kafka/sasl.password": "${PASSWORD}",
            "writers/orders/source/topic": "${TOPIC}",
            "writers/orders/source/max_offsets_per_trigger": "${LIMIT}",
            "writers/orders/where": "status RLIKE '^a$' OR status = '$${x}'",
        },
        environment,
    )
    writer = pipeline.writer("orders")
    assert writer.reader_options["kafka.sasl.password"] == "s3cret$$"
    assert writer.reader_options["subscribe"] == "orders-v2"
    assert writer.reader_options["maxOffsetsPerTrigger"] == "9"
    assert writer.where == "status RLIKE '^a$' OR status = '${x}'"


def test_secrets_are_not_printed(load: Any) -> None:
    pipeline = load({"kafka/sasl.password": "hunter2", "table/storage_options": {"secret": "hunter3"}})
    assert "hunter" not in repr(pipeline)


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"writers/orders/source/topic": ...}, "writers.orders.source.topic: is missing", "add topic"),
        ({"writers/orders/source": {"topic": "t"}}, "writers.orders.source: type is missing", ""),
        ({"writers/orders/source/topic": 5}, "writers.orders.source.topic: is a number, and must be a text", ""),
        (
            {"writers/orders/source/topics": ["x"]},
            "writers.orders.source.topics: cannot be combined with topic",
            "one of the two",
        ),
        (
            {"writers/orders/source": {"type": "files", "format": "xml", "path": "x"}},
            "writers.orders.source.format: must be 'json', 'csv' or 'parquet'",
            "",
        ),
        (
            {"writers/orders/source": {"type": "files", "format": "csv"}},
            "writers.orders.source.path: is missing",
            "add",
        ),
        (
            {"writers/orders/source": FILES, "writers/orders/schema": ...},
            "writers.orders.schema: is missing",
            "of the files",
        ),
        (
            {"writers/orders/source": FILES, "writers/orders/tombstones": "delete"},
            "writers.orders.tombstones: files have no Kafka key",
            "remove",
        ),
        (
            {"writers/orders/source": {**FILES, "options": {"mode": "FAILFAST"}}},
            "writers.orders.source.options.mode: is set by weft",
            "remove",
        ),
        ({"writers/orders/source": FILES, "writers/orders/resume": "table"}, "writers.orders.resume: only a Kafka", ""),
        ({"writers/orders/source/tpoic": "x"}, "writers.orders.source.tpoic: is not a known field", "mean topic?"),
        (
            {"writers/orders/source/type": "folder"},
            "writers.orders.source: type is 'folder', and must be one of 'kafka', 'files', 'spark'",
            "",
        ),
        (
            {"writers/orders/source/format": "xml"},
            "writers.orders.source.format: there is no message format 'xml'",
            "use one of json",
        ),
        (
            {"writers/orders/source/options": {"subscribe": "x"}},
            "writers.orders.source.options.subscribe: has its own field",
            "use topic",
        ),
        (
            {"writers/orders/source/starting_offsets": [7]},
            "writers.orders.source.starting_offsets: must be",
            "",
        ),
        ({"writers/orders/schema": ...}, "writers.orders.schema: is missing", "of the JSON message"),
        ({"writers/orders/schema/id": "bigit"}, "writers.orders.schema.id: 'bigit' is not a column type", "bigint"),
        ({"writers/orders/select": ...}, "writers.orders.schema.id: stream 'orders' has no such column", "order_id"),
        ({"writers/orders/select": {}}, "writers.orders.select: is empty", ""),
        (
            {"writers/orders/select/paid": "1"},
            "writers.orders.select.paid: stream 'orders' has no such column",
            "status",
        ),
        ({"writers/orders/select/order_id": ...}, "writers.orders.select: key column 'order_id' is missing", "add"),
        ({"writers/orders/select/ts": ...}, "writers.orders.select: group 'order' is incomplete: ts is missing", "all"),
        ({"writers/orders/stream": "clicks"}, "writers.orders.stream: the table has no stream 'clicks'", "payments"),
        ({"writers/orders/lane": "../x"}, "writers.orders.lane: '../x' is not a lane", "letters"),
        ({"writers/orders/trigger": "soon"}, "writers.orders.trigger: 'soon' is not a duration", "weft init DIR"),
        ({"writers/orders/kafka": ["a"]}, "writers.orders.kafka: is a list, and must be a mapping", ""),
        ({"writers": {}}, "writers: is empty", ""),
        ({"kafka": ...}, "writers.orders: kafka.bootstrap.servers is missing", "bootstrap.servers"),
        ({"table": ...}, "table: is missing", "add table"),
        ({"table/url": "x"}, "table.url: is not a known field", "mean uri?"),
        ({"table/config/buckets": 3}, "table.config.buckets: 3 is not a power of two", "8"),
        ({"clean": {"evry": "1 hour"}}, "clean.evry: is not a known field", "mean every?"),
        ({"clean": {"retain": "for ever"}}, "clean.retain: 'for ever' is not a duration", ""),
        ({"clean": {"versions": 0}}, "clean.versions: must be 1 or more", ""),
        (
            {"compaction": {"fold_commits": 1}},
            "compaction.fold_commits: must be 2 or more",
            "",
        ),
        ({"writers/orders/resume": "lane"}, "writers.orders.resume: must be 'checkpoint' or 'table'", ""),
        (
            {"writers/orders/resume": "table", "writers/orders/source": {"type": "spark", "format": "rate"}},
            "writers.orders.resume: only a Kafka source",
            "takeover",
        ),
        ({"writers/orders/lateness": "soon"}, "writers.orders.lateness: 'soon' is not a duration", ""),
        ({"writers/orders/lateness": 1.5}, "writers.orders.lateness: 1.5 is not a lateness", ""),
        ({"writers/orders/lateness": 5}, "writers.orders.lateness: 5 is a number, but stream 'orders'", "a duration"),
        ({"writers/orders/lateness": -5}, "writers.orders.lateness: -5 is negative", ""),
        ({"writers/orders/dead_letter": ""}, "writers.orders.dead_letter: is empty", ""),
        ({"writers/orders/dead_letter": 5}, "writers.orders.dead_letter: ", ""),
        ({"writers/orders/dead_letter": {"kep": "1 day"}}, "writers.orders.dead_letter.kep: is not", "mean keep?"),
        ({"writers/orders/dead_letter": {"keep": "never"}}, "writers.orders.dead_letter.keep: 'never' is not", ""),
        ({"writers/orders/dead_letter": {"keep": 0}}, "writers.orders.dead_letter.keep: must be greater", ""),
        ({"writers/orders/dead_letter": {"max_rate": 10}}, "writers.orders.dead_letter.max_rate: must be", ""),
        ({"writers/orders/dead_letter": {"max_count": -1}}, "writers.orders.dead_letter.max_count: must be", ""),
        ({"compaction": {"on": "moon"}}, "compaction.on: must be 'here', 'cluster' or 'inline'", ""),
        ({"compaction": {"max_read_amplification": 0.5}}, "compaction.max_read_amplification: must be", ""),
        ({"compaction": {"min_commits": 0}}, "compaction.min_commits: must be 1 or more", ""),
        ({"compaction": {"evry": 1}}, "compaction.evry: is not a known field", "mean every?"),
        ({"compaction": {"every": 0}}, "compaction.every: must be 0.1 or more", ""),
        ({"kafka/p": "${NO_SUCH}"}, "kafka.p: environment variable NO_SUCH is not set", "export NO_SUCH"),
        ({"kafka/p": "${}"}, "kafka.p: '${}' is not the name of an environment variable", "$$"),
        ({"kafka/p": "${OPEN"}, "kafka.p: '${' is not the name of an environment variable", "$$"),
        ({"writers/bad name": WHOLE["writers"]["orders"]}, "writers.bad name: 'bad name' is not a lane", "letters"),
        (
            {"writers/more": {**WHOLE["writers"]["orders"], "stream": "orders"}},
            "writers.more.lane: lane 'orders' is already used by writer 'orders'",
            "another",
        ),
        (
            {
                "writers/more": {**WHOLE["writers"]["orders"], "stream": "orders", "lane": "more", "checkpoint": "/c"},
                "writers/orders/checkpoint": "/c",
            },
            "writers.more.checkpoint: checkpoint '/c' is already used by writer 'orders'",
            "another",
        ),
    ],
)
def test_an_error_names_its_field(load: Any, changes: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(WrongFile) as raised:
        load(changes)
    assert raised.value.message.startswith("shop.yaml: ")
    found = [problem for problem in raised.value.problems if problem.message.startswith(message)]
    assert len(found) == 1
    assert hint in (found[0].hint or raised.value.hint)


def test_all_wrong_fields_are_named_at_once(load: Any) -> None:
    with pytest.raises(InvalidInput, match=r"writers.orders.trigger: .*; compaction.every: "):
        load({"writers/orders/trigger": "x", "compaction": {"every": "y"}})


def test_compaction_can_be_switched_off(load: Any) -> None:
    assert load({"compaction": False}).compaction is None
    assert load({"compaction": {"fold_commits": False}}).compaction.fold_commits is None


def test_the_section_of_compaction_is_the_policy_of_what_is_due(load: Any) -> None:
    assert load().compaction.policy == DuePolicy()
    section = {"min_commits": 3, "max_log_ratio": 0.1, "max_read_amplification": 4, "max_age": "2 hours"}
    policy = load({"compaction": {**section, "fold_commits": False}}).compaction.policy
    assert policy == DuePolicy(
        min_commits=3, max_log_ratio=0.1, max_read_amplification=4.0, max_age=dt.timedelta(hours=2), fold_commits=None
    )


def test_nothing_is_deleted_without_a_clean_section(load: Any) -> None:
    assert load().clean is None
    assert load({"clean": False}).clean is None
    asked = load({"clean": {}}).clean
    assert (asked.every, asked.retain, asked.versions) == (600, 86_400, None)
    asked = load({"clean": {"retain": "7 days", "versions": 5}}).clean
    assert (asked.retain, asked.versions) == (604_800, 5)


def test_resume_is_checkpoint_by_default(load: Any) -> None:
    assert load().writer("orders").resume == "checkpoint"
    assert load({"writers/orders/resume": "table"}).writer("orders").resume == "table"


def test_a_writer_uses_the_lateness_of_the_file(load: Any) -> None:
    assert load().writer("orders").lateness is None
    assert load({"writers/orders/lateness": "10 minutes"}).writer("orders").lateness == dt.timedelta(minutes=10)
    by_number = {"writers/orders/lateness": "${LATE}", "table/config/columns/ts": "bigint"}
    assert load({**by_number, "writers/orders/schema/ts": "bigint"}, {"LATE": "50"}).writer("orders").lateness == 50


def test_an_existing_table_must_equal_the_file(load: Any) -> None:
    pipeline = load()
    check_same_table(pipeline, build_schema(load_config(CONFIG)))
    other = copy.deepcopy(CONFIG)
    other["columns"]["paid"] = "string"
    other["buckets"] = 16
    other["streams"]["orders"]["on_delete"] = "row"
    other["columns"]["tip"] = "double"
    other["groups"]["payment"]["columns"] = ["paid", "tip"]
    with pytest.raises(Conflict) as raised:
        check_same_table(pipeline, build_schema(load_config(other)))
    for part in (
        "columns.paid.type: double in the file, string in the table",
        "columns.tip is only in the table",
        "buckets: 8 in the file, 16 in the table",
        "streams.orders.on_delete: group in the file, row in the table",
    ):
        assert part in raised.value.message


def test_without_a_configuration_the_table_defines_the_streams(load: Any) -> None:
    pipeline = load({"table/config": ..., "writers/orders/stream": "clicks"})
    with pytest.raises(InvalidInput, match="the table has no stream 'clicks'"):
        check_writers(pipeline, build_schema(load_config(CONFIG)))


def test_the_table_may_have_later_schema_changes(load: Any) -> None:
    """Files from before a schema change remain valid, and so do files with the changes."""
    table = Table.create(f"memory://pipeline/{uuid.uuid4().hex}", CONFIG)
    table.add_column("order", "note", "string", default="-")
    table.add_group("tip", {"tip": "int"}, streams=["orders"], new_streams={"tips": "ignore"})
    table.widen_column("tip", "bigint")
    table.set_default("paid", 0.0)
    table.set_comment("all orders")
    table.set_comment("in EUR", "paid")
    old = load({"table/config/comment": "other text"})
    check_same_table(old, table.schema)
    check_writers(old, table.schema)
    changed = configuration(table.schema)
    selected = {**WHOLE["writers"]["orders"]["select"], "note": "'x'", "tip": "1"}
    new = load({"table/config": changed, "writers/orders/select": selected})
    check_same_table(new, table.schema)
    check_writers(new, table.schema)
    changed["columns"]["note"] = "int"
    with pytest.raises(Conflict, match=r"columns\.note\.type: int in the file, string in the table"):
        check_same_table(load({"table/config": changed, "writers/orders/select": selected}), table.schema)


@pytest.mark.parametrize(
    ("select", "fields"),
    [
        ("id", {"id"}),
        ("`id`", {"id"}),
        ("coalesce(ID, bigint(status))", {"id", "status"}),
        ("id2 + ids", set()),
        ("_kafka.offset", set()),
    ],
)
def test_fields_that_name_a_row_are_those_of_the_key_columns(load: Any, select: str, fields: set[str]) -> None:
    writer = load({"writers/orders/select/order_id": select}).writer("orders")
    assert exact_fields(writer, build_schema(load_config(CONFIG))) == fields
