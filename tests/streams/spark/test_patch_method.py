"""A method that is replaced takes options of any name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.streams.spark.patch_method import patch_method


class Writer:
    def start(self, path: str, /, **options: Any) -> tuple[str, dict[str, Any]]:
        return path, options


def test_options_of_a_replaced_method_can_have_any_name() -> None:
    def replacement(plain: Callable[..., Any], writer: Writer, /, *arguments: Any, **options: Any) -> Any:
        return plain(writer, *arguments, **options)

    options = {"self": 1, "plain": 2, "writer": 3}
    patch_method(Writer, "start", "first", replacement)
    patch_method(Writer, "start", "second", replacement)
    assert Writer().start("p", **options) == ("p", options)
