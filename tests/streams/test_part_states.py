"""What is known of the parts of a pipeline after, and while, their processes run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streams.pipeline.part_states import PartFiles, PartState, read_parts
from streams.pipeline.run_lock import hold_locks
from streams.pipeline.status import Report, encode_report
from streams.pipeline.supervisor import JobStatus, Phase
from tests.streams.pipelines import pipeline_file, weft


def status(phase: Phase, why: str = "", **report: object) -> JobStatus:
    return JobStatus("clean", phase, None, 0, Report(**report), why, Path("log"), (), None, background=True)


def state_after(folder: Path, *statuses: JobStatus) -> PartState:
    files = PartFiles(folder)
    for each in statuses:
        files.write([each])
    (part,) = read_parts(folder, ["clean"])
    return part


def test_of_a_part_that_never_ran_here_nothing_is_known(tmp_path: Path) -> None:
    assert read_parts(tmp_path, ["a", "b"]) == [PartState("a", runs=False), PartState("b", runs=False)]


def test_a_part_runs_while_its_lock_is_held(tmp_path: Path) -> None:
    running = status(
        Phase.RUNNING, doing="idle", message="3 files deleted", round_at_ms=5, next_round_at_ms=9, progress=1
    )
    with hold_locks(tmp_path, ["clean"], "p.yaml"):
        (unwritten,) = read_parts(tmp_path, ["clean"])
        assert (unwritten.runs, unwritten.state) == (True, "running")
        part = state_after(tmp_path, running)
        assert (part.runs, part.state, part.result, part.error) == (True, "idle", "3 files deleted", "")
        assert (part.last_run_at_ms, part.next_run_at_ms, part.has_worked) == (5, 9, True)
    (part,) = read_parts(tmp_path, ["clean"])
    assert (part.runs, part.state, part.last_run_at_ms, part.next_run_at_ms) == (False, "not running", 5, None)


@pytest.mark.parametrize(
    ("ended", "state", "error"),
    [
        (status(Phase.DONE, doing="ended", message="1 file deleted"), "done", ""),
        (status(Phase.FAILED, "StoreRefused: no"), "failed", "StoreRefused: no"),
        (status(Phase.FENCED, "another process"), "fenced", "another process"),
        (status(Phase.RUNNING, doing="waiting", message="OSError: x"), "not running", "OSError: x"),
        (status(Phase.WAITING, "killed by SIGKILL"), "not running", "killed by SIGKILL"),
    ],
)
def test_the_last_error_is_kept(tmp_path: Path, ended: JobStatus, state: str, error: str) -> None:
    part = state_after(tmp_path, status(Phase.RUNNING, doing="idle"), ended)
    assert (part.runs, part.state, part.error) == (False, state, error)
    assert part.is_lost == (ended.phase in {Phase.FAILED, Phase.FENCED})


def test_the_end_of_a_part_is_written_at_once_and_its_reports_once_a_second(tmp_path: Path) -> None:
    first, second = status(Phase.RUNNING, rows=1), status(Phase.RUNNING, rows=2)
    files = PartFiles(tmp_path)
    files.write([first])
    (path,) = (tmp_path / "parts").iterdir()
    before = path.read_text()
    files.write([second])
    assert path.read_text() == before
    files.write([replace(second, phase=Phase.DONE)])
    assert '"done"' in path.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"phase": "new", "message": "", "report": {}}', "[" * 5_000])
def test_a_file_of_another_version_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "clean.json").write_text(text)
    assert read_parts(tmp_path, ["clean"]) == [PartState("clean", runs=False)]


def test_a_state_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "parts").write_text("a file")
    PartFiles(tmp_path).write([status(Phase.RUNNING)])


def test_a_report_with_long_problems_fits_into_a_line() -> None:
    """The catalog of a publication decides how long its error is."""
    report = Report(
        publish_problem="\u00e9" * 9_000, message="\u00e9" * 9_000, note="\u00e9" * 9_000, waiting_for="x" * 900
    )
    assert len(encode_report(report)) <= 4_096


def test_only_a_pipeline_file_has_parts(tmp_path: Path) -> None:
    done = weft("show", tmp_path / "table", "parts")
    assert (done.exit_code, "is no pipeline file" in done.stderr) == (2, True)
    shown = weft("show", pipeline_file(tmp_path), "parts")
    assert (shown.exit_code, "not known here" in shown.stdout) == (0, True)
