"""Planning as pure functions: file slices, compaction, folds, and what lanes promise of later events."""
