"""Rules of the repository: allowed imports and places of files.

Each test looks at all files, and its failure names each that breaks the rule: a test for each file and rule would be as
many tests as all others together.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"weft", "storage", "streams", "deploy", "tests"}
PACKAGES = ("weft", "storage", "streams")
DOCUMENTS = {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"}
TOP_LEVEL = FOLDERS | DOCUMENTS | {"pyproject.toml", "Makefile"}
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
        found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=240).stdout
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive has no git
        return [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and _is_ours(path)]
    return sorted(Path(line) for line in found.splitlines() if (ROOT / line).is_file())


def _is_ours(path: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)


FILES = tracked()
PYTHON = [path for path in FILES if path.suffix == ".py"]


def modules(*folders: str) -> list[Path]:
    return [path for path in PYTHON if path.parts[0] in folders]


@functools.cache
def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text(path))))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, including imports in functions and under TYPE_CHECKING."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def banned(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def breaking(paths: Iterable[Path], found_in: Callable[[Path], object]) -> dict[str, object]:
    """What breaks a rule, by file; empty if nothing does."""
    found = {str(path): found_in(path) for path in paths}
    return {path: what for path, what in found.items() if what}


def test_the_rules_cover_the_files() -> None:
    assert len(modules("storage")) > 25
    assert Path("storage/core/names.py") in PYTHON
    assert "weft.storage.core.keys" in set(imports(Path("storage/core/merge/collapse.py")))


def test_storage_imports_neither_spark_nor_streams() -> None:
    def others(path: Path) -> list[str]:
        return [name for name in imports(path) if banned(name, {"pyspark", "py4j", "weft.streams", "confluent_kafka"})]

    assert breaking(modules("storage"), others) == {}


def test_the_core_is_pure() -> None:
    core = [path for path in modules("storage") if "core" in path.parts]
    assert breaking(core, lambda path: [name for name in imports(path) if banned(name, BANNED_IN_CORE)]) == {}

    def above(path: Path) -> list[str]:
        ours = [name for name in imports(path) if banned(name, {"weft"})]
        return [name for name in ours if not banned(name, {"weft.storage.core", "weft.storage.errors"})]

    def impure(path: Path) -> set[str]:
        called = [node.func for node in nodes(path) if isinstance(node, ast.Call)]
        return {function.id for function in called if isinstance(function, ast.Name)} & {"open", "print", "input"}

    assert breaking(core, above) == {}
    assert breaking(core, impure) == {}


def test_only_streams_and_its_tests_import_pyspark() -> None:
    allowed = {("tests", "streams"), ("tests", "benchmarks"), ("tests", "soak")}
    others = [path for path in PYTHON if path.parts[0] not in {"streams", "deploy"} and path.parts[:2] not in allowed]
    assert breaking(others, lambda path: [name for name in imports(path) if banned(name, {"pyspark", "py4j"})]) == {}


def imported_modules(path: Path, names: Container[str]) -> Iterator[str]:
    """The modules that a file imports: of ``from package import name`` the module of that name, if there is one."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in names else str(node.module) for name in submodules)


def _module(path: Path) -> str:
    """The name of a module; `weft` has links to the other two folders."""
    parts = path.with_suffix("").parts
    return ".".join(parts if parts[0] == "weft" else ("weft", *parts)).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not in functions, and not for types alone: what needs each other is one idea, or lacks a third module."""
    names = {_module(path): path for path in modules(*PACKAGES)}
    graph = {name: names.keys() & set(imported_modules(path, names)) - {name} for name, path in names.items()}
    while ends := {name for name, others in graph.items() if not others} | (
        graph.keys() - set().union(*graph.values())
    ):
        graph = {name: others - ends for name, others in graph.items() if name not in ends}
    assert graph == {}


def test_the_top_level_has_only_expected_files() -> None:
    assert {path.parts[0] for path in FILES if not path.parts[0].startswith(".")} - TOP_LEVEL == set()


def test_no_file_has_todos_or_outside_paths() -> None:
    marks = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]
    places = ["/wo" + "rk/", "../sha" + "red", ".libr" + "ary", "/ro" + "ot/", "/ho" + "me/"]
    texts = [path for path in FILES if path.suffix in {".py", ".md", ".sh", ".toml", ".yaml"}]
    texts.remove(Path("tests/test_repo.py"))
    assert breaking(texts, lambda path: [word for word in marks if re.search(rf"\b{word}\b", text(path))]) == {}
    assert breaking(texts, lambda path: [place for place in places if place in text(path)]) == {}


def test_every_module_has_a_docstring() -> None:
    def lacks_one(path: Path) -> bool:
        if path.parts[0] == "tests" and path.name == "__init__.py" and not text(path).strip():
            return False  # packages that are shipped have a docstring
        return not ast.get_docstring(ast.parse(text(path)))

    assert breaking(modules(*PACKAGES, "tests"), lacks_one) == {}


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in PYTHON if path.parts[0] == "tests"}
    folders |= {parent for folder in folders for parent in folder.parents if parent.parts}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder / "__init__.py").is_file()] == []


def test_no_module_is_called_utils() -> None:
    assert [str(p) for p in PYTHON if p.stem in {"util", "utils", "helper", "helpers", "common", "misc"}] == []


def test_use_of_private_names_of_others_has_a_reason() -> None:
    def without(path: Path) -> list[str]:
        return [line.strip() for line in text(path).splitlines() if re.search(r"noqa:.*SLF001(?! - \w)", line)]

    assert breaking(modules(*PACKAGES), without) == {}
