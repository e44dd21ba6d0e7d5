"""Commands that change a table as a whole: their effects, refusals, and confirmations."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.storage.support.damage import lane as lane_entry
from tests.storage.support.shop import SHOP, append, contents, orders, payments
from tests.streams.support.pipelines import weft
from tests.tuning import tune
from weft import Table
from weft.storage.clock import SystemClock
from weft.storage.core.names import is_query_lane, lane_name
from weft.storage.errors import InvalidInput
from weft.storage.services.steps.tasks import one_by_one
from weft.streams.cli.arguments import parse_storage_options
from weft.streams.cli.main import app
from weft.streams.write.write_batch import lane_for


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2))
    append(table, payments(1), "payments")
    return table


def ids(table: Table) -> list[int]:
    return [row[0] for row in contents(table)]


def test_compact_prints_what_it_did(table: Table) -> None:
    assert "base files written" in weft("compact", table.uri).stdout
    assert "nothing to do" in weft("compact", table.uri).stdout
    append(table, orders(3))
    facts = json.loads(weft("compact", table.uri, "--json").stdout)
    assert facts["file_groups"] == 1
    assert facts["skipped"] == {}


def test_clean_prints_how_many_entries_it_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, archive_chunk=4, lane_checkpoint_every=3)
    table = Table.create(tmp_path / "long", SHOP)
    with table.writer("orders") as writer:
        for number in range(10):
            writer.append(orders(1, 2, ts=number))
    table.compact()
    would = weft("clean", table.uri, "--retain", "0", "--dry-run").stdout
    assert "would move 8 entries of the log into 2 archives" in would
    assert "moved 8 entries of the log into 2 archives" in weft("clean", table.uri, "--retain", "0").stdout
    assert "may be archived up to orders 8" in weft("show", table.uri, "timeline").stdout
    assert "archive" not in weft("clean", table.uri, "--retain", "0").stdout


def test_savepoints_are_created_listed_and_released(table: Table) -> None:
    assert "savepoint good keeps cut:1:" in weft("savepoint", table.uri, "good", "--note", "checked by me").stdout
    append(table, orders(3))
    listed = weft("savepoint", table.uri).stdout
    assert listed.startswith("good  ")
    assert listed.rstrip().endswith("checked by me")
    (line,) = weft("savepoint", table.uri, "--json").stdout.splitlines()
    assert json.loads(line)["name"] == "good"
    again = weft("savepoint", table.uri, "good")
    assert again.exit_code == 1
    assert "hint: choose another name" in again.stderr
    assert weft("savepoint", table.uri, "good", "--release").exit_code == 0
    assert weft("savepoint", table.uri).stdout == ""
    assert weft("savepoint", table.uri, "--release").exit_code == 2


def test_restore_needs_confirmation(table: Table) -> None:
    weft("savepoint", table.uri, "good")
    append(table, orders(3))
    refused = weft("restore", table.uri, "good")
    assert refused.exit_code == 2
    assert "add --yes" in refused.stderr
    assert ids(table) == [1, 2, 3]
    done = weft("restore", table.uri, "good", "--yes")
    assert done.exit_code == 0
    assert "orders: kept up to entry 2, 2 entries after it rolled back" in done.stdout
    assert "payments: kept up to entry 2, it has no later entry" in done.stdout
    assert ids(table) == [1, 2]


@pytest.mark.parametrize(
    ("to", "code", "message"),
    [
        ("nothing", 1, "no savepoint 'nothing'"),
        ("2026-11-20", 1, "no savepoint '2026-11-20'"),  # a time has hours
        ("2026-11-20T10:30", 2, "has no zone"),
        ("2026-99-20T10:30", 2, "not a time"),
    ],
)
def test_restore_to_a_missing_snapshot_is_refused(table: Table, to: str, code: int, message: str) -> None:
    result = weft("restore", table.uri, to, "--yes")
    assert result.exit_code == code
    assert message in result.stderr
    assert ids(table) == [1, 2]


def test_a_time_is_settled_by_a_mark(table: Table) -> None:
    asked = dt.datetime.now(dt.UTC).isoformat()
    unsettled = weft("changes", table.uri, "--since", "earliest", "--until", asked)
    assert unsettled.exit_code == 0
    made = weft("mark", table.uri, "--json")
    assert json.loads(made.stdout)["settled"] >= asked[:23]
    assert table.snapshot(dt.datetime.fromisoformat(asked), settled=True).settled
    assert "times up to" in weft("mark", table.uri).stdout


def test_undo_since_a_savepoint_prints_what_it_kept_and_rolled_back(table: Table) -> None:
    weft("savepoint", table.uri, "good")
    append(table, orders(3))
    done = weft("undo", table.uri, "orders", "--since", "good", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "what is kept ends at 20" in done.stdout
    assert "2 entries after it rolled back (committed 20" in done.stdout
    assert "clock alone" not in done.stdout
    assert ids(table) == [1, 2]
    again = weft("undo", table.uri, "orders", "--since", "good", "--yes")
    words = "orders: kept up to entry 2, nothing new; 3 later entries had been rolled back before; what is kept ends at"
    assert words in again.stdout


def test_undo_names_a_stream_that_does_not_exist_before_it_asks(table: Table) -> None:
    weft("savepoint", table.uri, "good")
    refused = weft("undo", table.uri, "order", "--since", "good")  # without a terminal it refuses to ask
    assert refused.exit_code == 1
    assert "the table has no stream 'order'" in refused.stderr


def test_undo_since_a_time_prints_what_was_kept_because_of_a_clock(table: Table) -> None:
    time.sleep(0.01)
    now = dt.datetime.now(dt.UTC).isoformat()
    done = weft("undo", table.uri, "orders", "--since", now, "--yes")
    assert "orders: entries 1 to 2 were kept only because of a clock" in done.stdout
    assert ids(table) == [1, 2]


class AYearAhead(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() + 365 * 24 * 3_600_000


def test_undo_by_time_is_refused_if_a_clock_was_ahead(table: Table) -> None:
    good = str(table.snapshot().cut)
    now = dt.datetime.now(dt.UTC).isoformat()
    Table.open(table.uri, clock=AYearAhead()).mark()
    append(table, orders(3))
    refused = weft("undo", table.uri, "orders", "--since", now, "--yes")
    assert refused.exit_code == 1
    assert "times cannot tell its commits apart" in refused.stderr
    assert "since a cut" in refused.stderr
    assert ids(table) == [1, 2, 3]
    assert weft("undo", table.uri, "orders", "--since", good, "--yes").exit_code == 0
    assert ids(table) == [1, 2]


def test_undo_rolls_back_one_stream(table: Table) -> None:
    result = weft("undo", table.uri, "orders", "--since", "2020-01-01T00:00:00Z", "--yes", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["rolled_back"] == {"orders": 3}
    assert contents(table) == [(1, None, None, 1.0, 1)]
    assert weft("undo", table.uri, "nobody", "--since", "2020-01-01T00:00:00Z", "--yes").exit_code == 1
    assert weft("undo", table.uri, "orders", "--since", "yesterday", "--yes").exit_code == 2
    future = weft("undo", table.uri, "orders", "--since", "9000-01-01T00:00:00Z", "--yes")
    assert future.exit_code == 2
    assert "use a time in the past" in future.stderr


def test_show_prints_live_writers_and_their_last_heartbeats(table: Table) -> None:
    with table.writer("orders"):
        shown = weft("show", table.uri, "streams").stdout.splitlines()
    assert re.search(r"^orders +orders +live, \d+\.\d s ago ", "\n".join(shown), re.MULTILINE)
    assert re.search(r"^payments +payments +ended ", "\n".join(shown), re.MULTILINE)


def test_lanes_are_fenced_and_closed(table: Table) -> None:
    with table.writer("orders", lane="fix") as writer:
        writer.append(orders(7))
    assert "is claimed with entry 3" in weft("fence", table.uri, "fix", "--yes").stdout
    assert "its last entry is 4" in weft("close", table.uri, "fix", "--yes").stdout
    again = weft("close", table.uri, "fix", "--yes")
    assert again.exit_code == 1
    assert "already closed" in again.stderr
    assert ids(table) == [1, 2, 7]


def test_clean_prints_what_it_deletes_and_keeps(table: Table) -> None:
    table.compact()
    append(table, orders(3))
    would = weft("clean", table.uri, "--retain", "0", "--dry-run")
    assert "would delete 2 files" in would.stdout
    assert "  log/orders/" in would.stdout
    before = ids(table)
    done = json.loads(weft("clean", table.uri, "--retain", "0", "--json").stdout)
    assert done["deleted"]["log"]["files"] == 2
    assert ids(table) == before == [1, 2, 3]
    assert "deleted 0 files" in weft("clean", table.uri, "--retain", "0").stdout
    wrong = weft("clean", table.uri, "--retain", "soon")
    assert wrong.exit_code == 2
    assert "is not a duration" in wrong.stderr


def test_clean_retires_closed_lanes(table: Table) -> None:
    lane = lane_for("orders", "nightly")
    with table.writer("orders", lane, query_id="nightly") as writer:
        writer.append(orders(9), batch=("nightly", 0))
    assert weft("clean", table.uri, "--retain", "0", "--close-after", "7 days").exit_code == 0
    assert table.state().lanes[lane].closed is None
    table.close_lane(lane)
    table.compact()
    assert "would retire 1 closed lane," in weft("clean", table.uri, "--retain", "0", "--dry-run").stdout
    assert "\nretired 1 closed lane," in weft("clean", table.uri, "--retain", "0").stdout
    assert lane not in table.state().lanes
    assert "1 closed lane retired, with 3 entries" in weft("show", table.uri, "timeline").stdout
    assert weft("clean", table.uri, "--close-after", "0").exit_code == 2


def test_lanes_of_query_ids_are_known_by_their_names() -> None:
    assert is_query_lane(lane_for("orders", "nightly"))
    assert is_query_lane(lane_for("s" * 60, "q"))
    assert not is_query_lane(lane_name("orders-query"))


def test_names_in_an_argument_are_separated_by_commas_and_not_quoted(tmp_path: Path) -> None:
    columns = {"id": "bigint", "a.b": "string", "email": "string"}
    groups = {"g": {"columns": ["a.b", "email"]}}
    config = {"key": ["id"], "columns": columns, "groups": groups, "streams": {"s": {"groups": ["g"]}}}
    uri = Table.create(tmp_path / "people", config).uri
    for text, index in [("a.b", ("a.b",)), ("email,", ("email",)), (" a.b , email ", ("a.b", "email")), ("", ())]:
        assert weft("alter", "set-index", uri, text).exit_code == 0
        assert Table.open(uri).schema.index == index


def test_alter_changes_the_schema_and_refuses_what_does_not_fit(table: Table) -> None:
    assert "schema revision 4" in weft("alter", "add-column", table.uri, "order", "note", "string").stdout
    assert "already includes this change" in weft("alter", "add-column", table.uri, "order", "note", "string").stdout
    other = weft("alter", "add-column", table.uri, "order", "note", "bigint")
    assert other.exit_code == 1
    assert "note" in other.stderr
    group = ["--column", "clicks bigint", "--column", "cts bigint", "--ordering", "cts", "--stream", "clicks"]
    assert weft("alter", "add-group", table.uri, "clicks", *group).exit_code == 0
    assert weft("alter", "add-group", table.uri, "more", "--column", "nothing").exit_code == 2
    assert weft("alter", "add-stream", table.uri, "fixes", "--group", "order", "--on-delete", "row").exit_code == 0
    assert weft("alter", "set-default", table.uri, "status", "none yet").exit_code == 0
    assert weft("alter", "widen", table.uri, "ots", "int").exit_code == 1
    assert weft("alter", "set-comment", table.uri, "in EUR", "--column", "paid").exit_code == 0
    assert "comment of the table is set" in weft("alter", "set-comment", table.uri, "all orders").stdout
    shown = weft("show", table.uri).stdout
    assert "comment     all orders" in shown
    assert re.search(r"paid +in EUR", shown)
    append(table, payments(9), "payments")
    row = next(row for row in table.snapshot().to_arrow().to_pylist() if row["id"] == 9)
    assert (row["status"], row["note"], row["clicks"]) == ("none yet", None, None)


def test_verify_checks_a_table_that_cannot_be_opened(table: Table, tmp_path: Path) -> None:
    (tmp_path / "wide" / lane_entry("", 3)).write_bytes(b"torn")
    (tmp_path / "wide" / lane_entry("orders", 2)).write_bytes(b"torn")
    bad = weft("verify", table.uri)
    assert bad.exit_code == 1
    assert bad.stdout.count("ERROR S1 ") == 2
    nothing = weft("verify", tmp_path / "nothing")
    assert nothing.exit_code == 1
    assert "there is no table" in nothing.stderr


def test_verify_exits_with_1_if_something_is_wrong(table: Table, tmp_path: Path) -> None:
    good = weft("verify", table.uri)
    assert good.exit_code == 0
    assert "nothing is wrong" in good.stdout
    (log,) = (tmp_path / "wide/log/orders").iterdir()
    log.write_bytes(log.read_bytes()[:-9] + b"different")
    assert weft("verify", table.uri, "--shallow").exit_code == 0
    bad = weft("verify", table.uri)
    assert bad.exit_code == 1
    assert f"log/orders/{log.name}" in bad.stdout
    facts = json.loads(weft("verify", table.uri, "--json").stdout)
    assert facts["findings"][0]["severity"] == "error"


def test_a_missing_table_is_an_error(tmp_path: Path) -> None:
    for command in (["compact"], ["savepoint"], ["restore", "x", "--yes"], ["close", "x", "--yes"]):
        result = weft(command[0], tmp_path / "none", *command[1:])
        assert result.exit_code == 1
        assert "there is no table at" in result.stderr


# Settings of a pipeline file.


def pipeline_of(table: Table, folder: Path, **sections: Any) -> Path:
    """A pipeline file in which only the sections that a command needs are valid."""
    path = folder / "p.yaml"
    whole = {"table": {"uri": table.uri}, "writers": "${NOT_NEEDED_HERE}", **sections}
    path.write_text(yaml.safe_dump(whole))
    return path


def old_files(table: Table) -> int:
    """Files that a clean would delete if it retained only the newest snapshot."""
    would = json.loads(weft("clean", table.uri, "--retain", "0", "--dry-run", "--json").stdout)
    return sum(kind["files"] for kind in would["deleted"].values())


def test_clean_uses_the_retention_of_the_pipeline(table: Table, tmp_path: Path) -> None:
    table.compact()
    assert old_files(table) == 2
    keeps = pipeline_of(table, tmp_path, clean={"retain": "30 days"})
    assert "deleted 0 files" in weft("clean", keeps).stdout
    short = pipeline_of(table, tmp_path, clean={"retain": 0})
    result = weft("clean", short)
    assert "deleted 2 files" in result.stdout
    assert result.stderr == "", "nothing was given on the command line"


def test_clean_uses_the_versions_of_the_pipeline(table: Table, tmp_path: Path) -> None:
    table.compact()
    append(table, orders(3))
    table.compact()
    assert old_files(table) > 0
    path = pipeline_of(table, tmp_path, clean={"retain": 0, "versions": 5})
    assert "deleted 0 files" in weft("clean", path).stdout
    less = weft("clean", path, "--versions", "1")
    assert "deleted 0 files" not in less.stdout
    assert less.stderr == "--versions 1 instead of the pipeline's 5\n"


def test_a_flag_of_clean_overrides_the_file_and_is_reported(table: Table, tmp_path: Path) -> None:
    table.compact()
    path = pipeline_of(table, tmp_path, clean={"retain": "30 days", "abandon_after": "2 days"})
    result = weft("clean", path, "--retain", "0", "--abandon-after", "1 hour")
    assert "deleted 2 files" in result.stdout
    assert result.stderr.splitlines() == [
        "--retain 0 instead of the pipeline's 30 days",
        "--abandon-after 1 hour instead of the pipeline's 2 days",
    ]
    same = weft("clean", path, "--retain", "720 hours", "--json")
    assert same.stderr == "", "the value is that of the file"
    json.loads(same.stdout)


def test_an_error_in_a_section_that_a_command_needs_stops_it(table: Table, tmp_path: Path) -> None:
    table.compact()
    path = pipeline_of(table, tmp_path, clean={"retian": 0, "retain": 0})
    result = weft("clean", path)
    assert result.exit_code == 2
    assert "p.yaml:3: clean.retian: is not a known field" in result.stderr
    assert "did you mean retain?" in result.stderr
    assert old_files(table) == 2
    assert weft("show", path).exit_code == 0, "show does not need it"


def test_compact_compacts_what_is_due_by_the_pipeline(table: Table, tmp_path: Path) -> None:
    table.compact()
    append(table, orders(1, 2))
    before = {s.group: s.slice for s in table.snapshot().slices}
    calm = {"min_commits": 2, "max_log_ratio": 1e9}
    path = pipeline_of(table, tmp_path, compaction=calm)
    result = weft("compact", path)
    assert "nothing is due" in result.stdout
    assert "--all compacts everything" in result.stdout
    assert {s.group: s.slice for s in table.snapshot().slices} == before
    lower = weft("compact", path, "--min-commits", "1", "--json")
    assert json.loads(lower.stdout)["file_groups"] > 0
    assert lower.stderr == "--min-commits 1 instead of the pipeline's 2\n"
    append(table, orders(1))
    everything = weft("compact", path, "--all")
    assert "base files written" in everything.stdout
    assert "--all instead of the pipeline's" in everything.stderr


def test_compact_folds_when_the_pipeline_says(table: Table, tmp_path: Path) -> None:
    table.compact()
    for _ in range(3):
        append(table, orders(1))
    calm = {"min_commits": 100, "max_log_ratio": 1e9}
    many = pipeline_of(table, tmp_path, compaction={**calm, "fold_commits": 4})
    assert "nothing is due" in weft("compact", many).stdout
    few = pipeline_of(table, tmp_path, compaction={**calm, "fold_commits": 3})
    done = json.loads(weft("compact", few, "--json").stdout)
    assert (done["file_groups"], done["file_groups_folded"]) == (0, 1)


def test_without_a_compaction_section_compact_compacts_everything(table: Table, tmp_path: Path) -> None:
    assert "base files written" in weft("compact", pipeline_of(table, tmp_path, compaction=False)).stdout
    assert weft("compact", table.uri, "--all", "--min-commits", "3").exit_code == 2
    wrong = weft("compact", table.uri, "--max-log-ratio", "-1")
    assert wrong.exit_code == 2
    assert "--max-log-ratio: " in wrong.stderr


# Options of the store.

EVERY_COMMAND = [
    ["show"],
    ["sql", "SELECT 1"],
    ["changes", "--since", "earliest"],
    ["compact"],
    ["clean"],
    ["erase", "--keys", "keys.csv", "--yes"],
    ["expire-rows", "ots", "--before", "5", "--yes"],
    ["apply-ttl"],
    ["forget-deletes", "order", "--before", "5", "--yes"],
    ["rewrite", "--set", "status = upper(status)", "--yes"],
    ["split", "--buckets", "4"],
    ["savepoint"],
    ["restore", "x", "--yes"],
    ["undo", "orders", "--since", "2020-01-01T00:00:00Z", "--yes"],
    ["mark"],
    ["fence", "orders", "--yes"],
    ["close", "orders", "--yes"],
    ["verify"],
    ["alter", "add-column", "order", "x", "string"],
    ["alter", "add-group", "x", "--column", "x string"],
    ["alter", "add-stream", "x", "--group", "order"],
    ["alter", "widen", "ots", "decimal(20,0)"],
    ["alter", "set-default", "status", "x"],
    ["alter", "set-comment", "text"],
    ["alter", "set-ttl", "--rows", "90 days"],
    ["alter", "set-overlays", "true"],
    ["alter", "set-index", "status"],
    ["alter", "add-reference", "x", "../x", "--on", "status"],
    ["alter", "drop-reference", "x"],
    ["explain", "--key", "5"],
    ["ui"],
    ["doctor"],
    ["publish", "--iceberg", "shop.orders", "--catalog-option", "type=sql", "--catalog-option", "uri=sqlite://"],
]


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=lambda command: "-".join(command[:2]))
def test_every_command_with_a_location_accepts_storage_options(command: list[str]) -> None:
    """A profile that does not exist: commands that pass the option on fail at once."""
    head = command[:2] if command[0] == "alter" else command[:1]
    rest = command[len(head) :]
    result = weft(*head, "s3://bucket/t", *rest, "--storage-option", "profile=no-such-profile-of-weft")
    assert result.exit_code != 0
    said = result.stdout if command == ["doctor"] else result.stderr  # findings are what doctor prints
    assert "no-such-profile-of-weft" in said


def test_every_command_with_a_location_is_tested() -> None:
    def walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, found in group.commands.items():
            if hasattr(found, "commands"):
                yield from walk(found, (*path, name))
            elif any(parameter.name in {"target", "targets"} for parameter in found.params):
                yield (*path, name)

    tried = {tuple(command[:2]) if command[0] == "alter" else (command[0],) for command in EVERY_COMMAND}
    assert set(walk(typer.main.get_command(app))) == tried


def test_options_of_the_store_are_text_or_json() -> None:
    given = ["key=007", "anon=true", "token=a=b", 'config_kwargs={"read_timeout": 3}', '{"secret": "x", "n": 5}']
    assert parse_storage_options(given) == {
        "key": "007",
        "anon": True,
        "token": "a=b",
        "config_kwargs": {"read_timeout": 3},
        "secret": "x",
        "n": 5,
    }
    for wrong in ("secret", "=secret", "{secret", "[1]"):
        with pytest.raises(InvalidInput) as refused:
            parse_storage_options([wrong])
        assert "secret" not in refused.value.message, "values may be secrets, and are not shown"


def test_flags_override_storage_options_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    options = {"profile": "of-the-file", "key": "k"}
    path.write_text(yaml.safe_dump({"table": {"uri": "s3://bucket/t", "storage_options": options}}))
    result = weft("show", path, "--storage-option", "profile=of-the-command")
    assert "of-the-command" in result.stderr
    assert "--storage-option profile instead of the pipeline's value" in result.stderr
    assert "of-the-file" not in result.stderr


# Limits of compaction.


def test_compact_takes_limits_from_the_file_and_from_flags(table: Table, tmp_path: Path) -> None:
    path = pipeline_of(table, tmp_path, compaction={"concurrency": 2, "memory": "1 GB"})
    result = weft("compact", path, "--all", "--concurrency", "3", "--json")
    assert json.loads(result.stdout)["file_groups"] > 0
    assert "--concurrency 3 instead of the pipeline's 2" in result.stderr
    assert weft("compact", table.uri, "--concurrency", "0").exit_code == 2
    wrong = weft("compact", table.uri, "--memory", "much")
    assert wrong.exit_code == 2
    assert "--memory: 'much' is not a size; write for example 500 MB or 2 GB" in wrong.stderr


def test_skipped_file_groups_are_counted_by_reason(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another compaction is first, between the plan of this one and its first task."""

    def overtaken(work: Any, *_: Any, **__: Any) -> Any:
        Table.open(table.uri).compact()
        return one_by_one(work)

    monkeypatch.setattr("weft.streams.pipeline.file.model.in_threads", lambda *_: overtaken)
    result = weft("compact", table.uri)
    assert re.search(r"^skipped \d+ file groups?: another compaction published", result.stdout, re.MULTILINE)
