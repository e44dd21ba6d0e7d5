"""What the page knows of a pipeline: the lag of its writers, and replays of its dead letters."""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from storage import Table
from streams.demo.broker import EmbeddedBroker
from streams.ui.source_lag import SourceLag
from tests.storage.shop import SHOP, append, orders
from tests.streams.kafka.topics import produce
from tests.streams.letters.rig import Place, good
from tests.streams.ui.site import ORIGIN, client_of, make_site
from tests.streams.ui.test_pages import pipeline

WAIT_SECONDS = 60


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
    deadline = time.monotonic() + WAIT_SECONDS * 2
    while "Replaying" in (shown := client.get("/letters").text):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "The replay failed" in shown
    assert "writers.main.schema: is missing" in shown  # what the command says
