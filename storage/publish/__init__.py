"""Publishes base files as tables of open formats, for engines that do not know weft.

These modules import libraries that `storage` itself does not need: import them only where a table is published.
READING.md, "Iceberg", shows the use, and decision 22 in DECISIONS.md has the reasons.
"""
