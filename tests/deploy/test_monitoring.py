"""Alerts and dashboard name metrics that exist in a scrape, and the dashboard shows each metric."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.http_get import get
from tests.streams.support.pipelines import CONFIG
from weft import DuePolicy, Table
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.pipeline.run.http_status import StatusPage, serve_status
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.supervisor import JobStatus, Phase
from weft.streams.pipeline.run.table_watch import TableWatch

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yaml"
DASHBOARD = DEPLOY / "grafana/dashboards/weft.json"
METRIC = re.compile(r"\bweft_[a-z_]+\b")


def expressions(path: Path) -> list[str]:
    if path == ALERTS:
        return [rule["expr"] for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    dashboard = json.loads(path.read_text())
    variables = [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [*variables, *targets]


@pytest.fixture
def scraped(tmp_path: Path) -> set[str]:
    """Names of all samples of an endpoint that serves a writer, cleaning and a table, in every state at once."""
    report = Report(doing="waiting", lag=1, complete_at_ms=1, committed_at_ms=1, waiting_since_ms=1, due_bytes=1)
    report = replace(report, delay_seconds=2.0, read_amplification=9.0, published_at_ms=1, publish_seconds=30.0)
    report = replace(report, trigger_seconds=5.0)
    report = replace(report, unknown_objects=1, expired_at_ms=1, waiting_for="the broker", **report.with_batch(1.0))
    page, location = StatusPage(), TableLocation(str(tmp_path / "wide"))
    page.update([JobStatus("orders", Phase.RUNNING, 1, 0, report, "", Path(), (), None, background=False)])
    table = Table.create(location.uri, CONFIG)
    with table.writer("sa") as writer:
        for _ in range(2):
            writer.append(pa.table({"id": [1], "a": ["x"], "at": pa.array([1], pa.int64())}))
            table.compact()
        writer.append(pa.table({"id": [1], "a": ["x"], "at": pa.array([1], pa.int64())}))
    page.show_table(location.uri, TableWatch(location, DuePolicy(), lambda _: None).look())
    with serve_status(page, "127.0.0.1", 0) as port:
        lines = get(f"http://127.0.0.1:{port}/metrics").splitlines()
    return {name[0] for line in lines if (name := METRIC.match(line))}


@pytest.mark.parametrize("path", [ALERTS, DASHBOARD], ids=lambda path: path.name)
def test_every_metric_that_is_named_exists(path: Path, scraped: set[str]) -> None:
    named = {name for text in expressions(path) for name in METRIC.findall(text)}
    assert len(named) > 10
    assert named - scraped == set()


def test_the_dashboard_shows_every_metric(scraped: set[str]) -> None:
    shown = {name for text in expressions(DASHBOARD) for name in METRIC.findall(text)}
    assert {name for name in scraped if not name.endswith(("_created", "_sum", "_count"))} - shown == set()


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        cells |= taken


def test_kubernetes_has_the_same_alerts() -> None:
    rule = yaml.safe_load((DEPLOY / "kubernetes/common/prometheus-rule.yaml").read_text())
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())


def test_every_alert_says_what_to_do() -> None:
    groups: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"]
    operations = (DEPLOY / "OPERATIONS.md").read_text()
    for rule in (rule for group in groups for rule in group["rules"]):
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert f"`{rule['alert']}`" in operations, "OPERATIONS.md has a row for each alert"
