"""A pipeline in operation: processes, services, states, metrics."""
