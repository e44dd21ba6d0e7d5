"""What the page does with Spark, in a real browser: queries by keyboard, cancelled ones, and a replay that succeeds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.streams.support.pipelines import CONFIG, pipeline_file
from tests.streams.ui.browser import opened, requests_later
from tests.streams.ui.test_ui_command import running
from weft import Table
from weft.storage.store.local_store import LocalStore
from weft.streams.letters.letter_files import default_folder
from weft.streams.write.dead_letter import DeadLetters

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.spark, pytest.mark.extended]

SPARK_MS = 240_000
_WATCH = """() => {
  window.spoken = document.querySelector("#answer [role=status]");
  window.statusChanges = 0;
  const options = { childList: true, characterData: true, subtree: true };
  new MutationObserver(() => (window.statusChanges += 1)).observe(spoken, options);
}"""
SLOW = "SELECT sum(a.id * b.id) FROM range(1000000) a CROSS JOIN range(1000000) b"


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a pipeline, with --write: a message that was refused, and that its schema of today accepts."""
    folder = tmp_path_factory.mktemp("replay")
    source = {"type": "kafka", "topic": "t"}
    kafka = {"bootstrap.servers": "127.0.0.1:1"}  # a replay reads the letters, and asks no broker
    schema = {"id": "bigint", "a": "string", "at": "bigint"}
    path = pipeline_file(folder, kafka=kafka, writers={"sa": {"source": source, "schema": schema}})
    table = Table.create(folder / "wide", CONFIG)
    store = LocalStore(default_folder(table.uri.removeprefix("file://"), "sa"))
    with table.writer("sa", query_id="q") as writer:
        ticket = writer.begin(("q", 0))
        with DeadLetters(store, "q", 0, "sa", "sa").open(0) as file:
            value = b'{"id": 7, "a": "now accepted", "at": 3}'
            where = {"topic": "t", "partition": 0, "offset": 4, "timestamp": 1_700_000_000_000}
            file.add("at: is missing", {**where, "value": value}, {})
        writer.commit(ticket, [])
        writer.append(pa.table({"id": [8], "a": ["stored before"], "at": [1]}))
    with running(str(path), "--write") as (_, address), opened(browser) as page:
        page.goto(address)
        yield page


def test_a_refused_message_is_replayed_and_is_then_in_the_table(page: Page) -> None:
    page.click("nav >> text=Dead letters")
    expect(page.locator("#live tbody tr").first).to_contain_text("at: is missing")
    # A click before the scripts listen is kept, and asks when they do: each question is waited for.
    with page.expect_event("dialog"):
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.click("text=Replay all that wait")
    expect(page.locator("text=Replaying")).to_have_count(0)
    with page.expect_event("dialog"):
        page.once("dialog", lambda dialog: dialog.accept())
        page.click("text=Replay all that wait")
    expect(page.locator("#live .problem")).to_contain_text("Replayed", timeout=SPARK_MS)
    expect(page.locator("#live tbody")).to_contain_text("replayed")
    page.click("nav >> text=Data")
    page.click("text=Show rows")
    expect(page.locator("table.data tbody")).to_contain_text("now accepted")


def test_a_query_is_run_cancelled_and_corrected_with_the_keyboard(page: Page) -> None:
    page.click("nav >> text=SQL")
    box = page.locator("#sql-text")
    box.fill("SELECT a FROM t WHERE id = 8")
    box.press("Control+Enter")
    expect(page.locator("#answer tbody")).to_contain_text("stored before", timeout=SPARK_MS)
    assert requests_later(page, "/sql/answers/") == [], "the answer is there"
    box.fill(SLOW)
    box.press("Control+Enter")
    expect(page.locator("#answer .state")).to_have_text("running", timeout=SPARK_MS)
    expect(page.locator("#answer [data-wait]")).to_contain_text("tasks have ended", timeout=SPARK_MS)
    page.evaluate(_WATCH)
    page.locator("#answer >> text=Cancel").focus()
    elapsed = page.locator("#answer .elapsed")
    for _ in range(3):
        expect(elapsed).not_to_have_text(elapsed.inner_text())
    assert page.evaluate("[spoken.isConnected, statusChanges]") == [True, 0], "a time that runs is not read aloud"
    expect(page.locator("#answer >> text=Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#answer .state")).to_have_text("cancelled")
    expect(page.locator("#answer [data-wait]")).to_have_count(0)
    assert requests_later(page, "/sql/answers/") == [], "the answer is there"
    box.fill("SELECT id,\n, FROM t")
    box.press("Control+Enter")
    expect(page.locator("#answer [role=alert]")).to_contain_text(
        re.compile("syntax error", re.IGNORECASE), timeout=SPARK_MS
    )
    expect(box).to_be_focused()
    page.wait_for_function(f"document.getElementById('sql-text').selectionStart === {len('SELECT id,') + 1}")
    page.locator("#sql-history button").last.click()
    expect(box).to_have_value("SELECT a FROM t WHERE id = 8")
    with page.expect_download(timeout=SPARK_MS) as download:
        box.press("Control+Enter")
        page.locator("#answer >> text=CSV").click(timeout=SPARK_MS)
    assert Path(download.value.path()).read_text() == "a\nstored before\n"
