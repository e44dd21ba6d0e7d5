"""Refusals by merge modes, by message: of configurations, and of batches."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyarrow as pa
import pytest

from tests.mergers import BALANCE_STATE
from tests.storage.config.test_config import Change, both, check_refused, drop, put
from tests.storage.support.shop import append, new_uri
from tests.strategies import BALANCE
from weft.storage import Table, mergers
from weft.storage.core.modes.functions import FUNCTIONS
from weft.storage.errors import InvalidInput

GOOD: dict[str, Any] = {
    "key": ["id"],
    "columns": {
        "id": "bigint",
        "n": "bigint",
        "seen": "bigint",
        "nts": "bigint",
        "a": "string",
        "b": "string",
        "pts": "bigint",
        "c_n": "bigint",
        "c_t": "string",
    },
    "groups": {
        "sums": {
            "columns": ["n", "seen", "nts"],
            "ordering": ["nts"],
            "merge": "aggregate",
            "functions": {"n": "sum", "seen": "count"},
        },
        "part": {"columns": ["a", "b", "pts"], "ordering": ["pts"], "merge": "latest_non_null"},
        "own": {"columns": ["c_n", "c_t"], "merge": BALANCE, "state": BALANCE_STATE},
    },
    "streams": {"hits": {"groups": ["sums"]}, "parts": {"groups": ["part"]}, "owns": {"groups": ["own"]}},
}


def function(name: Any, column_type: str = "bigint", *, ignoring: bool = True) -> Change:
    """A configuration with a column ``n`` of a type and a function."""
    change = both(put("groups", "sums", "functions", "n", to=name), put("columns", "n", to=column_type))
    return both(change, put("streams", "hits", "on_delete", to="ignore")) if ignoring else change


REFUSED: dict[str, tuple[Change, str, str]] = {
    "an unknown function": (
        function("median"),
        "groups.sums.functions.n: there is no function 'median'",
        "sum, count, min",
    ),
    **{
        f"{name} fed by a stream that deletes": (
            function(name, column_type, ignoring=False),
            f"groups.sums.functions.n: {name} cannot take back what stream 'hits' deletes",
            "streams.hits.on_delete: ignore",
        )
        for name, column_type in {
            **dict.fromkeys(["min", "max", "first", "last"], "bigint"),
            **dict.fromkeys(["bool_and", "bool_or"], "boolean"),
            **dict.fromkeys(["collect_set", "collect_list"], "array<int>"),
            "listagg": "string",
        }.items()
    },
    "listagg with options fed by a stream that deletes": (
        function({"listagg": {"delimiter": ";"}}, "string", ignoring=False),
        "groups.sums.functions.n: listagg cannot take back what stream 'hits' deletes",
        "ignore",
    ),
    **{
        f"a sum of {column_type}": (
            function("sum", column_type),
            f"groups.sums.functions.n: sum of {column_type} depends on the order of events",
            "decimal",
        )
        for column_type in ("float", "double")
    },
    **{
        f"{name} of {column_type}": (
            function(name, column_type),
            f"groups.sums.functions.n: {name} of {column_type} is not possible",
            hint,
        )
        for name, column_type, hint in [
            ("sum", "string", "integers and decimals"),
            ("sum", "boolean", "integers and decimals"),
            ("count", "string", "the result is an integer"),
            ("count", "double", "the result is an integer"),
            ("bool_and", "int", "boolean"),
            ("bool_or", "string", "boolean"),
            ("min", "array<int>", "cannot be ordered"),
            ("max", "struct<a:int>", "cannot be ordered"),
            ("collect_list", "int", "array<element>"),
            ("collect_set", "string", "array<element>"),
            ("collect_set", "array<array<int>>", "cannot be ordered"),
            ("listagg", "int", "string"),
            ("listagg", "array<string>", "string"),
        ]
    },
    "a column without a function": (
        drop("groups", "sums", "functions", "n"),
        "groups.sums.functions: column 'n' has no function",
        "sum",
    ),
    "a function of an ordering column": (
        put("groups", "sums", "functions", "nts", to="max"),
        "groups.sums.functions.nts: is not an aggregated column",
        "outside its ordering",
    ),
    "a function of another group's column": (
        put("groups", "sums", "functions", "a", to="max"),
        "groups.sums.functions.a: is not an aggregated column",
        "",
    ),
    "options of a function without any": (
        function({"sum": {}}),
        "groups.sums.functions.n: only listagg has options",
        "delimiter",
    ),
    "an unknown option": (function({"listagg": {"limit": 3}}, "string"), "limit: is not a known field", ""),
    "functions in another mode": (
        put("groups", "part", "functions", to={"a": "max"}),
        "groups.part.functions: the group's mode is 'latest_non_null'",
        "merge: aggregate",
    ),
    "state outside a custom merger": (
        put("groups", "part", "state", to={"x": "bigint"}),
        "groups.part.state.x: is not a valid state column",
        "only custom mergers keep state",
    ),
    "a state column named like a column": (
        put("groups", "own", "state", "a", to="bigint"),
        "groups.own.state.a: is not a valid state column",
        "",
    ),
    "a state column of an unknown type": (
        put("groups", "own", "state", "best", to="money"),
        "'money' is not a column type",
        "",
    ),
    "a merger outside the allow-list": (
        put("groups", "own", "merge", to="tests.elsewhere:merge"),
        "merger 'tests.elsewhere:merge': module 'tests.elsewhere' is not on this process's allow-list",
        'weft.storage.mergers.allow("tests.elsewhere")',
    ),
    "a merger that is not there": (
        put("groups", "own", "merge", to="tests.mergers:nobody"),
        "merger 'tests.mergers:nobody': module 'tests.mergers' has no attribute 'nobody'",
        "module:function",
    ),
    "a merger that is not a function": (
        put("groups", "own", "merge", to="tests.mergers:NOT_A_FUNCTION"),
        "merger 'tests.mergers:NOT_A_FUNCTION' is not callable",
        "",
    ),
    "a mode that is no mode": (
        put("groups", "own", "merge", to="custom"),
        "groups.own.merge: 'custom' is not a merge mode",
        "module:function",
    ),
    "row and group deletes on one aggregate": (
        put("streams", "more", to={"groups": ["sums"], "on_delete": "row"}),
        "streams.more.on_delete: 'row', but stream 'hits', which also writes group 'sums', has 'group'",
        "must not mix",
    ),
}


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mergers.VARIABLE, "tests.mergers")


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_modes_and_functions_are_refused(name: str) -> None:
    change, message, hint = REFUSED[name]
    config = copy.deepcopy(GOOD)
    change(config)
    check_refused(config, message, hint)


def test_valid_modes_and_functions_are_accepted() -> None:
    Table.create(new_uri(), GOOD)
    wide = copy.deepcopy(GOOD)
    wide["columns"] |= {f"x{i}": "int" for i in range(252)}
    wide["groups"]["part"]["columns"] += [f"x{i}" for i in range(252)]
    Table.create(new_uri(), wide)


@pytest.mark.parametrize("name", [name for name, one in FUNCTIONS.items() if one.retractable])
def test_retractable_functions_accept_streams_with_deletes(name: str) -> None:
    config = copy.deepcopy(GOOD)
    function(name, ignoring=False)(config)
    Table.create(new_uri(), config)


def ints(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


def texts(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def lists(*values: list[str] | None) -> pa.Array:
    return pa.array(values, pa.list_(pa.string()))


ID = {"id": ints(1)}
BAD: dict[str, tuple[str, dict[str, pa.Array], tuple[str, ...]]] = {
    "_supplied names an unknown column": (
        "parts",
        {**ID, "a": texts("x"), "pts": ints(1), "_supplied": lists(["nope"])},
        ("'_supplied'", "'nope'", "a, b, pts"),
    ),
    "_supplied names a key": (
        "parts",
        {**ID, "a": texts("x"), "pts": ints(1), "_supplied": lists(["id"])},
        ("'_supplied'", "'id'"),
    ),
    "_supplied names a column of another group": (
        "parts",
        {**ID, "a": texts("x"), "pts": ints(1), "_supplied": lists(["n"])},
        ("'_supplied'", "'n'"),
    ),
    "_supplied is no list": (
        "parts",
        {**ID, "a": texts("x"), "pts": ints(1), "_supplied": texts("a")},
        ("'_supplied'", "string"),
    ),
    "_supplied where nothing is partial": (
        "hits",
        {**ID, "n": ints(1), "seen": ints(1), "nts": ints(1), "_supplied": lists(["n"])},
        ("no column '_supplied'",),
    ),
    "part of an aggregate group": (
        "hits",
        {**ID, "n": ints(1), "nts": ints(1)},
        ("group 'sums' is incomplete", "'seen'"),
    ),
    "part of a custom group": ("owns", {**ID, "c_n": ints(1)}, ("group 'own' is incomplete", "'c_t'")),
    "ordering columns omitted in a partial group": (
        "parts",
        {**ID, "a": texts("x")},
        ("group 'part' is incomplete", "'pts'"),
    ),
    "a retraction without an ordering value": (
        "hits",
        {**ID, "n": ints(1), "seen": ints(1), "nts": ints(None), "_op": texts("-U")},
        ("'nts'", "NULL in every ordering column"),
    ),
    "a delete without an ordering value": (
        "parts",
        {**ID, "a": texts(None), "pts": ints(None), "_op": texts("D")},
        ("'pts'", "NULL in every ordering column"),
    ),
    "a list where elements are counted on": (
        "hits",
        {**ID, "n": lists(["x"]), "seen": ints(1), "nts": ints(1)},
        ("'n'", "bigint"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_changes_nothing(name: str) -> None:
    stream, columns, words = BAD[name]
    table = Table.create(new_uri(), GOOD)
    before = str(table.snapshot().cut)
    with table.writer(stream) as writer:
        before = str(table.snapshot().cut)
        with pytest.raises(InvalidInput) as error:
            writer.append(pa.table(columns))
    assert all(word in str(error.value) for word in words), str(error.value)
    assert error.value.hint
    assert str(table.snapshot().cut) == before
    assert table.snapshot().to_arrow().num_rows == 0


MISBEHAVING = {
    "failing": ("failed for key 1: ZeroDivisionError: by design", "nothing was changed"),
    "short": ("did not return one row for each of 1 keys", ""),
    "wrong": ("returned wrong columns", "return the columns c_n, c_t"),
}


@pytest.mark.parametrize("name", MISBEHAVING)
def test_a_merger_that_misbehaves_is_named_and_changes_nothing(name: str) -> None:
    config = copy.deepcopy(GOOD)
    put("groups", "own", "merge", to=f"tests.mergers:{name}")(config)
    table = Table.create(new_uri(), config)
    append(table, pa.table({"id": [1], "c_n": [1], "c_t": ["x"]}), "owns")
    before = str(table.snapshot().cut)
    for work in (table.compact, table.snapshot().to_arrow):
        with pytest.raises(InvalidInput) as error:
            work()
        message, hint = MISBEHAVING[name]
        assert f"merger 'tests.mergers:{name}' of group 'own'" in error.value.message
        assert message in error.value.message
        assert hint in error.value.hint
    after = table.snapshot()
    assert after.cut.lanes == table.snapshot(before).cut.lanes
    assert all(one.slice is None for one in after.slices)


def test_a_merger_that_lacks_memory_is_no_wrong_merger() -> None:
    """A wrong merger is not tried again; a full machine is."""
    config = copy.deepcopy(GOOD)
    put("groups", "own", "merge", to="tests.mergers:out_of_memory")(config)
    table = Table.create(new_uri(), config)
    append(table, pa.table({"id": [1], "c_n": [1], "c_t": ["x"]}), "owns")
    with pytest.raises(MemoryError, match="the machine is full"):
        table.compact()


def test_opening_a_table_imports_no_merger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merger's module is imported only if this process allows it; other parts of the table can be read."""
    uri = new_uri()
    table = Table.create(uri, GOOD)
    append(table, pa.table({"id": [1], "c_n": [1], "c_t": ["x"]}), "owns")
    monkeypatch.delenv(mergers.VARIABLE)
    monkeypatch.setattr(mergers, "_allowed", set())
    opened = Table.open(uri)
    with pytest.raises(InvalidInput, match="allow-list") as error:
        opened.snapshot().to_arrow()
    assert mergers.VARIABLE in error.value.hint
    with pytest.raises(InvalidInput, match="allow-list"):
        opened.compact()


def test_a_merger_can_be_allowed_after_its_table_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = new_uri()
    table = Table.create(uri, GOOD)
    append(table, pa.table({"id": [1], "c_n": [1], "c_t": ["x"]}), "owns")
    monkeypatch.delenv(mergers.VARIABLE)
    monkeypatch.setattr(mergers, "_allowed", set())
    opened = Table.open(uri)
    with pytest.raises(InvalidInput, match="allow-list"):
        opened.snapshot().to_arrow()
    sent = pickle.dumps(opened.env)
    mergers.allow("tests.mergers")
    assert opened.snapshot().to_arrow().num_rows == 1
    assert "tests.mergers" not in pickle.loads(sent).mergers, "a task has the list from the time when it was planned"
