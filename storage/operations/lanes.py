"""Fence and close: end the writer of a lane, or the lane itself."""

from __future__ import annotations

from typing import Annotated, Any, Final

from weft.storage.core.names import lane_name
from weft.storage.operations.operation import Context, Face, Operation, Request
from weft.storage.services.history.restore import check_open
from weft.storage.table import Table

_LANE: Final = Face(argument=True, completes="lane_names")


class FenceRequest(Request):
    """Fence the writer of a lane that seems to be dead. If it was only slow it stops, and nothing is lost."""

    lane: Annotated[str, _LANE]
    """The lane of the dead writer."""


class CloseRequest(Request):
    """Close a lane permanently, for example that of a finished backfill; its rows stay."""

    lane: Annotated[str, _LANE]
    """The lane to close."""


def _check(request: Any, _: Context) -> None:
    lane_name(request.lane)


def _prepare(table: Table, request: Any, _: Context) -> Any:
    check_open(table.writable(), table.state(), lane_name(request.lane))
    return request


FENCE: Final[Operation[FenceRequest, int]] = Operation(
    name="fence",
    request=FenceRequest,
    check=_check,
    prepare=_prepare,
    question=lambda request, table: f"Fence the writer of lane {request.lane} of {table}?",
    describe=lambda finished: (
        f"lane {finished.request.lane} is claimed with entry {finished.result}; weft clean deletes uncommitted files "
        "of its writer"
    ),
    json=lambda finished: {"lane": finished.request.lane, "entry": finished.result},
    columns="lane string, entry bigint",
    rows=lambda finished: [{"lane": finished.request.lane, "entry": finished.result}],
    examples=("weft fence lake/orders_wide orders",),
    method=Table.fence,
)
CLOSE: Final[Operation[CloseRequest, int]] = Operation(
    name="close",
    request=CloseRequest,
    check=_check,
    prepare=_prepare,
    question=lambda request, table: f"Close lane {request.lane} of {table} permanently?",
    describe=lambda finished: f"lane {finished.request.lane} is closed; its last entry is {finished.result}",
    json=lambda finished: {"lane": finished.request.lane, "last_entry": finished.result},
    columns="lane string, last_entry bigint",
    rows=lambda finished: [{"lane": finished.request.lane, "last_entry": finished.result}],
    examples=("weft close lake/orders_wide backfill-2025",),
    method=Table.close_lane,
)
