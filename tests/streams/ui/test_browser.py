"""The page in a real browser, over a table that four writers are writing."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page

from storage import Table
from tests.streams.ui.browser import Unavailable, axe_findings, axe_script, chromium, served
from tests.streams.ui.site import make_site

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAMS = ("orders", "payments", "shipments", "clicks")
CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 16,
    "columns": {"id": "bigint", **{f"{name}_{what}": "bigint" for name in STREAMS for what in ("n", "ts")}},
    "groups": {name: {"columns": [f"{name}_n", f"{name}_ts"], "ordering": [f"{name}_ts"]} for name in STREAMS},
    "streams": {name: {"groups": [name]} for name in STREAMS},
}
VIEWS = (
    "/",
    "/timeline",
    "/files",
    "/data",
    "/row?key=5&history=1",
    "/changes?since=start",
    "/sql",
    "/completeness",
    "/letters",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(chromium())
        except Unavailable as reason:
            pytest.skip(f"NO BROWSER: {reason}")
        yield found


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return axe_script()
    except Unavailable as reason:
        pytest.skip(f"NO AXE: {reason}")


def write(table: Table, stream: str, stop: threading.Event) -> None:
    number = 0
    with table.writer(stream, lateness=10) as writer:
        while not stop.is_set():
            number += 1
            ids = pa.array(range(number % 7, 100, 3), pa.int64())
            values = {f"{stream}_n": [number] * len(ids), f"{stream}_ts": [number - number % 3] * len(ids)}
            writer.append(pa.table({"id": ids, **values}))
            stop.wait(0.3)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page over a table with four live writers."""
    table = Table.create(tmp_path_factory.mktemp("browser") / "wide", CONFIG)
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(Table.open(table.uri), name, stop)) for name in STREAMS]
    table.savepoint("start")
    for writer in writers:
        writer.start()
    while table.snapshot().to_arrow().num_rows < 90:
        stop.wait(0.1)
    table.compact()
    table.fold()
    try:
        with served(make_site(table.uri)) as place:
            yield place
    finally:
        stop.set()
        for writer in writers:
            writer.join()


@contextlib.contextmanager
def visited(browser: Browser, address: str, path: str, **options: Any) -> Iterator[Page]:
    """A page without errors on its console."""
    context = browser.new_context(**options)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(address + path, wait_until="load")
        yield page
        assert errors == []
    finally:
        context.close()


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1440),
        ("dark", 390),
        pytest.param("light", 390, marks=pytest.mark.extended),
        pytest.param("dark", 1440, marks=pytest.mark.extended),
    ],
)
def test_axe_finds_nothing_serious_and_no_view_is_wider_than_the_screen(
    browser: Browser, axe: str, address: str, theme: Any, width: int
) -> None:
    for path in VIEWS:
        with visited(browser, address, path, viewport={"width": width, "height": 844}, color_scheme=theme) as page:
            if page.locator("[data-chart]").count():
                page.wait_for_selector("[data-chart] canvas")
            assert axe_findings(page, axe) == [], path
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path


def test_the_overview_follows_the_writers_until_it_is_paused(browser: Browser, address: str) -> None:
    with visited(browser, address, "/") as page:
        commits = page.locator(".tile:last-child dd")
        before = commits.inner_text()
        page.wait_for_function(
            "before => document.querySelector('.tile:last-child dd').innerText !== before", arg=before
        )
        page.click("#live-button")
        assert page.locator("#live-text").inner_text() == "paused"
        page.wait_for_timeout(2_500)  # what was under way
        still = commits.inner_text()
        page.wait_for_timeout(2_500)
        assert commits.inner_text() == still


def test_the_timeline_zooms_and_shows_an_entry(browser: Browser, address: str) -> None:
    entries = "parseInt(document.getElementById('timeline-note').textContent.replace(',', ''))"
    with visited(browser, address, "/timeline") as page:
        page.wait_for_function(f"{entries} > 0")
        whole = page.evaluate(entries)
        page.focus("[data-chart=timeline]")
        page.keyboard.press("+")
        page.wait_for_function(f"whole => {entries} < whole", arg=whole)
        page.keyboard.press("0")
        page.wait_for_function(f"whole => {entries} >= whole", arg=whole)
        page.locator("#live a").first.click()
        page.wait_for_selector("#entry .card h2")
        assert "of" in page.locator("#entry h2").inner_text()


def test_the_heat_map_is_used_with_the_keyboard(browser: Browser, address: str) -> None:
    with visited(browser, address, "/files") as page:
        page.wait_for_selector("canvas.heatmap")
        page.focus("canvas.heatmap")
        page.keyboard.press("ArrowRight")
        assert "b04-00001: " in page.locator("#heat-said").inner_text()
        page.keyboard.press("Enter")
        page.wait_for_selector("#group .card h2")
        assert "b04-00001" in page.locator("#group h2").inner_text()
        page.select_option("#heat-metric", "rows")
        assert page.locator("#heat-high").inner_text().replace(",", "").isdigit()


def test_rows_are_found_and_explained(browser: Browser, address: str) -> None:
    with visited(browser, address, "/data") as page:
        page.select_option("select[name=column]", "id")
        page.fill("input[name=value]", "5")
        page.click("text=Show rows")
        page.wait_for_selector("table.data tbody th")
        page.click("table.data tbody th a")
        page.wait_for_selector("svg.events")
        assert page.locator("svg.events").count() == len(STREAMS)
        assert page.locator(".event.wins").count() >= 1


def test_the_theme_is_changed_and_kept(browser: Browser, address: str) -> None:
    with visited(browser, address, "/", color_scheme="light") as page:
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.click("#theme-button")
        page.goto(f"{address}/timeline")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_page_whose_server_is_gone_says_so(browser: Browser, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", CONFIG)
    context = browser.new_context()
    page = context.new_page()
    with served(make_site(table.uri)) as place:
        page.goto(place, wait_until="load")
        page.wait_for_timeout(500)
    page.wait_for_selector("#trouble:not([hidden])")
    assert "tries again" in page.locator("#trouble").inner_text()
    context.close()


def test_the_quick_choices_fill_in_a_time(browser: Browser, address: str) -> None:
    with visited(browser, address, "/changes") as page:
        page.click("button[data-point=since][data-ago='300']")
        given = dt.datetime.fromisoformat(page.input_value("input[name=since]"))
        assert abs((dt.datetime.now(dt.UTC) - given).total_seconds() - 300) < 60
