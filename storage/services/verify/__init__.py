"""Verification: every invariant that can be checked from what is stored."""
