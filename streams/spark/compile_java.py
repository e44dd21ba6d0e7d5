"""Compiles the few Java classes of weft with Spark's own compiler.

Spark brings the compiler (Janino) that it uses for its generated code, so no JDK is needed, and a class is always
compiled against the Spark that runs it. The compiler knows no type arguments and no lambdas.
"""

from __future__ import annotations

from importlib.resources.abc import Traversable
from typing import Any

from pyspark import SparkContext

__all__ = ["compile_java"]


def compile_java(context: SparkContext, source: Traversable) -> Any:
    """Compile one file.

    Returns:
        The compiler, a JVM object: its class loader has the class, and `getBytecodes` has its code.

    Raises:
        Py4JError: This Spark has other classes than those that the source uses.
        TypeError: It has no such compiler.
    """
    jvm: Any = context._jvm  # noqa: SLF001 - no public way to the JVM
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(source.read_text(encoding="utf-8"))
    return compiler
