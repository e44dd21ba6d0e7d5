"""Pipelines: the file, its model, and the processes that run writers and services."""
