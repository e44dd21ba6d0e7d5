"""Clean: the retention policy, the search for garbage, and its deletion."""
