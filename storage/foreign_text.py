"""Reads YAML and JSON that others wrote: plain values, within bounds of size, depth and what aliases expand to.

A file of a few hundred bytes can expand to billions of values, and brackets that are nested deeper than Python's stack
end a program. A text beyond the bounds is refused as if it were not YAML or JSON, with the place.
"""

from __future__ import annotations

import json
from typing import Any, Final

import yaml

MAX_CHARACTERS: Final = 2_000_000
"""Of YAML: a pipeline of 4,000 columns has 300,000, and PyYAML reads about 200,000 a second."""
MAX_DEPTH: Final = 64
"""Lists and mappings within each other. Types of columns are texts, so that files have fewer than 10."""
MAX_VALUES: Final = 200_000
"""Values of YAML, where an alias counts as what it stands for: that is what is checked and shown later."""
_BOOLEAN: Final = "tag:yaml.org,2002:bool"


class _NamedKeys(yaml.SafeLoader):
    """Loads YAML whose keys are names, also those such as `on` that YAML 1.1 reads as true or false.

    A repeated key is an error, where PyYAML silently keeps the last one. The text is bounded, and every error is a
    `yaml.YAMLError`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}  # number of values of a finished node, by identity

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias, values_before = self.check_event(yaml.AliasEvent), self._values
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} lists or mappings are nested", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise yaml.MarkedYAMLError(
                problem="an alias stands for a list or mapping that contains it", problem_mark=mark
            )
        self._values += self._sizes[id(node)] if is_alias else 1
        if self._values > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} values, where an alias counts as what it stands for"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        if not is_alias:
            self._sizes[id(node)] = self._values - values_before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            # PyYAML does not catch what Python says of values such as 2026-02-30, 0x_ or !!float x.
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"this is not a valid {kind}; put quotes around it", problem_mark=node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        names = set()
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        scalars = [key for key, _ in pairs if isinstance(key, yaml.ScalarNode)]  # PyYAML refuses other keys
        for key in scalars:
            if key.value in names:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} appears twice", problem_mark=key.start_mark)
            names.add(key.value)
            if key.tag == _BOOLEAN:
                key.tag = yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG
        return super().construct_mapping(node, deep=deep)


def parse_yaml(text: str) -> Any:
    """The plain values of a YAML document.

    Raises:
        yaml.YAMLError: It is not YAML, repeats a key, or is beyond a bound. Most errors have ``problem`` and
            ``problem_mark``.
    """
    return _loader(text).get_single_data()


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a YAML document, which have their lines. Raises what `parse_yaml` raises."""
    return _loader(text).get_single_node()


def _loader(text: str) -> _NamedKeys:
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"more than {MAX_CHARACTERS:,} characters")
    return _NamedKeys(text)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, for settings and options; messages have decoders of their own.

    Raises:
        ValueError: It is not JSON, is not UTF-8, or more than `MAX_DEPTH` arrays or objects are nested.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for container in level
            if isinstance(container, list | dict)
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"more than {MAX_DEPTH} arrays or objects are nested")
