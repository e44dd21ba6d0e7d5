"""Pictures of every view of the page ``weft ui``, in both themes and at two widths, over a shop with live writers.

    python -m tests.page_pictures FOLDER [--only NAME]     # FOLDER/<view>-<theme>-<width>.png
    python -m tests.page_pictures --readme                 # those of the README, into deploy/pictures

Look at them after a change of the page: what is ugly, wrong or unclear? Needs chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect

from tests.streams.ui.browser import chromium, served
from tests.streams.ui.busy_shop import busy_shop

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


VIEWS: Final[dict[str, tuple[str, Callable[[Page], None] | None]]] = {
    "overview": ("/", None),
    "timeline": ("/timeline", None),
    "timeline-entry": ("/timeline", click("#live td a", "#entry h2")),
    "files": ("/files", None),
    "files-group": ("/files", click("#live tbody a", "#group h2")),
    "data": ("/data?column=paid&operator=is+null&value=", None),
    "data-error": ("/data?column=paid&operator=%3D&value=much", None),
    "row": ("/row?key=order_id%3D1537&history=1", None),
    "changes": ("/changes?since=before-sale", None),
    "sql": ("/sql", click("summary", ".examples")),
    "checks": ("/checks", click("text=Run the checks", ".checks")),
    "completeness": ("/completeness?through=2030-01-01T00:00:00Z", None),
    "letters": ("/letters?writer=orders", None),
    "letter": ("/letters?writer=orders", click("a[hx-target='#letter']", "#letter h2")),
    "missing": ("/nothing", None),
}


OF_README: Final = {"overview": 800, "timeline": 560, "row": 860}
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


def take(folder: Path, only: str | None) -> None:
    """All pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with shown() as (address, browser):
        for width in WIDTHS:
            for theme in THEMES:
                context = browser.new_context(
                    viewport={"width": width, "height": 900 if width > 800 else 844}, color_scheme=_scheme(theme)
                )
                page = context.new_page()
                for name, (path, act) in VIEWS.items():
                    if only is None or only == name:
                        page.goto(address + path, wait_until="load")
                        ready(page)
                        if act is not None:
                            act(page)
                        page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=True)
                context.close()


def _scheme(theme: str) -> Any:
    return theme


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("page-pictures"))
    parser.add_argument("--only", choices=VIEWS, help="name of one view")
    parser.add_argument("--readme", action="store_true", help="the pictures of the README instead")
    given = parser.parse_args()
    if given.readme:
        take_for_readme()
    else:
        take(given.folder, given.only)


if __name__ == "__main__":
    main()
