"""Documents match the code: every module, function and file that they name exists, and every link resolves."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import weft
from tests.lake_releases import DELTA, DELTA_4_1, HUDI, ICEBERG, PAIMON_0_9, Release

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in (
        "*.md",
        "storage/*.md",
        "deploy/*.md",
        "deploy/docs/*.md",
        "deploy/docs/api/*.md",
        "tests/*.md",
        "tests/*/*.md",
    )
    for path in ROOT.glob(pattern)
)
_DOTTED = re.compile(rf"`((?:weft\.(?:storage|streams|{'|'.join(weft.__all__)})|tests\b)(?:\.\w+)*)(?:\([^`]*\))?`")
_FILE = re.compile(r"`((?:storage|streams|tests|deploy)/[\w/]+(?:\.(?:py|sh|md|yaml)|/))`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def anchor(heading: str) -> str:
    """The anchor that GitHub creates for a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return plain.replace(" ", "-")


def test_a_wrong_name_is_detected() -> None:
    assert resolves("weft.storage.table.Table.snapshot")
    assert not resolves("weft.storage.table.Table.snapshoot")
    assert not resolves("weft.storage.tables")


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_every_name_of_code_exists(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert [name for name in _DOTTED.findall(text) if not resolves(name)] == []
    assert [name for name in _FILE.findall(text) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_every_link_resolves(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    broken = []
    for target, section in _LINK.findall(_CODE.sub("", text)):
        file = (ROOT / path.parent / target) if target else ROOT / path
        if not file.exists():
            broken.append(target)
        elif section and section not in {anchor(h) for h in _HEADING.findall(file.read_text(encoding="utf-8"))}:
            broken.append(f"{target}#{section}")
    assert broken == []


@pytest.mark.parametrize(
    ("document", "tested"),
    [
        ("deploy/docs/migrating.md", {"Hudi": HUDI, "Delta": DELTA, "Iceberg": ICEBERG, "Paimon": PAIMON_0_9}),
        ("storage/DECISIONS.md", {"Delta": DELTA_4_1, "Iceberg": ICEBERG}),
    ],
)
def test_documents_name_the_releases_that_are_tested(document: str, tested: dict[str, Release]) -> None:
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    for name, release in tested.items():
        spark = f"Spark {release.spark[0].partition('==')[2]}"
        named = f"{name} {release.version}"
        assert f"{named} ({spark})" in text or f"{spark} with {named}" in text, (named, spark)
