"""Turns errors of the SDKs of S3, Google Cloud Storage and Azure into OSErrors of the right type."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus

from weft.storage.errors import TableError


@contextlib.contextmanager
def normalise_sdk_errors() -> Iterator[None]:
    """Turn every error of an SDK into an OSError of the right type; fsspec does so only for some.

    Raises:
        FileExistsError: The server answers that the object exists (412).
        PermissionError: The server refuses access (401, 403), or there are no credentials.
        OSError: Any other failure, such as an undecided conflict (409), or no answer.
    """
    try:
        yield
    except (FileExistsError, FileNotFoundError, PermissionError, TableError):
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        match http_status(error):
            case HTTPStatus.PRECONDITION_FAILED:
                raise FileExistsError(message) from error
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                raise PermissionError(message) from error
        if isinstance(error, OSError):
            raise
        raise OSError(message) from error


def http_status(error: BaseException) -> int | None:
    """The HTTP status in an SDK's error or in its cause."""
    if type(error).__name__ == "NoCredentialsError":  # botocore raises this before it sends a request
        return HTTPStatus.UNAUTHORIZED
    if type(error) is OSError and str(error).startswith("Forbidden:"):  # gcsfs keeps only the message
        return HTTPStatus.FORBIDDEN
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    for name in ("status_code", "code"):  # Azure, gcsfs
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return None if error.__cause__ is None else http_status(error.__cause__)
