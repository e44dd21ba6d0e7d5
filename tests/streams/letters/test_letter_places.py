"""Where dead letters of a table lie that is the root of its bucket, so that nothing can lie beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streams.support.pipelines import CONFIG, pipeline_file
from weft.storage.errors import InvalidInput
from weft.streams.doctor.finding import Findings, Level
from weft.streams.doctor.store_checks import check_dead_letters
from weft.streams.pipeline.file.letter_places import load_letter_places
from weft.streams.pipeline.file.pipeline import load_pipeline

ROOT = {"uri": "s3://bucket", "config": CONFIG}
SOURCE = {"type": "spark", "format": "rate"}


def test_a_given_folder_needs_no_place_beside_the_table(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, table=ROOT, writers={"sa": {"source": SOURCE, "dead_letter": "./letters"}})
    _, (place,) = load_letter_places(file)
    assert place.folder == str(tmp_path / "letters")


def test_without_a_folder_it_is_refused(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, table=ROOT)
    with pytest.raises(InvalidInput, match="no place for dead letters beside s3://bucket"):
        load_letter_places(file)


def test_doctor_finds_it_and_goes_on(tmp_path: Path) -> None:
    pipeline = load_pipeline(pipeline_file(tmp_path, table=ROOT), {})
    found = Findings()
    check_dead_letters(pipeline.writer("sa"), pipeline, found)
    (problem,) = found.all
    assert (problem.check, problem.level) == ("writers.sa.dead_letter", Level.PROBLEM)
    assert "no place for dead letters beside s3://bucket" in problem.text
    assert problem.hint == "set dead_letter, or on_error: stop"
