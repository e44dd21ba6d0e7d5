"""The pure core of the table format: functions of values, without I/O, clock, randomness, threads or logging."""
