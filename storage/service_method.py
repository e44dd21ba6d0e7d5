"""Methods of `storage.table.Table` that are functions of its log, with their arguments and docstrings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from storage.log.table_log import TableLog

P = ParamSpec("P")
R = TypeVar("R")


def service_method(function: Callable[Concatenate[TableLog, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Turn a function of a `TableLog` into a method of `Table` with the same other arguments and docstring."""

    @functools.wraps(function)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(self.writable(), *args, **kwargs)

    first, *others = inspect.signature(function).parameters.values()
    itself = first.replace(name="self", annotation=inspect.Parameter.empty)
    signature = inspect.signature(function).replace(parameters=[itself, *others])
    method.__doc__ = (function.__doc__ or "").replace("        table_log: The table's log.\n", "")
    setattr(method, "__signature__", signature)  # noqa: B010 - functions have no such attribute for mypy
    return method
