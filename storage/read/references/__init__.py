"""References: columns of other tables in the rows of a read."""
