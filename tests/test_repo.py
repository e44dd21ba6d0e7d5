"""Rules of the repository: allowed imports, places of files, and their length."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"storage", "streams", "deploy", "tests"}
TOP_LEVEL = FOLDERS | {"pyproject.toml", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"}
MAX_LINES = 500
# The core is pure: no files, clocks, randomness, threads or logs.
BANNED_IN_CORE = {
    *("os", "io", "pathlib", "shutil", "tempfile", "glob", "socket", "subprocess", "urllib.request", "http"),
    *("time", "random", "secrets", "uuid", "threading", "multiprocessing", "concurrent", "asyncio", "queue"),
    *("logging", "warnings", "fsspec", "pyarrow.fs", "pyarrow.parquet", "pyarrow.dataset"),
}


def tracked() -> list[Path]:
    """Files that git tracks or would add; ignored files are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive has no git
        return [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and _is_ours(path)]
    return sorted(Path(line) for line in found.splitlines() if (ROOT / line).is_file())


def _is_ours(path: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)


FILES = tracked()
PYTHON = [path for path in FILES if path.suffix == ".py"]


def modules(*folders: str) -> list[Path]:
    return [path for path in PYTHON if path.parts[0] in folders]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, including imports in functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def banned(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_the_rules_cover_the_files() -> None:
    assert len(modules("storage")) > 25
    assert Path("storage/core/names.py") in PYTHON
    assert "storage.core.keys" in set(imports(Path("storage/core/merge/collapse.py")))


@pytest.mark.parametrize("path", modules("storage"), ids=str)
def test_storage_imports_neither_spark_nor_streams(path: Path) -> None:
    assert [name for name in imports(path) if banned(name, {"pyspark", "py4j", "streams", "confluent_kafka"})] == []


@pytest.mark.parametrize("path", [path for path in modules("storage") if "core" in path.parts], ids=str)
def test_the_core_is_pure(path: Path) -> None:
    found = set(imports(path))
    assert [name for name in found if banned(name, BANNED_IN_CORE)] == []
    ours = [name for name in found if banned(name, {"storage", "streams"})]
    assert [name for name in ours if not banned(name, {"storage.core", "storage.errors"})] == []
    calls = {
        node.func.id
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert calls & {"open", "print", "input"} == set()


@pytest.mark.parametrize("path", [path for path in PYTHON if path.parts[0] != "streams"], ids=str)
def test_only_streams_and_its_tests_import_pyspark(path: Path) -> None:
    allowed = (
        path.parts[:2] in {("tests", "streams"), ("tests", "benchmarks"), ("tests", "soak")}
        or path.parts[0] == "deploy"
    )
    assert allowed or not any(banned(name, {"pyspark", "py4j"}) for name in imports(path))


def test_the_top_level_has_only_expected_files() -> None:
    assert {path.parts[0] for path in FILES if not path.parts[0].startswith(".")} - TOP_LEVEL == set()


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_no_file_is_too_long(path: Path) -> None:
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix in {".py", ".md", ".sh", ".toml", ".yaml"}], ids=str
)
def test_no_file_has_todos_or_outside_paths(path: Path) -> None:
    if path == Path("tests/test_repo.py"):
        return
    text = (ROOT / path).read_text(encoding="utf-8")
    marks = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]
    places = ["/wo" + "rk/", "../sha" + "red", ".libr" + "ary", "/ro" + "ot/", "/ho" + "me/"]
    assert [word for word in marks if re.search(rf"\b{word}\b", text)] == []
    assert [place for place in places if place in text] == []


@pytest.mark.parametrize("path", modules("storage", "streams", "tests"), ids=str)
def test_every_module_has_a_docstring(path: Path) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    if path.name == "__init__.py" and not source.strip():
        assert path.parts[0] == "tests", "packages that are shipped have a docstring"
        return
    assert ast.get_docstring(ast.parse(source)), f"{path} has no docstring"


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in PYTHON if path.parts[0] == "tests"}
    folders |= {parent for folder in folders for parent in folder.parents if parent.parts}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("package", ["storage", "streams"])
def test_no_two_modules_of_a_package_share_a_name(package: str) -> None:
    stems = [path.stem for path in modules(package) if path.stem != "__init__"]
    assert sorted(stem for stem in set(stems) if stems.count(stem) > 1) == []


def test_no_module_is_called_utils() -> None:
    assert [str(p) for p in PYTHON if p.stem in {"util", "utils", "helper", "helpers", "common", "misc"}] == []


@pytest.mark.parametrize("path", modules("storage", "streams"), ids=str)
def test_use_of_private_names_of_others_has_a_reason(path: Path) -> None:
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    assert [line.strip() for line in lines if re.search(r"noqa:.*SLF001(?! - \w)", line)] == []
