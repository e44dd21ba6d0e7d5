"""Work that an engine pushes into the tasks of a read: aggregates, and the first rows of an order."""
