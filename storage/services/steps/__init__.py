"""How services run: steps, tasks, threads, progress."""
