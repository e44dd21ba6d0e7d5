"""Which fields of several topics are proposed as the key of their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.streams.support.pipelines import weft
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.infer.infer_key import Fields, choose_ordering, propose_fields
from weft.streams.pipeline.infer.json_types import json_messages
from weft.streams.pipeline.infer.matching_key import matching_field, matching_fields

TELEMETRY = {"machineId": "string", "status": "string", "rpm": "bigint"}
TICKETS = {"ticketId": "string", "machine": "string", "status": "string"}


def telemetry(count: int = 100) -> list[dict[str, Any]]:
    return [{"machineId": f"m{i % 30}", "status": "on" if i % 2 else "off", "rpm": i} for i in range(count)]


def tickets(count: int = 100) -> list[dict[str, Any]]:
    return [{"ticketId": f"t{i}", "machine": f"m{i % 30}", "status": "off"} for i in range(count)]


def topic(stream: str, schema: dict[str, str]) -> Fields:
    return Fields(stream, schema, keys=())


@pytest.mark.parametrize(
    ("here", "name", "there", "match"),
    [
        ("orders", "order_id", {"order_id": "bigint", "orderId": "bigint"}, "order_id"),
        ("orders", "order_id", {"orderId": "bigint", "id": "bigint"}, "orderId"),
        ("sessions", "id", {"session_id": "string"}, "session_id"),
        ("machines", "machineId", {"machine": "string"}, "machine"),
        ("machines", "machineId", {"machine": "string", "machine_no": "string"}, None),
        ("machines", "machineId", {"ticketId": "string"}, None),
        ("machines", "machineId", {"machine": "struct<id:string,kind:string>"}, "machine.id"),
        ("machines", "machine.id", {"machine": "struct<id:string>"}, "machine.id"),
    ],
)
def test_names_that_mean_the_same(here: str, name: str, there: dict[str, str], match: str | None) -> None:
    assert matching_field(name, topic(here, {name: "string"}), topic("others", there)) == match


def test_an_identifier_with_common_values_comes_before_a_field_with_the_same_name() -> None:
    found = matching_fields([(topic("telemetry", TELEMETRY), telemetry()), (topic("tickets", TICKETS), tickets())])
    assert found == ["machineId", "machine"]
    reverse = matching_fields([(topic("tickets", TICKETS), tickets()), (topic("telemetry", TELEMETRY), telemetry())])
    assert reverse == ["machine", "machineId"]


def test_fields_without_common_values_and_fields_with_few_values_do_not_match() -> None:
    others = [row | {"machine": f"x{i}"} for i, row in enumerate(tickets())]
    assert matching_fields([(topic("telemetry", TELEMETRY), telemetry()), (topic("tickets", TICKETS), others)]) is None
    nulls = [*tickets(), {"ticketId": "t", "machine": None, "status": "off"}]
    assert matching_fields([(topic("telemetry", TELEMETRY), telemetry()), (topic("tickets", TICKETS), nulls)]) is None


def test_among_fields_with_the_same_names_the_one_with_most_values_is_chosen() -> None:
    schema = {"kind": "string", "place": "string"}
    rows = [{"kind": f"k{i % 20}", "place": f"p{i % 50}"} for i in range(100)]
    assert matching_fields([(topic("a", schema), rows), (topic("b", schema), rows)]) == ["place", "place"]
    assert matching_fields([(topic("a", schema), ()), (topic("b", schema), ())]) == ["kind", "kind"]


def test_names_of_times_may_be_written_in_camel_case() -> None:
    schema = {"openedAt": "timestamp", "updatedAt": "timestamp"}
    assert choose_ordering(schema, schema.keys(), {}) == ("updatedAt", "by its name")


def test_a_field_within_a_field_is_matched_by_name_and_values() -> None:
    nested = topic("telemetry", {"machine": "struct<id:string,kind:string>", "kind": "string"})
    rows: list[dict[str, Any]] = [{"machine": {"id": f"m{i % 30}", "kind": "press"}, "kind": "x"} for i in range(100)]
    assert matching_fields([(nested, rows), (topic("tickets", TICKETS), tickets())]) == ["machine.id", "machine"]
    rows.append({"machine": None, "kind": "x"})
    assert matching_fields([(nested, rows), (topic("tickets", TICKETS), tickets())]) is None


READINGS = [{"at": 1772355600000 + i, "device": {"id": f"d{i}", "zone": "north"}, "note": "n"} for i in range(9)]


@pytest.mark.parametrize(
    ("rows", "key", "sql"),
    [
        (READINGS, "device.id", "device.id"),
        ([{**row, "device": {"zone": "north"}} for row in READINGS], "note", "note"),
        ([{"at": row["at"]} for row in READINGS], "at", "at"),
    ],
)
def test_a_key_is_found_within_a_field_and_a_time_is_the_last_choice(
    rows: list[dict[str, Any]], key: str, sql: str
) -> None:
    found = propose_fields(json_messages("readings", [(None, json.dumps(row).encode()) for row in rows]))
    assert found is not None
    assert [(part.name, part.sql) for part in found.keys] == [(key, sql)]


def test_key_and_ordering_may_be_within_a_field(tmp_path: Path) -> None:
    flags = ["--no-look", "--topic", "readings,watering", "--fields"]
    flags += ["readings=device struct<id:string,`zone-no`:int>, info struct<at:timestamp>", "--fields"]
    flags += ["watering=bed string, litres double, done timestamp", "--ordering", "watering=done"]
    done = weft("init", tmp_path / "new", *flags, "--key", "bed,readings=device.id", "--ordering", "readings=info.at")
    assert done.exit_code == 0, done.output
    file = tmp_path / "new/pipeline.yaml"
    written = yaml.safe_load(file.read_text())
    assert written["table"]["config"]["key"] == ["bed"]
    assert written["table"]["config"]["groups"]["readings"]["ordering"] == ["info_at"]
    selected = {"bed": "device.id", "device": "device", "info": "info", "info_at": "info.at"}
    assert written["writers"]["readings"]["select"] == selected
    assert load_pipeline(file).writers
    wrong = weft("init", tmp_path / "other", *flags, "--key", "bed")
    assert "topic readings has no field 'bed'" in wrong.stderr
    assert "its fields are device.id, device.zone-no, info.at; if one has" in " ".join(wrong.stderr.split())


FLAGS = ["--no-look", "--topic", "telemetry,shop.tickets", "--fields", "telemetry=machineId string, rpm bigint"]
FLAGS += ["--fields", "shop.tickets=ticketId string, machine string"]


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (["--key", "machineId"], "machine"),
        (["--key", "machine"], "machine"),
        (["--key", "machineId,shop.tickets=ticketId"], "ticketId"),
        (["--key", "telemetry=machineId", "--key", "shop.tickets=ticketId"], "ticketId"),
        ([], "machine"),
    ],
)
def test_a_topic_may_have_another_name_for_the_key(tmp_path: Path, key: list[str], field: str) -> None:
    done = weft("init", tmp_path / "new", *FLAGS, *key)
    assert done.exit_code == 0, done.output
    written = yaml.safe_load((tmp_path / "new/pipeline.yaml").read_text())
    assert written["table"]["config"]["key"] == ["machineId"]
    assert written["writers"]["telemetry"]["select"]["machineId"] == "machineId"
    assert written["writers"]["tickets"]["select"]["machineId"] == field
    assert f"machineId is field {field}, joined with machineId of telemetry: is it the same?" in done.output


@pytest.mark.parametrize(
    ("key", "message", "hint"),
    [
        ("rpm", "topic shop.tickets has no field 'rpm'", "--key rpm,shop.tickets=FIELD"),
        ("machineId,tickets=machine", "there is no topic 'tickets'", "topics: telemetry, shop.tickets"),
        ("machineId,shop.tickets=nothing", "topic shop.tickets has no field 'nothing'", "its fields are ticketId"),
        ("machineId,rpm,shop.tickets=machine", "machineId, rpm and machine of shop.tickets have different numbers", ""),
    ],
)
def test_a_wrong_key_is_refused(tmp_path: Path, key: str, message: str, hint: str) -> None:
    done = weft("init", tmp_path / "new", *FLAGS, "--key", key)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert hint in done.stderr
    assert not (tmp_path / "new").exists()
