"""Which file groups are due for compaction or a fold, and why. Without a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.storage.core.log.file_refs import Blocks, FileGroup, FileRef, LogFile, LogIndex, LogRanges, SliceFile
from weft.storage.core.names import TABLE_LANE, LaneName, Path
from weft.storage.core.plan.due_policy import (
    COLD_FACTOR,
    LEAST_COMMITS,
    MAX_POSTPONED,
    RANGE_BYTES,
    Due,
    DuePolicy,
    Work,
    commits_of_base,
    plan_due,
)
from weft.storage.core.plan.read_cost import ReadCost, read_amplification, read_cost
from weft.storage.core.plan.slices import FileSlice, LiveFile

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


def folds_and_commits(folded_rows: int, commits: int) -> tuple[list[FileSlice], list[LiveFile]]:
    """A file group with a fold of that many rows, and commits of one row each."""
    fold = LiveFile(TABLE_LANE, 7, 0, log_file(TABLE_LANE, 7).file, EMPTY, {A: 9})
    files = [fold, *(log_file(A, 10 + number) for number in range(commits))]
    whole = group(0, list(range(commits + 1)), base=10**9)
    return [replace(whole, rows=np.array([folded_rows, *[1] * commits]))], files


@given(st.integers(1, 10_000), st.integers(1, 200), st.integers(2, 50), st.floats(0, 2))
def test_a_fold_that_is_small_beside_the_folds_waits_for_a_bounded_number_of_commits(
    folded_rows: int, commits: int, fold_commits: int, ratio: float
) -> None:
    policy = DuePolicy(min_commits=10**6, max_log_ratio=1e9, fold_commits=fold_commits, min_fold_ratio=ratio)
    slices, files = folds_and_commits(folded_rows, commits)
    many = commits >= MAX_POSTPONED * fold_commits
    expected = many or (commits >= fold_commits and commits >= ratio * folded_rows)
    assert bool(works(policy, slices, files)) == expected


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.floats(0.01, 10))
def test_the_default_number_of_commits_grows_with_the_base(one: int, two: int, ratio: float) -> None:
    small, large = sorted((one, two))
    assert LEAST_COMMITS <= commits_of_base(small, ratio) <= commits_of_base(large, ratio)
    assert commits_of_base(large, ratio) <= max(LEAST_COMMITS, ratio * large / RANGE_BYTES)


@pytest.mark.parametrize(("base", "least"), [(0, 8), (1 << 18, 8), (1 << 22, 128), (1 << 29, 16_384)])
def test_by_default_a_large_file_group_waits_for_more_commits(base: int, least: int) -> None:
    assert commits_of_base(base, 0.5) == least
    policy = DuePolicy(max_log_ratio=0.5, fold_commits=None)
    for commits in (least - 1, least):
        files = [log_file(A, number) for number in range(1, min(commits, 200) + 1)]
        if len(files) == commits and base:
            found = works(policy, [group(0, list(range(commits)), base=base)], files)
            assert found == ({0: "compact: commits"} if commits == least else {})


@given(st.data())
def test_a_stricter_policy_never_makes_more_due(data: st.DataObject) -> None:
    """Criteria are limits: with larger ones no further file group is due for compaction."""
    numbers = st.integers(1, 20)
    count = data.draw(st.integers(1, 5))
    files = [with_blocks(log_file(A, data.draw(numbers)), data.draw(st.integers(1, 5_000))) for _ in range(count)]
    slices = [
        group(bucket, sorted(data.draw(st.sets(st.integers(0, count - 1)))), base=data.draw(st.integers(1, 3_000)))
        for bucket in range(3)
    ]
    low, high = sorted([data.draw(numbers), data.draw(numbers)])
    few, much = sorted([data.draw(st.floats(0.01, 5)), data.draw(st.floats(0.01, 5))])
    cheap, dear = sorted([data.draw(st.floats(1, 9)), data.draw(st.floats(1, 9))])
    loose = DuePolicy(min_commits=low, max_log_ratio=few, max_read_amplification=cheap)
    strict = DuePolicy(min_commits=high, max_log_ratio=much, max_read_amplification=dear)
    work = {Work.COMPACT}
    assert works(strict, slices, files, work=work).keys() <= works(loose, slices, files, work=work).keys()


def test_a_read_fetches_each_block_of_the_table_once() -> None:
    files = [with_blocks(log_file(A, 8), 300 << 20, 700 << 20), with_blocks(log_file(A, 9), 1000)]
    shared = [group(0, [0, 1], base=100 << 20), group(1, [0], base=100 << 20), group(2, [], base=50 << 20)]
    found = read_cost(shared, files)
    assert found.commits == 2
    assert found.amplification == pytest.approx((250 + 300) / 250, rel=1e-3)
    assert read_cost(shared[2:], files) == ReadCost(1.0, 0)
    assert read_cost([], []) == ReadCost(1.0, 0)
