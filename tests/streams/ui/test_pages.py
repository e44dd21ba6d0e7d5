"""The pages over real tables: what they show is what the table says, and what is stored is never taken for markup."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import html
import io
import json
import shutil
import time
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from starlette.testclient import TestClient

from tests.awkward_names import AWKWARD_NAMES, awkward_rows, awkward_table
from tests.faulty_store import FakeClock
from tests.storage.support.shop import SHOP, append, fill_with_every_state, orders, payments
from tests.streams.letters.rig import CONFIG, Place, bad, good
from tests.streams.support.pipelines import weft
from tests.streams.ui.site import ORIGIN, client_of, make_site
from weft import Table
from weft.storage.errors import CorruptData
from weft.storage.services.inspect.file_groups import group_files
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.services.inspect.stream_report import StreamReport
from weft.streams.doctor.finding import Finding, Level
from weft.streams.ui import problems, row_query
from weft.streams.ui.checks import Examination
from weft.streams.ui.mark_picture import draw_marks
from weft.streams.ui.problems import ALERT_TEXTS, find_problems
from weft.streams.ui.site import PATHS
from weft.streams.ui.watched_table import WatchedTable

MARKUP = "<script>alert(1)</script>"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = Table.create(tmp_path_factory.mktemp("pages") / "wide", SHOP)
    fill_with_every_state(table)
    table.savepoint("before")
    append(table, orders(7, status=MARKUP, ts=100))
    return table


@pytest.fixture(scope="module")
def client(table: Table) -> TestClient:
    return client_of(make_site(table.uri))


def text_of(client: TestClient, path: str, **headers: str) -> str:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_overview_has_the_numbers_of_weft_show(client: TestClient, table: Table) -> None:
    shown = text_of(client, "/")
    overview = Inspection(table.uri).overview()
    assert f"<dd>{overview.rows_in_base:,}<" in shown
    assert overview.cut in shown
    for stream in ("orders", "payments"):
        assert f'<th scope="row">{stream}' in shown


def test_columns_of_awkward_names(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "awkward", awkward_table())
    append(table, awkward_rows(1, 2), "s")
    table.savepoint("before")
    table.compact()
    append(table, awkward_rows(2, 3), "s")
    client = client_of(make_site(table.uri))
    for path in PATHS.values():
        assert text_of(client, path)
    for number, name in enumerate(AWKWARD_NAMES):
        query = urlencode({"column": name, "operator": "=", "value": f"{number}-3", "show": name})
        assert list(csv.reader(io.StringIO(text_of(client, f"/data/rows.csv?{query}"), newline="")))[1:] == [
            ["3", f"{number}-3"]
        ]
    assert all(f"{number}-1" in text_of(client, "/row?key=1") for number in (0, 7, len(AWKWARD_NAMES) - 1))


def test_a_request_of_htmx_gets_the_living_part_alone(client: TestClient) -> None:
    part = text_of(client, "/", **{"HX-Request": "true", "HX-Target": "live"})
    assert "<html" not in part
    assert "<h1>Overview</h1>" in part


@pytest.mark.parametrize("path", [*PATHS.values(), "/row"])
def test_every_page_of_an_empty_table_says_so(tmp_path: Path, path: str) -> None:
    empty = Table.create(tmp_path / "wide", SHOP)
    shown = text_of(client_of(make_site(empty.uri)), path)
    assert "<h1>" in shown
    assert client_of(make_site(empty.uri)).get("/files/cells.json").json()["names"] == []


def test_stored_values_are_escaped_everywhere(client: TestClient) -> None:
    for path in ("/data?column=id&operator=%3D&value=7", "/row?key=7&history=1", "/changes?since=before"):
        shown = text_of(client, path)
        assert "alert(1)" in shown, path
        assert MARKUP not in shown, path


def test_parameters_are_escaped(client: TestClient) -> None:
    for path in ("/data?as_of=", "/row?key=", "/changes?since=", "/completeness?through=", "/files/group?name=", "/x"):
        answer = client.get(path + MARKUP.replace("/", "%2F"))
        assert MARKUP not in answer.text, path


def test_timeline_cells_sum_up_to_the_log(client: TestClient, table: Table) -> None:
    found = client.get("/timeline/cells.json?parts=10").json()
    assert sum(found["cells"][3]) == len(Inspection(table.uri).timeline())
    assert {lane["name"] for lane in found["lanes"]} == {"", "orders", "payments"}


def test_one_entry_has_its_details(client: TestClient, table: Table) -> None:
    (entry,) = [each for each in Inspection(table.uri).timeline() if each.lane == "orders" and each.seq == 2]
    shown = text_of(client, "/timeline/entry?lane=orders&seq=2")
    assert entry.detail in shown
    assert f"<dd>{entry.rows:,}</dd>" in shown


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/timeline/entry?lane=orders&seq=9999", 404, "entries, not 9,999"),
        ("/timeline/entry?lane=orders&seq=x", 400, "seq is"),
        ("/timeline/cells.json?parts=0", 400, "parts is"),
        ("/timeline/cells.json?begin=5&end=4", 400, "before its begin"),
        ("/files/group?name=b00-9", 404, "no file group"),
        ("/overview/rates.json?minutes=-1", 400, "minutes is"),
        ("/nothing", 404, "no page"),
        ("/data/rows.xlsx", 400, "rows cannot be downloaded as"),
        ("/letters/letter?name=q/0-0:1", 400, "belong to a pipeline"),
    ],
)
def test_bad_input_has_a_specific_error(client: TestClient, path: str, status: int, message: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert message in answer.text


def test_the_heat_map_has_every_file_group(client: TestClient, table: Table) -> None:
    found = client.get("/files/cells.json").json()
    files = Inspection(table.uri).files()
    assert found["names"] == [file.file_group for file in files]
    assert found["log"] == [file.log_bytes for file in files]
    assert found["commits"] == [file.commits for file in files]
    assert [age is None for age in found["age"]] == [file.log_files == 0 for file in files]


def test_a_file_group_lists_its_files(client: TestClient, table: Table) -> None:
    snapshot = table.snapshot()
    for report in Inspection.of(snapshot).files():
        shown = text_of(client, f"/files/group?name={report.file_group}")
        for file in group_files(snapshot, report.file_group):
            assert file.path in shown


def test_a_map_is_shown_as_a_map_in_every_view(tmp_path: Path) -> None:
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", "ts": "bigint", "m": "map<string,double>"},
        "groups": {"g": {"columns": ["ts", "m"], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(tmp_path / "maps", config)
    before = str(table.snapshot().cut)
    types = pa.schema([("id", pa.int64()), ("ts", pa.int64()), ("m", pa.map_(pa.string(), pa.float64()))])
    rows = [{"id": 1, "ts": 1, "m": [("travel", 14.36)]}, {"id": 2, "ts": 1, "m": []}]
    append(table, pa.Table.from_pylist(rows, types), "s")
    client = client_of(make_site(table.uri))
    cells = [row["m"] for row in csv.DictReader(io.StringIO(client.get("/data/rows.csv").text))]
    assert sorted(cells) == ['{"travel": 14.36}', "{}"]
    for address in ("/data", f"/changes?since={before}", "/row?key=1"):
        shown = html.unescape(text_of(client, address))
        assert '{"travel": 14.36}' in shown, address
        assert 'travel", 14.36]' not in shown, address
    assert ">{}<" in text_of(client, "/data")
    lines = weft("changes", table.uri, "--since", before, "--json").stdout.splitlines()
    assert [json.loads(line)["m"] for line in lines] == [{"travel": 14.36}, {}]


def test_a_download_has_no_formulas_for_spreadsheets_and_may_have_any_name(tmp_path: Path) -> None:
    table = Table.create(tmp_path / 'a"b\n-été-表', SHOP)
    append(table, orders(1, status="=cmd|' /C calc'!Q7"))
    client = client_of(make_site(table.uri))
    text = client.get("/data/rows.csv")
    (row,) = csv.DictReader(io.StringIO(text.text))
    assert row["status"] == "'=cmd|' /C calc'!Q7"
    stored = client.get("/data/rows.parquet")
    assert pq.read_table(io.BytesIO(stored.content))["status"].to_pylist() == ["=cmd|' /C calc'!Q7"]
    assert stored.headers["Content-Disposition"] == 'attachment; filename="a_22b_0A__C3_A9t_C3_A9__E8_A1_A8.parquet"'


def download(client: TestClient, query: str) -> tuple[list[dict[str, str]], pa.Table]:
    text = client.get(f"/data/rows.csv?{query}").text
    stored = client.get(f"/data/rows.parquet?{query}")
    assert stored.headers["Content-Disposition"].startswith("attachment")
    return list(csv.DictReader(io.StringIO(text))), pq.read_table(io.BytesIO(stored.content))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("column=status&operator=%3D&value=later", lambda row: row["status"] == "later"),
        ("column=status&operator=starts+with&value=late", lambda row: (row["status"] or "").startswith("late")),
        ("column=status&operator=contains&value=ater", lambda row: "ater" in (row["status"] or "")),
        ("column=paid&operator=is+null&value=", lambda row: row["paid"] is None),
        ("column=paid&operator=is+not+null&value=", lambda row: row["paid"] is not None),
        ("column=id&operator=in&value=1,7,%20639", lambda row: row["id"] in {1, 7, 639}),
        (
            "column=id&operator=%3E&value=100&column=id&operator=%3C%3D&value=105",
            lambda row: 100 < row["id"] <= 105,
        ),
        ("require=payment", lambda row: row["pts"] is not None),
        ("as_of=before&column=id&operator=%3D&value=7", lambda row: row["id"] == 7),
    ],
)
def test_filters_give_the_rows_that_a_look_at_each_gives(
    client: TestClient, table: Table, query: str, expected
) -> None:
    as_of = "before" if "as_of=before" in query else None
    rows = [row for row in table.snapshot(as_of).to_arrow().to_pylist() if expected(row)]
    text, stored = download(client, query)
    assert sorted(stored.to_pylist(), key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])
    assert sorted(int(row["id"]) for row in text) == sorted(row["id"] for row in rows)
    assert rows
    shown = text_of(client, f"/data?{query}&limit=1000")
    assert f"{len(rows):,} row" in shown


def test_labels_of_the_picture_of_completeness_are_not_cut() -> None:
    day_ms = 86_400_000
    ends = [0, 1, 59, 3_599, 86_399, 40 * 86_400, 400 * 86_400]
    now_ms = 20_000 * day_ms
    times = [f"{dt.datetime.fromtimestamp(now_ms / 1000 - end, dt.UTC):%Y-%m-%d %H:%M:%S}" for end in ends]
    marks = [StreamReport(f"a stream with a long name {time}", "g", "at", time, 0, 0, ()) for time in times]
    numbers = [dataclasses.replace(mark, watermark=10**18 + end) for mark, end in zip(marks, ends, strict=True)]
    for chosen in (marks, marks[:3], numbers):
        for through in ("", "2300-01-01", "1900-01-01"):
            for picture in draw_marks(chosen, through, now_ms):
                for bar in picture.bars:
                    width = 7.5 * len(bar.label)  # of a font of 12.5 pixels
                    end = bar.label_at if bar.is_left else bar.label_at + width
                    assert end <= picture.shape.width, (bar, picture.shape.name)
                    name = 8.4 * len(bar.name)  # bold, and right of x = 0, or left of the label above the bar
                    assert name <= picture.shape.names - 10 if picture.shape.names else name + width < 330, bar


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_times_are_given_as_they_are_shown_or_relative_to_now(tmp_path: Path, kind: str) -> None:
    columns = {"id": "bigint", "at": kind}
    groups = {"g": {"columns": ["at"], "ordering": ["at"]}}
    whole = {"key": ["id"], "buckets": 1, "columns": columns, "groups": groups, "streams": {"s": {"groups": ["g"]}}}
    table = Table.create(tmp_path / "wide", whole)
    zone = dt.UTC if kind == "timestamp" else None
    now = dt.datetime.now(dt.UTC).replace(microsecond=0, tzinfo=zone)
    times = [now - dt.timedelta(hours=hours) for hours in range(5)]
    type_ = pa.timestamp("us", None if zone is None else "UTC")
    append(table, pa.table({"id": range(5), "at": pa.array(times, type_)}), "s")
    client = client_of(make_site(table.uri))

    def ids(operator: str, value: str) -> list[int]:
        found = client.get("/data/rows.csv", params={"column": "at", "operator": operator, "value": value}).text
        return sorted(int(row["id"]) for row in csv.DictReader(io.StringIO(found)))

    assert ids(">", "90 min ago") == [0, 1]
    assert ids(">=", str(times[2]).removesuffix("+00:00")) == [0, 1, 2]
    assert ids("=", times[3].isoformat()) == [3]
    assert ids("=", times[3].replace(tzinfo=dt.UTC).isoformat()) == [3]
    assert ids("<", "1 d ago") == []
    assert "15 min ago" in text_of(client, "/data?column=at&operator=%3E&value=yesterday")


def test_a_row_without_a_group_says_whether_it_may_still_come(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1))
    shown = text_of(client_of(make_site(table.uri)), "/row?key=1")
    assert "Stream <strong>payments</strong> has no watermark" in shown
    with table.writer("payments", lateness=5) as writer:
        writer.append(payments(2, ts=50))
    shown = text_of(client_of(make_site(table.uri)), "/row?key=1")
    assert "is complete before <strong>45</strong> (pts): an older event should be here" in shown


def test_completeness_is_drawn_with_what_was_asked(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    for stream, rows, late in (("orders", orders(1, ts=100), 5), ("payments", payments(1, ts=60), 10)):
        with table.writer(stream, lateness=late) as writer:
            writer.append(rows)
    shown = text_of(client_of(make_site(table.uri)), "/completeness?through=94")
    for picture in shown.split("<svg")[1:]:  # for large screens, and for small ones
        assert picture.count('<rect class="late"') == 1
        assert picture.count('<rect class="done"') == 1
    assert shown.count("<svg") == 2
    assert "Not complete through 94" in shown
    assert "Stream payments may still send events of group payment: it is complete before 50" in shown
    assert shown.index("payments: payment") < shown.index("orders: order")  # the slowest first
    assert "<svg" not in text_of(client_of(make_site(Table.create(tmp_path / "none", SHOP).uri)), "/completeness")


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_completeness_takes_times_as_the_page_shows_them(tmp_path: Path, kind: str) -> None:
    table = Table.create(tmp_path / "wide", {**SHOP, "columns": {**SHOP["columns"], "ots": kind}})
    now = dt.datetime.now(dt.UTC).replace(tzinfo=dt.UTC if kind == "timestamp" else None)
    with table.writer("orders", lateness=dt.timedelta(minutes=10)) as writer:
        writer.append(pa.table({"id": [1], "status": ["new"], "ots": pa.array([now])}))
    client = client_of(make_site(table.uri))
    for through, verdict in (
        ("20 min ago", "Complete through"),
        (str(now - dt.timedelta(minutes=11))[:19], "Complete through"),
        ("1 min ago", "Not complete through"),
        (str(now)[:16], "Not complete through"),
        ("x:y", "is not an integer, a date or a time"),
    ):
        shown = client.get("/completeness", params={"through": through, "complete_groups": "order"}).text
        assert verdict in shown, through


def test_the_limit_is_kept_and_more_is_said(client: TestClient) -> None:
    shown = text_of(client, "/data?limit=3")
    assert shown.count('<tr><th scope="row">') == 3
    assert "and more" in shown


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("column=nope&operator=%3D&value=1", "there is no column"),
        ("column=id&operator=%3D&value=seven", "expected bigint"),
        ("column=id&operator=contains&value=7", "not a string"),
        ("column=id&operator=like&value=7", "unknown operator"),
        ("column=id", "incomplete"),
        ("limit=0", "limit"),
        ("limit=9999999", "limit"),
        ("as_of=nowhere", "savepoint"),
        ("as_of=2026:11", "is not a time"),
        ("require=nope", "nope"),
        ("show=nope", "nope"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(client: TestClient, query: str, message: str) -> None:
    shown = text_of(client, f"/data?{query}")
    assert 'role="alert"' in shown
    assert message in shown.partition('role="alert"')[2]


def test_a_row_is_drawn_with_its_winner(client: TestClient, table: Table) -> None:
    shown = text_of(client, "/row?key=id%3D600&history=1")
    explanation = table.explain_row(600, history=True)
    for version in explanation.versions:
        assert version.file in shown
    assert shown.count('<g class="event') == len(explanation.versions)
    assert shown.count('<g class="event wins') == sum(version.result == "wins" for version in explanation.versions)


@pytest.mark.parametrize("key", ["600", "id%3D600"])
def test_a_key_of_one_column_needs_no_name(client: TestClient, key: str) -> None:
    shown = text_of(client, f"/row?key={key}")
    assert "<h1>Row <code>id=600</code></h1>" in shown
    assert 'data-key="id" value="600"' in shown


def test_a_row_that_is_hidden_or_missing_is_said(client: TestClient) -> None:
    assert "The row is not visible" in text_of(client, "/row?key=10")
    assert "999999" in text_of(client, "/row?key=999999").partition('role="alert"')[2]
    assert "is not a bigint" in text_of(client, "/row?key=seven")


def test_changes_show_what_was_and_what_is(client: TestClient, table: Table) -> None:
    shown = text_of(client, "/changes?since=before")
    (row,) = table.changes("before", before=True).read_all().to_pylist()
    assert row["id"] == 7
    assert f"<del>{row['_before']['status']}</del>" in shown
    assert "1 update" in shown
    assert 'role="alert"' in text_of(client, "/changes?since=nowhere")


@pytest.mark.parametrize("since", ["5 min ago", "2020-01-01 00:00", "1 d ago"])
def test_changes_since_before_the_table_was_created_are_all_and_said_to_be(tmp_path: Path, since: str) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2))
    client = client_of(make_site(table.uri))
    shown = client.get("/changes", params={"since": since}).text
    assert "2 inserts" in shown
    assert "these are all changes since its creation" in shown
    assert 'role="alert"' not in shown.partition("<h1>")[2].partition("</main>")[0]
    shown = client.get("/changes", params={"since": since, "until": "1 min ago"}).text
    assert "the table did not exist yet" in shown
    shown = client.get("/changes", params={"since": "0 s ago"}).text
    assert "Nothing differs" in shown
    assert "since its creation" not in shown


def test_completeness_says_what_is_missing(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    with table.writer("orders", lateness=5) as writer:
        writer.append(orders(1, ts=100))
    client = client_of(make_site(table.uri))
    assert "<strong>95</strong>" in text_of(client, "/completeness")
    assert "Complete through 94" in text_of(client, "/completeness?through=94&complete_groups=order")
    assert "payments" in text_of(client, "/completeness?through=94").partition('role="status"')[2]


def test_what_is_wrong_comes_first(tmp_path: Path) -> None:
    place = Place.new(tmp_path / "place")
    place.write(good(1), bad(2))
    shown = text_of(client_of(make_site(place.uri, pipeline=pipeline(place))), "/")
    assert "Stream s could not store 1 message" in shown
    assert ALERT_TEXTS["WeftDeadLetters"] in shown
    assert shown.index("could not store") < shown.index("Streams</h2>")


def test_rows_without_an_ordering_value_are_shown(tmp_path: Path) -> None:
    streams = {**SHOP["streams"], "payments": {"groups": ["payment"], "on_delete": "ignore"}}
    table = Table.create(tmp_path / "wide", {**SHOP, "streams": streams})
    append(table, pa.table({"id": [1, 2, 3], "status": ["a", "b", "c"], "ots": pa.array([None, None, 1], pa.int64())}))
    append(table, payments(1, 2).append_column("_op", pa.array(["D", "U"])), "payments")
    site = make_site(table.uri)
    by_name = {row.name: row for row in site.streams(site.look())}
    assert (by_name["orders"].ignored, by_name["orders"].unordered) == (2, 2)
    assert (by_name["payments"].ignored, by_name["payments"].unordered) == (1, 0), "the delete is as it should be"
    shown = text_of(client_of(site), "/")
    assert "Stream orders left out 2 rows without an ordering value in the last 10 minutes" in shown
    assert ALERT_TEXTS["WeftUnorderedRows"] in shown
    assert '<td data-label="Changed nothing" class="n">2</td>' in shown


def test_a_writer_that_starts_again_and_again_or_is_silent_is_named(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    for number in range(5):
        append(table, orders(number))
    client = client_of(make_site(table.uri))
    assert "was started" not in text_of(client, "/")  # each of them has ended in order
    with table.writer("orders") as writer:
        writer.append(orders(9))
        site = make_site(table.uri)
        (row, _) = site.streams(site.look())
        assert (row.starts, row.recent_starts) == (6, 5)
        live = dataclasses.replace(row, writer="silent", heartbeat_at_ms=0)
        titles = [problem.title for problem in find_problems(site.look(), [live])]
    assert titles[0].startswith("Stream orders: its writer is silent for")
    assert "Stream orders: its writer was started 5 times in the last 15 minutes" in titles


def test_a_writer_is_not_called_stuck_or_stale_between_batches_that_are_far_apart(table: Table) -> None:
    site = make_site(table.uri)
    (row, _) = site.streams(site.look())

    def titles(seconds: float) -> list[str]:
        now = dataclasses.replace(row, lag=9, idle_seconds=seconds, freshness=seconds, trigger_seconds=1_200.0)
        found = find_problems(site.look(), [now, dataclasses.replace(now, lag=0)])
        return [each.title for each in found if "committed nothing" in each.title or "behind its topic" in each.title]

    assert titles(1_799.0) == []
    assert len(titles(2_101.0)) == 2


@pytest.mark.parametrize(("hours", "behind"), [(0, False), (2, True)])
def test_compaction_is_behind_if_commits_wait_for_long(tmp_path: Path, hours: int, behind: bool) -> None:  # noqa: FBT001
    clock = FakeClock(int(time.time() * 1000) - hours * 3_600_000)
    table = Table.create(tmp_path / "wide", SHOP, clock=clock)
    append(table, orders(*range(10)))
    table.compact()
    for number in range(30):
        append(table, orders(*range(10), ts=number + 2))
    shown = text_of(client_of(make_site(table.uri)), "/")
    assert ("Compaction does not keep up: 30 commits wait, the oldest for 2.0 h" in shown) == behind


def pipeline(place: Place) -> Path:
    path = place.folder / "p.yaml"
    writers = {"main": {"source": {"type": "kafka", "topic": "t"}, "stream": "s"}}
    path.write_text(yaml.safe_dump({"table": {"uri": "./table", "config": CONFIG}, "writers": writers}))
    return path


def test_letters_are_counted_listed_and_shown_with_their_bytes(tmp_path: Path) -> None:
    place = Place.new(tmp_path / "place")
    place.write(good(1), bad(2), bad(3))
    client = client_of(make_site(place.uri, pipeline=pipeline(place)))
    shown = text_of(client, "/letters?writer=main")
    assert 'class="n">2</td>' in shown
    assert "weft dead-letters replay" in shown  # read-only: it says how
    assert "<button" not in shown.partition("<main")[2].partition("</main>")[0]
    letter = text_of(client, "/letters/letter?name=q/0-0:1")
    assert b'{"id": 3'.hex(" ") in letter
    assert '<pre class="wrap" tabindex="0" aria-label="value as text">{&#34;id&#34;: 3' in letter
    refused = client.post("/letters/replay", headers={"Origin": ORIGIN})
    assert refused.status_code == 400
    assert "read-only" in refused.text
    assert client.get("/letters/letter?name=q/9-0:1").status_code == 404
    assert client.get("/letters/letter?name=x").status_code == 400


def test_a_table_that_is_gone_is_said_on_the_page(tmp_path: Path) -> None:
    site = make_site(Table.create(tmp_path / "wide", SHOP).uri)
    site.watched.table = Table(site.watched.table.env)  # it has read nothing yet
    shutil.rmtree(tmp_path / "wide")
    client = client_of(site)
    answer = client.get("/files")
    assert answer.status_code == 404
    assert "there is no table at" in answer.text.partition('role="alert"')[2]
    assert "there is no table at" in client.get("/files/cells.json").json()["error"]
    part = client.get("/files", headers={"HX-Request": "true"})  # htmx shows nothing of an answer with an error
    assert part.status_code == 200
    assert "there is no table at" in part.text


def test_an_error_names_its_guide(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the terminal does: on a page, in a part of one, in JSON, on the list of what is wrong, and in a box."""

    def damaged(_: WatchedTable, max_age: float = 0) -> None:  # noqa: ARG001
        raise CorruptData("entry 3 is missing", hint="restore it")

    site = make_site(table.uri)
    client = client_of(site)
    finding = Finding("tables", Level.PROBLEM, "entry 3 is missing", "restore it", CorruptData.guide)
    site.checks.last = Examination(findings=[finding])
    guide = f"guide: <code>{CorruptData.guide}</code>"
    for path in ("/", "/checks"):
        assert guide in text_of(client, path), path
    monkeypatch.setattr(WatchedTable, "look", damaged)
    for headers in ({}, {"HX-Request": "true"}):
        assert guide in client.get("/files", headers=headers).text
    found = client.get("/files/cells.json").json()
    assert found == {"error": "entry 3 is missing", "hint": "restore it", "guide": CorruptData.guide}


def test_an_unexpected_error_is_a_page_too(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inspection, "streams", lambda _: 1 / 0)
    answer = client_of(make_site(table.uri), raise_server_exceptions=False).get("/completeness")
    assert answer.status_code == 500
    assert "the page failed: ZeroDivisionError" in answer.text
    assert "Content-Security-Policy" in answer.headers


def test_limits_and_texts_of_problems_are_those_of_the_alerts() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"][0]["rules"]
    by_name = {rule["alert"]: rule for rule in rules}
    for name, text in ALERT_TEXTS.items():
        assert text in by_name[name]["annotations"]["description"], name
    assert f"> {problems.AMPLIFICATION:g} " in by_name["WeftCompactionBehind"]["expr"]
    assert f"[15m]) > {problems.STARTS} " in by_name["WeftCrashLoop"]["expr"]
    assert by_name["WeftCompactionBehind"]["for"] == f"{problems.BEHIND_SECONDS / 60:g}m"
    assert f"> {problems.WAITING_COMMITS}" in by_name["WeftCompactionBehind"]["expr"]
    assert f"> {problems.STUCK_SECONDS:g}" in by_name["WeftNoCommits"]["expr"]
    assert f"> {problems.STALE_SECONDS:g}" in by_name["WeftNotFresh"]["expr"]
    assert "_total[10m]" in by_name["WeftUnorderedRows"]["expr"]
    assert f"> {problems.LAGGING} " in by_name["WeftLagGrows"]["expr"]


def test_rates_of_the_chart_have_one_number_for_each_time(client: TestClient) -> None:
    found = json.loads(text_of(client, "/overview/rates.json?minutes=60"))
    assert found["streams"] == ["orders", "payments"]
    assert all(len(rates) == len(found["times"]) for rates in found["rates"])


@pytest.mark.parametrize("most", [1, 10, 700])
def test_a_download_ends_at_its_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(row_query, "MAX_DOWNLOADED", most)
    text, stored = download(client, "")
    assert len(text) == stored.num_rows == most
