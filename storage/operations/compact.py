"""Compact: merge logs into base files, all of them or only those that are due, and fold small log files."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, model_validator

from weft.storage.core.plan.due_policy import DuePolicy
from weft.storage.errors import InvalidInput
from weft.storage.operations.operation import (
    Context,
    Duration,
    Face,
    Finished,
    Operation,
    Request,
    Row,
    none_if_off,
)
from weft.storage.plural import counted
from weft.storage.services.compaction.compaction import CompactionResult
from weft.storage.services.fold.fold import FoldResult
from weft.storage.table import Table

_POLICY: Final = DuePolicy()
_DUE: Final = Face(optional=True, python="policy")
_LATER: Final = Face(optional=True, last=True, python="policy")
WORK_COLUMNS: Final = (
    "work string, file_groups bigint, rows bigint, bytes_read bigint, bytes_written bigint, seconds double, "
    "skipped map<string,string>"
)


class DueSettings(Request):
    """Settings that decide which file groups are due, also of the section ``compaction`` of a pipeline file."""

    min_commits: Annotated[int | None, _DUE, Field(ge=1)] = _POLICY.min_commits
    """A file group is due when this many of its commits are not compacted."""
    max_log_ratio: Annotated[float, _DUE, Field(gt=0)] = _POLICY.max_log_ratio
    """A file group is also due when its logs are larger than this share of its base file."""
    max_read_amplification: Annotated[float | None, _DUE, Field(ge=1)] = _POLICY.max_read_amplification
    """A file group is also due when a read fetches more than this many times the bytes of its base."""
    max_age: Annotated[Duration | None, Face(type=str, optional=True, python="policy")] = None
    """A file group is also due when a commit has waited for this long: 1 hour."""
    fold_commits: Annotated[int | None, _LATER, Field(ge=2), BeforeValidator(none_if_off)] = _POLICY.fold_commits
    """Fold when this many commits are not folded."""
    min_fold_ratio: Annotated[float, _LATER, Field(ge=0)] = _POLICY.min_fold_ratio
    """Fold only when these commits are at least this share of the folds that they replace."""

    @property
    def policy(self) -> DuePolicy:
        """The policy that decides when file groups are due."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in DueSettings.model_fields}
        if self.max_age is not None:
            settings["max_age"] = dt.timedelta(seconds=self.max_age)
        return DuePolicy(**settings)


class CompactRequest(DueSettings):
    """Merge all logs of a table into its base files. Blocks no reader or writer.

    With a pipeline file, or with settings, compacts only what is due, like one round of the service of weft run.
    Works in this process, unless --on-cluster is set or the pipeline says compaction: {on: cluster}.
    """

    fold: Annotated[bool, Face(procedure=False, python="")] = False
    """Only merge small log files; base files stay as they are."""
    everything: Annotated[bool, Face(flag="--all", procedure=False, python="")] = False
    """Compact everything, due or not."""

    @model_validator(mode="after")
    def _check_everything(self) -> CompactRequest:
        if self.everything and self.passed_settings:
            flag = next(name for name in DueSettings.model_fields if name in self.passed_settings).replace("_", "-")
            raise InvalidInput("--all compacts everything, due or not", hint=f"remove --all, or --{flag}")
        return self

    @property
    def passed_settings(self) -> set[str]:
        """Names of the settings that the caller passed."""
        return self.model_fields_set & set(DueSettings.model_fields)

    @property
    def due(self) -> DuePolicy | None:
        """The policy that decides what is due; None to compact everything that is not compacted."""
        return self.policy if self.passed_settings else None


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The results of a compaction and of a fold.

    Attributes:
        compacted: The compaction; None if only a fold was requested.
        folded: The fold; None if the request has no settings that decide when it is due.
        due_only: Whether only file groups that are due were processed.
    """

    compacted: CompactionResult | None
    folded: FoldResult | None
    due_only: bool

    @property
    def rounds(self) -> list[CompactionResult | FoldResult]:
        """The compaction and the fold that ran; with ``due_only`` without those that had nothing to do."""
        rounds = [work for work in (self.compacted, self.folded) if work is not None]
        return [work for work in rounds if work.done or work.skipped] if self.due_only else rounds


def _run(table: Table, request: CompactRequest, context: Context) -> CompactResult:
    policy, execute, progress = request.due, context.execute, context.progress
    compacted = folded = None
    if not request.fold:
        compacted = table.compact(policy=policy, execute=execute, progress=progress)
    if request.fold or policy is not None:
        folded = table.fold(policy=policy, execute=execute, progress=progress)
    return CompactResult(compacted, folded, policy is not None)


def describe_work(result: CompactionResult | FoldResult) -> str:
    """Describe a compaction or a fold for people."""
    if not result.done:
        return "nothing to do: no commit waits for compaction"
    what = "base files" if isinstance(result, CompactionResult) else "log files"
    return (
        f"{counted(len(result.done), 'file group')}, {counted(result.rows, 'row')}: "
        f"{result.bytes_read / 1e6:.1f} MB read, "
        f"{result.bytes_written / 1e6:.1f} MB of {what} written in {result.seconds:.1f} s"
    )


def work_row(name: str, result: CompactionResult | FoldResult) -> Row:
    """A compaction or a fold as a row with `WORK_COLUMNS`."""
    return {
        "work": name,
        "file_groups": len(result.done),
        "rows": result.rows,
        "bytes_read": result.bytes_read,
        "bytes_written": result.bytes_written,
        "seconds": round(result.seconds, 3),
        "skipped": [(str(group), reason) for group, reason in result.skipped.items()],
    }


def _describe(finished: Finished[CompactRequest, CompactResult]) -> str:
    rounds = finished.result.rounds
    lines = [describe_work(work) for work in rounds] or ["nothing is due by the settings; --all compacts everything"]
    reasons = Counter(reason for work in rounds for reason in work.skipped.values())
    lines.extend(f"skipped {counted(count, 'file group')}: {reason}" for reason, count in reasons.items())
    return "\n".join(lines)


def _json(finished: Finished[CompactRequest, CompactResult]) -> Mapping[str, Any]:
    result, rounds = finished.result, finished.result.rounds
    # With --fold the request was for the fold.
    compacted = result.folded if finished.request.fold else result.compacted
    folded = None if finished.request.fold else result.folded
    return {
        "file_groups": len(compacted.done) if compacted else 0,
        "file_groups_folded": len(folded.done) if folded else 0,
        "skipped": {group: reason for work in rounds for group, reason in work.skipped.items()},
        "rows": compacted.rows if compacted else 0,
        "bytes_read": sum(work.bytes_read for work in rounds),
        "bytes_written": sum(work.bytes_written for work in rounds),
        "seconds": round(sum(work.seconds for work in rounds), 3),
    }


def _rows(finished: Finished[CompactRequest, CompactResult]) -> Iterable[Row]:
    result = finished.result
    works = {"compact": result.compacted, "fold": result.folded}
    return [work_row(name, work) for name, work in works.items() if work is not None]


COMPACT: Final = Operation(
    name="compact",
    request=CompactRequest,
    run=_run,
    describe=_describe,
    json=_json,
    columns=WORK_COLUMNS,
    rows=_rows,
    examples=(
        "weft compact lake/orders_wide",
        "weft compact lake/orders_wide --fold",
        "weft compact shop/pipeline.yaml --all --concurrency 4 --memory '2 GB'",
    ),
    stage="compacting",
    section="compaction",
    on_cluster=True,
    method=Table.compact,
)
