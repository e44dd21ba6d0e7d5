"""Mutants of the merge modes: one line of a mode is broken, and the tests named beside it must turn red.

At least one for every mode and every law that the mode could break; `tests.test_mutants` runs them.
"""

from __future__ import annotations

from tests.mutant import LAWS, Mutant

TRAPS = "tests/storage/test_traps.py"
REGISTERS = "tests/storage/core/test_modes.py"
EVERY_READ = (f"{LAWS}::test_every_read_equals_the_oracle",)
PROJECTIONS = (f"{LAWS}::test_every_projection_of_every_state_is_the_projection_of_the_whole",)

PARTIAL = "core/modes/partial.py"
FUNCTIONS = "core/modes/functions.py"
AGGREGATE = "core/modes/aggregate.py"
CUSTOM = "core/modes/custom.py"
HISTORY = "core/modes/history.py"

MODE_MUTANTS = {
    "L1 ties go to the base": Mutant(
        HISTORY,
        "((new_rank == old_rank) & later)",
        "((new_rank == old_rank) & ~later)",
        (TRAPS, "-k", "equal_ordering_values_go"),
    ),
    "L1 the last commit wins": Mutant(
        HISTORY,
        "later = (new_rank > old_rank) |",
        "later = (new_rank != old_rank) |",
        (f"{LAWS}::test_interleaving_of_lanes_changes_nothing",),
    ),
    "L2 positions are forgotten within a commit": Mutant(
        PARTIAL,
        "top = np.maximum(_above(old_top, new_floor), _above(new_top, old_floor))",
        "top = _above(np.maximum(old_top, new_top), floor)",
        (TRAPS, "-k", "delete_and_upsert_of_one_commit"),
    ),
    "L3 a floor is forgotten": Mutant(
        PARTIAL,
        "floor = np.maximum(old_floor, new_floor)",
        "floor = new_floor",
        (TRAPS, "-k", "late_upsert_below_a_floor"),
    ),
    "L3 one version a row decides for all columns": Mutant(
        PARTIAL,
        "take_new = added > kept",
        "take_new = (added >= 0) & (new_top > old_top)[:, None]",
        (TRAPS, "-k", "their_own_versions"),
    ),
    "L3 the wrong version is read back": Mutant(
        PARTIAL, "np.maximum(places - 1, 0)", "np.maximum(places - 2, 0)", (TRAPS, "-k", "three_versions")
    ),
    "L3 results of a merger stand in the order of arrival": Mutant(
        CUSTOM, "_, (old_number, new_number) =", "_, (new_number, old_number) =", (REGISTERS,)
    ),
    "L3 sums replace each other": Mutant(
        FUNCTIONS,
        "self._total(context, side), decimal.Decimal(0)) for side in (old, new)",
        "self._total(context, side), decimal.Decimal(0)) for side in (new, None) if side",
        (TRAPS, "-k", "retraction_that_arrives_before"),
    ),
    "L3 the first is the last": Mutant(
        FUNCTIONS, '"first": Edge(largest=False)', '"first": Edge(largest=True)', (TRAPS, "-k", "first_is_that_of")
    ),
    "L3 lists grow in the order of arrival": Mutant(
        FUNCTIONS, "np.lexsort((arrival, rank, rows))", "np.lexsort((arrival, rows))", (TRAPS, "-k", "collected")
    ),
    "L3 a default is taken for a state": Mutant(
        AGGREGATE, "if name in group.columns else column", "if name is None else column", (TRAPS, "-k", "is_no_state")
    ),
    "L3 sums wrap": Mutant(
        FUNCTIONS,
        "if not carry or state[carry[0]].null_count == len(low):",
        "if len(carry) < 2:",
        (TRAPS, "-k", "far_beyond"),
    ),
    "L4 a merger sees only columns that are read": Mutant(
        "read/scan.py", "if column.name in values or column.name in seen", "if column.name in values", PROJECTIONS
    ),
    "L4 a merger cannot hide a row from others' columns": Mutant(
        "read/scan.py", 'mode_of(group) is MODES["custom"]', "mode_of(group) is None", (TRAPS, "-k", "seen_from_other")
    ),
    "L4 suppliers are stored only of what is read": Mutant(
        PARTIAL,
        "(*group.ordering, *(name for name in group.values if name in values), *self.state(group, columns))",
        "(*group.ordering, *self.state(group, columns))",
        PROJECTIONS,
    ),
    "what is supplied is overlooked": Mutant(
        PARTIAL,
        "supplied = supplied | events.supplied[name][history.order]",
        "supplied = supplied & True",
        (TRAPS, "-k", "omitted_column_can_be_supplied"),
    ),
    "what is supplied is not sorted with its rows": Mutant(
        PARTIAL, "events.supplied[name][history.order]", "events.supplied[name]", (TRAPS, "-k", "supplied_names_stay")
    ),
    "a row stays hidden": Mutant(
        "core/merge/stitch.py",
        "deleted |= row_delete & ~there",
        "deleted |= row_delete",
        (TRAPS, "-k", "its_floor_stays"),
    ),
    "retractions add": Mutant(
        FUNCTIONS, "pc.negate(values), values)", "values, values)", (TRAPS, "-k", "until_it_fits")
    ),
    "retractions are present": Mutant(
        AGGREGATE,
        "top = history.last(~retracts)",
        "top = history.last(retracts | ~retracts)",
        (TRAPS, "-k", "retraction_that_arrives_before"),
    ),
    "retractions are deletes elsewhere": Mutant(
        "core/merge/collapse.py",
        "return retracts if untouched is None else untouched | retracts",
        "return untouched",
        (TRAPS, "-k", "update_before"),
    ),
    "what is ignored retracts": Mutant(
        "core/merge/events.py",
        'if stream.on_delete == "ignore" or not any(',
        "if not any(",
        (TRAPS, "-k", "deletes_are_ignored"),
    ),
    "NaN is the least": Mutant(FUNCTIONS, '"at_end"', '"at_start"', (TRAPS, "-k", "nan_is_the_largest")),
    "counting asks for numbers": Mutant(
        "core/merge/events.py", '.takes == "anything"', '.takes == "nothing"', (TRAPS, "-k", "count_takes_anything")
    ),
    "a merger cannot make a group absent": Mutant(
        CUSTOM,
        "present = pc.and_(present, keys.one_array(merged.column(PRESENT)))",
        "present = pc.and_(present, present)",
        (TRAPS, "-k", "make_a_group_absent"),
    ),
    "a merger does not see deletes": Mutant(
        CUSTOM, "np.where(op == Op.UPSERT, 0, 1)", "np.where(op == Op.UPSERT, 0, 0)", (TRAPS, "-k", "sees_deletes")
    ),
}
