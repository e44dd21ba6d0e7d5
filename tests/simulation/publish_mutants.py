"""Mutants of publications as Delta."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.simulation.mutant import Mutant, always
from weft.storage.publish import delta, delta_files, publication
from weft.storage.publish.delta_log import entry_path


def needs_nothing(release_unneeded: Any) -> Any:
    return lambda table, listed, pattern, _: release_unneeded(table, listed, pattern, ())


def writes_over(_: Any) -> Any:
    def broken(store: Any, version: int, actions: Any) -> bool:
        lines = (json.dumps(action) + "\n" for action in actions)
        store.put(entry_path(version), "".join(lines).encode())
        return True

    return broken


def of_all_there_was(files_to_publish: Any) -> Any:
    def broken(state: Any, columns: Any) -> Any:
        return files_to_publish(state, columns)[:1]

    return broken


PUBLISHING: Final = {
    "S31 base files are always said to be of one moment": Mutant(publication, "is_one_moment", always(True), "publish"),
    "S28 a publication makes no savepoint": Mutant(publication, "make_savepoint", always(None), "publish"),
    "S28 a publication releases what readers need": Mutant(delta, "release_unneeded", needs_nothing, "publish"),
    "S28 a publication replaces another": Mutant(delta, "put_entry", writes_over, "publish"),
    "S28 unused rows of shared files are shown": Mutant(delta_files, "inline_deletion_vector", always(None), "publish"),
    "S28 a publication leaves files out": Mutant(delta, "files_to_publish", of_all_there_was, "publish"),
}
