"""How objects show themselves: in a notebook as HTML, at a prompt as text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.shop import SHOP, append, orders, payments
from weft.storage import Table, TableConfig, shown
from weft.storage.publish.delta import publish_delta
from weft.streams.doctor.finding import Finding, Level

HOSTILE = '<script>alert("x")</script>&\'"'


class _Tags(HTMLParser):
    """The tags of a document, which must be closed in order, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def read(html: str) -> _Tags:
    parser = _Tags()
    parser.feed(html)
    parser.close()
    assert not parser.open
    assert set(parser.tags) <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "pre"}
    return parser


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", {**SHOP, "comment": HOSTILE})
    append(table, orders(1, 2, status=HOSTILE))
    append(table, payments(1), "payments")
    return table


def test_everything_that_a_user_holds_shows_itself(table: Table) -> None:
    commit = append(table, orders(3))
    objects = {
        "Table": (table, [table.uri, "order", "status string", HOSTILE]),
        "Snapshot": (table.snapshot(), [str(table.snapshot().cut), "bigint"]),
        "Commit": (commit, ["orders"]),
        "TableConfig": (TableConfig.model_validate({**SHOP, "comment": HOSTILE}), [HOSTILE]),
        "Explanation": (table.explain_row(1), [HOSTILE]),
        "FoldResult": (table.fold(), ["files read"]),
        "CompactionResult": (table.compact(), ["bytes written"]),
        "SavepointInfo": (table.savepoint("kept", note=HOSTILE), [HOSTILE]),
        "Published": (publish_delta(table), ["snapshot id"]),
        "CleanResult": (table.clean(), ["oldest retained"]),
        "VerifyReport": (table.verify(), ["nothing is wrong"]),
        "RestoreResult": (table.restore("kept"), ["rolled back"]),
        "SchemaChange": (table.set_default("status", "y"), ["changed"]),
        "Finding": (Finding("store", Level.OK, HOSTILE, ""), [HOSTILE]),
    }
    for name, (held, words) in objects.items():
        page = read(held._repr_html_())
        assert name in {*page.text.split("\n"), "Explanation"}
        for word in words:
            assert word in page.text, name
        assert "object at 0x" not in repr(held), name


def test_an_object_is_short_at_the_prompt(table: Table) -> None:
    assert repr(table) == f"Table({table.uri!r})"
    assert repr(table.snapshot()).startswith("Snapshot('cut:1:")
    assert repr(table.verify()).splitlines()[2] == "nothing is wrong"
    assert repr(table.explain_row(1)).startswith("row id=1 at cut:")


def test_a_table_that_cannot_be_read_says_so_instead_of_failing(table: Table) -> None:
    for slot in (Path(table.uri.removeprefix("file://")) / "_weft").rglob("*.json"):
        slot.write_text("damaged")
    assert "what to do" in read(Table(table.env)._repr_html_()).text


_TEXTS = st.one_of(st.text("<>&\"'/ab="), st.text(), st.sampled_from(["<b>", "</td>", HOSTILE]))


@given(st.dictionaries(_TEXTS, st.one_of(_TEXTS, st.integers(), st.lists(_TEXTS), st.floats(), st.none())))
def test_any_text_is_text(values: dict[str, Any]) -> None:
    """A page of any values has only the tags of a table."""
    read(shown.facts("<b>", values))
    read(shown.rows("<i>", list(values), [list(values.values())]))


def test_long_lists_are_cut() -> None:
    assert shown.cell(range(100)) == "0, 1, 2, 3, 4, and 95 more"
    page = read(shown.rows("x", ["a"], [[number] for number in range(shown.MAX_ROWS + 7)]))
    assert "and 7 more" in page.text
