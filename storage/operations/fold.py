"""Fold: merge small log files; base files stay as they are. The command is ``weft compact --fold``."""

from __future__ import annotations

from typing import Final

from storage.operations.compact import WORK_COLUMNS, describe_work, work_row
from storage.operations.operation import Context, Operation, Request
from storage.services.fold import FoldResult
from storage.table import Table


class FoldRequest(Request):
    """Merge small log files; base files stay as they are."""


def _run(table: Table, _: FoldRequest, context: Context) -> FoldResult:
    return table.fold(execute=context.execute, progress=context.progress)


FOLD: Final = Operation(
    name="fold",
    request=FoldRequest,
    run=_run,
    describe=lambda finished: describe_work(finished.result),
    columns=WORK_COLUMNS,
    rows=lambda finished: [work_row("fold", finished.result)],
    stage="folding",
    on_cluster=True,
    command=False,
    method="fold",
)
