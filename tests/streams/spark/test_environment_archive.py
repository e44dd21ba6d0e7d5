"""``weft package``: contents of the archive, and refusals. `tests.streams.cluster` runs executors from an archive."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.streams.support.pipelines import weft
from weft import streams
from weft.storage.errors import Conflict, InvalidInput
from weft.streams.spark.environment_archive import pack_environment

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An environment with one package and an editable installation of weft."""
    root = tmp_path / "venv"
    venv.create(root, symlinks=True, with_pip=False)
    add(root, "helper/__init__.py", "ANSWER = 42\n")
    add(root, "pyspark/jars/big.jar", "big")
    add(root, "__editable__.weft-0.1.0.pth", "import __editable___weft_0_1_0_finder\n")
    add(root, "__editable___weft_0_1_0_finder.py", "raise ImportError('this is another machine')\n")
    distribution(root, "weft", editable=True)
    return root


def add(root: Path, name: str, text: str) -> None:
    file = root / SITE / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def distribution(root: Path, name: str, *, editable: bool) -> None:
    add(root, f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    add(root, f"{name}-1.0.dist-info/direct_url.json", json.dumps({"url": "x", "dir_info": {"editable": editable}}))


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as file:
        return set(file.getnames())


def test_the_archive_has_the_project_instead_of_its_editable_reference(root: Path, tmp_path: Path) -> None:
    packed = pack_environment(tmp_path / "new" / "env.tar.gz", prefix=root)
    found = names(packed.path)
    for name in (
        "weft/__init__.py",
        "weft/py.typed",
        "weft/storage/__init__.py",
        "weft/streams/cli/example_pipeline.yaml",
        "helper/__init__.py",
    ):
        assert f"{SITE}/{name}" in found
    # Spark searches top-level packages for formats.
    assert f"{SITE}/pyspark_weft/__init__.py" in found
    assert not [name for name in found if "spark_path" in name or "__editable__" in name or "__pycache__" in name]
    assert not [name for name in found if name.startswith(f"{SITE}/pyspark/")], (
        "the archive does not contain pyspark, which executors have"
    )
    assert packed.files > 100
    assert packed.bytes == packed.path.stat().st_size
    assert Path(packed.python).samefile(sys.executable)


def test_the_unpacked_environment_works_in_another_folder(root: Path, tmp_path: Path) -> None:
    packed = pack_environment(tmp_path / "env.tar.gz", prefix=root)
    elsewhere = tmp_path / "executor" / "environment"
    with tarfile.open(packed.path) as file:
        file.extractall(elsewhere)
    code = "import helper, weft.storage.errors, importlib.util; print(helper.ANSWER, weft.storage.errors.__file__)"
    python = "./environment/bin/python"
    done = subprocess.run(
        [python, "-c", code], cwd=elsewhere.parent, env={}, capture_output=True, text=True, check=False
    )
    # Only weft's packages are found, because pyarrow is not in this small environment.
    assert "No module named 'pyarrow'" in done.stderr or done.stdout.startswith(f"42 {elsewhere}"), done.stderr
    assert str(elsewhere) in done.stderr + done.stdout
    assert str(Path(streams.__file__).parents[2]) not in done.stderr + done.stdout


def test_excluded_patterns_are_left_out(root: Path, tmp_path: Path) -> None:
    packed = pack_environment(tmp_path / "env.tar.gz", prefix=root, exclude=["lib/*/site-packages/helper/*"])
    assert f"{SITE}/helper/__init__.py" not in names(packed.path)


def test_the_imported_code_replaces_an_installed_copy(root: Path, tmp_path: Path) -> None:
    add(root, "weft/storage/old_module.py", "")
    packed = pack_environment(tmp_path / "env.tar.gz", prefix=root)
    assert f"{SITE}/weft/storage/old_module.py" not in names(packed.path)
    assert f"{SITE}/weft/storage/errors.py" in names(packed.path)


def test_another_path_of_python(root: Path, tmp_path: Path) -> None:
    packed = pack_environment(tmp_path / "env.tar.gz", prefix=root, python_prefix="/opt/python")
    assert packed.python == f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    with tarfile.open(packed.path) as file:
        links = [member.linkname for member in file.getmembers() if member.name.startswith("bin/python")]
        assert packed.python in links
        config = file.extractfile("pyvenv.cfg")
        assert config is not None
        assert b"home = /opt/python/bin\n" in config.read()


def test_only_the_link_to_python_leads_out_of_the_archive(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "package").mkdir(parents=True)
    (outside / "package" / "module.py").write_text("x = 1")
    (root / SITE / "linked").symlink_to(outside / "package")
    (root / SITE / "single.py").symlink_to(outside / "package" / "module.py")
    (root / SITE / "broken.py").symlink_to(outside / "nothing.py")
    (root / SITE / "inside.py").symlink_to("helper/__init__.py")
    packed = pack_environment(tmp_path / "env.tar.gz", prefix=root)
    with tarfile.open(packed.path) as file:
        members = {member.name: member for member in file.getmembers()}
    links = {name: member.linkname for name, member in members.items() if member.issym() or member.islnk()}
    outward = [name for name, target in links.items() if target.startswith(("/", ".."))]
    assert len(outward) == 1
    assert outward[0].startswith("bin/python")
    assert links[f"{SITE}/inside.py"] == "helper/__init__.py"
    assert members[f"{SITE}/linked/module.py"].isfile()
    assert members[f"{SITE}/single.py"].isfile()
    assert f"{SITE}/broken.py" not in members


def test_refused_archives(root: Path, tmp_path: Path) -> None:
    for name in ("env.rar", "env.zip", "env.tar"):  # for the last two Spark loses links or executable bits
        with pytest.raises(InvalidInput, match="Spark does not unpack"):
            pack_environment(tmp_path / name, prefix=root)
    with pytest.raises(InvalidInput, match="is not a virtual environment") as caught:
        pack_environment(tmp_path / "env.tar.gz", prefix=tmp_path)
    assert "python3 -m venv" in caught.value.hint
    (tmp_path / "there.tar.gz").write_text("mine")
    with pytest.raises(Conflict, match="already exists"):
        pack_environment(tmp_path / "there.tar.gz", prefix=root)
    assert (tmp_path / "there.tar.gz").read_text() == "mine"
    assert pack_environment(tmp_path / "there.tar.gz", prefix=root, replace=True).bytes > 1000


def test_other_editable_packages_are_refused(root: Path, tmp_path: Path) -> None:
    distribution(root, "fine", editable=False)
    pack_environment(tmp_path / "env.tar.gz", prefix=root)
    distribution(root, "mine", editable=True)
    with pytest.raises(InvalidInput, match="editable mode cannot be packed: mine"):
        pack_environment(tmp_path / "other.tar.gz", prefix=root)
    assert not (tmp_path / "other.tar.gz").exists()


def test_a_conda_environment_needs_weft_installed(tmp_path: Path) -> None:
    (tmp_path / "conda" / "conda-meta").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="weft is not installed in the conda environment"):
        pack_environment(tmp_path / "env.tar.gz", prefix=tmp_path / "conda")


def test_the_command_line(tmp_path: Path) -> None:
    done = weft("package", "-o", tmp_path / "env.rar")
    assert done.exit_code == 1
    assert "weft-env.tar.gz" in weft("package", "--help").output
