"""A pipeline file inferred from messages, and a pipeline file checked against messages."""
