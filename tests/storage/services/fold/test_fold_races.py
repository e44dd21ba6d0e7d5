"""Folds with concurrent operations: compactions, other folds, restores, crashes and damage (S10, S11, S17, S18)."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path as LocalPath

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.counts import (
    BITS,
    COUNTS,
    MANY,
    chain,
    count,
    during,
    entries,
    event_rows,
    fold_files,
    home,
    named_files,
)
from tests.storage.support.shop import contents, new_uri
from tests.tuning import tuned
from weft import Table
from weft.storage.clock import SystemClock
from weft.storage.core.log.entries import Fold
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, CorruptData
from weft.storage.log.commit_log import CommitLog
from weft.storage.services.compaction.compaction import compaction_steps
from weft.storage.services.fold.fold import fold_steps
from weft.storage.services.steps.service_plan import abort_plan
from weft.storage.services.steps.steps import finish
from weft.storage.store.open_store import open_store

WAIT_SECONDS = 240


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def counts(uri: str) -> Table:
    return Table.create(uri, COUNTS, clock=FakeClock())


@pytest.mark.parametrize("later_commit", [False, True])
def test_file_groups_that_were_compacted_first_are_skipped(counts: Table, uri: str, later_commit: bool) -> None:  # noqa: FBT001
    """BASE before FOLD, with the cut of the fold or a later one."""
    count(counts, *range(20))
    overtaken = counts.snapshot().slices[0].group
    store = FaultyStore(open_store(uri))

    def overtake() -> None:
        if later_commit:
            count(counts, *range(20))
        counts.compact(only=lambda file_slice: file_slice.group == overtaken)

    during(store, overtake)
    result = other_process(uri, FakeClock(), store).fold()
    assert list(result.skipped) == [overtaken]
    assert "published first" in result.skipped[overtaken]
    assert len(result.done) == 3
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1 + later_commit)
    counts.fold()
    counts.compact()
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1 + later_commit)


def test_a_fold_whose_file_groups_were_all_compacted_first_is_aborted(counts: Table, uri: str) -> None:
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))
    during(store, counts.compact)
    result = other_process(uri, FakeClock(), store).fold()
    assert (result.done, len(result.skipped), result.rows) == ((), 4, 0)
    assert entries(uri)[-1].kind == "ABORT"
    assert counts.state().plans == {}
    assert fold_files(uri) == []


def test_file_groups_compacted_first_to_an_older_cut_are_skipped_too(counts: Table, uri: str) -> None:
    """BASE before FOLD, with an earlier cut than the fold: the fold contains events that are in the new slice."""
    count(counts, *range(20))
    before = counts.snapshot()
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))
    during(store, lambda: finish(compaction_steps(counts._table_log, before, lambda _: True)))
    result = other_process(uri, FakeClock(), store).fold()
    assert (result.done, len(result.skipped)) == ((), 4)
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 2)


def test_a_compaction_of_fewer_commits_ends_a_fold(counts: Table, uri: str) -> None:
    """FOLD before BASE: the slice ends before the fold, so the events in between are read from logs again (S11)."""
    count(counts, *range(20))
    first = counts.snapshot().slices[0].group
    store = FaultyStore(open_store(uri))

    def commit_and_fold() -> None:
        count(counts, *range(20))
        assert counts.fold().skipped == {}

    store.faults.append(Fault("open_output", "base/", action=commit_and_fold))
    result = other_process(uri, FakeClock(), store).compact(only=lambda file_slice: file_slice.group == first)
    assert result.done == (first,)
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 2)
    assert dict(contents(Table.open(uri), ["id", "n"])) == dict.fromkeys(range(20), 2)
    # The next fold contains them again.
    assert counts.fold().done == (first,)
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 2)


def test_a_fold_skips_file_groups_whose_folds_ended_meanwhile(counts: Table, uri: str) -> None:
    """A slow compaction from before the last fold ends during the next fold, which has no events of that group."""
    group = home(3)
    others = [key for key in range(20) if home(key) != group]
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(WAIT_SECONDS)

    store.faults.append(Fault("open_output", "base/", action=wait))
    slow = other_process(uri, FakeClock(), store)
    with ThreadPoolExecutor(1) as pool:
        compaction = pool.submit(slow.compact, lambda file_slice: file_slice.group == group)
        assert begun.wait(WAIT_SECONDS)
        count(counts, *range(20))
        counts.fold()
        count(counts, *others)

        def end_the_compaction() -> None:
            go_on.set()
            assert compaction.result().done == (group,)

        late = FaultyStore(open_store(uri))
        during(late, end_the_compaction)
        assert group not in other_process(uri, FakeClock(), late).fold().done
    expected = {key: 2 + (key in others) for key in range(20)}
    assert dict(contents(counts, ["id", "n"])) == expected
    assert dict(contents(Table.open(uri), ["id", "n"])) == expected
    assert counts.state().log_start() == {"events": 2}


def test_a_fold_does_not_replace_a_fold_of_more_commits(counts: Table, uri: str) -> None:
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))

    def overtake() -> None:
        count(counts, *range(20))
        counts.fold()

    during(store, overtake)
    result = other_process(uri, FakeClock(), store).fold()
    assert (result.done, len(result.skipped)) == ((), 4)
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 2)
    assert fold_files(uri) == named_files(counts)


def test_a_fold_of_everything_replaces_a_fold_of_fewer_commits(counts: Table, uri: str) -> None:
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))
    other = other_process(uri, FakeClock(), store)
    before = other.snapshot()
    count(counts, *range(20))
    newer = other.snapshot()
    during(store, lambda: finish(fold_steps(counts._table_log, before)))
    result = finish(fold_steps(other._table_log, newer))
    assert len(result.done) == 4
    (fold,) = counts.state().folds
    assert fold.to == newer.cut.lanes
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 2)


def test_a_fold_does_not_replace_a_fold_of_more_commits_in_one_lane(counts: Table) -> None:
    """Cuts are compared lane by lane, so it may be that neither of two snapshots is the older one."""
    for _ in range(2):
        for lane in ("a", "b"):
            with counts.writer("events", lane=lane) as writer:
                writer.append(event_rows(*range(20)))
    head = counts.state().head
    first, second = (counts.snapshot(f"cut:1:{head}:{lanes}") for lanes in ("a=4,b=2", "a=2,b=4"))
    assert len(finish(fold_steps(counts._table_log, first)).done) == 4
    assert finish(fold_steps(counts._table_log, second)).done == ()
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 4)


def test_the_second_of_two_complete_folds_to_the_same_cut_is_dropped(counts: Table, uri: str) -> None:
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))
    during(store, counts.fold)
    result = other_process(uri, FakeClock(), store).fold()
    assert (result.done, len(result.skipped)) == ((), 4)
    assert len(counts.state().folds) == 1
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1)


@pytest.mark.parametrize("further", [False, True])
def test_the_second_of_two_folds_on_the_same_fold_is_dropped(counts: Table, uri: str, further: bool) -> None:  # noqa: FBT001
    """Even if it contains more commits, because it also contains the events of the first."""
    count(counts, *MANY)
    counts.fold()
    count(counts, 1)
    first = counts.snapshot()
    if further:
        count(counts, 1)
    store = FaultyStore(open_store(uri))
    during(store, lambda: finish(fold_steps(counts._table_log, first)))
    assert list(other_process(uri, FakeClock(), store).fold().skipped) == [home(1)]
    assert dict(contents(counts, ["id", "n"]))[1] == 2 + further
    assert len(chain(counts, home(1))) == 2


def test_a_fold_that_leaves_a_gap_is_corrupt(counts: Table, uri: str) -> None:
    """Every reader checks S11, not only folds."""
    count(counts, *MANY)
    counts.fold()
    count(counts, 1)
    counts.fold()
    *_, fold = entries(uri)
    assert isinstance(fold, Fold)
    again = fold.model_copy(update={"seq": fold.seq + 1, "commit_id": "x", "prev_id": fold.commit_id})
    CommitLog(Environment(open_store(uri), FakeClock())).publish(again)
    with pytest.raises(CorruptData, match="ExactlyOnceFold"):
        Table.open(uri)


def test_a_restore_aborts_a_fold_in_progress(counts: Table, uri: str) -> None:
    """Commits that the fold has read may have been rolled back (S18)."""
    count(counts, *range(20))
    counts.savepoint("one")
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))
    during(store, lambda: counts.restore("one"))
    result = other_process(uri, FakeClock(), store).fold()
    assert result.done == ()
    assert set(result.skipped.values()) == {
        "its plan was closed meanwhile: by a restore or an erase, or by cleaning as abandoned"
    }
    assert fold_files(uri) == []
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1)


def test_a_restore_rolls_back_folded_commits(counts: Table, uri: str) -> None:
    count(counts, *range(20))
    counts.fold()
    counts.savepoint("one")
    count(counts, *range(20))
    counts.fold()
    folded = counts.snapshot()
    counts.restore("one")
    assert counts.state().folds == ()
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1)
    assert dict(contents(counts, ["id", "n"], as_of=str(folded.cut))) == dict.fromkeys(range(20), 2)
    count(counts, *range(20))
    counts.fold()
    assert dict(contents(Table.open(uri), ["id", "n"])) == dict.fromkeys(range(20), 2)
    counts.compact()
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 2)


def test_a_fold_whose_plan_was_aborted_publishes_nothing(counts: Table, uri: str) -> None:
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))

    def give_up() -> None:
        (plan_id,) = counts.state().plans
        assert abort_plan(counts._table_log, plan_id, "taken for dead")

    during(store, give_up)
    assert other_process(uri, FakeClock(), store).fold().done == ()
    assert fold_files(uri) == []
    assert counts.fold().skipped == {}


@pytest.mark.parametrize(
    ("moment", "orphans"), [("before the file", 0), ("after the file", 1), ("before the entry", 1)]
)
def test_files_of_a_fold_that_died_before_its_entry_are_garbage(
    counts: Table, uri: str, moment: str, orphans: int
) -> None:
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))
    died = KeyboardInterrupt()
    if moment == "before the entry":
        during(store, lambda: store.faults.append(Fault("put_if_absent", "timeline/table", error=died)))
    else:
        store.faults.append(Fault("put", "log/_fold", "after" if orphans else "before", error=died))
    with pytest.raises(KeyboardInterrupt):
        other_process(uri, FakeClock(), store).fold()
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1)
    # Its plan is open, and names the files.
    (plan,) = counts.state().plans.values()
    assert [name.split("-")[0] for name in fold_files(uri)] == [f"{plan.slot:020d}"] * orphans
    assert counts.fold().skipped == {}
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1)


def test_a_fold_whose_publication_is_unknown_keeps_its_files(counts: Table, uri: str) -> None:
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))

    def lose_the_store() -> None:
        store.faults.append(Fault("get", "timeline/table", times=FOREVER))

    def before_the_entry() -> None:
        lost = OSError("the answer is lost")
        store.faults.append(
            Fault("put_if_absent", "timeline/table", "after", times=FOREVER, error=lost, action=lose_the_store)
        )

    during(store, before_the_entry)
    with pytest.raises(CommitUnknown):
        other_process(uri, FakeClock(), store).fold()
    assert entries(uri)[-1].kind == "FOLD"
    assert fold_files(uri) == named_files(counts)
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1)


def test_a_missing_log_file_aborts_the_fold_and_leaves_the_table_as_it_is(counts: Table, uri: str) -> None:
    counts = tuned(counts, fold_file_bytes=1)  # so that some files exist when it fails
    count(counts, 1, 2, 3, 4, 5, 6)
    last = max({home(key): key for key in range(20)}.items())[1]
    count(counts, last)
    (path,) = [f.file.file.path for f in counts.snapshot().files if f.file.file.rows == 1]
    open_store(uri).delete(path)
    with pytest.raises(CorruptData, match="is missing"):
        counts.fold()
    assert [entry.kind for entry in entries(uri)[-2:]] == ["PLAN", "ABORT"]
    assert fold_files(uri) == []


def test_damage_in_a_fold_is_an_error_and_never_a_wrong_result(tmp_path: LocalPath) -> None:
    counts = Table.create(tmp_path, COUNTS)
    count(counts, *range(20))
    counts.fold()
    expected = contents(counts)
    (file,) = (tmp_path / "log" / "_fold").iterdir()
    whole = file.read_bytes()
    errors = 0
    for place in range(8, len(whole), max(1, len(whole) // 60)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            assert contents(Table.open(tmp_path)) == expected
        except CorruptData:
            errors += 1
    assert errors > 10
    file.write_bytes(whole[:-1])
    with pytest.raises(CorruptData):
        contents(Table.open(tmp_path))


def test_concurrent_folds_compactions_readers_and_writers_lose_and_double_nothing(counts: Table) -> None:
    """S8 and S11: every snapshot has all keys, with the events of the same commits, each once."""
    keys, stop, folded = range(40), threading.Event(), threading.Event()

    def write() -> int:
        commits = 0
        with counts.writer("events") as lane:
            while commits < 40 or not folded.is_set():
                lane.append(event_rows(*keys))
                commits += 1
        return commits

    def serve(seed: int) -> int:
        table, chosen = other_process(counts.uri, SystemClock()), random.Random(seed)
        done = 0
        while not stop.is_set():
            if chosen.random() < 0.7:
                done += len(table.fold().done)
                if done:
                    folded.set()
            else:
                bucket = chosen.randrange(1 << BITS)
                table.compact(lambda file_slice, bucket=bucket: file_slice.group.bucket == bucket)
        return done

    def read() -> int:
        newest = reads = 0
        while reads == 0 or not stop.is_set():
            found = dict(contents(counts, ["id", "events"]))
            if found:
                assert set(found) == set(keys)
                (number,) = set(found.values())
                assert number >= newest
                newest = number
            reads += 1
        return reads

    with ThreadPoolExecutor(6) as pool:
        serving = [pool.submit(serve, seed) for seed in range(3)]
        reading = [pool.submit(read) for _ in range(2)]
        try:
            commits = pool.submit(write).result()
        finally:
            stop.set()
        assert sum(future.result() for future in serving) > 0
        assert all(future.result() > 0 for future in reading)
    assert dict(contents(Table.open(counts.uri), ["id", "n"])) == dict.fromkeys(keys, commits)
