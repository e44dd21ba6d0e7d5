"""The picture of a row: what each event has, and which events are not there any more because they were compacted."""

from __future__ import annotations

import datetime as dt
import re
from html import unescape

import pyarrow as pa
import pytest

from tests.storage.support.shop import SHOP, append, fill_with_every_state, new_uri, orders
from tests.streams.ui.site import client_of, make_site
from weft import Table
from weft.storage.services.inspect.inspect import Inspection
from weft.streams.pipeline.file.quantities import moment
from weft.streams.ui.row_picture import draw_groups


@pytest.fixture(scope="module")
def table() -> Table:
    table = Table.create(new_uri(), SHOP)
    fill_with_every_state(table)
    return table


def shown(table: Table, query: str) -> str:
    answer = client_of(make_site(table.uri)).get(f"/row?{query}")
    assert answer.status_code == 200, answer.text
    return answer.text


def notes(table: Table, query: str) -> list[str]:
    """What is said about compactions, for each group that has had one."""
    found = re.findall(r'<p class="note" data-merged>(.*?)</p>', shown(table, query), re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]*>", "", text)).split()) for text in found]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("key", [590, 600, 10, 20])
def test_every_event_is_in_the_picture_and_in_the_table_with_its_values(
    table: Table, key: int, *, history: bool
) -> None:
    explanation = table.explain_row(key, history=history)
    page = shown(table, f"key={key}&history={int(history)}")
    for picture in draw_groups(explanation):
        assert [point.version for point in picture.points] == list(explanation.of_group(picture.name))
        for point in picture.points:
            version = point.version
            assert f'aria-label="{point.text}"' in page.replace("&#39;", "'")
            for name, value in version.values.items():
                assert f"{name} = {'NULL' if value is None else value}" in point.text
                assert point.is_delete or any(text.startswith(f"{name}=") for text in point.below)
            assert f"<code>{version.file}</code>" in page
            assert point.is_merged == (version.stored_in != "log")


def test_values_that_tell_events_apart_come_first_and_long_ones_are_whole_in_the_table() -> None:
    names = [f"c{number}" for number in range(6)]
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", "at": "bigint", **dict.fromkeys(names, "string")},
        "groups": {"g": {"columns": [*names, "at"], "ordering": ["at"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    with table.writer("s") as writer:
        for at, last in ((1, "first"), (2, "x" * 2_000)):
            values = {name: ["same"] for name in names[:-1]}
            writer.append(pa.table({"id": [7], "at": [at], **values, "c5": [last]}))
    (picture,) = draw_groups(table.explain_row(7))
    assert picture.points[0].below[1:] == ("c5=first", "c0=same", "c1=same", "and 3 more")
    assert picture.points[1].below[1].endswith("…")
    page = shown(table, "key=7")
    assert f"</summary>{'x' * 2_000}</details>" in page


@pytest.mark.parametrize("compacted", [False, True], ids=["log", "compacted"])
def test_events_of_one_commit_do_not_cross(*, compacted: bool) -> None:
    """They became visible at once, so none of them came late; a compaction does not even keep their order."""
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", "at": "bigint", "all": "array<string>"},
        "groups": {
            "g": {
                "columns": ["all", "at"],
                "ordering": ["at"],
                "merge": "aggregate",
                "functions": {"all": "collect_list"},
            }
        },
        "streams": {"s": {"groups": ["g"], "on_delete": "ignore"}},
    }
    table = Table.create(new_uri(), config)
    for times in ([5, 3, 9, 1], [4, 2], [7]):
        append(table, pa.table({"id": [7] * len(times), "at": times, "all": list(map(str, times))}), "s")
    if compacted:
        table.compact()
    (picture,) = draw_groups(table.explain_row(7, history=True))
    points = sorted(picture.points, key=lambda point: point.x_below)
    assert len({point.x_below for point in points}) == len(points)
    came = [(point.version.commit, next(iter(point.version.ordering.values()))) for point in points]
    assert came == sorted(came)
    by_order = sorted(points, key=lambda point: point.x_above)
    crossings = {
        (one.version.commit, other.version.commit)
        for number, one in enumerate(by_order)
        for other in by_order[number + 1 :]
        if one.x_below > other.x_below
    }
    assert all(one != other for one, other in crossings)


def test_a_page_says_when_older_events_were_compacted_and_where_they_are(table: Table) -> None:
    plans = [entry for entry in Inspection(table.uri).timeline() if entry.kind == "PLAN"]
    fold, compaction = ((moment(entry.committed_at_ms)[:19], entry.seq) for entry in plans)
    (note,) = notes(table, "key=590")
    assert note.startswith(
        f"Compacted at {compaction[0]} (entry {compaction[1]} of the table's log). "
        f"Folded at {fold[0]} (entry {fold[1]} of the table's log)."
    )
    assert "The whole history has those that the log still keeps" in note
    assert len(table.explain_row(590, history=True).of_group("order")) > len(table.explain_row(590).of_group("order"))
    assert notes(table, "key=590&history=1") == []  # all are there


def test_events_that_the_log_has_lost_are_said_to_be_gone() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(1, status="first", ts=1))
    append(table, orders(1, status="second", ts=2))
    assert notes(table, "key=1") == []
    table.compact()
    append(table, orders(2))
    table.compact()
    table.clean(dt.timedelta(0))
    assert [version.values for version in table.explain_row(1, history=True).versions] == [{"status": "second"}]
    (note,) = notes(table, "key=1&history=1")
    assert note.endswith("Older events that had lost by then are not in the log any more.")


def test_of_a_group_whose_events_all_count_the_merged_values_are_kept() -> None:
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", "n": "bigint"},
        "groups": {"g": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}}},
        "streams": {"s": {"groups": ["g"], "on_delete": "ignore"}},
    }
    table = Table.create(new_uri(), config)
    for number in (1, 2):
        append(table, pa.table({"id": [7], "n": [number]}), "s")
    table.compact()
    append(table, pa.table({"id": [7], "n": [4]}), "s")
    (note,) = notes(table, "key=7")
    assert "only the merged values are kept" in note
    (picture,) = draw_groups(table.explain_row(7))
    assert [point.below[-1] for point in picture.points] == ["n=3", "n=4"]
    assert [point.is_merged for point in picture.points] == [True, False]
