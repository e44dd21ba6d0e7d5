"""Creates a table from a table of another format: copies its rows, and translates its options.

`weft.storage.imports.translate.translate` proposes a configuration and reports what became of each option. It is pure,
as are the modules of the dialects. `weft.storage.imports.foreign_table.open_foreign` opens a table with the reader of
its format, and `weft.storage.imports.import_table.import_table` copies the rows. Readers are libraries that `storage`
itself does not need.
"""
