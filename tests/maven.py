"""Jars and programs that tests fetch with Maven, once per machine, into the folder of `tests.download_cache`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.download_cache import locked_cache, run_client

FETCH_SECONDS: Final = 240  # an idle machine with a near repository takes 4 to 15; a test may take 300 in all

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weft</groupId><artifactId>{name}</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY: Final = """    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
    </dependency>"""


def maven_jars(name: str, artifacts: Mapping[str, str], *, alone: bool = False) -> Path:
    """Folder of artifacts and of what they depend on, fetched by Maven if no run before has.

    Args:
        name: Of the folder; with the version.
        artifacts: Version by ``group:artifact``.
        alone: Without what they depend on.

    Raises:
        Unavailable: There is no Maven, or it does not bring the jars.
    """
    with locked_cache(name) as cache:
        jars = cache / name
        if not jars.is_dir():
            _fetch(cache, jars, artifacts, ["-DexcludeTransitive=true"] if alone else [])
    return jars


def maven_program(name: str, archive: str) -> Path:
    """Folder of an unpacked archive, fetched by Maven if no run before has.

    Args:
        name: Of the folder; with the version.
        archive: ``group:artifact:version:type:classifier``.

    Raises:
        Unavailable: There is no Maven, or it does not bring the archive.
    """
    with locked_cache(name) as cache:
        program = cache / name
        if not program.is_dir():
            with _workplace(cache) as folder:
                goal = "dependency:unpack"
                _run_maven(folder, [goal, f"-Dartifact={archive}", "-DoutputDirectory=unpacked"])
                Path(folder, "unpacked").rename(program)
    return program


def _fetch(cache: Path, jars: Path, artifacts: Mapping[str, str], options: Sequence[str]) -> None:
    dependencies = []
    for artifact, version in artifacts.items():
        group, _, identifier = artifact.partition(":")
        dependencies.append(_DEPENDENCY.format(group=group, artifact=identifier, version=version))
    with _workplace(cache) as folder:
        Path(folder, "pom.xml").write_text(_POM.format(name=jars.name, dependencies="\n".join(dependencies)))
        _run_maven(folder, ["dependency:copy-dependencies", "-DoutputDirectory=lib", *options])
        Path(folder, "lib").rename(jars)


def _workplace(cache: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fetch-", dir=cache)


def _run_maven(folder: str, arguments: Sequence[str]) -> None:
    run_client(["mvn", "-q", "-B", *arguments], folder, FETCH_SECONDS)
