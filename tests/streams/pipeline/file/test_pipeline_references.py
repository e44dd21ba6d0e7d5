"""References in a pipeline file: `weft create`, and `weft alter` beside the file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.streams.support.pipelines import CONFIG, pipeline_file, weft, weft_output
from weft import Table


def test_references_of_a_pipeline_are_created_compared_and_altered(tmp_path: Path) -> None:
    other = Table.create(tmp_path / "other", CONFIG)
    with other.writer("sa") as writer:
        writer.append(pa.table({"id": [7], "a": ["seven"], "at": [1]}))
    reference = {"table": "../other", "on": "at", "columns": ["a"]}
    config = {**CONFIG, "references": {"seen": reference}}
    path = pipeline_file(tmp_path, table={"uri": "./wide", "config": config})
    weft_output("create", path)
    table = Table.open(tmp_path / "wide")
    with table.writer("sa") as writer:
        writer.append(pa.table({"id": [1], "a": ["one"], "at": [7]}))
    assert table.get([1], ["seen_a"]).to_pylist() == [{"seen_a": "seven"}]
    later = "+seen:2:sa=2"
    assert str(table.snapshot().cut).endswith(later)
    assert "add-reference" not in weft_output("alter", "add-reference", path, "again", "../other", "--on", "at")
    assert table.get([1], ["again_a", "again_at"]).to_pylist() == [{"again_a": "seven", "again_at": 1}]
    weft_output("create", path)  # the file need not have it
    changed = {**config, "references": {"seen": {**reference, "on": "id"}}}
    refused = weft("create", pipeline_file(tmp_path, table={"uri": "./wide", "config": changed}))
    assert "references.seen.on: ['id'] in the file, ['at'] in the table" in refused.stderr
    weft_output("alter", "drop-reference", path, "seen")
    refused = weft("create", pipeline_file(tmp_path, table={"uri": "./wide", "config": config}))
    assert "references.seen is only in the file" in refused.stderr
    assert weft("alter", "drop-reference", path, "seen").exit_code == 1
