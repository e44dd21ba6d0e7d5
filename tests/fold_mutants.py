"""Mutants of folds: one line is broken, and the tests named beside it must turn red; `tests.test_mutants` runs them."""

from __future__ import annotations

from tests.mutant import Mutant

FOLDS = "tests/storage/test_fold.py"
RACES = "tests/storage/test_fold_races.py"

FOLD_MUTANTS = {
    "S11 a fold is read on top of the slice that has passed it": Mutant(
        "core/plan/slices.py",
        "np.where(of_fold >= 0, reads[of_fold, group], after)",
        "np.where(of_fold >= 0, folds, after)",
        (FOLDS, "-k", "dropped_with_the_compaction"),
    ),
    "S11 what is in a fold is read as events too": Mutant(
        "core/plan/slices.py",
        "folded = state.folded_to(own)",
        "folded = state.slices[own].cut if own in state.slices else {}",
        (RACES, "-k", "gives_the_fold_up"),
    ),
    "S11 a fold begins anywhere": Mutant(
        "core/plan/fold_plan.py",
        "and folded.start in (folded.parent, reached)",
        "and folded.start is not None",
        (RACES, "-k", "second_is_dropped"),
    ),
    "S11 a fold takes the place of one that reaches further": Mutant(
        "core/plan/fold_plan.py", "and cut.within(reached, to)", "and bool(to)", (RACES, "-k", "further_in_one_lane")
    ),
    "S11 what a compaction gave up is stated as covered": Mutant(
        "services/fold.py",
        "len(kept) == len(folds) and still_covered(snapshot.state, state, to)",
        "len(kept) == len(folds)",
        (RACES, "-k", "given_up_meanwhile"),
    ),
    "S10 a fold is published on top of another slice": Mutant(
        "core/plan/fold_plan.py",
        "folded.parent == state.slices.cut_of(group)",
        "group is not None",
        (RACES, "-k", "compaction_of_less_did_first"),
    ),
    "S18 a fold from before a restore is published after it": Mutant(
        "services/fold.py", "if plan_id not in state.plans:", "if not plan_id:", (RACES, "-k", "restore_kills")
    ),
    "L3 the newest registers replace those of folds": Mutant(
        "files/log_reader.py",
        "merge_registers(self._schema, group, found)",
        "merge_registers(self._schema, group, found[-1:])",
        (FOLDS, "-k", "each_event_is_read_once"),
    ),
    "L4 deletes in folds are overlooked": Mutant(
        "files/register_file.py",
        "[rows.deletes for _, rows in parts]",
        "[rows.deletes & False for _, rows in parts]",
        (FOLDS, "-k", "one_column_still_sees"),
    ),
}
