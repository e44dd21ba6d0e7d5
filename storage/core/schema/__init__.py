"""Table schemas: columns, groups and streams, casts of input, and files of older schema revisions."""
