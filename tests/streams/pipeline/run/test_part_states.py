"""What is known of the parts of a pipeline after, and while, their processes run."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from tests.streams.support.pipelines import pipeline_file, weft, weft_output
from weft import Table
from weft.storage.core.names import service_path
from weft.storage.errors import StoreUnavailable
from weft.storage.store.memory_store import MemoryStore
from weft.streams.pipeline.run.part_states import PartFiles, PartState, StoredReports, read_parts, stored_reports
from weft.streams.pipeline.run.report import Report, encode_report
from weft.streams.pipeline.run.run_lock import hold_locks
from weft.streams.pipeline.run.supervisor import JobStatus, Phase


def status(phase: Phase, why: str = "", **report: object) -> JobStatus:
    return JobStatus("clean", phase, None, 0, Report(**report), why, Path("log"), (), None, background=True)


def state_after(folder: Path, *statuses: JobStatus) -> PartState:
    files = PartFiles(folder)
    for each in statuses:
        files.write([each])
    (part,) = read_parts(folder, ["clean"], {})
    return part


def test_of_a_part_that_never_ran_here_nothing_is_known(tmp_path: Path) -> None:
    assert read_parts(tmp_path, ["a", "b"], {}) == [PartState("a", runs=False), PartState("b", runs=False)]


def test_a_part_runs_while_its_lock_is_held(tmp_path: Path) -> None:
    running = status(
        Phase.RUNNING, doing="idle", message="3 files deleted", round_at_ms=5, next_round_at_ms=9, progress=1
    )
    with hold_locks(tmp_path, ["clean"], "p.yaml"):
        (unwritten,) = read_parts(tmp_path, ["clean"], {})
        assert (unwritten.runs, unwritten.state) == (True, "running")
        part = state_after(tmp_path, running)
        assert (part.runs, part.state, part.result, part.error) == (True, "idle", "3 files deleted", "")
        assert (part.last_run_at_ms, part.next_run_at_ms, part.has_worked) == (5, 9, True)
    (part,) = read_parts(tmp_path, ["clean"], {})
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
    now = 100.0
    first, second = status(Phase.RUNNING, rows=1), status(Phase.RUNNING, rows=2)
    files = PartFiles(tmp_path, lambda: now)
    files.write([first])
    (path,) = (tmp_path / "parts").iterdir()
    before = path.read_text()
    now += 0.9
    files.write([second])
    assert path.read_text() == before
    now += 0.1
    files.write([second])
    assert path.read_text() != before
    files.write([replace(second, phase=Phase.DONE)])
    assert '"done"' in path.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"phase": "new", "message": "", "report": {}}', "[" * 5_000])
def test_a_file_of_another_version_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "clean.json").write_text(text)
    assert read_parts(tmp_path, ["clean"], {}) == [PartState("clean", runs=False)]


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
    assert (done.exit_code, "is not a pipeline file" in done.stderr) == (2, True)
    shown = weft("show", pipeline_file(tmp_path), "parts")
    assert (shown.exit_code, "not known here" in shown.stdout) == (0, True)


NAMES = ["clean"]


def stored(store: MemoryStore, state: Path) -> PartState:
    """The part as a machine with this state folder sees it."""
    (part,) = read_parts(state, NAMES, stored_reports(store, NAMES))
    return part


def in_ms(seconds: float) -> int:
    return time.time_ns() // 1_000_000 + round(seconds * 1000)


def after(round_at_ms: int, following: int | None, **more: object) -> Report:
    values = {"doing": "idle", "message": "3 files deleted", "progress": 1, "reported_at_ms": round_at_ms, **more}
    return Report(round_at_ms=round_at_ms, next_round_at_ms=following, **values)  # type: ignore[arg-type]


def test_another_machine_sees_the_rounds_of_a_service(tmp_path: Path) -> None:
    store = MemoryStore("memory://t")
    reports = StoredReports(store, "clean", Report())
    reports.write(Report(doing="cleaning"))
    assert stored(store, tmp_path) == PartState("clean", runs=False), "no round has ended"
    following = in_ms(60)
    reports.write(after(in_ms(0), following))
    part = stored(store, tmp_path)
    assert (part.runs, part.is_known, part.state, part.result) == (True, True, "idle", "3 files deleted")
    assert (part.next_run_at_ms, part.has_worked, part.error) == (following, True, "")
    reports.write(after(in_ms(1), in_ms(-1_000), doing="waiting", message="OSError: x; next try in 5 s"))
    part = stored(store, tmp_path)
    assert (part.runs, part.state, part.error) == (False, "overdue", "OSError: x; next try in 5 s")
    reports.write(after(in_ms(2), None, doing="ended"))
    part = stored(store, tmp_path)
    assert (part.runs, part.state, part.next_run_at_ms) == (False, "done", None)


def test_reports_are_bounded_in_number_except_for_what_is_new(tmp_path: Path) -> None:
    store = MemoryStore("memory://t")
    reports = StoredReports(store, "clean", Report())
    for message in ("first", "second"):
        reports.write(after(in_ms(len(message)), in_ms(60), message=message))
    assert stored(store, tmp_path).result == "first"
    reports.write(after(in_ms(9), in_ms(60), doing="waiting", message="an error"))
    assert stored(store, tmp_path).error == "an error"
    reports.write(after(in_ms(10), in_ms(60), message="third"))
    assert (stored(store, tmp_path).result, stored(store, tmp_path).error) == ("third", ""), "it works again"


def test_this_machine_knows_more_of_its_own_parts(tmp_path: Path) -> None:
    """Its report in the store is left by a process that was killed, and would count as running for a while."""
    store = MemoryStore("memory://t")
    PartFiles(tmp_path).write([status(Phase.RUNNING, doing="cleaning", reported_at_ms=1)])
    StoredReports(store, "clean", Report()).write(after(in_ms(0), in_ms(60)))
    assert (stored(store, tmp_path).runs, stored(store, tmp_path).state) == (False, "not running")
    path = service_path("clean")
    elsewhere = json.loads(store.get(path) or b"") | {"host": "another"}
    store.put(path, json.dumps(elsewhere).encode())
    assert (stored(store, tmp_path).runs, stored(store, tmp_path).state) == (True, "idle")
    with hold_locks(tmp_path, NAMES, "p.yaml"):
        assert stored(store, tmp_path).state == "cleaning", "it runs here now"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"phase": "new", "report": {"unheard": 1}}'])
def test_a_report_of_another_version_says_nothing(tmp_path: Path, data: bytes) -> None:
    store = MemoryStore("memory://t")
    store.put(service_path("clean"), data)
    assert stored(store, tmp_path) == PartState("clean", runs=False)


class Away(MemoryStore):
    def put(self, path: object, data: object) -> None:
        raise StoreUnavailable("no answer")

    def get_many(self, paths: object) -> NoReturn:
        raise OSError("no answer")


def test_a_store_that_does_not_answer_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StoredReports(Away("memory://t"), "clean", Report()).write(after(1, 2))
    assert "the report of clean for other machines was not written: no answer" in capsys.readouterr().err
    assert stored(Away("memory://t"), tmp_path) == PartState("clean", runs=False)
    silent = after(1, 2, waiting_since_ms=1)
    StoredReports(Away("memory://t"), "clean", Report()).write(silent)
    assert capsys.readouterr().err == "", "an outage is reported already, and a try would wait for its end"


def test_a_service_of_one_process_is_seen_by_another_one(tmp_path: Path) -> None:
    """They share the table and nothing else."""
    files = []
    for machine in ("one", "other"):
        file = pipeline_file(tmp_path)
        whole = yaml.safe_load(file.read_text())
        whole |= {"state": str(tmp_path / machine), "clean": {"every": "1 hour"}}
        files.append(file.with_name(f"{machine}.yaml"))
        files[-1].write_text(yaml.safe_dump(whole))
    assert json.loads(weft_output("show", files[1], "parts", "--json").splitlines()[-1])["state"] == "not known here"
    command = [sys.executable, "-m", "weft.streams.cli.main", "run", str(files[0]), "--only", "clean", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    line = json.loads(weft_output("show", files[1], "parts", "--json").splitlines()[-1])
    assert (line["part"], line["state"], line["error"]) == ("clean", "done", "")
    assert "0 files" in line["result"]
    assert line["last_run_at_ms"] > 0
    table = Table.open(tmp_path / "wide")
    assert table.verify().ok
    assert table.clean(dt.timedelta(0)).foreign_files == 0
    assert json.loads(weft_output("show", files[1], "parts", "--json").splitlines()[-1]) == line, "clean leaves it"
