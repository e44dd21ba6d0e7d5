"""Verify: checks every invariant that can be checked from storage, and reports all problems."""
