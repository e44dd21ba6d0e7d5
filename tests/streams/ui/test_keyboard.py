"""Every control of every view with the keyboard: it is reached in the order of the page, is seen, and does its work."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.streams.letters.rig import Place, bad, good
from tests.streams.ui.browser import opened, served
from tests.streams.ui.site import make_site
from tests.streams.ui.test_pages import pipeline
from weft import Table

pytestmark = [pytest.mark.integration, pytest.mark.slow]

VIEWS = (
    "/",
    "/timeline",
    "/files",
    "/data",
    "/row?key=id%3D1&history=1",
    "/changes?since=start",
    "/sql",
    "/completeness?through=5",
    "/letters?writer=main",
    "/checks",
    "/nothing",
)

_CONTROLS = """() => {
  const kinds = "a[href], button, input, select, textarea, summary, [tabindex]";
  const found = [...document.querySelectorAll(kinds)].filter((each) =>
    each.tabIndex >= 0 && !each.disabled && each.type !== "hidden" && each.checkVisibility());
  window.controls = found;
  return found.map((each) => each.outerHTML.slice(0, 120));
}"""
_FOCUSED = """() => {
  const each = document.activeElement;
  const style = getComputedStyle(each);
  const place = each.getBoundingClientRect();
  const below = document.querySelector(".top").getBoundingClientRect().bottom;
  const inTop = document.querySelector(".top").contains(each) || each.matches(".skip");
  return {
    number: window.controls.indexOf(each),
    what: each.outerHTML.slice(0, 120),
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    hidden: (!inTop && place.bottom <= below) || place.top >= innerHeight
      || place.right <= 0 || place.left >= innerWidth,
    named: Boolean((each.getAttribute("aria-label") || each.getAttribute("aria-labelledby") || each.textContent
      || [...(each.labels ?? [])].map((label) => label.textContent).join("")).trim()),
  };
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a pipeline with rows, dead letters, compacted file groups and a savepoint, with --write."""
    place = Place.new(tmp_path_factory.mktemp("keyboard") / "place")
    table = Table.open(place.uri)
    table.savepoint("start")
    for number in range(4):
        place.write(good(number), bad(number + 10))
    table.compact()
    time.sleep(0.2)  # a history that is shorter than the shortest view, but long enough for zooming in
    place.write(good(9))
    with served(make_site(place.uri, pipeline=pipeline(place), write=True)) as found:
        yield found


@pytest.fixture(params=[1440, 390])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    with opened(browser, viewport={"width": request.param, "height": 844}) as page:
        yield page


@pytest.mark.parametrize("path", VIEWS)
def test_the_tab_key_reaches_each_control_in_order_and_it_is_seen(page: Page, address: str, path: str) -> None:
    page.goto(address + path)
    expect(page.locator("html")).to_have_attribute("data-ready", "")
    for chart in page.locator("[data-chart]").all():
        chart.locator("canvas").first.wait_for()
    page.press("#live-button", "Space")  # nothing changes any more
    controls = page.evaluate(_CONTROLS)
    assert "Skip to the content" in controls[0]
    reached = []
    page.focus(".skip")
    for number in range(len(controls)):
        if number:
            page.keyboard.press("Tab")
        found = page.evaluate(_FOCUSED)
        reached.append(found["number"])
        assert found["outlined"], found
        assert not found["hidden"], found
        assert found["named"], found
    assert reached == list(range(len(controls))), [controls[each] for each in set(range(len(controls))) - set(reached)]
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(_FOCUSED)["number"] == len(controls) - 2, "the way back"


@pytest.mark.parametrize(
    ("path", "link", "card"),
    [
        ("/timeline", "#live td a", "#entry"),
        ("/files", "#live th a", "#group"),
        ("/letters?writer=main", "a[hx-target='#letter']", "#letter"),
    ],
)
def test_details_take_the_focus_and_give_it_back(page: Page, address: str, path: str, link: str, card: str) -> None:
    page.goto(address + path)
    opener = page.locator(link).first
    for key in ("Escape", "Enter"):
        opener.press("Enter")
        expect(page.locator(f"{card} h2")).to_be_focused()
        if key == "Enter":
            page.focus(f"{card} [data-close]")
        page.keyboard.press(key)
        expect(page.locator(card)).to_be_empty()
        expect(opener).to_be_focused()
    opener.click()
    page.click(f"{card} [data-close]")
    expect(page.locator(card)).to_be_empty()


def test_entries_of_the_timeline_are_reached_and_shown(page: Page, address: str) -> None:
    page.goto(f"{address}/timeline")
    said = page.locator("#timeline-said")
    page.locator("[data-chart] canvas").first.wait_for()
    page.focus("[data-chart=timeline]")
    page.keyboard.press("ArrowLeft")
    expect(said).to_contain_text(re.compile("commit|claim"))
    first = said.inner_text()
    page.keyboard.press("ArrowDown")
    expect(said).not_to_have_text(first)
    expect(said).to_contain_text("compaction")
    page.keyboard.press("Enter")
    expect(page.locator("#entry h2")).to_contain_text("the table's log")
    page.keyboard.press("Escape")
    expect(page.locator("[data-chart=timeline]")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(said).to_have_text(re.compile("commit|claim"))
    for _ in range(30):
        page.keyboard.press("ArrowLeft")
    oldest = said.inner_text()
    page.keyboard.press("ArrowLeft")
    expect(said).to_have_text(oldest)
    page.keyboard.press("ArrowRight")
    expect(said).not_to_have_text(oldest)
    with page.expect_response(re.compile("cells.json.*begin=")):
        page.keyboard.press("+")
    with page.expect_response(re.compile("cells.json.*begin=")):
        page.keyboard.press("Shift+ArrowLeft")


def test_escape_closes_one_thing_at_a_time(page: Page, address: str) -> None:
    page.goto(f"{address}/files")
    page.locator("#live th a").first.click()
    expect(page.locator("#group h2")).to_be_visible()
    page.route("**/files/group*", lambda route: route.abort())
    page.locator("#live th a").first.click()
    expect(page.locator("#failed")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#failed")).to_be_hidden()
    expect(page.locator("#group h2")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#group")).to_be_empty()
