"""Savepoints, and restores of earlier states."""
