"""Mutants of changes (S21 IncrementalComplete): what is left out, told twice, or answered though it must be refused."""

from __future__ import annotations

from tests.mutant import Mutant

_CHANGES = "tests/storage/test_changes.py"
_LAWS = "tests/storage/test_changes_laws.py"
_CORE = "tests/storage/core/test_core_changes.py"

CHANGES_MUTANTS = {
    "S21 a group that comes without a value is no change": Mutant(
        "core/merge/diff.py",
        "shape.present(old) ^ shape.present(new)",
        "shape.present(old) & ~shape.present(new)",
        (_CORE, "-k", "row_by_row"),
    ),
    "S21 what is gone is not told": Mutant(
        "core/merge/diff.py", "if gone.any():", "if gone.all():", (_CORE, "-k", "row_by_row")
    ),
    "S21 NaN is a change each time": Mutant(
        "core/merge/diff.py",
        "if pa.types.is_floating(old.type):",
        "if pa.types.is_null(old.type):",
        (_CORE, "-k", "differ_exactly"),
    ),
    "S21 lists of one length are equal": Mutant(
        "core/merge/diff.py", "result[alike] = np", "result[alike[:0]] = np", (_CORE, "-k", "differ_exactly")
    ),
    "S21 the first commit of each lane is overlooked": Mutant(
        "read/changes.py",
        "(until.state, start, until.cut.lanes)",
        "(until.state, {lane: seq + 1 for lane, seq in start.items()}, until.cut.lanes)",
        (_LAWS, "-k", "difference_of_two_states"),
    ),
    "S21 a commit is taken to touch its first group alone": Mutant(
        "read/changes.py",
        "for group in live.file.groups)",
        "for group in live.file.groups[:1])",
        (_LAWS, "-k", "difference_of_two_states"),
    ),
    "S21 both sides are seen under their own schema": Mutant(
        "read/changes.py",
        "if snapshot.state.schema_rev == later.schema_rev:",
        "if snapshot.state.schema_rev:",
        (_CHANGES, "-k", "changed_schema"),
    ),
    "S21 logs after a savepoint are taken to be there": Mutant(
        "read/changes.py",
        "if until.table_log.refresh().oldest_retained <= since.cut.table:",
        "if until.table_log.refresh().oldest_retained:",
        (_CHANGES, "-k", "logs_after_it_are_gone"),
    ),
    "S21 what folds hold of later commits is overlooked": Mutant(
        "core/plan/slices.py",
        "return {self.lane: self.seq} if self.to is None else self.to",
        "return {self.lane: self.seq} if self.to is None else {}",
        (_LAWS, "-k", "whole_file_groups"),
    ),
    "S21 whole file groups are taken for unchanged": Mutant(
        "read/changes.py",
        "if old is None or old.slice != own.slice or",
        "if old is None or",
        (_CHANGES, "-k", "logs_after_it_are_gone"),
    ),
    "S21 a restore in between is no matter": Mutant(
        "read/changes.py",
        "if until.state.restored > since.table:",
        "if until.state.restored > until.cut.table:",
        (_CHANGES, "-k", "before_a_restore"),
    ),
    "S21 lanes may run backwards": Mutant(
        "read/changes.py",
        "or not cut.within(_start(since, until.state), until.cut.lanes)",
        "or not since.lanes",
        (_CHANGES, "-k", "backwards_either"),
    ),
    "S21 a missing log is a missing file": Mutant(
        "read/changes.py",
        "refresh().oldest_retained <= at.table:",
        "refresh().oldest_retained:",
        (_CHANGES, "-k", "cleaned_while"),
    ),
    "S21 a step ends where nothing is kept": Mutant(
        "read/changes.py", "if state.keeps(at) and not", "if not", (_CHANGES, "-k", "passed_over")
    ),
    "S21 a claim behind the end of a lane ends a stream of changes": Mutant(
        "read/changes.py",
        "min(seq, ends.get(lane, seq))",
        "seq",
        (_CHANGES, "-k", "claim_behind"),
    ),
}
