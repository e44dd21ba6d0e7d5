"""Comments at the values of a YAML file that is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

WIDTH: Final = 118


def dump(whole: Mapping[str, Any], comments: Mapping[tuple[str, ...], str]) -> str:
    """A mapping as YAML.

    Args:
        whole: Nested mappings.
        comments: By the names that lead to a value, such as ``("writers", "orders", "select", "id")``. Those of values
            that do not exist are left out.
    """
    text = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=WIDTH)
    lines, root = text.split("\n"), yaml.compose(text)
    for path, comment in comments.items():
        node = root
        for name in path:
            node = _members(node).get(name)
        if node is not None:
            lines[node.end_mark.line] += f"  # {comment}"
    return "\n".join(lines)


def _members(node: Any) -> dict[str, Any]:
    return {name.value: value for name, value in node.value} if isinstance(node, yaml.MappingNode) else {}
