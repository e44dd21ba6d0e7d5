"""Writing: the writer of a lane, and the part of a commit that runs in tasks."""
