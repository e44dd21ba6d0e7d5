"""The page of the demo's verdict: its numbers, and how a browser shows it."""

from __future__ import annotations

import contextlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from rich.console import Console

from storage.errors import InvalidInput
from streams.demo.outcome import Verdict
from streams.demo.report import Facts, chart, report_html
from streams.demo.run_demo import run_demo
from streams.demo.samples import Sample, Samples, freshness, lag, throughput
from streams.demo.write_report import write_report
from tests.streams.ui.browser import Unavailable, axe_findings, axe_script

STREAMS = ("orders", "payments")
SAMPLES = [
    Sample(0.0, {"orders": 100, "payments": 0}, {"orders": 0, "payments": 0}, {"orders": None, "payments": None}),
    Sample(2.0, {"orders": 200, "payments": 50}, {"orders": 100, "payments": 50}, {"orders": 1.5, "payments": 0.0}),
    Sample(4.0, {"orders": 200, "payments": 50}, {"orders": 200, "payments": 50}, {"orders": 0.0, "payments": None}),
]
HOSTILE = "<script>alert(1)</script>"


def page(*, equal: bool = True) -> str:
    return report_html(
        Facts(
            equal=equal,
            verdict="snapshot == join: yes (250 rows, 9 columns)",
            seconds=4.0,
            streams=STREAMS,
            samples=SAMPLES,
            events=[(2.0, f"kill -9 {HOSTILE}")],
            figures={"view": "1.00 s"},
            settings={"seed": HOSTILE, "pyarrow": "25.0"},
        )
    )


def test_what_is_measured() -> None:
    assert throughput(SAMPLES, "orders") == [(2.0, 50.0), (4.0, 50.0)]
    at_once = [*SAMPLES[:2], Sample(2.001, {"orders": 200, "payments": 50}, {"orders": 200, "payments": 50}, {})]
    assert throughput(at_once, "orders") == [(2.001, 200 / 2.001)]
    assert throughput(SAMPLES[:1], "orders") == []
    assert lag(SAMPLES, "orders") == [(0.0, 100.0), (2.0, 100.0), (4.0, 0.0)]
    assert freshness(SAMPLES, "orders") == [(2.0, 1.5), (4.0, 0.0)]
    samples = Samples()
    assert samples.due
    samples.add({"a": 1}, {"a": 0}, {"a": None})
    assert not samples.due


def test_a_page_needs_nothing_else_and_escapes() -> None:
    text = page()
    assert "250 messages in 4.0 s, 62 a second" in text
    assert HOSTILE not in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert text.count("<svg") == 3
    assert len(text) < 40_000


def test_a_chart_has_its_points_where_they_belong() -> None:
    """The largest value touches the top line if it is round; times go from left to right."""
    drawn = ET.fromstring(chart("x", {"a": [(0.0, 0.0), (5.0, 10.0), (10.0, 5.0)]}, []))
    (line,) = drawn.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    (left, bottom), (middle, top), (right, half) = points
    assert middle == (left + right) / 2
    assert half == (bottom + top) / 2
    levels = sorted(float(each.attrib["y1"]) for each in drawn.iter("line") if each.attrib["class"] == "axis")
    assert (levels[0], levels[-1]) == (top, bottom)
    assert "nothing was measured" in chart("x", {"a": []}, [])


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no such folder"):  # before anything is started
        run_demo(100, Console(), report=tmp_path / "no" / "x.html")
    verdict = Verdict(equal=True, text="yes", figures={})
    with pytest.raises(InvalidInput, match="--report"):
        write_report(tmp_path / "no" / "x.html", verdict, Samples(), 1.0, STREAMS, {})
    write_report(tmp_path / "x.html", verdict, Samples(), 1.0, STREAMS, {"seed": "1"})
    assert "pyspark" in (tmp_path / "x.html").read_text()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_without_an_error(browser: Browser, tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "demo.html"
    file.write_text(page(), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1440, "height": 900})  # type: ignore[arg-type]
    shown = context.new_page()
    problems: list[str] = []
    shown.on("console", lambda message: problems.append(message.text) if message.type in {"error", "warning"} else None)
    shown.on("pageerror", lambda error: problems.append(str(error)))
    requests: list[str] = []
    shown.on("request", lambda request: requests.append(request.url))
    shown.goto(file.as_uri())
    assert shown.locator("svg").count() == 3
    assert shown.locator("h1").inner_text() == "snapshot == join: yes (250 rows, 9 columns)"
    assert shown.locator("polyline").first.bounding_box() is not None
    assert problems == []
    with contextlib.suppress(Unavailable):
        assert axe_findings(shown, axe_script()) == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    shown.set_viewport_size({"width": 390, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
