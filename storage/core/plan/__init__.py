"""Planning as pure functions: file slices, compaction, folds, watermarks and completeness."""
