"""What the page knows of a pipeline: the lag of its writers, and replays of its dead letters."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.kafka.topics import produce
from tests.streams.letters.rig import Place, good
from tests.streams.support.pipelines import weft_output
from tests.streams.ui.site import ORIGIN, client_of, make_site
from tests.streams.ui.test_pages import pipeline
from weft import Table
from weft.storage.store.open_store import open_store
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.run.part_states import PartState, StoredReports
from weft.streams.pipeline.run.report import Report
from weft.streams.ui.site import Site
from weft.streams.ui.source_lag import SourceLag

WAIT_SECONDS = 120


def test_the_lag_is_that_of_the_position_in_the_table(tmp_path: Path, embedded_broker: EmbeddedBroker) -> None:
    topic = "ui-lag"
    embedded_broker.create_topics({topic: 1})
    produce(embedded_broker, topic, ["{}"] * 5)
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1), batch=("q", 0), source={"offsets": [{topic: {"0": 2}}]})
    file = tmp_path / "p.yaml"
    source = {"type": "kafka", "topic": topic}
    whole = {
        "table": {"uri": "./wide"},
        "kafka": {"bootstrap.servers": embedded_broker.bootstrap_servers},
        "writers": {"orders": {"source": source, "schema": {"id": "bigint"}, "trigger": "20 minutes"}},
    }
    file.write_text(yaml.safe_dump(whole))
    site = make_site(table.uri, pipeline=file)
    site.lag = SourceLag(str(file))
    with client_of(site) as client:
        deadline = time.monotonic() + WAIT_SECONDS
        while (row := site.streams(site.look())[0]).lag is None:
            assert time.monotonic() < deadline, site.lag.problem
            time.sleep(0.1)
        assert (row.lag, row.freshness, row.outage, row.trigger_seconds) == (3, None, "", 1_200.0)
        assert 'class="n">3</td>' in client.get("/").text
        append(table, orders(2), batch=("q", 1), source={"offsets": [{topic: {"0": 5}}]})
        while (row := site.streams(site.look())[0]).lag != 0 or row.freshness is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def publish_part(site: Site) -> PartState:
    (part,) = [part for part in site.parts() if part.part == "publish"]
    return part


def test_a_pipeline_of_which_no_part_runs_is_a_warning_with_what_waits(
    tmp_path: Path, embedded_broker: EmbeddedBroker
) -> None:
    """`kill -9` of weft run leaves no trace in the table: its processes stop in order when they notice it."""
    topic, unread = "ui-dead", "ui-unread"
    embedded_broker.create_topics({topic: 1, unread: 1})
    produce(embedded_broker, topic, ["{}"] * 5)
    produce(embedded_broker, unread, ["{}"] * 2)
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1), batch=("q", 0), source={"offsets": [{topic: {"0": 2}}]})
    file = tmp_path / "p.yaml"
    writers = {
        name: {"source": {"type": "kafka", "topic": each, "starting_offsets": "earliest"}, "schema": {"id": "bigint"}}
        for name, each in (("orders", topic), ("payments", unread))
    }
    nowhere = {"table": "shop.wide", "catalog": "x", "properties": {"type": "rest", "uri": "http://127.0.0.1:9/"}}
    whole = {
        "table": {"uri": "./wide"},
        "kafka": {"bootstrap.servers": embedded_broker.bootstrap_servers},
        "writers": writers,
        "publish": {"every": 1, "iceberg": nowhere},
    }
    file.write_text(yaml.safe_dump(whole))
    site = make_site(table.uri, pipeline=file)
    site.lag = SourceLag(str(file))

    def wait_for(*texts: str) -> list[str]:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            look = site.look()
            titles = [problem.title for problem in site.problems(look, site.streams(look))]
            if all(any(text in title for title in titles) for text in texts):
                return titles
            assert time.monotonic() < deadline, titles
            time.sleep(0.1)

    with client_of(site) as client:
        dead = "No part of the pipeline runs: not stored: 3 messages of orders, 2 messages of payments"
        wait_for(dead)
        command = [sys.executable, "-m", "weft.streams.cli.main", "run", str(file), "--only", "publish"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                titles = wait_for("publish: Iceberg table shop.wide not published", "it has never worked")
                assert not any("No part" in title for title in titles)
                deadline = time.monotonic() + WAIT_SECONDS
                while (part := publish_part(site)).last_run_at_ms is None:  # the error is reported within the round
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                assert (part.runs, part.state, part.result) == (True, "waiting", "")
                assert part.next_run_at_ms is not None
                shown = client.get("/").text
                assert "Parts of the pipeline" in shown
                assert "Nothing is wrong" not in shown
            finally:
                process.kill()
        wait_for(dead)
        part = publish_part(site)
        assert (part.runs, part.state, part.next_run_at_ms) == (False, "not running", None)
        assert "shop.wide not published" in part.error
        lines = [json.loads(line) for line in weft_output("show", file, "parts", "--json").splitlines()]
        assert [(line["part"], line["state"]) for line in lines] == [
            ("orders", "not known here"),
            ("payments", "not known here"),
            ("compaction", "not known here"),
            ("publish", "not running"),
        ]


def test_the_page_shows_services_of_other_machines(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    file = tmp_path / "p.yaml"
    writers = {"orders": {"source": {"type": "spark", "format": "rate"}}}
    file.write_text(yaml.safe_dump({"table": {"uri": "./wide"}, "writers": writers}))
    now_ms = time.time_ns() // 1_000_000
    report = Report(
        "idle", message="7 file groups compacted", progress=1, round_at_ms=now_ms, next_round_at_ms=now_ms + 60_000
    )
    StoredReports(open_store(table.uri), "compaction", Report()).write(report)
    site = make_site(table.uri, pipeline=file)
    site.lag = SourceLag(str(file))
    with client_of(site) as client:
        client.get("/")
        shown = client.get("/").text
    assert "7 file groups compacted" in shown
    assert "No part of the pipeline runs" not in shown


def test_a_pipeline_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    file = tmp_path / "p.yaml"
    kafka = {"bootstrap.servers": "${NO_SUCH_VARIABLE_OF_WEFT}"}
    writers = {"orders": {"source": {"type": "kafka", "topic": "t"}, "schema": {"id": "bigint"}}}
    file.write_text(yaml.safe_dump({"table": {"uri": "./wide"}, "kafka": kafka, "writers": writers}))
    site = make_site(table.uri, pipeline=file)
    site.lag = SourceLag(str(file))
    client = client_of(site)
    client.get("/")
    shown = client.get("/").text
    assert "Lag is not measured" in shown
    assert "NO_SUCH_VARIABLE_OF_WEFT" in shown


def test_a_replay_is_a_run_of_the_command(tmp_path: Path) -> None:
    place = Place.new(tmp_path / "place")
    place.write(good(1))
    client = client_of(make_site(place.uri, pipeline=pipeline(place), write=True))
    unknown = client.post("/letters/replay?writer=nobody", headers={"Origin": ORIGIN})
    assert unknown.status_code == 400
    assert "nobody" in unknown.text
    assert client.post("/letters/replay", headers={"Origin": ORIGIN}).status_code == 303
    again = client.post("/letters/replay", headers={"Origin": ORIGIN})
    assert again.status_code in {303, 400}  # refused while the first one runs
    deadline = time.monotonic() + WAIT_SECONDS
    while "Replaying" in (shown := client.get("/letters").text):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "The replay failed" in shown
    assert "writers.main.schema: is missing" in shown  # what the command says
