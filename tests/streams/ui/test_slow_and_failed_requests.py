"""What a visitor sees and keeps while the scripts of the page are loaded, and when a request fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.streams.ui.browser import opened, served
from tests.streams.ui.site import make_site
from weft import Table
from weft.storage.errors import StoreUnavailable
from weft.streams.ui.watched_table import WatchedTable

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CONFIG = {"key": ["id"], "columns": {"id": "bigint", "n": "bigint"}, "groups": {"g": {"columns": ["n"]}}}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    table = Table.create(tmp_path_factory.mktemp("requests") / "wide", {**CONFIG, "streams": {"s": {"groups": ["g"]}}})
    with table.writer("s") as writer:
        writer.append(pa.table({"id": [1, 2, 3], "n": [1, 2, 3]}))
    with served(make_site(table.uri)) as place:
        yield place


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with opened(browser) as page:
        yield page


def hold(page: Page, script: str) -> Callable[[], None]:
    """Hold a script back; what is returned lets it go, also if it is only requested later."""
    held: list[Route] = []
    released = False

    def keep(route: Route) -> None:
        if released:
            route.continue_()
        else:
            held.append(route)

    def release() -> None:
        nonlocal released
        released = True
        for route in held:
            route.continue_()

    page.route(f"**/{script}", keep)
    return release


@pytest.mark.parametrize("script", ["weft.js", "htmx.min.js", "rates.js"])
def test_a_query_that_is_asked_before_the_scripts_are_there_is_asked_once_they_are(
    page: Page, address: str, script: str
) -> None:
    """Its snapshot is wrong, so that it is answered without Spark."""
    release = hold(page, script)
    page.goto(f"{address}/sql", wait_until="commit")
    page.fill("[name=as_of]", "2026:11")
    page.press("#sql-text", "Control+Enter")
    page.press("#sql-text", "Control+Enter")
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    assert page.url == f"{address}/sql"
    release()
    expect(page.locator("#answer [role=alert]")).to_contain_text("is not a time")
    assert page.url == f"{address}/sql"
    assert len(asked) == 1
    expect(page.locator("#sql-history")).to_have_text("No query was asked yet.")  # it was not begun


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_whole_error_of_a_query_is_read(
    page: Page, address: str, monkeypatch: pytest.MonkeyPatch, width: int, theme: Literal["light", "dark"]
) -> None:
    """That there is no Java, in a folder with a long name: one line, without a space where it could be broken."""
    folder = "/nowhere/" + "very-long-name-" * 30 + "end"
    monkeypatch.setenv("JAVA_HOME", folder)
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme)
    page.goto(f"{address}/sql")
    page.press("#sql-text", "Control+Enter")
    error = page.locator("#answer [role=alert] pre")
    expect(error).to_contain_text(f"JAVA_HOME is {folder}, but has no bin/java")
    for edge in ("Width", "Height"):
        shown, whole = error.evaluate(f"each => [each.client{edge}, each.scroll{edge}]")
        assert whole <= shown, f"nothing of it is cut: {edge}"


def test_what_changes_something_is_not_sent_before_its_question_can_be_asked(page: Page, address: str) -> None:
    """A form with a question stands for the replay of dead letters, which needs a pipeline."""
    release = hold(page, "weft.js")
    page.goto(f"{address}/checks", wait_until="commit")
    page.locator("main form").evaluate("form => form.dataset.confirm = 'Really?'")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    page.click("text=Run the checks")
    assert page.evaluate("document.documentElement.dataset.ready") is None
    said: list[str] = []
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    release()
    expect(page.locator("html")).to_have_attribute("data-ready", "")
    assert said == ["Really?"]
    assert asked == []


@pytest.mark.parametrize("script", ["weft.js", "htmx.min.js", "drawing.js"])
def test_a_script_that_does_not_load_is_named(page: Page, address: str, script: str) -> None:
    page.route(f"**/{script}", lambda route: route.abort())
    page.goto(f"{address}/sql")
    expect(page.locator("#failed")).to_contain_text("A part of this page did not load")
    expect(page.locator("#failed")).to_contain_text("Reload the page")


def test_a_request_that_fails_is_said_until_it_succeeds_or_is_closed(page: Page, address: str) -> None:
    failed = page.locator("#failed")
    page.goto(f"{address}/data")
    page.fill("[name=limit]", "2")
    page.route("**/data?*", lambda route: route.abort())
    page.click("text=Show rows")
    expect(failed).to_contain_text("weft ui does not answer")
    page.keyboard.press("Escape")
    expect(failed).to_be_hidden()
    page.click("text=Show rows")
    expect(failed).to_be_visible()
    page.unroute("**/data?*")
    page.click("text=Show rows")
    expect(page.locator("table.data tbody tr")).to_have_count(2)
    expect(failed).to_be_hidden()


def test_a_commit_before_the_page_follows_the_table_is_shown(page: Page, tmp_path: Path) -> None:
    """It is in the first event already, and none may come after it."""
    table = Table.create(tmp_path / "wide", {**CONFIG, "streams": {"s": {"groups": ["g"]}}})
    with served(make_site(table.uri)) as place:
        release = hold(page, "weft.js")
        page.goto(place, wait_until="commit")
        expect(page.locator(".tile").first).to_contain_text("nothing was written yet")
        with table.writer("s") as writer:
            writer.append(pa.table({"id": [1], "n": [1]}))
        release()
        expect(page.locator(".tile").first).to_contain_text("1 event in logs")


PROXY = "<html><body><h1>Bad gateway</h1></body></html>"


@pytest.mark.parametrize(
    ("status", "kind", "text", "said"),
    [
        (401, "text/plain; charset=utf-8", "a token is needed\n", "a token is needed"),
        (502, "text/html", PROXY, "The server answered 502"),
        (500, "application/json", "{", "The server answered 500"),
        (504, "text/plain", "", "The server answered 504"),
    ],
)
def test_an_answer_with_an_error_is_said(
    page: Page, address: str, status: int, kind: str, text: str, said: str
) -> None:
    page.goto(f"{address}/sql")
    page.route("**/sql/run", lambda route: route.fulfill(status=status, content_type=kind, body=text))
    page.press("#sql-text", "Control+Enter")
    expect(page.locator("#failed")).to_contain_text(said)
    page.click("#failed-close")
    expect(page.locator("#failed")).to_be_hidden()
    page.route("**/rates.json*", lambda route: route.fulfill(status=status, content_type=kind, body=text))
    page.goto(address)
    expect(page.locator("[data-chart] [role=alert]")).to_contain_text(said)


def test_an_error_of_weft_leaves_what_was_entered(page: Page, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(failure: Exception) -> Callable[[object], None]:
        def look(_: object) -> None:
            raise failure

        return look

    page.goto(f"{address}/data")
    page.fill("[name=limit]", "2")
    for failure, said in (
        (StoreUnavailable("the store is away", hint="wait for it"), "the store is away"),
        (ZeroDivisionError(), "the page failed: ZeroDivisionError"),
    ):
        monkeypatch.setattr(WatchedTable, "look", failing(failure))
        page.click("text=Show rows")
        expect(page.locator("#failed")).to_contain_text(said)
        monkeypatch.undo()
    assert page.input_value("[name=limit]") == "2"
    page.click("text=Show rows")
    expect(page.locator("table.data tbody tr")).to_have_count(2)
    expect(page.locator("#failed")).to_be_hidden()
