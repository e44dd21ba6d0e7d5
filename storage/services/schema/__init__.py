"""Changes of the schema and of the settings of a table."""
