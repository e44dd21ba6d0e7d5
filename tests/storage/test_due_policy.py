"""Which file groups are due for compaction or a fold, and why. Without a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from storage.core.log.file_refs import Blocks, FileGroup, FileRef, LogFile, LogIndex, LogRanges, SliceFile
from storage.core.names import TABLE_LANE, LaneName, Path
from storage.core.plan.due_policy import COLD_FACTOR, Due, DuePolicy, Work, plan_due, read_amplification
from storage.core.plan.slices import FileSlice, LiveFile

A, B = LaneName("a"), LaneName("b")
EMPTY = LogIndex(
    partitions=[],
    ranges=LogRanges(partition=[], bucket=[], block=[], start=[], rows=[], deletes=[]),
    blocks=Blocks(offset=[], length=[], crc32=[], rows=[], key_min=[], key_max=[], ordering_min={}, ordering_max={}),
)


def log_file(lane: LaneName, seq: int) -> LiveFile:
    file = FileRef(path=Path("log/x"), size=1, crc32=0, tail_size=0, tail_crc32=0, rows=1)
    log = LogFile(file=file, form="event", groups=[1], columns=["k"], deletes=0, bits=1, index=EMPTY)
    return LiveFile(lane, seq, seq, log, EMPTY)


def group(bucket: int, positions: list[int], *, base: int = 0, log: int = 1) -> FileSlice:
    ref = FileRef(path=Path("base/x"), size=base, crc32=0, tail_size=0, tail_crc32=0, rows=1)
    made = SliceFile(
        partition="",
        bits=1,
        bucket=bucket,
        rev=1,
        parent={},
        cut={},
        groups=[1],
        base=ref,
        shadow=None,
        ordering_max={},
        overflows={},
    )
    ints = np.array(positions, np.int64)
    return FileSlice(
        FileGroup("", 1, bucket),
        made if base else None,
        ints,
        ints * 0,
        ints * 0,
        ints * 0 + 1,
        0,
        log if positions else 0,
    )


def due(slices: list[FileSlice], files: list[LiveFile], *, head: int = 10, **policy: float) -> dict[int, Due]:
    given = {"min_commits": 3, "max_log_ratio": 0.5, **policy}
    whole = DuePolicy(min_commits=int(given["min_commits"]), max_log_ratio=given["max_log_ratio"])
    planned = plan_due(whole, slices, files, {A: head, B: head})
    return {found.bucket: why for found, why in planned.items()}


def test_many_commits_make_a_file_group_due() -> None:
    files = [log_file(A, 8), log_file(A, 9), log_file(B, 9)]
    found = due([group(0, [0, 1, 2], base=1000), group(1, [0, 1], base=1000)], files)
    assert found == {0: Due(3, 1, 1000, "commits")}


def test_files_of_one_commit_count_once() -> None:
    files = [log_file(A, 9), log_file(A, 9), log_file(A, 9)]
    assert due([group(0, [0, 1, 2], base=1000)], files) == {}


@pytest.mark.parametrize(("log", "expected"), [(500, None), (501, "bytes")])
def test_large_logs_make_a_file_group_due(log: int, expected: str | None) -> None:
    found = due([group(0, [0], base=1000, log=log)], [log_file(A, 9)])
    assert [why.reason for why in found.values()] == ([expected] if expected else [])


def test_a_file_group_without_a_base_is_due_at_its_first_commit() -> None:
    assert due([group(0, [0])], [log_file(A, 9)])[0].reason == "bytes"


def test_file_groups_without_logs_are_never_due() -> None:
    assert due([group(0, [], base=1000)], [], head=10**6) == {}


@pytest.mark.parametrize(("behind", "cold"), [(COLD_FACTOR * 3 - 1, False), (COLD_FACTOR * 3, True)])
def test_one_cold_commit_makes_everything_with_logs_due(behind: int, cold: bool) -> None:  # noqa: FBT001
    files = [log_file(A, 100 - behind), log_file(B, 100)]
    found = due([group(0, [0], base=1000), group(1, [1], base=1000)], files, head=100)
    assert {why.reason for why in found.values()} == ({"cold"} if cold else set())
    assert set(found) == ({0, 1} if cold else set())


@pytest.mark.parametrize(("behind", "cold"), [(COLD_FACTOR * 3 - 1, False), (COLD_FACTOR * 3, True)])
def test_a_fold_counts_as_one_commit_and_is_as_cold_as_its_commits(behind: int, cold: bool) -> None:  # noqa: FBT001
    file = log_file(TABLE_LANE, 7)
    fold = LiveFile(TABLE_LANE, 7, 0, file.file, EMPTY, {A: 100, B: 100 - behind})
    found = due([group(0, [0], base=1000)], [fold], head=100)
    assert found == ({0: Due(1, 1, 1000, "cold")} if cold else {})


def works(policy: DuePolicy, slices: list[FileSlice], files: list[LiveFile], **given: Any) -> dict[int, str]:
    """The work and its reason, by bucket."""
    planned = plan_due(policy, slices, files, {A: 10, B: 10}, **given)
    return {group.bucket: f"{due.work}: {due.reason}" for group, due in planned.items()}


PATIENT = DuePolicy(min_commits=5, max_log_ratio=100.0, fold_commits=3)


def test_groups_not_due_for_compaction_are_folded_when_enough_commits_wait() -> None:
    files = [log_file(A, 8), log_file(A, 9), log_file(B, 9)]
    two = [group(0, [0], base=1000), group(1, [1], base=1000)]
    assert works(PATIENT, two, files) == {}
    three = [*two, group(2, [2], base=1000)]
    assert works(PATIENT, three, files) == dict.fromkeys(range(3), "fold: commits")
    assert works(replace(PATIENT, fold_commits=None), three, files) == {}


def test_a_file_group_that_is_compacted_is_not_folded() -> None:
    files = [log_file(A, 7), log_file(A, 8), log_file(A, 9), log_file(B, 9)]
    slices = [group(0, [0]), group(1, [1, 2], base=1000), group(2, [1, 2, 3], base=1000)]
    compacted = "compact: bytes"
    assert works(PATIENT, slices, files) == {0: compacted, 1: "fold: commits", 2: "fold: commits"}
    assert works(PATIENT, slices, files, work={Work.COMPACT}) == {0: compacted}
    assert works(PATIENT, slices, files, work={Work.FOLD}) == dict.fromkeys(range(3), "fold: commits")


def test_folds_are_not_folded_again() -> None:
    file = log_file(TABLE_LANE, 7)
    folds = [LiveFile(TABLE_LANE, seq, 0, file.file, EMPTY, {A: 9}) for seq in (5, 6, 7)]
    assert works(PATIENT, [group(0, [0, 1, 2], base=1000)], folds) == {}


def test_one_old_commit_makes_the_file_groups_with_its_rows_due() -> None:
    files = [log_file(A, 8), log_file(A, 9)]
    slices = [group(0, [0], base=1000), group(1, [1], base=1000)]
    assert works(PATIENT, slices, files, aged=[0]) == {0: "compact: age"}


def with_blocks(file: LiveFile, *length: int) -> LiveFile:
    return replace(
        file, index=EMPTY.model_copy(update={"blocks": EMPTY.blocks.model_copy(update={"length": [*length]})})
    )


def test_blocks_are_fetched_whole_and_once() -> None:
    files = [with_blocks(log_file(A, 8), 300, 700), with_blocks(log_file(A, 9), 1000)]
    first = replace(group(0, [0, 0, 1], base=1000), block=np.array([1, 1, 0]))
    assert read_amplification(first, files) == 1 + 1.7
    assert read_amplification(group(0, [], base=1000), files) == 1
    assert read_amplification(group(0, [0]), files) == float("inf")
    assert works(replace(PATIENT, max_read_amplification=2.7), [first], files) == {}
    assert works(replace(PATIENT, max_read_amplification=2.6), [first], files) == {0: "compact: read amplification"}
