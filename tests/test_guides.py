"""The guides hold: configurations are read, translations are those of `weft import`, recovery is rehearsed."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import yaml

from tests.guide_blocks import GUIDES, ROOT, check_guide
from weft.storage.config.table_config import TableConfig, build_schema, configuration, load_config
from weft.storage.errors import CorruptData, InvalidInput, error_from_dict
from weft.storage.imports.table_text import read_table_text
from weft.storage.imports.translate import translate
from weft.storage.imports.translation import Declaration, Fate
from weft.streams.pipeline.file.model import PipelineConfig
from weft.streams.pipeline.file.pipeline import load_pipeline

_YAML = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TRANSLATED = re.compile(r"^```sql\n(CREATE TABLE.*?)^```\n\n```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MEASURED = re.compile(r"`(python (?:-m )?tests[./]benchmarks[./]\w+)")


@pytest.mark.parametrize("guide", [*sorted(GUIDES.glob("*.md")), ROOT / "README.md"], ids=lambda path: path.name)
def test_every_configuration_is_read(guide: Path, tmp_path: Path) -> None:
    for text in _YAML.findall(guide.read_text(encoding="utf-8")):
        raw = yaml.safe_load(text)
        if {"table", "writers"} <= set(raw):
            file = tmp_path / "pipeline.yaml"
            file.write_text(text, encoding="utf-8")
            assert load_pipeline(file).writers
        elif "key" in raw:
            build_schema(load_config(raw))
        else:
            # A part of a file: its sections exist.
            assert set(raw) <= {*PipelineConfig.model_fields, *TableConfig.model_fields}


def test_translations_are_those_of_the_import() -> None:
    pairs = _TRANSLATED.findall((GUIDES / "migrating.md").read_text(encoding="utf-8"))
    assert len(pairs) == 3
    for statement, shown in pairs:
        text = read_table_text(statement)
        found = translate("parquet", Declaration(columns={}), text)
        expected = configuration(build_schema(load_config(found.config)))
        assert configuration(build_schema(load_config(yaml.safe_load(shown)))) == expected
        unknown = [line.option for line in found.report if line.fate not in {Fate.CARRIED, Fate.UNUSED}]
        assert unknown == [], "the page shows options that are translated"


def test_what_is_measured_can_be_measured() -> None:
    for guide in GUIDES.glob("*.md"):
        for command in _MEASURED.findall(guide.read_text(encoding="utf-8")):
            place = ROOT / command.split()[-1].replace(".py", "").replace(".", "/")
            assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), command


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_recovery_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_guide(GUIDES / "recovery.md", tmp_path)


def _named_sections() -> list[tuple[str, str]]:
    """(source file, document and section) of every error that names one."""
    found = []
    for package in ("storage", "streams"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            found += [
                (str(path), name) for name in re.findall(r"guide(?: = \"|: )((?:deploy|storage)/[^\s)\"]+)", text)
            ]
    return found


def test_documents_and_sections_that_errors_name_exist() -> None:
    named = _named_sections()
    assert len(named) > 15
    missing = []
    for path, name in named:
        file, _, section = name.partition("#")
        document = ROOT / file
        if not document.is_file() or section not in _sections(document):
            missing.append((path, name))
    assert missing == []


def _sections(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_an_error_says_where_the_guide_explains_it() -> None:
    lost = CorruptData("base/1.parquet is missing", hint="copy it back")
    assert str(lost).splitlines()[1:] == [
        "  hint: copy it back",
        "  guide: deploy/docs/recovery.md#objects-are-missing-or-damaged",
    ]
    assert lost.to_dict()["guide"] == CorruptData.guide
    assert str(pickle.loads(pickle.dumps(lost))) == str(error_from_dict(lost.to_dict())) == str(lost)
    assert "guide" not in str(InvalidInput("this is wrong"))
