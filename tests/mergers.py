"""Custom mergers for the tests: one that uses every feature of mergers, and some wrong ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BALANCE_STATE = {"ups": "bigint", "downs": "bigint", "best": "bigint", "final": "string"}


def balance(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
    """Present while upserts outnumber deletes; column ``*_n`` is the largest value, ``*_t`` that of the newest upsert.

    Values of an absent group are only in the state.
    """
    names = [name for name in rows.column_names if name.endswith(("_n", "_t"))]
    result: dict[str, list[object]] = {name: [] for name in [*names, *BALANCE_STATE, "_present"]}
    for events in _by_key(rows, offsets):
        ups = downs = 0
        best: int | None = None
        final: str | None = None
        for event in events:
            if event["_op"] == "merged":
                ups, downs = ups + event["ups"], downs + event["downs"]
                some, newest = event["ups"] > 0, event["final"]
                number = event["best"]
            else:
                some = event["_op"] == "upsert"
                ups, downs = ups + some, downs + (not some)
                number = next((event[name] for name in names if name.endswith("_n")), None) if some else None
                newest = next((event[name] for name in names if name.endswith("_t")), None)
            best = number if best is None else best if number is None else max(best, number)
            final = newest if some else final
        present = ups > downs
        for name in names:
            result[name].append((best if name.endswith("_n") else final) if present else None)
        for name, value in zip([*BALANCE_STATE, "_present"], [ups, downs, best, final, present], strict=True):
            result[name].append(value)
    types = {"ups": pa.int64(), "downs": pa.int64(), "best": pa.int64(), "final": pa.string(), "_present": pa.bool_()}
    return pa.table(
        {
            name: pa.array(values, types.get(name, rows.schema.field(name).type if name in names else None))
            for name, values in result.items()
        }
    )


def hiding(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
    """Newest row of each key; the group is absent if its ``*_t`` is "hide", so an upsert can hide a row."""
    (name,) = (name for name in rows.column_names if name.endswith("_t"))
    words = pc.coalesce(rows.column("word"), rows.column(name)).take(pa.array(offsets[1:] - 1))
    return pa.table({name: words, "word": words, "_present": pc.not_equal(words, "hide")})


def failing(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:  # noqa: ARG001 - the merger's signature
    raise ZeroDivisionError("by design")


def out_of_memory(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:  # noqa: ARG001
    raise MemoryError("the machine is full")


def short(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:  # noqa: ARG001
    """Forgets all keys."""
    return rows.slice(0, 0)


def wrong(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:  # noqa: ARG001
    """Returns none of the required columns."""
    return pa.table({"other": pa.nulls(len(offsets) - 1, pa.int64())})


def row_count(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
    """Not associative: counts its rows, events and earlier results alike."""
    counts = pa.array(np.diff(offsets), pa.int64())
    return pa.table({name: counts for name in rows.column_names if name.endswith("_n")})


NOT_A_FUNCTION = 7


def _by_key(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> Iterator[list[dict[str, object]]]:
    listed = rows.to_pylist()
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield listed[start:stop]
