"""The pipeline file: its fields, its checks, and what it refers to."""
