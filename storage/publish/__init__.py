"""Publishes base files as tables of open formats, for engines that do not know weft.

The Iceberg modules import pyiceberg, which `storage` itself does not need, so import them only to publish a table. For
the use see READING.md, "Iceberg" and "Delta"; for the reasons, decision 22 in DECISIONS.md.
"""
