"""The operations of a table, each declared once: one module with its request, its function and its result."""
