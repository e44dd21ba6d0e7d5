"""Makes a table from a table of another format: a copy of its rows, and a translation of its options.

`weft.storage.imports.translate.translate` proposes a configuration and reports what became of each option; it is pure,
as are the modules of the dialects. `weft.storage.imports.foreign_table.open_foreign` opens a table with its own reader,
and `weft.storage.imports.import_table.import_table` copies it. Readers are libraries that `storage` itself does not
need.
"""
