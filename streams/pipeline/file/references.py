"""Replaces references in the values of a pipeline file: environment variables, files, and entries of a keyring.

    ${NAME}, ${env:NAME}        an environment variable
    ${file:/run/secrets/x}      the content of a file, without the line break at its end; relative to the pipeline file
    ${keyring:SERVICE/USER}     a password of the system's keyring, with the package keyring
    $$                          a dollar sign

A value may be a secret, so it is never part of a message. Files and keyrings are read when the pipeline is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from weft.storage.errors import InvalidInput

MAX_BYTES: Final = 64 * 1024  # a larger file is not a secret but a mistake
_REFERENCE: Final = re.compile(r"\$\$|\$\{([^}]*)\}|\$\{")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


Report = Callable[[InvalidInput], None]
"""What to do with a problem of a file: raise it, or collect it."""


class References:
    """Resolves references.

    Attributes:
        secret_fields: Fields whose values come, in part, from a file or a keyring.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path, report: Report) -> None:
        """Read nothing yet.

        Args:
            environment: Environment variables.
            folder: Where relative paths of files start.
            report: Called with each reference that is malformed, or that names what does not exist. Its text stays as
                it is.
        """
        self._environment, self._folder, self._report = environment, folder, report
        self.secret_fields: set[str] = set()

    def resolve(self, value: Any, field: str = "") -> Any:
        """Replace the references in all texts of a value of the file.

        Args:
            value: A text, a number, a list or a mapping.
            field: Where it is, for messages: names joined by dots.
        """
        if isinstance(value, Mapping):
            return {key: self.resolve(item, f"{field}.{key}" if field else str(key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item, f"{field}.{number}") for number, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        return _REFERENCE.sub(lambda match: self._replacement(match, field), value)

    def _replacement(self, match: re.Match[str], field: str) -> str:
        if match[0] == "$$":
            return "$"
        try:
            return self._value_of(match, field)
        except InvalidInput as error:
            self._report(error)
            return match[0]

    def _value_of(self, match: re.Match[str], field: str) -> str:
        kind, colon, rest = (match[1] or "").partition(":")
        if not colon:
            kind, rest = "env", kind
        if kind == "file" and rest:
            self.secret_fields.add(field)
            return self._read_file(rest, field)
        if kind == "keyring" and rest:
            self.secret_fields.add(field)
            return _read_keyring(rest, field)
        if kind != "env" or not _NAME.fullmatch(rest):
            raise InvalidInput(
                f"{field}: {match.group()!r} is not the name of an environment variable",
                hint="write ${NAME}, ${file:PATH}, ${keyring:SERVICE/USER}, or $$ for a dollar sign",
            )
        if rest not in self._environment:
            raise InvalidInput(
                f"{field}: environment variable {rest} is not set", hint=f"export {rest}=..., or write $$ for a $"
            )
        return self._environment[rest]

    def _read_file(self, path: str, field: str) -> str:
        file = self._folder / Path(path).expanduser()
        try:
            with file.open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise InvalidInput(
                    f"{field}: file {file} has more than {MAX_BYTES:,} bytes",
                    hint="check the path: a secret is shorter",
                )
            text = content.decode()
        except OSError as error:
            raise InvalidInput(
                f"{field}: file {file} cannot be read: {error.strerror}",
                hint="mount or create it, readable for this user alone",
            ) from None
        except UnicodeDecodeError:
            raise InvalidInput(f"{field}: file {file} is not UTF-8", hint="write the value as text") from None
        return text.removesuffix("\n").removesuffix("\r")


def _read_keyring(entry: str, field: str) -> str:
    service, _, user = entry.rpartition("/")
    if not service or not user:
        raise InvalidInput(f"{field}: ${{keyring:{entry}}} has no user", hint="write ${keyring:SERVICE/USER}")
    try:
        import keyring
        from keyring.errors import KeyringError
    except ModuleNotFoundError:
        raise InvalidInput(
            f"{field}: ${{keyring:...}} needs the package keyring", hint="pip install 'weft[keyring]'"
        ) from None
    try:
        password = keyring.get_password(service, user)
    except KeyringError as error:
        raise InvalidInput(
            f"{field}: the keyring does not answer: {type(error).__name__}", hint="unlock it, or use ${file:PATH}"
        ) from None
    if password is None:
        raise InvalidInput(
            f"{field}: the keyring has no password of {user!r} for {service!r}", hint=f"keyring set {service} {user}"
        )
    return password
