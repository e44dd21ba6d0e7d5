"""Compiles `ColumnarTasks.java`, and sends it to executors.

Spark reads rows of a Python data source one by one, and asks for Arrow batches as columns only through an interface
that must be a class on executors. Handing 20 M rows over takes half of the JVM's time that way
(`tests/benchmarks/aggregates.py`, ``--only handover``).
"""

from __future__ import annotations

import logging
import tempfile
import threading
import weakref
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

from streams.spark.compile_java import compile_java

__all__ = ["columnar_tasks"]

_SOURCE: Final = files(__package__) / "ColumnarTasks.java"  # weft may be in an archive (`spark-submit --py-files`)
_CLASS: Final = "weft.ColumnarTasks"

_constructors: weakref.WeakKeyDictionary[SparkContext, Any] = weakref.WeakKeyDictionary()
"""Of the class, by context; None if it does not compile with this Spark."""
_compiling = threading.Lock()


def columnar_tasks(context: SparkContext, batch: Any) -> Any:
    """A batch of Spark's scan of a Python data source, read as columns: a JVM object of the class `ColumnarTasks`.

    The first call for a context compiles the class and adds it to the jars that each executor loads before its next
    task. With a Spark whose classes are not those that the source uses, it logs a warning, and each call returns
    ``batch``, which is read row by row: that is slower, and the answers are the same.
    """
    with _compiling:
        if context not in _constructors:
            _constructors[context] = _compiled(context)
        constructor = _constructors[context]
    if constructor is None:
        return batch
    arguments = context._gateway.new_array(context._jvm.Object, 1)  # type: ignore[union-attr]  # noqa: SLF001 - no public way to the JVM
    arguments[0] = batch
    return constructor.newInstance(arguments)


def _compiled(context: SparkContext) -> Any:
    """The constructor of the class, which executors can load from now on; None if it does not compile."""
    try:
        compiler = compile_java(context, _SOURCE)
    except (Py4JError, TypeError) as error:  # a TypeError if there is no such class
        told = "views read rows from tasks one by one, which is slower: Spark %s has other classes than Spark 4.3: %s"
        logging.getLogger("weft").warning(told, context.version, error)
        return None
    # Executors ask the driver for the jar for as long as the context lives. So does its folder for temporary files.
    folder = tempfile.mkdtemp(prefix="weft-", dir=context._temp_dir)  # noqa: SLF001 - no public name
    path = Path(folder, f"{_CLASS}.jar")
    with zipfile.ZipFile(path, "w") as jar:
        for name, code in compiler.getBytecodes().items():
            jar.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    context._jsc.sc().addJar(str(path))  # noqa: SLF001 - PySpark has no method for it
    (constructor,) = compiler.getClassLoader().loadClass(_CLASS).getConstructors()
    return constructor
