"""The page in a real browser, over a table that four writers are writing."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.reserved_port import reserved_port
from tests.streams.ui.browser import Unavailable, axe_findings, axe_script, opened, requests_later, served
from tests.streams.ui.site import make_site
from weft import Table
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.ui import row_pages, row_query
from weft.streams.ui.listed_tables import TableList, Target

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
    "/completeness?through=5",
    "/letters",
    "/checks",
)


_CUT = """() => {
  const scrolls = ".grid.data, .versions, svg.events, pre, .chart, .hidden, .stack thead";
  const cut = [...document.querySelectorAll("nav, nav *, main *")].filter((each) =>
    each.checkVisibility() && !each.closest(scrolls) && !each.querySelector(scrolls)
    && getComputedStyle(each).overflowX !== "visible" && each.scrollWidth > each.clientWidth + 1);
  const canvas = document.createElement("canvas").getContext("2d");
  for (const input of document.querySelectorAll("main input:placeholder-shown")) {
    const style = getComputedStyle(input);
    canvas.font = style.font;
    const room = input.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (canvas.measureText(input.placeholder).width > room) cut.push(input);
  }
  return cut.map((each) => each.outerHTML.slice(0, 120));
}"""
"""What does not fit, but for what is as wide as the data: rows of queries, events of a row, bytes."""


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


def has_much(table: Table) -> bool:
    """Whether most rows are there, and row 5 has events of all streams."""
    rows = {row["id"]: row for row in table.snapshot().to_arrow().to_pylist()}
    return len(rows) >= 90 and None not in rows.get(5, {"": None}).values()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page over a table with four live writers."""
    table = Table.create(tmp_path_factory.mktemp("browser") / "wide", CONFIG)
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(Table.open(table.uri), name, stop)) for name in STREAMS]
    table.savepoint("start")
    for writer in writers:
        writer.start()
    while not has_much(table):
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
def visited(browser: Browser, address: str, path: str, *, aborts: bool = False, **options: Any) -> Iterator[Page]:
    """A page without errors on its console; ``aborts``: but for those of htmx, which calls a cancelled request one."""
    errors: list[str] = []
    with opened(browser, **options) as page:
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address + path, wait_until="load")
        yield page
        assert [each for each in errors if not (aborts and each.startswith("htmx:"))] == []


def ready(page: Page) -> None:
    """Wait until charts are drawn."""
    for chart in page.locator("[data-chart]").all():
        chart.locator("canvas").first.wait_for()


@pytest.mark.parametrize("path", VIEWS)
def test_axe_finds_nothing_serious_and_no_view_is_wider_than_the_screen(
    browser: Browser, axe: str, address: str, path: str
) -> None:
    size = {"width": 1440, "height": 900}
    with visited(browser, address, path, viewport=size, color_scheme="light") as page:
        ready(page)
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, width
            assert axe_findings(page, axe) == [], width
            assert page.evaluate(_CUT) == [], width
            page.click("#theme-button")


def test_every_control_is_reached_with_the_keyboard(browser: Browser, address: str) -> None:
    """Each of the first stops of the Tab key is visible and has a name; the first one skips the menu."""
    with visited(browser, address, "/data") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#main"
        controls = page.locator("main button:visible, main input:visible, main select:visible, main a:visible").count()
        seen = set()
        for _ in range(controls + 5):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.outerHTML"))
        assert any('name="as_of"' in each for each in seen)
        assert any("Show rows" in each for each in seen)


def test_the_overview_follows_the_writers_until_it_is_paused(browser: Browser, address: str) -> None:
    with visited(browser, address, "/") as page:
        commits = page.locator(".tile:last-child dd")
        expect(commits).not_to_have_text(commits.inner_text())
        page.click("#live-button")
        expect(page.locator("#live-text")).to_have_text("paused")
        page.click("#live-button")
        expect(page.locator("#live-text")).to_have_text("live")
        expect(commits).not_to_have_text(commits.inner_text())


def entries(page: Page) -> int:
    """The number of entries that the timeline shows."""
    note = page.locator("#timeline-note")
    expect(note).to_have_text(re.compile(r"^[1-9][\d,]* entries"))
    return int(note.inner_text().split()[0].replace(",", ""))


def test_the_timeline_zooms_and_shows_an_entry(browser: Browser, address: str) -> None:
    with visited(browser, address, "/timeline") as page:
        page.click("#live-button")
        ready(page)
        whole = entries(page)
        page.focus("[data-chart=timeline]")
        with page.expect_response(re.compile("cells.json.*begin=")):
            page.keyboard.press("+")
        expect(page.locator("#timeline-note")).not_to_have_text(re.compile(f"^{whole:,} entries"))
        with page.expect_response(re.compile("cells.json")):
            page.keyboard.press("0")
        expect(page.locator("#timeline-note")).not_to_have_text(re.compile("^0 entries"))
        page.locator("#live td a").first.click()
        expect(page.locator("#entry .card h2")).to_contain_text("of")


def test_the_heat_map_is_used_with_the_keyboard(browser: Browser, address: str) -> None:
    with visited(browser, address, "/files") as page:
        page.wait_for_selector("canvas.heatmap")
        page.focus("canvas.heatmap")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#heat-said")).to_contain_text("b04-00001: ")
        page.keyboard.press("Enter")
        expect(page.locator("#group .card h2")).to_contain_text("b04-00001")
        page.select_option("#heat-metric", "rows")
        expect(page.locator("#heat-high")).to_have_text(re.compile(r"^[\d,]+$"))


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


def test_the_events_of_a_row_are_read_with_the_mouse_and_with_the_keyboard(browser: Browser, address: str) -> None:
    with visited(browser, address, "/row?key=5&history=1") as page:
        picture = page.locator("svg.events").first
        events = picture.locator(".event")
        while events.count() < 2:  # its writer goes on
            page.reload()
        expect(page.locator("html")).to_have_attribute("data-ready", "")
        tip = page.locator(".card:has(svg.events) > .tip").first
        expect(tip).to_be_hidden()
        events.last.locator(".mark").first.hover()
        expect(tip).to_contain_text("wins: newest")
        expect(tip).to_contain_text("orders_n = ")
        page.locator("h1").hover()
        expect(tip).to_be_hidden()
        events.last.focus()
        page.keyboard.press("ArrowLeft")
        expect(events.nth(events.count() - 2)).to_be_focused()
        expect(tip).to_contain_text("loses: ")
        page.keyboard.press("Home")
        expect(events.first).to_be_focused()
        expect(picture.locator("[tabindex='0']")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()


def test_the_theme_is_changed_and_kept(browser: Browser, address: str) -> None:
    with visited(browser, address, "/", color_scheme="light") as page:
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.click("#theme-button")
        page.goto(f"{address}/timeline")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_page_says_that_its_server_is_gone_and_goes_on_when_it_is_back(browser: Browser, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", CONFIG)
    with reserved_port() as port, opened(browser) as page:
        with served(make_site(table.uri), port) as place:
            with page.expect_response("**/events"):
                page.goto(place, wait_until="load")
            expect(page.locator("#live-text")).to_have_text("live")
            expect(page.locator("#trouble")).to_be_hidden()
        expect(page.locator("#trouble")).to_contain_text("tries again")
        expect(page.locator("#live-text")).to_have_text("no answer")
        with table.writer("orders") as writer:
            writer.append(pa.table({"id": [1], "orders_n": [1], "orders_ts": [1]}))
        with served(make_site(table.uri), port):
            expect(page.locator("#trouble")).to_be_hidden()
            expect(page.locator("#live-text")).to_have_text("live")
            expect(page.locator(".tile:last-child dd")).to_contain_text("1")


def test_a_search_is_cancelled(browser: Browser, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def slow(table: Table, query: row_query.RowQuery, cancelled: threading.Event) -> row_query.RowAnswer:
        begun.set()
        assert cancelled.wait(60)
        ended.set()
        return row_query.answer(table, query, cancelled)

    with visited(browser, address, "/data", aborts=True) as page:
        expect(page.locator("text=Cancel the search")).to_be_hidden()
        monkeypatch.setattr(row_pages, "answer", slow)
        page.click("text=Show rows")
        assert begun.wait(60)
        page.click("text=Cancel the search")
        assert ended.wait(60)
        monkeypatch.undo()
        expect(page.locator("text=Cancel the search")).to_be_hidden()
        page.click("text=Show rows")
        expect(page.locator("table.data tbody th").first).to_be_visible()


def test_the_checks_are_run(browser: Browser, address: str) -> None:
    with visited(browser, address, "/checks") as page:
        expect(page.locator("main")).to_contain_text("Nothing was checked")
        page.click("text=Run the checks")
        expect(page.locator("#live .note")).to_contain_text("0 problems")
        assert requests_later(page, "/checks") == [], "the result is there"
        expect(page.locator(".checks")).to_contain_text("newest snapshot")


def test_the_quick_choices_fill_in_a_time(browser: Browser, address: str) -> None:
    with visited(browser, address, "/changes") as page:
        page.click("button[data-point=since][data-ago='300']")
        given = dt.datetime.fromisoformat(page.input_value("input[name=since]"))
        assert abs((dt.datetime.now(dt.UTC) - given).total_seconds() - 300) < 60


def test_views_of_a_table_without_rows_say_so(browser: Browser, axe: str, tmp_path: Path) -> None:
    with served(make_site(Table.create(tmp_path / "wide", CONFIG).uri)) as place:
        with visited(browser, place, "/files") as page:
            expect(page.locator("[data-chart]")).to_have_text("The table has no rows yet.")
            expect(page.locator(".ramp")).to_be_hidden()
            assert axe_findings(page, axe) == []
        with visited(browser, place, "/timeline") as page:
            expect(page.locator("#timeline-note")).to_have_text("1 entry")
            found = page.evaluate("fetch('/timeline/cells.json?parts=100').then((answer) => answer.json())")
            assert found["end"] - found["begin"] >= 1_000, "a span that has labels"


def test_a_start_page_of_several_tables(browser: Browser, axe: str, tmp_path: Path) -> None:
    """Its lines follow the tables, its links lead to their pages and back, and it fits on a telephone."""
    for name in ("orders_wide", "shop/a_table_with_a_rather_long_name_of_many_words"):
        table = Table.create(tmp_path / name, CONFIG)
    with table.writer("orders") as writer:
        writer.append(pa.table({"id": [1], "orders_n": [1], "orders_ts": [1]}))
    tables = TableList([Target(CommandSettings(TableLocation(str(tmp_path))))], write=False)
    with served(tables) as place, visited(browser, place, "/", color_scheme="light") as page:
        expect(page.locator("#live tbody tr").last).to_contain_text("1 event in logs")
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, width
            assert axe_findings(page, axe) == [], width
            assert page.evaluate(_CUT) == [], width
            page.click("#theme-button")
        Table.create(tmp_path / "new", CONFIG)
        expect(page.locator("#live tbody tr")).to_have_count(3)
        page.click("text=a_table_with")
        expect(page.locator("h1")).to_have_text("Overview")
        ready(page)
        page.click("nav >> text=File groups")
        page.click("#live tbody a")
        expect(page.locator("#group h2")).to_contain_text("b0")
        assert axe_findings(page, axe) == []
        shutil.rmtree(tmp_path / "new")
        page.click("nav >> text=All tables")
        expect(page.locator("#live tbody tr")).to_have_count(2)
