"""The sections ``compaction`` and ``back_pressure`` of a pipeline file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.streams.support.pipelines import pipeline_file
from weft import DuePolicy
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.pipeline import load_pipeline


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Load a pipeline file with some sections replaced."""
    return lambda sections=None: load_pipeline(pipeline_file(tmp_path, **(sections or {})))


def test_writers_compact_with_the_short_form(load: Any) -> None:
    pipeline = load({"compaction": "inline"})
    assert pipeline.compacts_inline
    assert pipeline.compaction.policy == DuePolicy()
    assert load({"compaction": {"min_fold_ratio": 0}}).compaction.policy == DuePolicy(min_fold_ratio=0)
    assert load({"compaction": {"on": "inline", "share": 0.5}}).compaction.share == 0.5
    assert load({"compaction": "cluster"}).compacts_on_cluster
    assert not load().compacts_inline


def test_limits_of_compaction(load: Any) -> None:
    compaction = load({"compaction": {"concurrency": 3, "memory": "1.5 GB"}}).compaction
    assert (compaction.concurrency, compaction.memory) == (3, 1_500_000_000)
    sizes = {"2 GiB": 2 << 30, "500MB": 500_000_000, "64 kb": 64_000, "123": 123, "7 B": 7, "3M": 3_000_000}
    for text, size in sizes.items():
        assert load({"compaction": {"memory": text}}).compaction.memory == size


def test_back_pressure_is_off_unless_the_file_has_it(load: Any) -> None:
    assert load().back_pressure is None
    assert load({"back_pressure": False}).back_pressure is None
    assert load({"back_pressure": True}).back_pressure == load({"back_pressure": {}}).back_pressure
    section = {"max_read_amplification": False, "max_commits": 5, "max_delay": "2 seconds", "every": 1}
    assert load({"back_pressure": section}).back_pressure.model_dump() == {
        "max_read_amplification": None,
        "max_commits": 5,
        "max_delay": 2.0,
        "every": 1.0,
    }


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("compaction", "moon", "compaction: must be 'here', 'cluster' or 'inline'"),
        ("compaction", {"memory": "much"}, "compaction.memory: 'much' is not a size; write for example 500 MB"),
        ("compaction", {"memory": 0}, "compaction.memory: 0 is not a size"),
        ("compaction", {"concurrency": 0}, "compaction.concurrency: must be 1 or more"),
        ("compaction", {"share": 0}, "compaction.share: must be greater than 0"),
        ("back_pressure", {"max_read_amplification": 1}, "back_pressure.max_read_amplification: must be"),
        ("back_pressure", {"max_dela": 1}, "back_pressure.max_dela: is not a known field"),
    ],
)
def test_an_error_names_the_field(load: Any, section: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        load({section: value})
    assert raised.value.message.startswith(f"p.yaml: {message}")
