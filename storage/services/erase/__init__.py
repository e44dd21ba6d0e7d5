"""Erase: removes keys physically from a table, and proves it by reading every object of the table back."""
