"""Verify: check everything that can be checked from storage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from weft.storage.operations.operation import Face, Finished, Operation, Request, Row
from weft.storage.services.verify.findings import VerifyReport
from weft.storage.table import Table


class VerifyRequest(Request):
    """Check a table: log, files, keys, statistics. Lists all problems, what they mean, and how to fix them.

    Nothing is changed. A table that cannot even be opened is checked, too.
    """

    deep: Annotated[bool, Face(flag="--deep/--shallow")] = True
    """Read the contents of files, or only check their sizes."""


def _rows(finished: Finished[VerifyRequest, VerifyReport]) -> Iterable[Row]:
    report = finished.result
    if report.ok:
        checked = ", ".join(f"{number} {what}" for what, number in report.checked.items())
        ok_row = {"rule": "", "place": finished.name, "problem": f"nothing is wrong: checked {checked}", "hint": ""}
        yield {"severity": "ok", **ok_row, "cut": report.cut}
    for finding in report.findings:
        yield {
            "severity": finding.severity.value,
            "rule": finding.invariant,
            "place": finding.where,
            "problem": finding.what,
            "hint": finding.hint,
            "cut": report.cut,
        }


VERIFY: Final = Operation(
    name="verify",
    request=VerifyRequest,
    describe=lambda finished: str(finished.result),
    columns="severity string, rule string, place string, problem string, hint string, cut string",
    rows=_rows,
    examples=("weft verify lake/orders_wide", "weft verify s3://lake/orders_wide --shallow --json"),
    stage="verifying",
    fails=lambda report: not report.ok,
    on_cluster=True,
    reads_only=True,
    opens=False,
    method=Table.verify,
)
