"""Clean: the retention policy, what is garbage, and the deletion of it."""
