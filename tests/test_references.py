"""Every reference resolves: rules by their id, documents and their sections, modules and their contents."""

from __future__ import annotations

import functools
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import weft

ROOT = Path(__file__).parents[1]
FROZEN = "tests/fixtures/format/"
FILES = [
    path
    for path in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    if path.endswith((".py", ".md", ".yaml", ".tla", ".cfg", ".toml")) and not re.match(rf"{FROZEN}\d", path)
    # Mutants that replace text quote source text and have separate labels.
    if not path.endswith("mutants.py")
]
DOCUMENTS = {
    path.rsplit("/", 1)[-1]: path for path in FILES if re.fullmatch(r"(storage/|deploy/(?!README))?[A-Z]+\.md", path)
}

RULES = ("storage/PROTOCOL.md", "storage/MERGE.md")
NO_RULES = {
    "T0": "the restored prefix of the table lane",
    "V0": "the restored cut",
    "V2": "Spark's data source API",
    "C99": "the standard of C",
    "B4": "a value in a query",
}
PUBLIC = "|".join(weft.__all__)
FOREIGN = {"CONFIGURATION.md"}  # librdkafka's


@functools.cache
def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _prose(path: str) -> str:
    """The text in one line: comments without markers, adjacent string literals joined."""
    text = re.sub(r"\n\s*(#|\\\*|\|)? ?", " ", _text(path))
    return re.sub(r"\"\s+f?\"", "", text)


def _defined() -> list[str]:
    found = []
    for path in RULES:
        found += re.findall(r"^(?:- |\| )\*\*([A-Z]\d{1,2})\*\*", _text(path), re.MULTILINE)
        found += re.findall(r"^\| ([A-Z]\d{1,2}) \|", _text(path), re.MULTILINE)
    return found


@functools.cache
def _headings(path: str) -> set[str]:
    found = re.findall(r"^#+ (.+)$", _text(path), re.MULTILINE)
    return {re.sub(r" \(.*\)|[`*]", "", heading).strip().lower() for heading in found}


def test_every_rule_is_defined_once() -> None:
    defined = Counter(_defined())
    assert [rule for rule, times in defined.items() if times > 1] == []
    assert {rule[0] for rule in defined} == set("SLWARKFCBDEGTMXU")


def test_rules_that_are_cited_exist() -> None:
    rules = set(_defined())
    cited = re.compile(rf"(?<![\w.'/-])[{''.join(sorted({rule[0] for rule in rules}))}]\d{{1,2}}(?![\w'])")
    unknown = {path: set(cited.findall(_text(path))) - rules - set(NO_RULES) for path in FILES}
    assert {path: found for path, found in unknown.items() if found} == {}


def _sections(path: str) -> Iterator[tuple[str, str]]:
    """(document, section) of every reference to a section."""
    text = _prose(path)
    for name, section in re.findall(r"\b([A-Z]+\.md)\)?,? (?:\(|, )?\\?\"([^\"\\]+)\\?\"", text):
        yield name, section
    for name, section in re.findall(r"\b([A-Z]+\.md), ([A-Z][a-z]+(?: [a-z]+)*)(?=[\"'.;:,)]| \()", text):
        yield name, section


def test_documents_and_sections_that_are_named_exist() -> None:
    missing = []
    for path in FILES:
        named = {name for name in re.findall(r"\b([A-Z]+\.md)\b", _text(path)) if name not in FOREIGN}
        missing += [f"{path}: {name}" for name in named if not _document(name, path).exists()]
        missing += [
            f"{path}: {name}, {section!r}"
            for name, section in _sections(path)
            if name in DOCUMENTS and section.lower() not in _headings(DOCUMENTS[name])
        ]
    assert missing == []


def _document(name: str, path: str) -> Path:
    beside = (ROOT / path).with_name(name)
    return beside if beside.exists() else ROOT / DOCUMENTS.get(name, name)


def test_links_resolve() -> None:
    dead = []
    for path in (path for path in FILES if path.endswith(".md")):
        targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", _text(path)))
        here = [target for target in targets if not re.match(r"[a-z]+:", target)]
        dead += [f"{path}: {target}" for target in here if not _leads_somewhere(path, target)]
    assert dead == []


def _leads_somewhere(path: str, target: str) -> bool:
    file, _, anchor = target.partition("#")
    there = (ROOT / path).parent / file if file else ROOT / path
    if not anchor or there.suffix != ".md":
        return there.exists()
    slugs = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in _headings_of(there)}
    return anchor in slugs


def _headings_of(file: Path) -> list[str]:
    return [heading.lower() for heading in re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)]


def test_modules_that_are_named_exist() -> None:
    """`weft.storage.core.log.cut`, `weft.storage.core.log.cut.Cut`; and files by their path, `core/log/cut.py`."""
    missing = []
    for path in FILES:
        names = re.findall(rf"`(weft\.(?:storage|streams|{PUBLIC})(?:\.\w+)*)", _text(path))
        missing += [f"{path}: {name}" for name in names if not _resolves(name.split("."))]
        roots = (ROOT, ROOT / path.split("/", 1)[0], (ROOT / path).parent, ROOT / "storage", ROOT / "tests" / "storage")
        files = re.findall(r"`((?:[\w-]+/)+\w+\.py)(?:`|::)", _text(path))
        missing += [f"{path}: {file}" for file in files if not any((root / file).exists() for root in roots)]
    assert missing == []


def _resolves(parts: list[str]) -> bool:
    """Whether a dotted name is a module or an attribute of one."""
    for end in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:end])
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        if file.exists():
            names, text = parts[end:], file.read_text(encoding="utf-8")
            elsewhere = names and re.search(rf"^ *from (\S+) import .*\b{names[0]}\b", text, re.MULTILINE)
            if elsewhere:
                return _resolves([*elsewhere[1].split("."), *names])
            return all(re.search(rf"\b{name}\b", text) for name in names)
    return False
