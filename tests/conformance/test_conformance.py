"""Runs every conformance case in every variation (README.md beside this file)."""

from __future__ import annotations

import base64
import copy
import datetime as dt
import decimal
import itertools
import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.strategies import input_type
from weft import Table
from weft.storage.core.modes import MODES
from weft.storage.core.types import parse_type
from weft.storage.errors import InvalidInput

FOLDER = Path(__file__).parent
MAX_INTERLEAVINGS = 24
MAX_PERMUTED = 7  # more appends have too many orders to list
SEED = 7

CASES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
Steps = list[dict[str, Any]]


def unsupported_modes(case: Mapping[str, Any]) -> set[str]:
    return {group.get("merge", "latest") for group in case["config"]["groups"].values()} - {mode.name for mode in MODES}


def as_written(steps: Steps) -> Steps:
    return steps


def compacted_after_every_append(steps: Steps) -> Steps:
    return [out for step in steps for out in ([step, {"compact": True}] if "append" in step else [step])]


def every_row_its_own_commit(steps: Steps) -> Steps:
    result: Steps = []
    for step in steps:
        if "append" in step:
            # The batch keeps its columns: a column that one row lacks is NULL, not absent.
            columns = {name for row in step["append"]["rows"] for name in row}
            for row in step["append"]["rows"]:
                whole = {name: row.get(name) for name in columns}
                result.append({"append": {**step["append"], "rows": [whole]}})
        else:
            result.append(step)
    return result


def appends_joined(steps: Steps) -> Steps:
    """Join consecutive appends of one lane with the same columns; expectations between them are dropped."""
    result: Steps = []
    pending: dict[str, Any] | None = None
    skipped: Steps = []
    for step in [*steps, {"end": True}]:
        if "append" in step and pending is not None and _same_shape(pending["append"], step["append"]):
            pending["append"]["rows"] += step["append"]["rows"]
            skipped = []
        elif "expect" in step and pending is not None:
            skipped.append(step)
        else:
            if pending is not None:
                result += [pending, *skipped]
            pending, skipped = None, []
            if "append" in step:
                pending = copy.deepcopy(step)
            elif "end" not in step:
                result.append(step)
    return result


def _same_shape(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    def columns(append: Mapping[str, Any]) -> set[str]:
        return {name for row in append["rows"] for name in row} - {"_op"}

    same_lane = all(first.get(part) == second.get(part) for part in ("table", "stream", "lane"))
    return same_lane and columns(first) == columns(second)


VARIATIONS: dict[str, Callable[[Steps], Steps]] = {
    function.__name__: function
    for function in (as_written, compacted_after_every_append, every_row_its_own_commit, appends_joined)
}


def interleavings(steps: Steps) -> Iterator[Steps]:
    """Every interleaving of the lanes, with the final expectation (earlier states may not occur in another order)."""
    by_lane: dict[str, Steps] = {}
    for step in steps:
        if "append" in step:
            by_lane.setdefault(f"{step['append'].get('table', '')}/{step['append']['lane']}", []).append(step)
    last_change = max(i for i, step in enumerate(steps) if "append" in step)
    final = [step for step in steps[last_change:] if "expect" in step]
    assert final, "an order-free case ends with an expectation"
    for order in _orders({lane: len(steps) for lane, steps in by_lane.items()}):
        queues = {lane: iter(steps) for lane, steps in by_lane.items()}
        yield [*(next(queues[lane]) for lane in order), *final]


def _orders(lengths: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Every order in which lanes of these lengths can commit, or a seeded sample."""
    slots = [lane for lane, length in lengths.items() for _ in range(length)]
    chooser = random.Random(SEED)
    if len(slots) <= MAX_PERMUTED:
        every = sorted(set(itertools.permutations(slots)))
        return every if len(every) <= MAX_INTERLEAVINGS else chooser.sample(every, MAX_INTERLEAVINGS)
    return [tuple(chooser.sample(slots, len(slots))) for _ in range(MAX_INTERLEAVINGS)]


def value_of(json_value: Any, arrow_type: pa.DataType) -> Any:
    if json_value is None:
        return None
    if pa.types.is_decimal(arrow_type):
        return decimal.Decimal(str(json_value))
    if pa.types.is_timestamp(arrow_type):
        moment = dt.datetime.fromisoformat(json_value)
        return moment.replace(tzinfo=dt.UTC) if arrow_type.tz and moment.tzinfo is None else moment
    if pa.types.is_date(arrow_type):
        return dt.date.fromisoformat(json_value)
    if pa.types.is_binary(arrow_type):
        return base64.b64decode(json_value)
    return json_value


class Run:
    """One case, step by step, on its table and on those that it refers to."""

    def __init__(self, case: Mapping[str, Any], folder: str | None = None) -> None:
        config, others = case["config"], case.get("tables", {})
        folder = folder or f"memory://conformance/{uuid.uuid4().hex}"
        self.tables = {name: Table.create(f"{folder}/{name}", given) for name, given in others.items()}
        self.table = self.tables[""] = Table.create(f"{folder}/table", config)
        self.types = _types(config)
        for reference, given in config.get("references", {}).items():
            of_other = _types(others[given["table"].removeprefix("../")])
            prefix = given.get("prefix", f"{reference}_")
            self.types |= {f"{prefix}{column}": of_other[column] for column in given["columns"]}
        # Collected columns take elements; a counted column may have any type, here the declared one.
        self.input_types = {
            table: {name: parse_type(input_type(dict(given), name)) for name in given["columns"]}
            for table, given in {**others, "": config}.items()
        }
        self.labels: dict[str, str] = {}

    def run(self, steps: Steps) -> None:
        for step in steps:
            ((action, argument),) = step.items()
            getattr(self, action)(argument)

    def append(self, append: Mapping[str, Any]) -> None:
        table = append.get("table", "")
        with self.tables[table].writer(append["stream"], lane=append["lane"]) as writer:
            writer.append(self._arrow(append["rows"], table))

    def compact(self, which: Any) -> None:
        named = {"table": self.table, **self.tables}
        for table in self.tables.values() if which is True else [named[which]]:
            table.compact()

    def label(self, name: str) -> None:
        self.labels[name] = str(self.table.snapshot().cut)

    def refused(self, refused: Mapping[str, Any]) -> None:
        append = refused["append"]
        with self.table.writer(append["stream"], lane=append["lane"]) as writer:
            before = self.table.snapshot()
            with pytest.raises(InvalidInput) as error:
                writer.append(self._arrow(append["rows"]))
            after = self.table.snapshot()
        for word in refused["mentions"]:
            assert word in str(error.value)
        assert error.value.hint
        assert str(after.cut) == str(before.cut)
        assert _bag(after.to_arrow()) == _bag(before.to_arrow())

    def expect(self, expect: Mapping[str, Any]) -> None:
        as_of, require = expect.get("as_of"), expect.get("require")
        snapshot = self.table.snapshot(self.labels[as_of] if as_of else None)
        columns = expect.get("columns") or list(self.types)
        types = {name: self.types[name] for name in columns}
        expected = self._table(expect["rows"], types)
        assert _bag(snapshot.to_arrow(expect.get("columns"), require=require)) == _bag(expected)
        assert _bag(snapshot.to_reader(expect.get("columns"), require=require).read_all()) == _bag(expected)
        for name in columns:
            single = snapshot.to_arrow([name], require=require)
            assert _bag(single) == _bag(expected.select([name])), f"SELECT {name}"

    def _arrow(self, rows: list[Mapping[str, Any]], table: str = "") -> pa.Table:
        given = {name for row in rows for name in row}
        reserved = {"_op": pa.string(), "_supplied": pa.list_(pa.string())}
        types = {
            name: arrow_type for name, arrow_type in {**self.input_types[table], **reserved}.items() if name in given
        }
        return self._table(rows, types)

    @staticmethod
    def _table(rows: list[Mapping[str, Any]], types: Mapping[str, pa.DataType]) -> pa.Table:
        return pa.table(
            {
                name: pa.array([value_of(row.get(name), arrow_type) for row in rows], arrow_type)
                for name, arrow_type in types.items()
            }
        )


def _types(config: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """The types of the columns of a configuration."""
    columns = config["columns"].items()
    return {name: parse_type(given["type"] if isinstance(given, Mapping) else given) for name, given in columns}


def _bag(table: pa.Table) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in table.to_pylist())


def _skip_unsupported(case: Mapping[str, Any]) -> None:
    if modes := unsupported_modes(case):
        pytest.skip(f"merge mode {', '.join(sorted(modes))} is not in this version")


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, variation: str) -> None:
    case = CASES[name]
    _skip_unsupported(case)
    Run(case).run(VARIATIONS[variation](case["steps"]))


@pytest.mark.parametrize("compacting", [False, True], ids=["logs", "compacted"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["order_free"]])
def test_every_interleaving(name: str, *, compacting: bool) -> None:
    case = CASES[name]
    _skip_unsupported(case)
    for steps in interleavings(case["steps"]):
        Run(case).run(compacted_after_every_append(steps) if compacting else steps)


def test_cases_exist() -> None:
    assert len(CASES) >= 26
    assert not [name for name, case in CASES.items() if unsupported_modes(case)], "this version has every mode"
