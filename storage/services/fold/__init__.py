"""Folds: many small log files as one file of registers."""
