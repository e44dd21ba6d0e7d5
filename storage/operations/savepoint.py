"""Savepoint and release: keep a snapshot under a name, until it is released."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Final

from weft.storage.operations.operation import Context, Face, Finished, Operation, Request, Row
from weft.storage.operations.points import PARSED_POINT, Point
from weft.storage.services.history.savepoints import SavepointInfo
from weft.storage.table import Table

_NAME: Final = Face(argument=True, completes="savepoints")


class SavepointRequest(Request):
    """Keep a snapshot under a name, until it is released."""

    name: Annotated[str, _NAME]
    """Name of the savepoint."""
    as_of: Annotated[Point | None, PARSED_POINT, Face(type=str, completes="savepoints")] = None
    """A time (ISO 8601 with zone), a savepoint or a cut; now by default."""
    note: str = ""
    """A note about its purpose."""


class ReleaseRequest(Request):
    """Release a savepoint: cleaning may delete its files."""

    name: Annotated[str, _NAME]
    """Name of the savepoint."""


def _release(table: Table, request: ReleaseRequest, _: Context) -> str:
    table.release_savepoint(request.name)
    return request.name


def _rows(finished: Finished[SavepointRequest, SavepointInfo]) -> Iterable[Row]:
    info = finished.result
    made_at = dt.datetime.fromtimestamp(info.made_at_ms / 1000, dt.UTC)
    return [{"name": info.name, "cut": str(info.cut), "made_at": made_at, "note": info.note}]


SAVEPOINT: Final = Operation(
    name="savepoint",
    request=SavepointRequest,
    describe=lambda finished: f"savepoint {finished.result.name} keeps {finished.result.cut}",
    columns="name string, cut string, made_at timestamp, note string",
    rows=_rows,
    examples=("weft savepoint lake/orders_wide before_migration --note 'ticket 12'",),
    command=False,
    method=Table.savepoint,
)
RELEASE: Final = Operation(
    name="release",
    request=ReleaseRequest,
    run=_release,
    describe=lambda finished: f"savepoint {finished.result} is released",
    json=lambda finished: {"released": finished.result},
    columns="name string",
    rows=lambda finished: [{"name": finished.result}],
    examples=("weft savepoint lake/orders_wide before_migration --release",),
    command=False,
    method=Table.release_savepoint,
)
