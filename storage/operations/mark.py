"""Mark: record what is committed now."""

from __future__ import annotations

import datetime as dt
from typing import Final

from weft.storage.operations.operation import Finished, Operation, Request
from weft.storage.table import Table


class MarkRequest(Request):
    """Record what is committed now, so that the snapshot at any time up to now cannot change any more.

    Writers and services do this once a minute.
    """


def _text(finished: Finished[MarkRequest, dt.datetime]) -> str:
    return finished.result.isoformat(timespec="milliseconds")


MARK: Final[Operation[MarkRequest, dt.datetime]] = Operation(
    name="mark",
    request=MarkRequest,
    describe=lambda finished: f"times up to {_text(finished)} are settled",
    json=lambda finished: {"settled": _text(finished)},
    columns="settled timestamp",
    rows=lambda finished: [{"settled": finished.result}],
    examples=("weft mark lake/orders_wide",),
    method=Table.mark,
)
