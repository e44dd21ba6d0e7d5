"""Packs the Python environment of this process into one archive, which Spark sends to its executors.

venv-pack packs a virtual environment, conda-pack a conda environment. This module changes four things:

1. PySpark is left out: executors run in a Spark installation, which includes it, and its jars are most of an
   environment's size.
2. weft is packed from the folder that this process imports. With an editable installation the environment has only a
   reference to the checkout, which executors do not have.
3. Other packages in editable mode are refused, because the archive would lack them.
4. Links to files outside of the environment are replaced by the files, except links to Python itself.

So the archive of a virtual environment contains only a link to Python: executors need the same version of Python at the
same path, or at the path that ``python_prefix`` names. The archive of a conda environment contains Python.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weft.storage.errors import Conflict, InvalidInput

SUFFIXES: Final = (".tar.gz", ".tgz")
"""Suffixes of archives that Spark 4.3 unpacks with the program ``tar``. It unpacks ``.tar`` and ``.zip`` itself, and
then refuses links, or loses the executable bit of files."""

_SITE: Final = "lib/python*/site-packages"
_LEFT_OUT: Final = ("pyspark/*", "py4j/*", "__pycache__/*", "__editable__*weft*")
_PACKAGES: Final = ("weft", "weft.storage", "weft.streams")
"""Packages of weft. In a checkout the last two are links in the folder of the first."""
_AT_THE_TOP: Final = Path("weft", "streams", "spark_path")
"""Packages in this folder of a checkout are installed beside ``weft``."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed environment.

    Attributes:
        path: The archive.
        files: Number of files in it.
        bytes: Its size.
        python: Path of the Python that executors need; empty if the archive contains Python.
    """

    path: Path
    files: int
    bytes: int
    python: str


def pack_environment(
    output: Path,
    *,
    exclude: Sequence[str] = (),
    python_prefix: str | None = None,
    replace: bool = False,
    compress_level: int = 4,
    prefix: Path | None = None,
) -> Packed:
    """Pack the environment of this process.

    Args:
        output: The archive; one of `SUFFIXES`.
        exclude: Patterns of files to leave out, such as ``lib/*/site-packages/polars/*``; ``*`` matches ``/`` too.
        python_prefix: Folder of Python on executors (``bin`` and ``lib`` below it); by default as on this machine.
        replace: Whether ``output`` may exist.
        compress_level: From 0 (fastest) to 9 (smallest).
        prefix: Folder of another environment to pack, which must have the packages that weft needs.

    Raises:
        InvalidInput: This is not a virtual environment, a tool is missing, or a package cannot be packed.
        Conflict: ``output`` exists.
    """
    if not output.name.endswith(SUFFIXES):
        raise InvalidInput(f"{output}: Spark does not unpack such a file", hint=f"use one of {', '.join(SUFFIXES)}")
    if output.exists() and not replace:
        raise Conflict(f"{output} already exists", hint="use another name, or --force; nothing was changed")
    root = Path(sys.prefix) if prefix is None else prefix
    patterns = [*(f"{_SITE}/{name}" for name in _LEFT_OUT), *exclude]
    if (root / "conda-meta").is_dir():
        return _pack_conda(root, output, patterns, compress_level)
    if not (root / "pyvenv.cfg").is_file():
        raise InvalidInput(
            f"{root} is not a virtual environment, so it cannot be packed",
            hint="create one with python3 -m venv .venv, install weft and your packages, and run its weft package",
        )
    _check_editable(root)
    return _pack_venv(root, output, patterns, python_prefix, compress_level)


def _pack_venv(
    root: Path, output: Path, patterns: Sequence[str], python_prefix: str | None, compress_level: int
) -> Packed:
    tool = _tool("venv_pack")
    try:
        environment = tool.Env(str(root))
        for pattern in (*patterns, *_installed_copies(root)):
            environment = environment.exclude(pattern)
        if not environment.files:
            raise InvalidInput("all files are excluded", hint="use narrower patterns")
        site = f"{environment._context.py_lib}/site-packages"  # noqa: SLF001 - where it puts packages
        environment.files += [tool.core.File(str(source), f"{site}/{target}") for source, target in _own_files(root)]
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="weft-package-") as folder:
            python = Path(folder, "python")
            if python_prefix is not None:
                python.symlink_to(_python_below(python_prefix))
            environment.files[:] = [copy for file in environment.files for copy in _without_links(file, root, python)]
            environment.pack(output=str(output), python_prefix=python_prefix, force=True, compress_level=compress_level)
    except tool.VenvPackException as error:
        raise InvalidInput(
            f"{root} cannot be packed: {error}", hint="install its packages without --editable"
        ) from None
    python_path = _python_below(python_prefix) if python_prefix else str(Path(sys.executable).resolve())
    return Packed(output, len(environment), output.stat().st_size, python_path)


def _python_below(prefix: str) -> str:
    return f"{prefix.rstrip('/')}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def _without_links(file: Any, root: Path, python: Path) -> Iterator[Any]:
    """Return the file, or the target of a link that leads out of the environment.

    Args:
        file: A ``venv_pack.core.File``.
        root: The environment.
        python: A link that replaces the link to Python if it exists, because venv-pack computes its name wrongly.
    """
    source = Path(file.source)
    # Only one step is followed: if a link leads to another link of the environment, that one is replaced.
    if not source.is_symlink() or Path(os.path.normpath(source.parent / source.readlink())).is_relative_to(root):
        yield file
        return
    if file.target.startswith("bin/python"):
        yield type(file)(str(python), file.target) if python.is_symlink() else file
        return
    target = source.resolve()
    if target.is_dir():
        for inner in sorted(target.rglob("*")):
            if inner.is_file():
                yield type(file)(str(inner), f"{file.target}/{inner.relative_to(target).as_posix()}")
    elif target.exists():  # a dangling link is left out
        yield type(file)(str(target), file.target)


def _pack_conda(root: Path, output: Path, patterns: Sequence[str], compress_level: int) -> Packed:
    if any(_own_files(root)):
        raise InvalidInput(
            f"weft is not installed in the conda environment {root}",
            hint="run pip install weft there without --editable, and run its weft package",
        )
    tool = _tool("conda_pack")
    try:
        environment = tool.CondaEnv.from_prefix(str(root))
        for pattern in patterns:
            environment = environment.exclude(pattern)
        output.parent.mkdir(parents=True, exist_ok=True)
        environment.pack(output=str(output), force=True, compress_level=compress_level)
    except tool.CondaPackException as error:
        raise InvalidInput(f"{root} cannot be packed: {error}", hint="correct what conda-pack reports") from None
    return Packed(output, len(environment), output.stat().st_size, "")


def _tool(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.replace("_", "-")
        raise InvalidInput(
            f"packing this environment needs {package}, which is not installed",
            hint="run pip install 'weft[cluster]'" if module == "venv_pack" else f"run conda install {package}",
        ) from None


def _check_editable(root: Path) -> None:
    """Refuse packages other than weft that are installed in editable mode."""
    names = []
    for site in root.glob(_SITE):
        for package in importlib.metadata.distributions(path=[str(site)]):
            origin = json.loads(package.read_text("direct_url.json") or "{}")
            name = package.metadata["Name"]
            if origin.get("dir_info", {}).get("editable") and name != "weft":
                names.append(name)
    if names:
        raise InvalidInput(
            f"packages installed in editable mode cannot be packed: {', '.join(sorted(names))}",
            hint="install them without --editable",
        )


def _folders(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the folders of weft's packages that are outside of the environment, and their paths in site-packages."""
    for name in _PACKAGES:
        file = importlib.import_module(name).__file__
        assert file is not None, "weft's packages are not namespace packages"
        folder = Path(file).resolve().parent
        if not folder.is_relative_to(root.resolve()):
            yield folder, Path(*name.split("."))


def _own_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of weft that are outside of the environment, and their paths in its site-packages."""
    for folder, place in _folders(root):
        for file in sorted(folder.rglob("*")):
            target = place / file.relative_to(folder)
            if file.is_dir() or "__pycache__" in target.parts or any(part.startswith(".") for part in target.parts):
                continue
            if target.is_relative_to(_AT_THE_TOP):
                target = target.relative_to(_AT_THE_TOP)
            yield file, target.as_posix()


def _installed_copies(root: Path) -> list[str]:
    """Return patterns of the files in the environment that `_own_files` replaces."""
    return [f"{_SITE}/{place.as_posix()}/*" for _, place in _folders(root)]
