"""The table of the page is deleted, is back, or another one is in its place: what is kept of it does not hide that."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, expect

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.ui.browser import opened, served
from tests.streams.ui.site import client_of, make_site
from tests.wait_until import wait_until
from weft import Table
from weft.storage.errors import NotFound
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.ui.listed_tables import TableList, Target
from weft.streams.ui.site import Site
from weft.streams.ui.watched_table import WatchedTable

WAIT_SECONDS = 120.0


def is_gone(watched: WatchedTable) -> bool:
    try:
        watched.look(0.0)
    except NotFound as error:
        return error.message.endswith("/wide any more")
    return False


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2, 3))
    return table


@pytest.mark.parametrize("kept", ["log", "base"])
def test_a_look_notices_that_the_table_is_gone_and_that_it_is_back(table: Table, tmp_path: Path, kept: str) -> None:
    if kept == "base":
        table.compact()
    watched = WatchedTable(TableLocation(table.uri), None, open_seconds=0.0)
    cut = watched.look(0.0).cut
    assert not watched.failed
    (tmp_path / "wide").rename(tmp_path / "away")
    wait_until(lambda: is_gone(watched), WAIT_SECONDS)  # a look is kept for as long as several of them take
    assert is_gone(watched)
    assert watched.failed
    (tmp_path / "away").rename(tmp_path / "wide")
    assert watched.look(0.0).cut == cut
    assert not watched.failed


def test_a_table_that_was_created_again_is_shown_without_what_was_known_of_the_first(
    table: Table, tmp_path: Path
) -> None:
    for number in range(4, 9):
        append(table, orders(number))
    location = TableLocation(table.uri)
    site = Site(CommandSettings(location), WatchedTable(location, None, open_seconds=0.0))
    client = client_of(site)
    assert client.get("/timeline/cells.json?parts=10").json()["loaded"]
    shutil.rmtree(tmp_path / "wide")
    second = Table.create(tmp_path / "wide", SHOP)
    append(second, orders(7))
    wait_until(lambda: "1 commit" in client.get("/").text, WAIT_SECONDS)
    found = client.get("/timeline/cells.json?parts=10").json()
    assert sum(found["cells"][3]) == 4  # create, a lane, a claim and a commit
    assert "1 row" in client.get("/data?limit=10").text


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("what", ["table", "folder"])
def test_a_page_says_that_its_table_was_deleted_and_goes_on_when_it_is_back(
    browser: Browser, table: Table, tmp_path: Path, what: str
) -> None:
    folder = Target(CommandSettings(TableLocation(str(tmp_path))))
    shown = TableList([folder], write=False) if what == "folder" else make_site(table.uri)
    (tmp_path / "elsewhere").mkdir()
    with served(shown) as place, opened(browser, viewport={"width": 390, "height": 844}) as page:
        address = f"{place}/tables/wide/" if what == "folder" else f"{place}/"
        page.goto(address)
        expect(page.locator("#live-text")).to_have_text("live")
        (tmp_path / "wide").rename(tmp_path / "elsewhere/away")
        trouble = page.locator("#trouble")
        expect(trouble).to_contain_text("there is no table")
        expect(trouble).to_contain_text("What this page shows is old")
        expect(page.locator("#live-text")).to_have_text("no answer")
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(trouble).to_be_in_viewport()
        page.click("nav >> text=File groups")  # what is opened now is an error, until the table is back
        expect(page.locator("main [role=alert]").last).to_contain_text("there is no table")
        (tmp_path / "elsewhere/away").rename(tmp_path / "wide")
        append(Table.open(table.uri), pa.table({"id": [9], "status": ["x"], "ots": [1]}))
        expect(page.locator("h1")).to_have_text("File groups")
        expect(page.locator("#trouble")).to_be_hidden()
        expect(page.locator("#live-text")).to_have_text("live")
