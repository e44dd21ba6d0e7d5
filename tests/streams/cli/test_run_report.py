"""What ``weft run`` tells on standard error: lost messages with reasons, parts that have ended, the ways on; once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.streams.support.pipelines import pipeline_file
from weft import Table
from weft.storage.errors import Conflict
from weft.streams.cli.run_report import RunReport
from weft.streams.kafka.errors import DataLoss
from weft.streams.letters.letter_files import default_folder
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.run import open_table
from weft.streams.pipeline.run.supervisor import JobStatus, Phase
from weft.streams.write.dead_letter import DeadLetters, open_dead_letters

QUERY = "query-1"


def status(phase: Phase = Phase.DONE, name: str = "sa", message: str = "", **report: Any) -> JobStatus:
    given = Report("ended", **report)
    return JobStatus(name, phase, None, 0, given, message, Path("sa.log"), (), None, background=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline with a table, to which a query has written, and whose folder of dead letters has an old one."""
    path = pipeline_file(tmp_path)
    table = open_table(load_pipeline(path))
    for batch in (0, 1):
        write_letters(table, batch, "of yesterday", ["{}"])
        with table.writer("sa") as writer:
            rows = {"id": [batch], "a": ["x"], "at": pa.array([1], pa.int64())}
            writer.append(pa.table(rows), batch=(QUERY, batch))
    return path


def write_letters(table: Table, batch: int, reason: str, values: list[str]) -> None:
    store = open_dead_letters(default_folder(table.uri, "sa"), table.uri, None)
    with DeadLetters(store, QUERY, batch, "sa", "sa").open(0) as letters:
        for offset, value in enumerate(values):
            source = {"topic": "t", "partition": 0, "offset": offset, "value": value.encode()}
            letters.add(reason, source, {})


def reporter(file: Path, *, once: bool = True, exit_on_failure: bool = False) -> RunReport:
    report = RunReport(load_pipeline(file), "shop/my p.yaml", once=once, exit_on_failure=exit_on_failure)
    table = open_table(load_pipeline(file))
    with table.writer("sa") as writer:
        writer.append(pa.table({"id": [7], "a": ["x"], "at": pa.array([1], pa.int64())}), batch=(QUERY, 2))
    return report


def test_dead_letters_are_told_with_reasons_an_example_and_what_to_do(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reporter(file)
    table = open_table(load_pipeline(file))
    write_letters(table, 2, "the value is not one JSON object", ["[bold]", "no", "x" * 200])
    assert report.end([status(dead_letters=3, rows=0, commits=1)]) == Ending.FAILED
    assert capsys.readouterr().err.splitlines() == [
        "sa: 3 messages became dead letters, and none was stored",
        "    3 x the value is not one JSON object",
        f"    for example {QUERY}/2-0:1 (topic t, partition 0, offset 0): [bold]",
        "    all of them: weft dead-letters list 'shop/my p.yaml' --only sa",
        "    when the file is right (weft doctor 'shop/my p.yaml'): weft dead-letters replay 'shop/my p.yaml'",
    ]
    assert report.end([status(dead_letters=1, rows=5)]) == Ending.DONE, "some were stored"
    assert "sa: 1 message became a dead letter\n" in capsys.readouterr().err


def test_the_most_frequent_reasons_come_first_and_a_folder_that_is_away_hides_none_of_the_numbers(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reporter(file)
    table = open_table(load_pipeline(file))
    for batch, reason, count in ((2, "a", 1), (3, "b", 4), (4, "c", 2), (5, "d", 1), (6, "e", 1)):
        write_letters(table, batch, reason, ["{}"] * count)
    report.end([status(dead_letters=9, rows=1)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:3] == ["    4 x b", "    2 x c"]
    assert lines[4] == "    and 2 other reasons"
    assert lines[5].startswith(f"    for example {QUERY}/3-0:1 ")
    folder = Path(default_folder(load_pipeline(file).table.uri, "sa"))
    (folder / QUERY / "9-0.jsonl").write_text("damaged\n")
    report.end([status(dead_letters=9, rows=1)])
    assert capsys.readouterr().err.splitlines()[:2] == [
        "sa: 9 messages became dead letters",
        "    all of them: weft dead-letters list 'shop/my p.yaml' --only sa",
    ]


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ({"rows": 0}, Ending.DONE),
        ({"rows": 0, "rows_ignored": 3, "tombstones": 2}, Ending.DONE),
        ({"rows": 0, "rows_ignored": 3, "rows_unordered": 3}, Ending.FAILED),
        ({"rows": 1, "rows_ignored": 3, "rows_unordered": 3}, Ending.DONE),
    ],
)
def test_the_exit_code_of_a_run_that_ends(
    file: Path, capsys: pytest.CaptureFixture[str], report: dict[str, int], code: Ending
) -> None:
    """Messages that nobody wants, or no messages, are no failure."""
    assert reporter(file).end([status(**report), status(name="compaction", message="1 file group")]) == code
    assert reporter(file, once=False).end([status(**report)]) == Ending.DONE, "a run that was stopped"
    told = "sa: 3 rows changed nothing: no ordering value" in capsys.readouterr().err
    assert told == ("rows_unordered" in report)


def test_a_run_that_goes_on_tells_of_first_losses_at_once_and_once(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reporter(file, once=False)
    for letters in (0, 1, 1, 5):
        report.update([status(Phase.RUNNING, dead_letters=letters, rows=3)])
    report.end([status(Phase.STOPPED, dead_letters=5, rows=3)])
    assert capsys.readouterr().err.count("became") == 1


def test_a_part_that_has_ended_is_told_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = status(Phase.FAILED, message="no [luck]", error_code=Conflict.code)
    for options, words in (
        ({"once": False}, ", the others continue"),
        ({"once": False, "exit_on_failure": True}, ", all others are being stopped"),
        ({"once": True}, ""),
    ):
        report = reporter(file, **options)
        statuses = [replace(lost, tail=("its last words",)), status(Phase.RUNNING, "sb")]
        for _ in range(3):
            report.update(statuses)
        assert report.end(statuses) == Ending.FAILED
        expected = [f"sa has stopped permanently{words}: no [luck]", "sa failed; its log: sa.log", "  its last words"]
        assert capsys.readouterr().err.splitlines() == expected


def test_a_topic_that_was_created_again_leaves_two_ways_on(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = reporter(file)
    report.update([status(Phase.FAILED, message="another topic", error_code=DataLoss.code)])
    text = capsys.readouterr().err
    pipeline = load_pipeline(file)
    assert f"rm -r {pipeline.table.uri} {pipeline.state}\n" in text
    assert "in 'shop/my p.yaml', writers.sa.source:  options: {failOnDataLoss: false}" in text
    remote = replace(pipeline, table=replace(pipeline.table, uri="s3://lake/wide"))
    RunReport(remote, "p.yaml", once=True, exit_on_failure=False).update([status(Phase.FAILED, error_code="DATA_LOSS")])
    assert "and delete all objects below s3://lake/wide" in capsys.readouterr().err
