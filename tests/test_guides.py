"""The guides hold: configurations are read, translations are those of `weft import`, recovery is rehearsed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from storage.config import build_schema, configuration, load_config
from storage.imports.table_text import read_table_text
from storage.imports.translate import translate
from storage.imports.translation import Declared, Fate
from streams.pipeline.pipeline import load_pipeline
from tests.guide_blocks import GUIDES, check_guide

_YAML = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TRANSLATED = re.compile(r"^```sql\n(CREATE TABLE.*?)^```\n\n```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MEASURED = re.compile(r"`(python (?:-m )?tests[./]benchmarks[./]\w+)")


@pytest.mark.parametrize("guide", sorted(GUIDES.glob("*.md")), ids=lambda path: path.name)
def test_every_configuration_is_read(guide: Path, tmp_path: Path) -> None:
    for text in _YAML.findall(guide.read_text(encoding="utf-8")):
        if "writers" in yaml.safe_load(text):
            file = tmp_path / "pipeline.yaml"
            file.write_text(text, encoding="utf-8")
            assert load_pipeline(file).writers
        else:
            build_schema(load_config(yaml.safe_load(text)))


def test_translations_are_those_of_the_import() -> None:
    pairs = _TRANSLATED.findall((GUIDES / "migrating.md").read_text(encoding="utf-8"))
    assert len(pairs) == 3
    for statement, shown in pairs:
        text = read_table_text(statement)
        found = translate("parquet", Declared(columns={}), text)
        expected = configuration(build_schema(load_config(found.config)))
        assert configuration(build_schema(load_config(yaml.safe_load(shown)))) == expected
        unknown = [line.option for line in found.report if line.fate not in {Fate.CARRIED, Fate.UNUSED}]
        assert unknown == [], "the page shows options that are translated"


def test_what_is_measured_can_be_measured() -> None:
    for guide in GUIDES.glob("*.md"):
        for command in _MEASURED.findall(guide.read_text(encoding="utf-8")):
            place = command.split()[-1].replace(".py", "").replace(".", "/")
            assert (GUIDES.parents[1] / f"{place}.py").is_file(), command


def test_recovery_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_guide(GUIDES / "recovery.md", tmp_path)
