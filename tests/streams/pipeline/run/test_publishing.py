"""Publishing as a service: `weft run` and `weft services` publish after compactions, and survive failing catalogs."""

from __future__ import annotations

import http.server
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.cluster.standalone import until
from tests.streams.support.pipelines import CONFIG, pipeline_file, weft
from tests.wait_until import wait_until
from weft import Table
from weft.storage.errors import InvalidInput, StoreUnavailable
from weft.storage.publish.targets import base_version
from weft.streams.pipeline.file.model import CompactionSection, PublishSection, TableLocation
from weft.streams.pipeline.file.pipeline import load_pipeline, load_settings
from weft.streams.pipeline.run.daemon_threads import DaemonThreads
from weft.streams.pipeline.run.many_tables import ManyTables
from weft.streams.pipeline.run.publishing import GIVE_UP_SECONDS, RECHECK_SECONDS, Publisher
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.run import choose_part
from weft.streams.pipeline.run.service_rounds import publish_round
from weft.streams.pipeline.run.services import run_service
from weft.streams.pipeline.run.status_fields import status_fields
from weft.streams.pipeline.run.stop_signal import StopSignal, stop_signals
from weft.streams.pipeline.run.table_rounds import TableSettings

PATIENCE_SECONDS = 120.0  # for operations of a second or two on an idle machine


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "orders", SHOP)
    append(table, orders(*range(20)))
    table.compact()
    return table


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.fixture
def section(catalog: dict[str, str]) -> PublishSection:
    given = {"every": 10, "delta": True, "iceberg": {"table": "shop.orders", "properties": catalog}}
    return PublishSection.model_validate(given)


@pytest.fixture
def reporter() -> Iterator[Reporter]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    yield Reporter(writing, Report())
    os.close(reading)
    os.close(writing)


def in_delta(table: Table) -> list[str]:
    root = Path(table.uri.removeprefix("file://")) / "base"
    return sorted(set(DeltaTable(root).to_pyarrow_table()["status"].to_pylist()))


def in_iceberg(catalog: dict[str, str]) -> list[str]:
    opened = SqlCatalog("default", **catalog)
    try:
        return sorted(set(opened.load_table("shop.orders").scan().to_arrow()["status"].to_pylist()))
    finally:
        opened.close()


def change(table: Table, status: str, ts: int) -> None:
    append(table, orders(*range(20), status=status, ts=ts))
    table.compact()


def test_a_round_publishes_what_was_compacted_to_every_target(
    table: Table, section: PublishSection, catalog: dict[str, str], reporter: Reporter
) -> None:
    clock = Clock()
    publisher = Publisher(section, clock, answer_seconds=None)
    publish_round(table, publisher, reporter)
    assert (reporter.report.publications, reporter.report.publish_problem) == (2, "")
    assert reporter.report.publish_seconds == publisher.section.every
    assert reporter.report.published_at_ms is not None
    assert reporter.report.message.count("20 rows: 1 file added, 0 removed") == 2
    append(table, orders(1, status="log", ts=5))  # not compacted
    savepoints = table.savepoints()
    publish_round(table, publisher, reporter)
    assert (reporter.report.publications, table.savepoints()) == (2, savepoints)
    change(table, "new", 9)
    publish_round(table, publisher, reporter)
    assert reporter.report.publications == 4
    assert in_delta(table) == in_iceberg(catalog) == ["new"]


def test_what_is_published_is_checked_again_later(
    table: Table, section: PublishSection, catalog: dict[str, str], reporter: Reporter
) -> None:
    clock = Clock()
    publisher = Publisher(section, clock, answer_seconds=None)
    publish_round(table, publisher, reporter)
    opened = SqlCatalog("default", **catalog)
    opened.load_table("shop.orders").delete()
    opened.close()
    publish_round(table, publisher, reporter)
    assert in_iceberg(catalog) == []
    clock.now = RECHECK_SECONDS
    publish_round(table, publisher, reporter)
    assert in_iceberg(catalog) == ["new"]


def test_a_target_that_fails_does_not_keep_others_waiting_and_recovers(
    tmp_path: Path, table: Table, section: PublishSection, catalog: dict[str, str], reporter: Reporter
) -> None:
    clock = Clock()
    publisher = Publisher(section, clock, answer_seconds=None)
    publish_round(table, publisher, reporter)
    good = (tmp_path / "catalog.db").read_bytes()
    (tmp_path / "catalog.db").write_bytes(b"damaged" * 1000)
    change(table, "v2", 2)
    published_at = reporter.report.published_at_ms
    for _ in range(40):
        publish_round(table, publisher, reporter)
        clock.now += 10
    assert in_delta(table) == ["v2"]
    assert "Iceberg table shop.orders not published" in reporter.report.publish_problem
    assert reporter.report.doing == "waiting"
    assert reporter.report.published_at_ms == published_at
    assert len(table.savepoints()) <= 4
    (tmp_path / "catalog.db").write_bytes(good)
    clock.now += 300
    publish_round(table, publisher, reporter)
    assert (reporter.report.publish_problem, in_iceberg(catalog)) == ("", ["v2"])
    assert reporter.report.message.startswith("Iceberg table shop.orders published")


def test_pauses_after_failures_grow_up_to_a_limit(table: Table) -> None:
    """A column that older files show differently is refused until a compaction has written all files anew."""
    clock = Clock()
    publisher = Publisher(PublishSection.model_validate({"every": 10, "delta": True}), clock, None)
    table.add_column("order", "gift", "boolean", default=False)
    tries = []
    for _ in range(200):
        if publisher.publish(table).errors:
            tries.append(clock.now)
        clock.now += 10
    pauses = [later - first for first, later in itertools.pairwise(tries)]
    assert pauses[:5] == [20, 40, 80, 160, 300]
    assert set(pauses[5:]) == {300}
    change(table, "new", 9)
    clock.now += 300
    assert publisher.publish(table).complete


def test_a_catalog_that_does_not_answer_keeps_no_other_target_waiting(table: Table, reporter: Reporter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections, and says nothing
        rest = {"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        given = {"every": 10, "delta": True, "iceberg": {"table": "shop.orders", "properties": rest}}
        clock = Clock()
        publisher = Publisher(PublishSection.model_validate(given), clock, answer_seconds=1.0)
        others = set(threading.enumerate())

        def tries() -> int:
            return sum(thread.name == "weft-publish" for thread in set(threading.enumerate()) - others)

        def rounds_until_delta_shows(status: str) -> list[Exception]:
            """Run rounds until the Delta table is published, in the first one if the machine is fast enough."""
            errors: list[Exception] = []
            for _ in until(time.monotonic() + PATIENCE_SECONDS):
                done = publisher.publish(table)
                reporter.update(**done.report(reporter.report))
                errors += done.errors
                if "Delta" not in done.problem and in_delta(table) == [status]:
                    return errors
            pytest.fail(f"Delta is not published: {reporter.report.publish_problem}")

        rounds_until_delta_shows("new")
        assert reporter.report.publish_problem == "Iceberg table shop.orders not published: no answer for 0 s"
        assert (reporter.report.doing, reporter.report.published_at_ms) == ("waiting", None)
        clock.now += 600
        change(table, "v2", 2)
        errors = rounds_until_delta_shows("v2")
        assert not [error for error in errors if "Iceberg" in str(error)], "it was reported already"
        wait_until(lambda: tries() == 1, PATIENCE_SECONDS)
        connections = [silent.accept()[0]]
        clock.now = GIVE_UP_SECONDS
        assert "Iceberg table shop.orders not published: no answer for 0 s" in publisher.publish(table).problem
        connections.append(silent.accept()[0])  # of the second try
        wait_until(lambda: tries() == 2, PATIENCE_SECONDS)  # that of Delta ends
        for connection in connections:
            connection.close()
    for _ in until(time.monotonic() + PATIENCE_SECONDS):  # now connections are refused
        if "next try in 20 s" in (problem := publisher.publish(table).problem):
            break
    assert "Iceberg catalog 'default' does not answer: Connection" in problem


@pytest.mark.parametrize(
    ("code", "said"),
    [(401, "Iceberg catalog 'default' refuses access"), (503, "Iceberg catalog 'default' does not answer")],
)
def test_a_catalog_that_refuses_or_fails_is_named(table: Table, code: int, said: str) -> None:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(code)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rest = {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}", "token": "of-no-use"}
        given = {"delta": True, "iceberg": {"table": "shop.orders", "properties": rest}}
        done = Publisher(PublishSection.model_validate(given), answer_seconds=None).publish(table)
        options = [f"--catalog-option={name}={value}" for name, value in rest.items()]
        command = weft("publish", table.uri, "--iceberg", "shop.orders", *options)
        server.shutdown()
    assert (in_delta(table), done.changed) == (["new"], 1)
    assert said in done.problem
    assert "of-no-use" not in done.problem
    assert command.exit_code == 1
    assert said in command.stderr
    assert "Traceback" not in command.stderr


def test_with_once_an_error_ends_the_round(table: Table, reporter: Reporter) -> None:
    table.add_column("order", "gift", "boolean", default=False)
    publisher = Publisher(PublishSection.model_validate({"delta": True}))
    with pytest.raises(InvalidInput, match="gift"):
        publish_round(table, publisher, reporter, once=True)


def test_weft_run_has_a_service_that_publishes(tmp_path: Path, catalog: dict[str, str], reporter: Reporter) -> None:
    publish = {"iceberg": {"table": "shop.orders", "properties": catalog}, "delta": {"columns": ["id", "status"]}}
    config = {name: value for name, value in SHOP.items() if name != "streams"}
    config["streams"] = {"sa": {"groups": ["order"]}, "payments": {"groups": ["payment"]}}
    path = pipeline_file(tmp_path, table={"uri": "./orders", "config": config}, publish=publish, clean={})
    pipeline = load_pipeline(path)
    assert choose_part(pipeline, None)[1] == ["compaction", "publish", "clean"]
    assert choose_part(pipeline, "publish") == ([], ["publish"])
    table = Table.create(tmp_path / "orders", config)
    append(table, orders(*range(20)), "sa")
    table.compact()
    with stop_signals(lambda *_: None):  # restores the handler that `StopSignal` replaces
        assert run_service(str(path), "publish", StopSignal(), reporter, once=True) == 0
    assert in_delta(table) == in_iceberg(catalog) == ["new"]


def test_a_folder_of_iceberg_tables_is_relative_to_the_file(tmp_path: Path) -> None:
    publish = {"iceberg": {"table": "shop.orders", "properties": {"type": "folder", "warehouse": "./lake"}}}
    path = pipeline_file(tmp_path, publish=publish)
    for found in (load_pipeline(path).publish, load_settings(str(path), "publish").publish):
        assert found is not None
        assert found.iceberg is not None
        assert found.iceberg.properties["warehouse"] == str(tmp_path / "lake")
    publish["iceberg"]["properties"] = {"type": "folder", "warehouse": "s3://lake/iceberg"}
    elsewhere = load_pipeline(pipeline_file(tmp_path, publish=publish)).publish
    assert elsewhere is not None
    assert elsewhere.iceberg is not None
    assert elsewhere.iceberg.properties["warehouse"] == "s3://lake/iceberg"


@pytest.mark.parametrize(
    ("publish", "message"),
    [
        ({}, "publish: names no format"),
        ({"iceberg": {"table": "orders"}}, "'orders' is not NAMESPACE.TABLE"),
        ({"delta": {"columns": ["b"]}}, "publish.delta.columns: the published columns lack key column"),
        ({"delta": {"columns": ["nope"]}}, "publish.delta.columns: "),
        ({"iceberg": {"name": "a.b"}}, "publish.iceberg.name"),
    ],
)
def test_a_wrong_section_is_refused(tmp_path: Path, publish: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load_pipeline(pipeline_file(tmp_path, publish=publish))
    assert message in refused.value.message


def test_a_table_that_may_have_overlays_names_the_published_columns(tmp_path: Path) -> None:
    config = {"uri": "./wide", "config": {**CONFIG, "overlays": True}}
    with pytest.raises(InvalidInput, match=r"publish.delta: the table may have overlays") as refused:
        load_pipeline(pipeline_file(tmp_path, table=config, publish={"delta": True}))
    assert "set-overlays" in refused.value.hint
    named = {"delta": {"columns": [*CONFIG["key"]]}}
    assert load_pipeline(pipeline_file(tmp_path, table=config, publish=named)).publish is not None
    assert load_pipeline(pipeline_file(tmp_path, publish={"delta": True})).publish is not None


def served(table: Table, section: PublishSection, **options: Any) -> ManyTables:
    settings = TableSettings(TableLocation(table.uri), CompactionSection(min_commits=1), None, publish=section)
    return ManyTables({"orders": lambda: settings}, **options)


def rounds(tables: ManyTables, clock: Clock, done: Callable[[], bool]) -> None:
    """Run rounds, 30 seconds apart by their clock, until something is done."""
    for _ in until(time.monotonic() + PATIENCE_SECONDS):
        while tables.step() is not None:
            pass
        clock.now += 30
        if done():
            return
    pytest.fail(f"not done: {tables.statuses}")


def test_weft_services_publish_in_another_thread(
    table: Table, section: PublishSection, catalog: dict[str, str]
) -> None:
    clock = Clock()
    tables = served(table, section, clock=clock, publisher=DaemonThreads(1))
    append(table, orders(*range(20), status="v2", ts=2))
    rounds(tables, clock, lambda: tables.statuses[0].report.publications == 2)
    append(table, orders(*range(20), status="v3", ts=3))
    rounds(tables, clock, lambda: tables.statuses[0].report.publications >= 4)
    rounds(tables, clock, lambda: in_delta(table) == in_iceberg(catalog) == ["v3"])


def test_a_catalog_that_does_not_answer_does_not_stop_compaction(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> object:
        asked.set()
        release.wait()
        raise StoreUnavailable("no answer")

    monkeypatch.setattr("weft.storage.publish.delta.publish_delta", hang)
    clock = Clock()
    section = PublishSection.model_validate({"delta": True})
    tables = served(table, section, clock=clock, publisher=DaemonThreads(1))
    rounds(tables, clock, asked.is_set)
    before = base_version(table)
    append(table, orders(*range(20), status="v2", ts=2))
    rounds(tables, clock, lambda: base_version(table) != before)
    release.set()
    rounds(tables, clock, lambda: "no answer; next try" in tables.statuses[0].report.publish_problem)
    assert tables.statuses[0].failures == 0
    compacted = replace(tables.statuses[0].report, message="1 file group compacted")
    shown = status_fields(replace(tables.statuses[0], report=compacted), now_ms=0)["message"]
    assert shown.startswith("1 file group compacted; Delta table not published: no answer; next try in")


def test_weft_services_once_says_what_failed(tmp_path: Path, table: Table, catalog: dict[str, str]) -> None:
    publish = {"iceberg": {"table": "shop.orders", "properties": catalog}}
    path = pipeline_file(tmp_path, table={"uri": table.uri}, publish=publish)
    done = weft("services", str(path), "--once", "--json")
    assert done.exit_code == 0, done.stderr
    assert in_iceberg(catalog) == ["new"]
    table.add_column("order", "gift", "boolean", default=False)
    failed = weft("services", str(path), "--once")
    assert failed.exit_code == 1
    assert "gift" in failed.stderr
