"""Fold: merge small log files; base files stay as they are. The command is ``weft compact --fold``."""

from __future__ import annotations

from typing import Final

from weft.storage.operations.compact import WORK_COLUMNS, describe_work, work_row
from weft.storage.operations.operation import Operation, Request
from weft.storage.services.fold.fold import FoldResult
from weft.storage.table import Table


class FoldRequest(Request):
    """Merge small log files; base files stay as they are."""


FOLD: Final[Operation[FoldRequest, FoldResult]] = Operation(
    name="fold",
    request=FoldRequest,
    describe=lambda finished: describe_work(finished.result),
    columns=WORK_COLUMNS,
    rows=lambda finished: [work_row("fold", finished.result)],
    stage="folding",
    on_cluster=True,
    command=False,
    method=Table.fold,
)
