"""The folder of dead letters: which letters it holds, what became of them, replays, and retention. Without Spark."""
