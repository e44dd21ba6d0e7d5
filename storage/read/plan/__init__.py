"""Which file groups, row groups and log ranges a read needs, and how they are divided into tasks."""
