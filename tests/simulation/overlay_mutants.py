"""Mutants of base files and overlays: which rows they may have, what replaces what, and which files they need."""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.mutant import Mutant
from weft.storage.core.log.file_refs import SliceFile
from weft.storage.files import bloom_filter
from weft.storage.services.compaction import compaction, compaction_task, overlay_task

THEME: Final = "overlays"


def without_deletes(stitch: Any) -> Any:
    """Decides of no row whether it is visible."""
    return lambda *args, **named: stitch(*args, **{**named, "exact": False})


def keeps_the_first(overlaid_slice: Any) -> Any:
    def broken(schema: Any, before: SliceFile, made: Any) -> Any:
        changes = overlaid_slice(schema, before, made)
        return {**changes, "overlays": before.overlays or changes["overlays"]}

    return broken


def keeps_none(overlaid_slice: Any) -> Any:
    def broken(schema: Any, before: SliceFile, made: Any) -> Any:
        changes = overlaid_slice(schema, before, made)
        return {**changes, "overlays": changes["overlays"][-1:]}

    return broken


def of_all_plans(_: Any) -> Any:
    return lambda slices, plan: {file.path: file for made in slices for file in made.objects}


def without_overlays(objects: Any) -> Any:
    return property(lambda self: tuple(file for file in (self.base, self.shadow) if file is not None))


def overlays_instead_of_the_base(objects: Any) -> Any:
    def broken(self: SliceFile) -> Any:
        return tuple(file for file in objects.fget(self) if not self.overlays or file != self.base)

    return property(broken)


def less(rotate: Any) -> Any:
    return lambda values, bits: rotate(values, bits - 1)


OVERLAYS: Final = {
    "S29 an overlay keeps rows that deletes hide": Mutant(overlay_task, "Stitch", without_deletes, THEME, rare=True),
    "S29 an older overlay is read instead of the new one": Mutant(
        compaction_task, "overlaid_slice", keeps_the_first, THEME
    ),
    "S29 an overlay ends those of other groups": Mutant(
        compaction_task, "overlaid_slice", keeps_none, THEME, rare=True
    ),
    "S30 values are looked up by another hash": Mutant(bloom_filter, "_rotate", less),
    "K7 a slice that is dropped takes the base with it": Mutant(
        compaction, "_written_files", of_all_plans, THEME, rare=True
    ),
    "K7 overlays are garbage": Mutant(SliceFile, "objects", without_overlays, THEME),
    "K7 a base with overlays is garbage": Mutant(SliceFile, "objects", overlays_instead_of_the_base, THEME),
}
