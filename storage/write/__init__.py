"""Writing: a writer of one lane, and the part of a commit that runs in tasks."""
