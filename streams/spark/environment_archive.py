"""Packs the Python environment of this process into one archive, which Spark sends to its executors.

venv-pack packs a virtual environment, conda-pack one of conda. Three things are different here:

1. PySpark is left out: executors run inside a Spark, which has it, and its jars are most of an environment's size.
2. weft goes in as it is imported here, from wherever that is: of an editable installation an environment holds only a
   reference to the checkout, which no executor has.
3. Another package that is installed like that is refused, because the archive would lack it.
4. Links to places outside of the environment are replaced by what they lead to, except those to Python itself.

So the archive does not hold Python, only a link to it: executors need the same version of Python in the same place, or
in the place that ``python_prefix`` names. (An environment of conda does hold it.)
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

from storage.errors import Conflict, InvalidInput

SUFFIXES: Final = (".tar.gz", ".tgz")
"""Archives that Spark 4.3 unpacks by the program ``tar``. It unpacks ``.tar`` and ``.zip`` by itself, and then refuses
links, or forgets that a file is a program."""

_SITE: Final = "lib/python*/site-packages"
_LEFT_OUT: Final = ("pyspark/*", "py4j/*", "__pycache__/*", "__editable__*weft*")
_PACKAGES: Final = ("storage", "streams")
_AT_THE_TOP: Final = Path("streams", "spark_path")
"""Packages in this folder of a checkout are installed beside ``streams``."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What was packed.

    Attributes:
        path: The archive.
        files: Number of files in it.
        bytes: Its size.
        python: The Python that executors need: its path, or empty if the archive holds it.
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
        python_prefix: Where executors have Python (``bin`` and ``lib`` below it); by default where it is here.
        replace: Whether ``output`` may exist.
        compress_level: From 0 (nothing, quickest) to 9 (most).
        prefix: Folder of another environment, which has what weft needs.

    Raises:
        InvalidInput: This is no virtual environment, a tool is missing, or a package cannot be packed.
        Conflict: ``output`` exists.
    """
    if not output.name.endswith(SUFFIXES):
        raise InvalidInput(f"{output}: Spark does not unpack such a file", hint=f"use one of {', '.join(SUFFIXES)}")
    if output.exists() and not replace:
        raise Conflict(f"{output} exists already", hint="nothing was changed; use another name, or --force")
    root = Path(sys.prefix) if prefix is None else prefix
    patterns = [*(f"{_SITE}/{name}" for name in _LEFT_OUT), *exclude]
    if (root / "conda-meta").is_dir():
        return _pack_conda(root, output, patterns, compress_level)
    if not (root / "pyvenv.cfg").is_file():
        raise InvalidInput(
            f"{root} is not a virtual environment, so it cannot be packed",
            hint="python3 -m venv .venv, install weft and what your code needs into it, and run its weft package",
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
    needed = _python_below(python_prefix) if python_prefix else str(Path(sys.executable).resolve())
    return Packed(output, len(environment), output.stat().st_size, needed)


def _python_below(prefix: str) -> str:
    return f"{prefix.rstrip('/')}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def _without_links(file: Any, root: Path, python: Path) -> Iterator[Any]:
    """A file of venv-pack; for a link to outside of the environment, what it leads to.

    Args:
        file: A ``venv_pack.core.File``.
        root: The environment.
        python: The link to put in the place of that to Python, if it exists; venv-pack makes a wrong name of it.
    """
    source = Path(file.source)
    # One step only: where a link of the environment leads to another one, that one is replaced.
    if not source.is_symlink() or Path(os.path.normpath(source.parent / source.readlink())).is_relative_to(root):
        yield file
        return
    if file.target.startswith("bin/python"):
        yield type(file)(str(python), file.target) if python.is_symlink() else file
        return
    found = source.resolve()
    if found.is_dir():
        for inner in sorted(found.rglob("*")):
            if inner.is_file():
                yield type(file)(str(inner), f"{file.target}/{inner.relative_to(found).as_posix()}")
    elif found.exists():  # a link to nowhere is of no use elsewhere either
        yield type(file)(str(found), file.target)


def _pack_conda(root: Path, output: Path, patterns: Sequence[str], compress_level: int) -> Packed:
    if any(_own_files(root)):
        raise InvalidInput(
            f"weft is not installed in the conda environment {root}",
            hint="pip install weft there without --editable, and run its weft package",
        )
    tool = _tool("conda_pack")
    try:
        environment = tool.CondaEnv.from_prefix(str(root))
        for pattern in patterns:
            environment = environment.exclude(pattern)
        output.parent.mkdir(parents=True, exist_ok=True)
        environment.pack(output=str(output), force=True, compress_level=compress_level)
    except tool.CondaPackException as error:
        raise InvalidInput(f"{root} cannot be packed: {error}", hint="see conda-pack's message") from None
    return Packed(output, len(environment), output.stat().st_size, "")


def _tool(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.replace("_", "-")
        raise InvalidInput(
            f"packing this environment needs {package}, which is not installed",
            hint="pip install 'weft[cluster]'" if module == "venv_pack" else f"conda install {package}",
        ) from None


def _check_editable(root: Path) -> None:
    """Refuse packages other than weft of which the environment has only a reference."""
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


def _folders(root: Path) -> Iterator[Path]:
    """Folders of weft's packages that are imported from outside of the environment."""
    for name in _PACKAGES:
        file = importlib.import_module(name).__file__
        assert file is not None, "weft's packages are no namespaces"
        folder = Path(file).resolve().parent
        if not folder.is_relative_to(root.resolve()):
            yield folder


def _own_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Files of weft that are not in the environment, and their places in its folder of packages."""
    for folder in _folders(root):
        for file in sorted(folder.rglob("*")):
            target = file.relative_to(folder.parent)
            if file.is_dir() or "__pycache__" in target.parts or any(part.startswith(".") for part in target.parts):
                continue
            if target.is_relative_to(_AT_THE_TOP):
                target = target.relative_to(_AT_THE_TOP)
            yield file, target.as_posix()


def _installed_copies(root: Path) -> list[str]:
    """Patterns of files in the environment in whose place `_own_files` puts others."""
    return [f"{_SITE}/{folder.name}/*" for folder in _folders(root)]
