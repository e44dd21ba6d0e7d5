"""Several tables: their names, the list of them, those that appear and vanish, and what many of them cost."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.letters.rig import Place, bad, good
from tests.streams.ui.site import ACCESS, ORIGIN
from tests.streams.ui.test_pages import pipeline
from weft import Table
from weft.storage.errors import NotFound, StoreUnavailable
from weft.streams.catalog.lake import Lake
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.pipeline.file.pipeline import load_settings
from weft.streams.ui import listed_tables, table_summaries, watched_table
from weft.streams.ui.application import build_list_application
from weft.streams.ui.listed_tables import TableList, Target
from weft.streams.ui.problems import Severity
from weft.streams.ui.spark_turn import SparkTurn
from weft.streams.ui.table_summaries import TableSummaries, worst_first
from weft.streams.ui.watched_table import WatchedTable

WITHIN = 120.0

Show = Callable[..., tuple[TableList, TestClient]]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder with two tables, one in a namespace."""
    folder = tmp_path / "lake"
    for name in ("plain", "shop/wide"):
        append(Table.create(folder / name, SHOP), orders(1, 2, 3))
    return folder


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_summaries, "EVERY_SECONDS", 0.1)
    monkeypatch.setattr(table_summaries, "PAUSE", 0.0)
    monkeypatch.setattr(table_summaries, "_STEP_SECONDS", 0.02)
    monkeypatch.setattr(listed_tables, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(watched_table, "LOOK_SECONDS", 0.0)


@pytest.fixture
def shown() -> Iterator[Show]:
    """Lists tables, and asks for their pages; what runs in the background ends with the test."""
    made: list[TableList] = []

    def show(*targets: Path | str | Target, write: bool = False) -> tuple[TableList, TestClient]:
        tables = listed(*targets, write=write)
        made.append(tables)
        return tables, TestClient(build_list_application(tables, ACCESS), base_url=ORIGIN, follow_redirects=False)

    yield show
    for each in made:
        each.close()


def listed(*targets: Path | str | Target, write: bool = False) -> TableList:
    given = [
        each if isinstance(each, Target) else Target(CommandSettings(TableLocation(str(each)))) for each in targets
    ]
    return TableList(given, write=write)


def lines(client: TestClient, query: str = "") -> dict[str, str]:
    """The lines of the start page by the name of their table, as text."""
    text = client.get(f"/{query}").text
    found = re.findall(r'<a href="/tables/[^"]*/">(.*?)</a>(.*?)</tr>', text, re.DOTALL)
    return {name: re.sub(r"<[^>]*>|\s+", " ", rest) for name, rest in found}


def eventually(client: TestClient, says: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """The lines once they say something."""
    end = time.monotonic() + WITHIN
    while not says(found := lines(client)):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_each_table_has_a_line_and_pages_of_its_own(lake: Path, shown: Show) -> None:
    _, client = shown(lake)
    assert set(lines(client)) == {"plain", "shop/wide"}
    found = eventually(client, lambda found: all("3 events in logs" in each for each in found.values()))
    assert all("nothing" in each and "ago" in each for each in found.values())
    page = client.get("/tables/shop/wide/").text
    assert 'data-root="/tables/shop/wide"' in page
    addresses = set(re.findall(r'(?:href|action|hx-get|hx-post|data-from)="(/[^"]*)"', page))
    assert {each for each in addresses if not each.startswith(("/assets/", "/tables/shop/wide/"))} == {"/"}
    for path in ("timeline", "files", "data", "row?key=1", "changes", "sql", "completeness", "letters", "checks"):
        answer = client.get(f"/tables/shop/wide/{path}")
        assert answer.status_code == 200, path
        links = re.findall(r'(?:href|action|hx-get|hx-post|data-from)="(/[^"]*)"', answer.text)
        assert {each for each in links if not each.startswith(("/assets/", "/tables/shop/wide/"))} == {"/"}, path
    assert client.get("/tables/shop/wide/files/cells.json").json()["names"]
    assert client.get("/tables/shop/wide?token=x").headers["Location"] == "/tables/shop/wide/?token=x"
    started = client.post("/tables/plain/checks/start", headers={"Origin": ORIGIN})
    assert started.headers["Location"] == "/tables/plain/checks"


def test_what_is_wrong_comes_first(tmp_path: Path, shown: Show) -> None:
    place = Place.new(tmp_path / "place")
    place.write(good(1), bad(2))
    file = pipeline(place)
    append(Table.create(tmp_path / "a", SHOP), orders(1))
    broken = Table.create(tmp_path / "z", SHOP)
    append(broken, orders(1))
    _, client = shown(tmp_path / "a", Target(load_settings(str(file), "spark", "compaction"), str(file)), broken.uri)
    eventually(client, lambda found: "could not store 1 message" in found["table"])
    shutil.rmtree(tmp_path / "z")
    summaries = eventually(
        client, lambda summaries: "there is no table at" in summaries["z"] and "nothing" in summaries["a"]
    )
    assert list(summaries) == ["z", "table", "a"]
    assert "check the path" in summaries["z"]
    assert "2 with something to look at" in client.get("/").text


def test_tables_appear_and_vanish(lake: Path, shown: Show) -> None:
    tables, client = shown(lake)
    eventually(client, lambda found: "ago" in found["plain"])
    append(Table.create(lake / "new", SHOP), orders(1))
    assert client.get("/tables/new/").status_code == 200  # before a round has listed it
    eventually(client, lambda found: "1 event in logs" in found.get("new", ""))
    followed = tables.site("plain")
    shutil.rmtree(lake / "plain")
    eventually(client, lambda found: "plain" not in found)
    answer = client.get("/tables/plain/")
    assert answer.status_code == 404
    assert "there is no table plain here" in answer.text
    assert followed.ending.wait(WITHIN)  # pages that follow it end
    append(Table.create(lake / "plain", SHOP), orders(*range(7)))
    eventually(client, lambda found: "7 events in logs" in found.get("plain", ""))
    assert "7 events" in client.get("/tables/plain/").text
    for name in ("plain", "new", "shop"):
        shutil.rmtree(lake / name)
    eventually(client, lambda found: not found)
    assert "There is no table any more" in client.get("/").text


def test_a_table_that_is_replaced_is_opened_again(lake: Path, shown: Show) -> None:
    _, client = shown(lake)
    assert "3 events" in client.get("/tables/plain/").text
    shutil.rmtree(lake / "plain")
    append(Table.create(lake / "plain", SHOP), orders(*range(9)))
    eventually(client, lambda found: "9 events in logs" in found["plain"])
    assert "9 events" in client.get("/tables/plain/").text


def test_folders_that_cannot_be_listed_are_said_and_what_was_known_stays(
    lake: Path, shown: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = shown(lake)
    eventually(client, lambda found: "ago" in found["plain"])

    def refuse(*_: object) -> None:
        raise StoreUnavailable("the store is away", hint="wait")

    monkeypatch.setattr(Lake, "all_tables", refuse)
    end = time.monotonic() + WITHIN
    while "the store is away" not in client.get("/").text:
        assert time.monotonic() < end
    assert set(lines(client)) == {"plain", "shop/wide"}


def test_names_are_unique_and_stay(tmp_path: Path, lake: Path) -> None:
    Table.create(tmp_path / "other/plain", SHOP)
    Table.create(tmp_path / "more/lake/plain", SHOP)
    Table.create(tmp_path / "more/odd name?", SHOP)
    both = listed(lake, tmp_path / "other/plain", tmp_path / "more/lake", tmp_path / "more/odd name?")
    assert list(both.by_name) == ["lake/plain", "lake/plain-2", "lake/shop/wide", "odd_name_", "plain"]
    Table.create(lake / "a", SHOP)
    both.list_again()
    assert list(both.by_name)[1:3] == ["lake/plain", "lake/plain-2"]
    assert listed(lake, lake / "plain").by_name.keys() == {"plain", "lake/shop/wide", "lake/a"}  # one table, one line
    both.close()


def test_a_name_is_part_of_its_address(tmp_path: Path, shown: Show) -> None:
    for name in ("odd name?", "data", "ü"):
        append(Table.create(tmp_path / "lake" / name, SHOP), orders(1))
    _, client = shown(tmp_path / "lake")
    text = client.get("/").text
    for address in re.findall(r'href="(/tables/[^"]*)"', text):
        page = client.get(address)
        assert page.status_code == 200, address
        (live,) = re.findall(r'id="live" hx-get="([^"]*)"', page.text)
        assert live == address
        assert client.get(live).status_code == 200
    assert len(re.findall("/tables/", text)) == 3


def test_a_filter_shows_some(lake: Path, shown: Show) -> None:
    _, client = shown(lake)
    assert set(lines(client, "?name=WID")) == {"shop/wide"}
    assert "No table has this in its name" in client.get("/?name=none").text
    assert "<script>" not in client.get("/?name=<script>").text.partition("<main")[2]


def test_a_damaged_table_does_not_hide_the_others(lake: Path, shown: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    look = WatchedTable.look

    def failing(watched: WatchedTable, max_age: float = 0.0) -> watched_table.Look:
        if watched.name == "wide":
            raise ZeroDivisionError("oh")
        return look(watched, max_age)

    monkeypatch.setattr(WatchedTable, "look", failing)
    _, client = shown(lake)
    found = eventually(client, lambda found: "ago" in found["plain"] and "oh" in found["shop/wide"])
    assert list(found) == ["shop/wide", "plain"]


def test_only_some_tables_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        append(Table.create(tmp_path / f"lake/t{number}", SHOP), orders(number))
    monkeypatch.setattr(listed_tables, "MAX_OPEN", 3)
    monkeypatch.setattr(table_summaries, "MAX_KEPT", 3)  # two threads want the last place
    monkeypatch.setattr(table_summaries, "PARALLEL", 2)
    monkeypatch.setattr(table_summaries, "REOPEN_SECONDS", 10 * WITHIN)
    reading, most, lock = [0], [0], threading.Lock()
    first_two = threading.Barrier(2)
    opened: list[str] = []
    begin, summary = WatchedTable.__init__, TableSummaries._summary

    def count(watched: WatchedTable, *given: object) -> None:
        opened.append(given[0].name)  # type: ignore[attr-defined]
        begin(watched, *given)  # type: ignore[arg-type]

    def read(summaries: TableSummaries, name: str, given: Target) -> table_summaries.Summary:
        with lock:
            reading[0] += 1
            most[0] = max(most[0], reading[0])
        if summaries.rounds == 0 and name in {"t0", "t1"}:
            first_two.wait(WITHIN)
        try:
            return summary(summaries, name, given)
        finally:
            with lock:
                reading[0] -= 1

    monkeypatch.setattr(WatchedTable, "__init__", count)
    monkeypatch.setattr(TableSummaries, "_summary", read)
    tables = listed(tmp_path / "lake")
    summaries = TableSummaries(tables)
    end = time.monotonic() + WITHIN
    while summaries.rounds < 4:
        assert time.monotonic() < end
        summaries.ask()
        time.sleep(0.01)
    assert len(summaries.ask()) == 9
    assert max(map(opened.count, opened)) > 1  # six of them in each round
    assert sum(opened.count(name) == 1 for name in set(opened)) == 3
    assert most[0] == 2
    sites = [tables.site(f"t{number}") for number in range(5)]
    assert list(tables.open_sites()) == ["t2", "t3", "t4"]
    assert [site.ending.is_set() for site in sites] == [True, True, False, False, False]
    tables.close()


def test_nothing_is_read_while_nobody_looks(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_summaries, "IDLE_SECONDS", 0.2)
    tables = listed(lake)
    summaries = TableSummaries(tables)
    assert not summaries.rounds
    end = time.monotonic() + WITHIN
    while not summaries.rounds:  # a thread that starts late finds that nobody has looked for long
        assert time.monotonic() < end
        summaries.ask()
        time.sleep(0.02)
    while any(thread.name == "weft-ui-tables" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.02)
    before = summaries.rounds
    time.sleep(0.3)
    assert summaries.rounds == before
    while summaries.rounds == before:
        assert time.monotonic() < end
        summaries.ask()
        time.sleep(0.02)
    tables.close()


def test_a_search_for_tables_ends_at_its_limits(tmp_path: Path) -> None:
    for name in ("a", "b", "n/c", "n/m/d", "n/m/o/e", "n/m/o/p/f"):
        Table.create(tmp_path / "lake" / name, SHOP)
    lake = Lake(str(tmp_path / "lake"), {})
    assert list(lake.all_tables(3, 100)) == [("a",), ("b",), ("n", "c"), ("n", "m", "d"), ("n", "m", "o", "e")]
    assert list(lake.all_tables(0, 100)) == [("a",), ("b",)]
    assert list(lake.all_tables(3, 2)) == [("a",), ("b",)]
    assert list(Lake(str(tmp_path / "none"), {}).all_tables(3, 2)) == []


def test_one_at_a_time_has_spark_and_one_that_waits_may_give_up() -> None:
    turn = SparkTurn()
    wanted = threading.Event()
    wanted.set()
    got: list[bool] = []

    def wait() -> None:
        with turn.take(wanted.is_set) as mine:
            got.append(mine)

    with turn.take(lambda: True) as mine:
        assert mine
        assert not turn.is_awaited
        waiting = [threading.Thread(target=wait) for _ in range(2)]
        waiting[0].start()
        while not turn.is_awaited:
            time.sleep(0.01)
        wanted.clear()
        waiting[0].join(WITHIN)
        assert got == [False]
        wanted.set()
        waiting[1].start()
        while not turn.is_awaited:
            time.sleep(0.01)
    waiting[1].join(WITHIN)
    assert got == [False, True]
    assert not turn.is_awaited


def test_a_table_that_was_not_read_comes_after_what_is_wrong() -> None:
    wrong = table_summaries.Summary(0, [table_summaries.Problem(Severity.NOTE, "x", "")])
    right = table_summaries.Summary(0, [])
    found = worst_first(["a", "b", "c"], {"c": wrong, "a": right})
    assert [name for name, _ in found] == ["c", "a", "b"]


def test_a_place_without_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no table in"):
        listed(tmp_path)
