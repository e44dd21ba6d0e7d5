"""Mutants: one line of the kernel or the protocol is broken, and the tests named beside it must turn red.

What no test notices is not tested. A mutant is a text replacement in a copy of `storage`; the tests run against the
copy in a process of their own. If the text is not there any more, the code has moved on: choose its new form.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.changes_mutants import CHANGES_MUTANTS
from tests.evolution_mutants import EVOLUTION_MUTANTS
from tests.fold_mutants import FOLD_MUTANTS
from tests.mode_mutants import MODE_MUTANTS
from tests.mutant import COMPACTION, CONFORMANCE, LAWS, WRITER, Mutant
from tests.read_mutants import READ_MUTANTS
from tests.read_optimized_mutants import READ_OPTIMIZED_MUTANTS
from tests.shared_file_mutants import SHARED_FILE_MUTANTS
from tests.time_mutants import TIME_MUTANTS
from tests.watermark_mutants import WATERMARK_MUTANTS

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 250  # each is found in seconds; a hang is a failure of the test that did not bound it
PARALLEL = 2
FAILED = 1  # pytest: tests ran, and some failed. Anything else (usage, no tests) is a mistake in the table below.

PROTOCOL_MUTANTS = {
    "L1 the last commit wins over the base": Mutant(
        "core/modes/history.py",
        "later = (new_rank > old_rank) |",
        "later = (new_rank != old_rank) |",
        (f"{LAWS}::test_interleaving_of_lanes_changes_nothing",),
    ),
    "L2 equal keys change places when sorted": Mutant(
        "core/keys.py",
        "return _numbers_in_order(keys)",
        "order = len(keys) - 1 - np.argsort(keys[::-1], kind='stable'); return order, keys[order]",
        (f"{LAWS}::test_batching_changes_nothing",),
    ),
    "L3 compaction forgets hidden rows": Mutant(
        "services/compaction.py",
        "(shadow, stitched.hidden))",
        "(shadow, {}))",
        ("tests/storage/test_traps.py", "-k", "hidden_row_keeps"),
    ),
    "L4 deletes are overlooked where columns are pruned": Mutant(
        "read/scan.py",
        "any(own.deletes or (",
        "any(own.deletes > 1000 or (",
        (CONFORMANCE, "-k", "owner_delete and as_written"),
    ),
    "L5 the oldest row of a batch wins": Mutant(
        "core/modes/latest.py",
        "return np.maximum.reduceat(np.where(rank == largest[run], np.arange(len(rank)), -1), starts)",
        "return np.minimum.reduceat(np.where(rank == largest[run], np.arange(len(rank)), len(rank)), starts)",
        (f"{LAWS}::test_pre_combining_a_batch_changes_nothing",),
    ),
    "L6 a replayed batch is written again": Mutant(
        "write/writer.py",
        "return Commit(self._lane, known.seq, known.rows, known.rows_ignored, replayed=True)",
        "return None",
        (f"{LAWS}::test_replays_change_nothing",),
    ),
    "S1 a slot is overwritten": Mutant(
        "store/local_store.py",
        "os.link(temporary, target)",
        "os.replace(temporary, target)",
        ("tests/stores/test_conformance.py", "-k", "local and first_create_wins"),
    ),
    "S2 an entry may follow any other": Mutant(
        "log/lane_reader.py",
        "if self.found and entry.prev_id != self.found[-1].commit_id:",
        "if self.found and entry.prev_id is None:",
        ("tests/storage/test_commit_log.py", "-k", "does_not_follow"),
    ),
    "S3 a claim keeps the epoch": Mutant(
        "write/writer.py",
        "self._epoch = self._state.epoch + 1",
        "self._epoch = max(self._state.epoch, 1)",
        (WRITER, "-k", "second_claimer"),
    ),
    "S4 a lost commit is acknowledged": Mutant(
        "write/writer.py",
        "if winner.commit_id != entry.commit_id:",
        "if winner.commit_id is None:",
        (WRITER, "-k", "second_claimer"),
    ),
    "S6 a gap is let through": Mutant(
        "write/writer.py", "if number > last + 1:", "if number > last + 100:", (WRITER, "-k", "missing_batch_is_a_gap")
    ),
    "S7 a truncated file is read": Mutant(
        "store/local_store.py",
        "if found != size:",
        "if found > size:",
        ("tests/stores/test_conformance.py", "-k", "local and truncated"),
    ),
    "S8 a snapshot sees what comes after it": Mutant(
        "log/table_log.py",
        "(after.get(lane, 0), last) for lane, last in",
        "(after.get(lane, 0), None) for lane, last in",
        ("tests/storage/test_snapshot.py", "-k", "cut_names_the_snapshot"),
    ),
    "S20 what a search ends with is believed": Mutant(
        "log/commit_log.py",
        "if not self.archives.ask(ends):",
        "if True:",
        ("tests/storage/test_archive.py", "-k", "while_it_searches"),
    ),
    "S20 an incomplete chunk is archived": Mutant(
        "services/archive_log.py",
        "            if content is None or entry is None or before not in (None, entry.prev_id):\n"
        "                return None",
        "            if content is None or entry is None:\n"
        "                contents.append(b'{}')\n"
        "                continue",
        ("tests/storage/test_archive.py", "-k", "missing_entry_stays"),
    ),
    "S10 a slice is published on top of another one's parent": Mutant(
        "services/compaction.py",
        "return made.parent == (newest.cut if newest is not None else {})",
        "return True",
        (COMPACTION, "-k", "two_compactors"),
    ),
    "S11 the first commit after a slice is taken for folded": Mutant(
        "core/plan/slices.py",
        "after = file_seq[position] > held[",
        "after = file_seq[position] > 1 + held[",
        (f"{LAWS}::test_every_read_equals_the_oracle",),
    ),
    "S12 a partial compaction says that the rest has no rows": Mutant(
        "services/compaction.py",
        "whole = last and self._complete and not self.skipped",
        "whole = last and not self.skipped",
        (COMPACTION, "-k", "does_not_claim_the_groups"),
    ),
    "S18 a compaction begins from before a restore": Mutant(
        "services/service_plan.py",
        "if at.table < state.restored:",
        "if at.table < 0:",
        ("tests/storage/test_restore.py", "-k", "does_not_even_begin"),
    ),
    "S18 what is void is read": Mutant(
        "log/table_log.py",
        "if isinstance(entry, Data) and not cut.in_spans(spans, entry.seq):",
        "if isinstance(entry, Data):",
        ("tests/storage/test_restore.py", "-k", "takes_back_what_came_after"),
    ),
    "S14 a floor orders nothing": Mutant(
        "core/modes/latest.py",
        "], pc.coalesce(arrival, floor)",
        "], arrival",
        (COMPACTION, "-k", "resurrect"),
    ),
    "S15 composite keys move to other buckets": Mutant(
        "core/keys.py", "np.uint32(31)", "np.uint32(33)", ("tests/storage/core/test_keys.py", "-k", "vectors")
    ),
    "S22 stamps follow the clock": Mutant(
        "clock.py",
        "stamp = max(clock.now_ms(), self._largest + 1)",
        "stamp = clock.now_ms()",
        ("tests/storage/test_clock.py",),
    ),
    "an unknown BASE loses its files": Mutant(
        "services/compaction.py",
        "except CommitUnknown:",
        "except ZeroDivisionError:",
        (COMPACTION, "-k", "publication_is_unknown"),
    ),
    "nulls come last": Mutant(
        "core/ordering.py", '"at_start"', '"at_end"', (CONFORMANCE, "-k", "multi_field_ordering and as_written")
    ),
    "a default hides a NULL that was given": Mutant(
        "core/merge/stitch.py",
        "return pc.if_else(present, values,",
        "return pc.if_else(values.is_valid(), values,",
        (CONFORMANCE, "-k", "default_for_an_absent_group and as_written"),
    ),
}

MUTANTS = {
    **PROTOCOL_MUTANTS,
    **MODE_MUTANTS,
    **FOLD_MUTANTS,
    **EVOLUTION_MUTANTS,
    **WATERMARK_MUTANTS,
    **READ_OPTIMIZED_MUTANTS,
    **READ_MUTANTS,
    **CHANGES_MUTANTS,
    **SHARED_FILE_MUTANTS,
    **TIME_MUTANTS,
}


def run(folder: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests against the copy of `storage` in ``folder``."""
    environment = {
        **os.environ,
        # What a mutant fails with is no example for the real code.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=hunt"]
    # Runs at the same time must not clean up each other's temporary folders.
    places = [f"--rootdir={ROOT}", f"-c={ROOT / 'pyproject.toml'}", f"--basetemp={folder / 'tmp'}"]
    # `-m` puts the working directory first on the path: the folder with the copy.
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *places, *tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def copy_with(folder: Path, mutant: Mutant | None) -> Path:
    shutil.copytree(ROOT / "storage", folder / "storage", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        file = folder / "storage" / mutant.file
        source = file.read_text(encoding="utf-8")
        assert source.count(mutant.old) == 1, f"{mutant.file} has not exactly one {mutant.old!r}: choose its new form"
        file.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    return folder


def absolute(tests: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(ROOT / word) if word.startswith("tests/") else word for word in tests)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """All runs, as many at a time as there are cores to hope for."""

    def work(mutant: Mutant) -> subprocess.CompletedProcess[str]:
        return run(copy_with(tmp_path_factory.mktemp("mutant"), mutant), absolute(mutant.tests))

    tmp_path_factory.getbasetemp()  # made on first use, which two threads must not be at once
    with ThreadPoolExecutor(PARALLEL) as pool:
        yield {name: pool.submit(work, mutant) for name, mutant in MUTANTS.items()}
        pool.shutdown(cancel_futures=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, results: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    result = results[name].result()
    assert result.returncode == FAILED, f"{MUTANTS[name].tests} did not notice:\n{result.stdout[-2000:]}{result.stderr}"


@pytest.mark.nightly
def test_the_copy_itself_is_green_and_is_what_the_tests_see(tmp_path: Path) -> None:
    """Without this, a mutant could be red for want of an import."""
    folder = copy_with(tmp_path, None)
    marker = folder / "storage" / "__init__.py"
    marker.write_text(marker.read_text(encoding="utf-8") + "\nprint('this is the copy')\n", encoding="utf-8")
    tests = (WRITER, "tests/storage/test_snapshot.py", "tests/storage/core/test_keys.py", CONFORMANCE, "-k", "first")
    result = run(folder, ("-s", *absolute(tests)))
    assert result.returncode == 0, result.stdout
    assert "this is the copy" in result.stdout
