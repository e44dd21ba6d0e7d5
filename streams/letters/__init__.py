"""The folder of dead letters: its letters and their states, replays, and retention. Needs no Spark."""
