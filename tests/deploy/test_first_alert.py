"""A real Prometheus with the shipped alerts scrapes a real endpoint, and the first dead letter fires an alert."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy import tools
from tests.download_cache import Unavailable
from tests.end_process import end_process
from tests.http_get import get
from tests.reserved_port import reserved_port
from weft.streams.pipeline.run.http_status import StatusPage, serve_status, unsupervised_status
from weft.streams.pipeline.run.report import Report

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_SECONDS = 240.0


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
    """The URL of a Prometheus that scrapes the page every few seconds with the shipped alerts."""
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    shutil.copy(DEPLOY / "prometheus/alerts.yaml", tmp_path)
    with serve_status(page, "127.0.0.1", 0) as served, reserved_port() as port:
        # A scrape that takes longer would make the alert for a part that is not scraped pending.
        config["global"] = {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{served}"]}]
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        process, url = start(program, tmp_path, port)
        yield url
        end_process(process, signal.SIGTERM)


def start(program: Path, folder: Path, port: int) -> tuple[subprocess.Popen[bytes], str]:
    """A Prometheus that is ready, and its URL."""
    address = f"127.0.0.1:{port}"
    arguments = {
        "config.file": folder / "prometheus.yaml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": address,
    }
    command = [str(program), *(f"--{name}={value}" for name, value in arguments.items())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://{address}/-/ready", timeout=30).close()
        except OSError:
            time.sleep(0.2)
        else:
            return process, f"http://{address}"
    end_process(process, signal.SIGKILL)
    raise AssertionError(f"{program} does not start")


def ask(url: str) -> dict[str, list[dict[str, dict[str, str]]]]:
    return json.loads(get(url))["data"]


def test_the_first_dead_letter_fires_an_alert(prometheus: str, page: StatusPage) -> None:
    deadline, letters = time.monotonic() + PATIENCE_SECONDS, 0
    while True:
        assert time.monotonic() < deadline
        report = Report(doing="idle", rows=10, lag=0, dead_letters=letters, reported_at_ms=time.time_ns() // 1_000_000)
        page.update([unsupervised_status("orders", report)])
        try:
            scraped = ask(f"{prometheus}/api/v1/query?query=weft_dead_letters_total")["result"]
            alerts = ask(f"{prometheus}/api/v1/alerts")["alerts"]
        except OSError:
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
