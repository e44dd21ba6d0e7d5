"""A real Prometheus with the shipped alerts scrapes a real endpoint, and the first dead letter fires an alert."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from streams.pipeline.run.http_status import StatusPage, serve_status, unsupervised_status
from streams.pipeline.run.status import Report
from tests.deploy import tools
from tests.download_cache import Unavailable

pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_SECONDS = 90.0


@pytest.fixture
def program() -> Path:
    found = shutil.which("prometheus")
    try:
        return Path(found) if found else tools.debian_program("prometheus", "prometheus")
    except Unavailable as reason:
        pytest.skip(f"there is no Prometheus: {reason}")


@pytest.fixture
def page() -> StatusPage:
    return StatusPage()


@pytest.fixture
def prometheus(program: Path, page: StatusPage, tmp_path: Path) -> Iterator[str]:
    """The URL of a Prometheus that scrapes the page every second with the shipped alerts."""
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    shutil.copy(DEPLOY / "prometheus/alerts.yaml", tmp_path)
    with serve_status(page, "127.0.0.1", 0) as served, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{served}"]}]
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        arguments = {
            "config.file": tmp_path / "prometheus.yaml",
            "storage.tsdb.path": tmp_path / "data",
            "web.listen-address": f"127.0.0.1:{port}",
        }
        command = [str(program), *(f"--{name}={value}" for name, value in arguments.items())]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def ask(url: str) -> dict[str, list[dict[str, dict[str, str]]]]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())["data"]


def test_the_first_dead_letter_fires_an_alert(prometheus: str, page: StatusPage) -> None:
    deadline, letters = time.monotonic() + PATIENCE_SECONDS, 0
    while True:
        assert time.monotonic() < deadline
        report = Report(doing="idle", rows=10, lag=0, dead_letters=letters, reported_at_ms=time.time_ns() // 1_000_000)
        page.update([unsupervised_status("orders", report)])
        try:
            scraped = ask(f"{prometheus}/api/v1/query?query=weft_dead_letters_total")["result"]
            alerts = ask(f"{prometheus}/api/v1/alerts")["alerts"]
        except (urllib.error.URLError, ConnectionError):
            scraped, alerts = [], []
        if not letters:
            assert alerts == [], "a pipeline that works fires no alert"
            letters = int(bool(scraped))  # from the first scrape on there is a dead letter
        elif alerts:
            break
        time.sleep(0.2)
    assert [alert["labels"]["alertname"] for alert in alerts] == ["WeftDeadLetters"]
    assert alerts[0]["labels"]["part"] == "orders"
    assert alerts[0]["annotations"]["summary"].startswith("orders could not store")
