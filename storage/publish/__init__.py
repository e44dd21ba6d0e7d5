"""Publishes base files as tables of open formats, for engines that do not know weft.

The modules of Iceberg import pyiceberg, which `storage` itself does not need: import them only where a table is
published. READING.md, "Iceberg" and "Delta", shows the use, and decision 22 in DECISIONS.md has the reasons.
"""
