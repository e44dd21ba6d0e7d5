"""Every kind of schema change has the same parameters in Python, as a command, as a procedure and in documents."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from weft import Table
from weft.storage.alter import CHANGES, Change
from weft.streams.catalog.procedure_table import PROCEDURES
from weft.streams.cli.operation_commands import alter

DOCS = Path(__file__).parents[3] / "deploy" / "docs"
COMMANDS: dict[str, click.Command] = typer.main.get_command(alter).commands  # type: ignore[attr-defined]
OTHER_NAMES = {"table": "other_table"}
"""Fields whose names are those of other parameters: `table` is the one that is changed."""
OF_TEXTS = {"new_streams"}
"""Fields that commands and procedures lack: `streams` has existing and new ones."""
EMPTY = (None, (), {}, "")


def command_name(kind: str) -> str:
    return "widen" if kind == "widen_column" else kind.replace("_", "-")


def arguments_of(model: type[Change]) -> dict[str, Any]:
    return dict(model.model_fields)


def test_every_model_is_a_kind_and_every_kind_a_command_a_procedure_and_a_method() -> None:
    assert set(CHANGES.values()) == set(Change.__subclasses__())
    assert set(COMMANDS) == {command_name(kind) for kind in CHANGES}
    assert set(CHANGES) <= set(PROCEDURES)
    for kind, model in CHANGES.items():
        words = "".join(part.title() for part in kind.split("_"))
        assert (model.__name__, callable(getattr(Table, kind))) == (words, True)


@pytest.mark.parametrize("kind", CHANGES)
def test_the_method_has_the_fields_of_the_model(kind: str) -> None:
    fields = arguments_of(CHANGES[kind])
    _, *parameters = inspect.signature(getattr(Table, kind)).parameters.values()
    assert [parameter.name for parameter in parameters] == list(fields)
    for parameter, field in zip(parameters, fields.values(), strict=True):
        expected = inspect.Parameter.empty if field.is_required() else field.default
        assert parameter.default == expected, parameter.name


class Recorder:
    """Stands for a table whose changes are looked at."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def alter(self, *changes: Change) -> None:
        self.changes += changes


ONE_OF_EACH: dict[str, dict[str, Any]] = {
    "add_column": {"group": "g", "name": "a", "type": "int", "default": 1, "function": "sum", "comment": "c"},
    "add_group": {
        "name": "g",
        "columns": {"a": "int"},
        "ordering": ["a"],
        "merge": "m",
        "functions": {"a": "sum"},
        "streams": ["s"],
        "new_streams": {"t": "row"},
        "state": {"x": "int"},
    },
    "add_stream": {"name": "s", "groups": ["g"], "on_delete": "row"},
    "widen_column": {"name": "a", "type": "bigint"},
    "set_default": {"name": "a", "value": 5},
    "set_comment": {"comment": "text", "column": "a"},
    "set_ttl": {"rows": "1 day", "by": "a", "unit": "seconds", "deletes": "2 days", "within": "1 hour"},
    "set_overlays": {"on": True},
    "set_index": {"columns": ["a"]},
    "add_reference": {"name": "r", "table": "../r", "on": ["a"], "columns": ["b"], "prefix": "p_"},
    "drop_reference": {"name": "r"},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_the_method_passes_every_field_on(kind: str) -> None:
    recorder, fields = Recorder(), ONE_OF_EACH[kind]
    assert set(fields) == set(arguments_of(CHANGES[kind])), "the example has every field"
    getattr(Table, kind)(recorder, **fields)
    assert recorder.changes == [CHANGES[kind].model_validate(fields)]


@pytest.mark.parametrize("kind", CHANGES)
def test_the_command_has_the_fields_of_the_model(kind: str) -> None:
    fields = {name: field for name, field in arguments_of(CHANGES[kind]).items() if name not in OF_TEXTS}
    command = COMMANDS[command_name(kind)]
    first, *parameters = (each for each in command.params if each.name not in {"storage_option", "as_json", "never"})
    assert first.name == "target"
    assert [parameter.name for parameter in parameters] == [OTHER_NAMES.get(name, name) for name in fields]
    for parameter, field in zip(parameters, fields.values(), strict=True):
        assert parameter.required == field.is_required(), parameter.name
        assert parameter.default == field.default or field.is_required() or field.default in EMPTY, parameter.name
        assert field.description.removesuffix(".") in parameter.help, parameter.name  # type: ignore[attr-defined]
    assert command.help == CHANGES[kind].__doc__


@pytest.mark.parametrize("kind", CHANGES)
def test_the_procedure_has_the_fields_of_the_model(kind: str) -> None:
    fields = {name: field for name, field in arguments_of(CHANGES[kind]).items() if name not in OF_TEXTS}
    table, *parameters = PROCEDURES[kind].parameters
    assert table.name == "table"
    assert [parameter.name for parameter in parameters] == [OTHER_NAMES.get(name, name) for name in fields]
    for parameter, field in zip(parameters, fields.values(), strict=True):
        assert parameter.required == field.is_required(), parameter.name
        assert parameter.default == field.default or field.is_required() or field.default in EMPTY, parameter.name
    summary, *described = PROCEDURES[kind].comment.split("\n\n")
    assert summary == CHANGES[kind].__doc__
    for name, text, field in zip(fields, described, fields.values(), strict=True):
        assert text.startswith(f"``{OTHER_NAMES.get(name, name)}``: {field.description.removesuffix('.')}"), name


def test_the_documents_have_every_command() -> None:
    """`tests.streams.catalog.test_procedures` compares the table of procedures."""
    names = "\\|".join(map(command_name, CHANGES))
    row = f"| `weft alter {names} URI ...` |"
    assert row in (DOCS / "commands.md").read_text(encoding="utf-8"), row
