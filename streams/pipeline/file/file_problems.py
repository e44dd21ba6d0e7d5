"""Finds all problems of a pipeline file, each with its line and a hint.

A field that is wrong is removed, and the rest is checked again, so that one check reports every mistake.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from weft.storage.config.config_file import Model, Sections, find_problems, remove_field
from weft.storage.errors import InvalidInput, TableError
from weft.storage.foreign_text import compose_yaml

_MISSING: Final = ": is missing"
_ROUNDS: Final = 20  # each removes at least one field, and reveals problems of sections that could not be checked


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A problem of a pipeline file.

    Attributes:
        message: The field, a colon, and what is wrong with it.
        hint: What to do; may be empty.
        line: Line of the field, or of the section that lacks it, from 1; None if the file has neither.
        guide: Document and section that explain it; empty for none.
    """

    message: str
    hint: str
    line: int | None
    guide: str = ""


class WrongFile(InvalidInput):
    """A pipeline file is wrong. Nothing was done.

    Attributes:
        file: Name of the file.
        problems: All its problems, with their lines.
    """

    code = "WRONG_FILE"

    def __init__(self, path: Path, problems: Sequence[TableError], *, hint: str = "") -> None:
        """One error for all problems.

        Args:
            path: The file.
            problems: The problems; at least one.
            hint: Shown if no problem has one.
        """
        self.file, self.problems = path.name, tuple(locate_problems(path, problems))
        hints = dict.fromkeys(problem.hint for problem in self.problems if problem.hint)
        message = "; ".join(problem.message for problem in self.problems)
        super().__init__(f"{path.name}: {message}", hint="; ".join(hints) or hint)

    def _fields(self) -> dict[str, Any]:
        return {"file": self.file, "problems": ()}  # message and hint say the same in other processes


def fields_of(problems: Sequence[TableError]) -> set[str]:
    """The fields with which the messages of problems begin."""
    return {problem.message.partition(": ")[0] for problem in problems}


def locate_problems(path: Path, problems: Sequence[TableError]) -> list[FileProblem]:
    """Add the line of its field to each problem, in the order of the file. Those without a line come first."""
    lines = _Lines(path)
    unique = {problem.message: problem for problem in problems}
    for field in fields_of([problem for problem in problems if not problem.message.endswith(_MISSING)]):
        unique.pop(f"{field}{_MISSING}", None)  # it was left out because it is wrong
    located = (FileProblem(item.message, item.hint, lines.of(item.message), item.guide) for item in unique.values())
    return sorted(located, key=lambda problem: problem.line or 0)


def parse_valid_fields(model: type[Model], raw: Any, sections: Sections, problems: list[InvalidInput]) -> Model | None:
    """Parse the values of a file without the fields that are wrong; None if too little is left.

    Args:
        model: Model of the whole file.
        raw: The values.
        sections: See `weft.storage.config.config_file.parse_fields`.
        problems: The problems are added to this list.
    """
    rest, removed = copy.deepcopy(raw), set[tuple[str, ...]]()
    for _ in range(_ROUNDS):
        values, field_problems = find_problems(model, rest, sections)
        if values is not None:
            return values
        misspelt = {hint for problem in field_problems for hint in problem.hints}
        for problem in field_problems:
            # A section that is empty only because its fields were removed is not a problem of the file. A field that is
            # misspelt is not also missing.
            is_misspelt = problem.missing and f"did you mean {problem.path[-1]}?" in misspelt
            if not is_misspelt and not any(path[: len(problem.path)] == problem.path for path in removed):
                problems.append(InvalidInput(f"{problem.field}: {problem.text}", hint="; ".join(problem.hints)))
        for problem in field_problems:
            place = problem.path[:-1] if problem.missing else problem.path
            if not place or not remove_field(rest, place):
                return None
            removed.add(place)
    return None


class _Lines:
    """Lines of the fields of a YAML file."""

    def __init__(self, path: Path) -> None:
        self._root = compose_yaml(path.read_text(encoding="utf-8"))

    def of(self, message: str) -> int | None:
        """The line of the field with which a message begins."""
        node, line, rest = self._root, None, message.replace("table configuration: ", "", 1)
        while isinstance(node, yaml.MappingNode | yaml.SequenceNode):
            step = _step(node, rest)
            if step is None:
                break
            key, node, rest = step
            line = key.start_mark.line + 1
        return line


def _step(node: yaml.Node, text: str) -> tuple[yaml.Node, yaml.Node, str] | None:
    """The child of a node whose name begins the text.

    Returns:
        The node that has the line of the child, the node of its value, and the rest of the text; None if no name fits.
    """
    if isinstance(node, yaml.SequenceNode):
        children = [(str(number), child, child) for number, child in enumerate(node.value)]
    else:
        children = [(key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
    # The longest name first: names may have dots.
    for name, place, value in sorted(children, key=lambda child: -len(child[0])):
        if text.startswith(name) and text[len(name) : len(name) + 1] in {".", ":", ""}:
            rest = text[len(name) :]
            return place, value, rest[1:].lstrip() if rest.startswith(":") else rest[1:]
    return None
