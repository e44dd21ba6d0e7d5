"""Tables with other tuning values than in production: see `weft.storage.environment.Tuning`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.storage import Table, environment


def tune(patch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Use these tuning values in all tables that are opened from now on, until the patch is undone."""
    patch.setattr(environment, "DEFAULT_TUNING", replace(environment.DEFAULT_TUNING, **sizes))


def tuned(table: Table, **sizes: int) -> Table:
    """Open a table again with other tuning values, but the same store, clock and stamps."""
    return Table(table.env.tuned(**sizes), table._table_log.stamps)
