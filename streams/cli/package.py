"""``weft package`` and ``weft class-archive``: archives that are made once for an environment, and used by writers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from weft.storage.plural import counted
from weft.streams.cli.arguments import Json
from weft.streams.cli.examples import examples
from weft.streams.cli.output import print_result
from weft.streams.cli.progress import Quiet, progress

package_commands = typer.Typer()


@package_commands.command("package", epilog=examples("weft package -o weft-env.tar.gz"))
def package_environment(
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive: .tar.gz or .tgz.")] = Path(
        "weft-env.tar.gz"
    ),
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Files to leave out, such as 'lib/*/polars/*'. May be repeated."),
    ] = None,
    python_prefix: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where executors have Python (DIR/bin/python3.x), if not where it is here."),
    ] = None,
    level: Annotated[int, typer.Option(min=0, max=9, help="Compression: 0 is quickest, 9 smallest.")] = 4,
    force: Annotated[bool, typer.Option("--force", help="Replace the archive if it exists.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Pack this Python environment, weft included, for spark.archives, so that executors need no packages installed.

    PySpark is left out, because executors have it. They need the same version of Python.
    """
    from weft.streams.spark.environment_archive import pack_environment

    with progress(f"packing {output}", quiet=quiet):
        packed = pack_environment(
            output, exclude=exclude or (), python_prefix=python_prefix, replace=force, compress_level=level
        )
    facts = {"path": str(packed.path), "files": packed.files, "bytes": packed.bytes, "python": packed.python}
    lines = [
        f"{packed.path}: {counted(packed.files, 'file')}, {packed.bytes / 1e6:,.0f} MB",
        *([f"executors need {packed.python}"] if packed.python else []),
        "in the pipeline file, or with --conf for spark-submit:",
        f"  spark.archives: {packed.path}#environment",
        "  spark.pyspark.python: ./environment/bin/python",
    ]
    print_result(facts, "\n".join(lines), as_json=as_json)


@package_commands.command("class-archive", epilog=examples("weft class-archive"))
def class_archive(quiet: Quiet = False, as_json: Json = False) -> None:
    """Make the archive of Spark's classes of this machine: writers start with less work, and share memory.

    It runs a writer on an embedded broker for half a minute. The archive is in the folder that WEFT_CACHE names, or in
    ~/.cache/weft; writers use it from then on. Make it again after an update of Java or PySpark.
    """
    # The demo and its broker are imported for this command alone.
    make_class_archive = importlib.import_module("weft.streams.demo.train_classes").make_class_archive
    with progress("running a writer", quiet=quiet):
        path: Path = make_class_archive()
    size = path.stat().st_size
    print_result({"path": str(path), "bytes": size}, f"{path}: {size / 1e6:,.0f} MB", as_json=as_json)
