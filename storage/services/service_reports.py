"""Reports of services: what each did last, to be shown on other machines.

A service replaces its report now and then. The protocol does not use reports: a missing, old or damaged one only
changes what is shown. An erase removes reports, because an error in them may name a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.storage.core.names import SERVICES, Path, service_path
from weft.storage.store.object_store import ObjectStore, normalise_errors


def put_service_report(store: ObjectStore, name: str, report: bytes) -> None:
    """Replace the report of a service.

    Args:
        store: The table's store.
        name: Name of the service; names have the same pattern as lanes.
        report: JSON, in any form that its readers know.

    Raises:
        InvalidInput: The name does not match the pattern.
        StoreUnavailable: The store did not write it.
    """
    store.put(service_path(name), report)


def service_reports(store: ObjectStore, names: Sequence[str]) -> Mapping[str, bytes]:
    """The reports of these services, by name; services without one are left out.

    Raises:
        InvalidInput: A name does not match the pattern.
        StoreUnavailable: The store does not answer.
    """
    with normalise_errors(SERVICES):
        contents = store.get_many([service_path(name) for name in names])
    return {name: report for name, report in zip(names, contents, strict=True) if report is not None}


def remove_service_reports(store: ObjectStore) -> None:
    """Remove the reports of all services.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    store.delete_many([Path(f"{SERVICES}/{name}") for name, _ in store.list(SERVICES)])
