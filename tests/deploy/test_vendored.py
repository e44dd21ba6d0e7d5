"""Scripts of others are those that were published: by their recorded checksums, and compared with npm."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.deploy import tools
from tests.download_cache import Unavailable

ROOT = Path(__file__).parents[2]
LIST = ROOT / "deploy" / "vendored.sha256"


def packages() -> dict[str, tuple[str, dict[str, str]]]:
    """The folder in each package of npm, and the checksum of each file that was taken."""
    recorded: dict[str, tuple[str, dict[str, str]]] = {}
    for line in LIST.read_text().splitlines():
        if match := re.fullmatch(r"# (\S+@\d+\.\d+\.\d+) (\S+)", line):
            files: dict[str, str] = {}
            recorded[match[1]] = match[2], files
        elif not line.startswith("#"):
            checksum, path = line.split("  ")
            files[path] = checksum
    return recorded


def checksum_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_vendored_file_has_its_recorded_checksum() -> None:
    recorded = {path: checksum for _, files in packages().values() for path, checksum in files.items()}
    folders = [ROOT / "streams/ui/assets/vendor", ROOT / "deploy/docs/vendor"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert {str(path.relative_to(ROOT)): checksum_of(path) for path in files} == recorded


def test_every_vendored_script_is_in_a_folder_of_its_version() -> None:
    for package, (_, files) in packages().items():
        name, _, version = package.rpartition("@")
        folder = f"{name.removesuffix('.org')}-{version}"
        assert {Path(path).parent.name for path in files} == {folder}


@pytest.mark.integration
def test_vendored_scripts_are_those_of_npm() -> None:
    recorded = packages()
    try:
        modules = tools.npm_packages(*recorded) / "node_modules"
    except Unavailable as reason:
        pytest.skip(f"npm does not bring the packages: {reason}")
    for package, (folder, files) in recorded.items():
        source = modules / package.rpartition("@")[0] / folder
        scripts = {path: checksum for path, checksum in files.items() if Path(path).name != "LICENSE"}
        assert {path: checksum_of(source / Path(path).name) for path in scripts} == scripts, package
