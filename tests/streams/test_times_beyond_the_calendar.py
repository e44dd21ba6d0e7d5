"""Times that Python has no value for, in every place that shows values: none of them may end in a stack trace."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from tests.streams.support.pipelines import weft
from tests.streams.ui.site import client_of, make_site
from tests.streams.ui.test_pages import text_of
from weft import Table

LATE = "148108-07-06T14:00:27.387904"
EARLY = "-5877641-06-23"
KINDS = {
    "instant": pa.timestamp("us", tz="UTC"),
    "local": pa.timestamp("us"),
    "day": pa.date32(),
    "nested": pa.list_(pa.struct([("t", pa.timestamp("us", tz="UTC"))])),
    "named": pa.map_(pa.string(), pa.timestamp("us")),
}


@pytest.fixture(params=["latest", "latest_non_null"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """Key 1 has times beyond the calendar in an older and in a newer event, in a base file and in the log."""
    columns = {
        "id": "bigint",
        "ts": "bigint",
        "instant": "timestamp",
        "local": "timestamp_ntz",
        "day": "date",
        "nested": "array<struct<t:timestamp>>",
        "named": "map<string,timestamp_ntz>",
    }
    group = {"columns": [name for name in columns if name != "id"], "ordering": ["ts"], "merge": request.param}
    config = {"key": ["id"], "columns": columns, "groups": {"g": group}, "streams": {"s": {"groups": ["g"]}}}
    made = Table.create(tmp_path / "wide", config)
    with made.writer("s") as writer:
        writer.append(rows(1, 2))
        made.savepoint("before")
        made.compact()
        writer.append(rows(1, 3))
    return made


def rows(key: int, ts: int) -> pa.Table:
    instant = pa.array([2**62]).view(KINDS["instant"])
    local = instant.cast(KINDS["local"])
    once = pa.array([0, 1], pa.int32())
    values = {
        "instant": instant,
        "local": local,
        "day": pa.array([-(2**31)], pa.int32()).view(pa.date32()),
        "nested": pa.ListArray.from_arrays(once, pa.StructArray.from_arrays([instant], ["t"])),
        "named": pa.MapArray.from_arrays(once, ["k"], local),
    }
    return pa.table({"id": [key], "ts": [ts], **values})


def test_explanations(table: Table) -> None:
    for history in (False, True):
        explained = table.explain_row(1, history=history)
        for text in (
            explained.to_text(),
            repr(explained),
            explained._repr_html_(),
            str(explained.to_arrow().to_pylist()),
        ):
            assert LATE in text
            assert EARLY in text


def test_commands(table: Table) -> None:
    for command in (["explain", table.uri, "--key", "1"], ["changes", table.uri, "--since", "before"]):
        for form in ([], ["--json"]):
            shown = weft(*command, *form)
            assert shown.exit_code == 0, shown.output
            assert LATE in shown.stdout.replace("\n", "") or not form
    found = json.loads(weft("changes", table.uri, "--since", "before", "--json").stdout.splitlines()[0])
    assert (found["instant"], found["local"], found["day"]) == (f"{LATE}+00:00", LATE, EARLY)
    assert found["nested"] == [{"t": f"{LATE}+00:00"}]


def test_pages(table: Table) -> None:
    client = client_of(make_site(table.uri))
    for path in (
        "/data",
        "/data/rows.csv",
        "/row?key=1",
        "/row?key=1&history=1",
        f"/changes?{urlencode({'since': 'before'})}",
    ):
        shown = text_of(client, path)
        assert LATE in shown, path
        assert EARLY in shown, path
