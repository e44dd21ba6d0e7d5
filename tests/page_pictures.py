"""Pictures of every view of the page ``weft ui``, in both themes and at two widths, over a shop with live writers.

    python -m tests.page_pictures FOLDER [--only NAME ...] [--width 390]     # FOLDER/<view>-<theme>-<width>.png
    python -m tests.page_pictures --readme                 # those of the README, into deploy/pictures

Look at them after a change of the page: what is ugly, wrong or unclear? Needs chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect

from tests.streams.ui.browser import chromium, served
from tests.streams.ui.busy_shop import CONFIG, Traffic, busy_shop
from tests.streams.ui.site import make_site
from weft import Table
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.ui.listed_tables import TableList, Target

Act = Callable[[Page], None] | None
THEMES: Final = ("light", "dark")
WIDTHS: Final = (1440, 390)


def ready(page: Page) -> None:
    """Wait for the charts."""
    for chart in page.locator("[data-chart]").all():
        chart.locator("canvas").first.wait_for()


def click(selector: str, shows: str) -> Callable[[Page], None]:
    """Click something and wait for what it shows."""

    def act(page: Page) -> None:
        page.locator(selector).first.click()
        page.locator(shows).first.wait_for()

    return act


def hover(selector: str) -> Callable[[Page], None]:
    """Hold the mouse over something."""

    def act(page: Page) -> None:
        page.locator(selector).first.hover()
        page.locator(".tip:visible").first.wait_for()

    return act


def hold(pattern: str) -> Callable[[Page], None]:
    """Leave requests without an answer: what a slow store looks like."""

    def act(page: Page) -> None:
        page.route(pattern, lambda _: None)

    return act


def fail(pattern: str) -> Callable[[Page], None]:
    """Let requests fail: what a server that has ended looks like."""

    def act(page: Page) -> None:
        page.route(pattern, lambda route: route.abort())

    return act


def refused(page: Page) -> None:
    """Ask for a snapshot that is none, which needs no Spark."""
    page.fill("[name=as_of]", "2026:11")
    page.press("#sql-text", "Control+Enter")
    page.locator("#answer [role=alert]").wait_for()


def unanswered(page: Page) -> None:
    """Ask a server that does not answer."""
    fail("**/data?*")(page)
    page.click("text=Show rows")
    page.locator("#failed:visible").wait_for()


VIEWS: Final[dict[str, tuple[str, Act]]] = {
    "overview": ("/", None),
    "timeline": ("/timeline", None),
    "timeline-entry": ("/timeline", click("#live td a", "#entry h2")),
    "files": ("/files", None),
    "files-group": ("/files", click("#live tbody a", "#group h2")),
    "data": ("/data?column=paid&operator=is+null&value=", None),
    "data-error": ("/data?column=paid&operator=%3D&value=much", None),
    "row": ("/row?key=order_id%3D1537&history=1", None),
    "row-compacted": ("/row?key=order_id%3D1537", hover("svg.events .event .mark")),
    "changes": ("/changes?since=before-sale", None),
    "sql": ("/sql", click("summary", ".examples")),
    "sql-refused": ("/sql", refused),
    "data-unanswered": ("/data", unanswered),
    "checks": ("/checks", click("text=Run the checks", ".checks")),
    "completeness": ("/completeness?through=2030-01-01T00:00:00Z", None),
    "letters": ("/letters?writer=orders", None),
    "letter": ("/letters?writer=orders", click("a[hx-target='#letter']", "#letter h2")),
    "missing": ("/nothing", None),
}
EMPTY: Final[dict[str, tuple[str, Act]]] = {
    "empty-overview": ("/", None),
    "empty-timeline": ("/timeline", None),
    "empty-files": ("/files", None),
    "empty-data": ("/data?limit=5", None),
    "empty-row": ("/row?key=order_id%3D7", None),
    "empty-changes": ("/changes?since=2026-01-01+00:00", None),
    "empty-completeness": ("/completeness", None),
    "empty-letters": ("/letters", None),
    "empty-checks": ("/checks", None),
}
"""Views of a table without rows."""
BEFORE: Final[dict[str, tuple[str, Callable[[Page], None]]]] = {
    "loading-overview": ("/", hold("**/rates.json*")),
    "loading-timeline": ("/timeline", hold("**/cells.json*")),
    "loading-files": ("/files", hold("**/cells.json*")),
    "failed-timeline": ("/timeline", fail("**/cells.json*")),
    "failed-files": ("/files", fail("**/cells.json*")),
}
"""Views whose charts wait for an answer, or get none: what is done before the page is opened."""
START: Final = "start"
ALL: Final = (*VIEWS, *EMPTY, *BEFORE, START)
OF_README: Final = {"overview": 800, "timeline": 600, "row": 860}
"""Views of the README, and the height of their pictures."""
PICTURES: Final = Path(__file__).resolve().parents[1] / "deploy/pictures"


def take_for_readme() -> None:
    """The pictures of the README."""
    with shown() as (address, browser):
        context = browser.new_context(color_scheme="light")
        page = context.new_page()
        for name, height in OF_README.items():
            page.set_viewport_size({"width": 1100, "height": height})
            page.goto(address + VIEWS[name][0], wait_until="load")
            ready(page)
            if name == "overview":
                expect(page.locator("tbody tr").first.locator("td").nth(2)).not_to_have_text("-", timeout=30_000)
            if name == "row":
                page.locator("h2").first.evaluate("heading => heading.scrollIntoView()")
            page.screenshot(path=PICTURES / f"ui-{name}.png")
        context.close()


@contextlib.contextmanager
def shown() -> Iterator[tuple[str, Browser]]:
    """The page of the shop, and a browser."""
    with (
        tempfile.TemporaryDirectory() as place,
        busy_shop(Path(place)) as site,
        served(site) as address,
        chromium() as browser,
    ):
        yield address, browser


def take(folder: Path, only: Collection[str], widths: Collection[int] = WIDTHS) -> None:
    """Pictures of some views into a folder; of all without a choice."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name for name in ALL if not only or name in only}
    with contextlib.ExitStack() as running:
        place = Path(running.enter_context(tempfile.TemporaryDirectory()))
        Table.create(place / "orders_wide", CONFIG)
        empty = running.enter_context(served(make_site(str(place / "orders_wide"))))
        start = running.enter_context(served(several(place)))
        if wanted <= {*EMPTY, START}:
            address, browser = "", running.enter_context(chromium())
        else:
            address, browser = running.enter_context(shown())
        views: dict[str, tuple[str, str, Act, Act]] = {
            **{name: (address, path, None, act) for name, (path, act) in VIEWS.items()},
            **{name: (empty, path, None, act) for name, (path, act) in EMPTY.items()},
            **{name: (address, path, act, None) for name, (path, act) in BEFORE.items()},
            START: (start, "/", None, read),
        }
        for width, theme, name in itertools.product(widths, THEMES, views):
            if name not in wanted:
                continue
            base, path, before, after = views[name]
            size: Any = {"width": width, "height": 900 if width > 800 else 844}
            context = browser.new_context(viewport=size, color_scheme=_scheme(theme))
            page = context.new_page()
            if before is not None:
                before(page)
            page.goto(base + path, wait_until="load")
            if name in VIEWS:
                ready(page)
            if name not in BEFORE:
                expect(page.locator("[data-chart] >> text=Loading")).to_have_count(0)
            if after is not None:
                after(page)
            page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=True)
            page.unroute_all(behavior="ignoreErrors")
            context.close()


def read(page: Page) -> None:
    """Wait until each line of the start page was read."""
    expect(page.locator("td.empty")).to_have_count(0, timeout=30_000)


def several(place: Path) -> TableList:
    """A list of tables: an empty one, one with rows, one whose name is long, and one that is damaged."""
    for name in ("shop/eu/customers", "an_archive_of_orders_of_many_years_with_a_long_name"):
        table = Table.create(place / name, CONFIG)
        with table.writer("orders") as writer:
            writer.append(Traffic().batch("orders", time.time_ns() // 1_000_000))
    Table.create(place / "damaged", CONFIG)
    (place / "damaged/_weft/timeline/table/00000000000000000001.json").write_text("{", encoding="utf-8")
    return TableList([Target(CommandSettings(TableLocation(str(place))))], write=False)


def _scheme(theme: str) -> Any:
    return theme


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("page-pictures"))
    parser.add_argument("--only", choices=ALL, nargs="+", default=(), help="names of some views")
    parser.add_argument("--width", type=int, choices=WIDTHS, nargs="+", default=WIDTHS, help="of the screen, in pixels")
    parser.add_argument("--readme", action="store_true", help="the pictures of the README instead")
    given = parser.parse_args()
    if given.readme:
        take_for_readme()
    else:
        take(given.folder, given.only, given.width)


if __name__ == "__main__":
    main()
