"""``weft doctor``: checks all that a pipeline needs, changes nothing and leaves nothing behind; see `diagnose`."""
