"""Replaces a method of a class of PySpark if Spark has no hook."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def patch_method(kind: type, name: str, mark: str, replacement: Callable[..., Any]) -> None:
    """Replace a method in this process; a second call with the same mark does nothing.

    Args:
        kind: The class.
        name: Name of the method.
        mark: Name of an attribute that the new method gets. A method can be replaced again with another mark.
        replacement: Called with the original method, the object and the arguments. Its first two parameters are
            positional-only, so that options of a user can have any name.
    """
    plain = getattr(kind, name)
    if hasattr(plain, mark):
        return

    @functools.wraps(plain)
    def patched(self: Any, /, *arguments: Any, **options: Any) -> Any:
        return replacement(plain, self, *arguments, **options)

    setattr(patched, mark, True)
    setattr(kind, name, patched)
