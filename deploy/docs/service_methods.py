"""For griffe, which reads docstrings: the methods of `storage.Table` that `service_method` makes of functions."""

from __future__ import annotations

from typing import Any

import griffe


class ServiceMethods(griffe.Extension):
    """Replaces each attribute ``name = service_method(function)`` by a method with the docstring of the function."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **others: Any) -> None:
        """Called with each package when it was loaded."""
        if pkg.name != "storage":
            return
        table = pkg["table.Table"]
        for name, member in list(table.members.items()):
            if member.is_attribute and str(member.value).startswith("service_method("):
                # In the class, the name of the function may be that of the method.
                first, _, rest = str(member.value.arguments[0]).partition(".")
                path = ".".join(filter(None, (table.module.resolve(first), rest)))
                table.set_member(name, _method(name, table, loader.modules_collection[path]))


def _method(name: str, table: griffe.Class, function: griffe.Function) -> griffe.Function:
    itself = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    method = griffe.Function(
        name,
        parameters=griffe.Parameters(itself, *list(function.parameters)[1:]),
        returns=function.returns,
        lineno=function.lineno,
        parent=table,
    )
    text = function.docstring.value if function.docstring else ""
    text = "\n".join(line for line in text.splitlines() if line.strip() != "table_log: The table's log.")
    method.docstring = griffe.Docstring(text, parent=method)
    return method
