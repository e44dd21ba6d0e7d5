"""Pipeline files as they are shipped, files that are none, and files that only name a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.storage.errors import InvalidInput, NotFound
from weft.streams.pipeline.file.pipeline import is_pipeline, load_pipeline, load_settings


def test_files_that_are_not_pipelines(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    with pytest.raises(NotFound, match=r"there is no pipeline file .*p\.yaml"):
        load_pipeline(file)
    file.write_text("a: [1")
    with pytest.raises(InvalidInput, match=r"p\.yaml, line 1"):
        load_pipeline(file)
    file.write_text("- 1")
    with pytest.raises(InvalidInput, match="is not a mapping"):
        load_pipeline(file)
    file.write_text("table: {}\ntable: {}")
    with pytest.raises(InvalidInput, match=r"line 2: 'table' appears twice"):
        load_pipeline(file)


def test_keys_that_yaml_reads_as_truth_values_are_names(tmp_path: Path) -> None:
    """As the documents write them, without quotes; YAML 1.1 reads `on` and `no` as true and false."""
    file = tmp_path / "p.yaml"
    file.write_text(
        """
table:
  uri: t
  config:
    key: [id]
    columns: {id: bigint, no: string, ts: bigint}
    groups: {on: {columns: ["no", ts], ordering: [ts]}}
    streams: {yes: {groups: ["on"]}}
kafka: {bootstrap.servers: "b:1"}
compaction: {on: inline, share: 0.5}
writers: {yes: {source: {type: kafka, topic: t}, schema: {id: bigint, no: string, ts: bigint}}}
"""
    )
    pipeline = load_pipeline(file)
    assert pipeline.compaction is not None
    assert (pipeline.compaction.on, pipeline.compaction.share) == ("inline", 0.5)
    assert list(pipeline.writers) == ["yes"]
    file.write_text("table: {on: 1, on: 2}")
    with pytest.raises(InvalidInput, match="'on' appears twice"):
        load_pipeline(file)


def test_a_location_needs_only_the_table_section(tmp_path: Path) -> None:
    file = tmp_path / "p.yml"
    file.write_text("table: {uri: lake/x-y}\nwriters: ${NOT_SET}\n")
    assert is_pipeline(str(file))
    location = load_settings(str(file), environment={}).table
    assert (location.uri, location.name) == (str(tmp_path / "lake/x-y"), "x_y")
    assert load_settings("s3://b/t/").table.name == "t"
    assert not is_pipeline("s3://b/t.yaml")
    file.write_text("writers: {}")
    with pytest.raises(InvalidInput, match=r"p\.yml: table\.uri: is missing"):
        load_settings(str(file), environment={})


def test_the_example_is_a_valid_pipeline() -> None:
    import weft.streams

    file = Path(weft.streams.__file__).with_name("cli") / "example_pipeline.yaml"
    pipeline = load_pipeline(file, {})
    assert list(pipeline.writers) == ["orders", "payments"]
    # The field and the hint of an error are shown.
    assert "in source, options: {failOnDataLoss: false}" in file.read_text()


def test_the_demos_pipeline_is_valid(tmp_path: Path) -> None:
    from weft.streams.demo.shop import STREAMS, write_pipeline

    assert tuple(load_pipeline(write_pipeline(tmp_path, "localhost:1")).writers) == STREAMS
